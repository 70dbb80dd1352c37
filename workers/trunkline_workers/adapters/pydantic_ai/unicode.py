"""Text that UTF-8 can say: a model may utter half a character, and no request can hold it; pure."""

from __future__ import annotations


def is_sound(value: object) -> bool:
    """Tell whether a value is text without half characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def sound(text: str) -> str:
    """Return a text whose halves that belong together are joined and the others U+FFFD."""
    if is_sound(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
