"""`reasoning_details`: OpenRouter's structured reasoning, which has to go back unchanged.

A stream brings each item in pieces with the item's `index`. They are put together again, so that
the next request can carry the sequence that the provider would have sent in one answer. Pure.
"""

from __future__ import annotations

from typing import Final, cast

_GROWING: Final = ("text", "summary", "data")  # keys that come in pieces


class ReasoningDetails:
    """Collect the details of one response."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        # One entry per item: the whole pieces and, per growing key, the texts to join at the end.
        self._items: dict[object, tuple[dict[str, object], dict[str, list[str]]]] = {}

    def take(self, raw: object) -> str:
        """Take the details of one delta; return the readable text in them."""
        if not isinstance(raw, list):
            return ""
        return "".join(
            self._take_item(cast("dict[str, object]", item))
            for item in cast("list[object]", raw)
            if isinstance(item, dict)
        )

    def _take_item(self, item: dict[str, object]) -> str:
        kind, index = item.get("type"), item.get("index")
        key = (str(kind), index) if isinstance(index, int) else (str(kind), f"#{len(self._items)}")
        whole, growing = self._items.setdefault(key, ({}, {}))
        for name, value in item.items():
            if name in _GROWING and isinstance(value, str):
                growing.setdefault(name, []).append(value)
            elif value is not None or name not in whole:
                whole[name] = value
        return "".join(
            value for name in ("text", "summary") if isinstance(value := item.get(name), str)
        )

    def result(self) -> list[dict[str, object]]:
        """Return the items in the order in which they began."""
        return [
            {**whole, **{name: "".join(texts) for name, texts in growing.items()}}
            for whole, growing in self._items.values()
        ]
