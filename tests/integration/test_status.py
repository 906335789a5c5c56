"""The status of a crawl: right figures, the same few reads whatever its size, and names where names help."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops.status import (
    HOSTS_NAMED_MAX,
    HOSTS_SAMPLED,
    LEASE_MS,
    NAMED_MAX,
    WORKERS_NAMED_MAX,
    Brake,
    Status,
    condition,
    read_status,
    status_lines,
)
from streamcrawl.rules.politeness import Refusal
from streamcrawl.rules.task import Outcome
from streamcrawl.rules.urls import split_url
from streamcrawl.settings import Given, make_settings
from streamcrawl.store.frontier import Beat, Wait
from streamcrawl.store.keys import GROUP
from streamcrawl.store.shards import Shards, delete_crawl, open_crawl
from streamcrawl.store.tuning import encode_given
from streamcrawl.work.seeds import Cursor
from tests.integration.snapshot import Lab, fast, links, near

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

HOST = "http://a.example"
SINK = "out-1"
INFO = '{"pid":7,"machine":"m1","role":"fetch","slots":8,"busy":3}'


async def beat(lab: Lab, consumer: str = "w1", slots: int = 8, info: str = INFO) -> None:
    await lab.frontier.beat([Beat(consumer, "stream:fetch", slots, info)], lease_ms=30_000)


def text_of(status: Status) -> str:
    return "\n".join(status_lines(status))


async def wall_ms(lab: Lab) -> int:
    seconds, micros = await lab.client.time()
    return int(seconds * 1000 + micros // 1000)


async def test_figures_are_those_of_the_crawl(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK], host_concurrency=5)
    await lab.offer(*(f"{HOST}/{n}" for n in range(10)))
    held = await lab.take()
    await lab.end(held[0], items=(SINK, "{}"), left_out={"depth": 2, "trap_calendar": 30})
    await lab.end(held[1], Outcome.RETRY, refusal=Refusal.TIMEOUT)
    await lab.end(held[2], Outcome.DROPPED)
    await lab.end(held[3], Outcome.DEAD)
    await beat(lab)
    await lab.frontier.control(crawl=json.dumps({"sinks": {SINK: "/data/pages.jsonl"}}))

    status = await read_status(lab.client, crawl_name)
    assert {state: status.page(state) for state in ("created", "queued", "streamed", "delayed", "done", "dead")} == {
        "created": 10, "queued": 5, "streamed": 1, "delayed": 1, "done": 1, "dead": 1,
    }  # fmt: skip
    assert status.by_reason("dead") == {"http": 1}
    assert status.by_reason("dropped") == {"robots": 1}
    assert status.links_left_out() == {"trap_calendar": 30, "depth": 2}
    assert (status.streamed, status.pending, status.hosts_scheduled, status.seen, status.slots) == (1, 1, 1, 10, 8)
    assert (status.seeds_left, status.version) == (7, 1)
    assert status.dead_letters == 1
    assert status.newest_dead[0].url == held[3].task.url
    assert status.newest_dead[0].reason == "http"
    (worker,) = status.workers
    assert (worker.consumer, worker.slots, worker.busy) == ("w1", 8, 3)
    assert (worker.machine, worker.pid, worker.role) == ("m1", 7, "fetch")
    assert 0 <= worker.beat_age_ms < 5000
    (sink,) = status.sinks
    assert (sink.path, sink.waiting, sink.written, sink.offset) == ("/data/pages.jsonl", 1, 0, 0)
    assert status.memory_bytes > 0
    assert condition(status) == "at work"
    assert status.brakes == []
    assert [one.shard for one in status.shards] == [0]

    text = text_of(status)
    assert "dropped          1 (robots 1)" in text
    assert "w1: fetch, 3 of 8 slots busy, last beat" in text
    assert "on m1, pid 7" in text
    assert f"/data/pages.jsonl ({SINK}): 0 records, 0 bytes, 1 waiting" in text
    assert "seeds            7 not ended, more may come" in text
    assert "pages/s" not in text  # that table is for several shards
    document = json.loads(json.dumps(status.as_json()))
    assert document["dead_by_reason"] == {"http": 1}
    assert document["totals"]["page.queued"] == 5
    assert (document["refusals"], "refusals         1 (timeout 1)" in text) == ({"timeout": 1}, True)
    assert document["links_left_out"] == {"trap_calendar": 30, "depth": 2}
    assert document["pages_per_s"] is None


async def test_pages_that_were_sent_back_to_wait_are_counted_by_reason(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(host_concurrency=5)
    await lab.offer(*(f"{HOST}/{n}" for n in range(3)))
    held = await lab.take()
    for one, reason in zip(held, ("proxy_error", "ip_concurrency", "proxy_error"), strict=True):
        await lab.frontier.hand_back("stream:fetch", [one.id], wait=Wait(0, reason))
    status = await read_status(lab.client, crawl_name)
    assert (status.page("waited"), status.page("queued")) == (3, 3)
    assert "sent back        to wait: 3 (proxy_error 2, ip_concurrency 1)" in text_of(status)
    assert status.as_json()["waited_by_reason"] == {"proxy_error": 2, "ip_concurrency": 1}


async def test_crawl_without_anything_in_it_is_shown(lab: Lab, crawl_name: str) -> None:
    status = await read_status(lab.client, crawl_name)
    assert (status.pages_per_s, status.new_per_s, status.backlog_s) == (None, None, None)
    assert (status.workers, status.feeders, status.top_hosts, status.failing) == ([], [], [], [])
    (stage,) = status.stages
    assert (stage.waiting, stage.pending, stage.oldest_waiting_ms, stage.oldest_pending_ms) == (0, 0, None, None)
    text = text_of(status)
    assert "nothing to do, more seeds may come" in text
    assert "0 waiting, 0 in the hands of workers" in text


# -- rates


async def test_rates_are_absent_until_they_are_known_and_when_nobody_beats(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(host_concurrency=100)
    await lab.offer(*(f"{HOST}/{n}" for n in range(100)))

    async def rates() -> tuple[float | None, float | None, float | None]:
        status = await read_status(lab.client, crawl_name)
        return status.pages_per_s, status.new_per_s, status.backlog_s

    assert await rates() == (None, None, None)  # no sample
    await beat(lab, slots=100)
    assert await rates() == (None, None, None)  # one of this moment
    await lab.let_pass(20_000)
    assert await rates() == (0.0, 0.0, None)  # known, and nothing was done
    await lab.end_all(await lab.take(count=40))
    await lab.offer(f"{HOST}/new")
    done, new, backlog = await rates()
    # Over 20 s, and what this test took until now.
    assert done is not None
    assert new is not None
    assert 1 < done <= 2
    assert new == pytest.approx(done / 40)
    assert backlog == pytest.approx(61 / done)
    assert "40, " in (text := text_of(await read_status(lab.client, crawl_name)))
    assert " new/s" in text
    assert " at this rate" in text

    # Two minutes after the last beat nobody works any more.
    samples = (await lab.client.hget(lab.keys.state, "samples")).decode().split(" ")
    samples[1] = str(int(samples[1]) - 2 * 60_000)
    await lab.client.hset(lab.keys.state, "samples", " ".join(samples))
    assert await rates() == (None, None, None)
    await lab.client.hset(lab.keys.state, "samples", "not a sample")
    assert await rates() == (None, None, None)


async def test_samples_are_ten_seconds_apart_and_few(open_lab: OpenLab) -> None:
    lab = await open_lab()

    async def times() -> list[int]:
        stored: bytes = await lab.client.hget(lab.keys.state, "samples")
        return [int(sample.split(" ")[0]) for sample in stored.decode().split("|")]

    await beat(lab)
    [first] = await times()
    await lab.let_pass(9000)
    await beat(lab)
    assert await times() == [first]
    for count in range(2, 10):
        await lab.let_pass(10_000)
        await beat(lab)
        assert len(await times()) == min(count, 7)
    kept = await times()
    assert kept == sorted(kept, reverse=True)


async def test_rate_is_over_the_last_half_minute(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(host_concurrency=1000)
    await lab.offer(*(f"{HOST}/{n}" for n in range(300)))
    await beat(lab, slots=100)
    # A hundred pages long ago, then three tenths of a page a second.
    await lab.end_all(await lab.take(count=100))
    for _ in range(5):
        await lab.let_pass(10_000)
        await lab.end_all(await lab.take(count=3))
        await beat(lab, slots=100)
    rate = (await read_status(lab.client, crawl_name)).pages_per_s
    assert rate is not None
    assert 0.1 < rate < 0.5  # 115 pages in 50 s would be 2.3


# -- ages


async def test_ages_are_of_the_oldest_that_waits_and_the_oldest_in_hand(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK], host_concurrency=5)
    await lab.offer(*(f"{HOST}/{n}" for n in range(4)))
    await lab.end((await lab.take(count=1))[0], items=(SINK, "{}"))
    await lab.frontier.dispatch(2)
    (held,) = await lab.read(count=1)
    ids = [entry_id.decode() for entry_id, _ in await lab.client.xrange(lab.keys.fetch_stream)]
    assert ids[0] == held.id
    before = await wall_ms(lab)
    status = await read_status(lab.client, crawl_name)
    after = await wall_ms(lab)
    fetch, sink = status.stages
    assert (fetch.stage, fetch.waiting, fetch.pending) == ("fetch", 1, 1)

    def is_age_of(age: int | None, entry_id: str) -> bool:
        then = int(entry_id.partition("-")[0])
        return age is not None and before - then <= age <= after - then

    assert is_age_of(fetch.oldest_pending_ms, ids[0])
    assert is_age_of(fetch.oldest_waiting_ms, ids[1])
    assert (sink.stage, sink.waiting, sink.pending, sink.oldest_pending_ms) == (SINK, 1, 0, None)
    assert sink.oldest_waiting_ms is not None
    assert "1 waiting (oldest 0." in text_of(status)


async def test_clock_that_was_set_back_makes_no_negative_age(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    ahead = await wall_ms(lab) + 3_600_000
    await lab.offer(f"{HOST}/", "http://b.example/", "http://c.example/")
    held = await lab.take(count=1)
    await lab.end(held[0], Outcome.UNANSWERED)
    await lab.frontier.set_host("http://c.example", blocked=1)
    await beat(lab)
    await lab.frontier.control(paused=1, paused_at=ahead)
    await lab.client.hset(lab.keys.workers, "w1", f"{ahead} 8 {INFO}")
    await lab.client.zadd(lab.keys.failing, {HOST: ahead})
    await lab.client.zadd(lab.keys.blocked, {"http://c.example": ahead})
    await lab.client.hset(lab.keys.state, mapping={"samples": f"{ahead} {ahead} 0 0"})
    status = await read_status(lab.client, crawl_name)
    assert status.workers[0].beat_age_ms == 0
    assert (status.failing[0].for_ms, status.blocked[0].for_ms) == (0, 0)
    assert status.pages_per_s is None
    assert "-" not in "".join(line for line in status_lines(status) if "oldest" in line or "beat" in line)
    await lab.frontier.set_host("http://c.example", blocked="")


# -- what holds it up


async def test_brakes_say_why_since_when_and_what_mends_it(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK])
    await lab.offer(f"{HOST}/", f"{HOST}/1")
    now = await wall_ms(lab)
    await lab.frontier.control(
        paused=1, stopped="MEMORY_FULL", throttled=SINK, throttled_at=now - 65_000,
        crawl=json.dumps({"sinks": {SINK: "/data/pages.jsonl"}}),
        settings=encode_given({"pages_max": Given(0, "test")}).decode(),
    )  # fmt: skip
    status = await read_status(lab.client, crawl_name)
    paused, stopped, throttled, budget = status.brakes
    assert (paused.word, paused.reason) == ("PAUSED", f"paused; go on with: streamcrawl resume {crawl_name}")
    assert (stopped.word, stopped.for_ms) == ("MEMORY_FULL", near(0))
    assert f"raise it: streamcrawl settings set {crawl_name} memory-max=SIZE" in stopped.reason
    assert (throttled.word, throttled.for_ms) == ("THROTTLED", near(65_000))
    assert "/data/pages.jsonl: and no writer of an output is alive" in throttled.reason
    assert budget == Brake(
        "BUDGET", f"--max-pages 0 is reached; raise it: streamcrawl settings set {crawl_name} pages_max=N"
    )
    assert "(for 1 min 5 s)" in text_of(status)
    await beat(lab, "s1", 0, '{"role":"sink","busy":3}')
    await lab.frontier.control(throttled=SINK)  # which the beat took down, as nothing waits
    status = await read_status(lab.client, crawl_name)
    assert "more slowly than pages come" in status.brakes[2].reason
    assert "s1: sink, 3 in hand" in text_of(status)
    await lab.frontier.control(paused="", stopped="", throttled="", settings="")
    assert (await read_status(lab.client, crawl_name)).brakes == []


async def test_pause_lasts_from_its_beginning(lab: Lab, crawl_name: str) -> None:
    await lab.frontier.control(paused=1)
    began = await wall_ms(lab) - 100_000
    await lab.client.hset(lab.keys.state, "paused_at", began)
    await lab.frontier.control(paused=1)  # somebody says it again
    (brake,) = (await read_status(lab.client, crawl_name)).brakes
    assert brake.for_ms == near(100_000)


async def test_full_frontier_says_since_when(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(frontier_max=1)
    await lab.offer(f"{HOST}/")
    (held,) = await lab.take()
    await lab.end(held, links=links(*(f"{HOST}/{n}" for n in range(3))))
    (brake,) = (await read_status(lab.client, crawl_name)).brakes
    assert (brake.word, brake.for_ms) == ("FRONTIER_FULL", near(0))


# -- hosts


async def test_given_up_hosts_are_named_and_bounded(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(host_concurrency=1)
    count = HOSTS_NAMED_MAX + 5
    await lab.offer(*(f"http://h{n}.example/{page}" for n in range(count) for page in range(3)))
    for one in await lab.take():
        detail = (one.task.level.value, one.stored, "connect", 60_000, 60_000, 1000)
        await lab.end(one, Outcome.UNANSWERED, detail=detail)
    status = await read_status(lab.client, crawl_name)
    assert (status.hosts_failing, len(status.failing)) == (count, HOSTS_NAMED_MAX)
    assert {(one.reason, one.queued) for one in status.failing} == {("connect", 3)}
    assert all(0 < one.asked_in_ms <= 60_000 for one in status.failing)
    assert re.search(r"\(connect for [\d.]+ m?s, asked again in [\d.]+ m?s\)", text_of(status))
    await lab.let_pass(60_000)
    assert ", asked by one fetch at a time)" in text_of(await read_status(lab.client, crawl_name))
    assert f" and {count - NAMED_MAX} more (host ls)" in text_of(status)
    await lab.frontier.give_up(after_ms=0, idle_ms=0, limit=10)
    status = await read_status(lab.client, crawl_name)
    assert (status.hosts_given_up, len(status.given_up)) == (count, HOSTS_NAMED_MAX)
    assert set(status.given_up) <= {f"http://h{n}.example" for n in range(count)}
    assert status.hosts_giving_up > 0
    assert len(status.newest_dead) == 5
    # They stay given up when nothing is left of their dead letters.
    await lab.frontier.forget([entry_id.decode() for entry_id, _ in await lab.client.xrange(lab.keys.dead)])
    assert (await read_status(lab.client, crawl_name)).hosts_given_up == count


async def test_blocked_hosts_are_named_with_what_they_keep(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    await lab.offer(*(f"{HOST}/{n}" for n in range(1234)))
    await lab.frontier.set_host(HOST, blocked=1)
    await lab.frontier.control(closed=1)
    status = await read_status(lab.client, crawl_name)
    assert status.hosts_blocked == 1
    assert [(one.host, one.queued, one.for_ms) for one in status.blocked] == [(HOST, 1234, near(0))]
    assert f"hosts blocked    1: {HOST} (1,234)" in text_of(status)
    assert condition(status) == "complete but for what blocked hosts keep"
    await lab.frontier.set_host(HOST, blocked="")


async def test_largest_hosts_are_those_of_a_sample(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    count = HOSTS_SAMPLED + 50
    await lab.offer(*(f"http://h{n}.example/" for n in range(count)))
    status = await read_status(lab.client, crawl_name)
    assert (status.hosts_scheduled, status.hosts_sampled) == (count, HOSTS_SAMPLED)
    assert "of a sample of 200 hosts: " in text_of(status)


async def test_largest_of_few_hosts_are_named_in_order(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    await lab.offer(*(f"http://h{n}.example/{page}" for n in range(3) for page in range(10 * n + 1)))
    status = await read_status(lab.client, crawl_name)
    assert [(one.host, one.queued) for one in status.top_hosts] == [
        ("http://h2.example", 21), ("http://h1.example", 11), ("http://h0.example", 1),
    ]  # fmt: skip


# -- workers and feeders


async def test_workers_that_are_many_or_say_nonsense_are_shown(lab: Lab, crawl_name: str) -> None:
    for n in range(WORKERS_NAMED_MAX):
        await beat(lab, f"w{n:02}", 1, "{}")
    await beat(lab, "x", 2, "no JSON")
    await lab.client.hset(lab.keys.workers, "z", "no row")
    status = await read_status(lab.client, crawl_name)
    assert (len(status.workers), status.slots) == (WORKERS_NAMED_MAX + 1, WORKERS_NAMED_MAX + 2)
    assert (status.workers[-1].busy, status.workers[-1].machine) == (None, "")
    assert "and 1 more workers; --json has all" in text_of(status)


async def test_slots_that_adapt_are_shown_with_their_limits(lab: Lab, crawl_name: str) -> None:
    about = {"pid": 7, "machine": "m1", "role": "fetch", "slots": 72, "busy": 3, "slots_least": 16, "slots_most": 256}
    await beat(lab, slots=72, info=json.dumps(about))
    status = await read_status(lab.client, crawl_name)
    (worker,) = status.workers
    assert (worker.slots, worker.slots_least, worker.slots_most) == (72, 16, 256)
    assert "w1: fetch, 3 of 72 slots busy (16 to 256), last beat" in "\n".join(status_lines(status))


async def test_worker_of_a_program_is_shown_with_its_stage(lab: Lab, crawl_name: str) -> None:
    about = {"pid": 7, "machine": "m1", "role": "stage", "stage": "compare", "slots": 8, "busy": 3}
    await beat(lab, slots=8, info=json.dumps(about))
    assert "w1: stage compare, 3 of 8 slots busy" in "\n".join(status_lines(await read_status(lab.client, crawl_name)))


async def test_feeders_are_shown_with_cursor_and_last_sign(lab: Lab, crawl_name: str) -> None:
    for feeder, cursor in (("alive", "line 7"), ("dead", "")):
        await lab.frontier.feed(feeder, "begin", lease_ms=LEASE_MS, cursor=cursor)
    left_at = Cursor(source="urls.txt", line=9, offset=200, new=7, known=1, refused=1)
    await lab.frontier.feed("left", "leave", lease_ms=LEASE_MS, cursor=left_at.encode())
    now = await lab.now()
    await lab.client.hset(lab.keys.feeders, "dead", f"{now - 10_000} ")
    await lab.client.hset(lab.keys.feeders, "odd", "x")
    alive, dead, left, odd = (await read_status(lab.client, crawl_name)).feeders
    assert (alive.cursor, alive.is_alive, alive.sign_age_ms) == ("line 7", True, near(0))
    assert (dead.cursor, dead.is_alive, dead.sign_age_ms) == ("", False, near(LEASE_MS + 10_000))
    assert (left.cursor, left.is_alive, left.sign_age_ms) == (left_at.encode(), False, None)
    assert odd.is_alive is False
    text = text_of(await read_status(lab.client, crawl_name))
    assert "alive: at line 7, last sign 0." in text
    assert "left: at urls.txt line 9 (7 new, 1 known, 1 refused), left before it was done" in text
    assert "it is dead" in text


# -- words


async def test_state_of_the_crawl_in_words(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()

    async def words() -> str:
        return condition(await read_status(lab.client, crawl_name))

    assert await words() == "nothing to do, more seeds may come"
    await lab.frontier.control(closed=1)
    assert await words() == "complete"
    await lab.offer(f"{HOST}/")
    assert await words() == "at rest, no worker is alive"
    await beat(lab)
    await lab.frontier.control(stopped="MEMORY_FULL", throttled=SINK, paused=1)
    assert await words() == f"paused, stopped (MEMORY_FULL), throttled by {SINK}, at work"
    await lab.client.hset(lab.keys.workers, "w1", f"{await wall_ms(lab) - 3 * LEASE_MS} 1 {{}}")
    await lab.frontier.control(stopped="", throttled="", paused="")
    assert await words() == "at rest, no worker is alive"
    # A longer lease is a longer time to live.
    await lab.frontier.control(settings=encode_given({"lease_ms": Given(600_000, "test")}).decode())
    assert await words() == "at work"


async def test_memory_is_shown_against_its_mark(lab: Lab, crawl_name: str) -> None:
    status = await read_status(lab.client, crawl_name)
    assert (status.memory_max_bytes, status.memory_mark_bytes) == (0, 0)
    await lab.frontier.control(settings=encode_given({"memory_max_bytes": Given(1_000_000_000, "test")}).decode())
    status = await read_status(lab.client, crawl_name)
    assert (status.memory_max_bytes, status.memory_mark_bytes) == (1_000_000_000, 800_000_000)
    assert "MB of 1,000 MB (" in text_of(status)
    assert "nothing new is dispatched above 800 MB" in text_of(status)
    await lab.frontier.control(settings="not JSON")
    assert (await read_status(lab.client, crawl_name)).memory_max_bytes == 0


async def test_crawl_whose_stream_was_lost_is_still_shown(lab: Lab, crawl_name: str) -> None:
    await lab.offer(f"{HOST}/")
    await lab.client.delete(lab.keys.fetch_stream)
    assert (await read_status(lab.client, crawl_name)).page("queued") == 1
    await lab.client.xadd(lab.keys.fetch_stream, {"host": HOST})
    status = await read_status(lab.client, crawl_name)
    assert (status.stages[0].waiting, status.stages[0].oldest_waiting_ms) == (1, near(0))
    await lab.client.delete(lab.keys.fetch_stream)
    await lab.frontier.dispatch(1)  # which makes the stream again


async def test_crawl_that_is_none_is_refused(store_client: Redis, crawl_name: str) -> None:
    with pytest.raises(ConfigError, match="there is no crawl"):
        await read_status(store_client, crawl_name)


# -- shards


async def sharded(client: Redis, name: str) -> tuple[Shards, list[Lab]]:
    crawl, _ = await open_crawl(client, make_settings(**fast(name, shards=3)), sinks=[SINK])
    return crawl, [Lab(frontier) for frontier in crawl]


async def test_shards_are_summed_up_and_listed(store_client: Redis, crawl_name: str) -> None:
    crawl, labs = await sharded(store_client, crawl_name)
    for n in range(30):
        url = f"http://h{n}.example{n}.test/"
        await labs[crawl.index_of(split_url(url)[0])].offer(url)
    for lab in labs:
        await beat(lab, slots=3)  # 8 over three shards
        held = await lab.take()
        await lab.end(held[0], items=(SINK, "{}"))
        await lab.end(held[1], Outcome.DEAD)
        await lab.end(held[2], Outcome.UNANSWERED)
    await labs[1].frontier.control(stopped="FRONTIER_FULL")
    await labs[2].frontier.control(throttled=SINK)

    status = await read_status(store_client, crawl_name)
    assert (status.page("created"), status.page("done"), status.dead_letters, status.seen) == (30, 3, 3, 30)
    assert (status.hosts_failing, len(status.failing), len(status.newest_dead)) == (3, 3, 3)
    assert [(one.consumer, one.slots) for one in status.workers] == [("w1", 8)]
    assert status.slots == 8
    assert [(one.stage, one.waiting) for one in status.stages][1] == (SINK, 3)
    assert (status.stopped, status.throttled) == ("FRONTIER_FULL", SINK)
    assert [brake.word for brake in status.brakes] == ["FRONTIER_FULL", "THROTTLED"]
    assert [one.shard for one in status.shards] == [0, 1, 2]
    assert sum(one.streamed for one in status.shards) == status.streamed
    assert [one.stopped for one in status.shards] == ["", "FRONTIER_FULL", ""]
    *_, heads, first, second, third = status_lines(status)
    assert heads.split() == [
        "shard", "done", "queued", "stream", "in", "hand", "delayed", "dead", "hosts", "seen", "pages/s", "settings",
    ]  # fmt: skip
    assert first.split()[:2] == ["0", "1"]
    assert second.endswith("FRONTIER_FULL")
    assert third.endswith(f"throttled by {SINK}")
    await delete_crawl(store_client, crawl_name)


async def test_rate_of_one_shard_is_no_rate_of_the_crawl(store_client: Redis, crawl_name: str) -> None:
    _, labs = await sharded(store_client, crawl_name)
    for lab in labs[:2]:
        await beat(lab)
        await lab.let_pass(20_000)
    status = await read_status(store_client, crawl_name)
    assert status.pages_per_s is None
    assert [one.pages_per_s for one in status.shards] == [0.0, 0.0, None]
    await beat(labs[2])
    await labs[2].let_pass(20_000)
    assert (await read_status(store_client, crawl_name)).pages_per_s == 0.0
    await delete_crawl(store_client, crawl_name)


async def test_a_look_takes_as_many_commands_for_many_tasks_as_for_few(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(slots=5000)
    counts = []
    for size in (2 * HOSTS_SAMPLED, 5 * HOSTS_SAMPLED):
        await lab.offer(*(f"http://h{size}-{n}.example/{page}" for n in range(size) for page in range(2)))
        await lab.frontier.dispatch(100)
        await lab.client.xreadgroup(GROUP, "w1", {lab.keys.fetch_stream: ">"}, count=10)
        before = (await lab.client.info("stats"))["total_commands_processed"]
        await read_status(lab.client, crawl_name)
        counts.append((await lab.client.info("stats"))["total_commands_processed"] - before)
    assert counts[0] == counts[1] < 260
    await delete_crawl(lab.client, crawl_name)  # recounting all of it would take longer
