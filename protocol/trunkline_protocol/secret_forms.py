"""The ways in which a secret may be written, and a search for parts of them in linear time; pure.

A beginning of a form counts from five characters on, as it stands. Any other part counts from
eight letters and digits on, whatever case they have and whatever stands between them: a gateway
may cut a key at both ends, wrap it, space it out or escape it. Of a short secret, fewer suffice.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple
from urllib.parse import quote

Span = tuple[int, int]

SHOWN_MAX: Final = 4  # characters of a key that may stay: what people recognize it by
PART_MIN: Final = 8  # letters and digits of a part; eight of a random key are not in any other text
_GRAM: Final = 5  # every part of eight has one of these at a place that four divides
_PLACES_MAX: Final = 8  # of one gram: a secret of one repeated letter has it everywhere
_ROUNDS: Final = 2  # of undoing escapes: a log line may quote a URL
_ESCAPE: Final = re.compile(r"%[0-9A-F]{2}")
_URL_SAFE: Final = str.maketrans("+/", "-_")
_WIDE: Final = {code + 0xFEE0: code for code in range(0x21, 0x7F)}
_NO_LETTER: Final = re.compile(r"[\W_]+")
_ESCAPED: Final = re.compile(
    r"%(?P<url>[0-9A-Fa-f]{2})|\\x(?P<byte>[0-9A-Fa-f]{2})|\\u(?P<unit>[0-9A-Fa-f]{4})"
    r"|\\(?P<octal>[0-3][0-7]{2})|&(?P<entity>#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[a-z]{2,6});|\\(?P<plain>.)"
)


class _Form(NamedTuple):
    """One way of writing a secret, of which parts are looked for."""

    letters: str  # its letters and digits, in lower case
    part_min: int


class _Reading(NamedTuple):
    """A text as somebody may read it: its letters and digits, and where each comes from."""

    letters: str
    starts: list[int]
    ends: list[int]


class FormIndex:
    """All forms of some secrets, for one search over a text."""

    __slots__ = ("_grams", "_heads")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._heads: dict[int, dict[str, list[str]]] = {}
        self._grams: dict[str, list[tuple[_Form, int]]] = {}
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Take the forms of one more secret."""
        for form in _forms(secret):
            head = form[: SHOWN_MAX + 1]
            self._heads.setdefault(len(head), {}).setdefault(head, []).append(form)
        for gram, form, at in _grams(secret):
            places = self._grams.setdefault(gram, [])
            if len(places) < _PLACES_MAX:
                places.append((form, at))

    def spans(self, text: str) -> list[Span]:
        """Return where parts of secrets stand, in order and apart from each other.

        Takes some 0.5 s per MB (measured: `tests/unit/protocol/test_secret_forms.py`).
        """
        found = list(self._beginnings(text))
        if self._grams:
            found += self._parts(_plain(text))
            if _ESCAPED.search(text):
                found += self._parts(_unescaped(text))
        return _joined(sorted(found))

    def _beginnings(self, text: str) -> Iterator[Span]:
        """Yield, at each place, the longest beginning of a form that stands there unchanged."""
        for size, heads in self._heads.items():
            start = 0
            for at in _places(text, size, heads):
                if at >= start:
                    forms = heads[text[at : at + size]]
                    start = at + max(_common(text, at, form) for form in forms)
                    yield at, start

    def _parts(self, reading: _Reading) -> Iterator[Span]:
        """Yield the parts of forms that a reading has."""
        letters, grams = reading.letters, self._grams
        start = 0
        for at in _places(letters, _GRAM, grams):
            if at < start:
                continue
            for form, place in grams[letters[at : at + _GRAM]]:
                first, last = _widest(letters, at, form.letters, place)
                if last - first >= form.part_min:
                    start = max(start, last)
                    yield reading.starts[first], reading.ends[last - 1]


def _places(text: str, size: int, known: Container[str]) -> list[int]:
    """Return where a known piece of a size begins."""
    return [at for at in range(len(text) - size + 1) if text[at : at + size] in known]


def _common(text: str, at: int, form: str) -> int:
    """Return how much of the beginning of a form stands in the text at a place."""
    size = 0
    while size < len(form) and text[at + size : at + size + 1] == form[size]:
        size += 1
    return size


def _widest(text: str, at: int, form: str, place: int) -> Span:
    """Return the longest part of a text around a place that a form has around its own place."""
    first, last = at, at
    while (
        first > 0 and place - (at - first) > 0 and text[first - 1] == form[place - at + first - 1]
    ):
        first -= 1
    end = min(len(text), at + len(form) - place)
    while last < end and text[last] == form[place + last - at]:
        last += 1
    return first, last


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Join what overlaps or touches."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


