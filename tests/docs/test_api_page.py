"""Every example of the API page runs, in the order of the page, against the broker it describes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trunkline

from tests.support.broker import BrokerProcess, running_broker
from tests.support.images import a_png

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def blocks(language: str) -> list[str]:
    """Return the examples in one language, whole lines after the three backticks included."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield the broker that the page describes."""
    (config,) = blocks("toml")
    with running_broker(config) as running:
        for pool in ("scripted", "other"):
            running.until_ready(pool)
        yield running


@pytest.mark.integration
async def test_the_examples_run(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of one example are there in the next, as a reader would have them."""
    monkeypatch.setenv("TRUNKLINE_ENDPOINT", broker.endpoint)
    async with trunkline.connect(name="docs") as llm:
        names: dict[str, Any] = {"trunkline": trunkline, "llm": llm, "png": a_png(2, 2)}
        for number, source in enumerate(blocks("python")):
            code = compile(source, f"docs/api.md, example {number}", "exec", flags=_FLAGS)
            running = eval(code, names)  # noqa: S307  our own page
            if inspect.isawaitable(running):
                await running
            names["llm"] = llm  # an example may have left one of its own behind
    out = capsys.readouterr().out
    assert "['other', 'scripted']" in out
    assert "retry-started 10" in out
    assert "large: 20 chunks" in out


@pytest.mark.integration
def test_the_blocking_example_runs(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRUNKLINE_ENDPOINT", broker.endpoint)
    (source,) = blocks("python sync")
    exec(compile(source, "docs/api.md", "exec"), {"trunkline": trunkline})  # noqa: S102  our own
    assert capsys.readouterr().out.rstrip().endswith("512")


def test_the_page_names_every_method_of_the_runtime() -> None:
    """What an application may call is on the page."""
    methods = [
        name
        for name, value in inspect.getmembers(trunkline.LlmRuntime)
        if not name.startswith("_") and callable(value)
    ]
    plumbing = {"aclose", "query", "status"}
    assert [name for name in methods if name not in PAGE and name not in plumbing] == []
