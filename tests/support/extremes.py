"""Values that no honest peer sends, and frames in which one value is such a one; pure.

Frames are made from the examples of every kind (`golden.EXAMPLES`) and the fields of the codec, so
that a new kind or field is covered where it gets its example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgpack
from trunkline_protocol import codec, frames
from trunkline_protocol.codec import Direction

from tests.support import golden

NUMBERS: Final[tuple[Any, ...]] = (
    -1, 0, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
HALF: Final = "half \ud800"
ESCAPE: Final = "\x1b[2J\x1b]0;owned\x07\x9b31m"
TEXTS: Final = (
    "", "0", "-1", "nan", HALF, "\udfff", ESCAPE, "a\0b", "a\r\nb", "\u202eback", "[/red]",
    "x" * 257, "é" * 70_000,
)  # fmt: skip
_FLAT: Final = (None, True, False, b"", b"\0" * 16, b"\xff" * 65)
_SHAPES: Final[tuple[Any, ...]] = ([], {}, [[]], {"a": {}}, {HALF: HALF}, {5: 5}, [0] * 5000)
HUGE_TEXT: Final = "x" * 10_000_000


def nested(depth: int) -> Any:
    """Return a map in a map, so deep."""
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


VALUES: Final[tuple[Any, ...]] = (
    *NUMBERS, *TEXTS, *_FLAT, *_SHAPES, nested(31), nested(200), msgpack.ExtType(5, b"x"),
)  # fmt: skip

Path = tuple[Any, ...]


class Variant(NamedTuple):
    """A frame in which one value is extreme.

    Attributes:
        where: kind and path, for the report of a failure.
        parts: of the frame, encoded without any check.
    """

    where: str
    parts: list[bytes]


def paths(tree: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the place of every value in a tree, those of maps and lists included."""
    if at:
        yield at
    if isinstance(tree, Mapping):
        for key, value in cast("Mapping[Any, Any]", tree).items():
            yield from paths(value, (*at, key))
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(cast("Sequence[Any]", tree)):
            yield from paths(value, (*at, number))


def put(tree: Any, path: Path, value: Any) -> Any:
    """Return a tree with another value at one place."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(tree, Mapping):
        known = cast("Mapping[Any, Any]", tree)
        return {**known, head: put(known.get(head), rest, value)}
    items = list(cast("Sequence[Any]", tree))
    items[head] = put(items[head], rest, value)
    return items


def variants(frame: frames.Frame, values: Sequence[Any] = VALUES) -> Iterator[Variant]:
    """Yield the frame once for each of its values and each extreme one in its place.

    Values are also put into entries of lists and below the keys of maps, and maps get odd keys.

    Args:
        frame: a good one; its attempts become 0.
        values: what is put in.
    """
    packed = codec.encode(frame)
    kind, body = bytes(packed[0]), [bytes(part) for part in packed[2:]]
    tree = _first_attempts(codec.unpack_body(packed[1]))
    for path in paths(tree):
        place = f"{kind.decode()} {'.'.join(map(str, path))}"
        for value in values:
            yield Variant(f"{place} = {value!r:.60}", [kind, pack(put(tree, path, value)), *body])
        if isinstance(_at(tree, path), Mapping):
            for key in (HALF, ESCAPE, "", "x" * 70_000):
                odd = pack(put(tree, (*path, key), 5))
                yield Variant(f"{place}: key {key!r:.60}", [kind, odd, *body])
    for value in (*values, HUGE_TEXT) if body else ():
        yield Variant(f"{kind.decode()} body = {value!r:.60}", [kind, pack(tree), pack(value)])


def arguments(op: str, argument: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield a question to the broker with each part of its argument made extreme."""
    question = frames.Query(golden.QUERY, op, timeout_ms=2000)
    kind, envelope, _ = map(bytes, codec.encode(question))
    for path in ((), *paths(argument)):
        for value in VALUES:
            where = f"QUERY {op} {'.'.join(map(str, path))} = {value!r:.60}"
            yield Variant(where, [kind, envelope, pack(put(argument, path, value))])


def named(parts: Sequence[bytes], ids: Mapping[bytes, bytes]) -> list[bytes]:
    """Return parts in which the ids of the examples are others of the same length."""
    out = list(parts)
    for old, new in ids.items():
        out = [part.replace(old, new) for part in out]
    return out


def _first_attempts(tree: Any) -> Any:
    """Make every attempt the first of its call, also in entries, where it is behind the call."""
    if isinstance(tree, Mapping):
        known = cast("Mapping[Any, Any]", tree)
        return {k: 0 if k == "attempt" else _first_attempts(item) for k, item in known.items()}
    if isinstance(tree, list | tuple):
        items = [_first_attempts(item) for item in cast("Sequence[Any]", tree)]
        if len(items) > 1 and items[0] in (golden.CALL, golden.OTHER_CALL):
            items[1] = 0
        return items
    return tree


def pack(value: Any) -> bytes:
    """Return MessagePack of any value, half characters included."""
    return cast("bytes", msgpack.packb(value, unicode_errors="surrogatepass"))


def kinds(way: Direction) -> list[frames.Frame]:
    """Return an example of every kind that may travel in a direction."""
    found = [frame for frame in golden.EXAMPLES if way in golden.directions(frame)]
    missing = set(codec.DIRECTIONS[way]) - {frame.KIND for frame in found}
    assert not missing, f"no example of {missing}"
    return found


def _at(tree: Any, path: Path) -> Any:
    for step in path:
        tree = tree[step]
    return tree
