"""Configurable providers and discovery namespaces: reading what a worker declares.

Entries are kept as they came, so that keys of newer versions survive. Emptiness of a first
registration is judged in the worker, which knows first from later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard, cast

from trunkline_protocol.codes import Code
from trunkline_protocol.limits import MAX_NAME_BYTES
from trunkline_protocol.printable import is_name

from trunkline_broker.core.claims import Entry
from trunkline_broker.core.refusal import Refusal

DirectoryEntry = Mapping[str, Any]
A_NAME: Final = f"a text of 1 to {MAX_NAME_BYTES} printable characters"
_TEXTS = ("provider", "displayName", "settingsNs")


def is_filled_name(value: object) -> TypeGuard[str]:
    """Return whether a value is a name that is not empty."""
    return is_name(value) and value != ""


def directory_entries(
    registrations: Sequence[Mapping[str, Any]],
) -> tuple[Entry[DirectoryEntry], ...]:
    """Check the directory part of a `REGISTRATIONS`; each registration has `entries`.

    Raises:
        Refusal: `INVALID_DIRECTORY` before `DUPLICATE_DIRECTORY`, as the reference does.
    """
    checked = [
        Entry(entry["provider"], since(registration, number), entry)
        for number, registration in enumerate(registrations)
        for entry in _entries(registration)
    ]
    seen: set[str] = set()
    for entry in checked:
        if entry.key in seen:
            raise Refusal(Code.DUPLICATE_DIRECTORY, f"provider {entry.key!r} is declared twice")
        seen.add(entry.key)
    return tuple(checked)


def since(registration: Mapping[str, Any], number: int) -> int:
    """Return what tells a registration that stayed from one that was made or replaced now.

    A worker that does not say it is taken by the registration's number.
    """
    stated = registration.get("since")
    return stated if type(stated) is int else number


def _entries(registration: Mapping[str, Any]) -> list[DirectoryEntry]:
    entries = registration.get("entries")
    if not isinstance(entries, list | tuple):
        raise Refusal(Code.INVALID_DIRECTORY, "entries: a list is required")
    return [_entry(raw) for raw in cast("Sequence[object]", entries)]


def _entry(raw: object) -> DirectoryEntry:
    if not isinstance(raw, dict):
        raise Refusal(Code.INVALID_DIRECTORY, "an entry must be a map")
    entry = cast("dict[str, Any]", raw)
    for key in _TEXTS:
        if not is_filled_name(entry.get(key)):
            raise Refusal(Code.INVALID_DIRECTORY, f"{key}: {A_NAME} is required")
    path = entry.get("settingsPath")
    if not isinstance(path, list | tuple):
        raise Refusal(Code.INVALID_DIRECTORY, "settingsPath: a list is required")
    if not all(is_filled_name(part) for part in cast("Sequence[object]", path)):
        raise Refusal(Code.INVALID_DIRECTORY, f"settingsPath: each part must be {A_NAME}")
    return entry


def namespaces(names: Sequence[str]) -> tuple[Entry[None], ...]:
    """Check the discovery part of a `REGISTRATIONS`.

    Raises:
        Refusal: `INVALID_DISCOVERY` for an empty name, `DUPLICATE_DISCOVERY` for a repeated one.
    """
    if not all(map(is_filled_name, names)):
        raise Refusal(Code.INVALID_DISCOVERY, f"a settings namespace must be {A_NAME}")
    if len(set(names)) != len(names):
        raise Refusal(Code.DUPLICATE_DISCOVERY, "a settings namespace is registered twice")
    return tuple(Entry(name, 0, None) for name in names)
