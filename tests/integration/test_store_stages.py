"""Items between stages in the store: taken back, quarantined, replayed, throttled, and what the end makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from streamcrawl import Crawl
from streamcrawl.cli.opening import tell_flow
from streamcrawl.ops.audit import audit
from streamcrawl.ops.exporter import read_imbalance
from streamcrawl.ops.letters import Attempts, Where, newest_first, purge, replay
from streamcrawl.ops.pending import Which, rows, take_back
from streamcrawl.ops.status import read_status, status_lines
from streamcrawl.rules.task import DropReason, Outcome
from streamcrawl.rules.traps import LeftOut
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Beat, StageCommit
from streamcrawl.store.keys import CRAWLS, GROUP
from streamcrawl.store.shards import open_crawl
from tests.integration.snapshot import fast, urls
from tests.redis_server import DURABLE, RedisServer

if TYPE_CHECKING:
    from streamcrawl.work.program import Program
    from tests.integration.conftest import OpenLab
    from tests.integration.snapshot import Lab

A = "http://a.test"
LEASE_MS = 30_000
FLOW = msgspec.json.encode(
    {"enrich": {"from": ["page"], "batch": 1}, "save": {"from": ["enrich"], "batch": 1}, "out": {"from": ["enrich"]}}
)


class Flow:
    """A crawl with the stages "enrich" and "save", moved by hand."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.pages = 0

    @classmethod
    async def opened(cls, open_lab: OpenLab, **values: Any) -> Flow:
        lab = await open_lab(sinks=["out"], **values)
        await lab.frontier.flow(["enrich", "save"], FLOW)
        return cls(lab)

    async def emit(self, count: int, stage: str = "enrich") -> None:
        """Fetch a page that brings so many items."""
        self.pages += 1
        await self.lab.offer(f"http://h{self.pages}.test/")
        [held] = await self.lab.take()
        flat = [part for n in range(count) for part in (stage, f'["any",{{"n":{n}}},0]')]
        assert await self.lab.end(held, items=flat, url=f"{A}/page") == "DONE"

    async def read(self, count: int = 1000, stage: str = "enrich", consumer: str = "t1") -> list[str]:
        stream = self.lab.keys.stage_stream(stage)
        answer: Any = await self.lab.client.xreadgroup(GROUP, consumer, {stream: ">"}, count=count)
        return [entry_id.decode() for entry_id, _ in answer[0][1]] if answer else []

    async def end(
        self, ids: list[str], outcome: Outcome = Outcome.DONE, stage: str = "enrich", **rest: Any
    ) -> set[str]:
        packed = [StageCommit(one, outcome, **rest).pack() for one in ids]
        words, _ = await self.lab.frontier.stage_commit("t1", stage, packed, 0)
        return set(words)

    async def over(self) -> set[str]:
        return set(await self.lab.frontier.throttled())

    async def entries(self, stage: str = "enrich") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.lab.check())[f"stream:{stage}"]["entries"]
        return found


async def faults(lab: Lab) -> list[str]:
    """Audit the crawl; it is on no list of crawls, being a single shard."""
    return [fault for fault in (await audit(lab.crawl)).faults if not fault.startswith(CRAWLS)]


# -- back


async def test_items_of_a_dead_worker_come_back_and_one_that_kills_alone_is_a_dead_letter(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab, crashes_max=2)
    put_back = flow.lab.frontier.put_back
    await flow.emit(2)
    assert len(await flow.read()) == 2
    assert await put_back("stream:enrich", "t1", is_crash=True) == 2
    assert {entry["crashes"] for entry in await flow.entries()} == {1}
    assert len(await flow.read(consumer="t2")) == 2
    assert await put_back("stream:enrich", "t2", is_crash=True) == 2
    [one, _] = await flow.read(consumer="t3")
    assert await flow.lab.frontier.hand_back("stream:enrich", [one]) == 1  # in order: no crash
    assert await put_back("stream:enrich", "t3", is_crash=True) == 1
    assert sorted(entry["crashes"] for entry in await flow.entries()) == [2, 3]
    while [entry["crashes"] for entry in await flow.entries()].count(3):
        ids = await flow.read(1, consumer="t4")
        poison = (await flow.lab.client.xrange(flow.lab.keys.stage_stream("enrich"), ids[0], ids[0]))[0][1]
        if poison[b"crashes"] == b"3":
            await put_back("stream:enrich", "t4", is_crash=True)
        else:
            assert await flow.end(ids) == {"DONE"}
    state = await flow.lab.check()
    assert state["totals"]["enrich.dead.crashed"] == 1
    [letter] = state["dead"]["entries"]
    assert (letter["stage"], letter["url"], letter["crashes"]) == ("enrich", f"{A}/page", 4)


