"""What the loop of a sink asks of an output, whatever its format: a file, files that are rotated, a database.

Start at `Output`. Files are exactly once by the mark that the store keeps (files.py); databases upsert by the id of
each item, so what is written twice is there once (sqlite.py, postgres.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from streamcrawl.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence


class SinkWaits(SinkError):
    """The output cannot take a batch now: a full disk, a server that is away. It is as before; try again later."""

    waits_for = "waiting until it can be"


class SinkDiskFull(SinkWaits):
    """The disk refused a batch."""

    waits_for = "waiting for room"


class SinkBusy(SinkError):
    """Another process has the file open for writing."""


class Mark(NamedTuple):
    """How far an output is written; the store keeps that of the last batch it was told of."""

    offset: int = 0
    """Bytes of all parts of a file; records of a database. Of two marks the larger is the later."""
    part: int = 0
    """The file that is written now, from 0; it only grows."""
    start: int = 0
    """Offset at which that part begins."""

    @classmethod
    def of(cls, offset: int, part: str) -> Mark:
        """Return a mark as the store has it: '' for an output of one part."""
        number, _, start = part.partition(" ")
        return cls(offset, int(number or 0), int(start or 0))

    @property
    def stored_part(self) -> str:
        return f"{self.part} {self.start}" if self.part else ""


class Output(Protocol):
    """One output that is open. Its methods are called one after the other; none is called after `close`."""

    target: str
    """What messages call it; without passwords."""
    batch_max: int
    """Records in one `append` at most."""

    async def resume(self, mark: Mark) -> None:
        """Go on behind what the store has: what lies beyond was never committed, and is taken back where that matters.

        Raises:
            SinkWaits: not now.
            SinkError: it is not what was written, or not all of it.
        """

    async def append(self, records: Sequence[bytes]) -> Mark:
        """Write records and make them durable, all or none; returns the mark behind them.

        Raises:
            SinkWaits: nothing was written; the same records may be tried again.
            SinkError: any other failure.
        """

    def is_due(self) -> bool:
        """Return whether it is time to finish what is written so far, and begin another part."""

    async def seal(self) -> Mark | None:
        """Return the mark with which the next part begins, once this one can be finished; None: nothing is to finish.

        Nothing is moved yet. The store takes the mark, and only then `finish` is called.
        """

    async def finish(self, mark: Mark) -> None:
        """Put what was sealed into its place; `mark` is the one that `seal` gave. May be repeated."""

    async def close(self) -> None:
        """Give the output up; what is not committed may stay in it."""
