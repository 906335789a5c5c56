"""What the exporter says of crawls in a real Redis: right figures, bounded series and bounded reads, nothing stale."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from prometheus_client import generate_latest

from streamcrawl import TaskQueue
from streamcrawl.ops.exporter import CONSUMERS_MAX, REASONS_MAX, Exporter, _Figures, read_imbalance, scaling
from streamcrawl.ops.status import read_status
from streamcrawl.rules.politeness import Refusal
from streamcrawl.rules.task import Outcome
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Beat
from streamcrawl.store.keys import QueueKeys
from streamcrawl.store.shards import delete_crawl, open_crawl
from tests.integration.snapshot import Lab, fast, links
from tests.metrics import Scrape, check_by_promtool
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from streamcrawl.ops.exporter import Look
    from tests.integration.conftest import OpenLab

HOST = "http://a.example"
SINK = "out-1"


def shown(look: Look) -> Scrape:
    return Scrape.of(generate_latest(_Figures(look, 0)).decode())


async def scraped(client: Redis, name: str) -> Scrape:
    return shown(await Exporter(client, [name]).look())


async def beat(lab: Lab, consumer: str, *, stage: str = "fetch", slots: int = 8, busy: int = 3) -> None:
    info = json.dumps({"pid": 7, "machine": "m1", "role": "x", "slots": slots, "busy": busy, "stage": stage})
    await lab.frontier.beat([Beat(consumer, "stream:fetch", slots, info)], lease_ms=30_000)


async def test_figures_are_those_of_the_crawl(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK], host_concurrency=5)
    await lab.offer(*(f"{HOST}/{n}" for n in range(10)))
    held = await lab.take()
    await lab.end(held[0], items=(SINK, "{}"), left_out={"depth": 2})
    await lab.end(held[1], Outcome.RETRY, refusal=Refusal.TIMEOUT)
    await lab.end(held[2], Outcome.DROPPED)
    await lab.end(held[3], Outcome.DEAD)
    await beat(lab, "w1")
    await beat(lab, "w2", stage=SINK, slots=0, busy=0)

    found = await scraped(lab.client, crawl_name)
    page = {"stage": "fetch", "kind": "page"}
    assert {state: found.total(f"tasks_{state}_total", **page) for state in ("created", "done", "retried")} == {
        "created": 10, "done": 1, "retried": 1,
    }  # fmt: skip
    assert found.total("queued_tasks", kind="page") == 5
    assert found.total("delayed_tasks", **page) == 1
    assert found.by("reason", "tasks_dropped_total") == {"robots": 1}
    assert found.by("reason", "dead_letters") == found.by("reason", "tasks_dead_total") == {"http": 1}
    assert found.by("reason", "links_left_out_total") == {"depth": 2}
    assert found.by("reason", "host_refusals_total") == {"timeout": 1}
    assert found.by("stage", "stream_length") == {"fetch": 1, SINK: 1}
    assert found.by("stage", "stream_pending") == {"fetch": 1}
    assert found.by("stage", "stream_waiting") == {SINK: 1}
    assert found.total("stream_oldest_waiting_seconds", stage=SINK) < 60
    assert not found.all("stream_oldest_waiting_seconds", stage="fetch"), "nothing waits: unknown, not 0"
    assert found.by("stage", "stream_high_watermark")["fetch"] == 16
    assert found.by("consumer", "consumer_slots") == {"w1": 8}
    assert found.by("consumer", "consumer_busy") == {"w1": 3}
    assert found.by("stage", "consumers") == {"fetch": 1, SINK: 1}
    assert not found.all("backlog_seconds", stage=SINK), "no rate is known yet"
    assert not found.all("redis_memory_limit_bytes"), "there is no limit"
    assert found.total("seen_fingerprints") == 10
    assert found.total("crawl_complete") == 0
    assert found.total("redis_up") == found.total("exporter_crawls") == 1
    assert found.total("audit_balance") == 0
    assert check_by_promtool(found.text) == ""


async def test_what_holds_a_crawl_back_is_shown_and_its_time_counted(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK], sink_waiting_max=100, host_concurrency=100)
    await lab.offer(*(f"{HOST}/{n}" for n in range(2)))
    held = await lab.take()
    before = await scraped(lab.client, crawl_name)
    assert before.by("reason", "throttled") == before.by("reason", "throttled_seconds_total") == {}

    await lab.end(held[0], items=(SINK, "{}") * 90)
    await lab.frontier.control(paused="1")
    # Since an hour, as if it had been said then.
    an_hour_ago = (await lab.now()) - 3_600_000
    await lab.client.hset(lab.keys.state, mapping={f"held_at:full:{SINK}": an_hour_ago, "held_at:paused": an_hour_ago})
    now = await scraped(lab.client, crawl_name)
    assert now.by("reason", "throttled") == {"paused": 1, f"full:{SINK}": 1}
    assert now.total("throttled_seconds_total", reason="paused") == pytest.approx(3600, abs=60)
    assert now.total("throttled_seconds_total", reason=f"full:{SINK}") == pytest.approx(3600, abs=60)

    await lab.frontier.control(paused="")
    _, writer, offset, _ = await lab.frontier.sink_open(SINK, "s1", lease_ms=30_000)
    rows = await lab.client.xreadgroup("workers", "s1", {lab.keys.sink_stream(SINK): ">"}, count=90)
    ids = [entry_id.decode() for entry_id, _ in rows[0][1]]
    size = sum(len(fields[b"item"]) for _, fields in rows[0][1])
    await lab.frontier.sink_commit(SINK, writer=writer, expected=offset, offset=offset + 9, entry_ids=ids, size=size)
    after = await scraped(lab.client, crawl_name)
    assert after.by("reason", "throttled") == {}
    for reason in ("paused", f"full:{SINK}"):
        held_s = after.total("throttled_seconds_total", reason=reason)
        assert held_s >= now.total("throttled_seconds_total", reason=reason)
        assert held_s == (await scraped(lab.client, crawl_name)).total("throttled_seconds_total", reason=reason)


async def test_time_in_which_a_crawl_stood_still_by_itself_is_counted(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(frontier_max=1)
    await lab.offer(f"{HOST}/1")
    (task,) = await lab.take()
    await lab.end(task, links=links(f"{HOST}/2", f"{HOST}/3"))
    stopped = await scraped(lab.client, crawl_name)
    assert stopped.by("reason", "throttled") == {"frontier_full": 1}
    await lab.client.hincrby(lab.keys.state, "held_at:frontier_full", -60_000)
    await lab.frontier.control(stopped="")
    await lab.frontier.control(stopped="MEMORY_FULL")
    later = await scraped(lab.client, crawl_name)
    assert later.by("reason", "throttled") == {"memory_full": 1}
    assert later.total("throttled_seconds_total", reason="frontier_full") == pytest.approx(60, abs=30)
    # One word in place of another: the first is over.
    await lab.frontier.control(stopped="FRONTIER_FULL")
    fields = {field.decode() for field in await lab.client.hkeys(lab.keys.state)}
    assert {field for field in fields if field.startswith("held_at:")} == {"held_at:frontier_full"}
    assert "held_ms:memory_full" in fields


async def test_figures_that_do_not_fit_are_told_by_check(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK])
    await lab.offer(f"{HOST}/1", f"{HOST}/2")
    await lab.take()
    status = await read_status(lab.client, crawl_name)
    assert set((await read_imbalance(lab.client, status)).values()) == {0}
    wrong = {"page.created": 3, "page.streamed": 1, f"{SINK}.streamed": 2, "page.dead": 5, "page.delayed": -7}
    for field, amount in wrong.items():
        await lab.client.hincrby(lab.keys.totals, field, amount)
    assert {which: count for which, count in (await read_imbalance(lab.client, status)).items() if count} == {
        ("fetch", "totals"): abs(3 - 1 - 5 + 7),
        ("fetch", "stream"): 1,
        ("fetch", "delayed"): 7,
        ("fetch", "dead"): 5,
        (SINK, "totals"): 2,
        (SINK, "stream"): 2,
    }
    assert (await scraped(lab.client, crawl_name)).total("audit_balance", check="dead") == 5
    for field, amount in wrong.items():
        await lab.client.hincrby(lab.keys.totals, field, -amount)


async def test_deaths_are_counted_on_when_letters_are_sent_again(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(host_concurrency=5)
    await lab.offer(f"{HOST}/1", f"{HOST}/2")
    exporter = Exporter(lab.client, [crawl_name], kept_s=0)
    for task in await lab.take():
        await lab.end(task, Outcome.DEAD)

    async def deaths() -> tuple[float, float]:
        found = shown(await exporter.look())
        return found.total("tasks_dead_total"), sum(found.all("dead_letters").values())

    assert await deaths() == (2, 2)
    letters = [letter_id.decode() for letter_id, _ in await lab.client.xrange(lab.keys.dead)]
    await lab.frontier.forget(letters[:1])
    assert await deaths() == (2, 1)
    await lab.offer(f"{HOST}/3")
    (task,) = await lab.take()
    await lab.end(task, Outcome.DEAD)
    assert await deaths() == (3, 2)


async def test_words_that_handlers_make_up_are_bounded(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    made_up = {f"page.dropped.word_{n:04}": 1 for n in range(REASONS_MAX + 30)}
    await lab.client.hset(lab.keys.totals, mapping={**made_up, "page.dropped.robots": 4, "page.dropped.purged": 2})
    exporter = Exporter(lab.client, [crawl_name], kept_s=0)
    found = shown(await exporter.look()).by("reason", "tasks_dropped_total")
    assert found["other"] == 30
    assert (found["robots"], found["purged"]) == (4, 2)
    assert len(found) == REASONS_MAX + 3
    # One that has a series keeps it, whatever comes before it in the alphabet.
    await lab.client.hset(lab.keys.totals, "page.dropped.aaa", 9)
    again = shown(await exporter.look()).by("reason", "tasks_dropped_total")
    assert again == {**found, "other": 39}
    await lab.client.delete(lab.keys.totals)


async def test_many_hosts_have_as_many_series_and_reads_as_few(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK])
    await beat(lab, "w1")
    seen = []
    for hosts in (range(5), range(5, 5000)):
        urls = [f"http://h{n}.example/" for n in hosts]
        for start in range(0, len(urls), 200):
            await lab.offer(*urls[start : start + 200])
        before = (await lab.client.info("stats"))["total_commands_processed"]
        found = await scraped(lab.client, crawl_name)
        commands = (await lab.client.info("stats"))["total_commands_processed"] - before
        assert found.total("due_hosts") == hosts.stop
        # Those of a rate come once it is known, a second after the first beat.
        rates = {"stage_rate", "backlog_seconds", "queued_seconds"}
        seen.append(({series for series in found.series() if series[0] not in rates}, commands))
    few, many = seen
    assert few[0] == many[0]
    assert many[1] - few[1] <= 300, "what is asked of a sample of hosts"
    await delete_crawl(lab.client, crawl_name)  # other tests recount crawls of this size


async def test_very_many_workers_are_shown_together(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    for n in range(CONSUMERS_MAX + 5):
        await beat(lab, f"w{n:03}", slots=2, busy=1)
    found = await scraped(lab.client, crawl_name)
    slots = found.by("consumer", "consumer_slots")
    assert (len(slots), slots["other"], slots["w000"]) == (CONSUMERS_MAX + 1, 10, 2)
    assert found.total("consumer_busy") == found.total("consumers") == CONSUMERS_MAX + 5


async def test_two_who_scrape_at_once_cost_one_look(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    exporter = Exporter(lab.client, [crawl_name], kept_s=600)
    first, second = await asyncio.gather(exporter.look(), exporter.look())
    assert first is second is await exporter.look()


async def test_crawls_come_and_go(store_client: Redis, crawl_name: str) -> None:
    exporter = Exporter(store_client, kept_s=0)
    await open_crawl(store_client, make_settings(**fast(crawl_name)), sinks=[])
    there = {crawl.status.name for crawl in (await exporter.look()).crawls}
    assert crawl_name in there
    await delete_crawl(store_client, crawl_name)
    assert {crawl.status.name for crawl in (await exporter.look()).crawls} == there - {crawl_name}
    # One that is named and not there is none, and no fault.
    assert (await Exporter(store_client, [crawl_name]).look()).crawls == []


async def test_crawl_that_cannot_be_read_does_not_hide_the_others(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    await lab.client.hset(f"streamcrawl:{{{crawl_name}-bad:0}}:state", mapping={"epoch": "e", "identity": "{}"})
    await lab.client.set(f"streamcrawl:{{{crawl_name}-bad:0}}:totals", "no hash")
    exporter = Exporter(lab.client, [f"{crawl_name}-bad", crawl_name])
    look = await exporter.look()
    assert look.error == ""
    assert [crawl.status.name for crawl in look.crawls] == [crawl_name]
    await lab.client.delete(*(f"streamcrawl:{{{crawl_name}-bad:0}}:{key}" for key in ("state", "totals")))


async def test_nothing_stale_is_shown_while_redis_is_away(crawl_name: str) -> None:
    with RedisServer() as server:
        client = connect(server.url)
        try:
            await Lab.opened(client, name=crawl_name)
            exporter = Exporter(client, kept_s=0)
            assert shown(await exporter.look()).total("redis_up") == 1
            server.stop()
            away = shown(await exporter.look())
            assert away.total("redis_up") == 0
            assert {name for name, _ in away.samples} == {
                "redis_up", "exporter_scrape_seconds", "exporter_failed_reads_total",
            }  # fmt: skip
            assert scaling(await exporter.look(), f"{crawl_name}/fetch", {}).status == 503
        finally:
            await client.aclose()


async def test_queues_are_shown_with_every_place_an_item_may_be_in(store_client: Redis, crawl_name: str) -> None:
    async with TaskQueue[int](crawl_name, store_client, levels=2, maxsize=100, lease_s=600) as queue:
        await queue.put_many(range(6))
        await queue.put(7, priority=1)
        await queue.put(8, delay_s=600, id="eight")
        await queue.put(8, delay_s=600, id="eight")
        await queue.task_done(await queue.get())
        await queue.dead(await queue.get(), "no")
        await queue.retry(await queue.get(), after_s=600)
        held = await queue.get()

        exporter = Exporter(store_client, kept_s=0)
        found = shown(await exporter.look())
        own = {"queue": crawl_name}
        assert sum(found.by("level", "queue_waiting", **own).values()) == 3
        assert sum(found.by("level", "queue_out", **own).values()) == 1
        assert set(map(len, (found.all(f"queue_{name}", **own) for name in ("waiting", "out")))) == {2}
        assert found.all("queue_oldest_seconds", **own)
        values = ("delayed", "dead_letters", "members", "maxsize", "closed", "balance")
        assert [found.total(f"queue_{name}", **own) for name in values] == [2, 1, 1, 100, 0, 0]
        counters = ("created", "done", "retried", "crashed", "repeated")
        assert [found.total(f"queue_items_{word}_total", **own) for word in counters] == [8, 1, 1, 0, 1]
        assert found.total("exporter_queues") >= 1
        assert check_by_promtool(found.text) == ""
        # Who names crawls sees no queues; one that cannot be read hides no other.
        named = shown(await Exporter(store_client, [crawl_name]).look())
        assert not named.all("queue_delayed")
        await queue.task_done(held)
        totals = QueueKeys(crawl_name).totals
        await store_client.hincrby(totals, "done", 3)
        assert shown(await exporter.look()).total("queue_balance", **own) == 3
        await store_client.hset(totals, "done", "many")
        broken = shown(await exporter.look())
        assert (broken.total("redis_up"), broken.all("queue_delayed", **own)) == (1, {})
        await store_client.hset(totals, "done", 2)
        await queue.delete()
    assert not shown(await exporter.look()).all("queue_delayed", **own)


async def test_autoscalers_are_told_what_a_stage_has_to_do(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab(sinks=[SINK])
    urls = [f"http://h{n}.example/" for n in range(40)]
    await lab.offer(*urls)
    await beat(lab, "w1")

    async def asked(path: str, **query: str) -> tuple[int, dict[str, object]]:
        reply = scaling(await Exporter(lab.client, [crawl_name]).look(), path, query)
        return reply.status, json.loads(reply.text)

    status, said = await asked(f"{crawl_name}/fetch")
    assert (status, said) == (
        200, {"waiting": 0, "pending": 0, "due": 40, "left": 40, "consumers": 1, "desired": 1},
    )  # fmt: skip
    assert (await asked(f"{crawl_name}/{SINK}"))[1] == {
        "waiting": 0, "pending": 0, "due": 0, "left": 0, "consumers": 0, "desired": 0, "backlog_seconds": 0.0,
    }  # fmt: skip
    unknown = {f"{crawl_name}/parse": "no stage 'parse'; it has: fetch, out-1", "none/fetch": "no crawl 'none'"}
    for path, words in unknown.items():
        status, said = await asked(path)
        assert status == 404
        assert words in str(said["error"])
    for wrong in ("0", "soon", "nan", "inf"):
        assert (await asked(f"{crawl_name}/fetch", target_seconds=wrong))[0] == 400


async def test_each_retained_log_is_shown_with_what_went_before_its_time(open_lab: OpenLab, crawl_name: str) -> None:
    lab = await open_lab()
    row = b'{"one":{"from":["page"],"logs":["page"]}}'
    await lab.frontier.flow(["one"], row, {"page": 3_600_000, "fetched.parse": 0})
    await lab.offer(f"{HOST}/")
    [held] = await lab.take()
    assert await lab.end(held, items=("log:page", '1["int",1,0]') * 3, url=f"{HOST}/") == "DONE"
    await lab.frontier.control(log_bytes=200)
    await lab.frontier.trim_logs()
    plan = b'{"log":"page","target":"one","first":"-","last":"+"}'
    await lab.frontier.plan_replay("a", plan)
    await lab.frontier.copy_replay("a")
    found = await scraped(lab.client, crawl_name)
    assert found.by("log", "log_entries") == {"page": 2}, "one to which nothing was ever written is left out"
    assert found.by("log", "log_trimmed_total") == {"page": 1}
    assert found.by("log", "log_bytes") == {"page": 2 * (11 + len(f"{HOST}/") + 64)}
    assert 0 <= found.total("log_oldest_seconds", log="page") < 600
    assert found.by("stage", "tasks_copied_total") == {"one": 2}
