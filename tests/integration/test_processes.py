"""Worker processes for real: started, watched, signalled, reaped once, adopted.

The "interpreter" of these pools is a script that does what a test wants of a worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from trunkline_broker import outputs
from trunkline_broker.core.effects import Adopt, Forget, NoteUnseen, Signal, Spawn
from trunkline_broker.core.events import (
    ClientExited,
    Event,
    ProcessExited,
    ProcessSpawned,
    SpawnFailed,
)
from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.hints import read_hints
from trunkline_broker.paths import RunPaths
from trunkline_broker.processes import Processes, alive
from trunkline_broker.resources import worker_rules
from trunkline_protocol.ids import Epoch, Generation, PoolName
from trunkline_protocol.secret import SecretBytes

from tests.support.broker import run_directory
from tests.support.loops import LOOPS, run_on
from tests.support.processes import is_alive
from tests.support.timing import until, until_async

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("loop", sorted(LOOPS))]
KEY = "a-word-of-nobodys-pattern"
TOKEN = SecretBytes(b"\x01\x02")
POOL = PoolName("a")


class Watched:
    """A `Processes` with what it has reported."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root / "run")
        self.paths.prepare()
        self.events: list[Event] = []
        self.counts: list[str] = []
        self.root = root
        self.processes = self._fresh()

    def _fresh(self) -> Processes:
        environ = dict(os.environ) | {"CANARY": "x", "NAMED": "y"}
        rules = worker_rules(0, 64)
        return Processes(self.paths, self.events.append, self.counts.append, environ, 30.0, rules)

    def restart(self) -> None:
        """Forget everything, as a new broker would."""
        self.processes.close()
        self.processes = self._fresh()

    def order(self, body: str, number: int = 1) -> Spawn:
        """Return the order to start a worker that runs this Python text."""
        script = self.root / f"worker{number}"
        script.write_text(f"#!{sys.executable}\n{body}\n")
        script.chmod(0o700)
        spec = PoolSpec(POOL, "scripted", python=str(script), environment=("NAMED",))
        return Spawn(POOL, 0, Generation(Epoch(10**9), number), spec, TOKEN)

    async def spawn(self, body: str, number: int = 1) -> tuple[Spawn, int]:
        """Start a worker; return the order and its pid."""
        order = self.order(body, number)
        self.processes.spawn(order)
        spawned = self.events[-1]
        assert isinstance(spawned, ProcessSpawned), spawned
        return order, spawned.pid

    async def exited(self) -> ProcessExited:
        """Wait for the next exit."""
        return await until_async(
            lambda: next((e for e in self.events if isinstance(e, ProcessExited)), None)
        )

    def exits(self) -> list[int]:
        """Name the workers whose exit was reported, as often as it was."""
        return [e.generation.number for e in self.events if isinstance(e, ProcessExited)]

    def output(self, order: Spawn) -> Path:
        return outputs.output_path(self.paths.workers, POOL, 0, *order.generation)


def a_sleeper() -> subprocess.Popen[bytes]:
    """Return a process that does nothing for long."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def is_there(pid: int) -> bool:
    """Say whether a process exists, a zombie included."""
    return Path(f"/proc/{pid}").exists()


@contextmanager
def watched() -> Iterator[Watched]:
    """Yield a fresh one on the running loop; nothing of it is left."""
    with run_directory() as root:
        it = Watched(root)
        try:
            yield it
        finally:
            it.processes.kill_all()
            it.processes.close()


def test_a_worker_gets_its_boot_document_and_little_else(loop: str) -> None:
    """The document to its end on the descriptor, allowed variables, a session of its own."""

    async def job() -> None:
        with watched() as it:
            body = """
import json, os, sys, resource, time
while resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 64:  # set just after the start
    time.sleep(0.005)
