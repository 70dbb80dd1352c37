"""Talking to the broker from a command: connect, ask, end.

`trunkline` (the client) is imported when a command runs, not when its help is shown.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import fail

if TYPE_CHECKING:
    from trunkline import LlmRuntime

T = TypeVar("T")
CONNECT_S: Final = 1.2  # with the start of the interpreter, "no broker" comes within 2 s


def run_async(job: Coroutine[Any, Any, T]) -> T:
    """Run one command's coroutine to its end."""
    import asyncio

    return asyncio.run(job)


@asynccontextmanager
async def broker(name: str, endpoint: str | None = None) -> AsyncGenerator[LlmRuntime]:
    """Connect as the command `name`.

    Args:
        name: shown in `trunkline status`.
        endpoint: `None`: the one of the environment.

    Raises:
        CommandError: nothing answers at the endpoint.
    """
    import trunkline

    try:
        async with trunkline.connect(
            endpoint, name=f"trunkline {name}", timeout_s=CONNECT_S
        ) as llm:
            yield llm
    except trunkline.BrokerUnreachableError as exc:
        fail(str(exc), ExitCode.NO_BROKER)
    except trunkline.BrokerRefusedError as exc:
        fail(f"the broker refuses: {exc.code}: {exc}", ExitCode.FAILED)


async def ask(
    name: str,
    op: str,
    argument: dict[str, object],
    timeout_s: float,
    endpoint: str | None = None,
) -> Any:
    """Connect, ask one question and leave."""
    async with broker(name, endpoint) as llm:
        return await llm.query(op, argument, timeout_s=timeout_s)
