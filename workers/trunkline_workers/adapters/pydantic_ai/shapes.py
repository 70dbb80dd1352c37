"""Compares events with the lists and objects that each SDK expects in them; pure.

The SDKs walk through whatever stands there. A text of half a million characters is then half a
million values, which stops the loop. Only these places are judged: everything else is the SDK's.
Sources are the types of the SDKs, November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

from trunkline_workers.adapters.pydantic_ai.events import UnreadableEventError

# An object with these keys, or a list of what stands in it. Keys that are missing may be.
Shape = Mapping[str, "Shape"] | tuple["Shape", ...]
_OBJECT: Final[Shape] = MappingProxyType({})
_LIST: Final[Shape] = (_OBJECT,)
_ANY_LIST: Final[Shape] = ()  # of values that are not judged

_CHAT: Final[Shape] = {
    "choices": ({"delta": {"tool_calls": ({"function": _OBJECT},)}, "message": _OBJECT},),
    "usage": _OBJECT,
}
_DETAILS: Final = ("prompt", "cache", "candidates", "toolUsePrompt")
_GOOGLE: Final[Shape] = {
    "candidates": (
        {
            "content": {"parts": ({"functionCall": _OBJECT, "inlineData": _OBJECT},)},
            "safetyRatings": _LIST,
            "citationMetadata": {"citations": _LIST, "citationSources": _LIST},
            "groundingMetadata": {
                "groundingChunks": _LIST,
                "groundingSupports": ({"groundingChunkIndices": _ANY_LIST},),
                "webSearchQueries": _ANY_LIST,
                "imageSearchQueries": _ANY_LIST,
                "retrievalQueries": _ANY_LIST,
            },
            "logprobsResult": {"topCandidates": _LIST, "chosenCandidates": _LIST},
            "urlContextMetadata": {"urlMetadata": _LIST},
        },
    ),
    "promptFeedback": {"safetyRatings": _LIST},
    "usageMetadata": {f"{name}TokensDetails": _LIST for name in _DETAILS},
}
_ITEM: Final[Shape] = {
    "content": ({"annotations": _LIST, "logprobs": _LIST},),
    "summary": _LIST,
}
_RESPONSES: Final[Shape] = {
    "response": {"output": (_ITEM,), "tools": _LIST, "usage": _OBJECT},
    "item": _ITEM,
    "part": {"annotations": _LIST, "logprobs": _LIST},
    "annotation": _OBJECT,
    "logprobs": _LIST,
}
_ANTHROPIC: Final[Shape] = {
    "message": {"content": _LIST, "usage": _OBJECT},
    "content_block": {"citations": _LIST},
    "delta": {"citation": _OBJECT},
    "usage": _OBJECT,
    "context_management": {"applied_edits": _LIST},
}
SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "anthropic": _ANTHROPIC,
        "google": _GOOGLE,
        "groq": _CHAT,
        "mistral": _CHAT,
        "openai": _RESPONSES,
    }
)
"""By the extra of the library that holds the SDK."""


def check_shape(tree: object, shape: Shape, place: str = "") -> None:
    """Compare a decoded event with what its SDK expects.

    Args:
        tree: the event; one that is no object is left to the SDK.
        shape: of the SDK.
        place: of the tree in the event, for the error.

    Raises:
        UnreadableEventError: a list or an object is expected and something else stands there.
    """
    if tree is None or (not place and not isinstance(tree, dict)):
        return
    if isinstance(shape, tuple):
        if not isinstance(tree, list):
            raise UnreadableEventError(f"{place}: a list is expected")
        for inner in shape:
            for item in cast("list[object]", tree):
                check_shape(item, inner, f"{place}[]")
        return
    if not isinstance(tree, dict):
        raise UnreadableEventError(f"{place}: an object is expected")
    fields = cast("dict[str, object]", tree)
    for key, inner in shape.items():
        if key in fields:
            check_shape(fields[key], inner, f"{place}.{key}".lstrip("."))
