"""Judges numbers from outside that are added up, stored and shown; every one has a bound."""

from __future__ import annotations

import math
from typing import TypeGuard

from trunkline_protocol.limits import MAX_COUNT


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number from 0 to `MAX_COUNT`, and no boolean."""
    return type(value) is int and 0 <= value <= MAX_COUNT


def is_figure(value: object) -> TypeGuard[float]:
    """Return whether a value is a count, or a finite number in the same range."""
    is_float = type(value) is float and math.isfinite(value) and 0 <= value <= MAX_COUNT
    return is_float or is_count(value)
