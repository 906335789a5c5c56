"""What limits a crawl: each cause staged in a real store, the hosts that decide the end, and what the look costs."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops import why as why_module
from streamcrawl.ops.doctor import crawl_findings
from streamcrawl.ops.why import (
    HOSTS_LOOKED_MAX,
    OTHERS_LOOKED_MAX,
    Typed,
    Why,
    Word,
    look_before,
    read_why,
    why_lines,
)
from streamcrawl.rules.task import Outcome
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Beat
from streamcrawl.store.keys import GROUP
from tests.integration.operated import SHARDS, Operated
from tests.integration.snapshot import Lab, near, urls
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

TYPED: Final = Typed(("--redis", "redis://r/0"), "streamcrawl worker APP --name wide --redis redis://r/0")
START: Final = TYPED.start
SINK: Final = "out-1"
LEASE_MS: Final = 30_000


async def beat(lab: Lab, consumer: str = "w1", *, slots: int = 8, busy: int = 0, **about: Any) -> None:
    """Let a worker of the fetch, or of the stage of `about`, say that it lives."""
    info = {"pid": 7, "machine": "m1", "role": "fetch", "stage": "fetch", "slots": slots, "busy": busy} | about
    in_fetch = slots if info["stage"] == "fetch" else 0
    await lab.frontier.beat([Beat(consumer, f"stream:{info['stage']}", in_fetch, json.dumps(info))], lease_ms=LEASE_MS)


async def why_of(lab: Lab, **values: Any) -> Why:
    return await read_why(lab.crawl, lab.keys.crawl, typed=TYPED, **values)


def words(why: Why) -> list[Word]:
    return [cause.word for cause in why.causes]


def text_of(why: Why) -> str:
    return "\n".join(why_lines(why))


# -- it stands still


async def test_paused_crawl_says_so_first_and_how_to_go_on(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    await lab.take(count=1)
    await lab.frontier.control(paused=1)
    why = await why_of(lab)
    first, second = why.causes
    assert (first.word, first.is_stop) == (Word.PAUSED, True)
    assert re.fullmatch(r"paused for \S+ s; 1 still under way", first.text)
    assert first.for_ms is not None
    assert first.do == f"streamcrawl resume {lab.keys.crawl} --redis redis://r/0"
    assert second.word is Word.NO_WORKERS
    assert (why.eta_ms, why.eta_limits) == (None, ["none while it stands still: paused"])
    assert "end: not to be told\n  none while it stands still: paused" in text_of(why)
    await lab.frontier.control(paused="")
    assert words(await why_of(lab)) == [Word.NO_WORKERS]


async def test_crawl_without_workers_is_told_how_to_start_some(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    [cause] = (await why_of(lab)).causes
    assert (cause.word, cause.text) == (Word.NO_WORKERS, "no worker of the fetch is alive, 3 tasks wait")
    assert (cause.do, cause.tasks) == (START, 3)
    await beat(lab)
    assert Word.NO_WORKERS not in words(await why_of(lab))


async def test_worker_that_was_not_heard_of_is_named_with_what_it_holds(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=3)
    await lab.offer(*urls("a.test", 3))
    held = await lab.take("gone")
    await lab.let_idle(held, 2 * LEASE_MS, consumer="gone")
    await beat(lab, "gone")
    await beat(lab, "here")
    stamp, rest = (await lab.client.hget(lab.keys.workers, "gone")).decode().split(" ", 1)
    await lab.client.hset(lab.keys.workers, "gone", f"{int(stamp) - 2 * LEASE_MS} {rest}")
    why = await why_of(lab)
    silent, pending = (
        next(one for one in why.causes if one.word is word) for word in (Word.WORKER_SILENT, Word.PENDING_OLD)
    )
    assert "1 worker not heard of for longer than the lease of 30 s: gone (1 min" in silent.text
    assert silent.text.endswith("; what it had is taken back by those that live")
    assert silent.for_ms == near(2 * LEASE_MS, 20_000)
    assert silent.do == f"streamcrawl pending replay {lab.keys.crawl} --consumer gone --redis redis://r/0"
    assert (pending.tasks, pending.text) == (3, "fetch: 3 in hand that nobody renewed for a lease (30 s): gone 3")
    assert Word.NO_WORKERS not in words(why)  # the other one lives

    await lab.client.hdel(lab.keys.workers, "here")
    stamp, rest = (await lab.client.hget(lab.keys.workers, "gone")).decode().split(" ", 1)
    await lab.client.hset(lab.keys.workers, "gone", f"{int(stamp) - 2 * LEASE_MS} {rest}")
    why = await why_of(lab)
    first = why.causes[0]
    assert first.word is Word.NO_WORKERS
    assert "; the last one beat 2 min" in first.text
    [silent] = [one for one in why.causes if one.word is Word.WORKER_SILENT]
    assert silent.text.endswith("; what it had is taken back by the next worker that starts")


async def test_entry_in_hand_for_longer_than_a_handler_may_take_names_who_has_it(
    store_client: Redis, crawl_name: str
) -> None:
    operated = await Operated.opened(store_client, crawl_name, handler_timeout_ms=1)
    await operated.offer(urls("a.test", 1))
    [(lab, held)] = await operated.take("slow")
    await wait_until_old(lab, held.id)
    why = await why_of(lab)
    [cause] = [one for one in why.causes if one.word is Word.PENDING_OLD]
    assert re.fullmatch(r"fetch: slow has an entry in hand for \S+ s, longer than any handler may take", cause.text)


async def wait_until_old(lab: Lab, entry_id: str) -> None:
    """Wait until the clock of the store is past the entry."""
    while True:
        seconds, micros = await lab.client.time()
        if seconds * 1000 + micros // 1000 > int(entry_id.partition("-")[0]) + 1:
            return


async def test_full_frontier_and_full_memory_are_told_with_their_figures(store_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(store_client, crawl_name, frontier_max=100)
    await operated.offer(urls("a.test", 95))
    [lab] = operated.labs
    await beat(lab)
    near_full = await why_of(lab)
    [cause] = [one for one in near_full.causes if one.word is Word.FRONTIER_NEAR]
    assert cause.text == "the frontier is nearly full: 95 queued of 100"
    await operated.crawl.control(stopped="FRONTIER_FULL")
    cause = (await why_of(lab)).causes[0]
    assert (cause.word, cause.is_stop) == (Word.FRONTIER_FULL, True)
    assert re.fullmatch(r"stopped for \S+ s: the frontier is full \(95 queued of 100\)", cause.text)
    assert cause.do == (
        f"streamcrawl settings set {crawl_name} frontier-max=N --redis redis://r/0 && "
        f"streamcrawl resume {crawl_name} --redis redis://r/0"
    )
    await operated.crawl.control(stopped="MEMORY_FULL")
    assert ": Redis reached its memory mark (" in (await why_of(lab)).causes[0].text
    await operated.crawl.control(stopped="NEW_WORD")
    assert (await why_of(lab)).causes[0].text.endswith(" s: NEW_WORD")


async def test_memory_near_its_mark_is_told(crawl_name: str) -> None:
    with RedisServer() as server:
        client = connect(server.url)
        try:
            operated = await Operated.opened(client, crawl_name)
            await operated.offer(urls("a.test", 1))
            [lab] = operated.labs
            await client.config_set("maxmemory", 1_000_000_000)
            assert Word.MEMORY_NEAR not in words(await why_of(lab))
            # To the middle between where it is said and the mark: what the server uses moves a little by itself.
            await client.set("ballast", b"x" * 20_000_000)
            used = int((await client.info("memory"))["used_memory"])
            await client.config_set("maxmemory", int(used / 0.8 / 0.95))
            [cause] = [one for one in (await why_of(lab)).causes if one.word is Word.MEMORY_NEAR]
            assert cause.text.startswith("memory is at 9")
        finally:
            await client.aclose()


async def test_budget_that_is_reached_is_no_fault_and_says_its_setting(store_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(store_client, crawl_name, pages_max=2)
    await operated.offer(urls("a.test", 5))
    [lab] = operated.labs
    await beat(lab)
    for _ in range(2):
        [held] = await lab.take()
        await lab.end(held)
    first = (await why_of(lab)).causes[0]
    assert (first.word, first.text, first.tasks) == (Word.BUDGET, "its budget of 2 pages is reached (max-pages)", 3)


async def test_end_comes_with_the_budget_where_more_is_left(store_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(store_client, crawl_name, pages_max=100, delay_ms=1000, delay_max_ms=60_000)
    await operated.offer(urls("a.test", 1000))
    [lab] = operated.labs
    await beat(lab)
    why = await why_of(lab)
    assert (why.budget_left, why.eta_ms, why.eta_by) == (100, 99_000, "host")
    assert why.eta_limits[0] == "it stops after 100 more pages (max-pages)"
    lines = why_lines(why)
    assert "end: not before 1 min 39 s from now, by the delays of its hosts" in lines
    assert "hosts that need longest:" in lines
    await operated.offer(urls("b.test", 1000))
    assert (await why_of(lab)).eta_ms == 49_000  # both have half of it
    await operated.offer(urls("c.test", 1000))
    await lab.frontier.set_host("http://c.test", delay=0)
    assert (await why_of(lab)).eta_ms is None  # it could have all of it at once


async def test_rate_is_for_what_the_budget_leaves(store_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(store_client, crawl_name, pages_max=30, host_concurrency=10)
    await operated.offer(urls("a.test", 100))
    [lab] = operated.labs
    await beat(lab)
    before = await look_before(lab.crawl, crawl_name)
    await lab.end_all(await lab.take(count=10))
    why = await why_of(lab, before=before)
    assert why.pages_per_s is not None
    assert (why.backlog, why.budget_left, why.eta_by) == (90, 20, "rate")
    assert why.eta_ms == int(1000 * 20 / why.pages_per_s)
    assert not any("later, not sooner" in limit for limit in why.eta_limits)


async def test_budget_that_is_not_reached_changes_nothing(store_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(store_client, crawl_name, pages_max=10, delay_ms=1000, delay_max_ms=60_000)
    await operated.offer(urls("a.test", 10))
    [lab] = operated.labs
    await beat(lab)
    why = await why_of(lab)
    assert (why.budget_left, why.eta_ms) == (None, 9000)
    assert "end: not before 9.0 s from now, by http://a.test" in why_lines(why)


# -- stages and outputs


async def replaying(open_lab: OpenLab) -> Lab:
    """Open a crawl of which all is done, and a replay of what it gave was asked for."""
    lab = await open_lab()
    await lab.frontier.flow(["one"], b'{"one":{"from":["page"],"logs":["page"]}}', {"page": 3_600_000})
    await lab.offer("http://a.test/")
    [held] = await lab.take()
    assert await lab.end(held, items=("log:page", '1["int",1,0]') * 3, url="http://a.test/") == "DONE"
    await lab.frontier.control(closed=1)
    plan = b'{"log":"page","target":"one","first":"-","last":"+"}'
    assert (await lab.frontier.plan_replay("again", plan))[0] == "OK"
    return lab


async def test_replay_is_told_and_stands_still_without_a_worker(open_lab: OpenLab) -> None:
    lab = await replaying(open_lab)
    said = "replay again: 0 of 0 looked at in log page sent to one"
    [cause] = (await why_of(lab)).causes
    assert (cause.word, cause.is_stop, cause.do) == (Word.REPLAY, True, START)
    assert cause.text == f"{said}, and no worker is alive to go on with it"
    await beat(lab)
    [cause] = (await why_of(lab)).causes
    assert (cause.word, cause.is_stop, cause.text) == (Word.REPLAY, False, f"{said}, under way")
    await lab.frontier.control(paused=1)
    first, second = (await why_of(lab)).causes
    assert (first.word, second.text) == (Word.PAUSED, f"{said}, which waits for the crawl to go on")
    await lab.frontier.control(paused="")
    assert (await lab.frontier.copy_replay("again"))[0] == "ENDED"
    assert Word.REPLAY not in words(await why_of(lab))


async def test_output_over_its_mark_names_who_waits_for_it(store_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(store_client, crawl_name, sinks=[SINK], sink_waiting_max=100, host_concurrency=200)
    await operated.offer(urls("a.test", 150))
    [lab] = operated.labs
    await lab.frontier.control(crawl=json.dumps({"sinks": {SINK: "/data/pages.jsonl"}}))
    for held in await lab.take(count=85):
        await lab.end(held, items=(SINK, "{}"))
    await beat(lab)
    why = await why_of(lab)
    assert words(why)[:2] == [Word.OUTPUT_UNWRITTEN, Word.THROTTLED]
    unwritten, full = why.causes[:2]
    assert unwritten.text == "no writer of /data/pages.jsonl is alive: 85 records wait"
    assert full.text.startswith("the output /data/pages.jsonl is full (85 waiting, its mark is 80;")
    assert full.text.endswith(": fetch waits for it")
    await beat(lab, "s1", slots=0, role="sink", stage=SINK)
    why = await why_of(lab)
    assert words(why)[0] is Word.THROTTLED
    assert why.causes[0].do == f"streamcrawl pending ls {crawl_name} --stage fetch:{SINK} --redis redis://r/0"


FLOW: Final = msgspec.json.encode(
    {"enrich@1": {"from": ["page"], "batch": 1}, "save": {"from": ["enrich@1"], "batch": 1}}
)


async def test_stage_that_nobody_reads_and_one_that_is_full_are_told_apart(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.frontier.flow(["enrich@1", "save"], FLOW)
    await beat(lab)
    await lab.offer("http://a.test/", "http://b.test/")
    [first, second] = await lab.take()
    await lab.end(
        first, items=[part for n in range(3) for part in ("enrich@1", f'["any",{{"n":{n}}},0]')], url="http://a.test/"
    )
    why = await why_of(lab)
    assert words(why)[0] is Word.STAGE_UNREAD
    cause = why.causes[0]
    assert cause.text == "nobody reads version 1 of stage enrich: 3 items wait"
    assert cause.do == f"{START} --stage enrich@1"
    assert cause.is_stop

    await beat(lab, "e1", slots=4, role="stage", stage="enrich@1")
    assert Word.STAGE_UNREAD not in words(await why_of(lab))
    size = 1000  # the default of stage_waiting_max, of which 80 % is the mark
    flat = [part for n in range(size) for part in ("enrich@1", f'["any",{{"n":{n}}},0]')]
    await lab.end(second, items=flat, url="http://b.test/")
    why = await why_of(lab)
    [full] = [one for one in why.causes if one.word is Word.THROTTLED]
    assert full.text == "stage enrich@1 is full (1,003 waiting, its mark is 800; 4 slots): fetch waits for it"
    [left] = [one for one in (await why_of(lab)).causes if one.word is Word.THROTTLED]
    assert left.do == f"{START} --stage enrich@1"


async def test_what_is_left_for_a_stage_when_all_is_fetched_is_told(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.frontier.flow(["enrich@1", "save"], FLOW)
    await beat(lab)
    await beat(lab, "e1", slots=4, role="stage", stage="enrich@1")
    await lab.offer("http://a.test/")
    [held] = await lab.take()
    await lab.end(held, items=["enrich@1", '["any",{},0]'], url="http://a.test/")
    [cause] = (await why_of(lab)).causes
    assert (cause.word, cause.text) == (
        Word.STAGE_BEHIND,
        "all is fetched; 1 item waits for stage enrich@1 or in its hands",
    )


# -- hosts


async def test_host_with_a_long_queue_decides_the_end_by_its_delay(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=500, delay_max_ms=60_000)
    await lab.offer(*urls("big.test", 2305), *urls("small.test", 3))
    await beat(lab, busy=1)
    why = await why_of(lab)
    cause = why.causes[0]
    assert cause.word is Word.POLITENESS
    assert "2 of 2 hosts may be asked now, 1 host holds 99 % of the queued tasks" in cause.text
    assert cause.text.endswith("http://big.test needs at least 19 min 12 s for 2,305 pages at 0.5 s")
    assert cause.do == f"streamcrawl host show {lab.keys.crawl} http://big.test --redis redis://r/0"
    assert [(one.host, one.queued, one.needs_ms) for one in why.hosts] == [
        ("http://big.test", 2305, 1_152_000), ("http://small.test", 3, 1000),
    ]  # fmt: skip
    assert (why.eta_ms, why.eta_by, why.is_sampled, why.backlog) == (1_152_000, "host", False, 2308)
    assert "more seeds may come" in why.eta_limits
    assert "end: not before 19 min 12 s from now, by http://big.test" in text_of(why)
    assert len((await why_of(lab, top=1)).hosts) == 1


async def test_cap_does_not_shorten_what_a_delay_makes_long(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=500, delay_max_ms=60_000, host_concurrency=4)
    await lab.offer(*urls("big.test", 101))
    await beat(lab)
    [host] = (await why_of(lab)).hosts
    assert (host.cap, host.needs_ms) == (4, 50_000)


async def test_hosts_without_a_delay_are_limited_by_their_cap(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 5))
    await beat(lab)
    await lab.take()
    [cause] = (await why_of(lab)).causes
    share = "1 host holds 100 % of the queued tasks"
    assert cause.word is Word.HOST_CAP
    assert cause.text == f"hosts have no delay, and are asked by 1 request at a time at most: {share}"
    assert cause.do == f"streamcrawl host set {lab.keys.crawl} http://a.test --cap N --redis redis://r/0"
    await lab.offer(*urls("b.test", 4), *urls("c.test", 4))
    await lab.frontier.set_host("http://c.test", cap=3)
    [cause] = (await why_of(lab)).causes
    assert cause.text == (
        "hosts have no delay, and are asked by 1 to 3 requests at a time at most: 2 of 2 hosts may be asked now, "
        "3 hosts hold 100 % of the queued tasks"
    )
    assert cause.do == f"streamcrawl settings set {lab.keys.crawl} host-concurrency=N --redis redis://r/0"
    await lab.frontier.set_host("http://c.test", cap="", delay=10_000)
    cap, delay = (await why_of(lab)).causes
    assert (cap.word, cap.tasks, delay.word, delay.tasks) == (Word.HOST_CAP, 8, Word.POLITENESS, 4)
    assert "1 host holds 33 % of the queued tasks; http://c.test needs at least 30 s for 4 pages at 10 s" in delay.text


async def test_delay_of_an_operator_is_in_force(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 11), *urls("b.test", 500))
    await lab.frontier.set_host("http://a.test", delay=10_000)
    await beat(lab)
    first, second = (await why_of(lab)).hosts
    assert (first.host, first.needs_ms, first.delay_reason) == ("http://a.test", 100_000, "operator")
    assert (second.host, second.needs_ms) == ("http://b.test", 0)


async def test_pages_over_the_budget_of_a_host_are_not_waited_for(store_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(store_client, crawl_name, delay_ms=1000, delay_max_ms=60_000, pages_per_host_max=5)
    await operated.offer(urls("a.test", 100))
    [host] = (await why_of(operated.labs[0])).hosts
    assert (host.queued, host.needs_ms) == (5, 4000)


async def test_host_in_back_off_is_told_with_how_it_fails_and_when_it_is_asked(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("down.test", 7), *urls("up.test", 2))
    await beat(lab)
    held = next(one for one in await lab.take() if one.host == "http://down.test")
    detail = (held.task.level.value, held.stored, "connect", 600_000, 600_000, 1000)
    await lab.end(held, Outcome.UNANSWERED, detail=detail)
    why = await why_of(lab)
    [cause] = [one for one in why.causes if one.word is Word.FAILING]
    assert cause.text.startswith(
        "no answer, so asked by one fetch at a time: 1 host with 7 tasks (http://down.test (connect))"
    )
    assert cause.tasks == 7
    [host] = [one for one in why.hosts if one.host == "http://down.test"]
    assert (host.state, host.failing, host.cap) == ("failing", "connect", 1)
    assert 0 < host.wait_ms <= 600_000
    assert "hosts that fail are waited for, until they answer or are given up" in why.eta_limits
    assert "(connect, asked in " in text_of(why)
    assert words(why)[:2] == [Word.FAILING, Word.HOST_CAP]  # by the tasks that they hold


async def test_retry_after_is_told_as_the_word_of_the_host(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("busy.test", 3))
    await beat(lab)
    [held] = await lab.take()
    await lab.end(held, block_ms=120_000)
    why = await why_of(lab)
    cause = why.causes[0]
    assert cause.word is Word.LEFT_ALONE
    assert cause.text.startswith(
        "left alone by their own word (Retry-After): 1 host with 2 tasks (http://busy.test); the next"
    )
    [host] = why.hosts
    assert 60_000 < host.wait_ms <= 120_000
    assert host.needs_ms >= host.wait_ms


async def test_hosts_that_wait_for_robots_are_told(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 4))
    await beat(lab)
    await lab.take()
    why = await why_of(lab)
    [cause] = [one for one in why.causes if one.word is Word.ROBOTS]
    assert cause.text == "waiting for robots.txt: 1 host with 4 tasks (http://a.test)"


async def test_blocked_hosts_hold_no_end(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=1000, delay_max_ms=60_000)
    await lab.offer(*urls("a.test", 50), *urls("b.test", 2))
    await beat(lab)
    await lab.frontier.set_host("http://a.test", blocked=1)
    why = await why_of(lab)
    assert [host.host for host in why.hosts] == ["http://b.test"]
    assert why.backlog == 2
    [cause] = [one for one in why.causes if one.word is Word.BLOCKED]
    assert cause.text == "1 host blocked by an operator keeps 50 tasks"
    await lab.frontier.set_host("http://a.test", blocked="")


async def test_retries_are_told_with_when_the_first_is_due(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer("http://a.test/")
    await beat(lab)
    [held] = await lab.take()
    await lab.end(held, Outcome.RETRY, detail=(3_600_000, *lab.commit_of(held, Outcome.RETRY).detail[1:]))
    [cause] = (await why_of(lab)).causes
    assert cause.word is Word.DELAYED
    assert re.fullmatch(r"1 task waits for another try, the first in (1 h|59 min( \d+ s)?)", cause.text)


async def test_full_slots_are_the_limit_and_more_workers_the_answer(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*(f"http://h{n}.test/" for n in range(40)))
    await lab.frontier.dispatch(20)
    await lab.read(count=8)
    await beat(lab, slots=8, busy=8, ended=100, worked_s=130.0)
    why = await why_of(lab)
    cause = why.causes[0]
    assert (cause.word, cause.do, cause.tasks) == (Word.SLOTS, START, 40)
    assert cause.text == (
        "8 of 8 slots of 1 worker are busy, 1.3 s a page; 12 wait for one, 20 hosts more may be asked now: "
        "more workers go faster"
    )
    assert Word.POLITENESS not in words(why)


async def test_by_domain_it_is_domains_that_need_time(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=1000, delay_max_ms=60_000, politeness_by="domain")
    await lab.offer(*urls("a.big.com", 30), *urls("b.big.com", 21), *urls("small.com", 2))
    await beat(lab)
    why = await why_of(lab)
    assert [(one.host, one.queued, one.needs_ms) for one in why.hosts] == [
        ("big.com", 51, 50_000),
        ("small.com", 2, 1000),
    ]
    assert why.causes[0].text.startswith(
        "hosts are asked no faster than their delays allow: 2 of 2 domains may be asked"
    )


@pytest.mark.parametrize("shards", SHARDS)
async def test_hosts_of_all_shards_are_looked_at(store_client: Redis, crawl_name: str, shards: int) -> None:
    operated = await Operated.opened(store_client, crawl_name, shards=shards, delay_ms=1000, delay_max_ms=60_000)
    await operated.offer([f"http://h{n}.test/{m}" for n in range(12) for m in range(n + 1)])
    why = await read_why(operated.crawl, crawl_name, top=3)
    assert [(one.host, one.needs_ms) for one in why.hosts] == [(f"http://h{n}.test", n * 1000) for n in (11, 10, 9)]
    assert (why.queued, why.queued_looked, why.hosts_looked, why.unlooked) == (78, 78, 12, 0)


async def test_what_was_not_looked_at_is_said_where_hosts_are_under_way(
    open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(why_module, "OTHERS_LOOKED_MAX", 3)
    lab = await open_lab()
    await lab.offer(*(f"http://h{n}.test/{m}" for n in range(5) for m in range(4)))
    await beat(lab)
    assert not (await why_of(lab)).is_sampled  # all are scheduled
    await lab.take()
    why = await why_of(lab)  # at their cap they stand nowhere but in the stream
    assert (why.is_sampled, why.queued, why.unlooked) == (True, 15, 6)
    assert "6 queued tasks of hosts that were not looked at" in why.eta_limits


async def test_domains_are_drawn_by_chance_with_those_due_last(open_lab: OpenLab) -> None:
    lab = await open_lab(politeness_by="domain")
    names = [f"d{n}.com" for n in range(700)]
    await lab.offer(*(f"http://{name}/{m}" for name in names[:20] for m in range(2)))
    for held in await lab.take():
        await lab.end(held, block_ms=600_000)  # due last
    await lab.offer(*(f"http://{name}/{m}" for name in names[20:] for m in range(2)))
    await beat(lab)
    first, second = [await why_of(lab) for _ in range(2)]
    looked = [{one.host for one in why.hosts} for why in (first, second)]
    assert {len(own) for own in looked} == {500}
    assert (first.hosts_looked, first.hosts_scheduled, first.is_sampled) == (500, 700, True)
    assert looked[0] != looked[1]
    assert all(own.issuperset(names[:20]) for own in looked)


async def test_hosts_of_a_domain_that_were_not_drawn_are_said(
    open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = await open_lab(delay_ms=1000, delay_max_ms=60_000, politeness_by="domain")
    await lab.offer(*(f"http://h{n}.big.com/{m}" for n in range(5) for m in range(4)))
    await beat(lab)
    assert not (await why_of(lab)).is_sampled
    monkeypatch.setattr(why_module, "HOSTS_LOOKED_MAX", 3)
    why = await why_of(lab)
    assert (why.is_sampled, why.queued, why.unlooked) == (True, 20, 8)
    assert why.hosts[0].queued == 12


# -- rates


async def test_rate_between_two_looks_makes_the_end_and_growth_is_said(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=100)
    await lab.offer(*urls("a.test", 100))
    await beat(lab)
    before = await look_before(lab.crawl, lab.keys.crawl)
    assert (await why_of(lab)).sample_ms == 0
    done = await lab.take(count=20)
    await lab.end_all(done)
    await lab.offer(*urls("a.test", 2 * len(done), start=1000))
    why = await why_of(lab, before=before)
    assert why.sample_ms >= 0
    assert why.pages_per_s is not None
    assert why.new_per_s == pytest.approx(2 * why.pages_per_s)
    assert (why.eta_by, why.eta_ms) == ("rate", int(1000 * why.backlog / why.pages_per_s))
    assert re.search(r"^end: about .+ from now, by the rate$", text_of(why), re.M)  # no lower bound
    assert any(limit.endswith("new pages/s are still being found, more than end: it grows") for limit in why.eta_limits)


async def test_dead_letters_between_two_looks_are_rising(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=100)
    await lab.offer(*urls("a.test", 10))
    [first, *held] = await lab.take()
    await lab.end(first, Outcome.DEAD)
    before = await look_before(lab.crawl, lab.keys.crawl)
    assert Word.DEAD_RISING not in words(await why_of(lab, before=before))
    for one in held[:3]:
        await lab.end(one, Outcome.DEAD)
    why = await why_of(lab, before=before)
    [cause] = [one for one in why.causes if one.word is Word.DEAD_RISING]
    assert cause.text == "dead letters are rising: 3 (http 3) while it was looked at"
    assert cause.do == f"streamcrawl dead ls {lab.keys.crawl} --by reason --redis redis://r/0"


async def test_entry_that_is_old_while_nothing_ends_is_a_stall(crawl_name: str) -> None:
    with RedisServer(has_clock=True) as server:
        client = connect(server.url)
        try:
            operated = await Operated.opened(client, crawl_name)
            await operated.offer(urls("a.test", 3))
            [lab] = operated.labs
            await beat(lab)
            await lab.take()
            await lab.let_pass(20_000)
            assert Word.STALLED not in words(await why_of(lab))
            server.set_clock(45)
            [cause] = [one for one in (await why_of(lab)).causes if one.word is Word.STALLED]
            assert re.match(r"nothing ended of late: 1 in hand, 0 wait, the oldest for \S+ (s|min)", cause.text)
            assert cause.do == f"streamcrawl pending ls {crawl_name} --idle 1m --redis redis://r/0"
        finally:
            await client.aclose()


# -- it is over, or there is nothing


async def test_finished_crawl_is_complete_and_has_no_end_to_tell(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 1), *urls("b.test", 1))
    [first, second] = await lab.take()
    await lab.end(first)
    await lab.end(second, Outcome.DEAD)
    await lab.frontier.control(closed=1)
    why = await why_of(lab)
    [cause] = why.causes
    assert (cause.word, cause.text) == (Word.COMPLETE, "it is complete: 1 page done, 1 dead letter")
    assert (why.hosts, why.eta_ms, why.eta_limits, why.backlog) == ([], None, [], 0)
    assert why_lines(why) == [f"crawl {lab.keys.crawl}: complete", "  1. it is complete: 1 page done, 1 dead letter"]


async def test_empty_crawl_waits_for_seeds(lab: Lab) -> None:
    [cause] = (await why_of(lab)).causes
    assert (cause.word, cause.is_stop) == (Word.SEEDS, True)
    assert cause.text == "nothing is left to do, and it is not closed: more seeds may come"
    assert cause.do == f"streamcrawl close {lab.keys.crawl} --redis redis://r/0"
    await lab.frontier.feed("feeder-1", "begin", lease_ms=LEASE_MS)
    [cause] = (await why_of(lab)).causes
    assert (cause.text, cause.is_stop) == ("nothing is left to do; feeder-1 feeds more seeds", False)


async def test_json_has_stable_fields(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=1000, delay_max_ms=60_000)
    await lab.offer(*urls("a.test", 2))
    document = json.loads(json.dumps((await why_of(lab)).as_json()))
    assert set(document) == {
        "name", "condition", "causes", "hosts", "hosts_looked", "hosts_scheduled", "by_domain", "queued",
        "queued_looked", "backlog", "budget_left", "sample_ms", "pages_per_s", "new_per_s", "eta_ms", "eta_by",
        "eta_limits", "sampled", "unlooked",
    }  # fmt: skip
    [cause] = document["causes"]
    assert set(cause) == {"word", "text", "do", "is_stop", "tasks", "for_ms"}
    assert set(document["hosts"][0]) == {
        "host", "queued", "in_flight", "delay_ms", "delay_reason", "cap", "needs_ms", "wait_ms", "state", "failing",
    }  # fmt: skip


async def test_crawl_that_was_deleted_meanwhile_is_not_there(lab: Lab) -> None:
    crawl = lab.crawl
    await lab.client.delete(lab.keys.state)
    with pytest.raises(ConfigError, match="there is no crawl"):
        await read_why(crawl, lab.keys.crawl)


async def test_lost_stream_hides_nothing_else(lab: Lab) -> None:
    await lab.offer(*urls("a.test", 2))
    await lab.client.delete(lab.keys.fetch_stream)
    assert words(await why_of(lab)) == [Word.NO_WORKERS]
    await lab.client.xgroup_create(lab.keys.fetch_stream, GROUP, "0", mkstream=True)


# -- what it costs

TASKS: Final = 100_000
HOSTS: Final = 10_000
_LIMITED: Final = {
    "zrandmember": 2, "zrange": 3, "zrevrange": 3, "xrange": -1, "xrevrange": -1, "xpending": -1,
}  # fmt: skip
"""Commands that answer with a part of something: where the number that bounds it stands."""
_SMALL: Final = frozenset(
    {"time", "info", "hmget", "hget", "hgetall", "zcard", "zcount", "xlen", "xinfo", "zscore", "zmscore", "echo"}
)
"""Commands whose answer does not grow with the crawl: of a hash that is one host's, or a list of names."""


