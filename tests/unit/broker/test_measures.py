"""Where what is told of attempts goes, and what is said where it can't go."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trunkline_broker.config import Settings, load
from trunkline_broker.core.effects import NoteLoad
from trunkline_broker.measured.ledger import read_usage
from trunkline_broker.measured.line_budget import LINES_PER_S
from trunkline_broker.measured.measures import Measures, attempt_fields
from trunkline_broker.measured.tallies import MAX_WORKERS
from trunkline_protocol.ids import Epoch, Generation, PoolName

from tests.support.attempts import an_attempt
from tests.support.edges import KnownEdges

Line = tuple[str, str, Mapping[str, Any]]


def settings(tmp_path: Path, **broker: str) -> Settings:
    """Return a configuration with these keys of [broker], each as TOML."""
    path = tmp_path / "trunkline.toml"
    path.write_text("[broker]\n" + "".join(f"{key} = {text}\n" for key, text in broker.items()))
    return load(path, {"HOME": str(tmp_path), "TRUNKLINE_RUN_DIR": str(tmp_path)})


def measures(tmp_path: Path, **broker: str) -> tuple[Measures, list[Line]]:
    lines: list[Line] = []
    made = Measures(settings(tmp_path, **broker), lambda *line: lines.append(line), KnownEdges())
    return made, lines


def a_load(number: int = 1, **load: Any) -> NoteLoad:
    return NoteLoad(PoolName("w"), 0, Generation(Epoch(1), number), load)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Have an import of a package fail, as where its extra is not installed."""
    real = builtins.__import__

    def importing(name: str, *rest: Any) -> Any:
        if name.startswith(package):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)


def test_a_storm_of_failures_does_not_fill_the_log(tmp_path: Path) -> None:
    """All are counted; what is held back is said with the next line."""
    made, lines = measures(tmp_path)
    for _ in range(3 * LINES_PER_S):
        made.on_attempt(an_attempt(kind="error", outcome="failed"))
    made.close()
    assert LINES_PER_S <= len(lines) <= 2 * LINES_PER_S
    assert made.tallies.attempts["p", "m", "failed"] == 3 * LINES_PER_S


def test_an_attempt_reaches_tallies_and_ledger(tmp_path: Path) -> None:
    made, lines = measures(tmp_path)
    made.on_attempt(an_attempt())
    made.close()
    assert made.tallies.attempts["p", "m", "ended"] == 1
    (row,) = read_usage(tmp_path / "usage.sqlite", 0)
    assert (row["calls"], row["input"]) == (1, 10)
    assert lines == []  # one that ended well has no line of its own


@pytest.mark.parametrize(
    ("log_calls", "fields", "level"),
    [
        ("failed", {}, None),
        ("all", {}, "info"),
        ("all", {"outcome": "cancelled", "kind": "aborted"}, "info"),
        ("failed", {"outcome": "retried", "kind": "error", "code": "SERVER"}, "warning"),
        ("failed", {"outcome": "failed", "kind": "error", "code": "AUTH"}, "warning"),
        ("failed", {"outcome": "cancelled", "kind": "aborted"}, None),
    ],
)
def test_which_attempts_have_a_line(
    tmp_path: Path, log_calls: str, fields: dict[str, str], level: str | None
) -> None:
    made, lines = measures(tmp_path, usage="false", log_calls=f'"{log_calls}"')
    made.on_attempt(an_attempt(**fields))
    assert [(line[0], line[1]) for line in lines] == ([(level, "attempt_over")] if level else [])


def test_a_line_has_names_and_numbers_and_no_words_of_the_provider() -> None:
    """The broker's own words are told, a provider's are not: they may quote the request."""
    said = attempt_fields(an_attempt(outcome="retried", kind="error", code="AUTH", message="zebra"))
    assert "zebra" not in str(said)
    assert (said["request_id"], said["ttft_ms"], said["ms"]) == ("req-1", 100.0, 2000.0)
    assert (said["worker"], said["tokens_in"], said["wait_ms"]) == ("w/0", 10, 0.0)
    own = attempt_fields(an_attempt(outcome="failed", kind="error", message="queue", pool="",
                                    figures=None, usage=None, lasted_s=None))  # fmt: skip
    assert own["why"] == "queue"
    assert own.keys().isdisjoint({"worker", "ms", "request_id", "tokens_in", "trace"})


