"""Secrets in the options of a worker: which ones they are, apart from the rest, and put back.

The broker does not know what an adapter's options mean; an option is a secret if its name or its
look says so. From the file to the worker's boot document they are `SecretStr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from trunkline_protocol.secret import STARS, SecretStr

_NAME: Final = re.compile(r"(?i)key|token|secret|passw|credential|auth|cookie")
# Numbers of tokens, and where a key is to be found.
_HARMLESS_NAME: Final = re.compile(r"(?i)tokens$|(env|file|header|name|limit|count)$")
_VALUE: Final = re.compile(r"^(sk|pk|rk|gsk|xai|ghp|AIza)[-_A-Za-z0-9]{12,}$|^(Bearer|Basic)\s")
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY_OF_URL: Final = re.compile(r"(?<=\?)\S+")


def concealed(value: Any, name: str = "") -> Any:
    """Return options with every secret as `SecretStr`.

    Args:
        value: any part of an options table.
        name: the key it stands under; below a table named `headers` every text is a secret.
    """
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        is_secret = name.lower() == "headers"
        return {
            key: concealed(item, "token" if is_secret else key) for key, item in entries.items()
        }
    if isinstance(value, list | tuple):
        return [concealed(item, name) for item in cast("list[Any]", value)]
    return SecretStr(value) if isinstance(value, str) and _is_secret(name, value) else value


def revealed(value: Any) -> Any:
    """Return options as the worker gets them, over a descriptor of its own."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {key: revealed(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [revealed(item) for item in cast("list[Any]", value)]
    return value


def masked(value: Any, name: str = "") -> Any:
    """Return options as people may see them: stars for secrets, also inside of URLs."""
    return _shown(concealed(value, name))


def _shown(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return STARS
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [_shown(item) for item in cast("list[Any]", value)]
    if isinstance(value, str) and "://" in value:
        return _QUERY_OF_URL.sub(STARS, _USER_IN_URL.sub(STARS, value))
    return value


def _is_secret(name: str, value: str) -> bool:
    if not value:
        return False
    if _VALUE.search(value):
        return True
    return bool(_NAME.search(name)) and not _HARMLESS_NAME.search(name)
