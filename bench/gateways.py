"""Other gateways in front of the mock provider, each from a venv of its own.

`make bench-peers` installs them; one that is not there is left out of the table. Run as a program
inside TensorZero's venv, this file starts its gateway, prints the address and waits for its input
to end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VENVS: Final = Path(os.environ.get("TRUNKLINE_PEERS", ".venv-peers")).resolve()
_START_S: Final = 90.0
_POLL_S: Final = 0.2

_LITELLM: Final = """
model_list:
  - model_name: mock
    litellm_params: {{model: openai/mock, api_base: "{url}", api_key: none}}
litellm_settings: {{telemetry: false}}
"""
_TENSORZERO: Final = """
[gateway]
observability.enabled = false
[models.mock]
routing = ["mock"]
[models.mock.providers.mock]
type = "openai"
model_name = "mock"
api_base = "{url}"
api_key_location = "none"
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One running gateway.

    Attributes:
        url: base of its chat-completions API.
        model: how it calls the mock's model.
    """

    name: str
    version: str
    pid: int
    url: str
    model: str


@contextmanager
def gateways(directory: Path, provider_url: str) -> Iterator[list[Gateway]]:
    """Start every gateway that is installed; end them afterwards."""
    with ExitStack() as stack:
        found: list[Gateway] = []
        for start in (_litellm, _tensorzero):
            try:
                gateway = start(stack, directory, provider_url)
            except RuntimeError as exc:
                sys.stderr.write(f"left out: {exc}\n")
                continue
            if gateway is not None:
                found.append(gateway)
        yield found


def _litellm(stack: ExitStack, directory: Path, provider_url: str) -> Gateway | None:
    python = VENVS / "litellm" / "bin" / "python"
    if not python.exists():
        return None
    config = directory / "litellm.yaml"
    config.write_text(_LITELLM.format(url=provider_url))
    port = _free_port()
    where = ("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
    command = [str(python.with_name("litellm")), "--config", str(config), *where]
    quiet = {
        **os.environ,
        "LITELLM_LOG": "ERROR",
        "LITELLM_TELEMETRY": "False",
        # On loopback, for minutes, in front of a mock: it does not start without a key otherwise.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    process = _started(stack, command, quiet)
    url = f"http://127.0.0.1:{port}"
    _await(f"{url}/health/liveliness", process)
    return Gateway("LiteLLM proxy", _version(python, "litellm"), process.pid, f"{url}/v1", "mock")


def _tensorzero(stack: ExitStack, directory: Path, provider_url: str) -> Gateway | None:
    python = VENVS / "tensorzero" / "bin" / "python"
    if not python.exists():
        return None
    config = directory / "tensorzero.toml"
    config.write_text(_TENSORZERO.format(url=provider_url))
    process = _started(stack, [str(python), __file__, str(config)], dict(os.environ))
    assert process.stdout is not None
    url = next((line for line in process.stdout if line.startswith("http")), "").strip()
    if not url:
        raise RuntimeError("TensorZero's gateway has ended")
    version = _version(python, "tensorzero")
    model = "tensorzero::model_name::mock"
    return Gateway("TensorZero gateway", version, process.pid, url, model)


def _started(
    stack: ExitStack, command: list[str], environ: dict[str, str]
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if "tensorzero" in command[0] else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _await(url: str, process: subprocess.Popen[str]) -> None:
    """Wait until a server answers.

    Raises:
        RuntimeError: it ended, or took too long.
    """
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):  # noqa: S310  always http, on loopback
                return
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_S)
    raise RuntimeError(f"{process.args}: nothing answers at {url}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _version(python: Path, name: str) -> str:
    program = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _serve_tensorzero(config: str) -> None:
    from tensorzero.tensorzero import (  # type: ignore[import-not-found]
        _start_http_gateway,  # its only way to start the server without the container
    )

    gateway = _start_http_gateway(
        config_file=config, clickhouse_url=None, postgres_url=None, valkey_url=None,
        async_setup=False,
    )  # fmt: skip
    sys.stdout.write(f"{gateway.base_url}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve_tensorzero(sys.argv[1])
