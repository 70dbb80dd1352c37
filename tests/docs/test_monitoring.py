"""Board, alert rules and runbook: they name metrics that exist, sections that are there, and
commands that run.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from trunkline_broker.core.effects import NoteLoad
from trunkline_broker.measured.metrics import Snapshot
from trunkline_broker.measured.tallies import Tallies
from trunkline_protocol.ids import Epoch, Generation, PoolName
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.load import LoadMeter

from tests.integration.test_cli import trunkline, variables
from tests.support.attempts import an_attempt
from tests.support.broker import BrokerProcess, running_broker
from tests.support.broker_rig import Rig, status_of

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8")
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
BOARD = json.loads((DEPLOY / "grafana" / "trunkline.json").read_text(encoding="utf-8"))
WITH_MEASURES = """
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
"""


def whole_page() -> str:
    """Return a page on which every metric has a sample."""
    tallies = Tallies()
    tallies.on_attempt(an_attempt())
    tallies.on_attempt(an_attempt(outcome="retried", kind="error", code="SERVER"))
    meter = LoadMeter()
    call = meter.open("p", 0.0)
    call.on_chunks(1, 1.0)
    call.on_chunks(1, 2.0)
    load = {"rss": 1, "fds": 1, "cpuS": 1.0, "routes": meter.to_dict()}
    load |= {"queues": WorkerCalls().queues(), "counters": {"frames_resent": 1}}
    tallies.on_load(NoteLoad(PoolName("p"), 0, Generation(Epoch(1), 1), load))
    rig = Rig()
    worker = rig.a_worker()
    worker.beat(load=load)
    status = status_of(rig)
    status |= {"uptimeS": 1.0, "refused": {"BAD_FRAME": 1}}
    status |= {"measures": {"ledger": {"lost": 0, "waiting": 0}, "traces": {"lost": 0}}}
    return Snapshot(tallies, status).page("").body.decode()


SAMPLES = {
    sample.name: set(sample.labels)
    for family in text_string_to_metric_families(whole_page())
    for sample in family.samples
} | {"up": {"job", "instance"}}
# What Prometheus adds to every sample.
TARGET = {"job", "instance"}
WORDS = {
    "sum", "by", "rate", "increase", "clamp_min", "clamp_max", "histogram_quantile", "count", "or",
    "vector", "deriv", "max",
}  # fmt: skip


def expressions() -> Iterator[tuple[str, str]]:
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("name", "text"), list(expressions()))
def test_every_expression_names_metrics_and_labels_that_exist(name: str, text: str) -> None:
    """A typing mistake in a rule is an alert that never comes."""
    bare = re.sub(r"\$__rate_interval|\[[^\]]*\]", "", text)
    labels = set(re.findall(r"(\w+)\s*=~?\"", bare))
    for group in re.findall(r"by \(([^)]*)\)", bare):
        labels |= {label.strip() for label in group.split(",")}
    bare = re.sub(r"\{[^}]*\}|by \([^)]*\)|\"[^\"]*\"", "", bare)
    names = set(re.findall(r"[a-z_][a-z0-9_]*", bare)) - WORDS - {"e9"}
    assert names, name
    for metric in names:
        assert metric in SAMPLES, f"{name}: no metric {metric}"
    allowed = set.union(TARGET, *(SAMPLES[metric] for metric in names))
    assert labels <= allowed, f"{name}: {labels - allowed}"
    assert text.count("(") == text.count(")")


def test_the_guide_lists_every_metric_as_the_page_has_it() -> None:
    """Name, labels and meaning, in the order of the page."""
    rows = []
    for family in text_string_to_metric_families(whole_page()):
        if family.name.startswith("trunkline_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = sorted({label for each in family.samples for label in each.labels} - {"le"})
            rows.append(f"| `{name}` | {', '.join(labels)} | {family.documentation} |")
    guide = (DEPLOY.parent / "docs" / "operating.md").read_text(encoding="utf-8")
    listed = [line for line in guide.splitlines() if line.startswith("| `trunkline_")]
    assert listed == rows


def test_prometheus_itself_takes_rules_board_and_page(tmp_path: Path) -> None:
    """Its own checker reads every expression, and finds nothing to say of the metrics' names."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    board = [
        {"record": f"board:{at}", "expr": text.replace("$__rate_interval", "5m")}
        for at, (_, text) in enumerate(expressions())
    ]
    path = tmp_path / "board.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": board}]}))
    for arguments, text in (
        (["check", "rules", str(DEPLOY / "prometheus" / "alerts.yml"), str(path)], ""),
        (["check", "metrics"], whole_page()),
    ):
        done = subprocess.run(  # noqa: S603  # a fixed command line
            [promtool, *arguments], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stderr


def anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def test_every_alert_leads_to_its_section_of_the_runbook() -> None:
    """And every alert that the runbook names exists."""
    sections = {anchor(title) for title in re.findall(r"(?m)^## (.+)$", RUNBOOK)}
    for alert in ALERTS:
        link = alert["annotations"]["runbook_url"]
        assert link.partition("RUNBOOK.md#")[2] in sections, alert["alert"]
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in {"warning", "critical"}
        labels = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
        aggregated = re.search(r"by \(([^)]*)\)", alert["expr"])
        if aggregated is not None:
            assert labels <= {label.strip() for label in aggregated[1].split(",")}
    named = set(re.findall(r"\*(Trunkline\w+)\*", RUNBOOK))
    assert named == {alert["alert"] for alert in ALERTS}


def test_the_board_is_whole() -> None:
    """Ids are unique, panels do not overlap, every one has a query and the data source."""
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(WITH_MEASURES) as running:
        running.until_ready("scripted")
        yield running


def runbook_commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", RUNBOOK, re.DOTALL)
    return sorted({line for block in blocks for line in block.splitlines() if line})


@pytest.mark.integration
@pytest.mark.parametrize("command", runbook_commands())
def test_every_check_of_the_runbook_runs(broker: BrokerProcess, command: str) -> None:
    """They are of those that change nothing, so all of them run against one broker."""
    program, *arguments = shlex.split(command.replace("NAME", "scripted"))
    assert program == "trunkline"
    environ = variables(broker, TRUNKLINE_CONFIG=str(broker.config))
    done = trunkline(*arguments, environ=environ)
    if arguments == ["logs", "-n", "50"] or arguments == ["logs", "-n", "200"]:
        assert "there is: scripted" in done.stderr  # this broker was not started with --detach
        return
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_commands_in_the_text_exist() -> None:
    """Every `trunkline X` that the runbook mentions has a help text."""
    for name in re.findall(r"`trunkline ([a-z]+)", RUNBOOK):
        assert name in commands(), name


@pytest.mark.integration
@pytest.mark.parametrize(
    ("page", "heading"), [("README.md", "## The command"), ("docs/operating.md", "## Commands")]
)
def test_the_tables_name_every_command(page: str, heading: str) -> None:
    """And none that does not exist."""
    text = (DEPLOY.parent / page).read_text(encoding="utf-8")
    section = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    cells = " ".join(row.split("|")[1] for row in rows)
    named = set(re.findall(r"`(?:trunkline )?([a-z]+)", cells))
    assert named - {"show", "schema"} == commands()


@functools.cache
def commands() -> set[str]:
    """Return the commands that the help lists."""
    help_text = trunkline("--help", environ=variables()).stdout
    return set(re.findall(r"(?m)^  ([a-z]+)  ", help_text.partition("Commands:")[2]))


def test_the_scrape_configuration_is_yaml() -> None:
    text = (DEPLOY / "prometheus" / "scrape.yml").read_text(encoding="utf-8")
    found: Any = yaml.safe_load(text)
    assert [job["job_name"] for job in found["scrape_configs"]] == ["trunkline"]
