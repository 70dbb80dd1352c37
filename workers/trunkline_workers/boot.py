"""What a worker process is told at its start: over an inherited descriptor, or by arguments.

The spawn token travels over the descriptor only, never in the arguments or the environment, and
the descriptor is closed before any adapter code runs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from trunkline_protocol.curve import MAX_KEY_FILE_BYTES, CurveKeys, read_keys
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.ids import Epoch, Generation, PoolName
from trunkline_protocol.limits import ORPHAN_TIMEOUT_S
from trunkline_protocol.secret import NO_TOKEN, SecretBytes

from trunkline_workers.core.leases import LEASE_FOR_S

DRAIN_S: Final = 600.0  # as `drain_s` of a pool
KEYS_ENV: Final = "TRUNKLINE_KEYS"
MAX_BOOT_BYTES: Final = 1024 * 1024  # options are a table of a configuration file
_READ_BYTES: Final = 65_536
_LEASE_FOR_MS: Final = int(LEASE_FOR_S * 1000)
UNBORN: Final = Generation(Epoch(0), 0)  # of a worker that no broker started


class BootError(ValueError):
    """The start of the worker is wrong; the text says what."""


@dataclass(frozen=True, slots=True)
class Boot:
    """How this worker starts.

    Attributes:
        control: endpoint of the broker's `workers/control`.
        pool: NAME of `[worker.NAME]`.
        adapter: name for `loader.load_entry`.
        beside: directory in which the module of the adapter may be; empty: none.
        slot: place in the pool.
        generation: from the spawning broker; (0, 0) without one.
        token: one-time secret from the spawning broker; never shown.
        providers: routes to register; none: the adapter's own.
        options: the options table of the pool; one of them may be a key.
        is_standby: starts beside a serving worker.
        keys: for a control endpoint on TCP.
        orphan_timeout_s: how long to live without a broker.
        traces: base URL of the collector of spans; empty: none are made.
        lease_s: how long a prepared call is held.
        drain_s: what its calls get when it is told to stop by SIGTERM; 0 with a broker that
            started it, since that one drains it first.
        lane: endpoint of the lane of chunks; empty: as the broker tells it.
        health_file: where its state is written once a second, for probes; empty: nowhere.
        debug_prompts: write prompts and answers into the log, and into spans if there are any.
    """

    control: str
    pool: PoolName
    adapter: str
    slot: int = 0
    generation: Generation = UNBORN
    token: SecretBytes = NO_TOKEN
    providers: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    is_standby: bool = False
    keys: CurveKeys | None = None
    orphan_timeout_s: float = ORPHAN_TIMEOUT_S
    traces: str = ""
    lease_s: float = LEASE_FOR_S
    drain_s: float = 0.0
    lane: str = ""
    health_file: str = ""
    debug_prompts: bool = False
    beside: str = ""


def read_boot(arguments: Sequence[str]) -> Boot:
    """Read the command line, and the descriptor if it names one.

    Raises:
        BootError: the document or an argument is wrong.
        SystemExit: argparse's own, for `--help` and unknown arguments.
    """
    parsed = _parser().parse_args(arguments)
    if parsed.boot_fd is not None:
        return boot_from_document(_read_all(cast("int", parsed.boot_fd)))
    if not parsed.connect or not parsed.pool or not parsed.adapter:
        raise BootError("--connect, --pool and --adapter are required without --boot-fd")
    return Boot(
        control=parsed.connect,
        pool=PoolName(parsed.pool),
        adapter=parsed.adapter,
        slot=parsed.slot,
        traces=parsed.traces,
        drain_s=parsed.drain,
        health_file=parsed.health_file,
        debug_prompts=parsed.debug_prompts,
        providers=tuple(parsed.provider),
        options=dict(_option(text) for text in parsed.option),
        keys=_read_key_file(parsed.keys) if parsed.keys else None,
    )


def boot_from_document(document: bytes) -> Boot:
    """Read the JSON document of a spawning broker; unknown keys are ignored.

    Raises:
        BootError: no JSON object, or a key is missing or wrong; the text names it.
    """
    try:
        data = json.loads(document)
    except ValueError as exc:
        raise BootError("the boot document is not JSON") from exc
    if not isinstance(data, dict):
        raise BootError("the boot document is not an object")
    fields = cast("dict[str, Any]", data)
    try:
        epoch, number = fields["generation"]
        return Boot(
            control=_typed(fields, "control", str),
            pool=PoolName(_typed(fields, "pool", str)),
            adapter=_typed(fields, "adapter", str),
            beside=_typed({"beside": "", **fields}, "beside", str),
            slot=_typed(fields, "slot", int),
            generation=Generation(Epoch(int(epoch)), int(number)),
            token=SecretBytes(bytes.fromhex(_typed(fields, "token", str))),
            providers=tuple(map(str, _typed(fields, "providers", list))),
            options=_typed(fields, "options", dict),
            is_standby=_typed(fields, "standby", bool),
            keys=_keys_in(fields),
            orphan_timeout_s=_typed(fields, "orphanTimeoutMs", int) / 1000,
            traces=_typed({"traces": "", **fields}, "traces", str),
            lease_s=_typed({"leaseMs": _LEASE_FOR_MS, **fields}, "leaseMs", int) / 1000,
            lane=_typed({"lane": "", **fields}, "lane", str),
            debug_prompts=_typed({"debugPrompts": False, **fields}, "debugPrompts", bool),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise BootError(f"boot document: {exc}") from exc


def _keys_in(fields: dict[str, Any]) -> CurveKeys | None:
    """Return the keys in a boot document: the path of a key file, or nothing."""
    path = fields.get("keys", "")
    if not isinstance(path, str):
        raise TypeError("keys must be a str")
    return _read_key_file(path) if path else None


def _read_key_file(path: str) -> CurveKeys:
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            return read_keys(file.read(MAX_KEY_FILE_BYTES), path)
    except (OSError, UnicodeDecodeError) as exc:
        raise BootError(f"key file {path} can't be read: {exc}") from exc
    except LocalProtocolError as exc:
        raise BootError(str(exc)) from exc


def _typed(fields: dict[str, Any], key: str, kind: type[Any]) -> Any:
    value = fields[key]
    if not isinstance(value, kind):
        raise TypeError(f"{key} must be a {kind.__name__}")
    return value


def _read_all(descriptor: int) -> bytes:
    """Read to the end of file and close the descriptor, whatever happens."""
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := os.read(descriptor, _READ_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BOOT_BYTES:
                raise BootError("the boot document is too large")
    except OSError as exc:
        raise BootError(f"cannot read descriptor {descriptor}: {exc.strerror}") from exc
    finally:
        _close(descriptor)
    return b"".join(pieces)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:  # it was never open, which reading it has already said
        return


def _option(text: str) -> tuple[str, object]:
    """Read `key=value`; a value that is JSON is that value, any other one is text."""
    key, found, raw = text.partition("=")
    if not found or not key:
        raise BootError(f"--option {text!r}: key=value is required")
    try:
        return key, json.loads(raw)
    except ValueError:  # plain text, as people write it
        return key, raw


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trunkline_workers",
        description="Run one adapter for a Trunkline broker. The broker starts workers by itself; "
        "start one by hand to debug an adapter, or on another host.",
    )
    parser.add_argument("--boot-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--connect", metavar="ENDPOINT", help="the broker's workers/control")
    parser.add_argument("--pool", metavar="NAME", help="name of the pool to serve")
    parser.add_argument("--slot", type=int, default=0, help="place in the pool (default 0)")
    parser.add_argument("--adapter", help="built-in name, module:Class or path/file.py:Class")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--traces", metavar="URL", default="", help="collector of spans (OTLP)")
    parser.add_argument(
        "--debug-prompts",
        action="store_true",
        help="write prompts and answers into the log, and into spans if there are any",
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=DRAIN_S,
        metavar="SECONDS",
        help=f"what running calls get after SIGTERM (default {DRAIN_S:g}); SIGINT ends them",
    )
    parser.add_argument(
        "--health-file",
        default="",
        metavar="FILE",
        help="written once a second: starting, serving, waiting (for a broker) or draining",
    )
    parser.add_argument(
        "--keys",
        default=os.environ.get(KEYS_ENV, ""),
        metavar="FILE",
        help=f"for tcp://: what `trunkline keys worker` made (default: ${KEYS_ENV})",
    )
    parser.add_argument("--provider", action="append", default=[], metavar="NAME")
    return parser
