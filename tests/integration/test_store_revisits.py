"""Pages that are visited again: kept until they are due, made into tasks in bounded steps, never lost and never two."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from streamcrawl.rules.task import CrawlTask, Kind, LastVisit, Outcome, encode_rest
from tests.integration.snapshot import FETCH_STREAM, Held, Lab, urls

if TYPE_CHECKING:
    from tests.integration.conftest import OpenLab

A = "http://a.test"
DAY_MS = 86_400_000
NEVER = -1
LAST = LastVisit(DAY_MS, "00ff", '"|\\again,5"', "Tue, 01 Dec 2026 02:00:00 GMT")
"""With all that a pattern could trip over."""


def detail_of(task: CrawlTask, last: LastVisit = LAST, found: str = "new") -> tuple[Any, ...]:
    rest = encode_rest(msgspec.structs.replace(task, attempt=1, again=last))
    return (found, task.level.value, rest.decode(), last.interval_ms)


async def done(lab: Lab, held: Held, last: LastVisit = LAST) -> None:
    assert await lab.end(held, detail=detail_of(held.task, last)) == "DONE"


async def waiting(lab: Lab) -> list[CrawlTask]:
    """Return the pages that are to be visited again, those first that are due first."""
    found = []
    for member in await lab.client.zrange(lab.keys.revisits, 0, -1):
        level, host, rest = member.decode().split("|", 2)
        fields = {b"task": f"[0,0,{rest}".encode(), b"host": host.encode(), b"level": level.encode()}
        found.append(lab.held(b"0-0", fields).task)
    return found


async def let_be_due(lab: Lab) -> None:
    for member in await lab.client.zrange(lab.keys.revisits, 0, -1):
        await lab.client.zincrby(lab.keys.revisits, -2 * DAY_MS, member)


async def test_done_page_comes_again_when_it_is_due(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS)
    await lab.offer(f"{A}/1")
    [held] = await lab.take()
    _, changed = await lab.changes(done(lab, held))
    assert list(changed["revisits"]) == ["2|" + A + "|" + detail_of(held.task)[2]]
    assert changed["totals"]["page.visits.new"] == (None, 1)
    made, next_ms = await lab.frontier.revisit()
    assert made == 0
    assert DAY_MS - 60_000 < next_ms <= DAY_MS
    await let_be_due(lab)
    assert await lab.frontier.revisit() == (1, NEVER)
    assert await lab.frontier.revisit() == (0, NEVER)
    await lab.check()
    [again] = await lab.take()
    assert msgspec.structs.replace(again.task, discovered_ms=0) == msgspec.structs.replace(
        held.task, discovered_ms=0, again=LAST
    )
    totals = await lab.totals()
    assert (totals["page.created"], totals["page.revisited"], totals["seed.created"]) == (2, 1, 2)
    await lab.end(again, detail=("gone",))
    assert await waiting(lab) == []


async def test_commit_that_is_repeated_keeps_the_page_once(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS)
    await lab.offer(f"{A}/1")
    [held] = await lab.take()
    await done(lab, held)
    later = msgspec.structs.replace(LAST, interval_ms=2 * DAY_MS)
    assert await lab.end(held, detail=detail_of(held.task, later)) == "LEASE_LOST"
    assert [task.again for task in await waiting(lab)] == [LAST]


@pytest.mark.parametrize(
    "detail",
    [
        ("new",),
        ("old", "2", '"page","/1",0,1,"",[],0,0,{},["again",5,"","",""]]', 5),
        ("new", "0", '"page","/1",0,1,"",[],0,0,{},["again",5,"","",""]]', 5),
        ("new", "2", '"sitemap","/1",0,1,"",[],0,0,{},["again",5,"","",""]]', 5),
        ("new", "2", '"page","/1",0,2,"",[],0,0,{},["again",5,"","",""]]', 5),
        ("new", "2", '"page","/1",0]', 5),
        ("new", "2", '"page","/1",0,1,"",[],0,0,{},["again",5,"","",""]]', 0),
        ("new", "2", '"page","/1",0,1,"",[],0,0,{},["again",5,"","",""]]', 1.5),
        ("new", "2", 7, 5),
    ],
)
async def test_malformed_visit_writes_nothing(open_lab: OpenLab, detail: tuple[Any, ...]) -> None:
    lab = await open_lab(revisit_ms=DAY_MS)
    await lab.offer(f"{A}/1")
    [held] = await lab.take()
    word, changed = await lab.changes(lab.end(held, detail=detail))
    assert (word, changed) == ("INVALID", {})


@pytest.mark.parametrize(
    ("outcome", "detail", "comes_again", "reason"),
    [
        (Outcome.DEAD, ("http_500",), True, "dropped.unavailable"),
        (Outcome.DEAD, ("dns",), True, "dropped.unavailable"),
        (Outcome.DEAD, ("handler",), False, "dead.handler"),
        (Outcome.DEAD, ("internal",), False, "dead.internal"),
        (Outcome.DROPPED, ("robots",), True, "dropped.robots"),
        (Outcome.DROPPED, ("sold_out",), False, "dropped.sold_out"),
        (Outcome.REDIRECTED, (), True, "dropped.redirected"),
    ],
)
async def test_page_that_was_had_before_is_lost_by_no_failure(
    open_lab: OpenLab, outcome: Outcome, detail: tuple[str, ...], comes_again: bool, reason: str
) -> None:
    lab = await open_lab(revisit_ms=DAY_MS)
    await lab.offer(f"{A}/1")
    for is_first in (True, False):
        [held] = await lab.take()
        if is_first:
            await done(lab, held)
            await let_be_due(lab)
            await lab.frontier.revisit()
            continue
        tried = msgspec.structs.replace(held.task, attempt=3)
        if outcome is Outcome.DEAD:
            detail = ("2", f"[0,1,{encode_rest(tried).decode()}", *detail, "why", "")
        assert await lab.end(held, outcome, detail=detail) == "DONE"
    assert [(task.again, task.attempt) for task in await waiting(lab)] == ([(LAST, 1)] if comes_again else [])
    assert (await lab.totals())[f"page.{reason}"] == 1
    await lab.check()


async def test_page_that_was_never_had_becomes_a_dead_letter(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS)
    await lab.offer(f"{A}/1")
    [held] = await lab.take()
    await lab.end(held, Outcome.DEAD, detail=("2", held.stored, "http_500", "why", "500"))
    assert (await lab.totals())["page.dead.http_500"] == 1
    assert await waiting(lab) == []


async def test_host_that_was_given_up_is_asked_again(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS)
    await lab.offer(*urls("a.test", 2))
    for _ in range(2):
        [held] = await lab.take()
        await done(lab, held)
    await let_be_due(lab)
    assert (await lab.frontier.revisit())[0] == 2
    await lab.client.hset(lab.keys.host(A), "given_up", "host_unreachable")
    await lab.frontier.reconcile()
    assert (await lab.frontier.give_up(after_ms=1, idle_ms=1))[0] == 2
    assert len(await waiting(lab)) == 2
    assert (await lab.totals())["page.dropped.unavailable"] == 2
    state = await lab.check()
    assert A in state["given_up"]
    await let_be_due(lab)
    assert (await lab.frontier.revisit())[0] == 2
    state = await lab.check()
    assert "given_up" not in state
    assert len(await lab.take()) == 1


async def test_none_is_made_at_the_marks(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS, frontier_max=8)
    await lab.offer(*urls("a.test", 6))
    for _ in range(6):
        [held] = await lab.take()
        await done(lab, held)
    await let_be_due(lab)
    for stop in ({"paused": 1}, {"stopped": "MEMORY_FULL"}, {"throttled": "out"}, {"revisit_ms": ""}):
        before = dict.fromkeys(stop, "") | ({"revisit_ms": DAY_MS} if "revisit_ms" in stop else {})
        await lab.frontier.control(**stop)
        _, changed = await lab.changes(lab.frontier.revisit())
        assert set(changed) <= {"state"}
        assert await lab.frontier.revisit() == (0, NEVER)
        await lab.frontier.control(**before)
    assert (await lab.frontier.revisit(limit=1))[0] == 1
    assert await lab.frontier.revisit() == (3, 0)
    assert await lab.frontier.revisit() == (0, NEVER)
    assert (await lab.totals())["page.queued"] == 4


async def test_crawl_ends_when_nothing_is_due_or_never(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS)
    await lab.frontier.control(closed=1)
    await lab.offer(f"{A}/1")
    [held] = await lab.take()
    await done(lab, held)
    assert (await lab.frontier.finish()).word == "RUNNING"
    await lab.frontier.control(one_round=1)
    assert (await lab.frontier.finish()).word == "ENDED"
    await let_be_due(lab)
    assert (await lab.frontier.finish()).word == "RUNNING"
    await lab.frontier.control(pages_max=1)
    assert (await lab.frontier.finish()).word == "LIMIT"
    await lab.frontier.control(pages_max="", stopped="MEMORY_FULL")
    assert (await lab.frontier.finish()).word == "STOPPED"
    await lab.frontier.control(stopped="", revisit_ms="")
    assert (await lab.frontier.finish()).word == "ENDED"


async def test_budget_of_a_host_counts_pages_and_not_visits(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS, pages_per_host_max=2)
    await lab.offer(*urls("a.test", 4))
    for _ in range(2):
        [held] = await lab.take()
        await done(lab, held)
    await lab.frontier.give_up(after_ms=1, idle_ms=1)
    assert (await lab.totals())["page.dropped.host_budget"] == 2
    first = {task.url for task in await waiting(lab)}
    for _ in range(3):
        await let_be_due(lab)
        assert (await lab.frontier.revisit())[0] == 2
        await lab.offer(*urls("a.test", 1, start=100))  # has to wait behind them, and is one too many
        visited = set()
        for _ in range(2):
            [held] = await lab.take()
            visited.add(held.task.url)
            await done(lab, held)
        assert visited == first
        await lab.frontier.give_up(after_ms=1, idle_ms=1)
        assert await lab.take() == []
        await lab.check()


async def test_what_is_no_page_is_a_dead_letter(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS)
    await lab.client.zadd(lab.keys.revisits, {"what is this": 1})
    assert await lab.frontier.revisit() == (0, NEVER)
    totals = await lab.totals()
    assert (totals["page.created"], totals["page.dead.codec"]) == (1, 1)
    await lab.client.delete(lab.keys.dead)
    await lab.client.hset(lab.keys.totals, mapping=dict.fromkeys(totals, 0))


async def test_pages_that_come_again_in_any_order_are_never_lost_or_two(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=DAY_MS, host_concurrency=3)
    for seed in range(2):
        dice = random.Random(seed)
        hosts = [f"h{n}-{seed}.test" for n in range(4)]
        addresses = [url for host in hosts for url in urls(host, 4)]
        await lab.offer(*addresses)
        hands: list[Held] = []
        for _ in range(100):
            act = dice.randrange(8)
            if act == 0:
                await let_be_due(lab)
            elif act == 1:
                await lab.frontier.revisit(limit=dice.randrange(1, 9))
            elif act == 2:
                await lab.let_pass(dice.randrange(120_000))
                await lab.frontier.due()
            elif act == 3:
                hands += await lab.take(count=dice.randrange(1, 9))
            elif act == 4 and hands:
                held = hands.pop(dice.randrange(len(hands)))
                await lab.frontier.hand_back(FETCH_STREAM, [held.id])
            elif hands:
                held = hands.pop(dice.randrange(len(hands)))
                how = dice.choice([Outcome.DONE] * 4 + [Outcome.RETRY, Outcome.UNANSWERED, Outcome.DEAD])
                if how is Outcome.DONE:
                    last = LastVisit(dice.randrange(1, DAY_MS), f"{dice.randrange(99):02}")
                    await done(lab, held, last)
                elif how is Outcome.DEAD and held.task.again is None:
                    hands.append(held)  # would be a dead letter: of those that were never had nothing is promised
                else:
                    assert await lab.end(held, how) == "DONE"
            await lab.check()
        await lab.frontier.put_back(FETCH_STREAM, "w1", is_crash=False)
        state = await lab.check()
        places = [*(await waiting(lab))]
        for key, value in state.items():
            if key.startswith("queue:"):
                places += [lab.held(b"0-0", _fields(key, stored)).task for stored in value]
        delayed = [member.split("|", 3) for member in state.get("delayed", {})]
        places += [lab.held(b"0-0", _fields(f"queue:{host}:{level}", task)).task for _, level, host, task in delayed]
        found = [task.url for task in places if task.kind is Kind.PAGE and task.host.endswith(f"-{seed}.test")]
        assert sorted(found) == sorted(addresses)


def _fields(key: str, stored: str) -> dict[bytes, bytes]:
    host, _, level = key.removeprefix("queue:").rpartition(":")
    return {b"host": host.encode(), b"level": level.encode(), b"task": stored.encode()}
