"""A configuration as people and editors see it: resolved TOML, JSON Schema, advice.

Secrets never get here: options hold them as `SecretStr`, and of variables only names are known.
"""

from __future__ import annotations

import errno
import inspect
import json
import re
import resource
import shutil
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, cast

from trunkline_broker.config import (
    BrokerSection,
    ClientSection,
    Document,
    Settings,
    WorkerSection,
    is_loopback,
    settable,
)
from trunkline_broker.core.specs import PoolSpec, RestartSpec
from trunkline_broker.environment import missing_names
from trunkline_broker.regular_files import open_regular
from trunkline_broker.secret_options import masked
from trunkline_broker.users import UserError, Users

_BARE_KEY: Final = re.compile(r"^[A-Za-z0-9_-]+$")
_SQLITE: Final = b"SQLite format 3\0"
_ENTRY: Final = re.compile(r"^\s{4}(\w+): (.*)$")

# Options say which variables hold keys; these are the field names of the specifications.
_SPEC_NAMES: Final[Mapping[str, str]] = {"env": "environment"}


def resolved(settings: Settings) -> dict[str, Any]:
    """Return every key with the value in force, defaults included, secrets masked."""
    document = {
        "broker": settings.broker.model_dump(mode="json"),
        "worker": {
            name: section.model_dump(mode="json") for name, section in settings.workers.items()
        },
        "client": {
            name: section.model_dump(mode="json") for name, section in settings.clients.items()
        },
    }
    for section in document["worker"].values():
        section["options"] = masked(section["options"])
    return document


def as_toml(settings: Settings) -> str:
    """Return the resolved configuration as TOML; a comment says where each value is from."""
    document = resolved(settings)
    lines = ["[broker]"]
    for key, value in document["broker"].items():
        origin = _origin(settings, ("broker", key), settings.broker.model_fields_set)
        lines.append(f"{key} = {_toml(value)}{origin}")
    for name, section in document["worker"].items():
        given = settings.workers[name]
        lines += ["", f"[worker.{_key(name)}]"]
        for key, value in section.items():
            if key not in {"restart", "options"} and value is not None:
                origin = _origin(settings, ("worker", name, key), given.model_fields_set)
                lines.append(f"{key} = {_toml(value)}{origin}")
        for table in ("restart", "options"):
            if section[table]:
                lines += ["", f"[worker.{_key(name)}.{table}]"]
                known = (
                    given.restart.model_fields_set if table == "restart" else set(section[table])
                )
                for key, value in section[table].items():
                    if value is not None:
                        origin = _origin(settings, ("worker", name, table, key), known)
                        lines.append(f"{_key(key)} = {_toml(value)}{origin}")
    for name, section in document["client"].items():
        lines += ["", f"[client.{_key(name)}]"]
        lines += [f"{key} = {_toml(item)}" for key, item in section.items() if item is not None]
    return "\n".join(lines)


def _origin(settings: Settings, path: tuple[str, ...], given: AbstractSet[str]) -> str:
    """Return the comment that says where a value is from; `given`: the keys of its table."""
    for place in (path, path[:-1]):  # itself, or its table as a whole
        if place in settings.overridden:
            return f"  # from {settings.overridden[place]}"
    return "" if path[-1] in given else "  # default"


