"""At which addresses is a host? Looks names up, remembers the answers, and drops addresses that the guard refuses.

A name is asked for once at a time, however many wait for it. Its answer is kept for as long as its records say, within
bounds; that there is no such name for a shorter time. What is kept are addresses, and each use asks the guard again, so
a change of its settings holds at once. `Resolver.forget` is for a host that did not take a connection: its next try
looks again. IPv4 and IPv6 are asked for together, and aiohttp races the two (RFC 8305).

Never decides what becomes of a task. Start at `Resolver.resolve`. Sources: RFC 1035 section 3.2.1 (TTL), RFC 2308
(negative answers), RFC 8767 section 4 (bounds of a TTL), RFC 8305 (happy eyeballs).
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

import aiodns
import pycares
from aiohttp.abc import AbstractResolver, ResolveResult

from streamcrawl.rules.addresses import literal_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.web.address_guard import AddressGuard

NAMES_KEPT_MAX: Final = 10_000
"""About 5 MB; the least recently used goes first."""
ADDRESSES_MAX: Final = 16
"""Of one name: more than anybody tries before the time limit of a connection."""
TTL_MIN_S: Final = 30
"""A record that may not be kept (TTL 0) would cost a lookup for every connection. It is also as long as a host that
moves is asked at its old address, unless that refuses."""
TTL_MAX_S: Final = 3600
SYSTEM_TTL_S: Final = 60
"""Of what the operating system looks up, which names no time."""
MISSING_TTL_S: Final = 60
"""That there is no such name. RFC 2308 allows hours, but a host whose tasks wait for it should be found soon."""
FAILED_TTL_S: Final = 5
"""That no name server answered: as long as all who wait for the name now need to hear it."""
TRY_TIMEOUT_S: Final = 2.0
TRIES: Final = 3
"""Of each name server; c-ares doubles the time with every round."""
LOOKUP_TIMEOUT_S: Final = 12.0
"""Over everything: under the time limit of a fetch, so that the error says it was the lookup."""
RENEW_S: Final = 5.0
"""c-ares keeps answers of its own, which only a new channel forgets; at most one in so long, since each is a thread."""

_MISSING: Final = frozenset((aiodns.error.ARES_ENOTFOUND, aiodns.error.ARES_ENODATA, aiodns.error.ARES_EBADNAME))


class _Found(NamedTuple):
    addresses: tuple[str, ...]
    """In the order of preference; () when there is none."""
    error: str
    """Why there is none."""
    until: float
    """time.monotonic()."""


class Resolver(AbstractResolver):
    """Names of one worker. `resolve` is what aiohttp calls for each new connection to a name."""

    def __init__(self, guard: AddressGuard, nameservers: Sequence[str] = ()) -> None:
        """Prepare; call it in the event loop that will use it.

        Args:
            guard: Which addresses are handed out.
            nameservers: Asked instead of those of the operating system, `ADDRESS` or `ADDRESS:PORT`.
        """
        self._guard = guard
        self._nameservers = tuple(nameservers)
        self._kept: OrderedDict[str, _Found] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_Found]] = {}
        self._channel: aiodns.DNSResolver | None = None
        self._opened_at = 0.0
        self._forgot_at = 0.0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name that may be connected to, the preferred first.

        Raises:
            OSError: there is none, or nobody says.
            BlockedAddress: there are some, and none of them may be.
        """
        found = await self.lookup(host)
        addresses = [
            address
            for address in found
            if family in (socket.AF_UNSPEC, _family(address)) and self._guard.admits(address, port)
        ]
        if not addresses:
            self._guard.check(found[0], port, host)
            raise OSError(None, "no address of the family that is asked for")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=_family(address),
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def lookup(self, host: str) -> tuple[str, ...]:
        """Return all addresses of a name, whether they may be connected to or not.

        Raises:
            OSError: there is none, or nobody says.
        """
        name = host.rstrip(".").lower()
        found = self._kept.get(name)
        if found is None or found.until <= monotonic():
            asking = self._asking.get(name)
            if asking is None:
                asking = self._asking[name] = asyncio.create_task(self._ask_and_keep(name), name="dns")
            # Shielded: who waits may be cancelled, and the others go on waiting for the same answer.
            found = await asyncio.shield(asking)
        else:
            self._kept.move_to_end(name)
        if not found.addresses:
            raise OSError(None, found.error)
        return found.addresses

    def forget(self, host: str) -> None:
        """Look a name up anew at its next use: what it was at took no connection."""
        if self._kept.pop(host.rstrip(".").lower(), None) is not None:
            self._forgot_at = monotonic()

    async def close(self) -> None:
        """End the lookups under way; nobody waits for them any more."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def _ask_and_keep(self, name: str) -> _Found:
        try:
            addresses, ttl_s, error = await self._ask(name)
            found = _Found(addresses[:ADDRESSES_MAX], error, monotonic() + ttl_s)
            self._kept[name] = found
            self._kept.move_to_end(name)
            if len(self._kept) > NAMES_KEPT_MAX:
                self._kept.popitem(last=False)
            return found
        finally:
            del self._asking[name]

    async def _ask(self, name: str) -> tuple[tuple[str, ...], float, str]:
        """Return addresses, for how many seconds they count, and what is wrong when there are none."""
        own = literal_of(name)
        if own:
            # RFC 6761 section 6.3: never asked of a name server, which could answer anything.
            return own, TTL_MAX_S, ""
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                channel = self._open_channel()
                if channel is None:
                    return await _ask_system(name)
                answer = await channel.getaddrinfo(name, type=socket.SOCK_STREAM, family=socket.AF_UNSPEC)
        except TimeoutError:
            return (), FAILED_TTL_S, f"no name server answered within {LOOKUP_TIMEOUT_S:.0f} s"
        except aiodns.error.DNSError as error:
            code, text = error.args[0], str(error.args[-1])
            return (), MISSING_TTL_S if code in _MISSING else FAILED_TTL_S, text
        except UnicodeError:
            return (), MISSING_TTL_S, "that cannot be the name of a host"
        ttl_s = min((node.ttl for node in answer.nodes), default=0)
        addresses = tuple(dict.fromkeys(node.addr[0].decode("ascii") for node in answer.nodes))
        if not addresses:
            return (), MISSING_TTL_S, "the name has no address"
        return addresses, max(TTL_MIN_S, min(ttl_s, TTL_MAX_S)), ""

    def _open_channel(self) -> aiodns.DNSResolver | None:
        """Return what asks name servers; None where c-ares cannot start."""
        now = monotonic()
        is_stale = self._forgot_at > self._opened_at and now - self._opened_at > RENEW_S
        if self._channel is None or is_stale:
            try:
                # The one before is not closed: lookups that are under way keep it, and it goes with the last of them.
                self._channel = aiodns.DNSResolver(self._nameservers or None, timeout=TRY_TIMEOUT_S, tries=TRIES)
            except (OSError, RuntimeError, pycares.AresError):
                return self._channel
            self._opened_at = now
        return self._channel


async def _ask_system(name: str) -> tuple[tuple[str, ...], float, str]:
    """Ask the operating system in a thread, which knows no time to live."""
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else "no such name"
        return (), FAILED_TTL_S, text
    return tuple(dict.fromkeys(str(row[4][0]) for row in rows)), SYSTEM_TTL_S, ""


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
