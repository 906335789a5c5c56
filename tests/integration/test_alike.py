"""Hosts that yield nothing but near-identical pages (_alike.lua): demoted while others wait, and never dropped."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiohttp import web

from streamcrawl.ops.hosts import DelayReason, delay_words, host_list_lines, host_page, list_hosts
from streamcrawl.ops.status import read_status, status_lines
from streamcrawl.ops.summary import Run, summary_lines
from streamcrawl.rules.task import LastVisit, Outcome
from streamcrawl.settings import Settings
from tests.integration.drive import Talker, crawling, records, until
from tests.integration.snapshot import FETCH_STREAM, urls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from tests.integration.conftest import OpenLab
    from tests.integration.snapshot import Lab
    from tests.redis_server import RedisServer

A, B = "http://a.test", "http://b.test"
SAME: Final = "2AAAAAAAA"
LONG_MS: Final = 10_000_000
MOST: Final = 16
PAGES: Final = 250
POLITE: Final[dict[str, Any]] = {"delay_ms": 100, "delay_factor": 0, "delay_max_ms": 60_000}


def different(n: int) -> str:
    """Return a sketch unlike those of all numbers near it."""
    return "2" + "".join("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"[(n + k) % 32] for k in range(8))


async def play(lab: Lab, sketches: Iterable[str], **values: Any) -> None:
    """Let pages of A be done with these sketches, one after the other; what others have stays in their queues."""
    for sketch in sketches:
        await lab.let_pass(LONG_MS)
        taken = await lab.take()
        held = next(one for one in taken if one.host == A)
        await lab.frontier.hand_back(FETCH_STREAM, [one.id for one in taken if one is not held])
        assert await lab.end(held, sketch=sketch, **values) == "DONE"


async def be_demoted(lab: Lab) -> None:
    """The same for as many pages as it takes, of which the first are skipped."""
    await lab.client.hset(lab.keys.host(A), "alike", 950)
    await play(lab, [SAME] * 8)
    assert await demoted(lab) == MOST


async def demoted(lab: Lab) -> int:
    return int((await lab.host(A)).get("demoted", 0))


async def polite(open_lab: OpenLab, **values: Any) -> Lab:
    lab = await open_lab(**POLITE | values)
    await lab.offer(*urls("a.test", 400), *urls("b.test", 2))
    return lab


async def test_a_host_is_demoted_on_strong_evidence_and_by_and_by(open_lab: OpenLab) -> None:
    lab = await polite(open_lab)
    await play(lab, [SAME] * 23)
    assert await demoted(lab) == 0
    delays = []
    for _ in range(6):
        await play(lab, [SAME])
        delays.append((await host_page(lab.crawl, A)).delay_ms)
    assert delays == [200, 400, 800, 1600, 1600, 1600]
    assert "demoted" in await lab.check()


@pytest.mark.parametrize("shares", [(0, 1), (1, 2), (3, 4)], ids=lambda share: f"{share[0]} of {share[1]}")
async def test_a_host_with_enough_other_pages_is_not(open_lab: OpenLab, shares: tuple[int, int]) -> None:
    lab = await polite(open_lab)
    same, of = shares
    await play(lab, [SAME if n % of < same else different(9 * n) for n in range(60)])
    assert await demoted(lab) == 0
    assert "demoted" not in await lab.check()


async def test_other_pages_take_the_demotion_back_and_nothing_is_kept_of_it(open_lab: OpenLab) -> None:
    lab = await polite(open_lab)
    await be_demoted(lab)
    counts = []
    for n in range(4):
        await play(lab, [different(9 * n)])
        counts.append(await demoted(lab))
    assert counts == [8, 4, 2, 0]
    state = await lab.check()
    assert "demoted" not in state
    await play(lab, [different(9 * n) for n in range(5, 75)])
    host = await lab.host(A)
    assert {"alike", "demoted"} & {*host} == set()
    assert len(host["said"]) == 63  # a longer value would make Redis keep the whole hash as a table
    assert await lab.client.object("ENCODING", lab.keys.host(A)) == b"listpack"


async def test_two_words_that_differ_are_near_and_three_are_not(open_lab: OpenLab) -> None:
    lab = await polite(open_lab)
    await play(lab, ["2AAAAAAAA", "2BBBAAAAA", "2BBBBBAAA"])
    assert (await lab.host(A))["said"] == "2BBBBBAAA" + "2AAAAAAAA"
    await play(lab, ["0AAAAAAAB", "0AAAAAAAB"])
    assert (await lab.host(A))["said"].startswith("0AAAAAAAB" + "2BBBBBAAA")


async def test_alone_it_is_as_quick_as_any_and_waits_while_others_have_pages(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 400))
    await be_demoted(lab)
    page = await host_page(lab.crawl, A)
    assert page.delay_ms == 100
    assert delay_words(page) == (
        "100 ms, up to 16 times as long while other hosts wait, as its pages are near-identical (93 % of the last ones)"
    )
    due = (await lab.host(A))["due"]
    assert due - await lab.now() <= 101
    # Another host has something, then it is under way, then nothing is left of it, then its circuit is open.
    await lab.offer(*urls("b.test", 1))
    page = await host_page(lab.crawl, A)
    assert (page.delay_ms, page.fields.delay_in_force(page.state)[1]) == (1600, DelayReason.DEMOTED)
    assert delay_words(page) == (
        "1.6 s, 16 times its own while other hosts wait, as its pages are near-identical (93 % of the last ones)"
    )
    await lab.let_pass(LONG_MS)
    held = {one.host: one for one in await lab.take()}
    assert (held[A].delay, held[B].delay) == (1600, 100)
    await lab.end(held[A], sketch=SAME)
    assert (await lab.host(A))["due"] - await lab.now() > 1000
    await lab.end(held[B])
    assert (await host_page(lab.crawl, A)).delay_ms == 100
    await lab.offer(f"{B}/again")
    await lab.let_pass(LONG_MS)
    held = {one.host: one for one in await lab.take()}
    await lab.end(held[B], Outcome.UNANSWERED)
    await lab.end(held[A], sketch=SAME)
    assert (await host_page(lab.crawl, A)).delay_ms == 100
    await lab.check()


async def test_a_host_without_a_delay_has_one_while_it_is_demoted(open_lab: OpenLab) -> None:
    lab = await polite(open_lab, delay_ms=0, host_concurrency=4)
    await be_demoted(lab)
    assert (await host_page(lab.crawl, A)).delay_ms == 1600
    await lab.let_pass(LONG_MS)
    taken = [one.host for one in await lab.take()]
    assert (taken.count(A), taken.count(B)) == (1, 2)  # of its cap one, and the next a delay later
    await lab.check()


async def test_bounds_and_switch_hold_from_the_next_call_on(open_lab: OpenLab) -> None:
    lab = await polite(open_lab)
    await be_demoted(lab)

    async def delay_ms(**values: Any) -> int:
        await lab.frontier.control(**values)
        await lab.let_pass(LONG_MS)
        taken = {one.host: one for one in await lab.take()}
        await lab.frontier.hand_back(FETCH_STREAM, [one.id for one in taken.values()])
        delay_ms = taken[A].delay
        assert delay_ms == (await host_page(lab.crawl, A)).delay_ms
        return delay_ms

    assert await delay_ms() == 1600
    assert await delay_ms(delay_max_ms=1000) == 1000
    assert await delay_ms(delay_max_ms=60_000, demotion_max=3) == 300
    assert await delay_ms(demotion_max=0) == 100
    assert (await list_hosts(lab.crawl, 5)).demoted == []
    await play(lab, [SAME])
    assert await delay_ms(demotion_max=16) == 1600
    await lab.frontier.set_host(A, delay=50)
    assert await delay_ms() == 50
    await lab.frontier.set_host(A, delay="")
    assert await delay_ms() == 1600
    await lab.frontier.set_host(A, chance=1)
    assert await delay_ms() == 100
    assert {"said", "alike", "demoted"} & {*await lab.host(A)} == set()
    # A crawl that is older than the setting goes by its default.
    default = Settings(name="any")
    assert default.demotion_max == MOST  # as _now.lua has it
    await lab.client.hdel(lab.keys.state, "demotion_max")
    await be_demoted(lab)
    await lab.check()


async def test_visited_again_a_page_says_the_same_and_that_is_no_evidence(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    again = LastVisit(1000, "00ff" * 4, "", "")
    await lab.offer(*urls("a.test", 200), again=again)
    await play(lab, [different(9 * (n % 7)) for n in range(44)])
    assert {"alike", "demoted"} & {*await lab.host(A)} == set()
    # But a host that was demoted and has new pages no more is cleared by old ones that differ.
    await lab.client.hset(lab.keys.host(A), mapping={"alike": 990, "demoted": 8})
    await lab.client.zadd(lab.keys.demoted, {A: 1})
    await play(lab, [different(n) for n in range(0, 99, 9)])
    assert "demoted" not in await lab.check()


async def test_lists_of_demoted_hosts_are_shown_and_rebuilt(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await polite(open_lab)
    await be_demoted(lab)
    found = await list_hosts(lab.crawl, 5)
    assert [row.host for row in found.demoted] == [A]
    lines = host_list_lines(found)
    assert lines[0] == "demoted (1):"
    assert lines[1].startswith(f"  {A}  392 queued, 0 under way, 8 done, delay 1.6 s (demoted), near-identical (93 %")
    status = await read_status(lab.client, crawl_name)
    assert (status.hosts_demoted, [one.host for one in status.demoted]) == (1, [A])
    assert any(line.split() == ["hosts", "demoted", "1:", A, "(392)"] for line in status_lines(status))
    await lab.client.delete(lab.keys.demoted)
    await lab.client.zadd(lab.keys.demoted, {B: 1, "http://none.test": 1})
    assert await lab.frontier.reconcile() == 3
    assert list((await lab.check())["demoted"]) == [A]
    assert await lab.frontier.reconcile() == 0
    assert (await list_hosts(lab.crawl, 5)).demoted_count == 1


@pytest.mark.parametrize("sketch", ["2", "xAAAAAAAA", "2AAAAAAA!", "2AAAAAAAAA", "2AAAAAAA\n"])
async def test_what_is_no_sketch_is_refused(open_lab: OpenLab, sketch: str) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 1))
    [held] = await lab.take()
    assert await lab.end(held, sketch=sketch) == "INVALID"
    assert await lab.end(held, sketch="") == "DONE"


# -- a crawl


def calendar(n: int) -> bytes:
    days = "".join(f"<td>{day}</td>" for day in range(1, 31))
    return f"<title>Calendar</title><h1>Month {n} of a year that has no events</h1><table>{days}</table>".encode()


def story(n: int) -> bytes:
    words = random.Random(n)
    text = " ".join("".join(words.choices("abcdefghijklmnopqrst", k=6)) for _ in range(40))
    return f"<title>Story {n}</title><p>{text}".encode()


def endless(page: Callable[[int], bytes]) -> Talker:
    """Return a web server of pages `/0`, `/1`, …, PAGES in all, each of which links to the next ones."""

    def answer(n: int) -> Callable[[int], Awaitable[web.StreamResponse]]:
        links = "".join(f"<a href='/{to}'>{to}</a>" for to in range(n + 1, min(n + 4, PAGES)))

        async def answered(_: int) -> web.StreamResponse:
            return web.Response(body=page(n) + links.encode(), content_type="text/html")

        return answered

    return Talker({f"/{n}": answer(n) for n in range(PAGES)})


async def test_a_calendar_without_end_waits_for_a_host_that_has_more_to_say_and_is_finished_after_it(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "pages.jsonl"
    polite: dict[str, Any] = {"processes": 2, "delay_ms": 2, "delay_factor": 0, "delay_max_ms": 60_000}
    async with endless(calendar) as trap, endless(story) as good:
        seeds = [f"{trap.origin}/0", f"{good.origin}/0"]
        async with crawling(redis_server.url, crawl_name, seeds, output=output, **polite) as run:
            # As if six hundred pages of it had been had, so that this one need not take as long.
            await run.frontier.client.hset(run.frontier.keys.host(trap.origin), "alike", 990)
            await until(lambda: len(good.requests) >= PAGES, "the good host to be done")
            status = await read_status(run.frontier.client, crawl_name)
            assert [one.host for one in status.demoted] == [trap.origin]
            assert len(trap.requests) < PAGES * 0.8
            assert await run.word() == "ENDED"
            await run.check()
            page = await host_page(run.crawl, trap.origin)
            assert (page.fields.demoted, page.delay_ms) == (MOST, 2)
            assert (await host_page(run.crawl, good.origin)).fields.demoted == 0
    summary = "\n".join(summary_lines(Run("ENDED", 1, 0, "resume", "more"), status))
    assert f"  hosts demoted, as their pages are near-identical: {trap.origin}" in summary
    wanted = {f"{origin}/{n}" for origin in (trap.origin, good.origin) for n in range(PAGES)}
    assert {record["url"] for record in records(output)} == wanted  # nothing is dropped


async def test_by_domain_a_demoted_host_is_passed_over_and_its_siblings_are_not_slowed(open_lab: OpenLab) -> None:
    lab = await open_lab(politeness_by="domain", **POLITE)
    one, two = "http://a.one.com", "http://b.one.com"
    await lab.offer(*urls("a.one.com", 400))
    await lab.client.hset(lab.keys.host(one), "alike", 950)
    for _ in range(8):
        await lab.let_pass(LONG_MS)
        [held] = await lab.take()
        await lab.end(held, sketch=SAME)
    assert (await lab.host(one))["demoted"] == MOST
    # It is all there is.
    await lab.let_pass(101)
    [held] = await lab.take()
    assert (held.host, held.delay) == (one, 100)
    await lab.offer(*urls("b.one.com", 40))
    await lab.end(held, sketch=SAME)
    served = []
    for _ in range(34):
        await lab.let_pass(101)
        [held] = await lab.take()
        served.append(held.host)
        assert held.delay == 100
        await lab.end(held, sketch=SAME if held.host == one else "")
    assert 1 <= served.count(one) <= 3
    assert served.count(two) == 34 - served.count(one)
    await lab.check()
