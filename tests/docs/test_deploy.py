"""What is under `deploy/` is accepted by whoever would run it, as far as that is at hand."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from trunkline_broker.config import load
from trunkline_broker.key_files import add_peer, make_server
from trunkline_broker.paths import (
    default_attachments_dir,
    default_run_dir,
    default_usage_file,
)
from trunkline_protocol.version import __version__
from trunkline_workers.boot import read_boot

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"needs {program}")


@needs("systemd-analyze")
@pytest.mark.parametrize(
    "name", ["trunkline.service", "trunkline-user.service", "trunkline-worker@.service"]
)
def test_systemd_takes_the_units(tmp_path: Path, name: str) -> None:
    """With the path of a program that exists."""
    text = (DEPLOY / "systemd" / name).read_text()
    unit = tmp_path / name
    program = re.compile(r"^(Exec(?:Start|Reload)=)\S+", re.MULTILINE)
    unit.write_text(program.sub(r"\1/bin/true", text))
    is_user = "user" in name
    command = ["systemd-analyze", *(["--user"] if is_user else []), "verify", str(unit)]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert name not in done.stderr


def test_the_units_do_what_keeps_workers_alive() -> None:
    for name in ("trunkline.service", "trunkline-user.service"):
        path = DEPLOY / "systemd" / name
        lines = path.read_text().splitlines()
        for line in (
            "Type=notify",
            "KillMode=process",
            "ExecReload=/bin/sh -c 'kill -USR2 $MAINPID'",  # not every system has /bin/kill
            "RuntimeDirectoryPreserve=restart",
            "LimitCORE=0",
        ):
            assert line in lines, f"{path.name}: {line}"
        assert any(line.startswith("WatchdogSec=") for line in lines)


@needs("systemd-analyze")
@pytest.mark.parametrize("name", ["trunkline.service", "trunkline-worker@.service"])
def test_the_system_units_are_hardened(tmp_path: Path, name: str) -> None:
    unit = tmp_path / name.replace("@", "@pool")
    unit.write_text((DEPLOY / "systemd" / name).read_text())
    command = ["systemd-analyze", "security", "--offline=yes", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    score = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert score is not None, done.stderr
    assert float(score[1]) < 3


@pytest.mark.parametrize("path", ["docker/trunkline.toml", "kubernetes/base/trunkline.toml"])
def test_the_configurations_are_right(path: str) -> None:
    load(DEPLOY / path, {"HOME": "/nowhere"})


def test_the_image_is_small_in_rights() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert sum(line.startswith("FROM ") for line in lines) == 2
    assert "USER 10001:10001" in lines
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source
    extras = re.search(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    ignored = (ROOT / ".dockerignore").read_text()
    for source in " ".join(copied).split():
        assert f"!{source}\n" in ignored


@needs("hadolint")
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    command = ["hadolint", "--failure-threshold", "style", str(DEPLOY / "docker" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout


@needs("check-jsonschema")
def test_the_compose_file_is_one() -> None:
    """By the schema of the Compose specification."""
    command = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    command.append(str(DEPLOY / "docker" / "compose.yaml"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout


def test_the_compose_file_mounts_what_is_there_and_waits_as_long_as_a_drain() -> None:
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    broker = services["services"]["broker"]
    for volume in broker["volumes"]:
        source = volume.partition(":")[0]
        named = source in services["volumes"]
        assert named or (DEPLOY / "docker" / source).is_file(), source
    settings = load(DEPLOY / "docker" / "trunkline.toml", {"HOME": "/nowhere"})
    stop_s = max(pool.stop_s for pool in settings.workers.values())
    assert float(broker["stop_grace_period"].removesuffix("s")) > settings.broker.drain_s + stop_s


@needs("kubernetes-validate")
def test_every_object_is_as_kubernetes_has_it(tmp_path: Path) -> None:
    """Strictly: a name that it does not know is a mistake."""
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(documents()))
    command = ["kubernetes-validate", "--strict", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_of_this_version() -> None:
    """The version is said in one place; this is a copy that a test holds to it."""
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    assert [image["newTag"] for image in kustomization["images"]] == [__version__]


def test_a_worker_s_pod_outlives_its_drain() -> None:
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in documents()
        if each["metadata"]["name"] == "trunkline-worker-scripted" and each["kind"] == "Deployment"
    )
    (words,) = (container["args"] for container in pod["containers"])
    (drain,) = (word.removeprefix("--drain=") for word in words if word.startswith("--drain="))
    assert pod["terminationGracePeriodSeconds"] > float(drain)


@functools.cache
def documents() -> list[dict[str, Any]]:
    """Return what Kustomize makes of the base; without it, the files and the map it generates."""
    if shutil.which("kubectl") is not None:
        command = ["kubectl", "kustomize", str(BASE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode == 0 or "unknown command" not in done.stderr:  # an old one has none
            assert done.returncode == 0, done.stderr
            return list(yaml.safe_load_all(done.stdout))
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    found: list[dict[str, Any]] = []
    for name in kustomization["resources"]:
        found += yaml.safe_load_all((BASE / name).read_text())
    for each in kustomization["configMapGenerator"]:
        texts = {name: (BASE / name).read_text() for name in each["files"]}
        metadata = {"name": each["name"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": texts})
    return found


def test_kustomize_makes_whole_objects() -> None:
    kinds = sorted(each["kind"] for each in documents())
    assert kinds == sorted(
        ["Namespace", "ConfigMap", "Service", "Deployment", "Deployment"]
        + ["NetworkPolicy"] * 2
        + ["PodDisruptionBudget"] * 2
    )


def test_the_unit_of_a_worker_starts_one_that_drains(tmp_path: Path) -> None:
    """Its words, with its variables, are those of a worker; it is given the time that it takes."""
    text = (DEPLOY / "systemd" / "trunkline-worker@.service").read_text()
    (line,) = re.findall(r"^ExecStart=\S+ -P -m trunkline_workers (.+)$", text, re.MULTILINE)
    make_server(tmp_path / "keys")
    add_peer(tmp_path / "keys", "workers", "pool", tmp_path / "key")
    values = {"CONNECT": "tcp://h:1", "ADAPTER": "scripted", "PROVIDER": "p"}
    for name, value in {**values, "CREDENTIALS_DIRECTORY": str(tmp_path)}.items():
        line = line.replace(f"${{{name}}}", value)
    line = line.replace("%i", "pool").replace("$OPTIONS", "--option seed=1")
    boot = read_boot(shlex.split(line))
    assert (boot.control, boot.pool, boot.adapter) == ("tcp://h:1", "pool", "scripted")
    assert (boot.providers, boot.options, boot.keys is not None) == (("p",), {"seed": 1}, True)
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert float(stop_s) > boot.drain_s > 0


def variables_in(lines: list[str]) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(lines)))


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a container: the image's, then its own."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    found = variables_in(re.findall(r"^ENV (.+)$", text, re.MULTILINE))
    return found | {each["name"]: each["value"] for each in container.get("env", ())}


def test_the_broker_s_directories_are_its_own_inside_of_its_volumes() -> None:
    """A volume belongs to root and is open to the pod's group, where the broker would not start."""
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in documents()
        if each["metadata"]["name"] == "trunkline-broker" and each["kind"] == "Deployment"
    )
    (container,) = pod["containers"]
    environ = environment_of(container)
    volumes = {
        mount["name"]: Path(mount["mountPath"])
        for mount in container["volumeMounts"]
        if not mount.get("readOnly")
    }
    run = default_run_dir(environ)
    assert run.parent == volumes["run"]
    assert f"{run}/broker.lock" in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    for path in (default_usage_file(environ).parent, default_attachments_dir(environ)):
        assert volumes["state"] in path.parents  # not in memory, and not the volume itself


