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
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from trunkline_protocol import limits
from trunkline_protocol.ids import PoolName

from trunkline_broker.config_errors import (
    ConfigError,
    line_of,
    shown_key,
    syntax_error,
    validation_error,
)
from trunkline_broker.config_overrides import Variables, variables, with_overrides
from trunkline_broker.config_shape import unfit_value
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
from trunkline_broker.regular_files import UnfitFileError, read_regular
from trunkline_broker.secret_options import concealed

CONFIG_ENV: Final = "TRUNKLINE_CONFIG"
STRICT_VARIABLE: Final = "TRUNKLINE_STRICT_LIVENESS"  # set by the tests of this project
FILE_NAME: Final = "trunkline.toml"
_MAX_SECONDS: Final = 7 * 24 * 3600.0
_MIB: Final = 1024 * 1024
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_WORKERS: Final = 1024  # processes of all pools together
_MOST_MEMORY_MIB: Final = 16 * 1024 * 1024  # 16 TiB
_MOST_OPEN_FILES: Final = 1024 * 1024  # of Linux, if its `fs.nr_open` was not raised
_MOST_DOTS: Final = 1000
_PATH_OPTIONS: Final = ("apiKeyFile", "modelPath", "model_path")
_ADDRESS: Final = r"^$|^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"
_MOST_PORT: Final = 65535
_URL: Final = r"^$|^https?://[^\s/?#@]+(/[^\s?#]*)?$"
_USER: Final = r"^$|^[A-Za-z_][A-Za-z0-9_.-]{0,31}$"
_RESTART: Final = RestartSpec()
_POOL: Final = PoolSpec(PoolName(""), "")


def _with_a_port(address: str) -> str:
    """Return an address whose port there can be.

    Raises:
        ValueError: its port is above 65535.
    """
    port = address.rpartition(":")[2]
    if port and int(port) > _MOST_PORT:
        raise ValueError(
            f"port {port} is above {_MOST_PORT}; name one from 0 (any) to {_MOST_PORT}"
        )
    return address