fd = int(sys.argv[sys.argv.index("--boot-fd") + 1])
document = json.loads(open(fd).read())
print(json.dumps([sys.argv[1:4], os.getcwd(), document, sorted(os.environ),
    os.getsid(0) == os.getpid(),
    sorted(os.listdir("/proc/self/fd")), sys.stdin.read(),
    resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""
            order, _ = await it.spawn(body)
            exited = await it.exited()
            assert exited.exit_text == "status 0"
            argv, cwd, document, names, leads, fds, stdin, files = json.loads(
                exited.output_tail[-1]
            )
            assert argv == ["-P", "-m", "trunkline_workers"]
            assert cwd == str(it.paths.root)
            assert document == {
                "control": f"ipc://{it.paths.workers_control}",
                "pool": "a",
                "slot": 0,
                "generation": [10**9, 1],
                "lane": "",
                "token": "0102",
                "adapter": "scripted",
                "beside": "",
                "providers": [],
                "options": {},
                "standby": False,
                "orphanTimeoutMs": 30000,
                "traces": "",
                "leaseMs": 60000,
                "debugPrompts": False,
            }
            assert "NAMED" in names
            assert "CANARY" not in names
            assert leads
            assert len(fds) == 4  # 0, 1, 2 and the one of listdir
            assert stdin == ""
            assert files == [64, 64]
            assert it.output(order).stat().st_mode & 0o777 == 0o600

    run_on(loop, job())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise SystemExit(3)", "status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11 (SIGSEGV)"),
        ("import os; os.kill(os.getpid(), 40)", "signal 40"),
    ],
)
def test_an_exit_is_reported_once_and_nothing_is_left(loop: str, body: str, text: str) -> None:
    """With how it ended and its last words; the hint file forgets it."""

    async def job() -> None:
        with watched() as it:
            _, pid = await it.spawn("print('last words', flush=True)\n" + body)
            exited = await it.exited()
            assert exited.exit_text == text
            assert exited.output_tail == ("last words",)
            assert not is_there(pid)
            assert read_hints(it.paths.hints) == []
            await it.spawn("", 2)
            await until_async(lambda: it.exits() == [1, 2])

    run_on(loop, job())


def test_last_words_show_no_key_of_a_file_and_a_pipe_holds_nobody_up(loop: str) -> None:
    """The worker reads its key from there; what it does not clean, the broker does."""

    async def job() -> None:
        with watched() as it:
            for number, make in enumerate((_key_file, os.mkfifo), 1):
                file = it.root / f"key{number}"
                make(file)
                order = it.order(f"import os; os.write(1, b'{KEY}')", number)
                spec = replace(order.spec, options={"apiKeyFile": str(file)})
                it.processes.spawn(replace(order, spec=spec))
                exited = await it.exited()
                assert exited.output_tail == ("[redacted]",)
                it.events.clear()

    run_on(loop, job())


def _key_file(path: Path) -> None:
    path.write_text(f"{KEY}\n")


def test_a_worker_that_can_not_be_started_is_reported(loop: str) -> None:
    """The reason names the interpreter."""

    async def job() -> None:
        with watched() as it:
            order = it.order("")
            missing = replace(order, spec=replace(order.spec, python="/nowhere/python"))
            it.processes.spawn(missing)
            (event,) = it.events
            assert isinstance(event, SpawnFailed)
            assert "/nowhere/python" in event.reason

    run_on(loop, job())


def test_signals_reach_the_whole_group(loop: str) -> None:
    """TERM may be handled; after KILL neither the worker nor its helper is left."""

    async def job() -> None:
        with watched() as it:
            body = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("term", flush=True))
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('helping', flush=True)"
helper = subprocess.Popen([sys.executable, "-c", deaf + "; time.sleep(600)"])
print(helper.pid, flush=True)
while True: time.sleep(600)
"""
            order, pid = await it.spawn(body)
            lines = await until_async(
                lambda: (t := outputs.last_lines(it.output(order))) and len(t) == 2 and t
            )
            helper = int(next(line for line in lines if line.isdigit()))
            it.processes.signal(Signal(POOL, 0, order.generation, "TERM"))
            await until_async(lambda: "term" in outputs.last_lines(it.output(order)))
            assert is_alive(helper)
            it.processes.signal(Signal(POOL, 0, order.generation, "KILL"))
            assert (await it.exited()).exit_text == "signal 9 (SIGKILL)"
            await until_async(lambda: not is_alive(helper))
            assert not is_alive(pid)
            it.processes.signal(Signal(POOL, 0, order.generation, "KILL"))  # late: nothing

    run_on(loop, job())


def test_a_helper_does_not_outlive_its_worker(loop: str) -> None:
    """However the worker ends."""

    async def job() -> None:
        with watched() as it:
            body = """
