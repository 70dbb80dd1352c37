"""What the worker's cores tell the shell to do; imperative, performed in order, closed."""

from __future__ import annotations

from dataclasses import dataclass

from trunkline_protocol.frames import Query, Reply, Start, WorkerFrame
from trunkline_protocol.ids import CallId, ClientId, QueryId
from trunkline_protocol.record import record


@record
class Begin:
    """Run the adapter for this attempt; sent once per attempt."""

    start: Start


@record
class Stop:
    """Cancel the pulling of this attempt and close the adapter's iterator."""

    call: CallId
    attempt: int


@record
class Pull:
    """There is room and the puller of this attempt waits: wake it, so that it asks for room again.

    Repeated until it has asked, so a second one for the same puller changes nothing.
    """

    call: CallId
    attempt: int


@dataclass(slots=True)  # not frozen: one for every lane frame, and freezing costs three times it
class SendLane:
    """Send an encoded lane frame to a client."""

    client: ClientId
    frame: bytes


@record
class SendControl:
    """Send a control frame to the broker."""

    frame: WorkerFrame


@record
class Count:
    """Add to a counter."""

    name: str
    amount: int = 1


@record
class Stalled:
    """An attempt stands still although nothing holds it up: report this fault of the worker.

    Attributes:
        call: with `attempt`, the attempt.
        attempt: counts from 0.
        state: its facts, for people.
    """

    call: CallId
    attempt: int
    state: str


CallEffect = Begin | Stop | Pull | Stalled | SendLane | SendControl | Count
"""What `calls.WorkerCalls` may ask for."""


@record
class ConnectLane:
    """Connect the lane socket there; the same endpoint again changes nothing."""

    endpoint: str


@record
class OpenAdapter:
    """The broker knows this process: acquire what the adapter needs, then register its routes."""


@record
class Resolve:
    """A request for registrations was decided.

    Attributes:
        request: its number.
        code: of the refusal; `None`: committed.
        message: of the refusal, for people.
    """

    request: int
    code: str | None = None
    message: str = ""


@record
class Answer:
    """Work out the answer to a query and send it as `REPLY`."""

    query: Query


@record
class DropAnswer:
    """Nobody waits for the answer to this query any more."""

    query: QueryId


@record
class TakeReply:
    """The broker has answered a query of this worker."""

    reply: Reply


@record
class UseAttachments:
    """Read attachments there; where that is no directory of this host, ask the broker for them."""

    directory: str


@record
class Exit:
    """Stop every attempt, close the adapter and end the process."""

    code: int
    reason: str = ""


LinkEffect = (
    ConnectLane | OpenAdapter | Resolve | Answer | DropAnswer | TakeReply | UseAttachments | Exit
)
"""What else `worker.WorkerCore` may ask for."""

Effect = CallEffect | LinkEffect