def _key(name: str) -> str:
    return name if _BARE_KEY.match(name) else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value).items()
        parts = [f"{_key(key)} = {_toml(item)}" for key, item in entries if item is not None]
        return f"{{ {', '.join(parts)} }}" if parts else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in cast('list[Any]', value))}]"
    # What TOML and JSON write alike: texts (with \\u escapes), numbers and booleans.
    return json.dumps(value)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the file; descriptions are those of the classes."""
    document = Document.model_json_schema()
    document["title"] = "Trunkline configuration"
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    for table in ("worker", "client"):  # only the pattern's names
        document["properties"][table]["additionalProperties"] = False
    texts = {
        "BrokerSection": descriptions(BrokerSection),
        "ClientSection": descriptions(ClientSection),
        "WorkerSection": descriptions(PoolSpec) | descriptions(WorkerSection),
        "RestartSection": descriptions(RestartSpec),
    }
    for name, described in texts.items():
        properties: dict[str, Any] = document["$defs"][name]["properties"]
        for key, field in properties.items():
            field["description"] = described[_SPEC_NAMES.get(key, key)]
    return document


def descriptions(owner: type[object]) -> dict[str, str]:
    """Return what the docstring of a class says of each of its attributes."""
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(owner.__doc__ or "").partition("Attributes:\n")[2].splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            name = entry[1]
            found[name] = entry[2]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def advice(settings: Settings) -> Iterator[str]:
    """Yield what is allowed and probably not meant, or will not work on this machine."""
    yield from settable(settings.workers).unknown(settings.environ)
    if not settings.workers:
        yield "no [worker.NAME]: the broker will have nothing to call"
    yield from _advice_for_broker(settings)
    yield from _shared_users(settings)
    for spec in settings.pool_specs():
        yield from _advice_for(spec, settings.environ)
        try:
            Users(settings.paths, (spec,))
        except UserError as exc:
            yield str(exc)


def _advice_for_broker(settings: Settings) -> Iterator[str]:
    """Judge values of `[broker]` by what is on this machine."""
    broker = settings.broker
    if broker.metrics and not is_loopback(broker.metrics):
        yield (
            f"broker.metrics: {broker.metrics} has no password; whoever reaches it sees names of"
            " clients and providers"
        )
    ledger = settings.usage_file
    if broker.usage and not _is_ledger(ledger):
        yield f"broker.usage_file: {ledger} is there and is no usage ledger; name another file"
    for key, directory in (
        ("attachments_dir", settings.attachments_dir),
        ("keys_dir", settings.keys_dir),
    ):
        if directory.exists() and not directory.is_dir():
            yield f"broker.{key}: {directory} is not a directory"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = {"broker": broker.open_files_limit}
    limits |= {
        f"worker.{name}": each.open_files_limit or 0 for name, each in settings.workers.items()
    }
    for where, limit in limits.items():
        if hard != resource.RLIM_INFINITY and limit > hard:
            yield f"{where}.open_files_limit: {limit} is above the limit of this process, {hard}"


def _is_ledger(path: Path) -> bool:
    """Return whether a path is free, or an SQLite file."""
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(len(_SQLITE)) in {b"", _SQLITE}
    except FileNotFoundError:
        return True
    except OSError as exc:  # of another user: the broker will tell, if it may not read it either
        return exc.errno == errno.EACCES


def _shared_users(settings: Settings) -> Iterator[str]:
    """Tell of pools whose workers can read each other's keys."""
    pools: dict[str, list[str]] = {}
    for name, section in settings.workers.items():
        if section.user:
            pools.setdefault(section.user, []).append(f"worker.{name}")
    for user, names in pools.items():
        if len(names) > 1:
            yield (
                f"{' and '.join(names)} run as the same user, {user}: each can read the keys of"
                " the other; give each a user of its own"
            )


def _advice_for(spec: PoolSpec, environ: Mapping[str, str]) -> Iterator[str]:
    where = f"worker.{spec.name}"
    if spec.debug_prompts:
        yield f"{where}: debug_prompts is on: prompts and answers are written to its log"
    for name in missing_names(spec, environ):
        yield f"{where}: variable {name} is not set here"
    if spec.env_file and not Path(spec.env_file).is_file():
        yield f"{where}: env_file {spec.env_file} does not exist"
    if spec.python and shutil.which(spec.python) is None:
        yield f"{where}: python {spec.python} can't be run"
    file, colon, _ = spec.adapter.rpartition(":")
    if colon and file.endswith(".py") and not Path(file).is_file():
        yield f"{where}: adapter file {file} does not exist"
