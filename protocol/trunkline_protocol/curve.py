"""CURVE keys as text, and lane addresses of a broker that listens on TCP; pure.

A key file is TOML with the keys of one peer and the public key of its broker. Keys are Z85 text of
40 characters (ZeroMQ RFC 32). Nothing here makes keys or reads files, and no error shows a key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.record import record

if TYPE_CHECKING:  # a client without keys need not load pydantic for this
    from trunkline_protocol.secret import SecretStr

MAX_KEY_FILE_BYTES: Final = 4096
_Z85_KEY: Final = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_ANY_HOST: Final = "tcp://*:"


@record
class CurveKeys:
    """What a client or worker on another host needs to reach a broker.

    Attributes:
        public: its own public key, which the broker must have in its allow-list.
        secret: its own secret key.
        server: the broker's public key, which proves the broker to it.
    """

    public: str
    secret: SecretStr
    server: str


def is_key(text: object) -> bool:
    """Tell whether a text can be a CURVE key."""
    return isinstance(text, str) and _Z85_KEY.fullmatch(text) is not None


def read_keys(text: str, source: str) -> CurveKeys:
    """Read the text of a key file.

    Args:
        text: TOML with `public`, `secret` and `server`; other entries are ignored.
        source: where it comes from, for errors.

    Raises:
        LocalProtocolError: no TOML, or an entry that is missing or no key; names the entry.
    """
    import tomllib  # only clients of other hosts have keys

    from trunkline_protocol.secret import SecretStr

    try:
        entries = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise LocalProtocolError(f"key file {source} is not TOML") from None
    for name in ("public", "secret", "server"):
        if not is_key(entries.get(name)):
            raise LocalProtocolError(f"key file {source}: {name} must be a key of 40 characters")
    return CurveKeys(entries["public"], SecretStr(entries["secret"]), entries["server"])


def keys_text(keys: CurveKeys, comment: str) -> str:
    """Return the text of a key file, which `read_keys` reads."""
    lines = [f"# {comment}", f"public = '{keys.public}'"]
    lines += [f"secret = '{keys.secret.get_secret_value()}'", f"server = '{keys.server}'", ""]
    return "\n".join(lines)


def lane_address(lane: str, control: str) -> str:
    """Return where a peer finds a lane that the broker named.

    A broker that listens on every address of its host does not know by which of them it was
    found: it says `tcp://*:PORT`, which means the host of the control endpoint.
    """
    if lane.startswith(_ANY_HOST) and control.startswith("tcp://"):
        return f"{control.rpartition(':')[0]}:{lane.removeprefix(_ANY_HOST)}"
    return lane
