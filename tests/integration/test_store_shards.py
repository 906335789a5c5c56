"""A crawl of several shards is made, joined and deleted, also when whoever does it dies between any two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ConfigError, CrawlGone
from streamcrawl.settings import make_settings
from streamcrawl.store.frontier import open_shard
from streamcrawl.store.keys import CRAWLS, Keys
from streamcrawl.store.shards import crawl_names, delete_crawl, join_crawl, open_crawl
from tests.integration.snapshot import fast, links

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from streamcrawl.settings import Settings

SHARDS = 4


@pytest.fixture
def shards_settings(crawl_name: str) -> Settings:
    return make_settings(**fast(crawl_name, shards=SHARDS))


async def left_of(client: Redis, name: str) -> list[Any]:
    return [key async for key in client.scan_iter(match=f"streamcrawl:{{{name}:*")]


@pytest.mark.parametrize("made", range(1, SHARDS))
async def test_a_crawl_that_was_not_made_whole_is_not_joined_and_made_whole_by_the_next(
    store_client: Redis, shards_settings: Settings, made: int
) -> None:
    name = shards_settings.name
    first, _ = await open_shard(store_client, shards_settings)
    for shard in range(1, made):
        await open_shard(store_client, shards_settings, shard=shard, epoch=first.epoch)
    with pytest.raises(ConfigError, match="just being made or deleted"):
        await join_crawl(store_client, name)
    crawl, is_new = await open_crawl(store_client, shards_settings)
    assert (crawl.epoch, is_new) == (first.epoch, False)
    joined = await join_crawl(store_client, name)
    assert [frontier.epoch for frontier in joined] == [first.epoch] * SHARDS
    assert name in await crawl_names(store_client)
    await delete_crawl(store_client, name)
    assert name not in await crawl_names(store_client)
    assert await left_of(store_client, name) == []


@pytest.mark.parametrize("step", ["one epoch", "all epochs", "half the keys", "all but the states", "the first state"])
async def test_a_deletion_that_broke_off_is_ended_by_the_next(
    store_client: Redis, shards_settings: Settings, step: str
) -> None:
    name = shards_settings.name
    crawl, _ = await open_crawl(store_client, shards_settings)
    for host in "abcdefi":
        await crawl.of(f"http://{host}.test").offer(links(f"http://{host}.test/"))
    states = [Keys(name, shard).state for shard in range(SHARDS)]
    for state in states[: 1 if step == "one epoch" else SHARDS]:
        await store_client.hdel(state, "epoch")
    if not step.endswith(("epoch", "epochs")):
        rest = [key for key in await left_of(store_client, name) if key.decode() not in states]
        await store_client.delete(*rest[: len(rest) // 2 if step == "half the keys" else len(rest)])
    if step == "the first state":
        await store_client.delete(*states[1:])
    with pytest.raises(ConfigError, match="deletion broke off"):
        await open_crawl(store_client, shards_settings)
    with pytest.raises(ConfigError, match="there is no crawl"):
        await join_crawl(store_client, name)
    with pytest.raises(CrawlGone):
        await crawl.first.dispatch(1)
    await delete_crawl(store_client, name)
    assert await left_of(store_client, name) == []
    assert (await open_crawl(store_client, shards_settings))[1]
    await delete_crawl(store_client, name)


async def test_a_slow_deletion_leaves_the_crawl_that_was_begun_anew_alone(
    store_client: Redis, shards_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two delete at once; the faster one begins anew while the slower one looks for keys."""
    name = shards_settings.name
    await open_crawl(store_client, shards_settings)
    scan = store_client.scan_iter
    crawls = []

    async def slow_scan(**how: Any) -> Any:
        monkeypatch.undo()
        await delete_crawl(store_client, name)
        crawls.append((await open_crawl(store_client, shards_settings))[0])
        async for key in scan(**how):
            yield key

    monkeypatch.setattr(store_client, "scan_iter", slow_scan)
    await delete_crawl(store_client, name)
    [anew] = crawls
    assert await anew.reconcile() == 0
    for frontier in await join_crawl(store_client, name):
        assert (await frontier.finish()).word in ("RUNNING", "ENDED")
        assert await store_client.exists(frontier.keys.fetch_stream)
    assert await store_client.sismember(CRAWLS, name)
    await delete_crawl(store_client, name)