async def test_reclaim_takes_items_back_and_a_late_commit_writes_nothing(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab)
    lab = flow.lab
    await flow.emit(1)
    ids = await flow.read()
    await lab.client.xclaim(lab.keys.stage_stream("enrich"), GROUP, "t1", 0, ids, idle=2 * LEASE_MS, justid=True)
    await lab.let_reclaim(stream="stream:enrich")
    assert await lab.frontier.reclaim("stream:enrich", lease_ms=LEASE_MS) == ("OK", 1)
    assert await flow.end(ids, items=("save", '["any",1,0]')) == {"LEASE_LOST"}
    assert [entry["crashes"] for entry in await flow.entries()] == [1]
    assert await flow.entries("save") == []
    # A stream that was lost is made anew, with its group.
    await lab.client.delete(lab.keys.stage_stream("enrich"))
    await lab.client.hincrby(lab.keys.totals, "enrich.streamed", -1)
    await lab.client.hincrby(lab.keys.totals, "enrich.created", -1)
    await lab.client.hset(lab.keys.totals, "enrich.bytes", 0)
    assert await lab.frontier.reclaim("stream:enrich", lease_ms=LEASE_MS) == ("OK", 0)
    await flow.emit(1)
    assert await flow.end(await flow.read()) == {"DONE"}


# -- marks


async def test_stage_over_its_mark_holds_what_feeds_it_and_nothing_else(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab, stage_waiting_max=10)
    await flow.emit(9, "save")
    assert await flow.over() == {"save"}
    await flow.emit(9)  # pages do not feed "save": the fetch goes on
    await flow.lab.offer(f"{A}/more")
    assert await flow.over() == {"save", "enrich"}
    assert (await flow.lab.frontier.dispatch(1)).word == "THROTTLED"
    first = await flow.read(6)
    assert await flow.end(first) == {"DONE"}
    assert await flow.over() == {"save", "enrich"}, "3 of 10 wait: between the marks"
    await flow.end(await flow.read(2))
    assert await flow.over() == {"save"}


async def test_mark_is_two_batches_and_two_rounds_of_the_live_slots_at_least(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab, stage_waiting_max=1)
    beat = Beat("t1", "stream:enrich", 0, '{"role":"stage","stage":"enrich","slots":10}')
    _, slots = await flow.lab.frontier.beat([beat], lease_ms=LEASE_MS)
    assert slots == 0, "they are no slots of the fetch"
    await flow.lab.frontier.control(slots=1000)
    await flow.emit(16)
    assert await flow.over() == set()
    await flow.emit(1)
    assert await flow.over() == {"enrich"}
    await flow.lab.frontier.beat([Beat("t1", "stream:enrich", -1, "{}")], lease_ms=LEASE_MS)
    assert await flow.lab.client.hget(flow.lab.keys.state, "slots:enrich") is None


async def test_bytes_have_a_mark_of_their_own(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab, stage_max_bytes=1000)
    await flow.emit(40)
    assert await flow.over() == set()
    await flow.emit(10)
    assert await flow.over() == {"enrich"}
    ids = await flow.read()
    await flow.end(ids[:45])
    assert await flow.over() == set()


async def test_flag_of_a_stream_that_emptied_otherwise_is_taken_down(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab, stage_waiting_max=2)
    await flow.emit(3)
    assert await flow.over() == {"enrich"}
    await flow.read()  # nobody commits: its worker hangs, or dies, and its items with it
    await flow.lab.frontier.beat([Beat("w1", "stream:fetch", 1000, "{}")], lease_ms=LEASE_MS)
    assert await flow.over() == set()


# -- the end, and people


async def test_crawl_ends_only_when_every_item_has(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab)
    lab = flow.lab
    await flow.emit(1)
    await lab.frontier.control(closed=1, paused=1)
    assert (await lab.frontier.finish()).word == "RUNNING"
    await flow.end(await flow.read(), Outcome.RETRY, detail=(1000,))
    assert (await lab.frontier.finish()).word == "RUNNING", "also paused: it comes back by itself"
    await lab.let_pass(1000)
    await lab.frontier.due()
    await flow.end(await flow.read(), items=("save", '["any",1,0]'))
    assert (await lab.frontier.finish()).word == "RUNNING"
    await flow.end(await flow.read(stage="save"), stage="save")
    assert (await lab.frontier.finish()).word == "ENDED"
    assert await faults(lab) == []
    await lab.client.hincrby(lab.keys.totals, "save.done", 1)
    assert (await lab.frontier.finish()).word == "UNBALANCED"
    assert "save: created 1, accounted for 2 = 2 done" in await faults(lab)
    await lab.client.hincrby(lab.keys.totals, "save.done", -1)


