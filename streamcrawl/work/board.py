"""What a worker child holds, in memory it shares with its supervisor.

The supervisor beats for its children, so a handler that holds the GIL for twenty seconds loses no lease: which entries
to renew (an entry's id is unique in its shard only, so the shard stands beside it), and since when each runs, must be
readable without the child's help. One record per held entry; the child
writes, the supervisor reads. A record read while it is being written gives an id that is none: renewing it does
nothing, the child ignores that it is "lost", and the next beat, a quarter of a lease later, reads it whole.
Behind the records lies what the child counts about its work (meters.py).
All times are ms of the monotonic clock, which the processes of one machine share. It never blocks and holds no lock.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from typing import Final, NamedTuple

from streamcrawl.work.meters import CELL_BYTES, CELLS, Meters

_HEADER: Final = struct.Struct("<qqq")
_CONFIRMED_AT, _BUSY_AT, _SLOTS_AT = 0, 8, 16
_HEADER_BYTES: Final = 64
_RECORD: Final = struct.Struct("<QQqq")
_INT: Final = struct.Struct("<q")
_FREE: Final = (0, 0, 0, 0)
RESTING: Final = -1
"""In place of the time of its begin: a request went out before, and nothing of the entry runs now."""


class Held(NamedTuple):
    """One entry in a child's hands; `begun_ms` 0 while it waits for its turn, RESTING when it waits again."""

    entry_id: str
    begun_ms: int
    shard: int


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _size(capacity: int) -> int:
    return _HEADER_BYTES + capacity * _RECORD.size + CELLS * CELL_BYTES


class Board:
    """A table of `capacity` held entries. Made by the supervisor (`create`), opened by the child by its descriptor."""

    def __init__(self, fd: int, capacity: int) -> None:
        self.fd: Final = fd
        self.capacity: Final = capacity
        self._memory = mmap.mmap(fd, _size(capacity))
        self._cells = memoryview(self._memory)[_size(capacity) - CELLS * CELL_BYTES :].cast("d")
        self.meters: Final = Meters(self._cells)
        self._free = list(range(capacity - 1, -1, -1))
        self._index: dict[tuple[int, str], int] = {}

    @classmethod
    def create(cls, capacity: int) -> Board:
        """Make a board of a new child; its descriptor `fd` is to be inherited.

        Raises:
            OSError: there is no room for it.
        """
        size = _size(capacity)
        # On no disk where that can be had: the first write to a mapped file that the disk has no room for is no error
        # but SIGBUS, and a crawl waits for a full disk (sinks/loop.py).
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("streamcrawl-board")
            os.truncate(fd, size)
            return cls(fd, capacity)
        with tempfile.TemporaryFile(prefix="streamcrawl-board-") as file:
            file.write(bytes(size))
            file.flush()
            return cls(os.dup(file.fileno()), capacity)

    def close(self) -> None:
        self._cells.release()
        self._memory.close()
        os.close(self.fd)

    # -- the child's side

    def hold(self, entry_id: str, shard: int = 0) -> int:
        """Write an entry down as held and return its index."""
        index = self._free.pop()
        ms, _, sequence = entry_id.partition("-")
        _RECORD.pack_into(self._memory, _HEADER_BYTES + index * _RECORD.size, int(ms), int(sequence), 0, shard)
        self._index[shard, entry_id] = index
        return index

    def begin(self, index: int) -> None:
        """Stamp the entry as running since now: a fetch, or a handler, has begun."""
        _INT.pack_into(self._memory, _HEADER_BYTES + index * _RECORD.size + 16, monotonic_ms())

    def rest(self, index: int) -> None:
        """Stamp the entry as waiting again: for its host's delay, or for its commit. A crash now is not its doing."""
        _INT.pack_into(self._memory, _HEADER_BYTES + index * _RECORD.size + 16, RESTING)

    def release(self, index: int) -> None:
        offset = _HEADER_BYTES + index * _RECORD.size
        ms, sequence, _, shard = _RECORD.unpack_from(self._memory, offset)
        _RECORD.pack_into(self._memory, offset, *_FREE)
        del self._index[shard, f"{ms}-{sequence}"]
        self._free.append(index)

    def index_of(self, entry_id: str, shard: int = 0) -> int | None:
        """Return where this child holds an entry; None when it does not."""
        return self._index.get((shard, entry_id))

    def holds_any(self) -> bool:
        """Return whether this child holds an entry."""
        return bool(self._index)

    def beat_age_ms(self) -> int:
        """Return how long ago the last confirmed heartbeat was sent; a lease of nobody's can only be younger."""
        return monotonic_ms() - int(_INT.unpack_from(self._memory, _CONFIRMED_AT)[0])

    def show_busy(self, slots: int) -> None:
        _INT.pack_into(self._memory, _BUSY_AT, slots)

    def show_slots(self, slots: int) -> None:
        """Say how many entries this child works at in parallel now."""
        _INT.pack_into(self._memory, _SLOTS_AT, slots)

    # -- the supervisor's side

    def confirm(self, sent_ms: int) -> None:
        """Say that a heartbeat sent at `sent_ms` was answered."""
        _INT.pack_into(self._memory, _CONFIRMED_AT, sent_ms)

    def busy(self) -> int:
        return int(_INT.unpack_from(self._memory, _BUSY_AT)[0])

    def slots(self) -> int:
        return int(_INT.unpack_from(self._memory, _SLOTS_AT)[0])

    def held(self) -> list[Held]:
        """Return what the child holds now, in no order."""
        found = []
        for offset in range(_HEADER_BYTES, _HEADER_BYTES + self.capacity * _RECORD.size, _RECORD.size):
            ms, sequence, begun_ms, shard = _RECORD.unpack_from(self._memory, offset)
            if ms:
                found.append(Held(f"{ms}-{sequence}", begun_ms, shard))
        return found
