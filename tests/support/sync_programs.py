"""Programs that use the blocking facade in ways that once hung; each runs in a process of its own.

`python -m tests.support.sync_programs NAME ENDPOINT [ARGUMENT]`. Each prints what it has seen, and
ends by itself: that it ends at all is what the tests look at.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import trunkline
from trunkline import ForkedClientError, GenerateOptions, StreamChunk, SyncNextStream, SyncRuntime

from tests.support.timing import SLOW, until

ASK: dict[str, Any] = {"provider": "a", "model": "m", "messages": "hello"}
CHILD_S = 20.0


def say(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


def descriptors(endpoint: str, free: str) -> None:
    """Connect with so many free descriptors."""
    with trunkline.connect_sync(endpoint):  # everything is imported, all modules are open
        pass
    child = os.fork()  # without the threads and the context of this connection
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    used = len(os.listdir("/proc/self/fd")) - 1  # the one of the listing is closed again
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(free), 4096))
    try:
        with trunkline.connect_sync(endpoint, timeout_s=5 * SLOW) as llm:
            say("connected", llm.models())
    except trunkline.BrokerUnreachableError as exc:
        say("told", exc)
    sys.stdout.flush()
    os._exit(0)


def lane_without_descriptor(endpoint: str, _: str) -> None:
    """Ask for a new lane while no descriptor is free; then free one."""
    with trunkline.connect_sync(endpoint) as llm:
        inside: Any = llm  # nothing public replaces a lane
        shell, portal = inside._runtime._shell, inside._portal
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))

        def lose() -> None:
            shell._connection._close_lane()
            shell.mux._link._proven_s -= 2
            shell.perform(shell.mux._link.doubt(1, time.monotonic()))

        portal.call(lose)
        until(lambda: llm.counters.get("unopened_lanes", 0) > 0)
        say("unopened")
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        say("chunks", len(list(llm.stream(**ASK))))


def forks(endpoint: str, count: str) -> None:
    """Fork while three threads use the runtime; each child uses it too."""
    with trunkline.connect_sync(endpoint) as llm:
        over = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while not over.is_set():
                    llm.models()
            except BaseException as exc:  # noqa: BLE001  it is looked at
                failures.append(exc)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        open_stream = llm.stream(**ASK)
        first = next(open_stream)
        codes = [_child_of(llm, open_stream) for _ in range(int(count))]
        over.set()
        for thread in threads:
            thread.join(CHILD_S * SLOW)
        rest = len(list(open_stream))
        say("codes", sorted(set(codes)), "failures", failures)
        say("stream", type(first).__name__, 1 + rest, "models", llm.models())


def _child_of(llm: SyncRuntime, stream: Any) -> int:
    """Return the exit code of a forked child that uses its parent's runtime; -1 if it hung."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for use in (llm.models, lambda: [*stream], lambda: llm.generate(**ASK)):
                try:
                    use()
                except ForkedClientError:
                    continue
                os._exit(2)
            stream.close()
            llm.close()
            code = 0
        finally:
            os._exit(code)
    deadline_s = time.monotonic() + CHILD_S * SLOW
    while time.monotonic() < deadline_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def fork_and_exit(endpoint: str, _: str) -> None:
    """Fork a child that ends as programs do, through the interpreter's end, streams open."""
    with trunkline.connect_sync(endpoint) as llm:
        stream = llm.stream(**ASK)
        next(stream)
        child = os.fork()
        if child == 0:
            sys.exit(7)
        until(lambda: os.waitpid(child, os.WNOHANG)[0] == child, CHILD_S)
        say("parent", 1 + len(list(stream)), llm.models())


def fork_and_connect(endpoint: str, _: str) -> None:
    """Fork a child that connects for itself while its parent's stream is open."""
    with trunkline.connect_sync(endpoint) as llm:
        stream = llm.stream(**ASK)
        next(stream)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with trunkline.connect_sync(endpoint) as own:
                    code = 0 if own.models() == ["a"] else 2
            finally:
                os._exit(code)
        ended: list[int] = []

        def has_ended() -> bool:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                ended.append(os.waitstatus_to_exitcode(status))
            return bool(ended)

        until(has_ended, CHILD_S)
        say("child", ended, "parent", 1 + len(list(stream)), llm.models())


