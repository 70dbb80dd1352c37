"""Configurable providers and discovery namespaces: reading what a worker declares.

Entries are kept as they came, so that keys of newer versions survive. Emptiness of a first
registration is judged in the worker, which knows first from later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from trunkline_protocol.codes import Code

from trunkline_broker.core.claims import Entry
from trunkline_broker.core.refusal import Refusal

DirectoryEntry = Mapping[str, Any]
_TEXTS = ("provider", "displayName", "settingsNs")


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
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise Refusal(Code.INVALID_DIRECTORY, f"{key}: a text that is not empty is required")
    path = entry.get("settingsPath")
    if not isinstance(path, list | tuple):
        raise Refusal(Code.INVALID_DIRECTORY, "settingsPath: a list is required")
    if not all(isinstance(part, str) and part for part in cast("Sequence[object]", path)):
        raise Refusal(Code.INVALID_DIRECTORY, "settingsPath: texts that are not empty")
    return entry


def namespaces(names: Sequence[str]) -> tuple[Entry[None], ...]:
    """Check the discovery part of a `REGISTRATIONS`.

    Raises:
        Refusal: `INVALID_DISCOVERY` for an empty name, `DUPLICATE_DISCOVERY` for a repeated one.
    """
    if not all(names):
        raise Refusal(Code.INVALID_DISCOVERY, "a settings namespace must not be empty")
    if len(set(names)) != len(names):
        raise Refusal(Code.DUPLICATE_DISCOVERY, "a settings namespace is registered twice")
    return tuple(Entry(name, 0, None) for name in names)
