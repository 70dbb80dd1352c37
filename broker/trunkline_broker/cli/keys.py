"""`trunkline keys`: CURVE keys for clients and workers on other hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import err, fail, out, print_json

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keys for clients and workers on other hosts (TCP).",
)
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file (TOML) of the broker.")
]
File = Annotated[Path | None, typer.Option("--out", "-o", help="File to write; must not exist.")]


@app.command()
def server(config: Config = None) -> None:
    """Make the broker's own pair; needed once.

    \b
      trunkline keys server
    """
    from trunkline_broker.key_files import KeyFileError, make_server

    directory = _directory(config)
    try:
        made = make_server(directory)
    except KeyFileError as exc:
        fail(str(exc), ExitCode.FAILED)
    out().print(f"made {directory / 'server.key'}; public key {made.public}", markup=False)


@app.command()
def client(name: str, file: File = None, config: Config = None) -> None:
    """Let a client on another host in; NAME is what `[client.NAME]` of the configuration means.

    \b
      trunkline keys client laptop
      scp laptop.client.key laptop:     then there: TRUNKLINE_KEYS=FILE
    """
    _add("clients", name, file or Path(f"{name}.client.key"), config)


@app.command()
def worker(name: str, file: File = None, config: Config = None) -> None:
    """Let a worker on another host in.

    \b
      trunkline keys worker gpu1
      python -m trunkline_workers --connect tcp://HOST:PORT --keys FILE …
    """
    _add("workers", name, file or Path(f"{name}.worker.key"), config)


@app.command("list")
def list_keys(
    config: Config = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List who is let in, with their public keys.

    \b
      trunkline keys list
      trunkline keys list --json | jq -r '.[].name'
    """
    from trunkline_broker.security import listed

    directory = _directory(config)
    rows = [
        {"kind": kind, "name": name, "key": key}
        for kind in ("client", "worker")
        for name, key in listed(directory / f"{kind}s")
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        err().print(f"nobody is let in by {directory}", style="dim", markup=False)
    for row in rows:
        out().print(f"{row['kind']:7} {row['name']:24} {row['key']}", markup=False)


@app.command()
def remove(kind: str, name: str, config: Config = None) -> None:
    """Let a client or worker in no more; KIND is `client` or `worker`.

    \b
      trunkline keys remove client laptop
    """
    from trunkline_broker.key_files import KeyFileError, remove_peer

    if kind not in {"client", "worker"}:
        fail("KIND must be client or worker", ExitCode.USAGE)
    try:
        remove_peer(_directory(config), "clients" if kind == "client" else "workers", name)
    except KeyFileError as exc:
        fail(str(exc), ExitCode.FAILED)
    out().print(f"removed {kind} {name}; its connections end within seconds", markup=False)


def _add(kind: str, name: str, file: Path, config: Path | None) -> None:
    from trunkline_broker.key_files import KeyFileError, add_peer

    directory = _directory(config)
    try:
        add_peer(directory, "clients" if kind == "clients" else "workers", name, file)
    except KeyFileError as exc:
        fail(str(exc), ExitCode.FAILED)
    out().print(f"{kind[:-1]} {name} may connect with {file} (secret: mode 0600)", markup=False)


def _directory(config: Path | None) -> Path:
    from trunkline_broker.config import load
    from trunkline_broker.config_errors import ConfigError

    try:
        return load(config, os.environ).keys_dir
    except ConfigError as exc:
        fail(str(exc), ExitCode.USAGE)
