"""`trunkline setup` without a name: asks for a provider and its key, writes a worker's section.

The key goes into a file of its own that only its owner can read, never into the configuration,
which is often shared, and never onto the screen.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trunkline_protocol.api_key import usable_api_key
from trunkline_protocol.failure import LlmError

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import CommandError, fail, out
from trunkline_broker.onboarding import NETWORK_VARIABLES, PROVIDERS, KnownProvider, adapter_options

_FILE_MODE: Final = 0o600
_DIR_MODE: Final = 0o700
_OTHERS: Final = 0o077


@dataclass(frozen=True, slots=True)
class Dialog:
    """How questions are asked.

    Attributes:
        ask: a question that shows its answer.
        ask_secret: one that does not.
    """

    ask: Callable[[str], str]
    ask_secret: Callable[[str], str]


def run_wizard(dialog: Dialog, environ: Mapping[str, str], config: Path) -> None:
    """Ask for one provider and write its section.

    Args:
        dialog: how to ask.
        environ: where a key may be already.
        config: the file to write, made if it is missing.

    Raises:
        CommandError: the answers can't be used, or a file can't be written safely.
    """
    for number, each in enumerate(PROVIDERS, 1):
        variable = each.variable(environ)
        note = f"  (key in {variable})" if variable else ""
        out().print(f"{number:>3}  {each.title}{note}", markup=False)
    provider = _chosen(dialog.ask("Which provider? "))
    if provider.name in _workers_of(config):
        fail(f"{config} has a [worker.{provider.name}] already; nothing was changed")
    variable = provider.variable(environ)
    if variable is not None:
        _add(config, _section(provider, environ, {"apiKeyEnv": variable}, variable))
        out().print(f"{config}: the key stays in {variable}", markup=False)
    else:
        key_file = config.parent / "secrets" / provider.name
        _write_key(key_file, dialog.ask_secret(f"API key of {provider.title}: "), provider)
        _add(config, _section(provider, environ, {"apiKeyFile": str(key_file)}, None))
        out().print(f"{config}: the key is in {key_file}, which only you can read", markup=False)
    out().print("next: `trunkline up --detach`, or `trunkline reload` if a broker runs")


def _chosen(answer: str) -> KnownProvider:
    text = answer.strip().lower()
    for number, each in enumerate(PROVIDERS, 1):
        if text in {str(number), each.name, each.title.lower()}:
            return each
    raise CommandError(f"{answer.strip()!r} is none of them; nothing was changed", ExitCode.USAGE)


def _workers_of(config: Path) -> Mapping[str, Any]:
    if not config.is_file():
        return {}
    try:
        return tomllib.loads(config.read_text(encoding="utf-8")).get("worker", {})
    except (OSError, ValueError) as exc:
        fail(f"{config} can't be read: {exc}; nothing was changed", ExitCode.USAGE)


def _section(
    provider: KnownProvider,
    environ: Mapping[str, str],
    key: Mapping[str, str],
    variable: str | None,
) -> str:
    """Return the section of a worker as text."""
    adapter, options = adapter_options(provider)
    network = [name for name in NETWORK_VARIABLES if name in environ]
    env = [name for name in (variable, *network) if name]
    lines = [f"[worker.{provider.name}]", f'adapter = "{adapter}"']
    lines.append(f'providers = ["{provider.route or provider.name}"]')
    if env:
        lines.append(f"env = [{', '.join(_text(name) for name in env)}]")
    lines += ["", f"[worker.{provider.name}.options]"]
    for name, value in {**options, **key}.items():
        lines.append(f"{name} = {'true' if value is True else _text(str(value))}")
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _add(config: Path, section: str) -> None:
    config.parent.mkdir(mode=_DIR_MODE, parents=True, exist_ok=True)
    has_text = config.is_file() and config.stat().st_size > 0
    fd = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)
    with os.fdopen(fd, "a", encoding="utf-8") as file:
        file.write(f"\n{section}" if has_text else section)


def _write_key(path: Path, raw: str, provider: KnownProvider) -> None:
    """Write a key into a file that only its owner can read; an older one is replaced.

    Raises:
        CommandError: the text is no key, or the directory is open to others.
    """
    try:
        key = usable_api_key(raw, provider.name, "what was entered")
    except LlmError as exc:
        fail(f"{exc}; nothing was changed", ExitCode.USAGE)
    path.parent.mkdir(mode=_DIR_MODE, parents=True, exist_ok=True)
    state = path.parent.stat()
    if state.st_uid != os.getuid() or state.st_mode & _OTHERS:
        fail(f"{path.parent} is open to others: chmod 700 {path.parent}; nothing was changed")
    made = path.with_name(f".{path.name}.{os.getpid()}")
    # Exclusive: a file or link that somebody put there is never written through.
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    try:
        os.fchmod(fd, _FILE_MODE)
        os.write(fd, key.encode())
        os.fsync(fd)
        made.replace(path)
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            made.unlink()
