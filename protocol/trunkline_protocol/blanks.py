"""What counts as a blank where a pinned value depends on it."""

from __future__ import annotations

from typing import Final

# What ECMAScript's trim() removes. Python's strip() also takes U+001C to U+001F and U+0085, which
# other readers of the same history do not regard as blank.
BLANKS: Final = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
