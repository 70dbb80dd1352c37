"""What a release needs besides the build: the changelog from fragments, the licences in use.

python deploy/release.py changelog 0.2.0 2027-01-15    fragments into CHANGELOG.md
python deploy/release.py licences broker workers       of what these extras install
"""
# ruff: noqa: INP001, T201  # a program of its own that prints

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
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


def licences(extras: set[str], name: str = "trunkline") -> Iterator[tuple[str, str, str]]:
    """Yield name, version and licence of everything that these extras install, sorted."""
    seen: dict[str, tuple[str, str]] = {}
    wanted = [(name, frozenset(extras))]
    done: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        each = wanted.pop()
        if each in done:
            continue
        done.add(each)
        try:
            found = distribution(each[0])
        except PackageNotFoundError:  # for another platform
            continue
        seen[found.metadata["Name"].lower()] = (found.version, _licence(each[0]))
        for requirement in found.requires or ():
            of_extra = _EXTRA.search(requirement)
            named = _REQUIREMENT.match(requirement)
            if named is not None and (of_extra is None or of_extra[1] in each[1]):
                more = frozenset(filter(None, (named[2] or "").replace(" ", "").split(",")))
                wanted.append((named[1], more))
    for package, (version, licence) in sorted(seen.items()):
        yield package, version, licence


def _licence(name: str) -> str:
    metadata = distribution(name).metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    names = [
        text.rpartition("::")[2].strip()
        for text in metadata.get_all("Classifier", [])
        if text.startswith("License ::")
    ]
    return ", ".join(names) or str(metadata.get("License", "unknown")).splitlines()[0]


def main(arguments: list[str]) -> int:
    """Run one command."""
    match arguments:
        case ["changelog", version, date]:
            write_changelog(version, date)
        case ["licences", *extras]:
            for package, version, licence in licences(set(extras)):
                print(f"{package:40} {version:20} {licence}")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
