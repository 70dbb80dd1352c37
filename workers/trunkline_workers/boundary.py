"""The adapter boundary: what reaches an adapter, and what becomes of what it does.

Before: the exact model is resolved and checked, defaults are filled in, replay state of adapters
that this one is not is taken out, images are projected for models without them. After: whatever
the adapter emits or raises becomes checked lane arrays and exactly one terminal finish. This file
knows neither sockets nor credit; values are judged by the pure functions of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, cast

from trunkline_protocol.adapter_request import adapter_options
from trunkline_protocol.chunks import (
    INDEX_MAX,
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
    chunks_from_arrays,
)
from trunkline_protocol.codec import pack_body
from trunkline_protocol.elision import BlockElider
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.grammar import GrammarChecker
from trunkline_protocol.limits import MAX_KIND_CHARS, MAX_LANE_BODY_BYTES
from trunkline_protocol.model_checks import check_model_info, prepare_call_config
from trunkline_protocol.models import LlmResolvedModelInfo
from trunkline_protocol.options import GenerateOptions, LlmCallConfig
from trunkline_protocol.printable import code_of

from trunkline_workers import foreign
from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.foreign import bounded, class_name, failure_of

MAX_FAILURE_CHARS: Final = 4096  # ENDED carries the failure in its envelope
MAX_REQUEST_ID_CHARS: Final = 200  # the longest known one has 64
_CONFIG_FIELDS: Final = tuple(LlmCallConfig.model_fields)

Redact = Callable[[str], str]


def call_config(options: GenerateOptions) -> LlmCallConfig:
    """Return the part of a request that is its call config."""
    fields = {name: getattr(options, name) for name in _CONFIG_FIELDS}
    return LlmCallConfig.model_construct(**fields)


async def resolve_model(adapter: LlmAdapter, provider: str, model: str) -> LlmResolvedModelInfo:
    """Ask an adapter for one exact model and judge the answer.

    Raises:
        LlmError: `INVALID_MODEL_*`, or what the adapter raises.
        asyncio.CancelledError: the host has stopped this task.
    """
    resolved = await foreign.await_(lambda: adapter.resolve_model(provider, model))
    # The answer is an object of the adapter: reading it runs more of its code.
    return foreign.call(check_model_info, provider, model, resolved)


async def options_for_adapter(
    adapter: LlmAdapter, owned_providers: Collection[str], options: GenerateOptions
) -> GenerateOptions:
    """Return the request as the adapter sees it, with its own defaults filled in.

    Args:
        adapter: that will serve it.
        owned_providers: routes that this very instance serves now.
        options: from the application.

    Raises:
        LlmError: `INVALID_MODEL_*`, `UNSUPPORTED_REASONING_EFFORT`, or what the adapter raises.
    """
    info = await resolve_model(adapter, options.provider, options.model)
    config, _ = prepare_call_config(call_config(options), info)
    return fitted_options(options, config, owned_providers, info)


def fitted_options(
    options: GenerateOptions,
    config: LlmCallConfig,
    owned_providers: Collection[str],
    info: LlmResolvedModelInfo,
) -> GenerateOptions:
    """Return the request under a resolved config, as the adapter may see it."""
    filled = {
        name: value
        for name in ("max_tokens", "reasoning_effort")
        if (value := getattr(config, name)) != getattr(options, name)
    }
    if filled:
        options = options.model_copy(update=filled)
    return adapter_options(options, owned_providers, info.input_modalities)


def finish_of(raised: BaseException, clean: Redact) -> Finish:
    """Turn what an adapter raised into the terminal finish; the exception itself stays here."""
    failure = cleaned(failure_of(raised), clean)
    kind = "aborted" if failure.code == Code.ABORTED else "error"
    return Finish(FinishReason(kind, failure))


def cleaned(failure: LlmFailure, clean: Redact) -> LlmFailure:
    """Return a failure without secrets whose texts all have a bound.

    Texts are cut before secrets are looked for, so that a long text costs nothing. Code and request
    id are cleaned too: gateways put what they were sent into either.

    Returns:
        The message has at most `MAX_FAILURE_CHARS` characters, the request id at most
        `MAX_REQUEST_ID_CHARS` printable ones. A code of another form than
        `printable.CODE_FORM` is `UNKNOWN`.
    """
    failure = bounded(failure)
    message = clean(failure.message)
    if len(message) > MAX_FAILURE_CHARS:
        message = message[: MAX_FAILURE_CHARS - 1] + "\u2026"
    code = code_of(clean(failure.code))
    request_id = None if failure.request_id is None else shown_id(clean(failure.request_id))
    if (message, code, request_id) == (failure.message, failure.code, failure.request_id):
        return failure
    return LlmFailure(
        message, code, failure.status, failure.provider_retry_after_ms, request_id or None
    )


def shown_id(text: str) -> str:
    """Return a provider's name of a request as it may be shown: printable and bounded."""
    text = text[:MAX_REQUEST_ID_CHARS]
    return text if text.isprintable() else "".join(filter(str.isprintable, text))


