"""The mark of requests that an agent's loop has built, for listeners in the same process.

Observers must not take auxiliary calls (a title, a compaction) for conversation. The mark belongs
to the very object, not to its value: a copy has none, and it never crosses a process.
"""

from __future__ import annotations

import weakref
from typing import Final

from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.options import GenerateOptions

_marked: Final[dict[int, weakref.ref[GenerateOptions]]] = {}


def mark_agent_loop_request(options: GenerateOptions) -> GenerateOptions:
    """Mark a request as built by an agent's loop and return it; marking twice is harmless.

    Raises:
        LocalProtocolError: another type; a map would be copied on its way, and a copy has no mark.
    """
    if not isinstance(options, GenerateOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LocalProtocolError("options: GenerateOptions are required")
    key = id(options)
    if not is_agent_loop_request(options):
        # Requests compare by value and may not be hashable, so a WeakSet cannot hold them.
        _marked[key] = weakref.ref(options, lambda _: _marked.pop(key, None))
    return options


def is_agent_loop_request(options: GenerateOptions) -> bool:
    """Tell whether `mark_agent_loop_request` has marked this very object in this process."""
    reference = _marked.get(id(options))
    return reference is not None and reference() is options
