"""Every bound and period of the protocol, with unit and source; it computes nothing.

"LANE n" is rule n in SPEC.md section 5.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_MAJOR: Final = 1
PROTOCOL_MINOR: Final = 0

# --- control frames -------------------------------------------------------------------------

MAX_PARTS: Final = 3  # kind, envelope, body
MAX_KIND_BYTES: Final = 16
MAX_ENVELOPE_BYTES: Final = 512 * 1024  # RESTATE of 2,000 calls at ~110 bytes, doubled
MAX_REGISTER_BYTES: Final = 4 * 1024 * 1024  # of REGISTER and REGISTRATIONS, every list full
MAX_BODY_BYTES: Final = 32 * 1024 * 1024  # 8 MiB of history and inline images, with room
MAX_PART_BYTES: Final = MAX_BODY_BYTES  # ZMQ_MAXMSGSIZE of control sockets
MAX_LIST_ENTRIES: Final = 4096  # calls named in one RESTATE, DONE, SENT or REGISTER
MAX_NAME_BYTES: Final = 256  # provider, model, pool, code …
MAX_COUNT: Final = 10**12  # tokens, chunks, milliseconds … of one attempt; sums stay below 2^63
MAX_KIND_CHARS: Final = 64  # of a finish kind that an adapter makes up
MAX_PAUSE_S: Final = 3600.0  # a provider's wish closes a route for an hour at most
MAX_TEXT_BYTES: Final = 16 * 1024  # failure text for people
MAX_DEPTH: Final = 32  # nesting of free-form maps in an envelope
MAX_BODY_DEPTH: Final = 128  # nesting inside a body; msgpack itself stops at 1024

# --- the chunk lane -------------------------------------------------------------------------

MAX_LANE_FRAME_BYTES: Final = (
    64 * 1024
)  # a frame grows to this by coalescing; one chunk may pass it
MAX_LANE_CHUNKS: Final = 1024  # chunks of one frame: never more than a window
MAX_LANE_BODY_BYTES: Final = 64 * 1024 * 1024  # one huge block still passes; more is refused
MAX_LANE_UP_BYTES: Final = 256  # a client has nothing to say on the lane (ZMQ_MAXMSGSIZE there)
MIN_FRAME_COST_BYTES: Final = 512  # what a frame costs libzmq at least (measured: LANE 4)

WINDOW_CHUNKS: Final = 1024  # LANE 4
WINDOW_BYTES: Final = 1024 * 1024  # LANE 4
CLIENT_BUDGET_CHUNKS: Final = 4096  # LANE 4; a frame has at least one chunk, so frames too
CLIENT_BUDGET_BYTES: Final = 16 * 1024 * 1024  # LANE 4

# --- attachments ----------------------------------------------------------------------------

ATTACHMENT_PART_BYTES: Final = 256 * 1024  # one part of an upload; control stays responsive
MAX_BROKER_ARGUMENT_BYTES: Final = ATTACHMENT_PART_BYTES + 4096  # of what a broker reads itself
MAX_ATTACHMENT_BYTES: Final = 64 * 1024 * 1024  # providers take 5 to 50 MB per image
ATTACHMENT_STORE_BYTES: Final = 1024 * 1024 * 1024  # default bound of a store
MIN_ATTACHMENT_COST_BYTES: Final = 4096  # a file system's block: so the number is bounded too
ATTACHMENT_REPEAT_S: Final = 1.0  # a worker asks again for a part that did not come

# --- counts ---------------------------------------------------------------------------------

MAX_OPEN_CALLS_PER_CLIENT: Final = 4096  # LANE 13
MAX_OPEN_CALLS_PER_WORKER: Final = 4096  # LANE 13
MAX_OPEN_QUERIES_PER_CLIENT: Final = 256
MAX_OPEN_QUERIES_PER_WORKER: Final = 4096  # as calls: each is a task there
MAX_CLIENTS: Final = 4096
MAX_ENDED_CALLS: Final = 16_384  # ended calls a worker remembers (LANE 7)

# --- periods --------------------------------------------------------------------------------

HEARTBEAT_INTERVAL_S: Final = 1.0  # LANE 5
LEASE_S: Final = 3.0  # zguide ch. 4: three missed beats
LATE_TICK_S: Final = 0.5  # a tick later than this first extends every lease
RESUME_AFTER_S: Final = 0.25  # LANE 3, 5, 10: no progress for this long leads to RESUME
REPEAT_AFTER_S: Final = 0.5  # OPEN and CANCEL nobody confirmed; doubles up to REPEAT_MAX_S
REPEAT_MAX_S: Final = 8.0
QUIET_AFTER_S: Final = 1.0  # a quiet call restates; doubles up to QUIET_MAX_S
QUIET_MAX_S: Final = 30.0
PROBE_TIMEOUT_S: Final = 0.5  # LANE 6
DONE_BATCH_S: Final = 0.05  # LANE 10
RETENTION_S: Final = 30.0  # LANE 2
ORPHAN_TIMEOUT_S: Final = 30.0  # a worker without a broker leaves after this
DETACHED_S: Final = 21_600.0  # LANE 12: a running call without a client; 6 h, for batch-like calls
SETTLE_S: Final = 5.0  # LANE 8
CONNECT_TIMEOUT_S: Final = 1.5  # "no broker at …" comes within 2 s
CANCEL_S: Final = 1.0  # an adapter has closed its provider connection by then