import subprocess, sys
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(helper.pid, flush=True)
import os; os._exit(0)
"""
            await it.spawn(body)
            helper = int((await it.exited()).output_tail[0])
            await until_async(lambda: not is_alive(helper))

    run_on(loop, job())


def test_the_next_broker_adopts_what_lives(loop: str) -> None:
    """By the hint file; its end is noticed, its status is unknown, its output is still read."""

    async def job() -> None:
        with watched() as it:
            order, pid = await it.spawn("print('alive', flush=True)\nimport time; time.sleep(600)")
            await until_async(lambda: outputs.last_lines(it.output(order)))
            it.restart()
            (hint,) = alive(read_hints(it.paths.hints))
            assert (hint.pid, hint.token.get_secret_value()) == (pid, "0102")
            it.processes.remember([hint])
            adopt = Adopt(POOL, 0, order.generation, pid, TOKEN)
            it.processes.adopt(adopt)
            it.processes.adopt(adopt)
            assert alive(read_hints(it.paths.hints)) == [hint]
            it.processes.signal(Signal(POOL, 0, order.generation, "KILL"))
            # We are its parent in this test, so that it needs us to vanish.
            await asyncio.to_thread(os.waitpid, pid, 0)
            exited = await it.exited()
            assert exited.exit_text == "unknown status"
            assert exited.output_tail == ("alive",)

    run_on(loop, job())


def test_a_pid_that_was_used_again_is_not_adopted(loop: str) -> None:
    """The process of that pid is another one: the worker is reported as gone, nobody is hurt."""

    async def job() -> None:
        with watched() as it:
            order, pid = await it.spawn("import time; time.sleep(600)")
            (hint,) = read_hints(it.paths.hints)
            it.processes.remember([hint.model_copy(update={"started_ticks": 1})])
            other = Generation(Epoch(1), 1)
            it.processes.adopt(Adopt(POOL, 0, other, pid))
            assert it.events[-1] == ProcessExited(POOL, 0, other, "unknown status")
            assert is_alive(pid)
            it.processes.adopt(Adopt(POOL, 0, other, 2**22 + 1))
            assert it.events[-1] == ProcessExited(POOL, 0, other, "unknown status")
            it.processes.signal(Signal(POOL, 0, order.generation, "KILL"))
            await it.exited()

    run_on(loop, job())


def test_workers_that_no_broker_started_are_named_to_the_next_one(loop: str) -> None:
    """By hand on this host, with their pid; out of sight, without one, until they leave."""

    async def job() -> None:
        with watched() as it:
            by_hand = a_sleeper()
            try:
                here, far = Generation(Epoch(7), 1), Generation(Epoch(7), 2)
                it.processes.adopt(Adopt(POOL, 0, here, by_hand.pid, is_manual=True))
                it.processes.note_unseen(NoteUnseen(POOL, 1, far))
                hints = alive(read_hints(it.paths.hints))
                assert [(hint.pid, hint.is_manual) for hint in hints] == [
                    (by_hand.pid, True),
                    (None, True),
                ]
                it.processes.forget(Forget(POOL, 1, far))
                assert len(read_hints(it.paths.hints)) == 1
                it.processes.forget(Forget(POOL, 0, here))  # given up, and back as another one
                it.processes.adopt(Adopt(POOL, 0, far, by_hand.pid, is_manual=True))
                (hint,) = read_hints(it.paths.hints)
                assert (hint.number, hint.pid) == (far.number, by_hand.pid)
            finally:
                by_hand.kill()
                by_hand.wait()
            await it.exited()
            exits = [event for event in it.events if isinstance(event, ProcessExited)]
            assert [event.generation for event in exits] == [far]

    run_on(loop, job())


def test_a_worker_started_by_hand_is_signalled_alone(loop: str) -> None:
    """It shares its group with others."""

    async def job() -> None:
        with watched() as it:
            by_hand, beside = a_sleeper(), a_sleeper()
            try:
                generation = Generation(Epoch(0), 0)
                it.processes.adopt(Adopt(POOL, 0, generation, by_hand.pid))
                it.processes.signal(Signal(POOL, 0, generation, "TERM"))
                assert await asyncio.to_thread(by_hand.wait) == -signal.SIGTERM
                await it.exited()
                assert is_alive(beside.pid)
            finally:
                for child in (by_hand, beside):
                    child.kill()
                    child.wait()

    run_on(loop, job())


def test_a_client_s_end_is_noticed(loop: str) -> None:
    """At once; also if it ended before it was watched; not after it was unwatched."""

    async def job() -> None:
        with watched() as it:
            watched_one, unwatched = a_sleeper(), a_sleeper()
            for child in (watched_one, unwatched):
                it.processes.watch_client(child.pid)
                it.processes.watch_client(child.pid)
            it.processes.unwatch_client(unwatched.pid)
            it.processes.unwatch_client(unwatched.pid)
            for child in (unwatched, watched_one):
                child.kill()
                await asyncio.to_thread(child.wait)
            await until_async(lambda: it.events == [ClientExited(watched_one.pid)])
            it.processes.watch_client(unwatched.pid)
            assert it.events[-1] == ClientExited(unwatched.pid)

    run_on(loop, job())


def test_what_is_no_process_counts_as_one_that_is_gone(loop: str) -> None:
    """Workers name the processes of clients after a restart, and may name anything."""

    async def job() -> None:
        with watched() as it:
            is_over = threading.Event()
            thread = threading.Thread(target=is_over.wait, daemon=True)
            thread.start()
            no_processes = [0, 2**31, 2**62, thread.native_id or 0]
            for pid in no_processes:
                it.processes.watch_client(pid)
            is_over.set()
            assert it.events == [ClientExited(pid) for pid in no_processes]

    run_on(loop, job())


def test_without_a_descriptor_a_process_is_not_watched(loop: str) -> None:
    """It may live: its client is judged by its connection."""

    async def job() -> None:
        with watched() as it:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                it.processes.watch_client(os.getppid())
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert it.events == []
            assert it.counts == ["clients.unwatched"]

    run_on(loop, job())


def test_output_beyond_the_limit_is_cut(loop: str) -> None:
    """A worker that prints for ever keeps two files of bounded size; it is never blocked."""

    async def job() -> None:
        with watched() as it:
            body = """
