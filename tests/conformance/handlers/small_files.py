"""`api_key`, `attribution`, `call_config`, `message`, `content`, `retry_policy`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from trunkline_protocol.api_key import ApiKeyFault, normalize_api_key, usable_api_key
from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.attribution import AppIdentity, attribution_headers, user_agent
from trunkline_protocol.chunks import chunk_from_dict, is_token_delta
from trunkline_protocol.content import ContentBlock, UnknownBlock, block_from_dict
from trunkline_protocol.failure import LlmError, LlmFailure, is_delay_ms
from trunkline_protocol.frozen import FrozenDict, FrozenList
from trunkline_protocol.image_offload import (
    OFFLOADED_IMAGE_TEXT,
    ImageOffloadPolicy,
    offload_request_images,
    offload_request_images_with_policy,
)
from trunkline_protocol.images import (
    content_has_image,
    project_images_for_text_model,
    request_image_handle_text,
    text_only_image_text,
)
from trunkline_protocol.messages import (
    AssistantProvenance,
    Message,
    bound_context_summary,
    create_assistant_message,
    create_tool_result_message,
    create_user_message,
    freeze_message,
)
from trunkline_protocol.options import call_config_equals
from trunkline_protocol.retry_policy import (
    decide_retry,
    policy_from_dict,
    policy_key,
    resolve_retry_policy,
)
from trunkline_protocol.wire_model import WireModel

from tests.conformance.handlers.chunk_files import over_the_lane
from tests.conformance.handlers.thrown import failure_map

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def run_api_key(given: dict[str, Any]) -> object:
    if given["op"] == "normalizeApiKey":
        key = normalize_api_key(given["raw"])
        if isinstance(key, ApiKeyFault):
            return {"ok": False, "reason": key.value}
        return {"ok": True, "value": key}
    try:
        return {"value": usable_api_key(given["raw"], given["pkg"], given["ref"])}
    except LlmError as exc:
        secret = given["raw"].strip()
        if secret and secret in str(exc):
            return "the key was shown"
        return {"error": {"code": exc.code, "failure": failure_map(exc.failure)}}


def run_attribution(given: dict[str, Any]) -> object:
    fields = given.get("identity")
    names = ("product", "version", "url")
    arguments = [] if fields is None else [AppIdentity(*(fields[name] for name in names))]
    function = user_agent if given["op"] == "userAgent" else attribution_headers
    return function(*arguments)


def run_call_config(given: dict[str, Any]) -> object:
    return call_config_equals(given["a"], given["b"])


def _blocks(content: list[dict[str, Any]]) -> list[ContentBlock]:
    return [_block(each) for each in content]


def _block(data: dict[str, Any]) -> ContentBlock:
    try:
        return block_from_dict(data)
    except ValueError:  # a known type without its fields; the type alone decides there
        return UnknownBlock.from_dict(data)


def _source(data: dict[str, Any]) -> Any:
    return Message.from_dict({"id": "x", "role": "user", "content": [], "source": data}).source


def _made(operation: str, given: dict[str, Any]) -> Message:
    if operation == "createUserMessage":
        return create_user_message(_blocks(given["content"]), _source(given["source"]))
    if operation == "createAssistantMessage":
        provenance = AssistantProvenance.from_dict(given["source"])
        return create_assistant_message(_blocks(given["content"]), provenance)
    if operation == "createToolResultMessage":
        return create_tool_result_message(
            given["callId"], _blocks(given["content"]), is_error=given["isError"]
        )
    return freeze_message(given)


def is_deep_frozen(value: object) -> bool:
    """Tell whether nothing inside a value can be changed."""
    if isinstance(value, WireModel):
        extra = value.model_extra or {}
        inner = [getattr(value, name) for name in type(value).model_fields]
        is_shut = bool(value.model_config.get("frozen"))
        return is_shut and (not extra or is_deep_frozen(extra)) and all(map(is_deep_frozen, inner))
    if isinstance(value, Mapping):
        return isinstance(value, FrozenDict) and all(map(is_deep_frozen, value.values()))
    if isinstance(value, list):
        return isinstance(value, FrozenList) and all(map(is_deep_frozen, value))
    if isinstance(value, tuple):
        return all(map(is_deep_frozen, value))
    return True


def _shown(message: Message) -> dict[str, object]:
    shown = message.to_dict()
    if _UUID.fullmatch(message.id):
        shown["id"] = "<fresh-uuid>"
    return shown


def run_message(given: dict[str, Any]) -> object:
    operation = given["op"]
    if operation == "isTokenDelta":
        try:
            return is_token_delta(chunk_from_dict(given["chunk"]))
        except ValueError:
            return is_token_delta(given["chunk"])
    if operation == "boundContextSummary":
        return bound_context_summary(given["summary"])
    if operation == "assembler.message":
        assembler = BlockAssembler()
        for chunk in over_the_lane([chunk_from_dict(each) for each in given["chunks"]]):
            assembler.push(chunk)
        message = assembler.message()
        return {"message": _shown(message), "deepFrozen": is_deep_frozen(message)}
    return _run_constructor(operation, given["arg"])


def _run_constructor(operation: str, argument: dict[str, Any]) -> object:
    before = copy.deepcopy(argument)
    message = _made(operation, argument)
    is_unchanged = argument == before
    shown = _shown(message)
    for value in argument.values():  # a value that is frozen or shared would show here
        if isinstance(value, list):
            value.append({"type": "text", "text": "later"})
        elif isinstance(value, dict):
            value["later"] = True
    result: dict[str, object] = {
        "message": shown,
        "deepFrozen": is_deep_frozen(message),
        "inputUnchanged": is_unchanged,
        "inputNotFrozen": True,
        "detached": _shown(message) == shown,
    }
    if operation != "freezeMessage":
        result["secondCallHasAnotherId"] = _made(operation, before).id != message.id
    return result


def _projected(
    messages: list[dict[str, Any]], project: Callable[[tuple[Message, ...]], Any]
) -> object:
    before = tuple(Message.from_dict(each) for each in messages)
    after = project(before)
    return {
        "sameList": after is before,
        "sameMessages": [old is new for old, new in zip(before, after, strict=True)],
        "messages": [message.to_dict() for message in after],
    }


def _offload_policy(given: dict[str, Any]) -> ImageOffloadPolicy:
    lengths = given.get("byteLengths")
    return ImageOffloadPolicy(
        representation=given["representation"],
        max_images=given.get("maxImages"),
        max_bytes=given.get("maxBytes"),
        count_quantum=given.get("countQuantum", 1),
        byte_quantum=given.get("byteQuantum", 1),
        byte_length=None
        if lengths is None
        else lambda image: lengths.get(image.attachment_id, image.bytes),
    )


def run_content(given: dict[str, Any]) -> object:
    operations: dict[str, Callable[[], object]] = {
        "OFFLOADED_IMAGE_TEXT": lambda: OFFLOADED_IMAGE_TEXT,
        "contentHasImage": lambda: content_has_image(_blocks(given["content"])),
        "textOnlyImageText": lambda: text_only_image_text(given["attachment"]["attachmentId"]),
        "requestImageHandleText": lambda: request_image_handle_text(
            given["version"]["attachment"]["attachmentId"],
            given["version"]["width"],
            given["version"]["height"],
        ),
        "projectImagesForTextModel": lambda: _projected(
            given["messages"], project_images_for_text_model
        ),
        "offloadRequestImages": lambda: _projected(
            given["messages"],
            lambda messages: offload_request_images(messages, given.get("maxRequestImageBytes")),
        ),
        "offloadRequestImagesWithPolicy": lambda: _projected(
            given["messages"],
            lambda messages: offload_request_images_with_policy(
                messages, _offload_policy(given["policy"])
            ),
        ),
    }
    return operations[given["op"]]()


def run_retry_policy(given: dict[str, Any]) -> object:
    if given["op"] == "resolve":
        try:
            policy = resolve_retry_policy(given.get("config"), given["path"])
        except ValueError as exc:
            names_path = str(exc).startswith(given["path"])
            return {"error": {"type": "Error"}} if names_path else f"no path in: {exc}"
        return {"policy": policy.to_dict(), "frozen": _is_hashable(policy)}
    policy = policy_from_dict(given["policy"])
    if given["op"] == "policyKey":
        return {"policyKey": policy_key(policy)}
    wished = given["providerRetryAfterMs"]
    failure = LlmFailure(
        "m",
        given["failureCode"],
        provider_retry_after_ms=wished if is_delay_ms(wished) else None,
    )
    decision = decide_retry(policy, failure, given["retry"], given["random"])
    if decision is None:
        downstream = given.get("downstream")
        return {"decision": "delegate" if downstream is None else f"downstream-{downstream}"}
    result = {"decision": "retry", "delayMs": decision.delay_ms, "retry": decision.retry}
    if decision.max_retries is not None:
        result["maxRetries"] = decision.max_retries
    return result


def _is_hashable(value: object) -> bool:
    """Frozen all the way down: only such a value has a hash."""
    return isinstance(hash(value), int)


HANDLERS = {
    "api_key": run_api_key,
    "attribution": run_attribution,
    "call_config": run_call_config,
    "content": run_content,
    "message": run_message,
    "retry_policy": run_retry_policy,
}
