"""What `trunkline doctor` makes of a status document and of an adapter that does not load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trunkline_broker.cli import findings
from trunkline_broker.cli.findings import (
    NOTE,
    OK,
    WRONG,
    broker,
    configuration,
    load_fix,
    run_directory,
    worker,
)
from trunkline_broker.config import Settings, load
from trunkline_broker.core.specs import PoolSpec
from trunkline_protocol.ids import PoolName

TWO = '[worker.a]\nadapter = "scripted"\n[worker.b]\nadapter = "nosuch"\ndebug_prompts = true\n'
LAST = "[trunkline] adapter nosuch: no adapter 'nosuch'"


def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "trunkline.toml"
    path.write_text(TWO)
    return load(path, {"HOME": str(tmp_path), "PATH": "", "TRUNKLINE_RUN_DIR": str(tmp_path)})


def a_slot(**fields: Any) -> dict[str, Any]:
    whole = {
        "slot": 0,
        "state": "serving",
        "reason": "",
        "lastExit": "",
        "output": [],
        "restarts": 0,
    }
    return whole | fields


def a_document(*slots: dict[str, Any], **fields: Any) -> dict[str, Any]:
    pool = {"name": "a", "state": slots[0]["state"] if slots else "empty", "slots": list(slots)}
    return {"pid": 7, "pools": [pool], **fields}


def test_no_broker_is_no_mistake(tmp_path: Path) -> None:
    (only,) = broker(settings(tmp_path), None)
    assert (only.state, only.fix) == (NOTE, "trunkline up --detach")


def test_a_worker_that_is_configured_and_not_there_needs_a_reload(tmp_path: Path) -> None:
    first, second = broker(settings(tmp_path), a_document(a_slot()))
    assert first.state == OK
    assert (second.state, second.fix) == (NOTE, "trunkline reload")


def test_a_pool_that_is_down_is_told_in_one_line(tmp_path: Path) -> None:
    """Its reason has the last line of its output in it already."""
    reason = f"worker 'a' ended more than 5 times in 60 s; the last time: status 2: {LAST}"
    slot = a_slot(state="down", reason=reason, lastExit="status 2", output=["x", LAST])
    (found,) = [f for f in broker(settings(tmp_path), a_document(slot)) if f.state == WRONG]
    assert found.text == f"pool a is down: {reason}"
    assert found.fix == "put right what it says, then trunkline swap a"


def test_a_pool_that_serves_again_tells_of_what_died(tmp_path: Path) -> None:
    slot = a_slot(restarts=2, lastExit="status 7")
    (_, found, _) = broker(settings(tmp_path), a_document(slot))
    assert found.text == "pool a serves, and was restarted; the last time: status 7"
    assert (found.state, found.fix) == (NOTE, "trunkline logs a --previous")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings(tmp_path)
    assert "MiB left" not in "".join(f.text for f in run_directory(made))
    monkeypatch.setattr(findings, "MIN_FREE_MIB", 10**9)
    first = next(run_directory(made))
    assert (first.state, "MiB left" in first.text) == (WRONG, True)


def test_a_pool_that_starts_is_only_noted(tmp_path: Path) -> None:
    states = [f.state for f in broker(settings(tmp_path), a_document(a_slot(state="starting")))]
    assert states == [OK, NOTE, NOTE]


def test_what_status_says_is_wrong_is_wrong_here(tmp_path: Path) -> None:
    """What is over is only noted."""
    measures = {"ledger": {"file": "/u", "trouble": "full", "waiting": 1, "lost": 2}}
    found = list(broker(settings(tmp_path), a_document(a_slot(), measures=measures)))
    assert [f.state for f in found] == [OK, WRONG, NOTE, NOTE]
    assert all(f.fix for f in found[1:])


def test_the_debug_switch_is_noted(tmp_path: Path) -> None:
    made = settings(tmp_path)
    (spec,) = [spec for spec in made.pool_specs() if spec.name == "b"]
    found = next(f for f in worker(spec, made) if "debug_prompts" in f.text)
    assert (found.state, "[worker.b]" in found.fix) == (NOTE, True)


def test_the_fix_of_an_adapter_follows_its_mistake() -> None:
    plain = PoolSpec(PoolName("p"), "x")
    assert load_fix(plain, "no adapter 'x'; known: …").startswith("correct adapter in [worker.p]")
    assert "requires" in load_fix(plain, "No module named 'anthropic'")
    own = PoolSpec(PoolName("p"), "x", python="venvs/p")
    assert load_fix(own, "No module named 'anthropic'") == "trunkline setup p"


def test_the_file_is_named_with_its_workers(tmp_path: Path) -> None:
    first, *_ = configuration(settings(tmp_path))
    assert first.text.endswith("trunkline.toml; workers: a, b")


def _plain_endpoint(path: Path, section: str, *, has_file: bool = True) -> list[findings.Finding]:
    path.write_text(f"[worker.x]\n{section}")
    (spec,) = load(path, {"HOME": "/nowhere"}).pool_specs()
    return list(findings._plain_endpoint("worker x", spec, has_file=has_file))


@pytest.mark.parametrize(
    ("url", "title"),
    [
        ("https://api.anthropic.com/v1", "Anthropic"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", "Amazon Bedrock"),
        ("https://api.openai.com/v1", None),
        ("http://127.0.0.1:1/v1", None),
    ],
)
def test_a_provider_whose_own_api_the_library_knows(
    tmp_path: Path, url: str, title: str | None
) -> None:
    """It is named, with the line that installs what is needed."""
    section = f'adapter = "chat_completions"\noptions = {{ baseUrl = "{url}" }}'
    found = _plain_endpoint(tmp_path / "t.toml", section)
    assert [each.text.split(" by its ")[0] for each in found] == (
        [f"worker x: {title}"] if title else []
    )
    assert all("pip install 'trunkline[" in each.fix and "\n" not in each.fix for each in found)


def test_nothing_to_edit_where_there_is_no_file(tmp_path: Path) -> None:
    """The built-in configuration takes the library by itself."""
    section = 'adapter = "chat_completions"\noptions.baseUrl = "https://api.groq.com/openai/v1"'
    (with_file,) = _plain_endpoint(tmp_path / "t.toml", section)
    assert 'profile = "groq"' in with_file.fix
    (without,) = _plain_endpoint(tmp_path / "t.toml", section, has_file=False)
    assert without.fix == "pip install 'trunkline[pydantic-ai]', then trunkline restart"


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({"AWS_BEARER_TOKEN_BEDROCK": "bedrock-key-0123456789"}, OK),
        ({"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s"}, OK),
        ({"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE"}, NOTE),
        ({}, NOTE),
    ],
)
def test_bedrock_can_do_without_a_key(tmp_path: Path, environ: dict[str, str], state: str) -> None:
    """Credentials of AWS will do, and what boto3 finds can't be known from here."""
    path = tmp_path / "t.toml"
    path.write_text('[worker.x]\nadapter = "pydantic_ai"\noptions.profile = "bedrock-converse"')
    (spec,) = load(path, {"HOME": "/nowhere"}).pool_specs()
    (found,) = findings._key("worker x", spec, environ)
    assert found.state == state
