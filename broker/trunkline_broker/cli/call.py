"""`trunkline call`: one model call for scripts, JSON in and JSON out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from trunkline_protocol.failure import LocalProtocolError

from trunkline_broker.cli.connection import broker, run_async
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.names import provider_names
from trunkline_broker.cli.terminal import fail, json_text, print_json


def call(
    request: Annotated[
        str, typer.Argument(help="File with the request (JSON); `-` or nothing reads stdin.")
    ] = "-",
    *,
    provider: Annotated[
        str,
        typer.Option(
            "--provider", "-p", help="Replaces the file's.", autocompletion=provider_names
        ),
    ] = "",
    model: Annotated[str, typer.Option("--model", "-m", help="Replaces the file's.")] = "",
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each chunk as a line of JSON, as it comes.")
    ] = False,
) -> None:
    """Make one model call as an agent would; the request is a `GenerateOptions` map.

    `messages` may be a text. Without --stream failed attempts are repeated by the retry policy and
    one document is printed: message, usage, finish, attempts. Exit code 1 if the call failed.

    \b
      echo '{"model": "m", "messages": "hi"}' | trunkline call -p local
      trunkline call r.json --stream | jq -rj 'select(.type=="text-delta").text'
    """
    fields = _read(request)
    for name, value in (("provider", provider), ("model", model)):
        if value:
            fields[name] = value
    try:
        is_good = run_async(_streamed(fields) if stream else _generated(fields))
    except LocalProtocolError as exc:
        fail(str(exc), ExitCode.USAGE)
    if not is_good:
        raise typer.Exit(ExitCode.FAILED)


def _read(source: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as exc:
        fail(f"{'standard input' if source == '-' else source}: {exc}", ExitCode.USAGE)
    if not isinstance(found, dict):
        fail("the request must be a JSON object", ExitCode.USAGE)
    return cast("dict[str, Any]", found)


async def _generated(fields: dict[str, Any]) -> bool:
    async with broker("call") as llm:
        done = await llm.generate(fields)
    print_json(
        {
            "message": done.message.to_dict(),
            "usage": None if done.usage is None else done.usage.to_dict(),
            "finish": done.finish.to_dict(),
            "attempts": done.attempts,
        }
    )
    return done.failure is None


async def _streamed(fields: dict[str, Any]) -> bool:
    from trunkline_protocol.chunks import Finish

    is_good = False
    async with broker("call") as llm, llm.stream(fields) as chunks:
        async for chunk in chunks:
            sys.stdout.write(json_text(chunk.to_dict()) + "\n")
            sys.stdout.flush()
            if isinstance(chunk, Finish):
                is_good = chunk.reason.failure is None
    return is_good
