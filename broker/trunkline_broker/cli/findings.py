"""What `trunkline doctor` looks at: the machine, the configuration, each worker, the broker.

Each finding is one line and, unless all is well, one line that says what to do. Nothing is changed
and no key is shown. The adapters are asked in their own interpreters, as the broker would start
them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from trunkline_protocol.api_key import usable_api_key
from trunkline_protocol.failure import LlmError
from trunkline_protocol.version import __version__

from trunkline_broker.cli.troubles import troubles
from trunkline_broker.config import Settings
from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.environment import (
    EnvironmentFileError,
    missing_names,
    worker_environment,
)
from trunkline_broker.interpreter import beside, module_command, without_relative_paths
from trunkline_broker.onboarding import PROVIDERS, KnownProvider, aws_region, has_local_model
from trunkline_broker.paths import PASSABLE_DIR_MODE
from trunkline_broker.regular_files import read_regular
from trunkline_broker.secret_options import revealed
from trunkline_broker.users import UserError, Users

OK: Final = "ok"
NOTE: Final = "note"
WRONG: Final = "wrong"

_OPTIONS: Final = "options"
_REFUSED_OPTIONS: Final = 3  # exit code of `trunkline_workers.check --load`
LOAD_S: Final = 60.0  # of an adapter with a heavy library, on a busy machine
REACH_S: Final = 3.0
MIN_FREE_MIB: Final = 16
_KEY_FILE_BYTES: Final = 64 * 1024
_MIB: Final = 1024 * 1024
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        state: `OK`, `NOTE` (works, but not all of it) or `WRONG`.
        text: what was found.
        fix: what to do; empty if nothing.
    """

    state: str
    text: str
    fix: str = ""


def machine() -> Iterator[Finding]:
    """Look at what is installed."""
    yield Finding(OK, f"trunkline {__version__}, Python {platform.python_version()}")
    if not has_local_model():
        yield Finding(NOTE, "the local model is not installed", "trunkline setup local")


def run_directory(settings: Settings) -> Iterator[Finding]:
    """Look at the directory of sockets and logs."""
    directory = settings.run_dir
    if not directory.exists():
        yield Finding(OK, f"run directory {directory} (made at the first start)")
        return
    free_mib = shutil.disk_usage(directory).free // _MIB
    if free_mib < MIN_FREE_MIB:
        text = f"the disk of {directory} has {free_mib} MiB left"
        yield Finding(WRONG, text, "make room; streams go on, what is written down is lost")
    state = directory.stat()
    if state.st_uid != os.getuid():
        fix = "set TRUNKLINE_RUN_DIR to one of your own"
        yield Finding(WRONG, f"run directory {directory} is another user's", fix)
    elif state.st_mode & _OTHERS & ~PASSABLE_DIR_MODE:
        text = f"run directory {directory} is open to others"
        yield Finding(WRONG, text, f"chmod 700 {directory}")
    else:
        yield Finding(OK, f"run directory {directory}")


def configuration(settings: Settings) -> Iterator[Finding]:
    """Look at the file as a whole."""
    pools = ", ".join(settings.workers) or "none"
    source = settings.source
    if source is None:
        text = f"no configuration file; the built-in one serves: {pools}"
        yield Finding(OK, text)
    else:
        yield Finding(OK, f"configuration {source}; workers: {pools}")
        if _holds_key(settings) and source.stat().st_mode & _OTHERS:
            text = f"{source} holds a key and can be read by others"
            yield Finding(WRONG, text, f"chmod 600 {source}, or better: apiKeyFile or env")
        yield from _unused_keys(settings)
    if not settings.workers:
        fix = "trunkline setup, or add a [worker.NAME]"
        yield Finding(WRONG, "there is nothing to call", fix)


def _unused_keys(settings: Settings) -> Iterator[Finding]:
    named = {name for section in settings.workers.values() for name in section.env}
    for each in PROVIDERS:
        variable = each.variable(settings.environ)
        if variable is not None and variable not in named:
            text = f"{variable} is set, and no worker uses it"
            yield Finding(NOTE, text, "trunkline setup")


def _holds_key(settings: Settings) -> bool:
    options = (section.options for section in settings.workers.values())
    return any("key" in name.lower() and name not in _HARMLESS for each in options for name in each)


_HARMLESS: Final = frozenset({"apiKeyEnv", "apiKeyFile", "apiKeyHeader", "requireKey", "keepAlive"})


def workers(settings: Settings) -> Iterator[Finding]:
    """Look at every worker; those of slow looks are taken at the same time."""
    specs = settings.pool_specs()
    with ThreadPoolExecutor(max_workers=4) as pool:
        jobs = [pool.submit(_all_of, spec, settings) for spec in specs]
        for job in jobs:
            yield from job.result()


def untried(settings: Settings) -> Iterator[Finding]:
    """Tell of workers of which nothing is run, since nobody has named their configuration."""
    if settings.workers and settings.source is not None:
        names = ", ".join(settings.workers)
        text = f"{settings.source} was found in this folder and not named: not tried: {names}"
        fix = f"trunkline doctor --config {settings.source.name}, if you trust this folder"
        yield Finding(NOTE, text, fix)


