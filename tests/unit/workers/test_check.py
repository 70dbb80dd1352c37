"""What `trunkline doctor` asks an interpreter: could this adapter serve that worker?"""

from __future__ import annotations

import importlib.util
import io
import json
from typing import Any

import pytest
from trunkline_workers import check
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.pydantic_ai.adapter import PydanticAiAdapter
from trunkline_workers.adapters.pydantic_ai.models import missing
from trunkline_workers.adapters.pydantic_ai.profiles import PROFILES


def asked(
    monkeypatch: pytest.MonkeyPatch, target: str, options: dict[str, Any] | None = None
) -> int:
    flags = ["--load"]
    if options is not None:
        flags.append("--worker")
        document = json.dumps({"name": "x", "options": options})
        monkeypatch.setattr("sys.stdin", io.StringIO(document))
    return check.main([*flags, target])


def test_an_adapter_that_takes_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made, not opened."""
    assert asked(monkeypatch, "scripted") == check.EXIT_HOLDS
    options = {"profile": "openai", "baseUrl": "http://127.0.0.1:1/v1"}
    assert asked(monkeypatch, "chat_completions", options) == check.EXIT_HOLDS


def test_options_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exit code of their own, and the adapter's own words."""
    options = {"profile": "openai", "baseURL": "http://127.0.0.1:1/v1"}
    assert asked(monkeypatch, "chat_completions", options) == check.EXIT_OPTIONS
    assert "did you mean baseUrl?" in capsys.readouterr().err
    assert asked(monkeypatch, "chat_completions") == check.EXIT_HOLDS


def test_no_such_adapter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "nothing", {}) == check.EXIT_NOTHING
    assert "no adapter 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize("profile", PROFILES)
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Before anything is imported; both parts are needed."""
    extra = PROFILES[profile].extra
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "pydantic_ai" or None)
    assert f"pip install 'pydantic-ai-slim[{extra}]'" in missing(PROFILES[profile])
    with pytest.raises(ImportError, match="pip install"):
        PydanticAiAdapter.create(AdapterContext("x", options={"profile": profile}))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    assert missing(PROFILES[profile]) == ""
