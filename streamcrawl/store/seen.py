"""Whether a URL is known to a crawl, asked from outside of its scripts, which reckon the same (lua/_seen.lua)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from streamcrawl.rules.urls import fingerprint
from streamcrawl.store.connection import mapped_errors

if TYPE_CHECKING:
    from streamcrawl.store.frontier import Frontier

_DIGITS: Final = 15
"""Of a fingerprint, the last: they fit the numbers that Lua has."""
_LOOKS_MAX: Final = 3


def bucket_of(fp: int, buckets: int) -> int:
    """Return in which of so many buckets a fingerprint lies, by linear hashing."""
    low = 1 << (buckets.bit_length() - 1)
    value = abs(int(str(fp)[-_DIGITS:]))
    bucket = value % (2 * low)
    return bucket if bucket < buckets else value % low


async def is_seen(frontier: Frontier, url: str) -> bool:
    """Return whether a canonical URL was ever accepted by this shard, as a page."""
    return await is_fingerprint_seen(frontier, fingerprint(url))


async def is_fingerprint_seen(frontier: Frontier, fp: int) -> bool:
    """Return whether what has this fingerprint was ever accepted by this shard."""
    for _ in range(_LOOKS_MAX):
        with mapped_errors():
            buckets: Any = await frontier.client.hget(frontier.keys.state, "seen_buckets")
            bucket = bucket_of(fp, int(buckets or 1))
            if await frontier.client.sismember(frontier.keys.seen(bucket), str(fp)):
                return True
            # A split between the two questions moves it.
            if await frontier.client.hget(frontier.keys.state, "seen_buckets") == buckets:
                return False
    return False
