"""`LlmAdapter`: the contract between the worker host and the code that speaks one provider's API.

This file knows neither sockets nor the broker. Numbered obligations (each has a contract check
of the same number in `trunkline_workers.testing`):

1. `usage` comes before `finish`.
2. Nothing comes after `finish`.
3. Block indices appear in first-seen order: 0, 1, 2 …
4. Tool-call arguments are raw JSON text, never parsed and re-serialized on the way.
5. Cancellation is honoured within `limits.CANCEL_S`: the provider connection is closed by then.
6. No provider exception type escapes: raise `LlmError`, or end with `finish error|aborted`.
7. An option that the provider cannot honour ends in `UNSUPPORTED`; it is never dropped silently.
8. A completion without any block ends in `EMPTY_RESPONSE`, not in a silent `stop`.
9. One `stream()` is one provider attempt: library retries are off.
10. Every provider HTTP request carries the attribution `User-Agent`.
11. Replay state that cannot be used degrades that one message and never fails the request.
12. A stalled provider ends in `TIMEOUT`; time in which nobody pulls the stream does not count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.models import LlmModelInfo, LlmProviderInfo, LlmResolvedModelInfo
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.retry_policy import ResolvedRetryPolicy

if TYPE_CHECKING:
    from trunkline_workers.runtime import WorkerRuntime


def keep_quiet(text: str) -> None:
    """Take a text where nobody listens."""


async def _no_store(name: str) -> bytes:
    """Default of `AdapterContext.read_attachment`: there is none."""
    text = f"attachment {name}: this worker has no attachment store"
    raise LlmError.of(text, Code.ATTACHMENT_MISSING)


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What a worker process knows of its own configuration.

    Attributes:
        name: pool name, the NAME of `[worker.NAME]`.
        providers: routes that the configuration gives to this pool; empty: the adapter's own.
        options: the `[worker.NAME.options]` table, unvalidated.
        environ: the environment of the worker (only variables the configuration allows).
        report: takes one line of diagnostics for the worker's log; never a prompt or a key.
        read_attachment: returns the bytes behind an `attachment_id`, their hash checked; raises
            `LlmError` (`ATTACHMENT_MISSING`). Those that a request names were found before it.
        conceal: takes a secret from elsewhere than `options` and `environ`, such as a file, a vault
            or a token service; from then on no failure, print or log line of this worker shows it.
    """

    name: str
    providers: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    report: Callable[[str], None] = keep_quiet
    read_attachment: Callable[[str], Awaitable[bytes]] = _no_store
    conceal: Callable[[str], None] = keep_quiet


class LlmAdapter(ABC):
    """Code that speaks one provider's API; one instance may serve several routes."""

    @classmethod
    def create(cls, context: AdapterContext) -> LlmAdapter:
        """Build the adapter of one worker process.

        Raises:
            ValueError: the options are wrong; the text names the key and what is allowed.
            ImportError: a package that it needs is missing; the text says how to install it.
        """
        del context
        return cls()

    def default_providers(self) -> Sequence[str]:
        """Name the routes to register when the configuration names none."""
        return ()

    async def open(self) -> None:  # noqa: B027  # optional to override
        """Acquire what needs a running loop (clients, servers, models); called once, before READY.

        Raises:
            LlmError: the adapter cannot serve; the worker ends and says why.
        """

    async def setup(self, runtime: WorkerRuntime) -> None:  # noqa: B027  # optional to override
        """Register what is more than its routes: other adapters, a directory, model discovery.

        Called once, after `open` and after its own routes were registered, before READY. Handles
        that it keeps may be replaced and disposed at any time later.

        Raises:
            LlmError: a registration is refused; the worker ends and says why.
        """

    async def close(self) -> None:  # noqa: B027  # optional to override
        """Release what `open` acquired; called once, after the last stream has ended."""

    def provider_info(self, provider: str) -> LlmProviderInfo:
        """Describe one owned route; the id of the answer equals `provider`."""
        return LlmProviderInfo(id=provider, name=provider)

    def provider_retry_policy(self, provider: str) -> ResolvedRetryPolicy | None:
        """Return the policy captured with this route, or `None` for the normal defaults."""
        del provider
        return None

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """List models that can be advertised, in preferred order; advisory, never a whitelist."""
        del provider
        return ()

    async def resolve_model(self, provider: str, model: str) -> LlmResolvedModelInfo:
        """Resolve what is known of one exact model; cancelled when the caller gives up."""
        return LlmResolvedModelInfo(provider=provider, id=model, name=model)

    @abstractmethod
    def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk | list[StreamChunk]]:
        """Stream one model call: the only required method.

        An item is one chunk or a list of chunks that became ready together; a list saves one
        coroutine hop per chunk and changes nothing else. The host pulls only while the reader has
        credit, closes the iterator (`aclose`) at the end and cancels the pulling task to cancel.
        """
