"""The set of seen URLs: compact however large it grows, and never forgetful."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from streamcrawl.rules.urls import fingerprint
from streamcrawl.store.frontier import LINKS_PER_CALL, Links
from streamcrawl.store.shards import delete_crawl
from tests.integration.snapshot import Lab, fast, page

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

EXTREMES = (0, 1, -1, 7, -7, 10**14, -(10**14), 10**15, -(10**15), 2**63 - 1, -(2**63))
TASK = page("http://a.test/")


async def offer_all(lab: Lab, fps: list[int]) -> int:
    """Offer links of these fingerprints in whole calls; return how many were new."""
    new = 0
    for start in range(0, len(fps), LINKS_PER_CALL):
        offered = Links()
        for fp in fps[start : start + LINKS_PER_CALL]:
            offered.add(TASK, fp)
        word, count = await lab.frontier.offer(offered)
        assert word == "OK"
        new += count
    return new


async def buckets_of(lab: Lab) -> dict[int, tuple[str, list[int]]]:
    """Return encoding and members of every bucket."""
    count = int(await lab.client.hget(lab.keys.state, "seen_buckets"))
    async with lab.client.pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.object("encoding", lab.keys.seen(n))
            pipe.smembers(lab.keys.seen(n))
        answers = await pipe.execute()
    return {n: (answers[2 * n].decode(), [int(fp) for fp in answers[2 * n + 1]]) for n in range(count)}


@pytest.mark.timeout(180)
async def test_hundreds_of_thousands_stay_compact_and_none_is_lost(store_client: Redis, crawl_name: str) -> None:
    lab = await Lab.opened(store_client, **fast(crawl_name))
    fps = [fingerprint(f"http://a.test/{n}") for n in range(300_000)]
    for start in range(0, len(fps), 50_000):
        assert await offer_all(lab, fps[start : start + 50_000]) == 50_000
        buckets = await buckets_of(lab)
        assert {encoding for encoding, _ in buckets.values()} == {"intset"}
        members = [fp for _, kept in buckets.values() for fp in kept]
        assert len(members) == start + 50_000
        assert set(members) == set(fps[: start + 50_000])
    assert await lab.client.hget(lab.keys.state, "seen") == b"300000"
    sizes = [len(kept) for _, kept in buckets.values()]
    assert max(sizes) <= 512
    assert 150 <= sum(sizes) / len(sizes) <= 220
    # Each is still found where it lies now, after all the splits.
    assert await offer_all(lab, random.Random(1).sample(fps, 10_000)) == 0
    await delete_crawl(store_client, crawl_name)


async def test_fingerprints_of_any_sign_and_length_are_found_again(open_lab: OpenLab) -> None:
    lab = await open_lab()
    numbers = random.Random(2)
    fps = [*EXTREMES, *(numbers.randrange(-(10**size), 10**size) for size in range(1, 19) for _ in range(60))]
    fps = list(dict.fromkeys(fps))
    assert await offer_all(lab, fps) == len(fps)
    assert await offer_all(lab, fps) == 0
    buckets = await buckets_of(lab)
    assert sorted(fp for _, kept in buckets.values() for fp in kept) == sorted(fps)
    assert {encoding for encoding, _ in buckets.values()} == {"intset"}
    await delete_crawl(lab.client, lab.keys.prefix.split("{")[1].split(":")[0])


async def test_the_same_url_twice_in_one_call_is_new_once(open_lab: OpenLab) -> None:
    lab = await open_lab()
    assert await offer_all(lab, [5, 5, 6, 5]) == 2
    assert await lab.host("http://a.test") == {"queued": 2}
    await lab.client.delete(lab.keys.queue("http://a.test", "2"))
    await delete_crawl(lab.client, lab.keys.prefix.split("{")[1].split(":")[0])


async def test_a_bucket_that_outgrew_its_form_is_compact_again_after_its_split(open_lab: OpenLab) -> None:
    """A set that was once a hash table never turns back by itself: a split must make both halves anew."""
    lab = await open_lab()
    await lab.client.sadd(lab.keys.seen(0), *range(600))
    await lab.client.hset(lab.keys.state, "seen", 600)
    assert await lab.client.object("encoding", lab.keys.seen(0)) == b"hashtable"
    assert await offer_all(lab, [10**6]) == 1
    assert await offer_all(lab, [10**6 + 1]) == 1
    assert {encoding for encoding, _ in (await buckets_of(lab)).values()} == {"intset"}
    assert await offer_all(lab, [*range(600), 10**6, 10**6 + 1]) == 0
    await delete_crawl(lab.client, lab.keys.prefix.split("{")[1].split(":")[0])
