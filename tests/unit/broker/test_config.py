"""Configuration: what a file means, and what is said of a wrong one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trunkline_broker.config import load
from trunkline_broker.config_errors import ConfigError, line_of
from trunkline_protocol.secret import SecretStr

ENVIRON = {"HOME": "/nowhere", "TRUNKLINE_RUN_DIR": "/tmp/run"}  # noqa: S108  # never created


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trunkline.toml"
    path.write_text(text)
    return path


def _error(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(_file(tmp_path, text), ENVIRON | (environ or {}))
    return caught.value


def test_every_key_arrives_in_the_core(tmp_path: Path) -> None:
    """What the file says of a pool is what the core gets, relative paths made absolute."""
    text = """
    [worker.mine]
    adapter = "adapters/mine.py:Mine"
    providers = ["a", "b"]
    replicas = 2
    python = "venv/bin/python"
    env = ["MY_KEY"]
    env_file = "keys.env"
    concurrency = 3
    queue_size = 4
    queue_timeout_s = 5
    start_timeout_s = 6
    drain_s = 7
    stop_s = 8
    [worker.mine.restart]
    intensity = 1
    period_s = 2
    initial_delay_s = 0.5
    max_delay_s = 4
    [worker.mine.options]
    apiKey = "k"
    list = [1, [2]]
    day = 2026-01-02
    """
    (spec,) = load(_file(tmp_path, text), ENVIRON).pool_specs()
    assert spec.name == "mine"
    assert spec.adapter == f"{tmp_path}/adapters/mine.py:Mine"
    assert spec.providers == ("a", "b")
    assert (spec.replicas, spec.concurrency, spec.queue_size) == (2, 3, 4)
    assert (spec.queue_timeout_s, spec.start_timeout_s, spec.drain_s, spec.stop_s) == (5, 6, 7, 8)
    assert spec.python == f"{tmp_path}/venv/bin/python"
    assert spec.environment == ("MY_KEY",)
    assert spec.env_file == f"{tmp_path}/keys.env"
    assert (spec.restart.intensity, spec.restart.period_s) == (1, 2)
    assert (spec.restart.initial_delay_s, spec.restart.max_delay_s) == (0.5, 4)
    assert spec.options == {"apiKey": SecretStr("k"), "list": [1, [2]], "day": "2026-01-02"}


def test_a_venv_directory_names_its_interpreter(tmp_path: Path) -> None:
    """`python` may be the directory of a virtual environment; it needs a slash to be a path."""
    (tmp_path / "venv").mkdir()
    text = '[worker.a]\nadapter = "scripted"\npython = "./venv"'
    (spec,) = load(_file(tmp_path, text), ENVIRON).pool_specs()
    assert spec.python == f"{tmp_path}/venv/bin/python"


def test_an_unknown_key_is_named_with_line_allowed_keys_and_a_guess(tmp_path: Path) -> None:
    """A misspelt key says where it is, what would be allowed and what was probably meant."""
    error = _error(tmp_path, '# one\n[worker.a]\nadapter = "scripted"\n\nreplica = 2\n')
    assert error.line == 5
    assert error.key == "worker.a.replica"
    assert error.file == tmp_path / "trunkline.toml"
    for part in ("line 5", "unknown key worker.a.replica", "did you mean replicas?", "queue_size"):
        assert part in str(error)


def test_an_unknown_section_lists_the_sections(tmp_path: Path) -> None:
    """Also at the top of the file."""
    error = _error(tmp_path, "[brokre]\nx = 1\n")
    assert "unknown key brokre (did you mean broker?); allowed here: broker, client, worker" in str(
        error
    )
    assert error.line == 1


def test_every_mistake_is_said_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """One run shows all mistakes."""
    text = """\
    [broker]
    drain_s = "soon"
    [worker.a]
    providers = [
      "x",
      3,
    ]
    [worker."b c"]
    adapter = "scripted"
    """
    lines = str(_error(tmp_path, text)).splitlines()
    assert [line.split(": ")[0].rsplit(" ", 1)[1] for line in lines] == ["2", "3", "4", "8"]
    assert "worker.a.adapter is missing" in lines[1]


def test_a_provider_belongs_to_one_worker(tmp_path: Path) -> None:
    """The second of two could never register it, and would be started again and again."""
    text = """\
    [worker.a]
    adapter = "scripted"
    providers = ["x", "y"]
    [worker.b]
    adapter = "scripted"
    providers = ["z",
      "y"]
    """
    error = _error(tmp_path, text)
    assert (error.line, error.key) == (6, "worker.b.providers.1")
    assert "is a provider of worker.a already" in str(error)


def test_mistakes_are_told_in_the_words_of_the_file(tmp_path: Path) -> None:
    """TOML knows no tuples and no dictionaries."""
    text = '[worker.a]\nadapter = "x"\nproviders = "p"\noptions = 1\n'
    error = str(_error(tmp_path, text))
    assert "input should be a list" in error
    assert "input should be a table" in error


def test_a_worker_may_have_the_name_of_a_key(tmp_path: Path) -> None:
    """Lists of options stay lists, those beside them do not."""
    text = '[worker.options]\nadapter = "x"\nproviders = ["p"]\noptions.options = ["q"]\n'
    file = tmp_path / "trunkline.toml"
    file.write_text(text)
    section = load(file, ENVIRON).workers["options"]
    assert section.providers == ("p",)
    assert section.options == {"options": ["q"]}


def test_a_value_is_never_shown(tmp_path: Path) -> None:
    """A value of the wrong type may be a key."""
    error = _error(tmp_path, '[worker.a]\nadapter = "x"\nreplicas = "sk-canary"\n')
    assert "canary" not in str(error)


def test_bad_toml_names_its_line(tmp_path: Path) -> None:
    """The parser's own message and line."""
    error = _error(tmp_path, "[broker]\ndrain_s = \n")
    assert error.line == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[worker.a]\nadapter = "scripted"\nenv = [\n  "A",\n\n', 3),
        ("[broker", 1),
        ('[broker]\n\ntraces = """http\n\n', 3),
    ],
)
def test_what_is_never_closed_is_named_where_it_begins(
    tmp_path: Path, text: str, line: int
) -> None:
    """The parser sees it at the end of the file only."""
    assert _error(tmp_path, text).line == line


