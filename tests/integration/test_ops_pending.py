"""What workers have in hand: listed with who it is, and taken back from those that are gone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops import pending
from streamcrawl.ops.pending import Row, Which
from streamcrawl.rules.task import Outcome
from streamcrawl.store.frontier import Beat
from tests.integration.operated import SHARDS, Operated

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from streamcrawl.ops.letters import Tally

SINK = "out"


async def listed(operated: Operated, which: Which | None = None) -> list[Row]:
    return [row async for _, window in pending.rows(operated.crawl, which or Which()) for row in window]


async def take_back(operated: Operated, which: Which | None = None, **values: Any) -> Tally:
    given: dict[str, Any] = {"limit": None, "is_forced": False, "watch": lambda _: True} | values
    return await pending.take_back(operated.crawl, which or Which(), **given)


async def beat(operated: Operated, consumer: str, stream: str = "stream:fetch") -> None:
    for lab in operated.labs:
        await lab.frontier.beat([Beat(consumer, stream, 8, "{}")], lease_ms=30_000)
        await lab.frontier.control(slots=1000)


@pytest.mark.parametrize("shards", SHARDS)
async def test_rows_say_who_has_what(redis_client: Redis, crawl_name: str, shards: int) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=shards, sinks=[SINK])
    await operated.offer([f"http://h{n}.test/a" for n in range(6)])
    await operated.take("dead")
    await operated.offer([f"http://n{n}.test/a" for n in range(6)])
    await operated.take("alive")
    await beat(operated, "alive")
    rows = await listed(operated)
    assert {(row.what, row.consumer, row.is_alive) for row in rows} == {
        *((f"http://h{n}.test/a", "dead", False) for n in range(6)),
        *((f"http://n{n}.test/a", "alive", True) for n in range(6)),
    }
    assert {row.stage for row in rows} == {"fetch"}
    assert {row.deliveries for row in rows} == {1}
    assert len(await listed(operated, Which(consumer="dead"))) == 6
    assert await listed(operated, Which(idle_ms=60_000)) == []
    assert await listed(operated, Which(stage=f"fetch:{SINK}")) == []
    name = rows[0].name(shards)
    assert [row.name(shards) for row in await listed(operated, Which(ids=(name,)))] == [name]
    assert rows[0].as_json(shards)["worker"] == rows[0].consumer
    assert "alive" in pending.row_line(rows[-1], shards)
    with pytest.raises(ConfigError, match=f"this crawl has fetch, fetch:{SINK}"):
        await listed(operated, Which(stage="parse"))
    assert (await pending.workers(operated.crawl))["alive"][1] is True


@pytest.mark.parametrize("shards", SHARDS)
async def test_what_the_dead_had_is_taken_back_and_the_living_keep_theirs(
    redis_client: Redis, crawl_name: str, shards: int
) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=shards)
    await operated.offer([f"http://h{n}.test/a" for n in range(6)])
    await operated.take("dead")
    await operated.offer([f"http://n{n}.test/a" for n in range(6)])
    held = await operated.take("alive")
    await beat(operated, "alive")
    assert (await take_back(operated, limit=2)).words["BACK"] == 2
    assert (await take_back(operated)).words == {"BACK": 4, "ALIVE": 6}
    assert (await take_back(operated)).words == {"ALIVE": 6}
    await operated.check()
    assert await operated.total("page.crashed") == 0
    assert (await take_back(operated, is_forced=True)).words == {"BACK": 6}
    for lab, one in held:
        assert await lab.end(one) == "LEASE_LOST"
    assert await listed(operated) == []
    await operated.check()
    again = await operated.take()
    assert len(again) == 12
    assert {one.task.attempt for _, one in again} == {1}
    assert {one.task.crashes for _, one in again} == {0}


async def test_records_in_the_hands_of_a_writer_are_rows_too(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, sinks=[SINK])
    lab = operated.labs[0]
    await operated.offer([f"http://h{n}.test/a" for n in range(3)])
    items = ('{"url":"http://h0.test/a"}', '["no url"]', "no JSON")
    for (_, held), item in zip(await operated.take(), items, strict=True):
        await lab.end(held, items=(SINK, item))
    stream = lab.keys.sink_stream(SINK)
    await lab.client.xreadgroup("workers", "writer", {stream: ">"})
    assert sorted(row.what for row in await listed(operated, Which(stage=f"fetch:{SINK}"))) == [
        "(a record without a url)",
        "(cannot be read)",
        "http://h0.test/a",
    ]
    assert (await take_back(operated)).words == {"BACK": 3}
    assert await listed(operated) == []
    assert await lab.client.xlen(stream) == 3
    await operated.check()


async def test_row_whose_entry_is_gone_is_ended(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    lab = operated.labs[0]
    await operated.offer(["http://a.test/", "http://b.test/"])
    (_, held), _ = await operated.take()
    await lab.client.xdel(lab.keys.fetch_stream, held.id)
    assert [row.what for row in await listed(operated, Which(ids=(held.id,)))] == ["(its entry is gone)"]
    assert (await take_back(operated)).words == {"GONE": 1, "BACK": 1}
    assert await listed(operated) == []


async def test_stream_that_was_lost_has_no_rows(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    await redis_client.delete(operated.labs[0].keys.fetch_stream)
    assert await listed(operated) == []
    assert (await take_back(operated)).words == {}


async def test_more_rows_than_one_window(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, host_concurrency=1000)
    lab = operated.labs[0]
    count = 2 * pending.ROWS_PER_CALL + 3
    await operated.offer([f"http://a.test/{n}" for n in range(count)])
    assert len(await operated.take()) == count
    assert json.dumps([row.what for row in await listed(operated)]) == json.dumps(
        [f"http://a.test/{n}" for n in range(count)]
    )
    seen: list[int] = []

    def once(tally: Tally) -> bool:
        seen.append(tally.looked)
        return False

    assert (await take_back(operated, watch=once)).is_cut
    assert seen == [pending.ROWS_PER_CALL]
    assert (await take_back(operated)).words == {"BACK": count - pending.ROWS_PER_CALL}
    await operated.check()
    for held in await lab.take():
        await lab.end(held, Outcome.DONE)


async def test_nobody_counts_as_dead_right_after_a_jump_of_the_clock(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    lab = operated.labs[0]
    await operated.offer(["http://a.test/"])
    await operated.take("w1")
    await beat(operated, "w1")
    now_ms = int(await lab.client.hget(lab.keys.state, "wall_ms"))
    await lab.client.hset(lab.keys.workers, "w1", f"{now_ms - 3_600_000} 8 {{}}")
    assert [row.is_alive for row in await listed(operated)] == [False]
    await lab.frontier.control(gap_at=now_ms)
    assert [row.is_alive for row in await listed(operated)] == [True]
    await lab.frontier.control(gap_at=now_ms - 60_000)
    assert [row.is_alive for row in await listed(operated)] == [False]
