"""Do the pages of a host say anything new, or is each one nearly an earlier one?

Calendars without end, one page under any number of session ids, a "not found" that answers every path with status 200:
such a host is demoted (_alike.lua), which drops nothing. Pure: a page in, a sketch of its words out; start at
`sketch_of`. Words with a digit do not count (dates, prices, numbers of items, tokens), nor do those of the page's own
path, which a "not found" repeats. What counts is the set of the others, so neither their order nor their number, nor
how much of a page is navigation: unlike the share that two pages have in common (simhash, Broder's resemblance), the
number of words in which they differ tells two articles of a shop under one large menu apart.

Sketched is one page in SAMPLED, chosen by its path, and compared are sketches of one host: a set of words is dealt out
to CELLS sums by its words' hashes, so two pages that differ in n words differ in at most n cells, and rarely in many
fewer.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

SAMPLED: Final = 32
"""A sketch takes 10 to 30 % of what a page costs its worker (2026-12-01): of one page in so many, that is under 1 %.
And neighbours, which an index brings one after the other, are more alike than a site is."""
CELLS: Final = 8
LENGTH: Final = 1 + CELLS
"""Characters of a sketch; _alike.lua has it too."""
BODY_MAX_BYTES: Final = 500_000
"""Of a longer page nothing is said: there is no bound to how many words it has."""
_TOLERANCE: Final = ((64, "2"), (16, "1"), (0, "0"))
"""Cells that may differ, by the number of words: one word exchanged for another is little in a text of a hundred, and
all there is in one of five."""
_CHARS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_TEXT: Final = re.compile(rb">[^<]+")
_DIGIT: Final = b"0"
_FORM: Final = bytes(
    byte | 0x20 if chr(byte) in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    else _DIGIT[0] if chr(byte) in "0123456789"
    else byte if byte >= 0x80 or chr(byte) in "abcdefghijklmnopqrstuvwxyz"
    else 0x20
    for byte in range(256)
)  # fmt: skip
"""Each byte as it counts: letters in lower case, all digits as one, what is no ASCII as it is, the rest as blanks."""


def is_sampled(path: str) -> bool:
    """Return whether a page, by its path and query, is one of those that are sketched: the same ones every time."""
    return crc32(path.encode()) % SAMPLED == 0


def sketch_of(body: bytes, path: str) -> str:
    """Return the sketch of an HTML page, LENGTH characters of base 64; '' when nothing can be said of it: it is too
    long, has no words, or is in UTF-16.

    The first is a digit, how many of the others may differ in a page that is nearly the same.

    Args:
        path: Of its URL, with the query.
    """
    words = _words(body) - set(path.encode().translate(_FORM).split())
    if not words:
        return ""
    cells = [0] * CELLS
    for word in map(crc32, words):
        cells[word % CELLS] += word >> 8
    tolerance = next(tolerance for least, tolerance in _TOLERANCE if len(words) >= least)
    return tolerance + "".join([_CHARS[cell % len(_CHARS)] for cell in cells])


def _words(body: bytes) -> set[bytes]:
    if len(body) > BODY_MAX_BYTES or b"\0" in body[:1000]:
        return set()
    if b"<script" in body:
        first, *rest = body.split(b"<script")
        body = b"".join((first, *(part[end:] for part in rest if (end := part.find(b"</script")) >= 0)))
    return {word for word in set(b"".join(_TEXT.findall(body)).translate(_FORM).split()) if _DIGIT not in word}
