"""What a release needs besides the build: the changelog from fragments, the licences in use.

python deploy/release.py changelog 0.2.0 2027-01-15    fragments into CHANGELOG.md
python deploy/release.py licences check                LICENCES.md against what is installed
python deploy/release.py licences write                the same page, made anew

The last two need an environment with every extra for users, which `make audit` makes.
"""
# ruff: noqa: INP001, T201  # a program of its own that prints

from __future__ import annotations

import difflib
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TYPES = {
    "security": "Security",
    "added": "Added",
    "changed": "Changed",
    "fixed": "Fixed",
    "removed": "Removed",
}
HEAD = (
    "# Changelog\n\n"
    "What changes for whoever upgrades; fragments of what comes next are in `changes/`.\n"
)
LICENCES = ROOT / "deploy" / "LICENCES.md"
LICENCES_HEAD = """# Licences

What an installation of Trunkline brings along, and under which licence; Trunkline itself is under
Apache-2.0. Made by `deploy/release.py licences write`, compared by `make audit`.
"""
# Names of classifiers and of old metadata.
_SPDX = {
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_TEXTS = (
    ("Neither the name", "BSD-3-Clause"),
    ("Redistribution and use in source and binary forms", "BSD-2-Clause"),
    ("Permission is hereby granted, free of charge", "MIT"),
)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([^\"']+)[\"']")


def section(version: str, date: str, fragments: Path) -> str:
    """Return the section of a version.

    Raises:
        ValueError: a fragment of an unknown type; the text names the file.
    """
    found: dict[str, list[str]] = {name: [] for name in TYPES}
    for path in sorted(fragments.glob("*.md")):
        if path.name == "README.md":
            continue
        _, _, kind = path.stem.rpartition(".")
        if kind not in found:
            raise ValueError(f"{path.name}: the type must be one of {', '.join(TYPES)}")
        found[kind].append(" ".join(path.read_text(encoding="utf-8").split()))
    parts = [f"## {version} ({date})"]
    for kind, entries in found.items():
        if entries:
            parts.append(f"### {TYPES[kind]}\n\n" + "\n".join(f"- {entry}" for entry in entries))
    return "\n\n".join(parts) + "\n"


def write_changelog(version: str, date: str, root: Path = ROOT) -> None:
    """Put the section of a version on top of the changelog, and take the fragments away."""
    text = section(version, date, root / "changes")
    path = root / "CHANGELOG.md"
    old = path.read_text(encoding="utf-8").removeprefix(HEAD) if path.exists() else ""
    path.write_text(f"{HEAD}\n{text}{old}", encoding="utf-8")
    for fragment in (root / "changes").glob("*.md"):
        if fragment.name != "README.md":
            fragment.unlink()


@dataclass(slots=True)
class Package:
    """One package that an installation brings.

    Attributes:
        licence: its SPDX expression, or as near to one as its metadata comes.
        extras: those of ours that bring it; "" for an installation without any.
    """

    name: str
    version: str
    licence: str
    extras: set[str] = field(default_factory=set[str])


def licences(extras: Iterable[str], name: str = "trunkline") -> list[Package]:
    """Return everything that these extras install and that is installed here, sorted.

    Raises:
        PackageNotFoundError: the distribution itself is not installed.
    """
    found: dict[str, Package] = {}
    for extra in ("", *extras):
        for each in _closure(name, extra):
            metadata = distribution(each).metadata
            key = metadata["Name"].lower().replace("_", "-")
            known = found.setdefault(key, Package(key, metadata["Version"], _licence(each)))
            known.extras.add(extra)
    return sorted(found.values(), key=lambda package: package.name)


def _closure(name: str, extra: str) -> set[str]:
    wanted = [(name, frozenset(filter(None, [extra])))]
    done: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        each = wanted.pop()
        if each in done:
            continue
        try:
            found = distribution(each[0])
        except PackageNotFoundError:  # for another platform, or an extra that is not installed
            continue
        done.add(each)
        for requirement in found.requires or ():
            of_extra = _EXTRA.search(requirement)
            named = _REQUIREMENT.match(requirement)
            if named is not None and (of_extra is None or of_extra[1] in each[1]):
                more = frozenset(filter(None, (named[2] or "").replace(" ", "").split(",")))
                wanted.append((named[1], more))
    return {each for each, _ in done}


def _licence(name: str) -> str:
    """Return the SPDX expression of a package, from whichever field it says it in."""
    metadata = distribution(name).metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    names = [
        _SPDX.get(text.rpartition("::")[2].strip(), text.rpartition("::")[2].strip())
        for text in metadata.get_all("Classifier", [])
        if text.startswith("License ::") and not text.endswith("OSI Approved")
    ]
    if names:
        return " AND ".join(sorted(names))
    text = str(metadata.get("License") or "unknown")
    if "\n" not in text:
        return _SPDX.get(text, text)
    # The whole text stands there instead of its name.
    flat = " ".join(text.split())
    return next((spdx for words, spdx in _TEXTS if words in flat), "unknown")


def table(packages: Iterable[Package]) -> str:
    """Return the page that lists them; versions are left out, since they change every week."""
    lines = [LICENCES_HEAD, "| package | licence | comes with |", "|---|---|---|"]
    for package in packages:
        if package.name == "trunkline":
            continue
        extras = "every installation" if "" in package.extras else ", ".join(sorted(package.extras))
        lines.append(f"| {package.name} | {package.licence} | {extras} |")
    return "\n".join(lines) + "\n"


def user_extras() -> list[str]:
    """Return the extras for users; the others are for a checkout."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    return [extra for extra in extras if extra not in {"all", "dev", "docs", "bench"}]


def check_licences(path: Path = LICENCES) -> int:
    """Compare the page with what is installed here; tell what is different."""
    wanted = table(licences(user_extras())).splitlines()
    there = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = list(difflib.unified_diff(there, wanted, str(path.name), "installed", n=0, lineterm=""))
    print("\n".join(lines) if lines else f"{path.name} lists {len(wanted) - 6} packages; all is so")
    return 1 if lines else 0


def main(arguments: list[str]) -> int:
    """Run one command."""
    match arguments:
        case ["changelog", version, date]:
            write_changelog(version, date)
        case ["licences", "write"]:
            LICENCES.write_text(table(licences(user_extras())), encoding="utf-8")
        case ["licences", "check"]:
            return check_licences()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
