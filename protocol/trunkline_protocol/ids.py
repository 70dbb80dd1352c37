"""Names for the identifiers that cross function edges; it knows nothing of how they are drawn."""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

ClientId = NewType("ClientId", bytes)
"""16 random bytes a client draws once; also the routing id of its chunk socket ("lane id")."""

CallId = NewType("CallId", bytes)
"""16 random bytes drawn by the client; names one call for ever."""

StreamKey = NewType("StreamKey", bytes)
"""8 random bytes drawn by the client for each attempt; stands at the head of its lane frames."""

QueryId = NewType("QueryId", bytes)
"""16 random bytes drawn by whoever asks; pairs a `REPLY` with its `QUERY`."""

LeaseId = NewType("LeaseId", bytes)
"""16 random bytes drawn by the worker; names one prepared call that it holds alive."""

PoolName = NewType("PoolName", str)
"""NAME of `[worker.NAME]` in the configuration."""

RouteName = NewType("RouteName", str)
"""Provider key that a call asks for."""

Epoch = NewType("Epoch", int)
"""Start time of a broker in nanoseconds since 1970; a later broker has the greater one."""

CLIENT_ID_BYTES: Final = 16
CALL_ID_BYTES: Final = 16
STREAM_KEY_BYTES: Final = 8
QUERY_ID_BYTES: Final = 16
LEASE_ID_BYTES: Final = 16


class Generation(NamedTuple):
    """One process in one slot; never reused, ordered by age.

    Attributes:
        epoch: epoch of the broker that gave it out; 0 for a worker that no broker started.
        number: counts up within an epoch, from 1.
    """

    epoch: Epoch
    number: int
