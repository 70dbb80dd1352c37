"""The broker of a chaos run: the real one, its lanes and its workers' control behind proxies.

`python -m tests.chaos.broker --config FILE`; `CHAOS_PROXIES` names the directory of the proxies'
sockets. What it tells clients and workers is all that differs.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from trunkline_broker import __main__ as program
from trunkline_broker.config import Settings
from trunkline_broker.core.effects import Spawn
from trunkline_broker.core.specs import BrokerSpec
from trunkline_broker.processes import Processes

from tests.chaos.breaks import break_broker

PROXIES = Path(os.environ["CHAOS_PROXIES"])
_broker_spec = Settings.broker_spec
_boot_document = Processes._boot_document


def _proxied_spec(self: Settings) -> BrokerSpec:
    lane, workers_lane = f"ipc://{PROXIES / 'lane'}", f"ipc://{PROXIES / 'workers-lane'}"
    return replace(_broker_spec(self), lane=lane, workers_lane=workers_lane)


def _proxied_boot(self: Processes, order: Spawn, *more: Any) -> dict[str, object]:
    return _boot_document(self, order, *more) | {"control": f"ipc://{PROXIES / 'workers-control'}"}


if __name__ == "__main__":
    Settings.broker_spec = _proxied_spec
    Processes._boot_document = _proxied_boot
    break_broker()
    sys.exit(program.main())
