"""The topology of `deploy/kubernetes/base`, with processes for pods and directories for volumes.

Arguments, probes, hooks and the script of the init container are those of the manifests; only
addresses and paths are exchanged. Kubernetes itself is what these tests play.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from trunkline_broker.key_files import add_peer, make_server
from trunkline_protocol.curve import CurveKeys

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.timing import SLOW, NotSoonEnoughError, until

BASE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "base"
PORTS = {
    "tcp_clients": "control",
    "tcp_clients_lane": "lane",
    "tcp_workers": "workersControl",
    "tcp_workers_lane": "workersLane",
}


def pod_of(name: str) -> dict[str, Any]:
    """Return the pod of the Deployment of a manifest."""
    documents = yaml.safe_load_all((BASE / name).read_text(encoding="utf-8"))
    (deployment,) = (each for each in documents if each["kind"] == "Deployment")
    return deployment["spec"]["template"]["spec"]


@dataclass(slots=True)
class WorkerPod:
    """A worker as its manifest starts it.

    Attributes:
        child: the process.
        tmp: its volume `tmp`.
    """

    child: subprocess.Popen[bytes]
    tmp: Path

    def probe(self, kind: str, patience_s: int | None = None) -> bool:
        """Run a probe; with another patience than the manifest's, if one is given."""
        (container,) = pod_of("worker.yaml")["containers"]
        *shell, script = container[kind]["exec"]["command"]
        script = script.replace("/tmp/", f"{self.tmp}/")  # noqa: S108  what the manifest says
        if patience_s is not None:
            script, count = re.subn(r"-lt \d+", f"-lt {patience_s}", script)
            assert count == 1
        return subprocess.run([*shell, script], capture_output=True, check=False).returncode == 0  # noqa: S603


@dataclass(slots=True)
class Cluster:
    """A broker, and workers that come and go.

    Attributes:
        root: everything is in here.
        broker: the one of the manifest.
        agent: the key of an agent.
        address: where agents connect.
        workers_address: where workers connect.
    """

    root: Path
    broker: BrokerProcess
    agent: CurveKeys
    address: str = ""
    workers_address: str = ""
    pods: list[WorkerPod] = field(default_factory=list[WorkerPod])

    def start_worker(self) -> WorkerPod:
        """Start a worker with the arguments of its manifest."""
        tmp = self.root / f"tmp{len(self.pods)}"
        tmp.mkdir()
        (container,) = pod_of("worker.yaml")["containers"]
        assert "command" not in container
        words = [
            word.replace("/tmp/", f"{tmp}/")  # noqa: S108  what the manifest says
            .replace("tcp://trunkline:7420", self.workers_address)
            .replace("/keys/worker.key", str(self.root / "pool.worker.key"))
            for word in container["args"]
        ]
        assert words[0] == "python"
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE")
        }
        with (tmp / "log").open("wb") as log:
            child = subprocess.Popen(  # noqa: S603  our own program
                [sys.executable, *words[1:]],
                stdout=log,
                stderr=log,
                env={**environ, "PYTHONWARNINGS": "error"},
            )
        pod = WorkerPod(child, tmp)
        self.pods.append(pod)
        return pod

    def replace_broker(self) -> None:
        """End the broker as the hook of its pod does, and start one that knows nothing of it."""
        (container,) = pod_of("broker.yaml")["containers"]
        *shell, script = container["lifecycle"]["preStop"]["exec"]["command"]
        assert "/run/trunkline/trunkline/" in script
        script = script.replace("/run/trunkline/trunkline", str(self.broker.run_dir))
        subprocess.run([*shell, script], check=True, timeout=20 * SLOW)  # noqa: S603
        assert self.broker.wait() == 0
        shutil.rmtree(self.broker.run_dir)  # an emptyDir goes with its pod
        self.broker.run_dir.mkdir(mode=0o700)
        self.broker.start()


def make_keys(root: Path) -> CurveKeys:
    """Make the keys, and put them where the script of the init container puts them."""
    made = root / "made"
    make_server(made)
    agent = add_peer(made, "clients", "agent", root / "agent.client.key")
    add_peer(made, "workers", "pool", root / "pool.worker.key")
    (root / "keys").mkdir(mode=0o700)
    (container,) = pod_of("broker.yaml")["initContainers"]
    script = container["args"][0]
    for path, here in (
        ("/secret/", f"{made}/"),
        ("/keys/", f"{root}/keys/"),
        ("/allowed-", f"{made}/"),
    ):
        assert path in script
        script = script.replace(path, here)
    subprocess.run([*container["command"], script], check=True)  # noqa: S603
    return agent


def broker_config(root: Path) -> str:
    """Return the broker's configuration with loopback addresses and its keys."""
    text = (BASE / "trunkline.toml").read_text(encoding="utf-8")
    text = re.sub(r'"0\.0\.0\.0:\d+"', '"127.0.0.1:0"', text)
    assert "/etc/trunkline/keys" in text
    return text.replace("/etc/trunkline/keys", str(root / "keys"))


@contextlib.contextmanager
def a_cluster() -> Iterator[Cluster]:
    """Yield a running broker; its port numbers stay when it is replaced, as a service's do."""
    with run_directory() as root:
        agent = make_keys(root)
        with broker_in(root, broker_config(root)) as broker:
            broker.start()
            found = broker.status()["endpoints"]["tcp"]
            text = broker.config.read_text(encoding="utf-8")
            for key, name in PORTS.items():
                text = re.sub(rf'(?m)^{key} = ".*"', f'{key} = "{found[name][6:]}"', text)
            broker.config.write_text(text, encoding="utf-8")
            cluster = Cluster(root, broker, agent, found["control"], found["workersControl"])
            try:
                yield cluster
            finally:
                for pod in cluster.pods:
                    pod.child.send_signal(signal.SIGINT)  # at once; the broker need not wait
                for pod in cluster.pods:
                    pod.child.wait(15 * SLOW)
                broker.kill()  # it would wait for a worker that was killed


def until_ready(pod: WorkerPod) -> None:
    """Wait until Kubernetes would call a worker ready."""
    try:
        until(lambda: pod.probe("readinessProbe"), 15.0)
    except NotSoonEnoughError:
        raise AssertionError((pod.tmp / "log").read_text(errors="replace")) from None