# --- readings of a text ---------------------------------------------------------------------


def _plain(text: str) -> _Reading:
    """Read the letters and digits of a text."""
    at = [place for place, char in enumerate(text) if char.isalnum()]
    return _Reading(_lowered("".join([text[place] for place in at])), at, [n + 1 for n in at])


def _unescaped(text: str) -> _Reading:
    """Read a text whose escapes of URLs, JSON, Python and HTML are undone."""
    chars, starts, ends = text, list(range(len(text))), list(range(1, len(text) + 1))
    for _ in range(_ROUNDS):
        made: list[str] = []
        new_starts: list[int] = []
        new_ends: list[int] = []
        done = 0
        for found in chain(_ESCAPED.finditer(chars), (None,)):
            until = len(chars) if found is None else found.start()
            made.append(chars[done:until])
            new_starts += starts[done:until]
            new_ends += ends[done:until]
            if found is not None:
                char = _meant(found)
                made.append(char)
                new_starts += [starts[found.start()]] * len(char)
                new_ends += [ends[found.end() - 1]] * len(char)
                done = found.end()
        chars, starts, ends = "".join(made), new_starts, new_ends
    at = [place for place, char in enumerate(chars) if char.isalnum()]
    letters = _lowered("".join([chars[place] for place in at]))
    return _Reading(letters, [starts[place] for place in at], [ends[place] for place in at])


def _meant(escape: re.Match[str]) -> str:
    """Return the characters that an escape stands for."""
    kind, body = str(escape.lastgroup), escape[str(escape.lastgroup)]
    if kind == "entity":
        return html.unescape(f"&{body};")
    if kind == "plain":
        return "" if body in "nrtbf\n" else body
    return chr(int(body, 8 if kind == "octal" else 16))


def _lowered(text: str) -> str:
    """Return a text in lower case, always of the same length; wide forms of ASCII as ASCII."""
    text = text.translate(_WIDE)
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join([low if len(low := char.lower()) == 1 else char for char in text])


# --- forms of a secret ----------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _forms(secret: str) -> tuple[str, ...]:
    """Return the ways in which a secret may be written unchanged, each at most once."""
    quoted = quote(secret, safe="", errors="replace")
    lower = _ESCAPE.sub(lambda found: found[0].lower(), quoted)
    escaped = json.dumps(secret)[1:-1]
    forms = [secret, quoted, lower, escaped, escaped.replace("/", "\\/"), repr(secret)[1:-1]]
    forms += _base64_forms(secret.encode(errors="surrogatepass"))
    return tuple(form for form in dict.fromkeys(forms) if form)


def _base64_forms(secret: bytes) -> Iterator[str]:
    """Yield what a secret looks like in base64 after 0, 1 or 2 other bytes, in both alphabets.

    The characters that also hold bits of the bytes before it are left out.
    """
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + secret).decode()
        form = encoded[(before * 8 + 5) // 6 :].rstrip("=")
        yield form
        yield form.translate(_URL_SAFE)


def _base32_forms(secret: bytes) -> Iterator[str]:
    """Yield what a secret looks like in base32 after 0 to 4 other bytes, without shared letters."""
    for before in range(5):
        encoded = base64.b32encode(b"\0" * before + secret).decode()
        yield encoded[(before * 8 + 4) // 5 :].rstrip("=")


@lru_cache(maxsize=1024)
def _grams(secret: str) -> tuple[tuple[str, _Form, int], ...]:
    """Return the grams by which parts of a secret are found, with form and place."""
    raw = secret.encode(errors="surrogatepass")
    written = [secret, secret[::-1], raw.hex(), *_base64_forms(raw), *_base32_forms(raw)]
    written += _base64_forms(secret.encode("utf-16-le", errors="surrogatepass"))
    written += _base64_forms(base64.b64encode(raw))
    found: list[tuple[str, _Form, int]] = []
    for text in dict.fromkeys(map(_letters, written)):
        form = _Form(text, max(_GRAM, min(PART_MIN, len(text) // 2)))
        step = form.part_min - _GRAM + 1
        places = range(0, len(text) - _GRAM + 1, step)
        found += [(text[at : at + _GRAM], form, at) for at in places]
    return tuple(found)


def _letters(text: str) -> str:
    return _lowered(_NO_LETTER.sub("", text))
