"""The start of a worker: document on a descriptor, or arguments."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from trunkline_protocol.ids import Epoch, Generation
from trunkline_protocol.secret import SecretBytes
from trunkline_workers import boot as boot_module
from trunkline_workers.boot import Boot, BootError, boot_from_document, read_boot

DOCUMENT: dict[str, Any] = {
    "control": "ipc:///run/wc",
    "pool": "p",
    "slot": 2,
    "generation": [5, 7],
    "token": "00ff",
    "adapter": "scripted",
    "providers": ["a", "b"],
    "options": {"x": 1},
    "standby": True,
    "orphanTimeoutMs": 1500,
    "later": "ignored",
}


def packed(**changes: Any) -> bytes:
    return json.dumps({**DOCUMENT, **changes}).encode()


def test_a_document_says_everything() -> None:
    assert boot_from_document(packed()) == Boot(
        "ipc:///run/wc",
        boot_module.PoolName("p"),
        "scripted",
        slot=2,
        generation=Generation(Epoch(5), 7),
        token=SecretBytes(b"\x00\xff"),
        providers=("a", "b"),
        options={"x": 1},
        is_standby=True,
        orphan_timeout_s=1.5,
    )
    assert boot_from_document(packed(lane="ipc:///run/l")).lane == "ipc:///run/l"


def test_the_token_and_what_may_be_a_key_are_never_shown() -> None:
    shown = repr(boot_from_document(packed(token="c0ffee", options={"apiKey": "canary"})))  # noqa: S106
    assert "canary" not in shown
    assert repr(bytes.fromhex("c0ffee")) not in shown
    assert "SecretBytes(b'**********')" in shown


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        packed(generation=[1]),
        packed(generation=5),
        packed(token="zz"),  # noqa: S106  not hexadecimal
        packed(token=None),
        packed(slot="1"),
        packed(providers="a"),
        packed(options=[]),
        packed(standby=1),
    ],
)
def test_a_wrong_document_is_refused(document: bytes) -> None:
    with pytest.raises(BootError):
        boot_from_document(document)


def a_pipe(content: bytes) -> int:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(content)
    return reader


def test_the_descriptor_is_read_to_its_end_and_closed() -> None:
    reader = a_pipe(packed())
    assert read_boot(["--boot-fd", str(reader)]).slot == 2
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)


def test_a_document_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_module, "MAX_BOOT_BYTES", 10)
    with pytest.raises(BootError):
        read_boot(["--boot-fd", str(a_pipe(packed()))])


def test_a_descriptor_that_is_none_is_refused() -> None:
    with pytest.raises(BootError):
        read_boot(["--boot-fd", "999"])


def test_a_worker_started_by_hand() -> None:
    arguments = "--connect ipc://x --pool p --adapter a --slot 1 --provider r"
    options = "--option n=5 --option t=a=b --option flag=true"
    boot = read_boot([*arguments.split(), *options.split()])
    assert boot == Boot(
        "ipc://x",
        boot_module.PoolName("p"),
        "a",
        slot=1,
        providers=("r",),
        options={"n": 5, "t": "a=b", "flag": True},
        drain_s=600.0,
    )


def test_a_worker_started_by_hand_drains_and_shows_its_health() -> None:
    """One that a broker started is drained by that broker."""
    arguments = "--connect ipc://x --pool p --adapter a --drain 5 --health-file h"
    boot = read_boot(arguments.split())
    assert (boot.drain_s, boot.health_file) == (5.0, "h")
    assert boot_from_document(json.dumps(DOCUMENT).encode()).drain_s == 0


@pytest.mark.parametrize(
    "arguments",
    ["", "--connect x", "--connect x --pool p", "--connect x --pool p --adapter a --option n"],
)
def test_missing_arguments_are_named(arguments: str) -> None:
    with pytest.raises(BootError):
        read_boot(arguments.split())


def test_the_debug_switch_is_off_unless_it_is_named() -> None:
    """Brokers before it did not know it."""
    assert boot_from_document(packed()).debug_prompts is False
    assert boot_from_document(packed(debugPrompts=True)).debug_prompts is True
    with pytest.raises(BootError):
        boot_from_document(packed(debugPrompts=1))
    arguments = "--connect ipc://x --pool p --adapter a --debug-prompts"
    assert read_boot(arguments.split()).debug_prompts is True


def test_the_collector_of_spans_may_be_named() -> None:
    """Brokers before it did not."""
    assert boot_from_document(json.dumps(DOCUMENT).encode()).traces == ""
    named = json.dumps({**DOCUMENT, "traces": "http://127.0.0.1:4318"}).encode()
    assert boot_from_document(named).traces == "http://127.0.0.1:4318"
    with pytest.raises(BootError):
        boot_from_document(json.dumps({**DOCUMENT, "traces": 3}).encode())
