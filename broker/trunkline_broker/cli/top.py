"""`trunkline top`: what the broker and its workers do now, in a terminal."""

from __future__ import annotations

import sys

import typer

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import fail


def top() -> None:
    """Show workers, routes, calls, rates, queues and memory, once a second; q ends it.

    Rates and medians are of the last ten seconds. Figures of chunks are what workers report; the
    broker sees no chunk. For scripts: trunkline status --json.

    \b
      trunkline top
    """
    # Textual draws on stderr.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        fail("top needs a terminal; for scripts: trunkline status --json", ExitCode.USAGE)
    try:
        from trunkline_broker.cli.top_app import Top
    except ModuleNotFoundError as exc:
        if exc.name is None or not exc.name.startswith("textual"):
            raise
        fail("top needs: pip install 'trunkline[top]'", ExitCode.USAGE)
    app = Top()
    app.run()
    if app.return_code == ExitCode.INTERRUPTED:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if app.return_code:
        fail("the screen ended with an error", ExitCode.FAILED)
