"""A store that loses what it has just answered, between two answers that belong together.

What each of them alone would mean is settled by one script; here one lies in another shard, or in an earlier call.
"""

from __future__ import annotations

import asyncio
import io
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import RedisError

from streamcrawl.rules.scope import Scope, sitemap_fingerprint
from streamcrawl.rules.task import CrawlTask, Kind
from streamcrawl.settings import make_settings
from streamcrawl.sinks.files import FileOutput, Parts, Rotation
from streamcrawl.sinks.jsonl import JsonLines
from streamcrawl.sinks.loop import SinkLoop
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import FETCH_STREAM, LINKS_PER_CALL, Beat, Committed, Frontier, Links
from streamcrawl.store.shards import Shards, open_crawl
from streamcrawl.work.board import Board, monotonic_ms
from streamcrawl.work.child import Child, ChildSpec
from streamcrawl.work.worker import run_worker
from tests.integration.drive import OUTPUT, QUICK, Talker, client_of, html, plain, until
from tests.integration.snapshot import links, wait_until
from tests.redis_server import DURABLE, RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from aiohttp import web

    from streamcrawl.sinks.output import Mark

LEASE_MS = 5000


def forget(server: RedisServer, since_bytes: int) -> None:
    """Restart the server without what it has written since its log was so long."""
    server.kill9()
    assert server.lose_written(since_bytes) > 0
    server.start()


class Forgetting(Frontier):
    """A shard before whose first commit the server forgets what came since `kept`, once that is set."""

    def __init__(self, frontier: Frontier, server: RedisServer) -> None:
        super().__init__(frontier.client, frontier.keys, frontier.epoch)
        self._server = server
        self.kept = 0
        self.has_forgotten = asyncio.Event()

    async def commit(self, worker: str, packed: Iterable[bytes], limit: int) -> Committed:
        if self.kept:
            kept, self.kept = self.kept, 0
            await asyncio.to_thread(forget, self._server, kept)
            self.has_forgotten.set()
        return await super().commit(worker, packed, limit)


@asynccontextmanager
async def worker(child: Child) -> AsyncIterator[None]:
    """Run a worker child in this process, with a heartbeat that is always confirmed."""

    async def beat() -> None:
        while not running.done():
            child.board.confirm(monotonic_ms())
            await asyncio.wait((running,), timeout=0.1)

    child.board.confirm(monotonic_ms())
    running = asyncio.create_task(run_worker(child))
    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        child.stop.set()
        try:
            await asyncio.gather(running, beating)
        finally:
            await child.close()
            child.board.close()


@asynccontextmanager
async def forgetful_crawl(
    server: RedisServer, name: str, origin: str, *, shards: int
) -> AsyncIterator[tuple[Shards, Forgetting, Child]]:
    """Open a crawl and prepare a worker for it, of which the shard of `origin` forgets."""
    settings = make_settings(**QUICK | {"name": name, "shards": shards, "lease_ms": LEASE_MS, "links_max": 1000})
    async with client_of(server.url) as client:
        crawl, _ = await open_crawl(client, settings)
        spec = ChildSpec(
            redis_url=server.url,
            settings=settings,
            epoch=crawl.epoch,
            consumer="w1",
            role="fetch",
            scope=Scope.from_settings(settings, [origin]).state(),
        )
        child = Child(spec, Board.create(settings.concurrency.most), io.StringIO())
        own = crawl.index_of(origin)
        forgetting = Forgetting(child.crawl.frontiers[own], server)
        child.crawl = Shards([*child.crawl.frontiers[:own], forgetting, *child.crawl.frontiers[own + 1 :]])
        for frontier in crawl:
            await frontier.beat([Beat("w1", FETCH_STREAM, settings.concurrency.most, "{}")], lease_ms=LEASE_MS)
        yield crawl, forgetting, child


def asked_for(talker: Talker, urls: Sequence[str]) -> Callable[[], bool]:
    paths = {"/" + url.rpartition("/")[2] for url in urls}
    return lambda: paths <= {request.path for request in talker.requests}


