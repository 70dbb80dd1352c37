"""A configuration is data from outside: whatever is in it, it is used or clearly refused."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trunkline_broker.config import MAX_FILE_BYTES, load
from trunkline_broker.config_errors import ConfigError, line_of
from trunkline_broker.config_shape import MAX_DEPTH
from trunkline_broker.config_view import advice
from trunkline_broker.environment import EnvironmentFileError, read_environment_file
from trunkline_broker.key_files import KeyFileError, read_server
from trunkline_broker.regular_files import UnfitFileError, read_regular
from trunkline_broker.security import listed

from tests.support.timing import SLOW

WORKER = '[worker.a]\nadapter = "scripted"\n'


def refused(tmp_path: Path, text: str | bytes, **environ: str) -> ConfigError:
    """Return the error of a file."""
    path = tmp_path / "trunkline.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(path, {"HOME": str(tmp_path), **environ})
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[broker]\nopen_files_limit = 2000000000\n", "broker.open_files_limit"),
        (f"[broker]\nopen_files_limit = {2**70}\n", "broker.open_files_limit"),
        (f"[broker]\nmemory_limit_mib = {2**60}\n", "broker.memory_limit_mib"),
        (f"{WORKER}memory_limit_mib = {2**60}\n", "worker.a.memory_limit_mib"),
        (f"{WORKER}open_files_limit = {2**21}\n", "worker.a.open_files_limit"),
        (f"{WORKER}replicas = {2**63}\n", "worker.a.replicas"),
        (f"{WORKER}lease_s = inf\n", "worker.a.lease_s"),
        (f"{WORKER}drain_s = nan\n", "worker.a.drain_s"),
        (f"{WORKER}options = {{ deep = [{{ n = {2**64} }}] }}\n", "worker.a.options.deep.0.n"),
        ('[broker]\nmetrics = "0.0.0.0:99999"\n', "broker.metrics"),
        ('[broker]\ntcp_clients = "h:65536"\ntcp_clients_lane = "h:1"\n', "broker.tcp_clients"),
        ('[broker]\nusage_file = "a\\u0000b"\n', "broker.usage_file"),
        (f'{WORKER}python = "a\\u001b[2J"\n', "worker.a.python"),
        (f'{WORKER}env_file = "{"x" * 5000}"\n', "worker.a.env_file"),
        (f'{WORKER}options = {{ key = "{"x" * 300_000}" }}\n', "worker.a.options.key"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_file_and_line(
    tmp_path: Path, text: str, key: str
) -> None:
    error = refused(tmp_path, text)
    assert error.key == key
    assert error.line is not None
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 20_000 + "]" * 20_000,
        "x = " + "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2),
        "x = " + "{a=" * 5000 + "1" + "}" * 5000,
        ".".join(["a"] * 100_000) + " = 1",
        "[" + ".".join(["a"] * 1000) + "]\nb = 1",
        "x = 1" + "0" * 5000,
        "x = 1e999999",
        "[broker]\n" + "".join(f"k{n} = 1\n" for n in range(4_000)),
        "".join(f"k{n} = 1\n" for n in range(4_000)) + "[broken",
        'x = """\n' + "line\n" * 20_000,
        "".join(f'[worker.w{n}]\nadapter = "scripted"\nreplicas = 64\n' for n in range(17)),
        b"\xff\xfe\x00",
        b"\0" * 1000,
        b"x" * (MAX_FILE_BYTES + 1),
        '"\\u001b[2J" = 1\n',
    ],
    ids=lambda text: f"{len(text)}-{text[:8]!r}",
)
def test_a_file_that_cannot_be_is_refused_in_time_and_without_control_characters(
    tmp_path: Path, text: str | bytes
) -> None:
    began_s = time.process_time()
    error = refused(tmp_path, text)
    assert time.process_time() - began_s < 10 * SLOW
    assert all(char.isprintable() or char == "\n" for char in str(error))
    assert len(str(error)) < 10_000


