"""Leases of IP addresses: no more fetches of one machine at a time than `ip_concurrency`, however many hosts it has.

Best effort, and a second door beside the cap of a host, which is exact. What it does not know: where a connection
really goes when a name has several addresses (the first counts), what a proxy connects to, machines behind several
addresses. A worker that dies holds its leases until they run out; a store that was restarted may have forgotten some.

Takes of all slots that come while a call is under way go with the next one, and what is over goes along: less than one
round trip a fetch. Where the setting is 0 nothing is asked. Start at `AddressLeases.take`.
"""

from __future__ import annotations

import asyncio
from binascii import crc32
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from streamcrawl.errors import StoreError
from streamcrawl.rules.cdn import AddressGroups
from streamcrawl.store.frontier import Wait

if TYPE_CHECKING:
    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Entry, Frontier
    from streamcrawl.store.shards import Shards
    from streamcrawl.web.fetcher import Fetching

LEASES_PER_CALL: Final = 100
"""Taken in one call at most, and as many given back: 1 ms of the server (tests/integration/test_store_cost.py)."""
TTL_SPARE_MS: Final = 5000
"""Over two timeouts of a fetch (a stale connection is tried twice) and the delay to its second hop."""


class Lease(msgspec.Struct):
    """One fetch of an address, held until `AddressLeases.give_back`."""

    address: str
    member: str
    is_held: bool = True


class _Desk(msgspec.Struct):
    """What waits for the next call to one shard."""

    frontier: Frontier
    wanted: list[tuple[str, str, str, asyncio.Future[int]]] = msgspec.field(default_factory=list)
    given: list[tuple[str, str]] = msgspec.field(default_factory=list)
    running: asyncio.Task[None] | None = None


class AddressLeases:
    """The leases of one worker; a change of the settings holds for the next fetch."""

    def __init__(self, crawl: Shards, fetcher: Fetching, settings: Settings) -> None:
        self._fetcher = fetcher
        # An address has hosts of all shards, and its leases lie in one.
        self._desks = [_Desk(frontier) for frontier in crawl]
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Go by other settings from the next fetch on."""
        self._cap = settings.ip_concurrency
        self._ttl_ms = 2 * settings.timeout_ms + settings.delay_ms + TTL_SPARE_MS
        self._groups = AddressGroups(settings.ip_exempt)

    async def take(self, entry: Entry, host: str) -> Lease | Wait | None:
        """Return the lease of the address that a host is at, or for how long its entry has to go back.

        None when there is nothing to wait for: no cap, an exempt network, or an address that nobody knows.

        Raises:
            StoreUnavailable: nobody says; the entry may go back.
        """
        if not self._cap:
            return None
        address = await self._fetcher.address_of(host)
        group = None if address is None else self._groups.of(address)
        if group is None:
            return None
        member = f"{entry.shard}:{entry.id}"
        desk = self._desk_of(group)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        desk.wanted.append((group, member, host, answer))
        self._open(desk)
        wait_ms = await answer
        return Wait(wait_ms, "ip_concurrency") if wait_ms else Lease(group, member)

    def give_back(self, lease: Lease | None) -> None:
        """End a lease, once: its fetch is over. One that is lost on the way runs out by itself."""
        if lease is not None and lease.is_held:
            lease.is_held = False
            desk = self._desk_of(lease.address)
            desk.given.append((lease.address, lease.member))
            self._open(desk)

    def _desk_of(self, group: str) -> _Desk:
        return self._desks[crc32(group.encode()) % len(self._desks)]

    def _open(self, desk: _Desk) -> None:
        if desk.running is None:
            desk.running = asyncio.create_task(self._serve(desk), name="addresses")

    async def _serve(self, desk: _Desk) -> None:
        try:
            while desk.wanted or desk.given:
                wanted, desk.wanted = desk.wanted[:LEASES_PER_CALL], desk.wanted[LEASES_PER_CALL:]
                given, desk.given = desk.given[:LEASES_PER_CALL], desk.given[LEASES_PER_CALL:]
                flat = [part for group, member, host, _ in wanted for part in (group, member, host)]
                try:
                    waits = await desk.frontier.addresses(
                        [part for pair in given for part in pair], flat, cap=self._cap or 1, ttl_ms=self._ttl_ms
                    )
                except StoreError as error:
                    for *_, answer in wanted:
                        if not answer.done():
                            answer.set_exception(error)
                    continue
                for (group, member, _, answer), wait_ms in zip(wanted, waits, strict=True):
                    if not answer.done():
                        answer.set_result(wait_ms)
                    elif not wait_ms:
                        # Its slot was cancelled meanwhile.
                        desk.given.append((group, member))
        finally:
            desk.running = None

    async def close(self) -> None:
        """Wait until what was given back is known."""
        for desk in self._desks:
            if desk.running is not None:
                with suppress(StoreError):
                    await desk.running
