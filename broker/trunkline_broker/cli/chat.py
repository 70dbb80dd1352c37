"""`trunkline chat`: stream one model call to the terminal.

Visible text goes to stdout; reasoning, tool calls, usage and the finish go to stderr, so that a
pipe gets the answer and nothing else.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.limits import MAX_PART_BYTES

from trunkline_broker.cli.connection import broker, run_async
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.names import provider_names
from trunkline_broker.cli.terminal import err, fail

if TYPE_CHECKING:
    from trunkline import LlmRuntime

# A program that starts us may leave a pipe open that never says anything.
SILENT_PIPE_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.2
# What a model says must not steer the terminal: control characters but tab and newline.
_CONTROLS: Final = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {0x09, 0x0A})


def chat(
    prompt: Annotated[
        str, typer.Argument(help="What to say; `-` or nothing reads it from a pipe.")
    ] = "",
    *,
    provider: Annotated[
        str,
        typer.Option("--provider", "-p", help="Default: the first.", autocompletion=provider_names),
    ] = "",
    model: Annotated[str, typer.Option("--model", "-m", help="Default: its first.")] = "",
    system: Annotated[str, typer.Option("--system", "-s", help="System prompt.")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Limit of the output.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Sampling.")] = None,
) -> None:
    """Stream one model call; Ctrl-C cancels the provider request.

    \b
      trunkline chat "What is a broker?"
      trunkline chat -p local -m smollm2-135m-instruct "hello"
      git diff | trunkline chat "Summarize this change."
      trunkline chat < question.txt
    """
    text = _prompt(prompt)
    wanted: dict[str, Any] = {
        "provider": provider,
        "model": model,
        "messages": text,
        "system": system or None,
        "max_tokens": max_tokens,
        "temperature": temperature,
    }
    failure = run_async(_streamed(wanted))
    if failure is not None:
        fail(f"{failure.message} ({failure.code})")


def _prompt(argument: str) -> str:
    """Join the argument and what is piped in."""
    if sys.stdin.isatty():
        piped = _all_of_stdin() if argument == "-" else ""
    elif argument in {"", "-"}:
        piped = _all_of_stdin()
    else:
        piped = _piped_beside_an_argument()
    text = "\n\n".join(part for part in (argument.removeprefix("-") or "", piped.strip()) if part)
    if not text.strip():
        fail('nothing to say; try: trunkline chat "hello"', ExitCode.USAGE)
    return text


def _all_of_stdin() -> str:
    """Read text up to what one call can carry; bytes that are no text become U+FFFD."""
    data = sys.stdin.buffer.read(MAX_PART_BYTES + 1)
    if len(data) > MAX_PART_BYTES:
        fail(f"standard input has more than {MAX_PART_BYTES} bytes", ExitCode.USAGE)
    return data.decode("utf-8", "replace")


def _piped_beside_an_argument() -> str:
    readable, _, _ = select.select([sys.stdin], [], [], SILENT_PIPE_S)
    if readable:
        return _all_of_stdin()
    err().print("(standard input is open but silent; it is not part of the prompt)", style="dim")
    return ""


async def _streamed(wanted: dict[str, Any]) -> LlmFailure | None:
    import asyncio

    async with broker("chat") as llm:
        await _choose(llm, wanted)
        printer = Printer()
        try:
            async with llm.stream(**wanted) as stream:
                async for chunk in stream:
                    printer.show(chunk)
        except asyncio.CancelledError:
            printer.end_line()
            err().print("cancelled", style="yellow")
            raise
        return printer.failure


async def _choose(llm: LlmRuntime, wanted: dict[str, Any]) -> None:
    """Fill in the provider and the model that were not named: the first of each."""
    if not wanted["provider"]:
        wanted["provider"] = await _first_provider(llm)
    if not wanted["model"]:
        listed = await llm.list_models(wanted["provider"])
        if not listed:
            text = f"provider {wanted['provider']} lists no models; name one with --model"
            fail(text, ExitCode.USAGE)
        wanted["model"] = listed[0].id


async def _first_provider(llm: LlmRuntime) -> str:
    """Return the provider that was registered first; wait for one while a worker starts."""
    import asyncio

    is_told = False
    while not (known := await llm.list_providers()):
        pools = (await llm.status())["pools"]
        slots = [(pool["name"], slot["state"]) for pool in pools for slot in pool["slots"]]
        starting = [name for name, state in slots if state == "starting"]
        if not starting:  # the broker gives up on those that never get ready
            fail("no provider has a worker; see: trunkline status")
        if not is_told:
            err().print(f"waiting for {', '.join(dict.fromkeys(starting))} to start", markup=False)
            is_told = True
        await asyncio.sleep(_LOOK_AGAIN_S)
    return known[0].id


class Printer:
    """Writes the chunks of one stream as they come.

    Attributes:
        failure: why the stream ended, unless it ended well.
    """

    def __init__(self) -> None:
        self.failure: LlmFailure | None = None
        self._usage: TokenUsage | None = None
        self._open: TextIO | None = None  # whose last line has no end yet

    def show(self, chunk: StreamChunk) -> None:
        """Write one chunk; nothing is held back, so every token is seen when it arrives."""
        match chunk:
            case TextDelta(text=text):
                self._write(sys.stdout, text)
            case ReasoningDelta(text=text):
                self._write(sys.stderr, text)
            case ToolCallDelta(name=name, arguments_delta=arguments):
                self._write(sys.stderr, f"{name}: {arguments}" if name else arguments)
            case BlockStart():
                pass  # its first delta shows it
            case BlockEnd():
                self.end_line()
            case Usage(usage=usage):
                self._usage = usage
            case Finish():
                self._finish(chunk)

    def end_line(self) -> None:
        """End the line that is open, where it is."""
        if self._open is not None:
            self._open.write("\n")
            self._open.flush()
            self._open = None

    def _write(self, stream: TextIO, text: str) -> None:
        if stream.isatty():
            text = text.translate(_CONTROLS)
        # Half of a pair may come alone: a model's tokens need not end with a character.
        text = text.encode(stream.encoding or "utf-8", "replace").decode(stream.encoding or "utf-8")
        if not text:
            return
        if self._open is not None and self._open is not stream:
            self.end_line()
        if stream is sys.stderr:
            err().print(text, style="dim", end="", markup=False)
        else:
            stream.write(text)
        stream.flush()
        self._open = None if text.endswith("\n") else stream

    def _finish(self, finish: Finish) -> None:
        self.end_line()
        self.failure = finish.reason.failure
        usage = self._usage
        counts = "" if usage is None else f", {usage.input_tokens} in, {usage.output_tokens} out"
        err().print(f"[{finish.reason.kind}{counts}]", style="dim", markup=False)
