"""What the broker core must know of the configuration, resolved once and frozen.

It does not know TOML, files or the environment; `config.py` builds these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trunkline_protocol import limits
from trunkline_protocol.ids import Generation, PoolName
from trunkline_protocol.secret import NO_TOKEN, SecretBytes


@dataclass(frozen=True, slots=True)
class RestartSpec:
    """When a dead worker is started again, and when the broker gives up.

    Attributes:
        intensity: more exits than this within `period_s` take the pool's slot down.
        period_s: length of the sliding window.
        initial_delay_s: pause before the first restart; doubles with each exit in the window.
        max_delay_s: bound of that pause.
    """

    intensity: int = 5
    period_s: float = 60.0
    initial_delay_s: float = 0.2
    max_delay_s: float = 10.0


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One `[worker.NAME]`: an adapter and the processes that run it.

    Attributes:
        name: NAME.
        adapter: builtin name, "module:Class" or "path/file.py:Class".
        providers: routes to register; empty: the adapter's own.
        options: the adapter's own table, handed on unread; its secrets are `SecretStr`.
        replicas: number of slots, each with one serving worker.
        python: interpreter of the workers; empty: the broker's own.
        environment: names of the variables that the workers get.
        env_file: file with more variables; empty: none. Only the shell reads it.
        concurrency: most running attempts per route of this pool; `None`: no limit.
        queue_size: most calls that wait per route.
        queue_timeout_s: longest wait for a place.
        start_timeout_s: from spawn to READY.
        drain_s: time a replaced worker gets for its calls and prepared calls.
        stop_s: time between TERM and KILL.
        lease_s: how long a prepared call is held for its dispatch.
        user: who the workers run as, if the broker is root; empty: who the broker is. They have its
            primary group alone.
        memory_limit_mib: address space of each worker; 0: no limit; `None`: as for all workers.
        open_files_limit: the same for open files.
        debug_prompts: write prompts and answers, as text, into the log of the worker and into its
            spans; never keys. For a while and for one pool: `trunkline reload` turns it on and off.
        restart: the rule for dead workers.
        directory: of the configuration, where the module of the adapter may be; empty: none.
    """

    name: PoolName
    adapter: str
    providers: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    replicas: int = 1
    python: str = ""
    environment: tuple[str, ...] = ()
    env_file: str = ""
    concurrency: int | None = None
    queue_size: int = 1024
    queue_timeout_s: float = 60.0
    start_timeout_s: float = 60.0
    drain_s: float = 600.0
    stop_s: float = 5.0
    lease_s: float = 60.0
    user: str = ""
    memory_limit_mib: int | None = None
    open_files_limit: int | None = None
    debug_prompts: bool = False
    restart: RestartSpec = RestartSpec()
    directory: str = ""


@dataclass(frozen=True, slots=True)
class AccessSpec:
    """What a client on another host may do.

    Attributes:
        providers: routes that it may use; `None`: all of them.
        is_admin: it may see the status, and swap, drain, reload, restart and stop.
    """

    providers: frozenset[str] | None = None
    is_admin: bool = False

    def allows(self, provider: str) -> bool:
        """Tell whether it may use a route."""
        return self.providers is None or provider in self.providers


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """Everything else; the defaults are those of `limits.py`.

    Attributes:
        pools: the configured pools.
        lane: address of the chunk lane that `WELCOME` tells clients.
        workers_lane: address of the lane that `REGISTERED` tells workers.
        accept_manual: workers that the broker did not start may make pools of their own.
        drain_s: what running calls get when the broker stops and whoever asks names no time.
        lease_s: for how long a worker of this host may send nothing before it counts as hung. Time
            that it waits for CPU is not counted.
        queue_bytes: most bytes of bodies that wait, all queues together.
        prepared_s: what a prepared call of an older broker is held for at most.
        remote_lease_s: liveness of workers on other hosts, whose links may drop for a while.
        remote_lane, remote_workers_lane: what clients and workers on other hosts are told.
        max_clients: most clients at once.
        clients_bound: what that bound comes from, for those that are refused.
        access: what clients on other hosts may do, by name of their key.
        attachments_dir: where workers of this host read attachments; empty: none are kept.
        attachments_bytes: most that the attachment store holds.
        detached_s: longest time that a running call goes on without a client.
        is_liveness_strict: a call that waits for an event that cannot come ends the broker, instead
            of being repaired. For tests.
        is_traced: the shell records a span per call, so attempts are children of that.
    """

    pools: tuple[PoolSpec, ...] = ()
    lane: str = ""
    workers_lane: str = ""
    accept_manual: bool = True
    drain_s: float = 30.0
    max_clients: int = limits.MAX_CLIENTS
    clients_bound: str = "[broker] max_clients"
    max_calls: int = 65_536
    max_calls_per_client: int = limits.MAX_OPEN_CALLS_PER_CLIENT
    max_calls_per_worker: int = limits.MAX_OPEN_CALLS_PER_WORKER
    max_queries_per_client: int = limits.MAX_OPEN_QUERIES_PER_CLIENT
    max_queries_per_worker: int = limits.MAX_OPEN_QUERIES_PER_WORKER
    max_workers: int = 256
    queue_bytes: int = 256 * 1024 * 1024
    lease_s: float = limits.LEASE_S
    remote_lease_s: float = 10.0
    settle_s: float = limits.SETTLE_S
    retention_s: float = limits.RETENTION_S
    orphan_timeout_s: float = limits.ORPHAN_TIMEOUT_S
    query_timeout_s: float = 30.0
    prepared_s: float = 60.0
    remote_lane: str = ""
    remote_workers_lane: str = ""
    access: Mapping[str, AccessSpec] = field(default_factory=dict[str, "AccessSpec"])
    attachments_dir: str = ""
    attachments_bytes: int = limits.ATTACHMENT_STORE_BYTES
    detached_s: float = limits.DETACHED_S
    is_liveness_strict: bool = False
    is_traced: bool = False


@dataclass(frozen=True, slots=True)
class StoredAttachment:
    """One file that the attachment store held at the start.

    Attributes:
        is_whole: `False`: an upload that was not finished.
    """

    attachment: str
    size_bytes: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class AliveWorker:
    """One line of the hint file: a worker whose process was found alive at start, or may live.

    Attributes:
        pid: its process; `None`: out of sight, as on another host. It may live or not.
        token: its spawn token, if the file has it; then it must prove itself with it.
        is_manual: no broker started it.
    """

    pool: PoolName
    slot: int
    generation: Generation
    pid: int | None
    token: SecretBytes = NO_TOKEN
    is_manual: bool = False
