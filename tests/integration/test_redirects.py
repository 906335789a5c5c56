"""Where do redirects lead? Within their host in the same slot, after its delay; to another by way of the frontier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from streamcrawl.work.page_work import START_WAIT_MAX_MS
from tests.integration.drive import Talker, crawling, html, records, violations
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
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


# -- pages that send their visitors on


def sending(target: str, after: str = "0", *links: str) -> Callable[[int], Awaitable[web.StreamResponse]]:
    """Return an answer that is a page with a meta refresh."""

    async def answer(_: int) -> web.StreamResponse:
        found = "".join(f'<a href="{link}">x</a>' for link in links)
        text = f"<title>wait</title><meta http-equiv=refresh content='{after};url={target}'>{found}"
        return web.Response(text=text, content_type="text/html")

    return answer


async def test_meta_refresh_at_once_is_a_redirect_and_a_later_one_a_link(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "pages.jsonl"
    async with Talker({"/there": html()}) as there, Talker({}) as here:
        here.answers = {
            "/": html("/within", "/across", "/later", "/self", "/gone", "/deep"),
            "/within": sending("/a", "1"),
            "/a": html("/b"),
            "/b": html(),
            "/across": sending(f"{there.origin}/there"),
            "/later": sending("/c", "2", "/d"),
            "/c": html(),
            "/d": html(),
            "/self": sending("/self"),
            "/gone": html(status=404),
            # Out of the limits: neither page nor link may be lost for it.
            "/deep": sending(f"/{'deep/' * 20}x"),
        }
        run_of = crawling(redis_server.url, crawl_name, [here.origin], output=output, delay_ms=100, path_depth_max=10)
        async with run_of as run:
            assert await run.word() == "ENDED"
            totals = await run.totals()
            await run.check()
        found = {record["url"].removeprefix(here.origin): record for record in records(output)}
        assert set(found) == {
            *("/", "/within", "/b", "/later", "/c", "/d", "/self", "/gone", "/deep"),
            f"{there.origin}/there",
        }
        within = found["/within"]
        assert (within["final_url"], within["redirects"], within["title"]) == (
            f"{here.origin}/a",
            [f"{here.origin}/within"],
            "page",
        )
        assert found[f"{there.origin}/there"]["redirects"] == [f"{here.origin}/across"]
        assert found["/later"]["title"] == "wait"
        assert totals["page.dropped"] == totals["page.dropped.redirected"] == 1
        assert totals["links.trap_path_depth"] == 1
        assert violations(here.requests, cap=1, delay_ms=100) == []


async def test_pages_that_send_on_in_a_circle_or_on_and_on_are_kept_and_counted(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "pages.jsonl"
    async with Talker({}) as there, Talker({}) as here:
        endless = {f"/n/{n}": sending(f"/n/{n + 1}") for n in range(20)}
        here.answers = {
            "/": html("/a", "/n/0", "/host"),
            "/a": sending("/b", "0", "/c"),
            "/b": sending("/a", "0", "/c"),
            "/c": html(),
            "/host": sending(f"{there.origin}/"),
            **endless,
        }
        there.answers = {"/": sending(f"{here.origin}/host")}
        async with crawling(redis_server.url, crawl_name, [here.origin], output=output, redirects_max=4) as run:
            assert await run.word() == "ENDED"
            totals = await run.totals()
            assert await run.dead() == []
            await run.check()
        found = {record["url"].removeprefix(here.origin): record["final_url"] for record in records(output)}
        assert found == {
            "/": f"{here.origin}/",
            "/a": f"{here.origin}/b",
            "/c": f"{here.origin}/c",
            "/n/0": f"{here.origin}/n/4",
            f"{there.origin}/": f"{there.origin}/",
        }
        assert totals["links.refresh_loop"] == 3
        assert sum(request.path.startswith("/n/") for request in here.requests) == 5


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
