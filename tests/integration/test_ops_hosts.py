"""Hosts: what is said of one and why, which ones stand out, and what an operator's word does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops.explain import explain, explanation_lines
from streamcrawl.ops.hosts import (
    HostPage,
    add_dead,
    delay_words,
    host_lines,
    host_list_lines,
    host_page,
    hosts_to_set,
    known_hosts,
    largest_hosts,
    list_hosts,
)
from streamcrawl.ops.status import read_status, status_lines
from streamcrawl.rules.politeness import Refusal
from streamcrawl.rules.task import Outcome
from tests.integration.drive import OUTPUT, crawling
from tests.integration.operated import SHARDS, Operated
from tests.integration.snapshot import urls

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.redis_server import RedisServer

A = "http://a.test"


async def standing(operated: Operated, host: str = A) -> str:
    return (await host_page(operated.crawl, host)).standing()


async def shown(operated: Operated, host: str = A) -> str:
    page = await host_page(operated.crawl, host)
    await add_dead(operated.crawl, page)
    assert page.as_json()["standing"] == page.standing()
    return "\n".join(host_lines(page))


async def test_host_may_be_typed_in_several_ways(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=2)
    await operated.offer(["http://a.test/", "https://a.test/", "http://b.test:81/x", "http://[::1]:8080/"])
    crawl = operated.crawl
    assert await known_hosts(crawl, "a.test") == ["https://a.test", "http://a.test"]
    assert await known_hosts(crawl, "http://A.test/some/page?q") == ["http://a.test"]
    assert await known_hosts(crawl, "b.test:81") == ["http://b.test:81"]
    assert await known_hosts(crawl, "[::1]:8080") == ["http://[::1]:8080"]
    assert await hosts_to_set(crawl, "new.test") == ["https://new.test", "http://new.test"]
    with pytest.raises(ConfigError, match=r"knows no host https://b\.test or http://b\.test"):
        await known_hosts(crawl, "b.test")
    with pytest.raises(ConfigError, match="is no host"):
        await known_hosts(crawl, "ftp://a.test/")


async def test_why_a_host_is_or_is_not_fetched(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, delay_ms=60_000, pages_per_host_max=3)
    lab = operated.labs[0]
    assert await standing(operated) == "not known to this crawl"
    await operated.offer(urls("a.test", 9))
    assert (await standing(operated)).startswith("due since ")
    await operated.crawl.control(paused=1)
    assert (await standing(operated)).endswith("; but the crawl is paused")
    await operated.crawl.control(paused="", stopped="MEMORY_FULL")
    assert (await standing(operated)).endswith("; but the crawl is stopped (MEMORY_FULL)")
    await operated.crawl.control(stopped="", throttled="out")
    assert (await standing(operated)).endswith("; but dispatch waits for the output out")
    await operated.crawl.control(throttled="")
    (held,) = await lab.take()
    assert await standing(operated) == "at its cap: 1 under way of 1 at a time"
    await lab.end(held)
    assert (await standing(operated)).startswith(("due in 59.", "due in 60.0 s"))
    await lab.frontier.set_host(A, cap=7)
    await lab.let_pass(60_001)
    await lab.take()
    await lab.let_pass(60_001)
    await lab.take()
    assert await standing(operated) == "its budget of 3 pages is used up by what is under way"
    page = await host_page(operated.crawl, A)
    assert [entry.consumer for entry in page.in_flight] == ["w1", "w1"]
    assert "in the hands of w1" in await shown(operated)
    assert "2 of 7 at a time (set for it)" in await shown(operated)
    for held in [lab.held(*row) for row in await lab.client.xrange(lab.keys.fetch_stream)]:
        await lab.end(held)
    assert (await standing(operated)).startswith("over its budget of 3 pages")


async def test_used_up_page_budget_is_named(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, pages_max=1)
    await operated.offer(urls("a.test", 2))
    for _, held in await operated.take():
        await operated.labs[0].end(held)
    assert (await standing(operated)).endswith("; but the page budget is used up (--max-pages)")


async def test_blocked_host_waits_and_is_fetched_when_unblocked(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    lab = operated.labs[0]
    await operated.offer(urls("a.test", 2))
    await lab.frontier.set_host(A, blocked=1)
    assert (await standing(operated)).startswith("blocked by an operator since 20")
    assert await operated.take() == []
    await operated.check()
    await lab.frontier.set_host(A, blocked="")
    assert len(await operated.take()) == 1
    await operated.check()


async def test_failing_and_given_up_hosts_say_so(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    lab = operated.labs[0]
    await operated.offer(urls("a.test", 2))
    for _ in range(2):
        await lab.let_pass(120_000)
        (held,) = await lab.take()
        await lab.end(held, Outcome.UNANSWERED)
    assert "as it failed 2 times in a row" in await standing(operated)
    assert "failing       2 times in a row, for 2 min; last: connect" in await shown(operated)
    assert "circuit       open: it is left alone, then asked by one fetch at a time" in await shown(operated)
    await lab.let_pass(120_000)
    assert "circuit       half-open: one fetch at a time until it answers" in await shown(operated)
    found = await list_hosts(operated.crawl, 10)
    assert [(row.host, row.what) for row in found.failing] == [(A, "connect for 4 min")]
    await lab.frontier.give_up(after_ms=0, idle_ms=0, limit=10)
    assert "given up (host_unreachable)" in await standing(operated)
    assert "host_unreachable 2 (of the newest 2)" in await shown(operated)
    assert [(row.host, row.what) for row in (await list_hosts(operated.crawl, 10)).given_up] == [
        (A, "host_unreachable")
    ]
    await lab.frontier.set_host(A, chance=1)
    assert (await list_hosts(operated.crawl, 10)).given_up == []
    assert await standing(operated) == "nothing of it is queued"


async def test_delay_in_force_and_its_reason_are_shown(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, delay_ms=1000, delay_max_ms=60_000)
    lab = operated.labs[0]
    await operated.offer(urls("a.test", 9))

    async def shown_delay(**values: Any) -> tuple[str, str, str]:
        await lab.let_pass(120_000)
        (held,) = await lab.take()
        await lab.end(held, **values)
        page = await host_page(operated.crawl, A)
        (row,) = (await list_hosts(operated.crawl, 10)).largest
        line = next(line for line in host_list_lines(await list_hosts(operated.crawl, 10)) if line.startswith(f"  {A}"))
        assert page.as_json()["delay_ms"] == row.delay_ms
        assert page.as_json()["delay_reason"] == row.delay_reason
        explained = explanation_lines(await explain(operated.crawl, crawl_name, f"{A}/8"))
        words, _, _ = delay_words(page).partition("last doubled ")  # how long ago goes on growing
        assert any(line.startswith(f"  delay       {words}") for line in explained)
        return delay_words(page), row.delay_reason, line.partition(", delay ")[2]

    assert await shown_delay(took_ms=100) == ("1.0 s", "crawl", "")
    assert await shown_delay(took_ms=4500) == (
        "2.0 s, as its answers take long", "response_time", "2.0 s (response_time)"
    )  # fmt: skip
    words, *listed = await shown_delay(took_ms=10, refusal=Refusal.TOO_MANY)
    assert listed == ["throttled", "4.0 s (throttled)"]
    assert re.match(r"4\.0 s, as it was asked too often: last doubled [\d.]+ m?s ago \(http_429\), less with", words)
    document = (await host_page(operated.crawl, A)).as_json()
    assert (document["throttled_by"], document["circuit"]) == ("http_429", "closed")
    await lab.client.hset(lab.keys.host(A), "delay", 5000)
    assert await shown_delay() == ("5.0 s, its Crawl-delay is 5.0 s", "crawl_delay", "5.0 s (crawl_delay)")
    await lab.frontier.set_host(A, delay=50)
    assert await shown_delay() == ("50 ms, set for it", "operator", "50 ms (operator)")


async def test_robots_txt_of_a_host_in_words(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, obey_robots=True)
    lab = operated.labs[0]
    await operated.offer([*urls("a.test", 2), *urls("b.test", 1)])

    async def robots(host: str = A) -> str:
        return (await host_page(operated.crawl, host)).robots

    assert await robots() == "not known: asked for with the next page"
    held = {one.host: one for _, one in await operated.take()}
    assert await robots() == "being asked for"
    assert await standing(operated) == "at its cap: 1 under way of 1 at a time"
    text = '{"verdict":"parse","status":200,"delay_ms":2000}\nUser-agent: *\nCrawl-delay: 2\n'
    await lab.end(held[A], detail=(text, 3_590_000, 2000))
    await lab.end(held["http://b.test"], detail=('{"verdict":"allow","status":404,"delay_ms":0}\n', 1000, 0))
    assert await robots() == "answer 200, 29 bytes, Crawl-delay 2.0 s; asked for again in 59 min"
    assert "2.0 s, its Crawl-delay is 2.0 s" in await shown(operated)
    await lab.frontier.set_host(A, delay=5000)
    assert "5.0 s, set for it" in await shown(operated)
    await lab.let_pass(2000)
    assert await robots("http://b.test") == (
        "none (answer 404), so everything is allowed; asked for again with the next page"
    )
    await lab.client.set(lab.keys.robots(A), "damaged", px=60_000)
    assert "cannot be read" in await robots()


@pytest.mark.parametrize("shards", SHARDS)
async def test_hosts_that_stand_out_are_listed(redis_client: Redis, crawl_name: str, shards: int) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=shards)
    assert host_list_lines(await list_hosts(operated.crawl, 5)) == [
        "no host is blocked, failing, demoted or given up, and none has anything queued"
    ]
    for n in range(1, 9):
        await operated.offer(urls(f"h{n}.test", n))
    await operated.lab_of("http://h3.test").frontier.set_host("http://h3.test", blocked=1)
    rows, looked, scheduled = await largest_hosts(operated.crawl, 3)
    assert [(row.host, row.queued) for row in rows] == [(f"http://h{n}.test", n) for n in (8, 7, 6)]
    assert (looked, scheduled) == (8, 7)
    found = await list_hosts(operated.crawl, 3)
    assert [(row.host, row.queued) for row in found.blocked] == [("http://h3.test", 3)]
    assert (found.blocked_count, found.failing_count) == (1, 0)
    lines = host_list_lines(found)
    assert lines[0] == "blocked (1):"
    assert "with most queued (of 8 looked at, 7 are scheduled):" in lines
    await operated.take()  # hosts at their cap are not in the schedule, and are looked at all the same
    assert [row.queued for row in (await largest_hosts(operated.crawl, 2))[0]] == [7, 6]


async def test_host_with_nothing_to_its_name(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    page: HostPage = await host_page(operated.crawl, "http://never.test")
    await add_dead(operated.crawl, page)
    assert host_lines(page)[1] == "  standing      not known to this crawl"
    assert page.as_json()["known"] is False


async def test_crawl_ends_when_only_blocked_hosts_have_something_left(
    redis_server: RedisServer, redis_client: Redis, crawl_name: str, tmp_path: Path
) -> None:
    operated = await Operated.opened(redis_client, crawl_name, sinks=[OUTPUT])
    await operated.offer(urls("a.test", 3))
    await operated.crawl.of(A).set_host(A, blocked=1)
    async with crawling(redis_server.url, crawl_name, [], output=tmp_path / "out.jsonl") as run:
        assert await run.word() == "ENDED"
    await operated.check()
    assert await operated.total("page.queued") == 3
    await operated.crawl.of(A).set_host(A, blocked="")
    assert (await operated.crawl.of(A).finish()).word == "RUNNING"


async def test_what_a_domain_limits_is_said_of_each_of_its_hosts(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(
        redis_client, crawl_name, shards=3, politeness_by="domain", delay_ms=1000, delay_max_ms=60_000
    )
    a, b, c = "http://a.one.com", "http://b.one.com", "http://c.two.com"
    await operated.offer([*urls("a.one.com", 3), *urls("b.one.com", 2), *urls("c.two.com", 2)])
    lab = operated.labs[operated.crawl.index_of(a)]
    assert "waits for its turn among the hosts of one.com" in await standing(operated, b)
    held = next(held for _, held in await operated.take() if held.host != c)
    busy, idle = (a, b) if held.host == a else (b, a)
    assert await standing(operated, idle) == (
        "its domain is at its cap: 1 under way of 1 at a time, 0 of them its own; all hosts of one.com take turns"
    )
    assert "1; of its domain 1 of 1 at a time" in await shown(operated, busy)
    assert (await host_page(operated.crawl, idle)).as_json()["domain_in_flight"] == 1

    await lab.end(held, refusal=Refusal.TOO_MANY, took_ms=5)
    page = await host_page(operated.crawl, idle)
    assert (page.delay_ms, page.as_json()["delay_reason"], page.as_json()["domain"]) == (2000, "throttled", "one.com")
    assert "last doubled" in delay_words(page)
    assert (await standing(operated, idle)).startswith("due in ")
    assert "domain        one.com: its hosts take turns" in await shown(operated, idle)

    rows, looked, scheduled = await largest_hosts(operated.crawl, 9)
    assert {row.host for row in rows} == {a, b, c}
    assert looked == 3
    assert scheduled == 1  # the other is at its cap
    assert "domains scheduled  1" in "\n".join(status_lines(await read_status(redis_client, crawl_name)))

    # The domain as a whole does not answer.
    for n in range(4):
        await lab.let_pass(200_000)
        await lab.frontier.due()
        [held] = await lab.take()
        task = (held.task.level.value, held.stored, "timeout", 1000, 60_000, 1000, "retry", 0, held.stored, "hung")
        await lab.end(held, Outcome.UNANSWERED, detail=task)
        assert (await host_page(operated.crawl, idle)).fields.failing == ("timeout" if n >= 2 else "")
    status = await read_status(redis_client, crawl_name)
    assert status.failing
    assert status.failing[0].reason == "timeout, as all of one.com"
    assert status.failing[0].asked_in_ms > 0
    found = await list_hosts(operated.crawl, 9)
    assert {row.host for row in found.failing} <= {a, b}
    assert "one.com" in "\n".join(explanation_lines(await explain(operated.crawl, crawl_name, f"{idle}/0")))
