"""The broker of a chaos run: the real one, its lanes and its workers' control behind proxies.

`python -m tests.chaos.broker --config FILE`; `CHAOS_PROXIES` is a JSON map from the names of the
proxies to their endpoints. What it tells clients and workers is all that differs.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Final

from trunkline_broker import __main__ as program
from trunkline_broker.config import Settings
from trunkline_broker.core.effects import Spawn
from trunkline_broker.core.specs import BrokerSpec
from trunkline_broker.door import Door
from trunkline_broker.users import WorkerUser
from trunkline_broker.worker_start import WorkerStart

from tests.chaos import inside
from tests.chaos.breaks import break_broker

PROXIES: Final[dict[str, str]] = json.loads(os.environ["CHAOS_PROXIES"])
_broker_spec = Settings.broker_spec
_boot_document = WorkerStart._boot_document


def _proxied_spec(self: Settings) -> BrokerSpec:
    lane, workers_lane = PROXIES["lane"], PROXIES["workers-lane"]
    return replace(_broker_spec(self), lane=lane, workers_lane=workers_lane)


def _proxied_lanes(self: Door, spec: BrokerSpec, inside: str, outside: str) -> BrokerSpec:
    del self, inside, outside
    lane, workers_lane = PROXIES["lane"], PROXIES["workers-lane"]
    return replace(spec, remote_lane=lane, remote_workers_lane=workers_lane)


def _proxied_boot(self: WorkerStart, order: Spawn, user: WorkerUser | None) -> dict[str, object]:
    return _boot_document(self, order, user) | {"control": PROXIES["workers-control"]}


if __name__ == "__main__":
    Settings.broker_spec = _proxied_spec
    Door.with_lanes = _proxied_lanes
    WorkerStart._boot_document = _proxied_boot
    break_broker()
    inside.install()
    sys.exit(program.main())
