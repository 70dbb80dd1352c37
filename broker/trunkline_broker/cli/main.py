"""Entry point of the `trunkline` command: the commands, and how their errors become exit codes.

Command modules import nothing heavy at their top, so `trunkline --help` stays fast.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from trunkline_protocol.failure import LlmError, TrunklineError
from trunkline_protocol.version import __version__

from trunkline_broker.cli import (
    adapter,
    call,
    catalog,
    chat,
    completion,
    config,
    doctor,
    keys,
    lifecycle,
    logs,
    setup,
    status,
    swap,
    top,
    usage,
)
from trunkline_broker.cli.exits import EPILOG, ExitCode
from trunkline_broker.cli.terminal import CommandError, accept_every_character, err

HELP: Final = """One broker daemon for every LLM call on a machine.

\b
  trunkline up --detach             start the broker in the background
  trunkline chat "hello"            stream one model call to the terminal
  trunkline status                  what runs, and how busy it is
  trunkline swap local              replace a worker while its streams go on
  trunkline restart                 replace the broker while streams go on
  trunkline down                    drain, stop the workers, end

\b
Environment:
  TRUNKLINE_CONFIG     configuration file of `up`
  TRUNKLINE_RUN_DIR    directory of sockets, lock and logs
  TRUNKLINE_ENDPOINT   broker to talk to (ipc://… or tcp://…)
  TRUNKLINE_KEYS       key file for a broker on tcp://
  TRUNKLINE_BROKER_KEY, TRUNKLINE_WORKER_NAME_KEY
                       instead of that key of the configuration, such as
                       TRUNKLINE_BROKER_DRAIN_S=5
  NO_COLOR             no colours
"""

app = typer.Typer(
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # the help of click is fast; rich would take longer than the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trunkline {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Hold the options of the command itself; the commands do the work."""


app.command()(lifecycle.up)
app.command(short_help="Drain and end the broker.")(lifecycle.down)
app.command(short_help="Exchange the broker; streams go on.")(lifecycle.restart)
app.command()(status.status)
app.command(short_help="Replace a worker while its streams go on.")(swap.swap)
app.command(short_help="Read the configuration again.")(swap.reload)
app.command(short_help="Take a worker out of service.")(swap.drain)
app.command(short_help="Watch it work.")(top.top)
app.command(short_help="Show what the broker or a worker has written.")(logs.logs)
app.command(short_help="Show calls and tokens per client, provider and model.")(usage.usage)
app.command()(chat.chat)
app.command(short_help="Make one model call: JSON in, JSON out.")(call.call)
app.command()(catalog.providers)
app.command(short_help="List the models that a provider advertises.")(catalog.models)
app.add_typer(adapter.app, name="adapter")
app.command(short_help="Print the completion script of a shell.")(completion.completion)
app.add_typer(config.app, name="config")
app.command(short_help="Look for what is wrong and say what to do.")(doctor.doctor)
app.add_typer(keys.app, name="keys")
app.command(short_help="Set up a provider, the local model, a worker's interpreter.")(setup.setup)


def run() -> None:
    """Run the command of `sys.argv`; never returns."""
    sys.exit(main())


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; `None`: those of this process.

    Returns:
        An `ExitCode`.
    """
    completion.prepare()
    accept_every_character()
    try:
        app(args=arguments, prog_name="trunkline")
    except SystemExit as exc:  # how click ends, also after errors in the arguments
        return exc.code if isinstance(exc.code, int) else ExitCode.OK
    except CommandError as exc:
        return _ended(str(exc), exc.code)
    except LlmError as exc:
        return _ended(f"{exc} ({exc.code})", ExitCode.FAILED)
    except (TrunklineError, OSError) as exc:  # of the system: no permission, no room, no directory
        return _ended(str(exc), ExitCode.FAILED)
    return ExitCode.OK


def _ended(text: str, code: ExitCode) -> int:
    if text:
        err().print(f"trunkline: {text}", style="red", markup=False)
    return code


if __name__ == "__main__":
    run()
