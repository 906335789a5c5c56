"""A server that was started again is noticed on each connection before the first command, and only then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.restarts import restarts_of
from streamcrawl.store.shards import Shards
from streamcrawl.work.seeds import SeedLines, SeedLoop
from streamcrawl.work.watch import WatchLoop
from tests.integration.snapshot import Lab, fast, wait_until
from tests.redis_server import DURABLE, RedisServer

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def test_restart_is_noticed_where_no_command_fails() -> None:
    """redis-py replaces a connection that was closed while it was idle, without a word."""
    with RedisServer() as server:
        client = connect(server.url)
        noticed: list[str] = []
        restarts_of(client).listen(lambda: noticed.append("restart"))
        await client.ping()
        server.kill9()
        server.start()
        # The end of a connection has come by the time that another one is answered.
        other = connect(server.url)
        await other.ping()
        await client.ping()
        assert noticed == ["restart"]
        assert restarts_of(client).count == 1
        await client.ping()
        assert noticed == ["restart"]
        assert restarts_of(other).count == 0
        await other.aclose()
        await client.aclose()


async def test_new_connection_to_the_same_server_is_no_restart(redis_server: RedisServer) -> None:
    client = connect(redis_server.url)
    await asyncio.gather(*(client.ping() for _ in range(8)))
    await client.connection_pool.disconnect()
    await client.ping()
    assert restarts_of(client).count == 0
    await client.aclose()


async def test_seeds_that_were_lost_are_waited_for_and_offered_again(crawl_name: str) -> None:
    with RedisServer(options=DURABLE) as server:
        client = connect(server.url)
        lab = await Lab.opened(client, **fast(crawl_name))
        kept = server.append_log.stat().st_size
        stop = asyncio.Event()
        seeds = seed_loop(lab)
        await seeds.run(stop)
        assert (seeds.new, await is_closed(lab)) == (2, True)
        again = asyncio.create_task(seeds.until_restart(stop))
        server.kill9()
        assert server.lose_written(kept) > 0
        server.start()
        await wait_until_answered(client)
        assert await again
        assert not await is_closed(lab)
        repeated = seed_loop(lab)
        await repeated.run(stop)
        assert (repeated.new, await is_closed(lab)) == (2, True)
        stop.set()
        assert not await repeated.until_restart(stop)
        await lab.check()
        await client.aclose()


async def test_watch_says_a_restart_once_and_mends_counts(crawl_name: str) -> None:
    with RedisServer(options=DURABLE) as server:
        client = connect(server.url)
        lab = await Lab.opened(client, **fast(crawl_name))
        await lab.offer("http://a.test/")
        log: list[str] = []
        watch = WatchLoop(Shards([lab.frontier]), log=log.append)
        running = asyncio.create_task(watch.run())
        await client.hset(lab.keys.host("http://a.test"), "queued", 7)
        server.kill9()
        server.start()

        async def is_said() -> bool:
            return any("mended" in line for line in log)

        await wait_until(is_said, "the counts to be mended")
        assert await client.hget(lab.keys.host("http://a.test"), "queued") == b"1"
        watch.stop()
        await running
        assert sum("restarted" in line for line in log) == 1
        await lab.check()
        await client.aclose()


def seed_loop(lab: Lab) -> SeedLoop:
    lines = SeedLines(["http://a.test/", "http://b.test/"])
    return SeedLoop(Shards([lab.frontier]), lines, make_settings(name="any"), lambda _: None, feeder="one")


async def is_closed(lab: Lab) -> bool:
    value: object = await lab.client.hget(lab.keys.state, "closed")
    return value == b"1"


async def wait_until_answered(client: Redis) -> None:
    async def answers() -> bool:
        try:
            return bool(await client.ping())
        except RedisError:
            return False

    await wait_until(answers, "the server to answer")
