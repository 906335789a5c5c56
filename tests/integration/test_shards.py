"""A crawl of several shards: the same pages as with one, each once, limits exact, whatever dies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from streamcrawl.settings import Given, make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.shards import identity_in, join_crawl, open_crawl, shard_of
from streamcrawl.store.tuning import tune
from streamcrawl.work.tuning import TuningLoop
from tests.integration.drive import QUICK, Talker, crawling, html, kill_children, records, until
from tests.integration.snapshot import wait_until
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from streamcrawl.store.frontier import Mind
    from tests.redis_server import RedisServer

SPEC = SiteSpec(hosts=12, pages_per_host=40, links=10, flaky=0.05, redirect_across=0.05, redirect_within=0.05)


def test_hosts_of_one_domain_lie_in_one_shard_and_the_others_are_spread() -> None:
    assert shard_of("https://a.example.co.uk", 8) == shard_of("http://b.c.example.co.uk:8080", 8)
    assert {shard_of(f"https://site{n}.example", 8) for n in range(200)} == set(range(8))
    assert shard_of("https://example.org", 1) == 0
    # Another place in another version would lose what lies in Redis.
    assert [shard_of(f"https://{name}", 8) for name in ("example.org", "127.0.0.1", "localhost")] == [5, 4, 6]


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (None, {"shards": 1}),
        ("{", {"shards": 1}),
        ('{"shards":3}', {"shards": 3}),
        ('{"shards":2,"drop_params":["a"],"of_a_newer_version":1}', {"shards": 2, "drop_params": ("a",)}),
    ],
)
def test_identity_is_read_as_far_as_this_version_knows_it(stored: str | None, expected: dict[str, object]) -> None:
    assert identity_in(stored) == expected


async def test_identity_stays_whatever_else_is_changed(redis_client: Redis, crawl_name: str) -> None:
    # Without it a worker that followed a change would give URLs another form than those before.
    settings = make_settings(crawl_name, {"shards": 2, "drop_params": ("tracking",), "sort_query": True})
    await open_crawl(redis_client, settings)
    crawl = await join_crawl(redis_client, crawl_name)
    _, tuned = await tune(crawl, crawl_name, {"delay_ms": Given(7, "test")})
    assert (tuned.delay_ms, tuned.identity()) == (7, settings.identity())


def assert_each_once(output: Path, site: SiteProcess) -> None:
    urls = [record["url"] for record in records(output)]
    assert len(urls) == len(set(urls))
    assert {record["final_url"] for record in records(output)} == site.expected_pages()


@pytest.mark.parametrize("shards", [2, 5])
async def test_crawl_of_several_shards_brings_each_page_once(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path, shards: int
) -> None:
    output = tmp_path / "pages.jsonl"
    with SiteProcess(SPEC) as site:
        seeds = [site.seed_url]
        async with crawling(redis_server.url, crawl_name, seeds, output=output, shards=shards, processes=2) as run:
            assert await run.word() == "ENDED"
            await run.check()
            used = [
                frontier
                for frontier in run.crawl
                if await frontier.client.exists(frontier.keys.schedule, frontier.keys.seen(0))
            ]
        assert len(used) > 1
        assert_each_once(output, site)


async def test_killed_workers_of_several_shards_lose_nothing(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "pages.jsonl"
    with SiteProcess(SPEC) as site:
        async with crawling(
            redis_server.url, crawl_name, [site.seed_url], output=output, shards=4, processes=2, delay_ms=100
        ) as run:
            # 40 pages a host, 100 ms apart: four seconds at least, in which two children are surely caught at work.
            assert await kill_children(run, seed=1, most=6) > 1
            assert await run.word() == "ENDED"
            await run.check()
        assert_each_once(output, site)


async def test_page_budget_holds_over_all_shards_and_can_be_raised_while_they_run(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "pages.jsonl"
    with SiteProcess(SPEC) as site:
        for budget in (101, 260):
            async with crawling(
                redis_server.url, crawl_name, [site.seed_url], output=output, shards=4, pages_max=budget
            ) as run:
                assert await run.word() == "LIMIT"
                assert (await run.totals())["page.done"] == budget
                await run.check()
            assert len({record["url"] for record in records(output)}) == budget
        async with crawling(redis_server.url, crawl_name, [], output=output, shards=4, pages_max=None) as run:
            assert await run.word() == "ENDED"
        assert_each_once(output, site)


async def test_idle_shards_do_not_end_a_crawl_that_another_one_still_feeds(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """One site in one shard whose every page leads to another one: all other shards say ENDED all the time."""
    with SiteProcess(SiteSpec(hosts=2, pages_per_host=20, links=1)) as site:
        async with crawling(redis_server.url, crawl_name, [site.seed_url], shards=7, delay_ms=20) as run:
            assert await asyncio.wait_for(run.word(), 60) == "ENDED"
            assert (await run.totals())["page.done"] == len(site.expected_pages())


async def test_last_page_of_the_budget_reaches_the_shard_that_can_use_it(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """What a blocked host has queued stands still, too, and asks for pages as others do."""
    answers = {"/": html(*(f"/{n}" for n in range(20)))} | {f"/{n}": html() for n in range(20)}
    async with Talker(answers) as talker:
        site = talker.origin.replace("127.0.0.1", "localhost")
        blocked = [host for host in map("http://b{}.test".format, range(20)) if shard_of(host, 4) < shard_of(site, 4)]
        seeds = [site, *(f"{host}/{n}" for host in blocked for n in range(3))]
        async with crawling(redis_server.url, crawl_name, seeds, shards=4, pages_max=7, delay_ms=50) as run:
            for host in blocked:
                await run.crawl.of(host).set_host(host, blocked=1)
            assert await run.word(30) == "LIMIT"
            assert (await run.totals())["page.done"] == 7


async def test_limit_that_a_dead_supervisor_left_in_the_shards_is_taken_away(
    redis_server: RedisServer, crawl_name: str
) -> None:
    pages = {"/": html("/1"), "/1": html("/2"), "/2": html()}
    async with (
        Talker(pages) as talker,
        crawling(redis_server.url, crawl_name, [talker.origin], shards=2, delay_ms=500) as run,
    ):
        await until(lambda: bool(talker.requests), "the first page")
        # As one does whose settings still had a limit when it looked.
        for frontier in run.crawl:
            await frontier.allow(1)
        assert await run.word() == "ENDED"
        assert (await run.totals())["page.done"] == 3


async def test_half_a_resume_that_is_heard_of_twice_is_not_undone(redis_server: RedisServer, crawl_name: str) -> None:
    settings = make_settings(**QUICK | {"name": crawl_name, "shards": 2})
    client = connect(redis_server.url)
    crawl, _ = await open_crawl(client, settings)
    tuning = TuningLoop(crawl, settings, version=1, local={}, on_settings=lambda _: None, log=print)
    await crawl.control(stopped="FRONTIER_FULL")
    running = asyncio.create_task(tuning.run())

    async def minds() -> list[Mind]:
        return [(await frontier.finish()).mind for frontier in crawl]

    try:
        await crawl.first.control(stopped="")
        half = await minds()
        for _ in range(2):
            tuning.hear(half)
            await until(lambda: tuning._minds == half, "the half to be heard of")
            await asyncio.sleep(0)
        await crawl.frontiers[1].control(stopped="")
        await until(lambda: {mind.stopped for mind in tuning._minds} == {""}, "the whole to be heard of")
        assert {mind.stopped for mind in await minds()} == {""}
        # One who died at that point has nobody who ends it.
        await crawl.first.control(stopped="MEMORY_FULL")

        async def is_aligned() -> bool:
            return {mind.stopped for mind in await minds()} == {"MEMORY_FULL"}

        await wait_until(is_aligned, "the shards to be of one mind")
    finally:
        tuning.stop()
        await running
        await client.aclose()