def close_by_signal(endpoint: str, what: str) -> None:
    """Close the runtime in a signal handler, wherever that interrupts the main thread."""
    llm = trunkline.connect_sync(endpoint)
    closed: list[str] = []

    def handler(*_: object) -> None:
        llm.close()
        closed.append("closed")

    signal.signal(signal.SIGTERM, handler)
    with llm:
        say("ready")
        try:
            while True:
                if what == "stream":
                    for chunk in llm.stream(**ASK):
                        chunk.__class__  # noqa: B018  reading is all
                else:
                    llm.models()
        except trunkline.LocalProtocolError as exc:
            say("ended", exc)
        except trunkline.LlmError as exc:
            say("ended", exc.code)
    say(*closed)


def calls_by_signal(endpoint: str, seconds: str) -> None:
    """Use the runtime in a handler that is called every millisecond, and outside of it."""
    with trunkline.connect_sync(endpoint) as llm:
        calls = [0]
        is_inside = [False]

        def handler(*_: object) -> None:
            if is_inside[0]:
                return  # the interval is shorter than the call
            is_inside[0] = True
            calls[0] += llm.models() == ["a"]
            is_inside[0] = False

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        whole = 0
        until_s = time.monotonic() + float(seconds)
        while time.monotonic() < until_s:
            whole += len(list(llm.stream(**ASK))) == 4
            llm.generate(**ASK)
        signal.setitimer(signal.ITIMER_REAL, 0)
        say("handled", calls[0] > 20, "streams", whole > 5)


def interrupts(endpoint: str, seconds: str) -> None:
    """Raise in the main thread at random instructions; no chunk is lost and nothing hangs."""
    numbers = os.urandom(4096)
    with trunkline.connect_sync(endpoint) as llm:

        def handler(*_: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, handler)
        interrupted, whole, at = 0, 0, 0
        until_s = time.monotonic() + float(seconds)
        while time.monotonic() < until_s:
            seen: list[StreamChunk] = []
            try:
                stream = llm.stream(**ASK)
                at = (at + 1) % len(numbers)
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + numbers[at] * 1.2e-5)
                while True:
                    try:
                        seen += [*stream]
                        break
                    except KeyboardInterrupt:
                        interrupted += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
                continue
            whole += len(seen) == 4
        say("interrupted", interrupted > 10, "whole", whole > 0)
        say("models", llm.models())


def exit_with_streams(endpoint: str, _: str) -> None:
    """End the interpreter with a connected runtime, an open stream and busy threads."""
    llm = trunkline.connect_sync(endpoint)
    llm.__enter__()
    streams = [llm.stream(**ASK) for _ in range(3)]
    for stream in streams:
        next(stream)

    def read() -> None:
        while True:
            llm.models()

    threading.Thread(target=read, daemon=True).start()
    say("leaving")


def exit_with_listener(endpoint: str, _: str) -> None:
    """End the interpreter while a blocking listener waits for a silent provider."""
    llm = trunkline.connect_sync(endpoint)
    llm.__enter__()

    def through(_: GenerateOptions, next_: SyncNextStream) -> Iterator[StreamChunk]:
        yield from next_()

    llm.use("llm/stream", through)
    stream = llm.stream(**ASK)
    next(stream)
    threading.Thread(target=lambda: next(stream), daemon=True).start()
    time.sleep(0.2)  # nothing tells that the thread waits
    say("leaving")


def thread_dies(endpoint: str, _: str) -> None:
    """End the runtime's thread under calls that wait."""
    llm = trunkline.connect_sync(endpoint)
    with llm:
        stream = llm.stream(**ASK)
        next(stream)
        inside: Any = llm  # nothing public ends the thread
        portal = inside._portal

        def die() -> None:
            raise SystemExit(3)

        portal._loop.call_soon_threadsafe(portal._loop.call_later, 0.2, die)
        uses: list[Callable[[], object]] = [lambda: [*stream], llm.models]
        for use in uses:
            try:
                use()
            except trunkline.LocalProtocolError as exc:
                say("told", exc)
    say("closed")


def main() -> None:
    name, endpoint, *rest = sys.argv[1:]
    globals()[name](endpoint, rest[0] if rest else "")


if __name__ == "__main__":
    main()
