"""What processes say: sentences for people, with fields for machines, and an end to repeats.

A loop says a plain string, or `Said` when it is more than information or is about something with a name: then entry,
task and the like go along. A child adds nothing; its supervisor adds which worker it was, and the command which crawl.
`Logger` is the end of the line: it filters by level, holds repeats back, counts, and writes a line for a person or one
JSON object. Pure but for `Logger`, which asks the clock. Start at `Said`.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, OrderedDict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

BURST: Final = 20
"""Messages of a kind that are written in a window; more of them say nothing new."""
WINDOW_S: Final = 60.0
KINDS_MAX: Final = 500
"""Kinds of messages that are told apart; the one heard of least lately is forgotten first."""
_VARIES: Final = re.compile(r"https?://\S+|/\S+|\b[0-9a-f]{6,}\b|\d+")
"""What differs between two messages of a kind: URLs, paths, ids, counts."""


class Level(StrEnum):
    """How much a message matters."""

    INFO = "info"
    """What happens."""
    WARNING = "warning"
    """Something went wrong and is mended by itself: a worker was replaced, the store is waited for."""
    ERROR = "error"
    """Somebody has to do something, or a fault of streamcrawl showed."""


_RANK: Final = {level: rank for rank, level in enumerate(Level)}


class Said(str):
    """A sentence with its level and with what it is about. Wherever text does, it does."""

    __slots__ = ("fields", "level")
    level: Level
    fields: Mapping[str, Any]

    def __new__(cls, text: str, level: Level = Level.INFO, **fields: Any) -> Said:
        """Make one of a sentence; `fields` are plain values: entry, task, stage, worker, …"""
        said = super().__new__(cls, text)
        said.level = level
        said.fields = fields
        return said

    @classmethod
    def warning(cls, text: str, **fields: Any) -> Said:
        return cls(text, Level.WARNING, **fields)

    @classmethod
    def error(cls, text: str, **fields: Any) -> Said:
        return cls(text, Level.ERROR, **fields)


def printable(text: str) -> str:
    """Return a text of anybody's as one that can be stored and shown: lone surrogates (of file names) as escapes."""
    # Always anew: what is a subclass of str (Said, an enum) is none that msgspec writes.
    return text.encode("utf-8", "backslashreplace").decode()


def as_said(text: str, **fields: Any) -> Said:
    """Return what was said with further fields, which do not replace those it has."""
    if isinstance(text, Said):
        return Said(str(text), text.level, **{**fields, **text.fields})
    return Said(text, **fields)


def kind_of(text: str) -> str:
    """Return what two messages have in common when only names and numbers differ."""
    return _VARIES.sub("#", text.partition("\n")[0][:300])


class _Heard(msgspec.Struct):
    """Messages of one kind."""

    since_s: float
    written: int = 0
    held_back: int = 0
    last: Said | None = None
    """The one that was held back last."""


class Repeats:
    """Lets BURST messages of a kind through in a window, and says afterwards how many it held back. Pure."""

    def __init__(self) -> None:
        self._heard: OrderedDict[str, _Heard] = OrderedDict()

    def admit(self, said: Said, now_s: float) -> Iterator[Said]:
        """Yield what is to be written now: a message, and what was held back before it. Time is monotonic, in s."""
        yield from self.over(now_s)
        kind = kind_of(said)
        heard = self._heard.get(kind)
        if heard is None:
            while len(self._heard) >= KINDS_MAX:
                yield from _summary(self._heard.popitem(last=False)[1])
            heard = self._heard[kind] = _Heard(now_s)
        else:
            self._heard.move_to_end(kind)
        if heard.written < BURST:
            heard.written += 1
            yield said
        else:
            heard.held_back += 1
            heard.last = said

    def over(self, now_s: float, *, is_end: bool = False) -> Iterator[Said]:
        """Yield a message for each kind that was held back, once its window is over; with `is_end` in any case."""
        # Most calls find none: the windows of the few kinds there are begin and end seldom.
        past = [kind for kind, heard in self._heard.items() if is_end or now_s - heard.since_s >= WINDOW_S]
        for kind in past:
            yield from _summary(self._heard.pop(kind))


def _summary(heard: _Heard) -> Iterator[Said]:
    said = heard.last
    if said is not None:
        yield Said(
            f"{said} ({heard.held_back} like this were held back)", said.level, **said.fields, repeats=heard.held_back
        )


class Logger:
    """Writes what is said. Callable with a sentence, as every loop wants it."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        is_json: bool = False,
        least: Level = Level.INFO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the log.

        Args:
            write: Gets each line, without its end.
            is_json: Lines are JSON objects, not sentences.
            least: What matters less is not written.
            clock: Seconds that never go back.
        """
        self._write = write
        self.is_json: Final = is_json
        self._least = least
        self._clock = clock
        self._repeats = Repeats()
        self.fields: dict[str, Any] = {}
        """Of every message: the crawl."""
        self.counts: Counter[str] = Counter({level.value: 0 for level in Level})
        """Messages by level, those held back included; by themselves, whatever is written."""

    def __call__(self, text: str) -> None:
        said = as_said(text)
        self.counts[said.level.value] += said.fields.get("repeats", 1)
        if _RANK[said.level] >= _RANK[self._least]:
            for one in self._repeats.admit(said, self._clock()):
                self._put(one)

    def close(self) -> None:
        """Say what was held back until now."""
        for one in self._repeats.over(self._clock(), is_end=True):
            self._put(one)

    def _put(self, said: Said) -> None:
        self._write(as_json(said, **self.fields) if self.is_json else said)


class FromLibraries(logging.Handler):
    """Says what libraries log by Python's `logging`, so that no other line stands between JSON objects."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = Level.ERROR if record.levelno >= logging.ERROR else Level.WARNING
            self._say(Said(self.format(record), level, logger=record.name))
        except Exception:
            self.handleError(record)


def as_json(said: Said, **fields: Any) -> str:
    """Return a message as one JSON object: time (UTC), level, message, and its fields."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    row = {"time": now, "level": said.level.value, "message": str(said), **fields, **said.fields}
    return msgspec.json.encode(row).decode()
