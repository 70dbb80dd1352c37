"""The files of CURVE keys: made, listed and removed by `trunkline keys`, read by the broker.

    KEYS_DIR/server.key         the broker's pair, 0600
    KEYS_DIR/clients/NAME.pub   public keys of clients that may connect
    KEYS_DIR/workers/NAME.pub   public keys of workers that may connect

The secret key of a client or worker is written once, into the file that goes to its host.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import zmq
from trunkline_protocol.curve import MAX_KEY_FILE_BYTES, CurveKeys, is_key, keys_text
from trunkline_protocol.secret import SecretStr

from trunkline_broker.paths import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE
from trunkline_broker.regular_files import read_regular
from trunkline_broker.security import PUBLIC_SUFFIX, Kind, ServerKeys

SERVER_FILE: Final = "server.key"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class KeyFileError(Exception):
    """A key file can't be made or used; the text never holds a secret key."""


def default_keys_dir(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CONFIG_HOME/trunkline/keys`."""
    home = Path(environ.get("HOME") or Path.home())
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "trunkline" / "keys"


def make_server(directory: Path) -> ServerKeys:
    """Make the broker's pair.

    Raises:
        KeyFileError: there is one already, or the file can't be written.
    """
    keys = ServerKeys(*new_pair())
    text = f"# Keys of a Trunkline broker; secret.\npublic = '{keys.public}'\n"
    _write_private(directory / SERVER_FILE, f"{text}secret = '{keys.secret.get_secret_value()}'\n")
    return keys


def read_server(directory: Path) -> ServerKeys:
    """Read the broker's pair.

    Raises:
        KeyFileError: there is none, others can read it, or it holds no keys.
    """
    path = directory / SERVER_FILE
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        entries = tomllib.loads(read_regular(path, MAX_KEY_FILE_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise KeyFileError(f"no {path}; make it with `trunkline keys server`") from None
    except (OSError, ValueError, RecursionError):
        raise KeyFileError(f"{path} can't be read or is no key file") from None
    if mode & 0o077:
        raise KeyFileError(f"{path} is open to other users (mode {mode:04o}); chmod 600 it")
    if not is_key(entries.get("public")) or not is_key(entries.get("secret")):
        raise KeyFileError(f"{path} has no `public` and `secret` of 40 characters")
    return ServerKeys(entries["public"], SecretStr(entries["secret"]))


def add_peer(directory: Path, kind: Kind, name: str, file: Path) -> CurveKeys:
    """Make a pair for a client or worker: its public key into the list, the rest into `file`.

    Raises:
        KeyFileError: a wrong or taken name, no server key yet, or a file that can't be written.
    """
    public_file = _public_file(directory, kind, name)
    server = read_server(directory)
    if public_file.exists():
        raise KeyFileError(f"{kind[:-1]} {name} has a key already; remove it first")
    public, secret = new_pair()
    keys = CurveKeys(public, secret, server.public)
    comment = f"Key of {kind[:-1]} {name!r} for a Trunkline broker; secret."
    _write_private(file, keys_text(keys, comment))
    _write_private(public_file, f"{public}\n")
    return keys


def remove_peer(directory: Path, kind: Kind, name: str) -> None:
    """Take a key out of the list; connections made with it are dropped within seconds.

    Raises:
        KeyFileError: it is not in the list.
    """
    try:
        _public_file(directory, kind, name).unlink()
    except OSError as exc:
        raise KeyFileError(f"no key of {kind[:-1]} {name}: {exc.strerror}") from exc


def new_pair() -> tuple[str, SecretStr]:
    """Return a new public and secret key."""
    public, secret = zmq.curve_keypair()
    return public.decode(), SecretStr(secret.decode())


def _public_file(directory: Path, kind: Kind, name: str) -> Path:
    if _NAME.fullmatch(name) is None:
        raise KeyFileError("a name has letters, digits, '_', '-' and '.', at most 64")
    return directory / kind / f"{name}{PUBLIC_SUFFIX}"


def _write_private(path: Path, text: str) -> None:
    """Write a new file that only this user can read, whole or not at all.

    Raises:
        KeyFileError: it exists, or can't be written.
    """
    try:
        path.parent.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, PRIVATE_FILE_MODE), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), PRIVATE_FILE_MODE)
            file.write(text)
    except FileExistsError:
        raise KeyFileError(f"{path} exists already; it was not touched") from None
    except OSError as exc:
        raise KeyFileError(f"{path} can't be written: {exc.strerror}") from exc