def _all_of(spec: PoolSpec, settings: Settings) -> list[Finding]:
    return list(worker(spec, settings))


def worker(spec: PoolSpec, settings: Settings) -> Iterator[Finding]:
    """Look at one worker: interpreter, adapter, key, network."""
    where = f"worker {spec.name}"
    try:
        Users(settings.paths, (spec,))
    except UserError as exc:
        yield Finding(WRONG, str(exc), f"correct user in [worker.{spec.name}], or run as root")
    if spec.python and shutil.which(spec.python) is None:
        text = f"{where}: there is no interpreter {spec.python}"
        yield Finding(WRONG, text, f"trunkline setup {spec.name}")
        return
    try:
        environ = worker_environment(spec, settings.environ)
    except EnvironmentFileError as exc:
        yield Finding(WRONG, f"{where}: {exc}", "correct env_file in its section")
        return
    yield from _private_files(where, spec)
    if spec.debug_prompts:
        text = f"{where}: debug_prompts is on: prompts and answers are written to its log"
        yield Finding(NOTE, text, f"take it out of [worker.{spec.name}], then trunkline reload")
    problem = load_problem(spec, environ)
    if problem:
        fix = load_fix(spec, problem)
        yield Finding(WRONG, f"{where}: adapter {spec.adapter}: {problem}", fix)
    else:
        yield Finding(OK, f"{where}: adapter {spec.adapter}")
    yield from _key(where, spec, environ)
    yield from _network(where, spec, environ)
    yield from _plain_endpoint(where, spec, has_file=settings.source is not None)


def _private_files(where: str, spec: PoolSpec) -> Iterator[Finding]:
    for path in (spec.env_file, str(spec.options.get("apiKeyFile", ""))):
        if path and Path(path).is_file() and Path(path).stat().st_mode & _OTHERS:
            text = f"{where}: {path} can be read by others"
            yield Finding(WRONG, text, f"chmod 600 {path}")


