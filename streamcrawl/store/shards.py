"""A whole crawl in Redis: its shards, one or several, opened, joined and deleted together.

Every script touches one shard. What spans several is here, and each step of it may be the last one a process does: the
next caller goes on. Hosts go to shards by their registrable domain, so all that belongs together for politeness, and
most links of a page, lie in one. Start at `open_crawl` and `join_crawl`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import ConfigError
from streamcrawl.rules.urls import domain_of
from streamcrawl.settings import SCHEMA, SettingClass, fields_of
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.frontier import Frontier, open_shard, other_schema
from streamcrawl.store.keys import CRAWLS, ROOT, Keys
from streamcrawl.store.scripts import Scripts
from streamcrawl.store.upgrade import upgrade_crawl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from redis.asyncio import Redis

    from streamcrawl.settings import Settings

_UNLINKED_PER_CALL: Final = 500


@lru_cache(maxsize=65_536)
def shard_of(host: str, shards: int) -> int:
    """Return in which of `shards` a host key lies: by its registrable domain, the same for every version of Python."""
    if shards == 1:
        return 0
    domain = domain_of(host)
    return int.from_bytes(blake2b(domain.encode(), digest_size=8).digest(), "big") % shards


class Shards:
    """All shards of one crawl, with the epoch that this process joined; the first knows what is of the whole crawl."""

    def __init__(self, frontiers: Sequence[Frontier], identity: Mapping[str, Any] | None = None) -> None:
        """Hold the shards; `identity` is what the crawl has of the settings that never change (`identity_in`)."""
        self.frontiers: Final = tuple(frontiers)
        self.identity: Final = {**(identity or {}), "shards": len(self.frontiers)}
        self.first: Final = self.frontiers[0]
        self.client: Final = self.first.client
        self.epoch: Final = self.first.epoch

    def __len__(self) -> int:
        return len(self.frontiers)

    def __iter__(self) -> Iterator[Frontier]:
        return iter(self.frontiers)

    def index_of(self, host: str) -> int:
        return shard_of(host, len(self.frontiers))

    def of(self, host: str) -> Frontier:
        """Return the shard of a host key."""
        return self.frontiers[shard_of(host, len(self.frontiers))]

    def count_as_one(self, host: str, other: str) -> bool:
        """Return whether politeness counts two host keys as one: the same, or of one domain where it is by domain."""
        if host == other or not self.first.by_domain:
            return host == other
        return domain_of(host) == domain_of(other)

    async def control(self, **values: str | int) -> None:
        """Set fields of every shard's state; '' removes one. The first comes first: it is what others look at."""
        for frontier in self.frontiers:
            await frontier.control(**values)

    async def reconcile(self) -> int:
        """Recompute the counts of every host; returns how many were wrong."""
        return sum([await frontier.reconcile() for frontier in self.frontiers])


async def open_crawl(
    client: Redis,
    settings: Settings,
    *,
    sinks: Sequence[str] = (),
    given: bytes = b"",
    is_alone: bool = False,
    log: Callable[[str], None] | None = None,
) -> tuple[Shards, bool]:
    """Create the crawl or join it as it is; what was stopped for a limit goes on. One of an older schema is upgraded.

    Args:
        given: JSON of what its settings were set to, kept when the crawl is new.
        is_alone, log: As `upgrade_crawl` takes them.

    Returns:
        The crawl, and whether it was created by this call.

    Raises:
        StoreIncompatible, ConfigError: as `open_shard` and `upgrade_crawl` say.
    """
    await upgrade_crawl(client, settings.name, is_alone=is_alone, log=log)
    first, is_new = await open_shard(client, settings, sinks=sinks, given=given)
    frontiers = [first]
    for shard in range(1, settings.shards):
        frontier, _ = await open_shard(client, settings, sinks=sinks, shard=shard, epoch=first.epoch)
        frontiers.append(frontier)
    with mapped_errors():
        await client.sadd(CRAWLS, settings.name)
    crawl = Shards(frontiers, identity_in(msgspec.json.encode(settings.identity())))
    if not is_new:
        await crawl.control(stopped="")
    return crawl, is_new


