"""Content blocks: the typed pieces of a message.

Unknown block types and unknown keys pass unchanged. What models without images get to see is in
`images`, what a request with too many images sheds is in `image_offload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Discriminator, Tag, TypeAdapter, ValidationError

from trunkline_protocol.wire_model import Flag, Integer, Text, WireModel, first_error


class TextBlock(WireModel):
    """Visible text."""

    type: Literal["text"] = "text"
    text: Text


class ReasoningBlock(WireModel):
    """Thinking, distinct from visible text."""

    type: Literal["reasoning"] = "reasoning"
    text: Text


class ImageAttachment(WireModel):
    """A reference to stored image bytes.

    Attributes:
        attachment_id: content address, `sha256:` and 64 hexadecimal digits.
        media_type: such as `image/png`.
        bytes: size of the stored file.
        width: pixels.
        height: pixels.
        name: file name, if the producer knew one.
    """

    attachment_id: Text
    media_type: Text
    bytes: Integer
    width: Integer
    height: Integer
    name: Text | None = None


class ImageBlock(WireModel):
    """An image held by the attachment store."""

    type: Literal["image"] = "image"
    attachment: ImageAttachment


class ToolCallBlock(WireModel):
    """A call the model asks for; `arguments` is raw JSON text, never parsed on the way."""

    type: Literal["tool-call"] = "tool-call"
    id: Text
    name: Text
    arguments: Text


class ToolResultBlock(WireModel):
    """What a tool answered."""

    type: Literal["tool-result"] = "tool-result"
    tool_call_id: Text
    content: tuple[ContentBlock, ...]
    is_error: Flag | None = None


class UnknownBlock(WireModel):
    """A block of a type this version does not know; its keys are in `model_extra`."""

    type: Text


_MODELS: Final[dict[str, type[WireModel]]] = {
    "text": TextBlock,
    "reasoning": ReasoningBlock,
    "image": ImageBlock,
    "tool-call": ToolCallBlock,
    "tool-result": ToolResultBlock,
}
KNOWN_BLOCK_TYPES: Final = frozenset(_MODELS)


def _tag(value: object) -> str:
    """Choose the model of a block by its `type`."""
    kind: object = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return kind if isinstance(kind, str) and kind in KNOWN_BLOCK_TYPES else "unknown"


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ReasoningBlock, Tag("reasoning")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[ToolCallBlock, Tag("tool-call")]
    | Annotated[ToolResultBlock, Tag("tool-result")]
    | Annotated[UnknownBlock, Tag("unknown")],
    Discriminator(_tag),
]
_ADAPTER: Final[TypeAdapter[ContentBlock]] = TypeAdapter(
    ContentBlock, config=ConfigDict(defer_build=True, hide_input_in_errors=True)
)


def block_from_dict(data: Mapping[str, object]) -> ContentBlock:
    """Read one block from its camelCase map.

    Raises:
        ValueError: no text `type`, or a known type with a wrong shape.
    """
    try:
        return _ADAPTER.validate_python(dict(data))
    except ValidationError as exc:
        raise ValueError(first_error(exc)) from None  # the cause would show the input


def block_to_dict(block: ContentBlock) -> dict[str, object]:
    """Return the camelCase map of a block."""
    return block.to_dict()
