"""Audit is a recount: it finds nothing in a sound crawl, at rest or at full speed, and names whatever was damaged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.ops.audit import HOSTS_PER_CALL, AuditReport, audit
from streamcrawl.rules.task import Outcome
from streamcrawl.store.frontier import Frontier
from streamcrawl.store.keys import GROUP
from streamcrawl.store.shards import delete_crawl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.conftest import OpenLab
    from tests.integration.snapshot import Lab

    Damage = Callable[[Lab], Awaitable[Any]]

HOST = "http://a.example"
IDLE = "http://b.example"
SINK = "out"


async def busy_lab(open_lab: OpenLab) -> Lab:
    """Return a crawl with something in every place that a task can be in."""
    lab = await open_lab(sinks=[SINK], host_concurrency=4, obey_robots=True)
    await lab.offer(*(f"{HOST}/{n}" for n in range(12)), f"{IDLE}/")
    for robots in await lab.take():
        await lab.end(robots)
    first = await lab.take()
    outcomes = (Outcome.DONE, Outcome.RETRY, Outcome.DEAD, Outcome.DROPPED)
    own = [one for one in first if one.host == HOST]
    for held, outcome in zip(own, outcomes, strict=True):
        await lab.end(held, outcome, items=(SINK, "{}") if outcome is Outcome.DONE else ())
    await lab.end(next(one for one in first if one.host == IDLE))
    await lab.take()
    return lab


def only(report: AuditReport, *parts: str) -> None:
    """Check that some line of the report has all of these parts."""
    assert any(all(part in line for part in parts) for line in report.faults), report.faults


async def test_sound_crawl_has_no_faults(open_lab: OpenLab) -> None:
    lab = await busy_lab(open_lab)
    report = await audit(lab.frontier)
    assert report.faults == []
    assert report.notes == []
    assert report.is_sound
    assert report.lines == ["page", "robots", SINK]
    assert report.hosts == 2
    assert report.keys == len([key async for key in lab.client.scan_iter(match=lab.keys.pattern)])
    assert report.as_json()["totals"]["page.created"] == 13


async def test_new_crawl_and_one_of_many_hosts_are_sound(open_lab: OpenLab) -> None:
    lab = await open_lab()
    assert (await audit(lab.frontier)).faults == []
    count = 2 * HOSTS_PER_CALL + 7
    await lab.offer(*(f"http://h{n}.example/" for n in range(count)))
    report = await audit(lab.frontier)
    assert report.faults == []
    assert report.notes == []
    assert report.hosts == count


async def test_crawl_in_full_swing_is_sound_at_every_look(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=[SINK], host_concurrency=2)
    is_over = asyncio.Event()
    fetched = 0

    async def crawl() -> None:
        nonlocal fetched
        outcomes = (Outcome.DONE, Outcome.DONE, Outcome.RETRY, Outcome.DEAD, Outcome.UNANSWERED)
        for turn in range(150):
            await lab.offer(*(f"http://h{turn}-{n}.example/{n}" for n in range(5)))
            held = await lab.take(count=20)
            fetched += len(held)
            await lab.commit(
                *(
                    lab.commit_of(one, outcomes[n % len(outcomes)], items=(SINK, "{}"))
                    if n % len(outcomes) < 2
                    else lab.commit_of(one, outcomes[n % len(outcomes)])
                    for n, one in enumerate(held)
                )
            )
            await lab.let_pass(2000)
            await lab.frontier.due()
        is_over.set()

    crawling = asyncio.create_task(crawl())
    looks = 0
    while not is_over.is_set():
        report = await audit(lab.frontier)
        assert report.faults == []
        looks += 1
    await crawling
    assert looks > 3
    assert fetched > 500


async def _lose_queued(lab: Lab) -> None:
    await lab.client.lpop(lab.keys.queue(HOST, "2"))


async def _entry_ids(lab: Lab) -> list[bytes]:
    entries: Any = await lab.client.xrange(lab.keys.fetch_stream)
    return [entry_id for entry_id, _ in entries]


async def _lose_entries(lab: Lab, count: int) -> None:
    for entry_id in (await _entry_ids(lab))[:count]:
        await lab.client.xack(lab.keys.fetch_stream, GROUP, entry_id)
        await lab.client.xdel(lab.keys.fetch_stream, entry_id)


async def _lose_entry(lab: Lab) -> None:
    await _lose_entries(lab, 1)


async def _orphan_row(lab: Lab) -> None:
    await lab.client.xdel(lab.keys.fetch_stream, (await _entry_ids(lab))[0])


async def _lose_host(lab: Lab) -> None:
    await lab.client.delete(lab.keys.host(HOST))


async def _give_up_by_hand(lab: Lab) -> None:
    await lab.client.zrem(lab.keys.schedule, HOST)
    await lab.client.hset(lab.keys.host(HOST), "given_up", "host_unreachable")
    await _lose_entries(lab, 4)


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (_lose_queued, [f"{HOST}: queued counted 4, found 3"]),
        (_lose_queued, ["queued tasks of all hosts: counted 4, found 3"]),
        (_lose_entry, [f"{HOST}: in_flight counted 4, found 3"]),
        (_lose_entry, ["stream:fetch: page counted 4, found 3"]),
        (_orphan_row, ["stream:fetch:", "is pending and has no entry"]),
        (_lose_host, [f"{HOST}: in_flight counted 0, found 4"]),
        (_give_up_by_hand, [f"{HOST}: given up with 4 tasks queued, and not in giving_up"]),
        (lambda lab: lab.client.hincrby(lab.keys.host(HOST), "in_flight", -1), ["in_flight counted 3, found 4"]),
        (lambda lab: lab.client.hset(lab.keys.host(HOST), "queued", -1), [f"{HOST}: queued is -1, below zero"]),
        (lambda lab: lab.client.hincrby(lab.keys.totals, "page.done", 1), ["page: created 13, accounted for 14"]),
        (lambda lab: lab.client.hincrby(lab.keys.totals, "page.dead.http", 1), ["page: dead 1, by reason 2"]),
        (lambda lab: lab.client.hset(lab.keys.totals, "robots.delayed", -1), ["robots.delayed is -1, below zero"]),
        (lambda lab: lab.client.hincrby(lab.keys.totals, f"{SINK}.streamed", 1), [f"stream:fetch:{SINK}: counted 2"]),
        (lambda lab: lab.client.delete(lab.keys.delayed), ["delayed: counted 1, found 0"]),
        (lambda lab: lab.client.delete(lab.keys.dead), ["dead: counted 1, found 0"]),
        (lambda lab: lab.client.zadd(lab.keys.schedule, {IDLE: 0}), [f"{IDLE}: in the schedule, should be not"]),
        (lambda lab: lab.client.hset(lab.keys.state, "cap", 1), [f"{HOST}: in_flight 4 is over its cap 1"]),
        (lambda lab: lab.client.xgroup_destroy(lab.keys.sink_stream(SINK), GROUP), ["consumer group is missing"]),
        (lambda lab: lab.client.set(f"{lab.keys.prefix}other", 1), ["key other: unknown"]),
        (lambda lab: lab.client.set(lab.keys.robots("http://c"), 1), ["key robots:http://c: has no TTL"]),
        (lambda lab: lab.client.expire(lab.keys.totals, 600), ["key totals: expires in", "should stay"]),
        (lambda lab: lab.client.set(lab.keys.failing, 1), ["key failing: is a string, should be a zset"]),
    ],
)
async def test_damage_is_named(open_lab: OpenLab, crawl_name: str, damage: Damage, parts: list[str]) -> None:
    lab = await busy_lab(open_lab)
    await damage(lab)
    report = await audit(lab.frontier)
    assert not report.is_sound
    only(report, *parts)
    await delete_crawl(lab.client, crawl_name)  # it cannot be balanced any more


async def test_host_that_left_the_schedule_is_named(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    await lab.offer(f"{HOST}/")
    await lab.client.zrem(lab.keys.schedule, HOST)
    only(await audit(lab.frontier), f"{HOST}: not in the schedule, should be in the schedule")
    await delete_crawl(lab.client, crawl_name)


async def test_host_that_waits_for_a_robots_task_of_nobody_is_named(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(f"{HOST}/")
    (robots,) = await lab.take()
    await lab.end(robots)
    await lab.client.hset(lab.keys.host(HOST), "robots", "asked")
    await lab.client.zrem(lab.keys.schedule, HOST)
    only(await audit(lab.frontier), f"{HOST}: 1 tasks wait for its robots.txt, which nobody fetches")
    await delete_crawl(lab.client, crawl_name)


async def test_faults_are_bounded(lab: Lab) -> None:
    report = AuditReport()
    for number in range(5000):
        report.fault(str(number))
    assert len(report.faults) == 1001
    assert "more than 1000" in report.faults[-1]


async def test_audit_changes_nothing(open_lab: OpenLab) -> None:
    lab = await busy_lab(open_lab)
    before = await lab.snapshot()
    await audit(Frontier(lab.client, lab.keys, lab.frontier.epoch))
    assert await lab.snapshot() == before