async def test_dead_items_are_listed_replayed_and_purged_by_stage(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab)
    lab, crawl = flow.lab, flow.lab.crawl
    await flow.emit(3)
    await flow.end(await flow.read(), Outcome.DEAD, detail=("handler", "why"))
    where = Where(stage="enrich")
    letters = [letter async for letter in newest_first(crawl, where)]
    assert {(letter.url, letter.kind, letter.stage, letter.error) for letter in letters} == {
        (f"{A}/page", "item", "enrich", "why")
    }
    tally = await replay(crawl, where, attempts=Attempts.RESET, limit=1, is_dry=False, watch=lambda _: True)
    assert tally.words == {"QUEUED": 1}
    assert [entry["attempt"] for entry in await flow.entries()] == [1]
    tally = await purge(crawl, where, limit=1, is_dry=False, watch=lambda _: True)
    assert tally.words == {"PURGED": 1}
    totals = (await lab.check())["totals"]
    assert {name: totals[f"enrich.{name}"] for name in ("dead", "dropped.purged", "replayed", "streamed")} == {
        "dead": 1, "dropped.purged": 1, "replayed": 1, "streamed": 1,
    }  # fmt: skip
    assert await faults(lab) == []


async def test_pending_items_are_seen_and_taken_back(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab)
    await flow.emit(2)
    await flow.read(1)
    which = Which(stage="enrich")
    found = [row async for _, window in rows(flow.lab.crawl, which) for row in window]
    assert [(row.what, row.consumer) for row in found] == [(f"{A}/page", "t1")]
    tally = await take_back(flow.lab.crawl, which, limit=None, is_forced=True, watch=lambda _: True)
    assert tally.words == {"BACK": 1}
    assert [entry["crashes"] for entry in await flow.entries()] == [0, 0]


async def test_status_names_each_throttle_and_a_version_that_nobody_reads(open_lab: OpenLab, crawl_name: str) -> None:
    flow = await Flow.opened(open_lab, stage_waiting_max=2)
    lab = flow.lab
    await flow.emit(3)
    status = await read_status(lab.client, crawl_name)
    stages = {stage.stage: stage for stage in status.stages}
    assert (stages["enrich"].waiting, stages["enrich"].is_over, stages["enrich"].is_unread) == (3, True, True)
    assert stages["fetch"].held_by == ("enrich",)
    assert not stages["save"].is_unread
    assert "too many items wait for stage enrich: and no worker of it is alive" in status.brakes[0].reason
    beat = Beat("t1", "stream:enrich", 0, '{"role":"stage","stage":"enrich","slots":1}')
    await lab.frontier.beat([beat], lease_ms=LEASE_MS)
    status = await read_status(lab.client, crawl_name)
    assert "fetch wait until a fifth is left" in status.brakes[0].reason
    text = "\n".join(status_lines(status))
    assert "3 waiting" in text
    assert "NOBODY" not in text
    assert "held back by enrich" in text
    assert status.as_json()["stages"][0]["held_by"] == ("enrich",)
    marks = {stage.stage: (stage.mark_high, stage.mark_low) for stage in status.stages}
    assert marks["enrich"] == (800, 200), "by the settings that were set, which were none here"
    # A delayed and a dead one of a stage, and the exporter finds all of it in balance too.
    [one, two, _] = await flow.read()
    await flow.end([one], Outcome.RETRY, detail=(60_000,))
    await flow.end([two], Outcome.DEAD, detail=("handler", "why"))
    imbalance = await read_imbalance(lab.client, await read_status(lab.client, crawl_name))
    assert set(imbalance.values()) == {0}
    assert ("enrich", "stream") in imbalance


async def test_status_proposes_sizes_of_queues_by_what_workers_measured(open_lab: OpenLab, crawl_name: str) -> None:
    lab = (await Flow.opened(open_lab)).lab

    async def beat(stage: str, stream: str, slots: int, ended: int, worked_s: float, role: str = "stage") -> None:
        info = {"role": role, "stage": stage, "slots": slots, "ended": ended, "worked_s": worked_s}
        share = slots if role == "fetch" else 0
        await lab.frontier.beat(
            [Beat(f"{stage}-{worked_s}", stream, share, msgspec.json.encode(info).decode())], lease_ms=LEASE_MS
        )

    async def looked() -> dict[str, Any]:
        return {stage.stage: stage for stage in (await read_status(lab.client, crawl_name)).stages}

    await lab.frontier.control(slots=0)
    await beat("fetch", "stream:fetch", 10, 100, 100.0, role="fetch")  # a second for a page
    assert {stage.proposed for stage in (await looked()).values()} == {None}
    await beat("enrich", "stream:enrich", 1, 50, 50.0)
    await beat("enrich", "stream:enrich", 3, 150, 110.0)  # 0.8 s for an item, in 4 slots of two workers
    await beat("save", "stream:save", 8, 19, 40.0)
    await beat("out", "stream:fetch:out", 0, 100, 10.0, role="sink")
    stages = await looked()
    # A page each 0.1 s and an item each 0.2 s: twice the 20 that wait for the fetch.
    assert (stages["enrich"].size, stages["enrich"].proposed, stages["enrich"].entry_s) == (1000, 40, 0.8)
    # A record each 0.1 s: half of that.
    assert (stages["out"].size, stages["out"].proposed, stages["out"].entry_s) == (10_000, 20, 0.1)
    assert (stages["save"].proposed, stages["save"].entry_s) == (None, None), "too few to say"
    await beat("save", "stream:save", 8, 100, 40.0)
    save = (await looked())["save"]
    assert save.proposed == 2 * 8, "at least two rounds of its slots"
    status = await read_status(lab.client, crawl_name)
    assert "room for 1,000, proposed 40 (0.8 s each)" in "\n".join(status_lines(status))
    assert status.as_json()["stages"][0]["proposed"] is None
    marks = await lab.frontier.throttled()
    assert marks == frozenset(), "nothing goes by it"


