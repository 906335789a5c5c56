"""Where do redirects lead? Within their host in the same slot, after its delay; to another by way of the frontier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamcrawl.work.page_work import START_WAIT_MAX_MS
from tests.integration.drive import Talker, crawling, html, records, violations
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer


async def test_redirect_within_the_host_is_followed_after_the_delay(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "pages.jsonl"
    answers = {
        "/": html(status=302, Location="/a"),
        "/a": html(status=301, Location="b?x=1#y"),
        "/b?x=1": html("/c"),
        "/c": html(),
    }
    async with Talker(answers) as talker:
        origin = talker.origin
        async with crawling(redis_server.url, crawl_name, [origin], output=output, delay_ms=300) as run:
            assert await run.word() == "ENDED"
            assert (await run.totals())["page.done"] == 2
        first, second = records(output)
        assert (first["url"], first["final_url"], first["status"]) == (f"{origin}/", f"{origin}/b?x=1", 200)
        assert first["redirects"] == [f"{origin}/", f"{origin}/a"]
        assert (second["url"], second["referrer"], second["redirects"]) == (f"{origin}/c", f"{origin}/", [])
        assert [request.path for request in talker.requests] == ["/", "/a", "/b?x=1", "/c"]
        assert violations(talker.requests, cap=1, delay_ms=300) == []


async def test_redirect_is_followed_when_the_delay_is_longer_than_a_slot_waits_for_a_host(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    # With a cap above 1 each hop asks for its start: handed back for the delay, the task began anew for ever.
    delay_ms = START_WAIT_MAX_MS + 300
    answers = {"/": html(status=302, Location="/a"), "/a": html()}
    async with Talker(answers) as talker:
        output = tmp_path / "pages.jsonl"
        crawl = crawling(
            redis_server.url, crawl_name, [talker.origin], output=output, delay_ms=delay_ms, host_concurrency=2
        )
        async with crawl as run:
            assert await run.word() == "ENDED"
        assert [request.path for request in talker.requests] == ["/", "/a"]
        assert violations(talker.requests, cap=2, delay_ms=delay_ms) == []


async def test_redirect_to_another_host_ends_the_task_and_offers_its_target(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "pages.jsonl"
    async with Talker({"/target": html("/linked"), "/linked": html()}) as there:
        here_answers = {"/": html("/moved"), "/moved": html(status=302, Location=f"{there.origin}/target")}
        async with Talker(here_answers) as here:
            async with crawling(redis_server.url, crawl_name, [here.origin], output=output) as run:
                assert await run.word() == "ENDED"
                totals = await run.totals()
                assert totals["page.dropped"] == totals["page.dropped.redirected"] == 1
                await run.check()
            found = {record["url"]: record for record in records(output)}
            assert set(found) == {f"{here.origin}/", f"{there.origin}/target", f"{there.origin}/linked"}
            target = found[f"{there.origin}/target"]
            assert target["redirects"] == [f"{here.origin}/moved"]
            assert (target["depth"], target["referrer"]) == (1, f"{here.origin}/")
            assert found[f"{there.origin}/linked"]["depth"] == 2


async def test_redirects_across_hosts_count_towards_their_limit(redis_server: RedisServer, crawl_name: str) -> None:
    async with Talker({}) as here, Talker({}) as there:
        here.answers.update({f"/{n}": html(status=302, Location=f"{there.origin}/{n}") for n in range(10)})
        there.answers.update({f"/{n}": html(status=302, Location=f"{here.origin}/{n + 1}") for n in range(10)})
        async with crawling(redis_server.url, crawl_name, [f"{here.origin}/0"], redirects_max=5) as run:
            assert await run.word() == "ENDED"
            assert [letter.reason for letter in await run.dead()] == ["too_many_redirects"]
        assert len(here.requests) + len(there.requests) == 6


async def test_redirects_in_a_circle_over_two_hosts_end(redis_server: RedisServer, crawl_name: str) -> None:
    async with Talker({}) as here, Talker({}) as there:
        here.answers["/"] = html(status=302, Location=f"{there.origin}/")
        there.answers["/"] = html(status=302, Location=f"{here.origin}/")
        async with crawling(redis_server.url, crawl_name, [here.origin]) as run:
            assert await run.word() == "ENDED"
            await run.check()
            assert (await run.totals())["page.dropped.redirected"] == 2
        assert len(here.requests) == len(there.requests) == 1


@pytest.mark.parametrize("is_seed", [True, False])
async def test_only_a_seed_may_lead_out_of_scope(redis_server: RedisServer, crawl_name: str, is_seed: bool) -> None:
    async with Talker({"/": html()}) as there:
        answers = {"/": html("/moved"), "/moved": html(status=302, Location=f"{there.origin}/")}
        async with Talker(answers) as here:
            seed = f"{here.origin}/moved" if is_seed else here.origin
            async with crawling(redis_server.url, crawl_name, [seed], scope="host") as run:
                assert await run.word() == "ENDED"
                totals = await run.totals()
            assert len(there.requests) == is_seed
            assert totals["page.dropped"] == totals[f"page.dropped.{'redirected' if is_seed else 'out_of_scope'}"] == 1
            assert totals["page.done"] == 1


async def test_site_that_is_full_of_redirects_is_found_whole(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "pages.jsonl"
    spec = SiteSpec(hosts=6, pages_per_host=60, links=8, redirect_within=0.3, redirect_across=0.3)
    with SiteProcess(spec) as site:
        async with crawling(
            redis_server.url, crawl_name, [site.seed_url], output=output, processes=2, host_concurrency=3
        ) as run:
            assert await run.word() == "ENDED"
            await run.check()
        assert {record["final_url"] for record in records(output)} == site.expected_pages()
        assert len({record["url"] for record in records(output)}) == len(records(output))
