"""The settle loop: ends deliveries in batches, one call after another, and tells each caller whether it was in time.

Like the put loop it gathers while a call is under way. The store keeps the last answer under the number of its call, so
one whose answer was lost is repeated and says the same. If this loop dies nothing is settled: leases are renewed by the
keep loop until the process ends, and then the items come again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from streamcrawl.queue.handle import State
from streamcrawl.store.queue_store import OTHERS_PER_CALL, SETTLES_PER_CALL, Ending
from streamcrawl.work.loops import until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamcrawl.queue.handle import Handle, Held
    from streamcrawl.store.queue_store import QueueStore
    from streamcrawl.work.loops import Patience


class _Group:
    """Deliveries that one caller ends together."""

    __slots__ = ("future", "left", "lost")

    def __init__(self, future: asyncio.Future[list[Handle[Any]]], left: int) -> None:
        self.future = future
        self.left = left
        self.lost: list[Handle[Any]] = []


class _Waiting(NamedTuple):
    handle: Handle[Any]
    ending: Ending | None
    group: _Group


class SettleLoop:
    def __init__(
        self, store: QueueStore, member: str, held: Held, *, patience: Patience, on_state: Callable[[int, bool], None]
    ) -> None:
        self._store = store
        self._member = member
        self._held = held
        self._patience = patience
        self._on_state = on_state
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._give_up = asyncio.Event()
        self._is_stopped = False
        self._number = 0

    def done(self, handles: Iterable[Handle[Any]]) -> asyncio.Future[list[Handle[Any]]]:
        """End deliveries well; the future brings those that were no longer ours."""
        return self._submit([(handle, None) for handle in handles])

    def end(self, handle: Handle[Any], how: str, number: int = 0, error: str = "") -> asyncio.Future[list[Handle[Any]]]:
        """End a delivery by an `Ending`."""
        return self._submit([(handle, Ending(handle.level, handle.id, how, number, error))])

    def _submit(self, endings: list[tuple[Handle[Any], Ending | None]]) -> asyncio.Future[list[Handle[Any]]]:
        future: asyncio.Future[list[Handle[Any]]] = asyncio.get_running_loop().create_future()
        group = _Group(future, len(endings))
        if not endings:
            future.set_result([])
        for handle, ending in endings:
            handle.state = State.SETTLING
            self._waiting.append(_Waiting(handle, ending, group))
        self._wake.set()
        return future

    def stop(self) -> None:
        """End once nothing waits."""
        self._is_stopped = True
        self._wake.set()

    def give_up(self) -> None:
        """End now, if the store does not answer."""
        self._give_up.set()

    def fail(self, error: Exception) -> None:
        """Nothing can be settled any more."""
        while self._waiting:
            group = self._waiting.popleft().group
            if not group.future.done():
                group.future.set_exception(error)
                group.future.exception()  # not everybody waits for it: what is given back by the way is nobody's await

    async def run(self) -> None:
        while self._waiting or not self._is_stopped:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            batch = self._take()
            try:
                await self._settle(batch)
            except Exception:
                self._waiting.extendleft(reversed(batch))  # `fail` tells their callers
                raise

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        others = 0
        while self._waiting and len(batch) < SETTLES_PER_CALL:
            others += self._waiting[0].ending is not None
            if others > OTHERS_PER_CALL:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _settle(self, batch: list[_Waiting]) -> None:
        done: dict[int, list[str]] = {}
        by_level: dict[int, list[_Waiting]] = {}
        others = [one for one in batch if one.ending is not None]
        for one in batch:
            if one.ending is None:
                done.setdefault(one.handle.level, []).append(one.handle.id)
                by_level.setdefault(one.handle.level, []).append(one)
        endings = [one.ending for one in others if one.ending is not None]
        self._number += 1
        answer = await until_answered(
            lambda: self._store.settle(self._member, self._number, done, endings), self._patience, self._give_up
        )
        ordered = [one for ones in by_level.values() for one in ones] + others
        for position, (handle, _, group) in enumerate(ordered):
            self._held.remove(handle)
            if position in answer.lost:
                handle.lose()
                group.lost.append(handle)
            else:
                handle.state = State.SETTLED
            group.left -= 1
            if not group.left and not group.future.done():
                group.future.set_result(group.lost)
        self._on_state(answer.left, answer.is_closed)
