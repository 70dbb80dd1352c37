"""What goes back with an assistant message: ids and signatures of its blocks; pure.

Per block it keeps what the library's part holds beside its content, under a digest of the content:
a signature answers for the very text it was given with. A state that can't be used (another
version or provider, blocks that no longer match, a signature that is none) degrades that one
message, or that one block, to its plain content, with a line of diagnostics.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from trunkline_protocol.chunks import ReplayEnvelope
from trunkline_protocol.messages import Message, ModelMessageSource
from trunkline_protocol.wire_model import plain

from trunkline_workers.adapters.pydantic_ai.unicode import is_sound

REPLAY_VERSION: Final = 1
_DIGEST_BYTES: Final = 8
# Fields of the library's parts that are neither content nor made up by the library itself.
_FIELDS: Final = ("id", "signature", "provider_name", "provider_details")
_RESPONSE_TEXTS: Final = (
    "model_name",
    "provider_url",
    "provider_response_id",
    "canonical_system",
)


@dataclass(frozen=True, slots=True)
class ReplayScope:
    """Who may use a state again.

    Attributes:
        profile: name of the provider's profile.
        system: the library's name of the provider.
        signatures_are_base64: refuse a signature that the library could not decode.
    """

    profile: str
    system: str
    signatures_are_base64: bool = False


@dataclass(frozen=True, slots=True)
class ReplayState:
    """What goes back with one message: fields of the response and of the part of each block."""

    response: Mapping[str, Any]
    blocks: tuple[Mapping[str, Any] | None, ...]


def part_entry(part: Any, content: str) -> dict[str, object] | None:
    """Return the entry of one block, or `None` if its part holds nothing but content.

    Args:
        part: of the library.
        content: of the block: its text, or the arguments of its call.
    """
    fields = {name: getattr(part, name, None) for name in _FIELDS}
    kept = {name: json_part(value) for name, value in fields.items() if value is not None}
    if not kept:
        return None
    return {"kind": part.part_kind, "digest": _digest(content), "fields": kept}


def envelope(
    scope: ReplayScope, response: Mapping[str, object], entries: Sequence[dict[str, object] | None]
) -> ReplayEnvelope:
    """Return the state of one response."""
    head = {"v": REPLAY_VERSION, "profile": scope.profile, "system": scope.system}
    kept = {key: value for key, value in response.items() if value is not None}
    return ReplayEnvelope({**head, "fields": json_part(kept)}, tuple(entries))


def read_replay(
    message: Message,
    contents: Sequence[tuple[str, str]],
    scope: ReplayScope,
    report: Callable[[str], None],
) -> ReplayState | None:
    """Read the state of an assistant message; `None`: there is none that can be used.

    Args:
        message: of the history.
        contents: part kind and content of each of its blocks.
        scope: of the request.
        report: takes a line about what could not be used.
    """
    source = message.source
    if not isinstance(source, ModelMessageSource) or source.replay_state is None:
        return None
    raw = plain(source.replay_state)
    problem = _problem(raw, len(contents), scope)
    if problem:
        report(f"message {message.id}: replay state not used: {problem}")
        return None
    state = cast("dict[str, Any]", raw)
    blocks: list[Mapping[str, Any] | None] = []
    for position, (entry, (kind, content)) in enumerate(
        zip(state["blocks"], contents, strict=True)
    ):
        fields, reason = _entry_fields(entry, kind, content, scope)
        blocks.append(fields)
        if reason:
            report(f"message {message.id}, block {position}: replay state not used: {reason}")
    response, reason = _response_fields(state["response"].get("fields"))
    if reason:
        report(f"message {message.id}: replay state not used: {reason}")
        return None
    return ReplayState(response, tuple(blocks))


def _response_fields(fields: object) -> tuple[Mapping[str, Any], str]:
    """Return the fields of the response, or why they can't be used."""
    if not isinstance(fields, dict):
        return {}, "the response has no fields"
    known = cast("dict[str, Any]", fields)
    for name in _RESPONSE_TEXTS:
        if name in known and not is_sound(known[name]):
            return {}, f"{name} of the response is no text"
    details: object = known.get("provider_details")
    if details is not None and not isinstance(details, dict):
        return {}, "provider_details of the response are no object"
    names = (*_RESPONSE_TEXTS, "provider_details")
    return {name: known[name] for name in names if known.get(name) is not None}, ""


def _problem(raw: object, block_count: int, scope: ReplayScope) -> str:
    """Say why a whole state can't be used; empty: it can."""
    if not isinstance(raw, dict):
        return "no object"
    state = cast("dict[str, object]", raw)
    response, blocks = state.get("response"), state.get("blocks")
    if not isinstance(response, dict):
        return "no response part"
    head = cast("dict[str, object]", response)
    if head.get("v") != REPLAY_VERSION:
        return f"version {head.get('v')!r} is unknown"
    if head.get("profile") != scope.profile or head.get("system") != scope.system:
        return "it is another provider's"
    if not isinstance(blocks, list) or len(cast("list[object]", blocks)) != block_count:
        return "its blocks do not match the content"
    return ""


def _entry_fields(
    entry: object, kind: str, content: str, scope: ReplayScope
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the fields of one block, or why they can't be used."""
    if entry is None:
        return None, ""
    if not isinstance(entry, dict):
        return None, "no object"
    values = cast("dict[str, object]", entry)
    fields = values.get("fields")
    if values.get("kind") != kind or not isinstance(fields, dict):
        return None, "it is of another kind of block"
    if values.get("digest") != _digest(content):
        return None, "the content was changed"
    known = cast("dict[str, Any]", fields)
    wrong = _wrong_field(known, scope)
    return (None, wrong) if wrong else ({k: known[k] for k in _FIELDS if k in known}, "")


def _wrong_field(fields: Mapping[str, Any], scope: ReplayScope) -> str:
    for name in ("id", "signature", "provider_name"):
        if name in fields and not is_sound(fields[name]):
            return f"{name} is no text"
    details: Any = fields.get("provider_details")
    if details is not None and not isinstance(details, dict):
        return "provider_details is no object"
    if scope.signatures_are_base64:
        inner = cast("dict[str, object]", details or {}).get("thought_signature")
        for signature in (fields.get("signature"), inner):
            if signature is not None and not _is_base64(signature):
                return "the signature is no base64"
    return ""


def _is_base64(value: object) -> bool:
    try:
        base64.b64decode(cast("str", value), validate=True)
    except (binascii.Error, ValueError, TypeError):
        return False
    return True


def _digest(content: str) -> str:
    data = content.encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def json_part(value: object) -> object:
    """Return the part of a value that JSON can hold; what it can't is left out of its map."""
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(key): json_part(item) for key, item in items if _is_json(item)}
    if isinstance(value, list | tuple):
        return [json_part(item) for item in cast("list[object]", value) if _is_json(item)]
    return value


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int | float | Mapping | list | tuple)