@pytest.mark.parametrize("shards", [1, 4])
async def test_links_that_were_offered_before_their_page_ended_and_lost_are_offered_again(
    crawl_name: str, shards: int
) -> None:
    with RedisServer(options=DURABLE) as server:
        async with Talker({}) as talker:
            page, far = talker.origin, talker.origin.replace("127.0.0.1", "localhost")
            # Before the commit go those of another shard, and with a single one what is too much for the commit.
            found = [f"{page}/{n}" for n in range(2 * LINKS_PER_CALL + 9)] if shards == 1 else [f"{far}/far"]
            async with forgetful_crawl(server, crawl_name, page, shards=shards) as (crawl, forgetting, child):
                assert (crawl.index_of(far) == crawl.index_of(page)) is (shards == 1)

                async def answer(count: int) -> web.StreamResponse:
                    # The entry of the page is delivered, and nothing of its links is written yet.
                    forgetting.kept = server.append_log.stat().st_size
                    return await html(*found)(count)

                talker.answers["/"] = answer
                await crawl.of(page).offer(links(f"{page}/"))
                async with worker(child):
                    # What was offered may be fetched before it is forgotten; only what is asked for after that counts.
                    await until(forgetting.has_forgotten.is_set, "the store to forget")
                    talker.requests.clear()
                    await until(asked_for(talker, found), "all links to be fetched")
                assert talker.asked["/"] == 1


async def test_what_a_sitemap_offered_and_the_store_lost_is_read_once_more(crawl_name: str) -> None:
    """Its chunks are gone by the time that its commit is refused: they were never kept."""
    with RedisServer(options=DURABLE) as server:
        async with Talker({}) as talker:
            origin = talker.origin
            found = [f"{origin}/{n}" for n in range(2 * LINKS_PER_CALL + 9)]
            async with forgetful_crawl(server, crawl_name, origin, shards=1) as (crawl, forgetting, child):

                async def answer(count: int) -> web.StreamResponse:
                    if count == 0:
                        forgetting.kept = server.append_log.stat().st_size
                    return await plain("\n".join(found))(count)

                talker.answers["/map"] = answer
                task = CrawlTask(host=origin, path="/map", kind=Kind.SITEMAP)
                offered = Links()
                offered.add(task, sitemap_fingerprint(task, origin, "any"))
                await crawl.first.offer(offered)
                async with worker(child):
                    await until(forgetting.has_forgotten.is_set, "the store to forget")
                    talker.requests.clear()
                    await until(asked_for(talker, found), "all that it lists to be fetched")
                assert talker.asked["/map"] == 2


class ForgettingFile(FileOutput):
    """A file in whose second write the server forgets the batch of the first."""

    def __init__(self, path: Path, server: RedisServer) -> None:
        super().__init__(Parts(path, ".jsonl"), JsonLines(), Rotation())
        self._server = server
        self._kept: list[int] = []

    async def append(self, records: Sequence[bytes]) -> Mark:
        self._kept.append(self._server.append_log.stat().st_size)
        if len(self._kept) == 2:
            await asyncio.to_thread(forget, self._server, self._kept[0])
        return await super().append(records)


async def test_lost_batch_of_one_shard_is_not_taken_for_written_by_that_of_another(
    crawl_name: str, tmp_path: Path
) -> None:
    settings = make_settings(**QUICK | {"name": crawl_name, "shards": 2, "lease_ms": LEASE_MS})
    output = tmp_path / "pages.jsonl"
    records = [f'{{"n":{n}}}' for n in range(6)]
    with RedisServer(options=DURABLE) as server:
        file = ForgettingFile(output, server)
        client, reader = connect(server.url), connect(server.url, blocking=True)
        crawl, _ = await open_crawl(client, settings, sinks=[OUTPUT])
        for n, record in enumerate(records):
            await client.xadd(crawl.frontiers[n % 2].keys.sink_stream(OUTPUT), {"item": record})
        board, log = Board.create(100), list[str]()
        loop = SinkLoop(
            crawl,
            reader,
            file,
            sink=OUTPUT,
            consumer="s1",
            board=board,
            lease_ms=LEASE_MS,
            linger_ms=20,
            log=log.append,
        )

        async def is_all_written() -> bool:
            try:
                lengths: list[Any] = [await client.xlen(one.keys.sink_stream(OUTPUT)) for one in crawl]
            except RedisError:
                return False
            return not any(lengths)

        stop = asyncio.Event()
        running = asyncio.create_task(loop.run(stop))
        try:
            await wait_until(is_all_written, "all records to be written")
        finally:
            stop.set()
            await running
        assert sorted(output.read_text().splitlines()) == records, log
        board.close()
        await file.close()
        await reader.aclose()
        await client.aclose()
