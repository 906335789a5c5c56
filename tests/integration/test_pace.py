"""The delay that a host bears, learnt from its answers (_pace.lua): the scripts themselves, moved by Hypothesis."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamcrawl.ops.hosts import DelayReason, host_page
from streamcrawl.rules.politeness import Refusal
from streamcrawl.rules.task import Outcome, encode_task
from streamcrawl.settings import Settings
from streamcrawl.store.connection import connect
from streamcrawl.store.shards import delete_crawl, join_crawl
from tests.integration.snapshot import FETCH_STREAM, Held, Lab, again, fast, urls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab
    from tests.redis_server import RedisServer

A, B = "http://a.test", "http://b.test"
LONG_MS: Final = 600_000
"""Longer than any wait of these hosts."""
FLOOR_MS, MOST_MS = 1000, 60_000
POLITE: Final[dict[str, Any]] = {"delay_ms": FLOOR_MS, "delay_factor": 2, "delay_max_ms": MOST_MS}

Event = int | Refusal
"""How a fetch ended: an answer after so many ms, or a refusal."""
EVENTS = st.lists(st.one_of(st.integers(1, 40_000), st.integers(1, 2000), st.sampled_from(Refusal)), max_size=12)


async def end(lab: Lab, held: Held, event: Event, *, took_ms: int = 1, **values: Any) -> None:
    """Commit a fetch as a worker does."""
    if not isinstance(event, Refusal):
        assert await lab.end(held, took_ms=event, **values) == "DONE"
        return
    level = held.task.level.value
    retry = ("retry", 1000, encode_task(again(held.task)).decode(), f"answered {event}")
    detail = (level, held.stored, event.value, 1000, 60_000, 1000, *retry)
    word = await lab.end(held, Outcome.UNANSWERED, detail=detail, refusal=event, took_ms=took_ms, **values)
    assert word == "DONE"


async def play(lab: Lab, events: Iterable[Event], host: str = A) -> list[int]:
    """Let fetches of the host end so, one after the other; return its delay before each and after the last."""
    delays = [await delay_of(lab, host)]
    for event in events:
        await lab.let_pass(LONG_MS)
        taken = {one.host: one for one in await lab.take()}
        held = taken.pop(host)
        await lab.frontier.hand_back(FETCH_STREAM, [one.id for one in taken.values()])
        assert held.delay == delays[-1]  # what workers are told is what people are
        await end(lab, held, event)
        delays.append(await delay_of(lab, host))
    return delays


async def delay_of(lab: Lab, host: str = A) -> int:
    return (await host_page(lab.crawl, host)).delay_ms


async def why(lab: Lab) -> DelayReason:
    page = await host_page(lab.crawl, A)
    return page.fields.delay_in_force(page.state)[1]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, floor_ms=st.sampled_from([0, 50, 1000, 90_000]), factor=st.sampled_from([0, 2, 5]))
def test_whatever_a_host_does_its_delay_stays_in_bounds_answers_failures_and_recovers(
    redis_server: RedisServer, events: list[Event], floor_ms: int, factor: int
) -> None:
    most_ms = max(floor_ms, MOST_MS)
    name = f"p{uuid4().hex[:12]}"

    async def run() -> None:
        client = connect(redis_server.url)
        try:
            lab = await Lab.opened(client, **fast(name, delay_ms=floor_ms, delay_factor=factor, delay_max_ms=MOST_MS))
            await lab.offer(*urls("a.test", 250), *urls("b.test", 250))
            delays = await play(lab, events)
            assert all(floor_ms <= delay <= most_ms for delay in delays)
            failures = 0
            for event, before, after in zip(events, delays[:-1], delays[1:], strict=True):
                if isinstance(event, Refusal):
                    doubled = min(most_ms, max(2 * before, 100)) if failures < 2 else before
                    assert after == max(floor_ms, doubled), (event, failures)
                    failures += 1
                else:
                    aim = min(max(floor_ms, event * factor), most_ms) if floor_ms else 0
                    assert after <= before if aim <= before else before <= after + before // 8 + 1 <= aim + before
                    failures = 0
            # The same history with a failure at its end, beside one with an answer as quick as can be.
            await play(lab, events, B)
            (*_, failed), (*_, answered) = await play(lab, [Refusal.TIMEOUT], A), await play(lab, [1], B)
            assert failed >= answered
            quick = await play(lab, [1] * 10)
            assert quick == sorted(quick, reverse=True)
            await lab.check()
        finally:
            await delete_crawl(client, name)
            await client.aclose()

    asyncio.run(run())


async def test_a_slow_page_costs_its_own_share_and_a_slow_host_its_factor(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 200))
    once = await play(lab, [20_000, *[10] * 60])
    assert once[1] == FLOOR_MS + (40_000 - FLOOR_MS) // 8
    assert once[-1] == FLOOR_MS
    # All that the one page adds, over all fetches that follow, is about the factor of the time it took.
    assert sum(once[1:]) - FLOOR_MS * len(once[1:]) == pytest.approx(40_000 - FLOOR_MS, rel=0.03)
    assert await why(lab) is DelayReason.CRAWL
    slow = await play(lab, [3000] * 60)
    assert slow[-1] == pytest.approx(6000, abs=8)
    assert await why(lab) is DelayReason.RESPONSE_TIME


async def test_a_host_that_is_well_again_is_soon_as_quick_as_any_other_and_keeps_nothing(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 200))
    for _ in range(3):
        await play(lab, [Refusal.TIMEOUT, Refusal.TIMEOUT, 40_000])
    assert (await play(lab, [40_000] * 20))[-1] > MOST_MS * 0.9
    quick = await play(lab, [1] * 100)
    assert quick == sorted(quick, reverse=True)
    assert quick[-1] == FLOOR_MS
    # A broad crawl has a million hosts.
    assert {"paced", "throttled", "throttled_at", "throttled_by"} & {*await lab.host(A)} == set()


async def test_a_host_with_a_rate_limit_refuses_few_fetches(open_lab: OpenLab) -> None:
    """The host bears a fetch each 2 s, twice the delay of the crawl, and refuses what comes sooner."""
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 240))
    refused = 0
    for _ in range(120):
        is_refused = await delay_of(lab) < 2000
        refused += is_refused
        await play(lab, [Refusal.TOO_MANY if is_refused else 50])
    assert refused <= 120 / 10
    totals = await lab.totals()
    assert totals["throttled.http_429"] == refused
    assert await why(lab) is DelayReason.THROTTLED


async def test_a_host_with_a_bad_page_in_ten_goes_on(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 200))
    for refusal in (Refusal.UNAVAILABLE, Refusal.TIMEOUT):
        delays = [delay for _ in range(5) for delay in await play(lab, [refusal, *[50] * 9])]
        assert max(delays) <= 2 * FLOOR_MS
        assert delays[-1] == FLOOR_MS


@pytest.mark.parametrize("since_end_ms", [0, 300])
async def test_what_was_under_way_when_the_delay_doubled_does_not_double_it_again(
    open_lab: OpenLab, since_end_ms: int
) -> None:
    lab = await open_lab(**POLITE | {"delay_ms": 0}, host_concurrency=4)
    await lab.offer(*urls("a.test", 12))
    first, second, third, fourth = await lab.take()
    await lab.let_pass(1000)
    await end(lab, first, Refusal.TOO_MANY, took_ms=500)
    assert await delay_of(lab) == 100
    await end(lab, second, 20)  # an answer in between: it is no row of refusals
    assert await delay_of(lab) == 93
    await lab.let_pass(200)
    await end(lab, third, Refusal.TOO_MANY, took_ms=600, since_end_ms=since_end_ms)
    assert await delay_of(lab) == 93
    await end(lab, fourth, 20)
    await lab.let_pass(2000)
    (late,) = await lab.take()
    await end(lab, late, Refusal.UNAVAILABLE, took_ms=500)
    assert await delay_of(lab) == 174
    assert (await lab.host(A))["throttled_by"] == "http_503"


async def test_the_word_of_an_operator_holds_over_all_and_crawl_delay_is_a_floor(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 90))
    await lab.client.hset(lab.keys.host(A), "delay", 5000)
    assert (await play(lab, [100, Refusal.UNAVAILABLE]))[1:] == [5000, 10_000]
    await lab.frontier.set_host(A, delay=50)
    assert (await play(lab, [100, Refusal.TOO_MANY, 30_000]))[1:] == [50, 50, 50]
    assert await why(lab) is DelayReason.OPERATOR
    await lab.frontier.set_host(A, delay="")
    assert await why(lab) is DelayReason.THROTTLED
    await lab.frontier.set_host(A, chance=1)
    assert await why(lab) is DelayReason.RESPONSE_TIME
    assert (await play(lab, [1] * 70))[-1] == 5000
    assert await why(lab) is DelayReason.CRAWL_DELAY


async def test_settings_hold_from_the_next_answer_on(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 60))
    await play(lab, [30_000, Refusal.TOO_MANY])
    before = await delay_of(lab)
    await lab.frontier.control(delay_max_ms=3000)
    assert (before, await delay_of(lab)) == (2 * (1000 + 59_000 // 8), 3000)
    await lab.frontier.control(delay_max_ms=0)
    assert (await play(lab, [Refusal.TOO_MANY, 30_000]))[1:] == [FLOOR_MS, FLOOR_MS]
    await lab.frontier.control(delay_max_ms=MOST_MS, delay_factor=0)
    await lab.frontier.set_host(A, chance=1)
    assert (await play(lab, [30_000]))[1] == FLOOR_MS


async def test_state_of_an_older_crawl_means_the_defaults(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    default = Settings(name="any")
    assert (default.delay_factor, default.delay_max_ms) == (2, 60_000)  # as _now.lua has them
    await lab.client.hdel(lab.keys.state, "delay_factor", "delay_max_ms")
    await lab.offer(*urls("a.test", 60))
    assert (await play(lab, [4000]))[1] == FLOOR_MS + (8000 - FLOOR_MS) // 8
    assert (await play(lab, [10**9]))[1] == pytest.approx(FLOOR_MS + 875 * 7 // 8 + 59_000 // 8, abs=2)


async def test_workers_share_one_delay(open_lab: OpenLab, store_client: Redis, crawl_name: str) -> None:
    events: list[Event] = [5000, Refusal.TOO_MANY, 100, Refusal.TIMEOUT, Refusal.TIMEOUT, 9000, 100]
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 60), *urls("b.test", 60))
    alone = await play(lab, events, B)
    others = [lab, Lab((await join_crawl(store_client, crawl_name)).first)]
    delays = [FLOOR_MS]
    for n, event in enumerate(events):
        delays += (await play(others[n % 2], [event]))[1:]
    assert delays == alone


# -- the circuit


async def test_open_circuit_lets_one_fetch_through_at_a_time(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE | {"delay_ms": 0}, host_concurrency=4)
    await lab.offer(*urls("a.test", 12))

    async def circuit() -> str:
        return str((await host_page(lab.crawl, A)).as_json()["circuit"])

    held = await lab.take()
    assert (len(held), await circuit()) == (4, "closed")
    for one in held:
        await lab.end(one, Outcome.UNANSWERED)
    assert await circuit() == "open"
    assert await lab.take() == []
    await lab.let_pass(120_000)
    assert await circuit() == "half-open"
    (probe,) = await lab.take()
    assert probe.cap == 1
    assert await lab.take() == []
    assert "half-open" in (await host_page(lab.crawl, A)).standing()
    await lab.end(probe, Outcome.UNANSWERED)
    await lab.let_pass(120_000)
    (probe,) = await lab.take()
    await end(lab, probe, 20)
    assert await circuit() == "closed"
    assert len(await lab.take()) == 4


async def test_start_sends_all_but_one_back_while_the_circuit_is_open(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE | {"delay_ms": 100}, host_concurrency=3)
    await lab.offer(*urls("a.test", 12))
    held: list[Held] = []
    while len(held) < 3:
        await lab.let_pass(1000)
        held += await lab.take()
    await lab.end(held[0], Outcome.UNANSWERED)
    await lab.let_pass(120_000)

    async def ask(one: Held) -> str:
        return (await lab.frontier.start(one.id, A, wait_max_ms=2000, margin_ms=0))[0]

    assert await ask(held[1]) == "BACK"
    await lab.frontier.hand_back(FETCH_STREAM, [held[1].id])
    assert await lab.take() == []
    assert await ask(held[2]) == "START"


async def test_host_that_refuses_everything_burns_no_task(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 5))

    async def refuse(verdict: str = "dead") -> None:
        await lab.let_pass(LONG_MS)
        await lab.frontier.due()
        (held,) = await lab.take()
        more = (verdict, 1000, encode_task(again(held.task)).decode(), "answered 503")
        detail = (held.task.level.value, held.stored, "http_503", 1000, 60_000, 1000, *more)
        assert await lab.end(held, Outcome.UNANSWERED, detail=detail, refusal=Refusal.UNAVAILABLE) == "DONE"

    await refuse("retry")
    await refuse("retry")
    for _ in range(7):  # each would be the last try
        await refuse()
    state = await lab.check()
    assert "dead" not in state
    assert await lab.frontier.give_up(after_ms=6 * LONG_MS, idle_ms=6 * LONG_MS) == (5, 1, 0)
    assert (await lab.totals())["page.dead.host_unreachable"] == 5


async def test_page_that_always_refuses_ends_when_nothing_else_of_its_host_is_left(open_lab: OpenLab) -> None:
    lab = await open_lab(**POLITE)
    await lab.offer(*urls("a.test", 1))
    for verdict in ("retry", "retry", "dead"):
        await lab.let_pass(LONG_MS)
        await lab.frontier.due()
        (held,) = await lab.take()
        more = (verdict, 1000, encode_task(again(held.task)).decode(), "answered 503")
        detail = (held.task.level.value, held.stored, "http_503", 1000, 60_000, 1000, *more)
        assert await lab.end(held, Outcome.UNANSWERED, detail=detail, refusal=Refusal.UNAVAILABLE) == "DONE"
    (letter,) = (await lab.check())["dead"]["entries"]
    assert (letter["reason"], letter["last_status"], letter["error"]) == ("http_503", 503, "answered 503")
