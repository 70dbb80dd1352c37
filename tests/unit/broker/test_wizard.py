"""What `trunkline setup` writes: sections, and keys that only their owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from trunkline_broker.cli.terminal import CommandError
from trunkline_broker.cli.wizard import Dialog, run_wizard
from trunkline_broker.config import load

KEY = "sk-canary-0123456789"


@pytest.fixture(autouse=True)
def loose_umask() -> object:
    """Nothing here may rest on a strict umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def dialog(provider: str, key: str = KEY) -> Dialog:
    return Dialog(ask=lambda _: provider, ask_secret=lambda _: key)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_goes_into_a_file_of_its_own(tmp_path: Path) -> None:
    """The section names the file; neither it nor the screen holds the key."""
    config = tmp_path / "outer" / "conf" / "trunkline.toml"
    run_wizard(dialog("1"), {}, config)
    file = config.parent / "secrets" / "anthropic"
    assert file.read_text() == KEY
    assert (mode(file), mode(config)) == (0o600, 0o600)
    assert {mode(each) for each in list(file.parents)[:3]} == {0o700}
    assert KEY not in config.read_text()
    assert (file.parent / ".gitignore").read_text() == "*\n"
    settings = load(config, {"HOME": "/nowhere"})
    assert settings.workers["anthropic"].options["apiKeyFile"] == str(file)


def test_a_key_in_the_environment_stays_there(tmp_path: Path) -> None:
    """The section names the variable; nothing is asked and no file is made."""
    config = tmp_path / "trunkline.toml"
    run_wizard(dialog("groq", ""), {"GROQ_API_KEY": KEY}, config)
    assert KEY not in config.read_text()
    section = load(config, {"HOME": "/nowhere"}).workers["groq"]
    assert section.env == ("GROQ_API_KEY",)
    assert not (tmp_path / "secrets").exists()


def test_a_new_file_ends_what_was_served_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys in the environment are enough only while there is no file."""
    config = tmp_path / "trunkline.toml"
    environ = {"GROQ_API_KEY": KEY, "XAI_API_KEY": KEY}
    run_wizard(dialog("groq"), environ, config)
    assert "note: xAI had no section" in capsys.readouterr().out
    run_wizard(dialog("xai"), environ, config)
    assert "note: " not in capsys.readouterr().out


def test_a_second_provider_is_added(tmp_path: Path) -> None:
    """What stands in the file stays; one that is there already is refused."""
    config = tmp_path / "trunkline.toml"
    config.write_text("# mine\n[broker]\ndrain_s = 5.0\n")
    config.chmod(0o644)
    run_wizard(dialog("openai"), {}, config)
    run_wizard(dialog("xAI"), {}, config)
    settings = load(config, {"HOME": "/nowhere"})
    assert list(settings.workers) == ["openai", "xai"]
    assert settings.broker.drain_s == 5.0
    assert config.read_text().startswith("# mine\n")
    with pytest.raises(CommandError, match="already"):
        run_wizard(dialog("openai"), {}, config)


@pytest.mark.parametrize("key", ["", "two words", "sk-\x00"])
def test_what_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    """Nothing is written."""
    config = tmp_path / "trunkline.toml"
    with pytest.raises(CommandError, match="nothing was changed"):
        run_wizard(dialog("openai", key), {}, config)
    assert list(tmp_path.iterdir()) == []


def test_no_such_provider(tmp_path: Path) -> None:
    """An answer that is none of them changes nothing."""
    with pytest.raises(CommandError, match="none of them"):
        run_wizard(dialog("99"), {}, tmp_path / "t.toml")


def test_a_wrong_answer_is_asked_again(tmp_path: Path) -> None:
    """Provider and key alike; blanks and line ends around a key do not count."""
    answers, keys = iter(["nonsense", "groq"]), iter(["two words", f"  {KEY}\r\n"])
    asked = Dialog(ask=lambda _: next(answers), ask_secret=lambda _: next(keys))
    run_wizard(asked, {}, tmp_path / "trunkline.toml")
    assert (tmp_path / "secrets" / "groq").read_text() == KEY


@pytest.mark.parametrize("name", ["trunkline.toml", "."])
def test_a_place_that_others_can_change_is_refused(tmp_path: Path, name: str) -> None:
    """Whoever may write the file says what is run; the fix is in the text, and nothing is asked."""
    home = tmp_path / "conf"
    home.mkdir(mode=0o700)
    config = home / "trunkline.toml"
    config.touch(0o600)
    (home / name).chmod(0o777)
    silent = Dialog(ask=lambda _: pytest.fail("asked"), ask_secret=lambda _: pytest.fail("asked"))
    with pytest.raises(CommandError, match=r"can be changed by others: chmod [67]00 "):
        run_wizard(silent, {}, config)
    assert config.read_text() == ""


def test_a_directory_that_is_open_to_others_gets_no_key(tmp_path: Path) -> None:
    """Never into a place where others can read or exchange it."""
    config = tmp_path / "trunkline.toml"
    (tmp_path / "secrets").mkdir(mode=0o755)
    with pytest.raises(CommandError, match="open to others"):
        run_wizard(dialog("openai"), {}, config)
    assert list((tmp_path / "secrets").iterdir()) == []


def test_a_link_that_waits_there_is_not_followed(tmp_path: Path) -> None:
    """The key replaces it and never goes through it."""
    config, elsewhere = tmp_path / "trunkline.toml", tmp_path / "elsewhere"
    elsewhere.write_text("")
    (tmp_path / "secrets").mkdir(mode=0o700)
    (tmp_path / "secrets" / "openai").symlink_to(elsewhere)
    run_wizard(dialog("openai"), {}, config)
    assert elsewhere.read_text() == ""
    assert not (tmp_path / "secrets" / "openai").is_symlink()


def test_a_file_that_is_no_configuration(tmp_path: Path) -> None:
    """It is not written to."""
    config = tmp_path / "trunkline.toml"
    config.write_text("= nonsense")
    config.chmod(0o600)
    with pytest.raises(CommandError, match="can't be read"):
        run_wizard(dialog("openai"), {}, config)
    assert config.read_text() == "= nonsense"
