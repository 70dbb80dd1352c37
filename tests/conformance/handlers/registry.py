"""`registry`: every script through a real broker, twice, by workers that obey commands.

Once all handles are in one worker, once each handle has a worker of its own. One broker and its
workers serve the whole file; between scripts they let go of everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import trunkline

from tests.support.control import CommandError, Control, controlled_broker

_ALL_IN_ONE: Final = "together"
_ALONE: Final = tuple(f"alone{number}" for number in range(8))

Script = Sequence[Mapping[str, Any]]


class RegistryScripts:
    """Runs scripts; what the application sees is asked of an application's runtime."""

    def __init__(self, control: Control, llm: trunkline.SyncRuntime) -> None:
        self._control = control
        self._llm = llm
        self._events = 0
        llm.on_adapters_updated(self._count)

    def _count(self) -> None:
        self._events += 1

    def run(self, script: Script) -> object:
        """Return what the steps come to; both ways, if they differ."""
        together = self._steps(script, lambda _: _ALL_IN_ONE)
        handles = dict.fromkeys(step["handle"] for step in script)
        homes = {each: _ALONE[number % len(_ALONE)] for number, each in enumerate(handles)}
        alone = self._steps(script, homes.__getitem__)
        return together if together == alone else {"together": together, "alone": alone}

    def _steps(self, script: Script, home: Callable[[str], str]) -> list[dict[str, object]]:
        before = self._events
        try:
            return [self._step(step, home(step["handle"]), before) for step in script]
        finally:
            for pool in {home(step["handle"]) for step in script}:
                self._control.ask(pool, "reset")
            assert self._llm.models() == []

    def _step(self, step: Mapping[str, Any], pool: str, before: int) -> dict[str, object]:
        try:
            self._control.ask(pool, **step)
            result: dict[str, object] = {"ok": True}
        except CommandError as exc:
            result = {"error": {"code": exc.code}}
        # Asked behind the announcement on the same connection, so that has arrived as well.
        directory = self._llm.list_configurable_providers()
        return {
            "result": result,
            "providers": self._llm.models(),
            "directory": [f"{entry.provider}/{entry.display_name}" for entry in directory],
            "events": self._events - before,
        }


@contextlib.contextmanager
def registry() -> Iterator[Callable[[Any], object]]:
    """Yield the handler of this file, with its broker."""
    with (
        controlled_broker((_ALL_IN_ONE, *_ALONE)) as (broker, control),
        trunkline.connect_sync(broker.endpoint) as llm,
    ):
        yield RegistryScripts(control, llm).run


OPENERS = {"registry": registry}
