"""Which pools a changed file concerns, and which directories must be watched for that.

Pure. Directories rather than files are watched: an editor that saves by renaming leaves a watched
file behind. It does not know how directories are watched, nor what a change leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON: Final = ".py"
_NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Watched:
    """The files of one pool, absolute.

    Attributes:
        files: each counts by itself.
        folders: every Python file below counts.
    """

    pool: str
    files: frozenset[Path] = frozenset()
    folders: frozenset[Path] = frozenset()

    def has(self, path: Path) -> bool:
        """Tell whether a change of this file changes the pool."""
        if path in self.files:
            return True
        return path.suffix == PYTHON and any(folder in path.parents for folder in self.folders)


@dataclass(frozen=True, slots=True)
class Affected:
    """What a set of changes leads to.

    Attributes:
        pools: those to be swapped, in order of configuration.
        is_config: the configuration is to be read again.
        text: which files changed, for people; empty: none.
    """

    pools: tuple[str, ...] = ()
    is_config: bool = False
    text: str = ""


class WatchPlan:
    """All pools that are watched, and the configuration file."""

    def __init__(self, pools: Sequence[Watched], config: frozenset[Path] = frozenset()) -> None:
        """Make a plan; `config` has the file's path, and where that leads if it is a link."""
        self.pools = tuple(pools)
        self._config = config

    def concerns(self, path: Path) -> bool:
        """Tell whether a change of this file leads to anything."""
        return path in self._config or any(pool.has(path) for pool in self.pools)

    def affected(self, paths: Iterable[Path]) -> Affected:
        """Return what changes of these files lead to, each pool once."""
        changed = sorted({path for path in paths if self.concerns(path)})
        return Affected(
            tuple(pool.pool for pool in self.pools if any(map(pool.has, changed))),
            any(path in self._config for path in changed),
            _listed(changed),
        )

    def folders(self) -> tuple[Path, ...]:
        """Return the directories to be watched with all that is below."""
        return tuple(sorted({folder for pool in self.pools for folder in pool.folders}))

    def places(self) -> tuple[Path, ...]:
        """Return the directories to be watched without what is below."""
        files = {*self._config, *(file for pool in self.pools for file in pool.files)}
        return tuple(sorted({file.parent for file in files}))


def _listed(paths: Sequence[Path]) -> str:
    names = list(dict.fromkeys(path.name for path in paths))
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
