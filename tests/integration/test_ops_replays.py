"""Replays as an operator asks for them: which logs into which stage, what is refused, and the workers that do it."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from streamcrawl.errors import ConfigError, StoreUnavailable
from streamcrawl.ops import replays
from streamcrawl.ops.audit import audit
from streamcrawl.ops.replays import Asked
from streamcrawl.ops.status import read_status, status_lines
from streamcrawl.rules.task import Outcome
from streamcrawl.settings import make_settings
from streamcrawl.store import frontier
from streamcrawl.store.frontier import Beat, StageCommit
from streamcrawl.store.keys import CRAWLS, GROUP
from streamcrawl.store.shards import open_crawl, shard_of
from streamcrawl.work.replay import ReplayLoop
from tests.integration.snapshot import Lab, fast, wait_until

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from streamcrawl.ops.letters import Tally
    from tests.integration.conftest import OpenLab

ROWS: dict[str, dict[str, Any]] = {
    "parse": {"from": ["page"], "logs": ["fetched.parse"], "takes": ["fetched"]},
    "price@1": {"from": ["page", "parse"], "logs": ["page", "parse"], "takes": ["Book"]},
    "price@2": {"from": ["page", "parse"], "logs": ["page", "parse"], "takes": ["Book"]},
    "save": {"from": ["page", "parse", "price@2"], "logs": ["page", "parse", "price"], "is_results": True},
    "old": {"from": ["page"]},
    "out": {"from": ["page", "parse", "price@2"], "logs": ["page", "parse", "price"], "is_results": True},
}
ITEM = '["Book;Thing",{"n":1},2]'


async def opened(open_lab: OpenLab, *, count: int = 3, **values: Any) -> Lab:
    """Open a crawl whose pages gave `count` books to price@1, of which each is in the log of the page."""
    lab = await open_lab(sinks=["out"], **values)
    logs = {"page": 3_600_000, "price": 3_600_000, "fetched.parse": 0}
    await lab.frontier.flow([stage for stage in ROWS if stage != "out"], msgspec.json.encode(ROWS), logs)
    await lab.offer("http://a.test/")
    [held] = await lab.take()
    items = ("price@1", '["Book",{"n":1},2]', "log:page", f"0{ITEM}") * count
    assert await lab.end(held, items=items, url="http://a.test/") == "DONE"
    return lab


async def taken(lab: Lab, stage: str) -> list[str]:
    """Read what waits for a stage, and end it."""
    answer: Any = await lab.client.xreadgroup(GROUP, "t1", {lab.keys.stage_stream(stage): ">"}, count=1000)
    rows = answer[0][1] if answer else []
    commits = [StageCommit(entry_id.decode(), Outcome.DONE).pack() for entry_id, _ in rows]
    await lab.frontier.stage_commit("t1", stage, commits, 0)
    return [fields[b"item"].decode() for _, fields in rows]


async def faults(lab: Lab) -> list[str]:
    return [fault for fault in (await audit(lab.crawl)).faults if not fault.startswith(CRAWLS)]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked("none"), "there is no stage 'none' in this crawl: there is out, parse, price@1"),
        (Asked("price"), "stage 'price' has several versions: say which: --stage price@1, price@2"),
        (Asked("price@2", log="price"), "log 'price' holds nothing for price@2: what it gets would be in page, parse"),
        (Asked("price@2", log="parse"), "nothing of what price@2 gets is kept: declare retain="),
        (Asked("parse"), "no pages are kept for parse: --keep-bodies 24h"),
        (Asked("old"), "an older version told of it"),
        (Asked("out", log="price"), "nothing is in log price"),
        (Asked("price@2", where=("kind=x",)), "--where 'kind=x' will not do: write type=NAME"),
        (Asked("price@2", where=("type=a", "type=b")), "--where type= is given twice"),
        (Asked("price@2", is_missing=True, where=("type=a",)), "leave --where and --from out"),
        (Asked("price@2", is_missing=True, first_ms=1), "leave --where and --from out"),
    ],
)
async def test_what_cannot_be_replayed_is_refused_with_what_mends_it(
    open_lab: OpenLab, asked: Asked, words: str
) -> None:
    lab = await opened(open_lab)
    with pytest.raises(ConfigError, match=re.escape(words)):
        await replays.plans_of(lab.crawl, asked)


async def test_version_that_is_read_is_the_one_that_is_meant(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    beat = Beat("t1", "stream:price@2", 0, '{"role":"stage","stage":"price@2","slots":1}')
    await lab.frontier.beat([beat], lease_ms=30_000)
    [plan] = await replays.plans_of(lab.crawl, Asked("price"))
    assert (plan.log, plan.target) == ("page", "price@2")


async def test_dry_run_counts_and_time_and_results_choose(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    now_ms = int((await lab.client.time())[0]) * 1000

    async def found(*asked: Any, **more: Any) -> int:
        plans = await replays.plans_of(lab.crawl, Asked(*asked, **more))
        tally = await replays.count(lab.crawl, plans, lambda _: True)
        assert await replays.is_any(lab.crawl, plans) == (tally.words["FOUND"] > 0)
        return tally.words["FOUND"]

    assert await found("price@2") == 3
    assert await found("price@2", first_ms=now_ms - 60_000, where=("type=Thing", "url=http://a.test/")) == 3
    assert await found("price@2", first_ms=now_ms + 60_000) == 0
    assert await found("price@2", last_ms=now_ms - 60_000) == 0
    assert await found("price@2", is_missing=True) == 0, "price@1 had them: another version is no other stage"
    assert await found("save", is_missing=True) == 0, "a stage took them, so they are no results"
    assert lab.crawl.first.keys.replays not in await lab.snapshot()


async def test_workers_carry_a_replay_out_within_half_of_the_mark_and_an_operator_may_end_it(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, count=50, stage_waiting_max=20)
    plans = await replays.plans_of(lab.crawl, Asked("price@2", first_ms=0))
    await replays.begin(lab.crawl, plans)
    with pytest.raises(ConfigError, match=f"replay {plans[0].id} of log page into price@2 is under way"):
        await replays.begin(lab.crawl, await replays.plans_of(lab.crawl, Asked("price@2")))
    said: list[str] = []
    loops = [ReplayLoop(lab.crawl, log=said.append) for _ in range(2)]  # as many supervisors
    running = [asyncio.create_task(loop.run()) for loop in loops]
    got: list[str] = []

    async def is_through() -> bool:
        waiting = await lab.client.xlen(lab.keys.stage_stream("price@2"))
        assert waiting <= 8, "0.4 of the mark"
        got.extend(await taken(lab, "price@2"))
        return (await replays.progress(lab.crawl, plans))[0] and not await lab.client.xlen(
            lab.keys.stage_stream("price@2")
        )

    await wait_until(is_through, "the end of the replay")
    assert got == ['["Book",{"n":1},2]'] * 50
    assert (await replays.progress(lab.crawl, plans)) == (True, replays.Count(50, 50))
    assert [line for line in said if plans[0].id in line] == [f"replay {plans[0].id}: all of it is sent"]
    for loop in loops:
        loop.stop()
    await asyncio.gather(*running)
    # One that is ended stays where it is.
    [plan] = await replays.plans_of(lab.crawl, Asked("price@2"))
    await replays.begin(lab.crawl, [plan])
    assert (await lab.frontier.copy_replay(plan.id))[0] == "FULL"
    status = await read_status(lab.client, lab.keys.crawl)
    assert [(one.id, one.looked, one.copied) for one in status.replays] == [(plan.id, 8, 8)]
    assert not status.is_complete
    text = "\n".join(status_lines(status))
    assert f"{plan.id}: 8 of 8 looked at in log page sent to price@2" in text
    assert "page: 50 entries, 0.0 MB, oldest" in text
    await replays.cancel(lab.crawl, plan.id)
    with pytest.raises(ConfigError, match=r"no replay .* is under way: there is none"):
        await replays.cancel(lab.crawl, plan.id)
    assert len(await taken(lab, "price@2")) == 8
    assert await faults(lab) == []


async def test_a_replay_lets_those_go_first_whom_its_stage_holds_back(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, count=50, stage_waiting_max=20)
    await taken(lab, "price@1")
    [plan] = await replays.plans_of(lab.crawl, Asked("price@2", first_ms=0))
    await replays.begin(lab.crawl, [plan])
    assert await lab.frontier.copy_replay(plan.id) == ("FULL", 8)
    await lab.offer("http://a.test/more")
    [held] = await lab.take()
    assert await lab.end(held, items=("price@2", '["Book",{"n":2},2]') * 10) == "DONE"
    assert await lab.frontier.throttled() == {"price@2"}
    reads = 0
    while await lab.frontier.throttled():
        answer: Any = await lab.client.xreadgroup(GROUP, "t1", {lab.keys.stage_stream("price@2"): ">"}, count=1)
        [(entry_id, _)] = answer[0][1]
        await lab.frontier.stage_commit("t1", "price@2", [StageCommit(entry_id.decode(), Outcome.DONE).pack()], 0)
        await lab.frontier.copy_replay(plan.id)
        reads += 1
    assert reads <= 18 - 3, "pages wait until a fifth of the mark is left, whatever a replay has to bring"
    assert (await lab.frontier.copy_replay(plan.id))[0] == "FULL"
    assert await faults(lab) == []


@pytest.mark.parametrize(
    "removed", ["all", "what it has sent", "it after the end", "all, of one that an older version began"]
)
async def test_replay_whose_log_lost_what_it_was_to_send_says_so(
    open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    lab = await opened(open_lab, count=20, stage_waiting_max=20)
    [plan] = plans = await replays.plans_of(lab.crawl, Asked("price@2"))
    await replays.begin(lab.crawl, plans)
    assert await lab.frontier.copy_replay(plan.id) == ("FULL", 8)
    if removed.endswith("began"):
        await lab.client.hdel(lab.keys.replayed, f"gone:{plan.id}")
    if removed != "it after the end":
        most = 8 if removed == "what it has sent" else 20
        monkeypatch.setattr(frontier, "TRIMMED_PER_CALL", most)
        assert (await lab.frontier.trim_logs(is_full=True))[0] == most
    said: list[str] = []
    loop = ReplayLoop(lab.crawl, log=said.append)
    running = asyncio.create_task(loop.run())
    got: list[str] = []

    async def is_through() -> bool:
        got.extend(await taken(lab, "price@2"))
        return (await replays.progress(lab.crawl, plans))[0]

    await wait_until(is_through, "the end of the replay")
    got += await taken(lab, "price@2")
    if removed == "it after the end":
        assert (await lab.frontier.trim_logs(is_full=True))[0] == 20
    loop.stop()
    await running
    has_gap = removed == "all"
    sent = 8 if removed.startswith("all") else 20
    assert len(got) == sent
    assert await replays.progress(lab.crawl, plans) == (True, replays.Count(sent, sent, has_gap))
    assert len(said) == 1
    assert ("removed from the log" in said[0]) is has_gap


async def test_what_is_missing_is_sent_to_one_version_at_a_time(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)

    def missing(target: str) -> bytes:
        plan = {"log": "page", "target": target, "first": "-", "last": "+", "is_missing": True}
        return msgspec.json.encode(plan)

    assert await lab.frontier.plan_replay("one", missing("price@1")) == ("OK", "")
    assert await lab.frontier.plan_replay("two", missing("price@2")) == ("BUSY", "one")
    assert await lab.frontier.copy_replay("one") == ("ENDED", 0)
    assert await lab.frontier.plan_replay("two", missing("price@2")) == ("OK", "")


async def test_every_shard_does_its_part_of_a_replay(store_client: Redis, crawl_name: str) -> None:
    crawl, _ = await open_crawl(store_client, make_settings(**fast(crawl_name, shards=2)))
    labs = [Lab(frontier) for frontier in crawl]
    hosts: dict[int, str] = {}
    for n in range(100):
        hosts.setdefault(shard_of(f"http://h{n}.test", 2), f"http://h{n}.test")
    row = {"one": {"from": ["page"], "logs": ["page"]}, "two": {"from": ["page"], "logs": ["page"]}}
    for number, lab in enumerate(labs):
        await lab.frontier.flow(["one", "two"], msgspec.json.encode(row), {"page": 3_600_000})
        await lab.frontier.control(slots=10)
        await lab.offer(f"{hosts[number]}/")
        [held] = await lab.take()
        assert await lab.end(held, items=("one", ITEM, "log:page", f"0{ITEM}") * 3, url=f"{hosts[number]}/") == "DONE"
    plans = await replays.plans_of(crawl, Asked("two", is_missing=True))
    await replays.begin(crawl, plans)
    assert (await replays.progress(crawl, plans))[0] is False
    # The second shard is told by whoever works; and the first does not end its part before that.
    loop = ReplayLoop(crawl, log=lambda _: None)
    running = asyncio.create_task(loop.run())

    async def has_ended() -> bool:
        return (await replays.progress(crawl, plans))[0]

    await wait_until(has_ended, "the end of the replay")
    assert (await replays.progress(crawl, plans))[1] == replays.Count(6, 6)
    assert [await lab.client.xlen(lab.keys.stage_stream("two")) for lab in labs] == [3, 3]
    # One that the store has forgotten is not taken for one that has ended.
    await replays.begin(crawl, again := await replays.plans_of(crawl, Asked("two", first_ms=0)))
    await store_client.delete(crawl.first.keys.replays, crawl.first.keys.replayed)
    with pytest.raises(StoreUnavailable, match="has forgotten this replay"):
        await replays.progress(crawl, again)
    loop.stop()
    await running
    for lab in labs:
        await lab.check()


async def test_stage_without_readers_is_dropped_whole(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, count=450, stage_waiting_max=2)
    answer: Any = await lab.client.xreadgroup(GROUP, "t1", {lab.keys.stage_stream("price@1"): ">"}, count=150)
    ids = [entry_id.decode() for entry_id, _ in answer[0][1]]
    retried = [StageCommit(one, Outcome.RETRY, (60_000,)).pack() for one in ids[:120]]
    await lab.frontier.stage_commit("t1", "price@1", retried, 0)
    status = await read_status(lab.client, lab.keys.crawl)
    stage = replays.stage_to_drop(status, "price@1")
    assert (stage.waiting, stage.pending, stage.delayed) == (300, 30, 120)
    command = f"NOBODY READS IT: start workers that have it, or streamcrawl queue drop {lab.keys.crawl} --stage price@1"
    assert command in "\n".join(status_lines(status))
    seen: list[int] = []

    def once(tally: Tally) -> bool:
        seen.append(tally.words["DROPPED"])
        return False

    assert (await replays.drop(lab.crawl, "price@1", watch=once)).is_cut
    assert seen == [200], "a window, and no more"
    tally = await replays.drop(lab.crawl, "price@1", watch=lambda _: True)
    assert (tally.words, tally.is_cut) == ({"DROPPED": 250}, False)
    totals = await lab.totals()
    assert (totals["price@1.dropped.removed"], totals["price@1.created"]) == (450, 450)
    assert await lab.frontier.throttled() == frozenset()
    assert await faults(lab) == []
    with pytest.raises(ConfigError, match="out is an output"):
        replays.stage_to_drop(status, "out")


async def test_audit_names_a_log_that_lost_entries(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    [(entry_id, fields), *_] = await lab.client.xrange(lab.keys.log("page"))
    await lab.client.xdel(lab.keys.log("page"), entry_id)
    assert await faults(lab) == ["log:page: counted 3, found 2 entries"]
    await lab.client.xadd(lab.keys.log("page"), fields)
    assert await faults(lab) == []
