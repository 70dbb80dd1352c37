"""`trunkline up`, `down`, `restart`: start, end and exchange the broker of this run directory."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trunkline_broker.cli.config import say_notes
from trunkline_broker.cli.connection import ask, run_async
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import CommandError, err, fail, out
from trunkline_broker.interpreter import module_command, without_relative_paths

if TYPE_CHECKING:
    from trunkline_broker.config import Settings

START_TIMEOUT_S: Final = 15.0
POLL_S: Final = 0.02
LOG_TAIL_LINES: Final = 20
STOP_REPLY_S: Final = 5.0
STOP_MARGIN_S: Final = 15.0  # TERM, wait, KILL and reap of every worker, after the drain


def up(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when the broker answers.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Swap a worker when its adapter's files change.")
    ] = False,
) -> None:
    """Start the broker and its workers.

    Without --config: $TRUNKLINE_CONFIG, ./trunkline.toml, then
    $XDG_CONFIG_HOME/trunkline/trunkline.toml; with none of them the built-in configuration.

    \b
      trunkline up
      trunkline up --detach --config deploy/broker.example.toml
      trunkline up --watch              while you write an adapter
    """
    from trunkline_broker.config import load
    from trunkline_broker.config_errors import ConfigError
    from trunkline_broker.config_view import advice
    from trunkline_broker.locks import BrokerRunning, lock_holder

    try:
        settings = load(config, os.environ)
    except ConfigError as exc:
        fail(str(exc), ExitCode.USAGE)
    holder = lock_holder(settings.paths.lock)
    if holder is not None:
        fail(str(BrokerRunning(holder)), ExitCode.ALREADY_RUNNING)
    if watch:
        from trunkline_broker.cli.watch import needs_library

        needs_library()
    if detach:
        say_notes(advice(settings))
        _detached(settings.paths.log, settings.endpoint, config, watch=watch)
        return
    from trunkline_broker import daemon

    with _watching(settings) if watch else contextlib.nullcontext():
        code = daemon.run(settings)
    raise typer.Exit(code)


def _watching(settings: Settings) -> AbstractContextManager[None]:
    from trunkline_broker.cli.watch import watching

    return watching(settings)


def down(
    *,
    drain: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds that running calls get; default: drain_s of [broker]."),
    ] = None,
) -> None:
    """Drain, stop the workers, end the broker; returns when it is gone.

    \b
      trunkline down
      trunkline down --drain 0        end running calls at once
    """
    from trunkline_broker.locks import lock_holder
    from trunkline_broker.paths import RunPaths, default_run_dir

    lock = RunPaths(default_run_dir(os.environ)).lock
    argument: dict[str, object] = {} if drain is None else {"drainS": drain}
    is_local = "TRUNKLINE_ENDPOINT" not in os.environ
    holder = lock_holder(lock) if is_local else None
    granted = run_async(ask("down", "stop", argument, STOP_REPLY_S))
    if holder is None:
        out().print("the broker is stopping")
        return
    deadline_s = time.monotonic() + granted["drainS"] + STOP_MARGIN_S
    while lock_holder(lock) == holder or _runs(holder.pid):
        if time.monotonic() > deadline_s:
            fail(f"broker pid {holder.pid} is still stopping", ExitCode.TIMED_OUT)
        time.sleep(POLL_S)
    out().print(f"broker pid {holder.pid} ended")


def _runs(pid: int) -> bool:
    """Say whether a process still runs; one that waits to be reaped does not."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:  # gone, or of another namespace: the lock alone tells then
        return False
    try:
        return not select.select([fd], [], [], 0)[0]
    finally:
        os.close(fd)


def restart(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Another file than the old broker's.")
    ] = None,
) -> None:
    """Exchange the broker; workers and streams go on, nothing is lost.

    The old one exits at once and touches no worker, the new one takes over. It runs in the
    background, also if the old one did not. Under a supervisor that starts it again by itself
    (systemd), this only ends the old one: what comes first serves.

    \b
      trunkline restart
    """
    from trunkline_broker.config import load
    from trunkline_broker.config_errors import ConfigError
    from trunkline_broker.locks import lock_holder

    document = run_async(ask("restart", "status", {}, STOP_REPLY_S))
    source = config
    if source is None and document["config"]:
        source = Path(document["config"])
    try:
        settings = load(source, os.environ)
    except ConfigError as exc:  # the old one goes on
        fail(str(exc), ExitCode.USAGE)
    holder = lock_holder(settings.paths.lock)
    if holder is None or holder.pid != document["pid"]:
        fail("the broker that answers is not the one of this run directory", ExitCode.USAGE)
    run_async(ask("restart", "restart", {}, STOP_REPLY_S))
    deadline_s = time.monotonic() + STOP_REPLY_S
    while lock_holder(settings.paths.lock) == holder:
        if time.monotonic() > deadline_s:
            fail(f"broker pid {holder.pid} does not end", ExitCode.TIMED_OUT)
        time.sleep(POLL_S)
    out().print(f"broker pid {holder.pid} ended; its workers go on", markup=False)
    _detached(
        settings.paths.log, settings.endpoint, source if document["config"] or config else None
    )


def _detached(log: Path, endpoint: str, config: Path | None, *, watch: bool = False) -> None:
    """Start the broker in a session of its own and wait until it answers a greeting."""
    command = module_command(sys.executable, "trunkline_broker.cli.main", "up")
    if config is not None:
        command += ["--config", str(config.absolute())]
    if watch:
        command.append("--watch")
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Appended to: a broker that is started at the same time, or died lately, has its lines there.
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        before_bytes = os.fstat(fd).st_size
        child = subprocess.Popen(  # noqa: S603  # our own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            env=without_relative_paths(os.environ),
            start_new_session=True,
        )
    finally:
        os.close(fd)
    if run_async(_answers(child, endpoint)):
        out().print(f"broker pid {child.pid} at {endpoint}", markup=False)
        return
    code = child.poll()
    said = log.read_bytes()[before_bytes:].decode("utf-8", "replace")
    for line in said.splitlines()[-LOG_TAIL_LINES:]:
        err().print(line, style="dim", markup=False)
    if code is None:
        child.terminate()
        fail(f"the broker did not answer in {START_TIMEOUT_S:g} s", ExitCode.TIMED_OUT)
    fail(f"the broker ended with exit code {code}; its last lines are above", _as_exit(code))


def _as_exit(code: int) -> ExitCode:
    return ExitCode(code) if code in set(ExitCode) and code else ExitCode.FAILED


async def _answers(child: subprocess.Popen[bytes], endpoint: str) -> bool:
    """Wait until the broker that we started answers; false if it ended or took too long."""
    import asyncio

    deadline_s = time.monotonic() + START_TIMEOUT_S
    while child.poll() is None and time.monotonic() < deadline_s:
        try:
            document = await ask("up", "status", {}, START_TIMEOUT_S, endpoint)
        except CommandError:
            await asyncio.sleep(POLL_S)
        else:
            if document["pid"] == child.pid:
                return True
            await asyncio.sleep(POLL_S)  # of two that were started at once ours will end
    return False
