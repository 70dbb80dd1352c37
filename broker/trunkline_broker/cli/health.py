"""`python -m trunkline_broker.cli.health`: whether a broker answers; for probes of containers.

It says hello on the clients' socket and leaves: no status document is made, and no route, worker or
call is looked at. A broker that refuses the greeting (too many clients) is alive too.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import trunkline

TIMEOUT_S: Final = 4.0
EXIT_ALIVE: Final = 0
EXIT_SILENT: Final = 1


async def is_alive() -> bool:
    """Return whether the broker of this environment answers a greeting within four seconds."""
    try:
        async with trunkline.connect(name="health", timeout_s=TIMEOUT_S):
            return True
    except trunkline.BrokerRefusedError:
        return True
    except trunkline.BrokerUnreachableError:
        return False


if __name__ == "__main__":
    sys.exit(EXIT_ALIVE if asyncio.run(is_alive()) else EXIT_SILENT)
