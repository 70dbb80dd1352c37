"""`GenerateOptions` in, the library's messages, settings and parameters out.

Images are read before. What the provider can't honour is refused: here where it is known, and by
`check_body` on the request as it would go out, since the library drops some options by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from trunkline_protocol.content import (
    ContentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.messages import Message
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.wire_model import plain

from trunkline_workers.adapters.pydantic_ai.config import AdapterConfig
from trunkline_workers.adapters.pydantic_ai.models import part
from trunkline_workers.adapters.pydantic_ai.replay import ReplayScope, ReplayState, read_replay
from trunkline_workers.adapters.pydantic_ai.unicode import is_sound, sound
from trunkline_workers.images import images_in

_KINDS: Final = {"text": "text", "reasoning": "thinking", "tool-call": "tool-call"}
# Where the providers' bodies hold the options that a call may set, and what they call them there.
_NESTED: Final = ("generationConfig", "inferenceConfig")
_WIRE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "temperature": ("temperature",),
    "max_tokens": (
        "max_tokens",
        "max_output_tokens",
        "max_completion_tokens",
        "maxOutputTokens",
        "maxTokens",
    ),
    "stop": ("stop", "stop_sequences", "stopSequences"),
}

Images = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class LibraryRequest:
    """One request in the library's own types.

    Attributes:
        messages: of the library.
        settings: of the library.
        parameters: of the library.
        has_replay: some message went with what a provider gave with it.
    """

    messages: list[Any]
    settings: dict[str, Any]
    parameters: Any
    has_replay: bool = False


def build_request(
    options: GenerateOptions,
    model: Any,
    config: AdapterConfig,
    images: Images,
    report: Callable[[str], None],
    *,
    with_replay: bool = True,
) -> LibraryRequest:
    """Build the request.

    Args:
        options: the call; defaults of the exact model are in it already.
        model: of the library, for the exact model.
        config: of the worker.
        images: bytes by attachment id.
        report: takes a line when stored replay state can't be used.
        with_replay: send stored replay state; without it all messages are plain.

    Raises:
        LlmError: `UNSUPPORTED`, `UNSUPPORTED_CONTENT` or `UNSUPPORTED_REASONING_EFFORT`.
    """
    unknown = sorted(options.model_extra or ())
    if unknown:
        text = f"options not supported here: {', '.join(unknown)}"
        raise LlmError.of(text, Code.UNSUPPORTED)
    scope = ReplayScope(config.name, model.system, config.profile.signatures_are_base64)
    writer = _Conversation(model, images, scope, report, with_replay=with_replay)
    messages = writer.write(options)
    fitted_length = model.profile.get("tool_call_id_length")
    if fitted_length is not None:  # the only rewriting of the library that a provider insists on
        messages = model.prepare_messages(messages)
    settings = _settings(options, model, config)
    return LibraryRequest(messages, settings, _parameters(options), writer.has_replay)


def _settings(options: GenerateOptions, model: Any, config: AdapterConfig) -> dict[str, Any]:
    profile = config.profile
    settings: dict[str, Any] = {**config.settings, "framing_announcement": "never"}
    effort = options.reasoning_effort or config.default_effort
    if thinks(model):
        settings = {**profile.thinking_settings, **settings}
        if options.purpose == "session-title" and not options.reasoning_effort:
            effort = "off" if "off" in offered_efforts(model, config) else None
        if effort is None:
            settings = {**profile.unasked_settings, **settings}
    if effort is not None:
        offered = offered_efforts(model, config)
        if effort not in offered:
            some = ", ".join(offered) or "none"
            text = f"reasoning effort {effort!r} is not supported; supported: {some}"
            raise LlmError.of(text, Code.UNSUPPORTED_REASONING_EFFORT)
        settings["thinking"] = False if effort == "off" else effort
    asked = {
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "stop_sequences": None if options.stop is None else list(options.stop),
    }
    return {**settings, **{name: value for name, value in asked.items() if value is not None}}


def thinks(model: Any) -> bool:
    """Tell whether the library knows a model as one that thinks."""
    profile = model.profile
    return bool(profile.get("supports_thinking") or profile.get("thinking_always_enabled"))


def offered_efforts(model: Any, config: AdapterConfig) -> tuple[str, ...]:
    """Return the efforts a call may ask of a model; none for one that does not think."""
    if not thinks(model):
        return ()
    always = bool(model.profile.get("thinking_always_enabled"))
    off = () if always or "off" in config.efforts else ("off",)
    return tuple(e for e in (*off, *config.efforts) if not (always and e == "off"))


def _parameters(options: GenerateOptions) -> Any:
    tool = part("pydantic_ai.tools:ToolDefinition")
    return part("pydantic_ai.models:ModelRequestParameters")(
        function_tools=[
            # Strict schemas are another contract than the one the application wrote.
            tool(
                name=each.name,
                description=each.description,
                parameters_json_schema=plain(each.parameters),
                strict=False,
            )
            for each in options.tools or ()
        ],
        allow_text_output=True,
    )


def check_body(options: GenerateOptions) -> Callable[[bytes], None]:
    """Return a look at a request about to go out: every option that the call sets must be in it.

    The look raises `LlmError` (`UNSUPPORTED`) for one that the library has dropped, which it does
    where a model does not take it.
    """
    asked = [name for name in _WIRE_NAMES if getattr(options, name) not in (None, ())]
    if not asked:
        return lambda _: None

    def check(body: bytes) -> None:
        tree = cast("dict[str, object]", msgspec.json.decode(body))
        places = [tree, *(tree.get(key) for key in _NESTED)]
        maps = [cast("dict[str, object]", place) for place in places if isinstance(place, dict)]
        for name in asked:
            keys = _WIRE_NAMES[name]
            if not any(place.get(key) is not None for place in maps for key in keys):
                text = f"{name}: this model does not take it"
                raise LlmError.of(text, Code.UNSUPPORTED)

    return check


class _Conversation:
    """Writes the messages of one request."""

    def __init__(
        self,
        model: Any,
        images: Images,
        scope: ReplayScope,
        report: Callable[[str], None],
        *,
        with_replay: bool,
    ) -> None:
        self.has_replay = False
        self._with_replay = with_replay
        self._model = model
        self._images = images
        self._scope = scope
        self._report = report
        self._types = _Types()
        self._tool_names: dict[str, str] = {}

    def write(self, options: GenerateOptions) -> list[Any]:
        """Write the system prompt and all messages; neighbours of one side become one message."""
        types = self._types
        out: list[Any] = []
        lead = [types.system(options.system)] if options.system is not None else []
        for message in options.messages:
            if message.role == "assistant":
                _flush(out, lead, types)
                out += self._assistant(message)
            elif message.role == "system":
                lead.append(self._system(message, is_first=not out and _only_system(lead, types)))
            else:
                lead += self._user(message.content)
        _flush(out, lead, types)
        return out

    def _system(self, message: Message, *, is_first: bool) -> Any:
        _refuse_images(message.content)
        text = _text(message.content)
        if is_first or self._model.profile.get("supports_inline_system_prompts"):
            return self._types.system(text)
        # Where the API has no system role later on, this is how models are taught to read it.
        return self._types.user(f"<system>\n{sound(text)}\n</system>")

    def _assistant(self, message: Message) -> list[Any]:
        _refuse_images(message.content)
        blocks = [b for b in message.content if b.type in _KINDS]
        contents = [(_KINDS[b.type], _content(b)) for b in message.content if b.type in _KINDS]
        # Entries are per block of the response; blocks of other types have one too.
        usable = self._with_replay and len(blocks) == len(message.content)
        state = read_replay(message, contents, self._scope, self._report) if usable else None
        self.has_replay |= state is not None
        parts = [
            made
            for position, block in enumerate(blocks)
            if (made := self._part(block, state.blocks[position] if state else None)) is not None
        ]
        if not parts:
            return []
        return [self._types.response(parts, state, self._scope.system)]

    def _part(self, block: ContentBlock, fields: Mapping[str, Any] | None) -> Any:
        types, kept = self._types, dict(fields or {})
        if isinstance(block, TextBlock):
            return types.text(block.text, kept) if block.text or kept else None
        if isinstance(block, ToolCallBlock):
            self._tool_names[block.id] = block.name
            return types.call(block, kept)
        # Thinking that nobody signed is no provider's any more; as text it would be imitated.
        # Nor is it once a half character had to be replaced: the signature is of the other text.
        if isinstance(block, ReasoningBlock) and fields is not None and is_sound(block.text):
            return types.thinking(block.text, kept)
        return None

    def _user(self, content: Sequence[ContentBlock]) -> list[Any]:
        """Write tool results, which have to follow their calls at once, then the rest."""
        types = self._types
        out = [
            types.result(
                self._tool_names.get(block.tool_call_id, "tool"),
                self._shown(block.content, nested=True),
                block,
            )
            for block in content
            if isinstance(block, ToolResultBlock)
        ]
        shown = self._shown(content, nested=False)
        if shown or not out:
            out.append(types.user(shown if len(shown) != 1 else shown[0]))
        return out

    def _shown(self, content: Sequence[ContentBlock], *, nested: bool) -> list[Any]:
        """Return texts and images in their order."""
        shown: list[Any] = []
        for block in content:
            if isinstance(block, TextBlock):
                if block.text:
                    shown.append(sound(block.text))
            elif isinstance(block, ImageBlock):
                shown.append(self._image(block))
            elif isinstance(block, ToolResultBlock) and nested:
                shown += self._shown(block.content, nested=True)
        return shown if shown or nested else [""]

    def _image(self, block: ImageBlock) -> Any:
        if not self._model.profile.get("supports_image_input", True):
            raise _no_images()
        attachment = block.attachment
        data = self._images.get(attachment.attachment_id)
        if data is None:
            text = f"image {attachment.attachment_id} is not stored on this machine"
            raise LlmError.of(text, Code.ATTACHMENT_MISSING)
        return self._types.image(data, attachment.media_type)


class _Types:
    """The library's types that a conversation is made of."""

    @staticmethod
    def _of(name: str) -> Any:
        return part(f"pydantic_ai.messages:{name}")

    def system(self, text: str) -> Any:
        return self._of("SystemPromptPart")(sound(text))

    def user(self, content: object) -> Any:
        return self._of("UserPromptPart")(content)

    def image(self, data: bytes, media_type: str) -> Any:
        return self._of("BinaryContent")(data, media_type=media_type)

    def text(self, text: str, kept: dict[str, Any]) -> Any:
        kept.pop("signature", None)
        return self._of("TextPart")(sound(text), **kept)

    def thinking(self, text: str, kept: dict[str, Any]) -> Any:
        return self._of("ThinkingPart")(text, **kept)

    def call(self, block: ToolCallBlock, kept: dict[str, Any]) -> Any:
        kept.pop("signature", None)
        return self._of("ToolCallPart")(
            sound(block.name), sound(block.arguments), sound(block.id), **kept
        )

    def result(self, name: str, shown: list[Any], block: ToolResultBlock) -> Any:
        has_only_text = all(isinstance(item, str) for item in shown)
        return self._of("ToolReturnPart")(
            sound(name),
            "".join(shown) if has_only_text else shown,
            sound(block.tool_call_id),
            outcome="failed" if block.is_error else "success",
        )

    def request(self, parts: list[Any]) -> Any:
        return self._of("ModelRequest")(parts=parts)

    def response(self, parts: list[Any], state: ReplayState | None, system: str) -> Any:
        fields = dict(state.response) if state is not None else {}
        return self._of("ModelResponse")(
            parts=parts, provider_name=system if state is not None else None, **fields
        )


def _flush(out: list[Any], parts: list[Any], types: _Types) -> None:
    """Move the parts of the application's side into one message."""
    if parts:
        out.append(types.request(list(parts)))
        parts.clear()


def _only_system(parts: list[Any], types: _Types) -> bool:
    return all(each.part_kind == "system-prompt" for each in parts)


def _content(block: ContentBlock) -> str:
    if isinstance(block, ToolCallBlock):
        return block.arguments
    return block.text if isinstance(block, TextBlock | ReasoningBlock) else ""


def _text(blocks: Sequence[ContentBlock]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def _refuse_images(content: Sequence[ContentBlock]) -> None:
    """Refuse images in a role that can't show any."""
    if any(True for _ in images_in(content)):
        raise _no_images()


def _no_images() -> LlmError:
    text = "images are not supported by this provider in this place"
    return LlmError.of(text, Code.UNSUPPORTED_CONTENT)
