"""Decides which request ends its worker's process, and bars it from further ones.

Each request that runs in a worker which dies is suspect. It runs again with a turn of its own, in
which its worker begins nothing else, so that the next death names one request. The request that
was alone on trial is barred for a minute; the others of its deaths are cleared (ADR 0013).
It does not know calls, workers or routes: a request is a key, and `now_s` comes with each question.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from trunkline_protocol.frames import Body
from trunkline_protocol.limits import MAX_OPEN_CALLS_PER_WORKER

BARRED_S: Final = 60.0
MAX_SUSPECTS: Final = 2 * MAX_OPEN_CALLS_PER_WORKER
_KEY_BYTES: Final = 16
_HASHED_BYTES: Final = 16_384  # of each end of a body: a whole one of 32 MiB would take 30 ms
_ID_BYTES: Final = 36  # a UUID as text
# As MessagePack writes such an entry of a map: the key, and a text of 36 bytes.
_ID_HEADS: Final = (b"\xa2id\xd9\x24", b"\xa9sessionId\xd9\x24")
# A crash comes at the same point of a request again, give or take what the machine does beside it.
_SLACK: Final = 1.5
_SLACK_S: Final = 1.0
_ALIKE: Final = 0.1
_ALIKE_S: Final = 0.15
_TURN_S: Final = 3.0  # longest turn; other calls of the worker's routes may wait for its end
_LONG_TURN_S: Final = 30.0  # half of what a call may wait by default; a long call may be harmless
_TURNS_S: Final = 15.0  # of all suspects together: far below the time that a call may wait


def key_of(provider: str, model: str, body: Body) -> bytes:
    """Return what two equal requests have in common: of a large body its ends and its length.

    The random ids of messages and sessions do not count: a client that sends the same text again
    draws new ones.
    """
    digest = sha256()  # faster than others where the processor has it
    digest.update(f"{provider}\0{model}\0{len(body)}\0".encode(errors="surrogatepass"))
    if len(body) <= 2 * _HASHED_BYTES:
        digest.update(_without_ids(bytes(body)))
    else:
        digest.update(_without_ids(bytes(body[:_HASHED_BYTES])))
        digest.update(_without_ids(bytes(body[-_HASHED_BYTES:])))
    return digest.digest()[:_KEY_BYTES]


def _without_ids(data: bytes) -> bytes:
    for head in _ID_HEADS:
        first, *rest = data.split(head)
        data = first + b"".join(part[_ID_BYTES:] for part in rest)
    return data


@dataclass(slots=True)
class _Suspect:
    """What is known of one request.

    Attributes:
        deaths: workers that died while it ran and was under suspicion, the first one included.
        ran_s: how long it had run at the last of them.
        seen: numbers of those deaths.
        until_s: when it is forgotten, unless it runs again before.
    """

    deaths: int
    ran_s: float
    seen: frozenset[int]
    until_s: float
    is_barred: bool = False

    @property
    def window_s(self) -> float:
        """Return how long it must run to be taken for harmless."""
        return _SLACK * self.ran_s + _SLACK_S

    def is_like(self, ran_s: float) -> bool:
        """Return whether a request has run for as long as it had when its last worker died."""
        return abs(ran_s - self.ran_s) <= _ALIKE * self.ran_s + _ALIKE_S


def _culprit(running: Mapping[bytes, float], tried: Mapping[bytes, _Suspect]) -> bytes | None:
    """Return the request on which a worker died, if that can be told.

    Nothing begins in a worker after a suspect in its turn. So the youngest request is it if it is
    the only one on trial, or in the long turn of a request that was on trial before. Else it is the
    only one that had run for as long as it had at the death before.
    """
    youngest = min(running, key=lambda key: running[key])
    suspect = tried.get(youngest)
    if suspect is None:
        return None
    if len(tried) == 1 or suspect.deaths > 1:
        return youngest
    alike = [key for key, found in tried.items() if found.is_like(running[key])]
    return alike[0] if len(alike) == 1 else None


class Suspicion:
    """Requests that ran in workers which died, by key; at most `MAX_SUSPECTS`."""

    __slots__ = ("_deaths", "_suspects", "high_water")

    def __init__(self) -> None:
        self.high_water = 0  # the most there ever were
        self._deaths = 0
        self._suspects: OrderedDict[bytes, _Suspect] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of requests that are suspect or barred."""
        return len(self._suspects)

    def barred_s(self, key: bytes, now_s: float) -> float:
        """Return for how long a request is still refused; 0: it is not."""
        found = self._at(key, now_s)
        return found.until_s - now_s if found is not None and found.is_barred else 0.0

    def is_suspect(self, key: bytes, now_s: float) -> bool:
        """Return whether a request must have a turn of its own to run."""
        found = self._at(key, now_s)
        return found is not None and not found.is_barred

    def order(self, key: bytes, now_s: float) -> float:
        """Return the place of a request among those that wait: the likeliest to crash is first.

        A request that had run for a short time only is likelier; one that was cleared goes before
        all of them.
        """
        found = self._at(key, now_s)
        return -1.0 if found is None or found.is_barred else found.ran_s

    def begin(self, key: bytes, now_s: float) -> float:
        """Return how long the turn of a suspect lasts that starts now."""
        found = self._at(key, now_s)
        if found is None:
            return 0.0
        found.until_s = max(found.until_s, now_s + found.window_s + BARRED_S)
        if found.deaths > 1:  # the short turns have not told: this one is longer
            return min(found.window_s, _LONG_TURN_S)
        return min(found.window_s, _TURN_S, _TURNS_S / len(self._suspects))

    def on_death(self, running: Mapping[bytes, float], now_s: float) -> frozenset[bytes]:
        """Take the death of a worker.

        Args:
            running: seconds that each request had run in it, of at least one; the shortest, if one
                ran twice.
            now_s: monotonic seconds.

        Returns:
            Requests that are barred from now on.
        """
        self._forget_old(now_s)
        self._deaths += 1
        tried = {
            key: found
            for key, ran_s in running.items()
            if (found := self._at(key, now_s)) is not None
            and not found.is_barred
            and ran_s <= found.window_s
        }
        guilty = _culprit(running, tried)
        for key, ran_s in running.items():
            self._note(key, ran_s, tried.get(key), now_s)
        if guilty is None:
            return frozenset()
        self._bar(guilty, now_s)
        return frozenset({guilty})

    def _note(self, key: bytes, ran_s: float, before: _Suspect | None, now_s: float) -> None:
        deaths, seen = 1, frozenset({self._deaths})
        if before is not None:
            deaths, seen = before.deaths + 1, seen | before.seen
        elif self.barred_s(key, now_s):
            return  # started before it was barred
        self._suspects[key] = _Suspect(deaths, ran_s, seen, now_s + BARRED_S)
        self._suspects.move_to_end(key)
        if len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        self.high_water = max(self.high_water, len(self._suspects))

    def _bar(self, key: bytes, now_s: float) -> None:
        """Bar a request, and clear those that only ever ran beside it when a worker died."""
        guilty = self._suspects[key]
        guilty.is_barred = True
        guilty.until_s = now_s + BARRED_S
        for other, found in list(self._suspects.items()):
            if not found.is_barred and found.seen <= guilty.seen:
                del self._suspects[other]

    def _at(self, key: bytes, now_s: float) -> _Suspect | None:
        found = self._suspects.get(key)
        if found is not None and found.until_s <= now_s:
            del self._suspects[key]
            return None
        return found

    def _forget_old(self, now_s: float) -> None:
        for key, found in list(self._suspects.items()):
            if found.until_s <= now_s:
                del self._suspects[key]