@pytest.mark.parametrize("text", ["broker = 1", "worker = []", 'worker = {a = "x"}'])
def test_a_section_of_another_type_is_an_error(tmp_path: Path, text: str) -> None:
    """Never a traceback."""
    assert _error(tmp_path, text).line == 1


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """A named file is meant; the search does not go on."""
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml", ENVIRON)


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, TRUNKLINE_CONFIG, ./trunkline.toml, XDG_CONFIG_HOME, built in."""
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    (home / "trunkline").mkdir(parents=True)
    monkeypatch.chdir(here)
    environ = ENVIRON | {"XDG_CONFIG_HOME": str(home)}
    assert load(None, environ).source is None
    _file(home / "trunkline", "")
    assert load(None, environ).source == home / "trunkline" / "trunkline.toml"
    _file(here, "")
    assert load(None, environ).source == here / "trunkline.toml"
    named = tmp_path / "named.toml"
    named.write_text("")
    environ["TRUNKLINE_CONFIG"] = str(named)
    assert load(None, environ).source == named
    argument = tmp_path / "argument.toml"
    argument.write_text("")
    assert load(argument, environ).source == argument


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    """Any key of [broker]; numbers and booleans as in TOML, other text as it is."""
    environ = {
        "TRUNKLINE_BROKER_DRAIN_S": "3",
        "TRUNKLINE_BROKER_LOG_FORMAT": "json",
        "TRUNKLINE_BROKER_ACCEPT_MANUAL": "false",
    }
    settings = load(_file(tmp_path, "[broker]\ndrain_s = 1\n"), ENVIRON | environ)
    assert settings.broker.drain_s == 3
    assert settings.broker.log_format == "json"
    assert settings.broker.accept_manual is False


def test_the_environment_overrides_the_keys_of_workers(tmp_path: Path) -> None:
    """Of those that are configured, also of the built-in configuration."""
    environ = {
        "TRUNKLINE_WORKER_MY_POOL_REPLICAS": "2",
        "TRUNKLINE_WORKER_MY_POOL_PROVIDERS": '["a", "b"]',
        "TRUNKLINE_WORKER_MY_POOL_ENV_FILE": "/keys",
        "TRUNKLINE_WORKER_MY_POOL_RESTART": "{ intensity = 9 }",
        "TRUNKLINE_WORKER_OTHER_REPLICAS": "3",  # of no worker
    }
    text = '[worker.my-pool]\nadapter = "scripted"\nreplicas = 1\nqueue_size = 7\n'
    (spec,) = load(_file(tmp_path, text), ENVIRON | environ).pool_specs()
    assert (spec.replicas, spec.providers, spec.env_file) == (2, ("a", "b"), "/keys")
    assert (spec.restart.intensity, spec.queue_size) == (9, 7)
    home = {**ENVIRON, "HOME": str(tmp_path), "GROQ_API_KEY": "k"}
    settings = load(None, home | {"TRUNKLINE_WORKER_GROQ_CONCURRENCY": "4"})
    assert settings.workers["groq"].concurrency == 4


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRUNKLINE_BROKER_DRAIN_S", "soon"),
        ("TRUNKLINE_WORKER_A_REPLICAS", "many"),
        ("TRUNKLINE_WORKER_A_PROVIDERS", '["x", 3]'),
    ],
)
def test_a_wrong_override_names_the_variable(tmp_path: Path, variable: str, value: str) -> None:
    """Not a line of the file, where the value is not."""
    text = '[broker]\ndrain_s = 1\n[worker.a]\nadapter = "scripted"\n'
    error = _error(tmp_path, text, {variable: value})
    assert f"(from {variable})" in str(error)
    assert error.line is None


@pytest.mark.parametrize("text", ["broker = 3\n", "worker = 3\n", "worker.a = 3\n"])
def test_a_table_of_a_wrong_type_is_found_under_an_override(tmp_path: Path, text: str) -> None:
    environ = {"TRUNKLINE_BROKER_DRAIN_S": "3", "TRUNKLINE_WORKER_A_REPLICAS": "3"}
    assert _error(tmp_path, text, environ).line == 1


def test_keys_of_the_environment_make_the_built_in_configuration(tmp_path: Path) -> None:
    """Without a file each known provider whose key is there is served."""
    home = {**ENVIRON, "HOME": str(tmp_path), "GROQ_API_KEY": "k"}
    settings = load(None, home)
    assert settings.source is None
    assert settings.workers["groq"].env == ("GROQ_API_KEY",)


def test_settings_are_frozen_and_do_not_show_the_environment(tmp_path: Path) -> None:
    """Resolved once; a printed value holds no key."""
    settings = load(_file(tmp_path, ""), ENVIRON | {"SECRET": "canary"})
    assert "canary" not in repr(settings)
    with pytest.raises(ValueError, match="frozen"):
        settings.broker.drain_s = 1.0  # pyright: ignore[reportAttributeAccessIssue]


def test_the_endpoint_is_in_the_run_directory(tmp_path: Path) -> None:
    """The environment alone names the run directory, since clients look there too."""
    settings = load(_file(tmp_path, ""), ENVIRON)
    assert settings.endpoint == "ipc:///tmp/run/control"
    assert settings.broker_spec().lane == "ipc:///tmp/run/lane"


def test_a_directory_beside_the_file_is_a_venv_also_without_a_slash(tmp_path: Path) -> None:
    """`.venv` is the usual name; no command is called like a directory that is there."""
    (tmp_path / ".venv").mkdir()
    text = '[worker.a]\nadapter = "scripted"\npython = ".venv"\n'
    (spec,) = load(_file(tmp_path, text), ENVIRON).pool_specs()
    assert spec.python == str(tmp_path / ".venv" / "bin" / "python")


def test_an_interpreter_of_the_path_stays_a_name(tmp_path: Path) -> None:
    """Only what has a slash is a path."""
    settings = load(_file(tmp_path, '[worker.a]\nadapter = "s"\npython = "python3"'), ENVIRON)
    assert settings.pool_specs()[0].python == "python3"


def test_line_of_a_key_inside_of_a_long_value() -> None:
    """The line in which the key begins, not the one in which its value ends."""
    text = 'a = """\nx = 1\n"""\nb = [\n1,\n2]\n'
    assert line_of(text, ["a"]) == 1
    assert line_of(text, ["b"]) == 4
    assert line_of(text, ["b", "7"]) == 4
    assert line_of(text, ["c"]) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    """As any other mistake."""
    path = _file(tmp_path, "")
    path.chmod(0)
    with pytest.raises(ConfigError, match="can't be read"):
        load(path, ENVIRON)