def load_problem(spec: PoolSpec, environ: Mapping[str, str]) -> str:
    """Ask the worker's interpreter for its adapter; returns what is wrong, empty if nothing is."""
    python = spec.python or sys.executable
    given = ("--load", "--worker", *beside(spec), spec.adapter)
    try:
        done = subprocess.run(  # noqa: S603  # the interpreter of the configuration
            module_command(python, "trunkline_workers.check", *given),
            env=without_relative_paths(environ),
            input=json.dumps({"name": spec.name, "options": revealed(spec.options)}),
            capture_output=True,
            text=True,
            timeout=LOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not imported within {LOAD_S:g} s"
    except OSError as exc:
        return f"its interpreter can't be run: {exc.strerror}"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode == 0:
        return ""
    last = (lines or ["it ended without a word"])[-1]
    if "did you mean" in last:
        last = last.partition("; allowed: ")[0]
    return f"{_OPTIONS}: {last}" if done.returncode == _REFUSED_OPTIONS else last


def load_fix(spec: PoolSpec, problem: str) -> str:
    """Return what to do about an adapter that does not load; `problem`: of `load_problem`."""
    if problem.startswith("no adapter "):
        return f"correct adapter in [worker.{spec.name}], then trunkline reload"
    if problem.startswith(f"{_OPTIONS}: "):
        return f"correct it in [worker.{spec.name}.options], then trunkline reload"
    if spec.python:
        return f"trunkline setup {spec.name}"
    if "pip install " in problem:  # it says so itself
        return f"pip install {problem.rpartition('pip install ')[2]}, then trunkline restart"
    return f'name what it needs in requires, python = "venvs/{spec.name}", trunkline setup'


def _key(where: str, spec: PoolSpec, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the key that the adapter will read, if it is known where."""
    for name in missing_names(spec, environ):
        text = f"{where}: variable {name} is not set here"
        yield Finding(WRONG, text, f"export {name}=…, then trunkline restart")
    file = spec.options.get("apiKeyFile")
    variable = spec.options.get("apiKeyEnv") or _usual_variable(spec)
    raw: str | None = None
    if isinstance(file, str) and file:
        try:
            raw = read_regular(Path(file), _KEY_FILE_BYTES).decode("utf-8", "replace")
        except OSError as exc:
            yield Finding(WRONG, f"{where}: key file {file}: {exc.strerror}", "trunkline setup")
    elif isinstance(variable, str):
        raw = environ.get(variable)
        if raw is None and variable not in spec.environment:
            yield _without_key(where, spec, environ, variable)
    if raw is None or not raw.strip():
        return
    try:
        usable_api_key(raw, spec.name, str(file or variable))
    except LlmError as exc:
        yield Finding(WRONG, f"{where}: {exc}", "trunkline setup, or correct the key")
    else:
        yield Finding(OK, f"{where}: a key is there")


def _without_key(where: str, spec: PoolSpec, environ: Mapping[str, str], variable: str) -> Finding:
    """Judge a worker that gets no key, which some providers can do without."""
    known = _known(spec)
    others = known.else_variables if known is not None and spec.adapter == "pydantic_ai" else ()
    if others and all(environ.get(name) for name in others):
        return Finding(OK, f"{where}: credentials are in {', '.join(others)}")
    if others:
        text = f"{where}: neither {variable} nor {', '.join(others)} in its env"
        return Finding(NOTE, text, "name them in env, unless a profile or role of AWS is meant")
    text = f"{where}: {variable} is not in its env, so it does not get it"
    return Finding(WRONG, text, f'env = ["{variable}"] in [worker.{spec.name}]')


def _usual_variable(spec: PoolSpec) -> str | None:
    """Return where a profile looks for its key if nothing else is said."""
    known = _known(spec)
    return known.variables[0] if known is not None else None


def _known(spec: PoolSpec) -> KnownProvider | None:
    profile = spec.options.get("profile")
    found = (p for p in PROVIDERS if profile and profile in (p.profile, p.library_profile))
    return next(found, None)


def _network(where: str, spec: PoolSpec, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look whether something answers where the adapter will call."""
    host, port = _endpoint(spec, environ)
    if not host:
        return
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError as exc:
        text = f"{where}: {host}:{port} can't be reached: {exc.strerror or exc}"
        if any(name in spec.environment for name in ("HTTPS_PROXY", "HTTP_PROXY")):
            yield Finding(NOTE, f"{text} (not through the proxy)", "")
            return
        yield Finding(WRONG, text, "check the network, HTTPS_PROXY in its env, or baseUrl")
    else:
        yield Finding(OK, f"{where}: {host}:{port} answers")


def _endpoint(spec: PoolSpec, environ: Mapping[str, str]) -> tuple[str, int]:
    url = spec.options.get("baseUrl")
    if isinstance(url, str):
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    known = _known(spec)
    region = str(spec.options.get("region") or aws_region(environ))
    return (known.host.replace("{region}", region), 443) if known is not None else ("", 0)


def _plain_endpoint(where: str, spec: PoolSpec, *, has_file: bool) -> Iterator[Finding]:
    """Tell of a provider whose own API only the library knows."""
    url = str(spec.options.get("baseUrl", ""))
    known = next((p for p in PROVIDERS if p.library_profile and _serves(p, url)), None)
    if known is not None and spec.adapter == "chat_completions" and not spec.python:
        extra = "bedrock" if known.name == "bedrock" else "pydantic-ai"
        text = f"{where}: {known.title} by its chat-completions endpoint, not by its own API"
        section = f', adapter = "pydantic_ai" with profile = "{known.library_profile}"'
        install = f"pip install 'trunkline[{extra}]'{section if has_file else ''}"
        yield Finding(NOTE, text, f"{install}, then trunkline restart")


def _serves(provider: KnownProvider, url: str) -> bool:
    host = provider.base_url.partition("://")[2].partition("/")[0]
    before, _, after = host.partition("{region}")
    named = urlsplit(url).hostname or ""
    return bool(host) and named.startswith(before) and named.endswith(after)


def broker(settings: Settings, document: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Look at what runs.

    Args:
        settings: of the configuration.
        document: the status document; `None`: no broker answers.
    """
    if document is None:
        yield Finding(NOTE, "no broker runs", "trunkline up --detach")
        return
    yield Finding(OK, f"broker pid {document['pid']} at {settings.endpoint}")
    for trouble in troubles(document):
        yield Finding(NOTE if trouble.is_past else WRONG, trouble.text, trouble.fix)
    running: set[str] = set()
    for pool in cast("list[dict[str, Any]]", document["pools"]):
        running.add(pool["name"])
        yield from _pool(pool)
    for name in settings.workers:
        if name not in running:
            text = f"worker {name} is in the configuration and not in the broker"
            yield Finding(NOTE, text, "trunkline reload")


def _pool(pool: Mapping[str, Any]) -> Iterator[Finding]:
    """Look at one pool of a running broker."""
    name, slots = pool["name"], cast("list[dict[str, Any]]", pool["slots"])
    if all(slot["state"] == "serving" for slot in slots):
        died = [slot for slot in slots if slot["restarts"]]
        if died:
            text = f"pool {name} serves, and was restarted; the last time: {died[0]['lastExit']}"
            yield Finding(NOTE, text, f"trunkline logs {name} --previous")
        return
    if any(slot["state"] == "starting" for slot in slots):
        yield Finding(NOTE, f"pool {name} is starting", f"trunkline status; logs of {name}")
        return
    said = [slot["reason"] or slot["lastExit"] for slot in slots if slot["state"] != "serving"]
    last = [line for slot in slots for line in slot["output"]][-1:]
    reasons = [text for text in said[:1] if text]
    if reasons and last and last[0] in reasons[0]:
        last = []  # said already
    text = ": ".join([f"pool {name} is {pool['state']}", *reasons, *last])
    yield Finding(WRONG, text, f"put right what it says, then trunkline swap {name}")
