"""What `trunkline config` shows: resolved values, masked secrets, the schema, the example file."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from trunkline_broker.config import (
    BrokerSection,
    Document,
    RestartSection,
    WorkerSection,
    load,
    places,
)
from trunkline_broker.config_view import advice, as_toml, resolved, schema
from trunkline_protocol.secret import STARS

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = (ROOT / "deploy" / "broker.example.toml").read_text()
KEY = "sk-abcdefghijklmnop"


def settings(tmp_path: Path, text: str, **environ: str) -> Any:
    path = tmp_path / "trunkline.toml"
    path.write_text(text)
    return load(path, {"HOME": str(tmp_path), **environ})


def with_defaults_uncommented() -> dict[str, Any]:
    return tomllib.loads(re.sub(r"(?m)^#(?=[a-z_]+ = )", "", EXAMPLE))


# --- the example ----------------------------------------------------------------------------


def test_the_example_loads_as_it_is_and_with_every_default_written_out(tmp_path: Path) -> None:
    """What stands behind `#` is what holds without it."""
    plain = settings(tmp_path, EXAMPLE)
    whole = settings(tmp_path, re.sub(r"(?m)^#(?=[a-z_]+ = )", "", EXAMPLE))
    assert plain.broker == whole.broker == BrokerSection()
    # TOML has no word for what holds without these.
    unsaid = dict.fromkeys(("concurrency", "memory_limit_mib", "open_files_limit"))
    written = whole.workers["example"].model_copy(update=unsaid)
    assert plain.workers["example"] == written


@pytest.mark.parametrize(
    ("path", "section"),
    [
        (("broker",), BrokerSection),
        (("worker", "example"), WorkerSection),
        (("worker", "example", "restart"), RestartSection),
    ],
)
def test_the_example_has_every_key(path: tuple[str, ...], section: type[Any]) -> None:
    """A key that is added to the models and not to the example is found here."""
    table: Any = with_defaults_uncommented()
    for name in path:
        table = table[name]
    assert set(table) == set(section.model_fields)


def test_every_key_of_the_example_is_explained() -> None:
    """The line above a key is a comment, or the key before it."""
    lines = EXAMPLE.splitlines()
    for before, line in itertools.pairwise(lines):
        if re.match(r"#?[a-z_]+ = ", line):
            assert before.startswith("# "), line


# --- masking --------------------------------------------------------------------------------


def test_a_user_that_workers_can_not_run_as_is_said(tmp_path: Path) -> None:
    """It is unknown here, or only root could start them; a broker would not start with it."""
    text = '[worker.a]\nadapter = "scripted"\nuser = "no-such-user"\n'
    (note,) = advice(settings(tmp_path, text))
    assert note.startswith("worker.a: user = 'no-such-user': ")
    assert "no such user" in note or "runs as root" in note


def test_nothing_that_is_shown_holds_a_secret(tmp_path: Path) -> None:
    """Neither the TOML nor the JSON of a configuration with a key in it, nor of the environment."""
    text = f'[worker.a]\nadapter = "scripted"\nenv = ["A_KEY"]\noptions = {{ apiKey = "{KEY}" }}\n'
    found = settings(tmp_path, text, A_KEY=KEY + "2")
    assert KEY not in as_toml(found) + repr(resolved(found)) + repr(found)
    assert STARS in as_toml(found)


# --- resolved -------------------------------------------------------------------------------


def test_what_is_shown_is_toml_that_means_the_same(tmp_path: Path) -> None:
    """Names and texts with odd characters included."""
    text = '[worker.a-b]\nadapter = "scripted"\noptions = { "x y" = "ä\\"\\n", n = [1, {z = 2}] }\n'
    found = settings(tmp_path, text)
    shown = tomllib.loads(as_toml(found))
    assert shown["worker"]["a-b"]["options"] == {"x y": 'ä"\n', "n": [1, {"z": 2}]}
    again = settings(tmp_path, as_toml(found))
    assert again.broker == found.broker
    assert again.workers == found.workers


def test_the_origin_of_a_value_is_said(tmp_path: Path) -> None:
    """From the file, from the environment, or the default."""
    text = '[broker]\ndrain_s = 3.0\n[worker.a]\nadapter = "scripted"\n'
    environ = {
        "TRUNKLINE_BROKER_LOG_LEVEL": "debug",
        "TRUNKLINE_WORKER_A_QUEUE_SIZE": "5",
        "TRUNKLINE_WORKER_A_OPTIONS": '{ apiKey = "zebra" }',
    }
    text += "restart = { intensity = 2 }\n"
    shown = as_toml(settings(tmp_path, text, **environ))
    assert "\ndrain_s = 3.0\n" in shown
    assert '\nlog_level = "debug"  # from TRUNKLINE_BROKER_LOG_LEVEL\n' in shown
    assert '\nlog_format = "pretty"  # default\n' in shown
    assert "\nreplicas = 1  # default\n" in shown
    assert "\nqueue_size = 5  # from TRUNKLINE_WORKER_A_QUEUE_SIZE\n" in shown
    (key,) = [line for line in shown.splitlines() if line.startswith("apiKey = ")]
    assert key.endswith('*"  # from TRUNKLINE_WORKER_A_OPTIONS')
    assert "zebra" not in shown
    assert "\nintensity = 2\n" in shown
    assert "\nperiod_s = 60.0  # default\n" in shown


# --- schema ---------------------------------------------------------------------------------


def test_the_schema_is_one_and_judges_as_the_models_do() -> None:
    """It takes the example and refuses a mistyped key and a wrong type."""
    described = schema()
    jsonschema.Draft202012Validator.check_schema(described)
    validator = jsonschema.Draft202012Validator(described)
    assert not list(validator.iter_errors(with_defaults_uncommented()))
    for wrong in (
        {"broker": {"drains": 1}},
        {"worker": {"a": {}}},
        {"worker": {"a": {"adapter": "scripted", "replicas": "two"}}},
        {"worker": {"a b": {"adapter": "scripted"}}},
    ):
        assert list(validator.iter_errors(wrong)), wrong


def test_every_key_of_the_schema_is_described() -> None:
    definitions = schema()["$defs"]
    for name in ("BrokerSection", "WorkerSection", "RestartSection", "ClientSection"):
        for key, field in definitions[name]["properties"].items():
            assert len(field["description"]) > 10, f"{name}.{key}"
    assert Document.model_fields.keys() == {"broker", "worker", "client"}


# --- advice ---------------------------------------------------------------------------------


def test_what_will_hardly_work_is_said(tmp_path: Path) -> None:
    text = """
    [worker.a]
    adapter = "no/such.py:Class"
    env = ["MISSING_KEY"]
    env_file = "none.env"
    python = "./nowhere"
    """
    mistyped = {"TRUNKLINE_BROKER_DRAINS": "1", "TRUNKLINE_WORKER_A_REPLICA": "2"}
    said = list(advice(settings(tmp_path, text, **mistyped)))
    assert said == [
        "TRUNKLINE_BROKER_DRAINS is set and names no key of [broker]"
        " (did you mean TRUNKLINE_BROKER_DRAIN_S?)",
        "TRUNKLINE_WORKER_A_REPLICA is set and names no key of a [worker.NAME]"
        " (did you mean TRUNKLINE_WORKER_A_REPLICAS?)",
        "worker.a: variable MISSING_KEY is not set here",
        f"worker.a: env_file {tmp_path}/none.env does not exist",
        f"worker.a: python {tmp_path}/nowhere can't be run",
        f"worker.a: adapter file {tmp_path}/no/such.py does not exist",
    ]
    assert list(advice(settings(tmp_path, '[worker.a]\nadapter = "scripted"\n'))) == []
    debug = '[worker.a]\nadapter = "scripted"\ndebug_prompts = true\n'
    assert "prompts and answers are written" in next(iter(advice(settings(tmp_path, debug))))
    assert "nothing to call" in next(iter(advice(settings(tmp_path, ""))))


def test_places_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = {"HOME": "/h"}
    assert places(home) == (
        tmp_path / "trunkline.toml",
        Path("/h/.config/trunkline/trunkline.toml"),
    )
    assert places({**home, "XDG_CONFIG_HOME": "/c"})[1] == Path("/c/trunkline/trunkline.toml")


def test_addresses_are_judged(tmp_path: Path) -> None:
    """A wrong address of the metrics or the collector is a mistake of the file."""
    from trunkline_broker.config_errors import ConfigError

    for good in ('metrics = "127.0.0.1:9464"', 'metrics = "[::1]:1"', 'traces = "http://h:4318"'):
        settings(tmp_path, f"[broker]\n{good}\n")
    for bad in ('metrics = "9464"', 'metrics = "h:x"', 'traces = "h:1"', 'traces = "http://u@h"'):
        with pytest.raises(ConfigError, match="line 2"):
            settings(tmp_path, f"[broker]\n{bad}\n")
