"""Where a client finds its broker: the argument, the environment, or the private run directory.

The broker computes the same path on its own (the packages do not import each other).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trunkline_protocol.curve import MAX_KEY_FILE_BYTES, CurveKeys, read_keys
from trunkline_protocol.failure import LocalProtocolError

from trunkline import arguments

ENDPOINT_ENV: Final = "TRUNKLINE_ENDPOINT"
RUN_DIR_ENV: Final = "TRUNKLINE_RUN_DIR"
KEYS_ENV: Final = "TRUNKLINE_KEYS"
_SCHEMES: Final = ("ipc://", "tcp://")
_MAX_SOCKET_PATH_BYTES: Final = 107  # unix(7): sun_path holds 108 bytes with its final NUL


def run_dir(environ: Mapping[str, str]) -> Path:
    """Return the run directory of a broker of this user; nothing is created.

    `TRUNKLINE_RUN_DIR`, else `$XDG_RUNTIME_DIR/trunkline`, else `~/.local/state/trunkline/run`.
    """
    if chosen := environ.get(RUN_DIR_ENV):
        return Path(chosen).expanduser().absolute()
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "trunkline").absolute()
    home = environ.get("HOME")
    base = Path(home) if home else Path.home()
    return base / ".local" / "state" / "trunkline" / "run"


def default_endpoint(environ: Mapping[str, str] | None = None) -> str:
    """Return the address of `control`: `TRUNKLINE_ENDPOINT`, or the socket in the run directory.

    Raises:
        LocalProtocolError: as `checked_endpoint`.
    """
    environ = os.environ if environ is None else environ
    return checked_endpoint(environ.get(ENDPOINT_ENV) or f"ipc://{run_dir(environ) / 'control'}")


def checked_endpoint(endpoint: str) -> str:
    """Return an address that ZeroMQ can connect to; a bare path means `ipc://`.

    Raises:
        LocalProtocolError: another scheme, or a socket path that is too long for the system.
    """
    arguments.path("endpoint", endpoint)
    if endpoint.startswith("/"):
        endpoint = f"ipc://{endpoint}"
    if not endpoint.startswith(_SCHEMES):
        raise LocalProtocolError(f"endpoint {endpoint!r} must begin with ipc:// or tcp://")
    path = endpoint.removeprefix("ipc://")
    if path != endpoint and len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise LocalProtocolError(
            f"endpoint {endpoint} is too long: a socket path may have {_MAX_SOCKET_PATH_BYTES}"
            f" bytes; set {RUN_DIR_ENV} to a shorter directory"
        )
    return endpoint


def keys_for(
    endpoint: str,
    keys: CurveKeys | str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None = None,
) -> CurveKeys | None:
    """Return the keys for a TCP endpoint: those given, or those of the file in `TRUNKLINE_KEYS`.

    Args:
        endpoint: as `checked_endpoint` returns it; `ipc://` uses no keys.
        keys: the keys, or the path of a file that `trunkline keys` made.
        environ: `None`: the environment of this process.

    Raises:
        LocalProtocolError: the file can't be read or is no key file.
    """
    if not endpoint.startswith("tcp://"):
        return None
    environ = os.environ if environ is None else environ
    source = keys if keys is not None else environ.get(KEYS_ENV) or None
    if source is None or isinstance(source, CurveKeys):
        return source
    path = arguments.path("keys", source)
    try:
        with path.expanduser().open(encoding="utf-8") as file:
            return read_keys(file.read(MAX_KEY_FILE_BYTES), str(path))
    except (OSError, RuntimeError, UnicodeDecodeError) as exc:  # RuntimeError: no home directory
        raise LocalProtocolError(f"key file {path} can't be read: {exc}") from exc