async def join_crawl(client: Redis, name: str, *, is_only_read: bool = False) -> Shards:
    """Return a crawl that is there, with as many shards as it has; nothing is changed.

    Args:
        is_only_read: Nothing of it will be written, so it may be of an older schema.

    Raises:
        ConfigError: there is no such crawl, or not all of its shards.
        StoreIncompatible: it is of another schema.
        StoreError: as every call of the store.
    """
    epoch: Any
    identity: Any
    schema: Any
    with mapped_errors():
        epoch, identity, schema = await client.hmget(Keys(name).state, ["epoch", "identity", "schema"])
        if epoch is None:
            raise ConfigError(f"there is no crawl {name!r} in this store; `streamcrawl status` lists those that are")
        if int(schema or 0) > SCHEMA or (int(schema or 0) < SCHEMA and not is_only_read):
            raise other_schema(name, schema)
        every = [Keys(name, shard) for shard in range(shards_in(identity))]
        async with client.pipeline(transaction=False) as pipe:
            for keys in every:
                pipe.hget(keys.state, "epoch")
            epochs: list[Any] = await pipe.execute()
    # A shard that is not there yet would say GONE, as if the crawl had been deleted.
    if set(epochs) != {epoch}:
        raise ConfigError(
            f"crawl {name!r} is just being made or deleted; try again, and when this stays: `streamcrawl crawl` with "
            "its settings makes it whole, `streamcrawl delete` removes it"
        )
    known = identity_in(identity)
    by_domain = known.get("politeness_by") == "domain"
    return Shards([Frontier(client, keys, epoch.decode(), by_domain=by_domain) for keys in every], known)


def shards_in(identity: bytes | str | None) -> int:
    """Return the number of shards in the stored identity of a crawl; 1 when it says nothing."""
    try:
        return int(identity_in(identity)["shards"])
    except ValueError:
        return 1


def identity_in(identity: bytes | str | None) -> dict[str, Any]:
    """Return the stored identity settings of a crawl by field: `shards` always, of the others what is set. What is no
    identity setting of this version is left out; whoever opens the crawl is refused for it (open.lua)."""
    try:
        stored = msgspec.json.decode(identity or b"{}", type=dict[str, Any])
    except msgspec.DecodeError:
        stored = {}
    known = {field: stored[field] for field in fields_of(SettingClass.IDENTITY) if field in stored}
    return {"shards": 1} | {field: tuple(value) if isinstance(value, list) else value for field, value in known.items()}


async def crawl_names(client: Redis) -> list[str]:
    """Return the names of all crawls in a store, sorted."""
    with mapped_errors():
        names: Any = await client.smembers(CRAWLS)
    return sorted(name.decode("utf-8", "replace") for name in names)


async def delete_crawl(client: Redis, name: str, *, on_deleted: Callable[[int], None] = lambda keys: None) -> int:
    """Delete every key of a crawl in bounded steps; returns how many keys.

    The epochs go first, so that workers which are still alive get GONE and write nothing more; the states go last, and
    that of the first shard last of all. After a crash in between `open_crawl` refuses the crawl until this was called
    again. Where somebody else has ended the deletion and begun the crawl anew, the new one is left alone.

    Args:
        on_deleted: Called with how many are deleted by now.
    """
    deleted = 0
    epochs: dict[int, str] = {}

    async def delete(shard: int, *words: bytes) -> bool:
        nonlocal deleted
        state = Keys(name, shard).state
        if shard not in epochs:
            with mapped_errors():
                epochs[shard] = (await client.hget(state, "epoch") or b"").decode()  # type: ignore[union-attr]
        answer = await Scripts(client, state).run("delete", epochs[shard], *words)
        if answer[0] != b"OK":
            return False
        deleted += answer[1]
        on_deleted(deleted)
        return True

    with mapped_errors():
        shards = range(shards_in(await client.hget(Keys(name).state, "identity")))
    for shard in shards:
        if not await delete(shard):
            return deleted
    head = f"{ROOT}:{{{name}:"
    batches: dict[int, list[bytes]] = defaultdict(list)
    with mapped_errors():
        # One scan for all shards: each costs the keys of the whole server.
        async for key in client.scan_iter(match=re.sub(r"([\[\]\\?*^])", r"\\\1", head) + "*", count=1000):
            number, _, word = key[len(head) :].partition(b"}:")
            shard = int(number)
            if word == b"state" and shard in shards:
                continue
            batches[shard].append(word)
            if len(batches[shard]) >= _UNLINKED_PER_CALL and not await delete(shard, *batches.pop(shard)):
                return deleted
    for shard, words in batches.items():
        if not await delete(shard, *words):
            return deleted
    for shard in reversed(shards[1:]):
        await delete(shard, b"state")
    # Before the last state goes: a crawl that is begun anew after it puts itself on the list.
    with mapped_errors():
        await client.srem(CRAWLS, name)
    if not await delete(0, b"state"):
        with mapped_errors():
            await client.sadd(CRAWLS, name)
    return deleted
