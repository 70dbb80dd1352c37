"""An extreme value of any configuration key is refused by name, or harms nothing that follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel
from trunkline_broker.config import (
    BrokerSection,
    ClientSection,
    RestartSection,
    WorkerSection,
    load,
)
from trunkline_broker.config_errors import ConfigError
from trunkline_broker.config_view import as_toml
from trunkline_protocol.codec import pack_body
from trunkline_protocol.printable import STEERING

VALUES: Final = (
    "0", "-1", "1", "0.5", "9223372036854775807", "9223372036854775808", "1180591620717411303424",
    "1e308", "-1e308", "nan", "inf", "-inf", "true", '""', '"a"', '"\\u0000"', '"\\u001b[2J"',
    '"a\\nb"', '"\\u202Eb"', '"../../x"', f'"{"x" * 100_000}"', "[]", "[[]]", '[""]', '["\\u001b"]',
    f"[{'1,' * 5000}]", "{}", '{ a = 1 }', '{ "\\u001b" = nan }', f"{'[' * 300}{']' * 300}",
    "2026-12-01T00:00:00Z", "07:32:00",
)  # fmt: skip
TABLES: Final[dict[str, type[BaseModel]]] = {
    "broker": BrokerSection,
    "worker.w": WorkerSection,
    "worker.w.restart": RestartSection,
    "client.c": ClientSection,
}
KEYS: Final = [(table, key) for table, section in TABLES.items() for key in section.model_fields]


def use(path: Path) -> None:
    """Do with a configuration what a start and the commands do with it."""
    environ = {"HOME": str(path.parent), "TRUNKLINE_RUN_DIR": str(path.parent)}
    settings = load(path, environ)
    assert not STEERING.search(as_toml(settings))
    for spec in settings.pool_specs():
        pack_body([spec.adapter, list(spec.providers)])
    assert settings.broker_spec().orphan_timeout_s > 0
    assert settings.endpoint
    assert settings.usage_file.is_absolute()


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_an_extreme_value_of_a_key(tmp_path: Path, table: str, key: str) -> None:
    """No other error than the one for people, which names the key."""
    path = tmp_path / "t.toml"
    adapter = '[worker.w]\nadapter = "scripted"\n' if table != "worker.w" else ""
    for value in VALUES:
        more = '\nadapter = "scripted"' if table == "worker.w" and key != "adapter" else ""
        path.write_text(f"{adapter}[{table}]\n{json.dumps(key)} = {value}{more}\n", "utf-8")
        try:
            use(path)
        except ConfigError as exc:
            text = str(exc)
            assert key in text or "nested" in text, f"{key} = {value[:40]}: {text[:300]}"
            assert not STEERING.search(text.replace("\r", "")), f"{key} = {value[:40]}: {text!r}"
            assert len(text) < 10_000


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe", b"\x00", b"[broker]\nusage = \xed\xa0\x80", b"", b"\xef\xbb\xbf[broker]\n",
        b"[" * 100_000, b"[worker.\"\\u001b\"]\nadapter='scripted'", b"a" * 5_000_000,
        b"[worker." + b"w" * 100_000 + b"]\nadapter='scripted'", b"x = " + b"{a=" * 5_000,
    ],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_an_extreme_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.toml"
    path.write_bytes(content)
    refused: Any = None
    try:
        use(path)
    except ConfigError as exc:
        refused = str(exc)
    assert refused is None or (len(refused) < 10_000 and not STEERING.search(refused))