def test_ledger_and_images_of_unit_and_image_outlive_the_machine_s_memory() -> None:
    """Sockets are in the run directory; what is to stay is in the state directory."""
    text = (DEPLOY / "systemd" / "trunkline.service").read_text()
    unit = variables_in(re.findall(r"^Environment=(.+)$", text, re.MULTILINE))
    for environ in (unit, environment_of({})):
        assert default_run_dir(environ) == Path("/run/trunkline")
        for path in (default_usage_file(environ), default_attachments_dir(environ)):
            assert Path("/var/lib/trunkline") in path.parents


def test_every_selector_finds_its_pods() -> None:
    found = documents()
    pods = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in found
        if each["kind"] == "Deployment"
    ]
    for each in found:
        spec = each.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector"))
        if selector:
            wanted = selector.get("matchLabels", selector).items()
            assert any(wanted <= labels.items() for labels in pods), each["metadata"]["name"]


def test_pods_have_no_rights_and_every_port_has_a_name() -> None:
    found = documents()
    for each in found:
        if each["kind"] != "Deployment":
            continue
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["resources"]["limits"]["memory"]
        assert "livenessProbe" in pod["containers"][0]
    ports = {
        port["name"]: port["containerPort"]
        for each in found
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
        for port in container.get("ports", ())
    }
    broker = tomllib.loads((BASE / "trunkline.toml").read_text())["broker"]
    configured = {
        int(broker[key].rpartition(":")[2])
        for key in (*(key for key in broker if key.startswith("tcp_")), "metrics")
    }
    assert set(ports.values()) == configured
    (service,) = (each for each in found if each["kind"] == "Service")
    for port in service["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]


def test_a_reload_counts_towards_no_limit_and_checks_the_file_first() -> None:
    """The eleventh in a minute failed the unit; a file with a mistake would have ended it."""
    for name in ("trunkline.service", "trunkline-user.service"):
        lines = (DEPLOY / "systemd" / name).read_text().splitlines()
        assert "StartLimitIntervalSec=0" in lines
        reloads = [line for line in lines if line.startswith("ExecReload=")]
        assert reloads[0].endswith("trunkline config check")
        assert "kill -USR2" in reloads[1]


def test_no_probe_asks_for_a_document_or_reads_a_clock_that_can_be_set() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert "status" not in text.partition("HEALTHCHECK")[2].partition("ENTRYPOINT")[0]
    for each in documents():
        if each["kind"] == "Deployment":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                said = str(container[probe])
                assert "newermt" not in said
                assert "/metrics" not in said
