"""The test's end of `control_worker`: a broker whose workers obey commands."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.timing import SLOW

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 20.0


class CommandError(Exception):
    """The worker's runtime refused.

    Attributes:
        code: of the `LlmError`.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Control:
    """Commands workers; blocking, each answer is awaited.

    Attributes:
        path: of the socket that workers connect to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(64)
        self._server.settimeout(ANSWER_S * SLOW)
        self._workers: dict[str, list[Any]] = {}

    def close(self) -> None:
        for files in self._workers.values():
            for file in files:
                file.close()
        self._server.close()

    def config(self, pools: Sequence[str], more: str = "") -> str:
        """Return a configuration with these pools; `more` is added to each."""
        return "".join(
            f'[worker.{pool}]\nadapter = "tests.support.control_worker:setup"\nproviders = []\n'
            f'env = ["PYTHONPATH"]\n{more}'
            f'[worker.{pool}.options]\ncommands = "{self.path}"\n'
            for pool in pools
        )

    def await_worker(self, pool: str) -> None:
        """Take connections until one more worker of a pool has come."""
        while True:
            connection, _ = self._server.accept()
            connection.settimeout(ANSWER_S * SLOW)
            file = connection.makefile("rwb")
            connection.close()  # the file keeps it
            name = file.readline().strip().decode()
            self._workers.setdefault(name, []).append(file)
            if name == pool:
                return

    def ask(self, pool: str, op: str, *, generation: int = -1, **fields: Any) -> Any:
        """Have a command carried out and return its answer.

        Args:
            pool: which worker.
            op: the command.
            generation: which of the pool's workers, in the order in which they came.
            **fields: of the command.

        Raises:
            CommandError: refused with a code.
        """
        if pool not in self._workers:
            self.await_worker(pool)
        file = self._workers[pool][generation]
        file.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        file.flush()
        answer = json.loads(file.readline())
        if "broken" in answer:
            raise AssertionError(answer["broken"])
        if "error" in answer:
            raise CommandError(answer["error"])
        return answer["ok"]


@contextlib.contextmanager
def controlled_broker(
    pools: Sequence[str], more: str = "", broker: str = ""
) -> Iterator[tuple[BrokerProcess, Control]]:
    """Yield a broker with these pools, all ready, and what commands their workers."""
    with run_directory() as root:
        control = Control(root / "commands")
        try:
            environ = {"PYTHONPATH": str(ROOT)}
            config = broker + control.config(pools, more)
            with broker_in(root, config, {**os.environ, **environ}) as process:
                process.start()
                for pool in pools:
                    process.until_ready(pool)
                yield process, control
        finally:
            control.close()
