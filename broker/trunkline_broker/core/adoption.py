"""After a restart: what the workers of an older broker hold, and until when it is waited for.

The broker settles until every worker of the hint file has said what it holds or is dead, at most
`settle_s` (SPEC 5.8). The same comparison is made when a worker's connection to this broker was
re-made, since frames may have been lost with it.
"""

from __future__ import annotations

from trunkline_protocol.frames import Cancel, HeldCall, Register
from trunkline_protocol.ids import CallId

from trunkline_broker.core.calls import Call, CallState
from trunkline_broker.core.effects import Adopt
from trunkline_broker.core.endings import Endings
from trunkline_broker.core.forwarding import Forwarding
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.openings import Openings
from trunkline_broker.core.retry import ABORTED_FINISH
from trunkline_broker.core.specs import AliveWorker
from trunkline_broker.core.staffing import Staffing, manual_spec
from trunkline_broker.core.workers import Worker, WorkerState