@asynccontextmanager
async def commands_of(client: Redis, url: str) -> AsyncIterator[list[list[str]]]:
    """Collect the commands that a server gets."""
    watcher = connect(url)
    seen: list[list[str]] = []
    mark = "the end of what is watched"

    async def watch() -> None:
        async with watcher.monitor() as monitor:
            is_ready.set()
            async for told in monitor.listen():
                words = str(told["command"]).split(" ")
                if told["command"].endswith(mark):
                    return
                seen.append(words)

    is_ready = asyncio.Event()
    task = asyncio.create_task(watch())
    try:
        await is_ready.wait()
        yield seen
        await client.echo(mark)
        await task
    finally:
        task.cancel()
        await watcher.aclose()


async def test_a_look_at_a_large_crawl_stays_within_its_bounds(crawl_name: str) -> None:
    with RedisServer() as server:
        client = connect(server.url)
        try:
            operated = await Operated.opened(client, crawl_name, delay_ms=1000, delay_max_ms=60_000)
            each = TASKS // HOSTS
            await operated.offer(f"http://h{n}.test/{m}" for n in range(HOSTS) for m in range(each))
            [lab] = operated.labs
            await beat(lab)
            await lab.take()
            before = await look_before(operated.crawl, crawl_name)
            async with commands_of(client, server.url) as seen:
                why = await read_why(operated.crawl, crawl_name, before=before)
            bound = HOSTS_LOOKED_MAX + 4 * OTHERS_LOOKED_MAX
            assert 0 < len(seen) < bound + 500  # the status, and its own sample of 200 hosts
            for words in seen:
                name = words[0].lower()
                assert name in _SMALL or name in _LIMITED, words
                if name in _LIMITED:
                    most = words[-2] if words[-1].upper() == "WITHSCORES" else words[_LIMITED[name]]
                    assert abs(int(most)) <= HOSTS_LOOKED_MAX, words
                if name == "hgetall":
                    assert re.search(r":(host:.*|totals|workers|offsets|feeders|replays)$", words[1]), words
            assert why.is_sampled
            assert HOSTS_LOOKED_MAX <= why.hosts_looked <= HOSTS_LOOKED_MAX + OTHERS_LOOKED_MAX
            assert 0 < why.unlooked < TASKS - HOSTS_LOOKED_MAX * (each - 1)
            assert "those not looked at have " in text_of(why)
            async with commands_of(client, server.url) as seen:
                await crawl_findings(operated.crawl, crawl_name, TYPED, is_audited=False)
            assert 0 < len(seen) < bound + 500
        finally:
            await client.aclose()
