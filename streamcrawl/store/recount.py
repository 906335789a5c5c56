"""Which entries of the work stream belong to which host, for the scripts that recount (lua/_recount.lua).

The stream of ten thousand slots is too long to be read in one script. `Walk` reads it in parts and keeps the ids by
host; the script looks which of these are still there, and reads itself what came since: together what there is at one
instant. Reads only. Start at `Walk.ask`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import StoreUnavailable
from streamcrawl.store.connection import mapped_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    Ask = Callable[..., Awaitable[list[Any]]]

ENTRIES_PER_CALL: Final = 500
SEEN_PER_CALL: Final = 2000
"""Ids that a script looks up in one call: some 4 ms."""
KEPT_MAX: Final = 100_000
"""Ids kept beyond those of one walk: of a crawl at full speed most are gone soon, and a new walk costs less."""
TRIES_MAX: Final = 100
"""A hundred walks of the rest that never come within reach of the script: the store answers too slowly."""
_START: Final = "0-0"
_PACK: Final = msgspec.msgpack.Encoder().encode


class Walk:
    """What is known of one work stream. Without a walk the script reads all of it, if it is short enough."""

    def __init__(self, client: Redis, stream: str) -> None:
        self._client = client
        self._stream = stream
        self._forget()

    def _forget(self) -> None:
        self._seen: dict[str, list[str]] = {}
        self._until = _START
        self._kept = 0
        self._kept_max = KEPT_MAX

    @property
    def hosts(self) -> set[str]:
        """Host keys that had entries when the stream was walked; empty when it was not."""
        return set(self._seen)

    @property
    def has_walked(self) -> bool:
        return self._until != _START

    async def ask(self, ask: Ask, hosts: Sequence[str]) -> AsyncIterator[list[Any]]:
        """Call `ask(hosts, walked, seen)` until every host was asked for, once at least; yields what it answers."""
        todo = list(hosts)
        while True:
            answer = [b"BEHIND"]
            for _ in range(TRIES_MAX):
                chunk = todo[: self._fitting(todo)]
                answer = await ask(_PACK(chunk), self._until, _PACK([self._seen.get(host, []) for host in chunk]))
                if answer[0] != b"BEHIND":
                    break
                await self.walk()
            else:
                raise StoreUnavailable("entries of the work stream come faster than they can be read; try again")
            yield answer
            todo = todo[len(chunk) :]
            if not todo:
                return

    def _fitting(self, hosts: Sequence[str]) -> int:
        """Return how many of the first hosts have few enough ids for one call; one has, however many."""
        total = 0
        for count, host in enumerate(hosts):
            total += len(self._seen.get(host, ()))
            if total > SEEN_PER_CALL:
                return max(1, count)
        return len(hosts)

    async def walk(self) -> None:
        """Read on to the present end of the stream: of what was walked, no script reads more than its ids."""
        if self._kept > self._kept_max:
            self._forget()
        is_first = not self.has_walked
        while True:
            with mapped_errors():
                rows: Any = await self._client.xrange(self._stream, f"({self._until}", "+", ENTRIES_PER_CALL)
            for entry_id, fields in rows:
                self._until = entry_id.decode()
                self._seen.setdefault(fields.get(b"host", b"").decode(), []).append(self._until)
            self._kept += len(rows)
            if len(rows) < ENTRIES_PER_CALL:
                break
        if is_first:
            self._kept_max = self._kept + KEPT_MAX
