"""Settings: one TOML file and the environment, resolved once, checked whole, then frozen.

It knows keys, defaults and where in the file something is wrong; it starts nothing. Values never
appear in an error, since an option may be a key.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Collection, Mapping
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from trunkline_protocol import limits
from trunkline_protocol.ids import PoolName

from trunkline_broker.config_errors import ConfigError, line_of, syntax_error, validation_error
from trunkline_broker.config_overrides import Variables, variables, with_overrides
from trunkline_broker.core.specs import AccessSpec, BrokerSpec, PoolSpec, RestartSpec
from trunkline_broker.key_files import default_keys_dir
from trunkline_broker.onboarding import builtin
from trunkline_broker.paths import (
    RunPaths,
    default_attachments_dir,
    default_run_dir,
    default_usage_file,
    ipc,
)
from trunkline_broker.secret_options import concealed

CONFIG_ENV: Final = "TRUNKLINE_CONFIG"
STRICT_VARIABLE: Final = "TRUNKLINE_STRICT_LIVENESS"  # set by the tests of this project
FILE_NAME: Final = "trunkline.toml"
_MAX_SECONDS: Final = 7 * 24 * 3600.0
_MIB: Final = 1024 * 1024
_ADDRESS: Final = r"^$|^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"
_URL: Final = r"^$|^https?://[^\s/?#@]+(/[^\s?#]*)?$"
_USER: Final = r"^$|^[A-Za-z_][A-Za-z0-9_.-]{0,31}$"
_RESTART: Final = RestartSpec()
_POOL: Final = PoolSpec(PoolName(""), "")

Seconds = Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Period = Annotated[float, Field(gt=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Address = Annotated[str, Field(pattern=_ADDRESS)]
ClientName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
WorkerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,31}$")]
Filled = Annotated[str, Field(min_length=1, max_length=limits.MAX_NAME_BYTES)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class RestartSection(_Section):
    """`[worker.NAME.restart]`: `RestartSpec` says what the keys mean."""

    intensity: Annotated[int, Field(ge=0, le=1000)] = _RESTART.intensity
    period_s: Period = _RESTART.period_s
    initial_delay_s: Seconds = _RESTART.initial_delay_s
    max_delay_s: Seconds = _RESTART.max_delay_s


class WorkerSection(_Section):
    """`[worker.NAME]`: `PoolSpec` says what the keys mean.

    Attributes:
        requires: packages that `trunkline setup NAME` installs into the venv of `python`; a path
            begins at this file.
    """

    adapter: Filled
    providers: tuple[Filled, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict, repr=False)  # one of them may be a key
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    python: str = ""
    requires: tuple[Filled, ...] = ()
    env: tuple[VariableName, ...] = ()
    env_file: str = ""
    concurrency: Count | None = None
    queue_size: Annotated[int, Field(ge=0, le=1_000_000)] = _POOL.queue_size
    queue_timeout_s: Seconds = _POOL.queue_timeout_s
    start_timeout_s: Period = _POOL.start_timeout_s
    drain_s: Seconds = _POOL.drain_s
    stop_s: Seconds = _POOL.stop_s
    lease_s: Annotated[float, Field(ge=0.001, le=3600)] = _POOL.lease_s
    user: Annotated[str, Field(pattern=_USER)] = ""
    memory_limit_mib: Annotated[int, Field(ge=0)] | None = None
    open_files_limit: Annotated[int, Field(ge=0)] | None = None
    debug_prompts: bool = False
    restart: RestartSection = RestartSection()

    @field_validator("options")
    @classmethod
    def _conceal(cls, options: dict[str, Any]) -> dict[str, Any]:
        return concealed(options)


class BrokerSection(_Section):
    """`[broker]`.

    Attributes:
        log_level: least level that is written.
        log_format: one line per record, for people or for machines.
        drain_s: time running calls get when the broker stops.
        orphan_timeout_s: how long workers and clients wait for a broker.
        accept_manual: workers that the broker did not start may register pools of their own.
        liveness_s: a worker of this host that sends no frame for so long is killed, unless it
            was runnable and got no CPU. 2 to 600 seconds; workers send a heartbeat each second.
        max_clients: most client processes at once.
        max_calls_per_client: most open calls of one client.
        max_calls_per_worker: most open calls of one worker.
        memory_limit_mib: address space of each worker that sets none; 0: no limit.
        open_files_limit: open files of each worker that sets none; 0: the broker's own.
        attachments_dir: where uploaded images are kept, a directory of its own; a relative one
            begins at this file. Empty: below the run or the state directory.
        attachments_mib: most that is kept there; the longest unused goes first.
        tcp_clients: `HOST:PORT` for clients on other hosts; needs `tcp_clients_lane`. Empty: none.
        tcp_clients_lane: `HOST:PORT` of their chunks.
        tcp_workers: `HOST:PORT` for workers on other hosts; needs `tcp_workers_lane`. Empty: none.
        tcp_workers_lane: `HOST:PORT` of their chunks.
        plain_tcp: TCP without keys, for loopback addresses only. Every user of this machine can
            connect then.
        keys_dir: what `trunkline keys` makes and who may connect; a relative path begins at this
            file. Empty: `$XDG_CONFIG_HOME/trunkline/keys`.
        log_calls: which calls get a line of their own when they end: failed ones, or all.
        metrics: `HOST:PORT` of the Prometheus endpoint; empty: none. It has no password, so a
            host other than 127.0.0.1 shows names of clients and providers to whoever reaches it.
        traces: base URL of an OTLP collector (HTTP), such as `http://127.0.0.1:4318`; empty: no
            spans.
        usage: count calls and tokens in the usage ledger (`trunkline usage`).
        usage_file: the ledger, an SQLite file; a relative path begins at this file. Empty: in the
            state directory, or in the run directory if `TRUNKLINE_RUN_DIR` names it.
        usage_days: how long it is kept; minutes become hours after two days.
        usage_mib: most room that it takes; the oldest goes first.
    """

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["pretty", "json"] = "pretty"
    drain_s: Seconds = 30.0
    orphan_timeout_s: Period = limits.ORPHAN_TIMEOUT_S
    accept_manual: bool = True
    liveness_s: Annotated[float, Field(ge=2, le=600)] = limits.LEASE_S
    max_clients: Count = limits.MAX_CLIENTS
    max_calls_per_client: Annotated[int, Field(ge=1, le=limits.MAX_OPEN_CALLS_PER_CLIENT)] = (
        limits.MAX_OPEN_CALLS_PER_CLIENT
    )
    max_calls_per_worker: Annotated[int, Field(ge=1, le=limits.MAX_OPEN_CALLS_PER_WORKER)] = (
        limits.MAX_OPEN_CALLS_PER_WORKER
    )
    memory_limit_mib: Annotated[int, Field(ge=0)] = 0
    open_files_limit: Annotated[int, Field(ge=0)] = 0
    attachments_dir: str = ""
    attachments_mib: Annotated[int, Field(ge=1, le=1024 * 1024)] = (
        limits.ATTACHMENT_STORE_BYTES // _MIB
    )
    tcp_clients: Address = ""
    tcp_clients_lane: Address = ""
    tcp_workers: Address = ""
    tcp_workers_lane: Address = ""
    plain_tcp: bool = False
    keys_dir: str = ""
    log_calls: Literal["failed", "all"] = "failed"
    metrics: Address = ""
    traces: Annotated[str, Field(pattern=_URL)] = ""
    usage: bool = True
    usage_file: str = ""
    usage_days: Annotated[int, Field(ge=1, le=3650)] = 400
    usage_mib: Annotated[int, Field(ge=1, le=16 * 1024)] = 64

    @model_validator(mode="after")
    def _tcp_is_whole(self) -> Self:
        for name in ("tcp_clients", "tcp_workers"):
            control, lane = getattr(self, name), getattr(self, f"{name}_lane")
            if bool(control) != bool(lane):
                raise ValueError(f"{name} and {name}_lane need each other")
            for address in (control, lane):
                if address and self.plain_tcp and not _is_loopback(address):
                    raise ValueError(
                        f"plain_tcp: {address} is no loopback address; without keys TCP is for "
                        "127.0.0.1 and [::1] only"
                    )
        return self

    @property
    def has_tcp(self) -> bool:
        """Tell whether anything listens on TCP."""
        return bool(self.tcp_clients or self.tcp_workers)


class ClientSection(_Section):
    """`[client.NAME]`: a client on another host, by the name that `trunkline keys` gave its key.

    Attributes:
        providers: all that it may use; without this key every provider.
        admin: it may see the status, and swap, drain, reload, restart and stop.
    """

    providers: tuple[Filled, ...] | None = None
    admin: bool = False


class Document(_Section):
    """A whole file."""

    broker: BrokerSection = BrokerSection()
    worker: dict[WorkerName, WorkerSection] = Field(default_factory=dict)
    client: dict[ClientName, ClientSection] = Field(default_factory=dict)


class Settings(BaseModel):
    """Everything that was configured.

    Attributes:
        source: the file it comes from; `None` for the built-in configuration.
        run_dir: absolute path of the run directory; from the environment alone, where clients
            look too.
        environ: the environment that workers get their allowed variables from; never shown.
        overridden: the keys that the environment sets, with the variable of each.
    """

    model_config = ConfigDict(frozen=True)
    source: Path | None
    run_dir: Path
    broker: BrokerSection
    workers: dict[str, WorkerSection]
    clients: dict[str, ClientSection] = Field(default_factory=dict)
    environ: dict[str, str] = Field(repr=False, exclude=True)
    overridden: dict[tuple[str, ...], str] = Field(default_factory=dict)

    @property
    def paths(self) -> RunPaths:
        """The names inside the run directory."""
        return RunPaths(self.run_dir)

    @property
    def attachments_dir(self) -> Path:
        """Absolute path of the attachment store."""
        if not self.broker.attachments_dir:
            return default_attachments_dir(self.environ)
        base = self.source.parent if self.source is not None else Path.cwd()
        return (base / Path(self.broker.attachments_dir).expanduser()).absolute()

    @property
    def keys_dir(self) -> Path:
        """Absolute path of the directory of CURVE keys."""
        if not self.broker.keys_dir:
            return default_keys_dir(self.environ)
        base = self.source.parent if self.source is not None else Path.cwd()
        return (base / Path(self.broker.keys_dir).expanduser()).absolute()

    def access(self) -> dict[str, AccessSpec]:
        """Return what clients on other hosts may do, by name of their key."""
        return {
            name: AccessSpec(
                frozenset(section.providers) if section.providers is not None else None,
                is_admin=section.admin,
            )
            for name, section in self.clients.items()
        }

    @property
    def usage_file(self) -> Path:
        """Absolute path of the usage ledger."""
        if not self.broker.usage_file:
            return default_usage_file(self.environ)
        base = self.source.parent if self.source is not None else Path.cwd()
        return (base / Path(self.broker.usage_file).expanduser()).absolute()

    @property
    def endpoint(self) -> str:
        """The one address that a client is given."""
        return ipc(self.paths.control)

    def pool_specs(self) -> tuple[PoolSpec, ...]:
        """Return the pools as the core wants them, in the order of the file."""
        base = self.source.parent if self.source is not None else Path.cwd()
        return tuple(_pool_spec(name, item, base) for name, item in self.workers.items())

    def broker_spec(self) -> BrokerSpec:
        """Return the whole configuration as the core wants it."""
        return BrokerSpec(
            pools=self.pool_specs(),
            lane=ipc(self.paths.lane),
            workers_lane=ipc(self.paths.workers_lane),
            accept_manual=self.broker.accept_manual,
            drain_s=self.broker.drain_s,
            max_clients=self.broker.max_clients,
            max_calls_per_client=self.broker.max_calls_per_client,
            max_calls_per_worker=self.broker.max_calls_per_worker,
            orphan_timeout_s=self.broker.orphan_timeout_s,
            lease_s=self.broker.liveness_s,
            access=self.access(),
            attachments_dir=str(self.attachments_dir),
            attachments_bytes=self.broker.attachments_mib * _MIB,
            is_traced=bool(self.broker.traces),
            is_liveness_strict=self.environ.get(STRICT_VARIABLE, "0") != "0",
        )


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Find, read and check the configuration.

    Args:
        path: the file; `None`: `$TRUNKLINE_CONFIG`, `./trunkline.toml`,
            `$XDG_CONFIG_HOME/trunkline/trunkline.toml`, else the built-in configuration.
        environ: the environment; `None`: the process's own.

    Raises:
        ConfigError: a named file is missing, can't be parsed, or has wrong keys or values.
    """
    environment = dict(os.environ if environ is None else environ)
    source = _find(path, environment)
    text = _read(source) if source is not None else ""
    tree = _parse(text, source) if source is not None else builtin(environment)
    overridden = settable(_table(tree.get("worker"))).set_by(environment)
    merged = with_overrides(tree, overridden, environment)
    try:
        # From JSON-like values: lists become tuples, which strict checking of Python refuses.
        document = Document.model_validate(_checkable(merged))
    except ValidationError as exc:
        raise validation_error(exc, Document, text, source, overridden) from None
    _check_providers(document.worker, text, source)
    return Settings(
        source=source,
        run_dir=default_run_dir(environment),
        broker=document.broker,
        workers=document.worker,
        clients=document.client,
        environ=environment,
        overridden=overridden,
    )


