"""Workers as users of their own: what they are, what they reach, and what is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trunkline
from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.paths import RunPaths
from trunkline_broker.users import UserError, Users
from trunkline_protocol.ids import PoolName

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.images import a_png
from tests.support.timing import until

pytestmark = pytest.mark.integration
USER, UID, STRANGER_UID = "nobody", 65534, 1
CONFIG = f"""\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
user = "{USER}"
env = ["PYTHONPATH"]
python = "PYTHON"
"""
CONNECT = """\
import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError:
        print("denied")
    else:
        print("connected")
"""


# Without what belongs to an interpreter: another one of the same version may have to do.
MODULES = os.pathsep.join(
    path for path in sys.path if path and not path.startswith(sys.base_prefix)
)


def as_uid(uid: int, python: str, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  our own arguments
            [python, *arguments],
            user=uid,
            group=uid,
            extra_groups=(),
            cwd="/",
            env={"PYTHONPATH": MODULES},
            capture_output=True,
            text=True,
            check=False,
        )
    except PermissionError as exc:
        return str(exc)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def python() -> str:
    """Return an interpreter that other users can run and that finds this project."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes as other users")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for found in (sys.executable, f"/usr/local/bin/python{version}", f"/usr/bin/python{version}"):
        if os.access(found, os.X_OK) and not as_uid(
            UID, found, "-c", "import trunkline_workers.host"
        ):
            return found
    return pytest.skip(f"{USER} can't run any Python {version} with this checkout")


@pytest.fixture
def passable() -> Iterator[Path]:
    """Yield a directory that other users may pass through."""
    with run_directory() as root:
        root.chmod(0o711)
        yield root


def facts_of(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}


def environment_of(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/environ").read_text().split("\0"))


async def streams(broker: BrokerProcess) -> None:
    async with trunkline.connect(broker.endpoint) as llm:
        image = await llm.attachments.put(a_png(4, 4), name="a.png")
        blocks = [trunkline.ImageBlock(attachment=image).to_dict()]
        message = {"role": "user", "content": blocks}
        result = await llm.generate(provider="scripted", model="echo", messages=[message])
        assert result.failure is None, result.failure


async def test_a_worker_runs_as_its_user_and_nobody_else_gets_in(
    passable: Path, python: str
) -> None:
    """Its groups, home and sockets; also after its death and after another broker's."""
    config = CONFIG.replace('PYTHON"', f'{python}"')
    with broker_in(passable, config, {"PYTHONPATH": MODULES}) as broker:
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.until_ready, "scripted")
        ((pid,),) = broker.worker_pids().values()
        facts = facts_of(pid)
        assert set(facts["Uid"]) == {str(UID)}
        assert len(set(facts["Gid"])) == 1
        assert facts["Groups"] == []
        assert {"USER=nobody", "LOGNAME=nobody"} <= environment_of(pid)
        await streams(broker)

        control, lane = broker.paths.of_user(UID)
        mine = [str(control), str(lane)]
        others = [str(path) for path in broker.paths.sockets]
        assert (
            as_uid(UID, python, "-c", CONNECT, *mine, *others).split()
            == ["connected"] * 2 + ["denied"] * 4
        )
        assert as_uid(STRANGER_UID, python, "-c", CONNECT, *mine, *others).split() == ["denied"] * 6
        assert "PermissionError" in as_uid(
            UID, python, "-c", f"import os; os.listdir('{broker.run_dir}')"
        )

        os.kill(pid, signal.SIGKILL)
        # Whoever runs as this user can't take part as a worker of its own making.
        join = ["-m", "trunkline_workers", "--connect", f"ipc://{control}", "--pool", "scripted"]
        said = as_uid(UID, python, *join, "--adapter", "scripted", "--provider", "scripted")
        assert "BAD_TOKEN: workers of other users are started by the broker alone" in said

        others_of = lambda: set(broker.worker_pids().get("scripted", ())) - {pid}  # noqa: E731
        (second,) = await asyncio.to_thread(until, others_of, 15.0)
        await asyncio.to_thread(broker.until_ready, "scripted")
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.until_ready, "scripted")
        assert broker.worker_pids()["scripted"] == [second]
        await streams(broker)
        assert stat.S_IMODE(broker.run_dir.stat().st_mode) == 0o711


async def test_a_user_that_can_not_be_had_is_refused_by_name(passable: Path, python: str) -> None:
    """At the start, and by a reload, which then changes nothing."""
    plain = CONFIG.replace(f'user = "{USER}"', "")
    with broker_in(passable, plain) as broker:
        await asyncio.to_thread(broker.start)
        for user, said in (("no-such-user", "no such user"), (USER, "trunkline restart")):
            broker.config.write_text(CONFIG.replace(USER, user))
            async with trunkline.connect(broker.endpoint) as llm:
                with pytest.raises(trunkline.LlmError, match=said):
                    await llm.query("reload", {})
        broker.config.write_text(CONFIG.replace(USER, "no-such-user"))
        await asyncio.to_thread(broker.stop)
        broker.launch()
        assert await asyncio.to_thread(broker.wait) == 1
        assert "worker.scripted: user = 'no-such-user': this machine has no" in broker.log_text()


def test_a_user_that_can_not_come_near_is_refused(passable: Path, python: str) -> None:
    passable.chmod(0o700)
    specs = (PoolSpec(PoolName("a"), "scripted", user=USER),)
    with pytest.raises(UserError, match=r"worker\.a: .*can't pass through .*mode 0700"):
        Users(RunPaths(passable / "run"), specs)


def test_only_root_has_other_users(python: str) -> None:
    look = "from trunkline_broker.users import find_user; find_user('daemon')"
    assert "only a broker that runs as root" in as_uid(UID, python, "-c", look)
