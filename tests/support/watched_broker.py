"""A broker whose documents are asked for again and again while a stream is read from it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import trunkline
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as read_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as read_text
from trunkline_broker.cli.top_view import Window
from trunkline_broker.measured.ledger import read_usage
from trunkline_protocol.printable import STEERING

from tests.support.broker import BrokerProcess
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until

WAIT_S: Final = 20.0
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
MEASURED: Final = """\
[broker]
metrics = "127.0.0.1:0"
log_format = "json"
log_level = "debug"
log_calls = "all"
"""
"""Everything on that measures; a pool named `scripted` must follow."""


class Stream:
    """A client that does nothing wrong and reads a stream all the time."""

    def __init__(self, endpoint: str) -> None:
        self.chunks = 0
        self.trouble = ""
        self._endpoint = endpoint
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._read())
        except Exception as exc:  # noqa: BLE001  it is told where the test looks
            self.trouble = repr(exc)

    async def _read(self) -> None:
        script = json.dumps({"script": {"chunks": 1_000_000, "pace_ms": 10}})
        async with (
            trunkline.connect(self._endpoint, name="honest") as llm,
            llm.stream(provider="scripted", model="m", messages=script) as stream,
        ):
            async for chunk in stream:
                self.chunks += 1
                if isinstance(chunk, trunkline.Finish):
                    self.trouble = f"it ended: {chunk}"
                if self._is_over.is_set() or self.trouble:
                    return

    def goes_on(self) -> None:
        """Wait for more of it."""
        before = self.chunks
        until(
            lambda: self.trouble or self.chunks > before + 1,
            WAIT_S,
            f"the honest stream stands still at {before}",
        )
        assert not self.trouble

    def end(self) -> None:
        """Stop reading."""
        self._is_over.set()
        self._thread.join(WAIT_S * SLOW)
        assert not self.trouble


class Watch:
    """Asks for every document, again and again."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._client = RawClient(broker.endpoint)
        self._client.hello()
        self._window = Window()
        self._stream = Stream(broker.endpoint)
        self._stream.goes_on()

    def look(self, after: str) -> None:
        """Look at everything.

        Raises:
            AssertionError: the broker is dead, something does not answer or can't be read.
        """
        self.lives()
        status = self._client.status()
        json.dumps(status, allow_nan=False, ensure_ascii=False).encode()
        for text in _texts(status):
            assert not STEERING.search(text), f"after {after}: {text!r}"
        self._window.add(status, time.monotonic())
        metrics = status["measures"]["metrics"].split("/")[2]
        assert list(read_text(_page(metrics, "")))
        assert list(read_openmetrics(_page(metrics, OPENMETRICS)))
        read_usage(Path(status["measures"]["ledger"]["file"]), 0)
        assert not status["measures"]["ledger"]["trouble"]
        assert "edge_failures" not in status["counters"], after
        self._stream.goes_on()

    def lives(self) -> None:
        """Make sure that the broker's process is there."""
        child = self.broker.child
        assert child is not None
        assert child.poll() is None, f"the broker is dead: {_broken(self.broker)}"

    def close(self) -> None:
        """End the honest stream and the questions."""
        self._stream.end()
        self._client.close()


def _broken(broker: BrokerProcess) -> str:
    """Return what a broker wrote when it ended."""
    lines = broker.log_text().splitlines()
    return "\n".join([line for line in lines if "Traceback" in line] or lines[-20:])[-4000:]


def _page(host: str, accept: str) -> str:
    connection = http.client.HTTPConnection(host, timeout=WAIT_S * SLOW)
    try:
        connection.request("GET", "/metrics", headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        body = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == 200, body
    return body


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *_texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