@pytest.mark.parametrize("broken", [b"stage|enrich|1-1|1|0|5", b"stage|gone|1-1|1|0|1|ax"])
async def test_delayed_member_that_cannot_be_read_is_a_dead_letter(open_lab: OpenLab, broken: bytes) -> None:
    flow = await Flow.opened(open_lab)
    await flow.lab.client.zadd(flow.lab.keys.delayed, {broken: 0})
    assert (await flow.lab.frontier.due())[0] == 1
    assert (await flow.lab.totals())["page.dead.codec"] == 1


async def test_new_stage_of_a_crawl_under_way_is_on_disk_before_anybody_goes_by_it() -> None:
    """A server that loses its last second would take no item for it, and the pages that bring them would be buried."""

    def program(*versions: int) -> Program:
        crawl = Crawl("shop")
        for version in versions:
            crawl.stage(name=f"price{version}", version=version)(_price)
        return crawl.program

    with RedisServer(options=DURABLE) as server:
        client = connect(server.url)
        try:
            crawl, _ = await open_crawl(client, make_settings(**fast("shop", shards=2)))

            async def waits() -> int:
                stats: Any = await client.info("commandstats")
                return int(stats.get("cmdstat_waitaof", stats.get("cmdstat_wait", {"calls": 0}))["calls"])

            await tell_flow(crawl, program(1), [])
            await tell_flow(crawl, program(1), [])
            assert await waits() == 0, "nothing new"
            await tell_flow(crawl, program(1, 2), [])
            assert await waits() == len(crawl)
        finally:
            await client.aclose()


async def _price(item: dict[str, Any]) -> None: ...


async def test_reasons_that_a_handler_makes_up_are_counted_up_to_a_bound(open_lab: OpenLab) -> None:
    """Each is a field of the totals, which whoever looks reads whole."""
    lab = await open_lab(host_concurrency=100)
    await lab.offer(*urls("a.test", 70))
    for n, held in enumerate(await lab.take()):
        reason = "robots" if n == 65 else f"made_up_{n if n < 60 else n - 60}"
        assert await lab.end(held, Outcome.DROPPED, detail=(reason,)) == "DONE"
    totals = await lab.totals()
    by_reason = {name.removeprefix("page.dropped."): count for name, count in totals.items() if "dropped." in name}
    assert len(by_reason) == 52
    assert (by_reason.pop("other"), by_reason.pop("robots")) == (10, 1)
    assert by_reason == {f"made_up_{n}": 2 if n < 10 and n != 5 else 1 for n in range(50)}
    assert totals["page.dropped"] == 70
    await lab.check()


async def test_a_stage_has_room_for_reasons_of_its_own(open_lab: OpenLab) -> None:
    flow = await Flow.opened(open_lab)
    await flow.emit(60)
    for n, one in enumerate(await flow.read()):
        assert await flow.end([one], Outcome.DROPPED, detail=(f"made_up_{n}",)) == {"DONE"}
    totals = await flow.lab.totals()
    assert (totals["enrich.dropped"], totals["enrich.dropped.other"]) == (60, 10)
    assert sum(name.startswith("enrich.dropped.made_up") for name in totals) == 50


async def test_reasons_of_our_own_need_no_room(open_lab: OpenLab) -> None:
    lab = await open_lab()
    ours = {*DropReason, *LeftOut}
    await lab.frontier.control(**{"reasons:page": 50})
    await lab.offer(*urls("a.test", len(ours)))
    for reason in sorted(ours):
        [held] = await lab.take()
        await lab.end(held, Outcome.DROPPED, detail=(reason,))
    assert "page.dropped.other" not in await lab.totals()
