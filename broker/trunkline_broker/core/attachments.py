"""What the attachment store holds, and what leaves it to make room (SPEC 7.1).

Bookkeeping only: it knows no file, no peer and no call; it is told which attachments live calls
name where that matters. All together never cost more than the bound, but for what was found at the
start.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from trunkline_protocol.limits import MIN_ATTACHMENT_COST_BYTES


@dataclass(slots=True)
class Entry:
    """One attachment, whole or on its way.

    Attributes:
        total: size of the whole; `None`: an upload found at the start, nobody has said yet.
        received: bytes that are there, from the beginning.
        is_stored: whole and checked.
        is_busy: its file is being written, so it can't leave.
    """

    total: int | None
    received: int
    is_stored: bool = False
    is_busy: bool = False

    @property
    def cost(self) -> int:
        """What it counts against the bound: all that was announced, at least a block."""
        size = self.received if self.total is None else self.total
        return max(size, MIN_ATTACHMENT_COST_BYTES)


class AttachmentIndex:
    """All attachments of one store, the longest unused first.

    Attributes:
        bound_bytes: most that all may cost.
        used_bytes: what all cost.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of attachments, uploads included."""
        return len(self._entries)

    @property
    def upload_count(self) -> int:
        """Number of attachments that are not whole."""
        return sum(not entry.is_stored for entry in self._entries.values())

    def get(self, name: str) -> Entry | None:
        """Return what is known of an attachment; the caller changes nothing in it."""
        return self._entries.get(name)

    def names(self) -> list[str]:
        """Return all names, the longest unused first."""
        return list(self._entries)

    def restore(self, name: str, size: int, *, is_stored: bool) -> None:
        """Take what was found at the start, the longest unused first; the bound may be passed."""
        self._put(name, Entry(size if is_stored else None, size, is_stored))

    def touch(self, name: str) -> bool:
        """Take note that an attachment is used; `False`: it is not here."""
        if name not in self._entries:
            return False
        self._entries.move_to_end(name)
        return True

    def announce(self, name: str, total: int, pinned: Collection[str]) -> list[str] | None:
        """Take note of an upload and make room for the whole of it.

        An upload of the same total, or of an unknown one, goes on with what it has received; of
        another total it begins anew.

        Args:
            name: not stored and not busy.
            total: its size in bytes.
            pinned: what live calls name.

        Returns:
            What has left for it, to be removed. `None`: there is no room, and nothing has changed.
        """
        held = self._entries.get(name)
        if held is not None and (held.is_stored or held.is_busy):
            raise AssertionError("only an upload at rest is announced")
        received = 0
        if held is not None and (held.total == total or self._may_grow(held, total)):
            received = held.received
        entry = Entry(total, received)
        needed = entry.cost - (held.cost if held is not None else 0)
        leaving = self._leaving(needed, {*pinned, name})
        if leaving is None:
            return None
        for each in leaving:
            self.drop(each)
        self._put(name, entry)
        return leaving

    def write(self, name: str) -> None:
        """Take note that a part is being written."""
        self._entries[name].is_busy = True

    def written(self, name: str, received: int, *, is_stored: bool) -> None:
        """Take note of what is there after a part was written."""
        entry = self._entries[name]
        entry.is_busy = False
        entry.received = received
        entry.is_stored = is_stored
        self._entries.move_to_end(name)

    def drop(self, name: str) -> None:
        """Forget an attachment: its file is gone, or will be."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.used_bytes -= entry.cost

    def shrink(self, pinned: Collection[str]) -> list[str]:
        """Come down to the bound as far as what is pinned allows; return what has left."""
        leaving: list[str] = []
        excess = self.used_bytes - self.bound_bytes
        for name in self._removable(pinned):
            if excess <= 0:
                break
            excess -= self._entries[name].cost
            leaving.append(name)
        for name in leaving:
            self.drop(name)
        return leaving

    def _may_grow(self, held: Entry, total: int) -> bool:
        return held.total is None and held.received <= total

    def _leaving(self, needed: int, pinned: Collection[str]) -> list[str] | None:
        """Return the longest unused that make so much room; `None`: all together do not."""
        excess = self.used_bytes + needed - self.bound_bytes
        leaving: list[str] = []
        for name in self._removable(pinned) if excess > 0 else ():
            if excess <= 0:
                break
            excess -= self._entries[name].cost
            leaving.append(name)
        return leaving if excess <= 0 else None

    def _removable(self, pinned: Collection[str]) -> list[str]:
        return [
            name
            for name, entry in self._entries.items()
            if name not in pinned and not entry.is_busy
        ]

    def _put(self, name: str, entry: Entry) -> None:
        self.drop(name)
        self._entries[name] = entry
        self.used_bytes += entry.cost
