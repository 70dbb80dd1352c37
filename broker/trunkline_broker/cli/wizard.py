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
from typing import Any, Final, TypeVar

from trunkline_protocol.api_key import usable_api_key
from trunkline_protocol.failure import LlmError

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import CommandError, fail, out
from trunkline_broker.onboarding import NETWORK_VARIABLES, PROVIDERS, KnownProvider, adapter_options

_FILE_MODE: Final = 0o600
_DIR_MODE: Final = 0o700
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022
_TRIES: Final = 3
_Answer = TypeVar("_Answer")


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
    is_new = not config.is_file()
    there = _workers_of(config)
    _refuse_foreign_hands(config)
    for number, each in enumerate(PROVIDERS, 1):
        out().print(f"{number:>3}  {each.title}{_note(each, there, environ)}", markup=False)
    provider = _asked(lambda: _chosen(dialog.ask("Which provider? "), there, config))
    variable = provider.variable(environ)
    if variable is not None:
        _add(config, _section(provider, environ, {"apiKeyEnv": variable}, variable))
        out().print(f"{config}: the key stays in {variable}", markup=False)
    else:
        key_file = config.parent / "secrets" / provider.name
        question = f"API key of {provider.title} (not shown): "
        key = _asked(lambda: _usable(dialog.ask_secret(question), provider))
        _write_key(key_file, key)
        _add(config, _section(provider, environ, {"apiKeyFile": str(key_file)}, None))
        out().print(f"{config}: the key is in {key_file}, which only you can read", markup=False)
    if is_new:
        _tell_of_others(provider, environ)
    out().print("next: `trunkline up --detach`, or `trunkline reload` if a broker runs")


def _tell_of_others(chosen: KnownProvider, environ: Mapping[str, str]) -> None:
    """Tell which providers were served because there was no file, and no longer are."""
    others = [each.title for each in PROVIDERS if each is not chosen and each.variable(environ)]
    if others:
        text = f"note: {', '.join(others)} had no section and needed none; now run setup for each"
        out().print(text, markup=False)


def _note(provider: KnownProvider, there: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    if provider.name in there:
        return "  (configured)"
    variable = provider.variable(environ)
    return f"  (key in {variable})" if variable else ""


def _asked(question: Callable[[], _Answer]) -> _Answer:
    """Ask until the answer can be used; the last one that can't be ends the dialog.

    Raises:
        CommandError: what was wrong with it.
    """
    for _ in range(_TRIES - 1):
        try:
            return question()
        except CommandError as exc:
            out().print(f"{exc}; try again", markup=False)
    try:
        return question()
    except CommandError as exc:
        raise CommandError(f"{exc}; nothing was changed", exc.code) from None


def _chosen(answer: str, there: Mapping[str, Any], config: Path) -> KnownProvider:
    text = answer.strip().lower()
    for number, each in enumerate(PROVIDERS, 1):
        if text in {str(number), each.name, each.title.lower()}:
            if each.name in there:
                fail(f"{config} has a [worker.{each.name}] already", ExitCode.USAGE)
            return each
    raise CommandError(f"{answer.strip()!r} is none of them", ExitCode.USAGE)


def _usable(raw: str, provider: KnownProvider) -> str:
    try:
        return usable_api_key(raw, provider.name, "the terminal")
    except LlmError as exc:
        raise CommandError(str(exc), ExitCode.USAGE) from None


def _refuse_foreign_hands(config: Path) -> None:
    """Refuse a place where others could exchange what is written, and so choose what is run."""
    for path, wanted in ((config, 600), (config.parent, 700)):
        try:
            state = path.stat()
        except FileNotFoundError:
            continue
        if state.st_uid not in {os.getuid(), 0} or state.st_mode & _OTHERS_WRITE:
            text = f"{path} can be changed by others: chmod {wanted} {path}; nothing was changed"
            fail(text, ExitCode.USAGE)


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
    adapter, options = adapter_options(provider, environ)
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
    _make_private(config.parent)
    has_text = config.is_file() and config.stat().st_size > 0
    fd = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)
    with os.fdopen(fd, "a", encoding="utf-8") as file:
        file.write(f"\n{section}" if has_text else section)


def _make_private(directory: Path) -> None:
    """Make a directory and those around it that are missing, all for their owner alone.

    `mkdir(parents=True)` would leave the outer ones to the umask.
    """
    for each in (*reversed(directory.parents), directory):
        if not each.exists():
            each.mkdir(mode=_DIR_MODE, exist_ok=True)


def _write_key(path: Path, key: str) -> None:
    """Write a key into a file that only its owner can read; an older one is replaced.

    Raises:
        CommandError: the directory is open to others.
    """
    _make_private(path.parent)
    state = path.parent.stat()
    if state.st_uid != os.getuid() or state.st_mode & _OTHERS:
        fail(f"{path.parent} is open to others: chmod 700 {path.parent}; nothing was changed")
    # A configuration may stand in a repository, and what is beside it must not get there.
    ignore = path.with_name(".gitignore")
    if not ignore.exists():
        ignore.touch(_FILE_MODE)
        ignore.write_text("*\n", encoding="utf-8")
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
