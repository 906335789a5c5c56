"""Audit is a recount: it finds nothing in a sound crawl, at rest or at full speed, and names whatever was damaged."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import CrawlGone
from streamcrawl.ops.audit import HOSTS_PER_CALL, AuditReport, audit
from streamcrawl.rules.task import Outcome
from streamcrawl.rules.urls import split_url
from streamcrawl.settings import Given, make_settings
from streamcrawl.store.frontier import Allowance
from streamcrawl.store.keys import CRAWLS, GROUP, Keys, crawl_pattern
from streamcrawl.store.shards import Shards, delete_crawl, open_crawl
from streamcrawl.store.tuning import encode_given
from tests.integration.snapshot import Lab, fast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

    Damage = Callable[[Lab], Awaitable[Any]]

HOST = "http://a.example"
IDLE = "http://b.example"
SINK = "out"


async def busy_lab(open_lab: OpenLab) -> Lab:
    """Return a crawl with something in every place that a task can be in."""
    lab = await listed(await open_lab(sinks=[SINK], host_concurrency=4, obey_robots=True))
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


async def listed(lab: Lab) -> Lab:
    """Enter the crawl where all crawls are, as whoever opens a whole one does."""
    await lab.client.sadd(CRAWLS, lab.keys.crawl)
    return lab


def only(report: AuditReport, *parts: str) -> None:
    """Check that some line of the report has all of these parts."""
    assert any(all(part in line for part in parts) for line in report.faults), report.faults


async def test_sound_crawl_has_no_faults(open_lab: OpenLab) -> None:
    lab = await busy_lab(open_lab)
    report = await audit(lab.crawl)
    assert report.faults == []
    assert report.notes == []
    assert report.is_sound
    assert report.lines == ["page", "robots", "sitemap", SINK]
    assert report.hosts == 2
    assert report.keys == len([key async for key in lab.client.scan_iter(match=lab.keys.pattern)])
    assert report.as_json()["totals"]["page.created"] == 13


async def test_new_crawl_and_one_of_many_hosts_are_sound(open_lab: OpenLab) -> None:
    lab = await listed(await open_lab())
    assert (await audit(lab.crawl)).faults == []
    count = 2 * HOSTS_PER_CALL + 7
    await lab.offer(*(f"http://h{n}.example/" for n in range(count)))
    report = await audit(lab.crawl)
    assert report.faults == []
    assert report.notes == []
    assert report.hosts == count


async def test_crawl_in_full_swing_is_sound_at_every_look(open_lab: OpenLab) -> None:
    lab = await listed(await open_lab(sinks=[SINK], host_concurrency=2))
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
        report = await audit(lab.crawl)
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


async def _close_on_feeders(lab: Lab) -> None:
    await lab.frontier.feed("f", "begin", lease_ms=1000)
    await lab.frontier.control(closed=1)


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
        (lambda lab: lab.client.hincrby(lab.keys.totals, "page.waited", 2), ["page: waited 2, by reason 0"]),
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
        (lambda lab: lab.client.set(lab.keys.prefix.encode() + b"\xff", 1), ["key \\xff: unknown"]),
        (lambda lab: lab.client.zadd(lab.keys.blocked, {HOST: 1}), [f"{HOST}: in blocked, should be not in blocked"]),
        (lambda lab: lab.client.zadd(lab.keys.blocked, {"http://z": 1}), ["http://z: in blocked, should be not in"]),
        (lambda lab: lab.client.zadd(lab.keys.given_up, {"http://z": 1}), ["http://z: in given_up, should be not in"]),
        (lambda lab: lab.client.hset(lab.keys.host(IDLE), "blocked", 1), [f"{IDLE}: not in blocked, should be in"]),
        (lambda lab: lab.client.hincrby(lab.keys.totals, "seed.created", 9), ["seeds: 18 are not ended, 9 pages are"]),
        (lambda lab: lab.client.hset(lab.keys.state, mapping={"closed": 1, "open": 1}), ["both closed and kept open"]),
        (_close_on_feeders, ["closed, and 1 feeders have not offered all"]),
        (lambda lab: lab.client.hset(lab.keys.feeders, "f", "x"), ["feeders: the row of f cannot be read"]),
        (lambda lab: lab.client.srem(CRAWLS, lab.keys.crawl), ["nothing lists this crawl"]),
        (
            lambda lab: lab.client.hset(lab.keys.totals, "links.typo", 1),
            ["links.typo is no reason to leave a link out"],
        ),
    ],
)
async def test_damage_is_named(open_lab: OpenLab, crawl_name: str, damage: Damage, parts: list[str]) -> None:
    lab = await busy_lab(open_lab)
    await damage(lab)
    report = await audit(lab.crawl)
    assert not report.is_sound
    only(report, *parts)
    await delete_crawl(lab.client, crawl_name)  # it cannot be balanced any more


async def test_host_that_left_the_schedule_is_named(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    await lab.offer(f"{HOST}/")
    await lab.client.zrem(lab.keys.schedule, HOST)
    only(await audit(lab.crawl), f"{HOST}: not in the schedule, should be in the schedule")
    await delete_crawl(lab.client, crawl_name)


async def test_host_that_waits_for_a_robots_task_of_nobody_is_named(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(f"{HOST}/")
    (robots,) = await lab.take()
    await lab.end(robots)
    await lab.client.hset(lab.keys.host(HOST), "robots", "asked")
    await lab.client.zrem(lab.keys.schedule, HOST)
    only(await audit(lab.crawl), f"{HOST}: 1 tasks wait for its robots.txt, which nobody fetches")
    await delete_crawl(lab.client, crawl_name)


async def test_long_stream_is_recounted_but_for_its_lines(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await listed(await open_lab(host_concurrency=2, slots=5000))
    await lab.offer(*(f"http://h{n}.example/{page}" for n in range(700) for page in range(3)))
    while await lab.take():
        pass
    report = await audit(lab.crawl)
    assert report.faults == []
    assert report.notes == ["stream:fetch: 1400 entries, too many to compare those of each kind"]
    await lab.client.hincrby(lab.keys.host("http://h3.example"), "in_flight", -1)
    only(await audit(lab.crawl), "http://h3.example: in_flight counted 1, found 2 entries")
    await delete_crawl(lab.client, crawl_name)


async def test_blocked_host_whose_robots_task_waits_is_sound(open_lab: OpenLab) -> None:
    lab = await listed(await open_lab(obey_robots=True))
    await lab.offer(f"{HOST}/")
    (robots,) = await lab.take()
    await lab.frontier.hand_back("stream:fetch", [robots.id])
    await lab.frontier.set_host(HOST, blocked=1)
    assert (await audit(lab.crawl)).faults == []
    await lab.frontier.set_host(HOST, blocked="")


async def test_faults_are_bounded(lab: Lab) -> None:
    report = AuditReport()
    for number in range(5000):
        report.fault(str(number))
    assert len(report.faults) == 1001
    assert "more than 1000" in report.faults[-1]


async def test_audit_changes_nothing(open_lab: OpenLab) -> None:
    lab = await busy_lab(open_lab)
    before = await lab.snapshot()
    await audit(lab.crawl)
    assert await lab.snapshot() == before


# -- several shards

SHARDS = 3


@dataclass
class Labs:
    """A crawl of several shards, each moved by hand."""

    crawl: Shards
    labs: list[Lab]

    @classmethod
    async def opened(cls, client: Redis, name: str, **values: Any) -> Labs:
        given = encode_given({field: Given(value, "test") for field, value in values.items()})
        crawl, _ = await open_crawl(client, make_settings(**fast(name, shards=SHARDS, **values)), given=given)
        await crawl.control(slots=100)
        return cls(crawl, [Lab(frontier) for frontier in crawl])

    def lab_of(self, host: str) -> Lab:
        return self.labs[self.crawl.index_of(host)]

    async def offer(self, *addresses: str) -> None:
        for address in addresses:
            await self.lab_of(split_url(address)[0]).offer(address)


@pytest.fixture
async def labs(store_client: Redis, crawl_name: str) -> AsyncIterator[Labs]:
    labs = await Labs.opened(store_client, crawl_name, pages_max=50)
    yield labs
    await delete_crawl(store_client, crawl_name)


ADDRESSES = [f"http://h{n}.example{n}.test/{page}" for n in range(12) for page in range(2)]


async def test_shards_are_recounted_together(labs: Labs) -> None:
    await labs.offer(*ADDRESSES)
    for lab in labs.labs:
        await lab.frontier.allow(10)
        await lab.take()
        await labs.crawl.first.grant(lab.keys.shard, await lab.frontier.allow(0), wanted=0, budget=50)
    report = await audit(labs.crawl)
    assert report.faults == []
    assert report.notes == []
    assert (report.shards, report.hosts) == (SHARDS, 12)
    assert report.totals["page.created"] == len(ADDRESSES)
    pattern = crawl_pattern(labs.crawl.first.keys.crawl)
    assert report.keys == len([key async for key in labs.crawl.client.scan_iter(match=pattern)])


async def _misplace(labs: Labs) -> None:
    host = next(host for n in range(20) if labs.crawl.index_of(host := f"http://m{n}.test") != 1)
    await labs.labs[1].offer(f"{host}/")


async def _grant_too_much(labs: Labs) -> None:
    for lab in labs.labs:
        await labs.crawl.first.grant(lab.keys.shard, Allowance(0, 0, 20, 0), wanted=0, budget=50)
        await lab.frontier.allow(20)


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (_misplace, ["shard 1: http://m", "lies in this shard, belongs to shard"]),
        (lambda labs: labs.labs[2].client.hset(labs.labs[2].keys.totals, "page.done", 1), ["shard 2: page: created 0"]),
        (
            lambda labs: labs.labs[2].client.hset(labs.labs[2].keys.state, "epoch", "x"),
            ["shard 2: epoch is x, that of the first shard is"],
        ),
        (lambda labs: labs.labs[1].client.delete(labs.labs[1].keys.state), ["shard 1: epoch is missing"]),
        (
            lambda labs: labs.labs[1].client.hset(labs.labs[1].keys.state, "version", 9),
            ["shard 1: version is 9, that of the first shard is 1"],
        ),
        (
            lambda labs: labs.labs[0].client.hset(Keys(labs.crawl.first.keys.crawl, 7).state, "schema", 1),
            ["there is no such shard, the crawl has 3"],
        ),
        (
            lambda labs: labs.labs[1].client.hset(labs.labs[1].keys.feeders, "f", 1),
            ["shard 1: key feeders: unknown, only the first shard has one"],
        ),
        (lambda labs: labs.labs[1].client.set(labs.labs[1].keys.prefix + "x", 1), ["shard 1: key x: unknown"]),
        (_grant_too_much, ["grants: 60 pages are allowed, --max-pages is 50"]),
        (lambda labs: labs.labs[1].frontier.allow(20), ["shard 1: has 20 pages granted, more than the first shard"]),
        (
            lambda labs: labs.crawl.first.grant(1, Allowance(9, 5, 0, 0), wanted=0, budget=50),
            ["shard 1: has returned 0 pages, less than"],
        ),
    ],
)
async def test_damage_between_shards_is_named(labs: Labs, damage: Any, parts: list[str]) -> None:
    await damage(labs)
    only(await audit(labs.crawl), *parts)


async def test_limit_that_is_not_dealt_out_yet_is_noted(labs: Labs) -> None:
    await labs.labs[1].frontier.allow(None)
    report = await audit(labs.crawl)
    assert (report.faults, report.notes) == ([], ["shard 1: has no limit yet, although --max-pages is set"])


async def test_change_that_goes_from_shard_to_shard_is_no_fault(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    changing = labs.labs[2].frontier.tune(2, b"", [])
    await labs.crawl.first.tune(2, b"{}", [])
    await labs.labs[1].frontier.tune(2, b"", [])
    later = asyncio.create_task(_after(0.1, changing))
    assert (await audit(labs.crawl)).faults == []
    await later


async def test_stages_that_two_versions_told_in_another_order_are_no_fault(labs: Labs) -> None:
    versions = [b'{"save":{"from":["page"],"batch":1}}', b'{"save@2":{"from":["page"],"batch":1}}']
    for number, frontier in enumerate(labs.crawl):
        told = [(["save"], versions[0]), (["save@2"], versions[1])]
        for names, flow in told[:: -1 if number else 1]:
            await frontier.flow(names, flow)
    assert (await audit(labs.crawl)).faults == []


async def _after(seconds: float, act: Awaitable[Any]) -> None:
    await asyncio.sleep(seconds)
    await act


async def test_crawl_begun_afresh_is_not_recounted(labs: Labs, crawl_name: str) -> None:
    await delete_crawl(labs.crawl.client, crawl_name)
    await Labs.opened(labs.crawl.client, crawl_name)
    with pytest.raises(CrawlGone):
        await audit(labs.crawl)


async def test_host_under_way_may_wait_for_a_cap_that_was_raised(lab: Lab) -> None:
    """It is looked at again when its entry ends; until then it is under its cap and not scheduled."""
    await lab.offer("http://a.test/1", "http://a.test/2")
    held = await lab.take()
    await lab.frontier.control(cap=3)
    assert not [fault for fault in (await audit(lab.crawl)).faults if "a.test" in fault]
    await lab.end_all(held)
    assert len(await lab.take()) == 1
