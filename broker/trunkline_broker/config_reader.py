"""Reads the configuration again for a running broker, on a thread: the loop never waits for a file.

One order after the other. What comes of it is an event; whatever goes wrong is a rejection, with a
text for the operator, and changes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from trunkline_broker.config import Settings, load
from trunkline_broker.config_errors import ConfigError
from trunkline_broker.core.effects import LoadConfig
from trunkline_broker.core.events import ConfigRejected, ConfigReplaced
from trunkline_broker.edge import Edge, in_a_line
from trunkline_broker.users import UserError, Users

Answer = ConfigReplaced | ConfigRejected
_NOTHING_CHANGED: Final = "nothing was changed"


class ConfigReader:
    """Reads until it is closed; must be made with the loop running.

    Args:
        settings: what the broker was started with.
        users: those that workers may run as.
        report: takes the answer to each order, on the loop.
        edge: takes errors that are not the file's.
    """

    def __init__(
        self, settings: Settings, users: Users, report: Callable[[Answer], None], edge: Edge
    ) -> None:
        self._settings = settings
        self._users = users
        self._report = report
        self._edge = edge
        self._loop = asyncio.get_running_loop()
        self._orders: SimpleQueue[LoadConfig | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def read(self, order: LoadConfig) -> None:
        """Have the file read; `ConfigReplaced` or `ConfigRejected` is reported later.

        At once if there is no memory or no place for a thread; the next order tries again.
        """
        try:
            self._start()
        except RuntimeError as exc:
            self._edge.note(exc)
            self._report(ConfigRejected(order.peer, order.query, _no_thread(exc)))
            return
        self._orders.put(order)

    def _start(self) -> None:
        """Start the thread at the first order: most brokers never read again.

        Raises:
            RuntimeError: there is no memory or no place for it.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="configuration", daemon=True)
            thread.start()
            self._thread = thread

    def close(self) -> None:
        """Read nothing more; what is being read is dropped."""
        self._orders.put(None)

    # --- in the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            answer = self._answer(order)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._report, answer)

    def _answer(self, order: LoadConfig) -> Answer:
        try:
            return self._replaced(order)
        except (ConfigError, UserError) as exc:
            return ConfigRejected(order.peer, order.query, str(exc))
        except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
            self._edge.note(exc)
            text = f"the configuration cannot be read: {in_a_line(exc)}; {_NOTHING_CHANGED}"
            return ConfigRejected(order.peer, order.query, text)

    def _replaced(self, order: LoadConfig) -> ConfigReplaced:
        source = Path(order.path) if order.path else self._settings.source
        fresh = load(source, self._settings.environ)
        self._users.check(fresh.pool_specs())
        old, new = self._settings.broker, fresh.broker
        names = type(new).model_fields
        restart = tuple(name for name in names if getattr(old, name) != getattr(new, name))
        return ConfigReplaced(fresh.pool_specs(), order.peer, order.query, fresh.access(), restart)


def _no_thread(exc: RuntimeError) -> str:
    return (
        f"the broker cannot read the configuration: {exc}; {_NOTHING_CHANGED}; free memory, or"
        " raise the limit of processes of this user (ulimit -u), and reload again"
    )