def test_a_variable_is_judged_as_a_file_is(tmp_path: Path) -> None:
    error = refused(tmp_path, "", TRUNKLINE_BROKER_OPEN_FILES_LIMIT=str(2**70))
    assert "from TRUNKLINE_BROKER_OPEN_FILES_LIMIT" in str(error)
    error = refused(tmp_path, WORKER, TRUNKLINE_WORKER_A_ADAPTER="half \udcff")
    assert "UTF-8" in str(error)
    error = refused(tmp_path, "", TRUNKLINE_BROKER_METRICS="0.0.0.0:99999")
    assert "99999" in str(error)


LEAVES = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.sampled_from(["true", "1979-05-27", '""', "[]", "{}", "[[[1]]]", '"\\u0000"', "1e400"]),
    st.text(max_size=20).map(lambda text: '"' + text.encode("unicode_escape").decode() + '"'),
)
KEYS = st.sampled_from(
    [
        "drain_s",
        "liveness_s",
        "max_clients",
        "metrics",
        "usage_file",
        "log_level",
        "traces",
        "tcp_clients",
        "keys_dir",
        "usage_days",
        "attachments_mib",
        "orphan_timeout_s",
        "x",
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, LEAVES, max_size=4))
def test_any_values_make_settings_or_an_error(values: dict[str, str]) -> None:
    """Nothing else is raised, also by what is said of settings that can be used."""
    text = "[broker]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
    with tempfile.NamedTemporaryFile("w", errors="replace") as file:
        file.write(text)
        file.flush()
        try:
            made = load(Path(file.name), {"HOME": "/nowhere", "TRUNKLINE_RUN_DIR": "/nowhere/run"})
        except ConfigError as exc:
            refusal = str(exc)
        else:
            refusal = "none"
            assert all(note.isprintable() for note in advice(made))
    assert refusal


def unfit(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        return Path("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """As configuration, variables, key and public key: a pipe would be waited for."""
    path = unfit(tmp_path, kind)
    with pytest.raises(ConfigError, match=r"not a regular file|directory"):
        load(path, {"HOME": str(tmp_path)})
    with pytest.raises(EnvironmentFileError):
        read_environment_file(path)
    with pytest.raises(UnfitFileError, match="not a regular file"):
        read_regular(path, 10)
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "server.key").symlink_to(path)
    with pytest.raises(KeyFileError):
        read_server(keys)
    (keys / "a.pub").symlink_to(path)
    assert listed(keys) == []


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(UnfitFileError, match="more than 4 bytes"):
        read_regular(path, 4)


def test_the_line_of_a_key_in_a_long_file_is_found() -> None:
    text = "".join(f"k{n} = [\n  1,\n  2,\n]\n" for n in range(600))
    assert line_of(text, ["k300"]) == 1201
    assert line_of(text, ["k0"]) == 1
    assert line_of(text, ["none"]) is None


def test_values_that_will_hardly_work_are_told(tmp_path: Path) -> None:
    """By what is on this machine: a page that is open to others, a ledger that is none."""
    (tmp_path / "passwd").write_text("root:x:0:0\n")
    (tmp_path / "file").write_text("")
    path = tmp_path / "trunkline.toml"
    path.write_text(
        '[broker]\nmetrics = "0.0.0.0:9464"\nusage_file = "passwd"\nattachments_dir = "file"\n'
        '[worker.a]\nadapter = "scripted"\nuser = "llm"\n'
        '[worker.b]\nadapter = "scripted"\nuser = "llm"\n'
        '[worker.c]\nadapter = "scripted"\nuser = "other"\n'
    )
    said = "\n".join(advice(load(path, {"HOME": str(tmp_path)})))
    assert "0.0.0.0:9464 has no password" in said
    assert "passwd is there and is no usage ledger" in said
    assert "file is not a directory" in said
    assert "worker.a and worker.b run as the same user, llm" in said