def settable(workers: Collection[str]) -> Variables:
    """Return the variables that set keys of a configuration with these workers."""
    return variables(BrokerSection.model_fields, WorkerSection.model_fields, workers)


def _check_providers(workers: Mapping[str, WorkerSection], text: str, source: Path | None) -> None:
    """Refuse a provider of two pools: the second one could never register it."""
    owners: dict[str, str] = {}
    for name, section in workers.items():
        for at, provider in enumerate(section.providers):
            if provider in owners:
                path = ("worker", name, "providers", str(at))
                message = f"{'.'.join(path)} is a provider of worker.{owners[provider]} already"
                raise ConfigError(message, source, line_of(text, path), ".".join(path))
            owners[provider] = name


def _find(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path.expanduser().absolute()
    if named := environ.get(CONFIG_ENV):
        return Path(named).expanduser().absolute()
    return next((path for path in places(environ) if path.is_file()), None)


def places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where a configuration is looked for if nothing names one, in this order."""
    home = Path(environ.get("HOME") or Path.home())
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return (Path.cwd() / FILE_NAME, config_home / "trunkline" / FILE_NAME)


def _read(source: Path) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise ConfigError("no such file", source) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"can't be read: {exc}", source) from exc


def _parse(text: str, source: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise syntax_error(exc, source, text) from exc


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name: it may mean anything
        return False


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _checkable(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Turn lists into tuples, and in the options of workers dates into text instead."""
    whole = cast("dict[str, Any]", _with_tuples(tree))
    workers = _table(whole.get("worker"))
    for name, section in _table(tree.get("worker")).items():
        if isinstance(section, dict) and "options" in section:
            workers[name]["options"] = _with_text(cast("dict[str, Any]", section)["options"])
    return whole


def _with_tuples(value: object) -> object:
    if isinstance(value, dict):
        return {k: _with_tuples(v) for k, v in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in cast("list[object]", value))
    return value


def _with_text(value: object) -> object:
    """Return options as JSON can hold them."""
    if isinstance(value, dict):
        return {k: _with_text(v) for k, v in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_with_text(item) for item in cast("list[object]", value)]
    return value.isoformat() if isinstance(value, date | time) else value


def _pool_spec(name: str, section: WorkerSection, base: Path) -> PoolSpec:
    file, colon, entry = section.adapter.rpartition(":")
    adapter = section.adapter
    if colon and file.endswith(".py"):
        adapter = f"{base / Path(file).expanduser()}:{entry}"
    return PoolSpec(
        name=PoolName(name),
        adapter=adapter,
        providers=section.providers,
        options=section.options,
        replicas=section.replicas,
        python=_interpreter(section.python, base),
        environment=section.env,
        env_file=str(base / Path(section.env_file).expanduser()) if section.env_file else "",
        concurrency=section.concurrency,
        queue_size=section.queue_size,
        queue_timeout_s=section.queue_timeout_s,
        start_timeout_s=section.start_timeout_s,
        drain_s=section.drain_s,
        stop_s=section.stop_s,
        lease_s=section.lease_s,
        user=section.user,
        memory_limit_mib=section.memory_limit_mib,
        open_files_limit=section.open_files_limit,
        debug_prompts=section.debug_prompts,
        restart=RestartSpec(**section.restart.model_dump()),
    )


def _interpreter(python: str, base: Path) -> str:
    """Return the interpreter: a bare name is looked up in PATH, a directory is a venv."""
    path = base / Path(python).expanduser()
    if not python or ("/" not in python and not path.is_dir()):
        return python
    return str(path / "bin" / "python" if path.is_dir() else path)