def test_a_line_names_the_trace_of_the_agent() -> None:
    """Without one it has the call's own id, which is in the line already."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    assert (
        attempt_fields(an_attempt(traceparent=f"00-{trace}-b7ad6b7169203331-01"))["trace"] == trace
    )
    assert "trace" not in attempt_fields(an_attempt(traceparent="nonsense"))


def test_a_failure_is_in_the_figures_until_the_provider_answers(tmp_path: Path) -> None:
    made, _ = measures(tmp_path, usage="false")
    made.on_attempt(an_attempt(outcome="failed", kind="error", code="AUTH"))
    assert made.figures() == {"lastFailures": {"p": "AUTH"}}
    made.on_attempt(an_attempt())
    assert made.figures() == {}


def test_nothing_is_kept_where_nothing_is_wanted(tmp_path: Path) -> None:
    made, _ = measures(tmp_path, usage="false")
    made.on_attempt(an_attempt())
    made.close()
    assert (made.figures(), made.queues()) == ({}, [])
    assert not (tmp_path / "usage.sqlite").exists()


def test_the_ledger_is_in_figures_and_queues(tmp_path: Path) -> None:
    made, _ = measures(tmp_path)
    ledger: Any = made.figures()["ledger"]
    assert ledger["file"] == str(tmp_path / "usage.sqlite")
    assert [queue.name for queue in made.queues()] == ["usage ledger"]
    made.close()


def test_a_worker_that_writes_prompts_is_said_once_per_process(tmp_path: Path) -> None:
    made, lines = measures(tmp_path, usage="false")
    for _ in range(3):
        made.on_load(a_load(debugPrompts=True))
        made.on_load(a_load(2))
        made.on_load(a_load(3, debugPrompts="yes"))  # no worker of ours says so
    assert [(line[0], line[1]) for line in lines] == [
        ("warning", "prompts_and_answers_are_written")
    ]
    for number in range(10, MAX_WORKERS + 20):  # remembered within a bound
        made.on_load(a_load(number, debugPrompts=True))
    made.on_load(a_load(debugPrompts=True))
    assert len(lines) == 1 + MAX_WORKERS + 10 + 1


async def test_without_its_package_the_page_is_missed_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, lines = measures(tmp_path, usage="false", metrics='"127.0.0.1:0"')
    monkeypatch.delitem(
        __import__("sys").modules, "trunkline_broker.measured.metrics", raising=False
    )
    without(monkeypatch, "prometheus_client")
    await made.open(dict)
    unavailable: Any = made.figures()["unavailable"]
    assert "trunkline[metrics]" in unavailable["metrics"]
    assert [(line[0], line[1]) for line in lines] == [("error", "metrics_unavailable")]
    made.close()


@pytest.mark.parametrize("address", ["127.0.0.256:1", "no.such.host.invalid:1"])
async def test_an_address_that_is_none_costs_the_page_alone(tmp_path: Path, address: str) -> None:
    made, lines = measures(tmp_path, usage="false", metrics=f'"{address}"')
    await made.open(dict)
    assert lines[0][1] == "metrics_unavailable"
    unavailable: Any = made.figures()["unavailable"]
    assert unavailable["metrics"].startswith(address)


def test_without_its_package_spans_are_missed_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(__import__("sys").modules, "trunkline_broker.measured.spans", raising=False)
    without(monkeypatch, "opentelemetry")
    made, lines = measures(tmp_path, usage="false", traces='"http://127.0.0.1:1"')
    made.on_attempt(an_attempt())
    assert [(line[0], line[1]) for line in lines] == [("error", "traces_unavailable")]
    unavailable: Any = made.figures()["unavailable"]
    assert "trunkline[traces]" in unavailable["traces"]
