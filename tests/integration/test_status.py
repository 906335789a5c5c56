"""The status of a crawl: right figures, the same few reads whatever its size, and names where names help."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops.status import ALIVE_MS, HOSTS_NAMED_MAX, condition, crawl_names, read_status, status_lines
from streamcrawl.rules.task import Outcome
from streamcrawl.store.frontier import Beat

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab
    from tests.integration.snapshot import Lab

HOST = "http://a.example"
SINK = "out-1"


async def test_figures_are_those_of_the_crawl(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK], host_concurrency=5)
    await lab.offer(*(f"{HOST}/{n}" for n in range(10)))
    held = await lab.take()
    await lab.end(held[0], items=(SINK, "{}"))
    await lab.end(held[1], Outcome.RETRY)
    await lab.end(held[2], Outcome.DROPPED)
    await lab.end(held[3], Outcome.DEAD)
    await lab.frontier.beat([Beat("w1", "stream:fetch", 8, '{"pid":7}')], lease_ms=30_000)
    await lab.frontier.control(crawl=json.dumps({"sinks": {SINK: "/data/pages.jsonl"}}))

    status = await read_status(lab.client, crawl_name)
    assert {state: status.page(state) for state in ("created", "queued", "streamed", "delayed", "done", "dead")} == {
        "created": 10, "queued": 5, "streamed": 1, "delayed": 1, "done": 1, "dead": 1,
    }  # fmt: skip
    assert status.by_reason("dead") == {"http": 1}
    assert status.by_reason("dropped") == {"robots": 1}
    assert (status.streamed, status.pending, status.hosts_scheduled, status.seen, status.slots) == (1, 1, 1, 10, 8)
    assert status.dead_letters == 1
    assert status.newest_dead[0].url == held[3].task.url
    assert status.newest_dead[0].reason == "http"
    (worker,) = status.workers
    assert (worker.consumer, worker.slots) == ("w1", 8)
    assert 0 <= worker.beat_age_ms < 5000
    (sink,) = status.sinks
    assert (sink.path, sink.waiting, sink.written, sink.offset) == ("/data/pages.jsonl", 1, 0, 0)
    assert status.memory_bytes > 0
    assert condition(status) == "at work"

    text = "\n".join(status_lines(status))
    assert "dropped          1 (robots 1)" in text
    assert "w1: 8 slots" in text
    assert "pid 7" in text
    assert "/data/pages.jsonl: 0 records, 0 bytes, 1 waiting" in text
    document = json.loads(json.dumps(status.as_json()))
    assert document["dead_by_reason"] == {"http": 1}
    assert document["totals"]["page.queued"] == 5


async def test_given_up_hosts_are_named_and_bounded(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(host_concurrency=1)
    count = HOSTS_NAMED_MAX + 5
    await lab.offer(*(f"http://h{n}.example/{page}" for n in range(count) for page in range(3)))
    for one in await lab.take():
        await lab.end(one, Outcome.UNANSWERED)
    await lab.frontier.give_up(after_ms=0, idle_ms=0, limit=10)
    status = await read_status(lab.client, crawl_name)
    assert len(status.given_up) == HOSTS_NAMED_MAX
    assert set(status.given_up) <= {f"http://h{n}.example" for n in range(count)}
    assert status.hosts_giving_up > 0
    assert len(status.newest_dead) == 5


async def test_state_of_the_crawl_in_words(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()

    async def words() -> str:
        return condition(await read_status(lab.client, crawl_name))

    assert await words() == "nothing to do, more seeds may come"
    await lab.frontier.control(closed=1)
    assert await words() == "complete"
    await lab.offer(f"{HOST}/")
    assert await words() == "at rest, no worker is alive"
    await lab.frontier.beat([Beat("w1", "stream:fetch", 1, "{}")], lease_ms=30_000)
    await lab.frontier.control(stopped="MEMORY_FULL", throttled=SINK, paused=1)
    assert await words() == f"paused, stopped (MEMORY_FULL), throttled by {SINK}, at work"
    seconds, _ = await lab.client.time()
    await lab.client.hset(lab.keys.workers, "w1", f"{seconds * 1000 - ALIVE_MS} 1 {{}}")
    await lab.frontier.control(stopped="", throttled="", paused="")
    assert await words() == "at rest, no worker is alive"


async def test_crawl_whose_stream_was_lost_is_still_shown(lab: Lab, crawl_name: str) -> None:
    await lab.offer(f"{HOST}/")
    await lab.client.delete(lab.keys.fetch_stream)
    assert (await read_status(lab.client, crawl_name)).page("queued") == 1
    await lab.frontier.dispatch(1)  # which makes the stream again


async def test_crawl_that_is_none_is_refused(store_client: Redis, crawl_name: str) -> None:
    with pytest.raises(ConfigError, match="there is no crawl"):
        await read_status(store_client, crawl_name)


async def test_crawls_of_a_store_are_listed(lab: Lab, crawl_name: str) -> None:
    await lab.client.set("streamcrawl:{no-hash:0}:state", "")
    names = await crawl_names(lab.client)
    await lab.client.delete("streamcrawl:{no-hash:0}:state")
    assert crawl_name in names
    assert "no-hash" not in names
