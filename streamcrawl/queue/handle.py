"""What a consumer has in hand: the item, and the right to say what becomes of it."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streamcrawl.errors import StreamcrawlError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class QueueEmpty(StreamcrawlError, asyncio.QueueEmpty):
    """Nothing waits now; asyncio's as well, so that code written for asyncio.Queue catches it."""


class QueueFull(StreamcrawlError, asyncio.QueueFull):
    """There is no room now; asyncio's as well."""


class State(Enum):
    OUT = "out"
    SETTLING = "being settled"
    SETTLED = "settled"
    LOST = "lost"


class Handle(Generic[T]):
    """One delivery of one item. Its queue settles it (`task_done`, `retry`, `dead`) and renews its lease until then."""

    __slots__ = ("_on_lost", "attempts", "crashes", "id", "item", "level", "owner", "state")

    def __init__(self, item: T, entry_id: str, level: int, attempts: int, crashes: int) -> None:
        self.item = item
        self.id = entry_id
        """Of this delivery: a retried item has another one."""
        self.level = level
        """The item's priority."""
        self.attempts = attempts
        """This one included: 1 for the first."""
        self.crashes = crashes
        """How often a process died, or was cut off for a lease, with this item out."""
        self.state = State.OUT
        self.owner: asyncio.Task[Any] | None = None
        """The asyncio task that got it."""
        self._on_lost: Callable[[], None] | None = None

    @property
    def is_lost(self) -> bool:
        """Its lease is over and the item somebody else's, or soon will be: stop working at it."""
        return self.state is State.LOST

    def lose(self) -> None:
        """The store says that it is no longer ours."""
        self.state = State.LOST
        if self._on_lost is not None:
            self._on_lost()

    def call_when_lost(self, callback: Callable[[], None] | None) -> None:
        """Call it, once, when the lease is lost (at once if it is); None calls nothing."""
        self._on_lost = callback
        if callback is not None and self.is_lost:
            callback()

    def __repr__(self) -> str:
        return f"<Handle {self.id} {self.state.value}, attempt {self.attempts}: {self.item!r:.80}>"


class Held:
    """All that was delivered to this member and is not settled: handed out, read ahead, or being settled."""

    def __init__(self, levels: int) -> None:
        self.by_level: list[dict[str, Handle[Any]]] = [{} for _ in range(levels)]

    def add(self, handle: Handle[Any]) -> None:
        self.by_level[handle.level][handle.id] = handle

    def remove(self, handle: Handle[Any]) -> None:
        self.by_level[handle.level].pop(handle.id, None)

    def ids(self, chunk: int) -> list[dict[int, list[str]]]:
        """Return all ids by their level, in parts of at most `chunk`; one part without any when nothing is held."""
        parts: list[dict[int, list[str]]] = []
        for level, handles in enumerate(self.by_level):
            ids = list(handles)
            parts += ({level: ids[start : start + chunk]} for start in range(0, len(ids), chunk))
        return parts or [{}]

    def out(self) -> list[Handle[Any]]:
        return [handle for handles in self.by_level for handle in handles.values() if handle.state is State.OUT]

    def lose(self, level: int, entry_id: str) -> Handle[Any] | None:
        """Mark a handle that the store no longer knows; None when it is settled, or about to hear of it from there."""
        handle = self.by_level[level].get(entry_id)
        if handle is None or handle.state is not State.OUT:
            return None
        self.remove(handle)
        handle.lose()
        return handle

    def __len__(self) -> int:
        return sum(map(len, self.by_level))