Seconds = Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Period = Annotated[float, Field(gt=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Address = Annotated[str, Field(pattern=_ADDRESS), AfterValidator(_with_a_port)]
MemoryLimit = Annotated[int, Field(ge=0, le=_MOST_MEMORY_MIB)]
OpenFilesLimit = Annotated[int, Field(ge=0, le=_MOST_OPEN_FILES)]
PathText = Annotated[str, Field(max_length=4096)]
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
    python: PathText = ""
    requires: tuple[Filled, ...] = ()
    env: tuple[VariableName, ...] = ()
    env_file: PathText = ""
    concurrency: Count | None = None
    queue_size: Annotated[int, Field(ge=0, le=1_000_000)] = _POOL.queue_size
    queue_timeout_s: Seconds = _POOL.queue_timeout_s
    start_timeout_s: Period = _POOL.start_timeout_s
    drain_s: Seconds = _POOL.drain_s
    stop_s: Seconds = _POOL.stop_s
    lease_s: Annotated[float, Field(ge=0.001, le=3600, allow_inf_nan=False)] = _POOL.lease_s
    user: Annotated[str, Field(pattern=_USER)] = ""
    memory_limit_mib: MemoryLimit | None = None
    open_files_limit: OpenFilesLimit | None = None
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
    liveness_s: Annotated[float, Field(ge=2, le=600, allow_inf_nan=False)] = limits.LEASE_S
    max_clients: Count = limits.MAX_CLIENTS
    max_calls_per_client: Annotated[int, Field(ge=1, le=limits.MAX_OPEN_CALLS_PER_CLIENT)] = (
        limits.MAX_OPEN_CALLS_PER_CLIENT
    )
    max_calls_per_worker: Annotated[int, Field(ge=1, le=limits.MAX_OPEN_CALLS_PER_WORKER)] = (
        limits.MAX_OPEN_CALLS_PER_WORKER
    )
    memory_limit_mib: MemoryLimit = 0
    open_files_limit: OpenFilesLimit = 0
    attachments_dir: PathText = ""
    attachments_mib: Annotated[int, Field(ge=1, le=1024 * 1024)] = (
        limits.ATTACHMENT_STORE_BYTES // _MIB
    )
    tcp_clients: Address = ""
    tcp_clients_lane: Address = ""
    tcp_workers: Address = ""
    tcp_workers_lane: Address = ""
    plain_tcp: bool = False
    keys_dir: PathText = ""
    log_calls: Literal["failed", "all"] = "failed"
    metrics: Address = ""
    traces: Annotated[str, Field(pattern=_URL, max_length=2048)] = ""
    usage: bool = True
    usage_file: PathText = ""
    usage_days: Annotated[int, Field(ge=1, le=3650)] = 400
    usage_mib: Annotated[int, Field(ge=1, le=16 * 1024)] = 64

    @model_validator(mode="after")
    def _tcp_is_whole(self) -> Self:
        for name in ("tcp_clients", "tcp_workers"):
            control, lane = getattr(self, name), getattr(self, f"{name}_lane")
            if bool(control) != bool(lane):
                raise ValueError(f"{name} and {name}_lane need each other")
            for address in (control, lane):
                if address and self.plain_tcp and not is_loopback(address):
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
    def _base(self) -> Path:
        """Where relative paths begin: at the file, or without one in the current directory."""
        if self.source is not None:
            return self.source.parent
        return current_directory() or self.run_dir

    @property
    def paths(self) -> RunPaths:
        """The names inside the run directory."""
        return RunPaths(self.run_dir)

    @property
    def attachments_dir(self) -> Path:
        """Absolute path of the attachment store."""
        if not self.broker.attachments_dir:
            return default_attachments_dir(self.environ)
        return (self._base / Path(self.broker.attachments_dir).expanduser()).absolute()

    @property
    def keys_dir(self) -> Path:
        """Absolute path of the directory of CURVE keys."""
        if not self.broker.keys_dir:
            return default_keys_dir(self.environ)
        return (self._base / Path(self.broker.keys_dir).expanduser()).absolute()

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
        return (self._base / Path(self.broker.usage_file).expanduser()).absolute()

    @property
    def endpoint(self) -> str:
        """The one address that a client is given."""
        return ipc(self.paths.control)

    def pool_specs(self) -> tuple[PoolSpec, ...]:
        """Return the pools as the core wants them, in the order of the file."""
        has_file = self.source is not None
        return tuple(
            _pool_spec(name, item, self._base, has_file=has_file)
            for name, item in self.workers.items()
        )

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
    _check_shape(tree, text, source, {})  # before anything walks through it
    overridden = settable(_table(tree.get("worker"))).set_by(environment)
    merged = with_overrides(tree, overridden, environment)
    _check_shape(merged, text, source, overridden)
    try:
        # From JSON-like values: lists become tuples, which strict checking of Python refuses.
        document = Document.model_validate(_checkable(merged))
    except ValidationError as exc:
        raise validation_error(exc, Document, text, source, overridden) from None
    _check_providers(document.worker, text, source)
    _check_count(document.worker, source)
    settings = Settings(
        source=source,
        run_dir=default_run_dir(environment),
        broker=document.broker,
        workers=document.worker,
        clients=document.client,
        environ=environment,
        overridden=overridden,
    )
    _check_paths(settings)
    return settings


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


def _check_shape(
    tree: Mapping[str, Any],
    text: str,
    source: Path | None,
    overridden: Mapping[tuple[str, ...], str],
) -> None:
    """Refuse a value that is too deep, too large or no text, in any table."""
    found = unfit_value(tree)
    if found is None:
        return
    path, wrong = found
    variable = next(
        (overridden[path[:n]] for n in range(len(path), 0, -1) if path[:n] in overridden), ""
    )
    line = None if variable else line_of(text, path)
    place = f" (from {variable})" if variable else ""
    raise ConfigError(f"{shown_key(path)} {wrong}{place}", source, line, shown_key(path))


def _check_count(workers: Mapping[str, WorkerSection], source: Path | None) -> None:
    """Refuse more processes than one broker can serve."""
    count = sum(section.replicas for section in workers.values())
    if count > MAX_WORKERS:
        text = f"all workers have {count} replicas together; at most {MAX_WORKERS} are allowed"
        raise ConfigError(text, source, None, "worker")


def _check_paths(settings: Settings) -> None:
    """Refuse a path that is not UTF-8: it could be told to no client and shown to nobody."""
    for path in (
        settings.source,
        settings.run_dir,
        settings.attachments_dir,
        settings.keys_dir,
        settings.usage_file,
    ):
        try:
            str(path or "").encode()
        except UnicodeEncodeError:
            text = f"the path {str(path)!a} is not UTF-8; use another directory"
            raise ConfigError(text) from None


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
    here = current_directory()
    own = config_home / "trunkline" / FILE_NAME
    return (own,) if here is None else (here / FILE_NAME, own)


def current_directory() -> Path | None:
    """Return the current directory; `None` if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _read(source: Path) -> str:
    """Return the text of a file; a pipe, a device or a directory is refused at once."""
    try:
        return read_regular(source, MAX_FILE_BYTES).decode("utf-8")
    except FileNotFoundError as exc:
        raise ConfigError("no such file", source) from exc
    except UnfitFileError as exc:
        raise ConfigError(f"{exc.strerror}; a configuration is a TOML file", source) from exc
    except (OSError, ValueError) as exc:  # ValueError: not UTF-8, or a name with NUL
        raise ConfigError(f"can't be read: {exc}", source) from exc


def _parse(text: str, source: Path) -> dict[str, Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MOST_DOTS:  # the parser takes a time that is quadratic in them
            message = f"has more than {_MOST_DOTS} dots in one line; give it shorter keys"
            raise ConfigError(message, source, number)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise syntax_error(exc, source, text) from exc
    except RecursionError:
        raise ConfigError(
            "its tables or lists are nested too deeply; make it flatter", source
        ) from None
    except ValueError as exc:  # a number of thousands of digits
        raise ConfigError(f"a value cannot be read: {exc}", source) from exc


def is_loopback(address: str) -> bool:
    """Return whether `HOST:PORT` is an address that only this machine reaches."""
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


def _pool_spec(name: str, section: WorkerSection, base: Path, *, has_file: bool) -> PoolSpec:
    file, colon, entry = section.adapter.rpartition(":")
    adapter = section.adapter
    if colon and file.endswith(".py"):
        adapter = f"{base / Path(file).expanduser()}:{entry}"
    return PoolSpec(
        name=PoolName(name),
        adapter=adapter,
        directory=str(base) if has_file else "",
        providers=section.providers,
        options=_with_paths(section.options, base),
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


def _with_paths(options: Mapping[str, Any], base: Path) -> Mapping[str, Any]:
    """Return options whose paths of files are absolute: a worker runs in another directory."""
    found = {
        name: str(base / Path(options[name]).expanduser())
        for name in _PATH_OPTIONS
        if isinstance(options.get(name), str) and options[name]
    }
    return {**options, **found} if found else options


def _interpreter(python: str, base: Path) -> str:
    """Return the interpreter: a bare name is looked up in PATH, a directory is a venv."""
    path = base / Path(python).expanduser()
    if not python or ("/" not in python and not path.is_dir()):
        return python
    return str(path / "bin" / "python" if path.is_dir() else path)