line = "x" * 1000
for _ in range(3000): print(line)
print("done", flush=True)
import time; time.sleep(600)
"""
            order, _ = await it.spawn(body)
            await until_async(lambda: "output.cut" in it.counts)
            path = it.output(order)
            until(lambda: outputs.last_lines(path)[-1:] == ("done",))
            kept = [path, path.with_suffix(".old")]
            assert all(f.stat().st_size <= outputs.OUTPUT_LIMIT_BYTES for f in kept)

    run_on(loop, job())


def test_a_worker_may_have_limits_of_its_own(loop: str) -> None:
    """They go before the common ones, and 0 is none."""

    async def job() -> None:
        body = """
import json, resource, time
while resource.getrlimit(resource.RLIMIT_NOFILE)[0] != {files}:  # set just after the start
    time.sleep(0.005)
print(json.dumps([resource.getrlimit(resource.RLIMIT_AS)[0], {files}]))
"""
        for memory, files, wanted in (
            (512, 33, [512 << 20, 33]),
            (None, None, [resource.RLIM_INFINITY, 64]),
            (0, 0, [resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_NOFILE)[0]]),
        ):
            with watched() as it:
                order = it.order(body.format(files=wanted[1]))
                limits = {"memory_limit_mib": memory, "open_files_limit": files}
                it.processes.spawn(replace(order, spec=replace(order.spec, **limits)))
                assert json.loads((await it.exited()).output_tail[-1]) == wanted

    run_on(loop, job())


def test_without_room_for_output_a_worker_still_runs(loop: str) -> None:
    """Disk full: what it prints is lost and counted, and the hint file too."""

    async def job() -> None:
        with watched() as it:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            it.paths.workers.chmod(0o700)
            it.paths.workers.rename(it.root / "elsewhere")  # nothing can be created in it
            it.paths.hints.with_suffix(".new").mkdir()
            _, pid = await it.spawn("print('unheard'); import time; time.sleep(600)")
            assert is_alive(pid)
            assert it.counts == ["output.lost", "hints.lost"]
            assert limit == resource.getrlimit(resource.RLIMIT_FSIZE)

    run_on(loop, job())