class StreamGuard:
    """Takes the items of one adapter stream; gives lane arrays and exactly one finish.

    Attributes:
        arrays: checked chunks in order, for the caller to take out and clear.
        finish: the terminal finish, once there is one; nothing is taken after it.
        usage: the last token counts.
        dropped_count: chunks that came with or after the finish.

    Args:
        clean: takes secrets out of failure texts.
        is_strict: also check the grammar; a violation ends the stream in `INVARIANT`.
    """

    __slots__ = ("_clean", "_elider", "_grammar", "_has_block", "_run_index", "_run_texts",
                 "arrays", "dropped_count", "finish", "usage")  # fmt: skip

    def __init__(self, clean: Redact, *, is_strict: bool = False) -> None:
        self.arrays: list[tuple[object, ...]] = []
        self.finish: Finish | None = None
        self.usage: TokenUsage | None = None
        self.dropped_count = 0
        self._elider = BlockElider()
        self._run_index: int | None = None  # of the open block that the last deltas belong to
        self._run_texts: list[str] = []
        self._has_block = False
        self._clean = clean
        self._grammar = GrammarChecker() if is_strict else None

    def take(self, item: object) -> bool:
        """Take one item, a chunk or a list of chunks.

        Returns:
            Whether the stream has its finish now; the rest of the item is dropped then.
        """
        if type(item) is not list:
            return self._take_one(item)
        chunks = cast("list[Any]", item)  # checked one by one
        take_one, is_strict = self._take_one, self._grammar is not None
        append = self.arrays.append
        for position, chunk in enumerate(chunks):
            # `_take_one` in line for the bulk of the traffic: more text of the block before.
            if type(chunk) is TextDelta and chunk.index == self._run_index and not is_strict:
                index, text = chunk.index, chunk.text
                if text.__class__ is str and index.__class__ is int:
                    self._run_texts.append(text)
                    append((1, index, text))
                    continue
            if take_one(chunk):
                self.dropped_count += len(chunks) - position - 1
                return True
        return False

    def end(self) -> Finish:
        """Return the finish of a stream that is over; a missing one is `STREAM_CLOSED`."""
        missing = LlmError.of("the adapter's stream ended without a finish", Code.STREAM_CLOSED)
        return self.fail(missing)

    def fail(self, raised: BaseException) -> Finish:
        """Return the finish of a stream that raised; one that came before it stays."""
        if self.finish is None:
            self.finish = finish_of(raised, self._clean)
        return self.finish

    def _take_one(self, chunk: Any) -> bool:
        kind = cast("type[object]", type(chunk))
        if self._grammar is not None and self._breaks_grammar(chunk):
            return True
        if kind is TextDelta or kind is ReasoningDelta:
            index, text = chunk.index, chunk.text
            # The per-token path: the reader's checks in line, and the array without a call.
            if text.__class__ is str and index.__class__ is int and 0 <= index <= INDEX_MAX:
                if index == self._run_index:
                    self._run_texts.append(text)
                else:
                    self._begin_run(chunk)
                self.arrays.append((1 if kind is TextDelta else 2, index, text))
                return False
        self._run_index = None  # it may close the block
        return self._take_other(chunk)

    def _begin_run(self, delta: TextDelta | ReasoningDelta) -> None:
        """Take the first delta of a run; those behind it go straight to the block's texts."""
        self._has_block = True
        self._elider.elide(delta)
        texts = self._elider.open_texts(delta.index)
        self._run_index = None if texts is None else delta.index  # None: its block has ended
        self._run_texts = texts or self._run_texts

    def _take_other(self, chunk: object) -> bool:
        # `type`: a value may pretend to be of another class.
        if not issubclass(type(chunk), _CHUNK_TYPES):
            text = f"the adapter emitted {class_name(chunk)}, which is not a StreamChunk"
            return self._fail(text, Code.INVARIANT)
        try:
            checked = chunks_from_arrays([cast("StreamChunk", chunk).to_array()])[0]
            is_finish = isinstance(checked, Finish)
            array = (checked if is_finish else self._elider.elide(checked)).to_array()
            if isinstance(checked, _FREE_FORM):
                _check_sendable(array)
        except OverflowError:  # adapters pass on what providers send, such as a number of 70 bits
            text = f"{class_name(chunk)}: a number has more than 64 bits"
            return self._fail(text, Code.MALFORMED_RESPONSE)
        # A chunk class does not check what it is built with: any wrong field shows here. A value
        # inside of it may be of a class of the adapter, whose code runs here.
        except BaseException as exc:  # noqa: BLE001
            said = failure_of(exc).message[:_MAX_DETAIL_CHARS]
            return self._fail(f"{class_name(chunk)}: {said}", Code.INVARIANT)
        return self._append(checked, array)

    def _append(self, chunk: StreamChunk, array: tuple[object, ...]) -> bool:
        if isinstance(chunk, BlockEnd) and chunk.block is None:
            return self._fail("the adapter emitted a BlockEnd without its block", Code.INVARIANT)
        if isinstance(chunk, Finish):
            return self._finish_with(chunk)
        if isinstance(chunk, Usage):
            self.usage = chunk.usage
        else:
            self._has_block = True
        self.arrays.append(array)
        return False

    def _finish_with(self, chunk: Finish) -> bool:
        """Take the adapter's finish; a `stop` without any block is no success."""
        reason = chunk.reason
        if reason.kind == "stop" and not self._has_block:
            return self._fail("the provider's response is empty", Code.EMPTY_RESPONSE)
        if not (len(reason.kind) <= MAX_KIND_CHARS and reason.kind.isprintable()):
            return self._fail("the adapter's finish has a kind that is not a name", Code.INVARIANT)
        if reason.failure is not None:
            failure = cleaned(reason.failure, self._clean)
            chunk = Finish(FinishReason(reason.kind, failure, reason.extra), chunk.replay_state)
        self.finish = chunk
        return True

    def _breaks_grammar(self, chunk: object) -> bool:
        violation = None if self._grammar is None else self._grammar.push(chunk)
        return violation is not None and self._fail(
            f"stream grammar: {violation.rule}", Code.INVARIANT
        )

    def _fail(self, message: str, code: str) -> bool:
        self.fail(LlmError.of(message, code))
        return True


def _check_sendable(array: tuple[object, ...]) -> None:
    """Refuse a chunk that has no form on the lane, or none that its receiver accepts.

    Raises:
        TypeError, ValueError, OverflowError: as `pack_body`, or it is too large.
    """
    if len(pack_body(array)) > MAX_LANE_BODY_BYTES - 64:  # room for the header
        raise ValueError("larger than any receiver accepts")


_FREE_FORM: Final = (BlockEnd, Usage, Finish)  # kinds whose content an adapter makes up
_MAX_DETAIL_CHARS: Final = 500
_CHUNK_TYPES: Final = (
    BlockStart, TextDelta, ReasoningDelta, ToolCallDelta, BlockEnd, Usage, Finish,
)  # fmt: skip
