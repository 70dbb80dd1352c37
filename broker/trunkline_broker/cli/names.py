"""What a shell may complete an argument to: names of the configuration; no broker is asked.

A shell asks while somebody types, so a configuration that is wrong only means no suggestions.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trunkline_broker.config import Settings


def worker_names(incomplete: str) -> list[str]:
    """Return the NAMEs of `[worker.NAME]` that begin like this."""
    settings = _settings()
    names = [] if settings is None else list(settings.workers)
    return [name for name in names if name.startswith(incomplete)]


def log_names(incomplete: str) -> list[str]:
    """Return whose logs there may be."""
    return [
        *(name for name in ("broker",) if name.startswith(incomplete)),
        *worker_names(incomplete),
    ]


def provider_names(incomplete: str) -> list[str]:
    """Return the providers that the workers are configured to serve."""
    settings = _settings()
    sections = {} if settings is None else settings.workers
    names = [each for name, section in sections.items() for each in section.providers or (name,)]
    return [name for name in names if name.startswith(incomplete)]


def _settings() -> Settings | None:
    from trunkline_broker.config import load
    from trunkline_broker.config_errors import ConfigError

    try:
        return load(None, os.environ)
    except ConfigError:
        return None
