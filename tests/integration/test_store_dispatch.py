"""What may be sent, when, and how much of it: caps, delays, marks, budgets, the robots gate, fairness, the clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.rules.task import Kind, Level, Outcome
from streamcrawl.store.frontier import Dispatched
from tests.integration.snapshot import FETCH_STREAM, Held, Lab, links, near, urls

if TYPE_CHECKING:
    from tests.integration.conftest import OpenLab

A = "http://a.test"


async def dispatch(lab: Lab, limit: int = 100) -> Dispatched:
    return await lab.frontier.dispatch(limit)


# -- caps and delays


@pytest.mark.parametrize("cap", [1, 3])
async def test_a_host_has_no_more_in_flight_than_its_cap(open_lab: OpenLab, cap: int) -> None:
    lab = await open_lab(host_concurrency=cap)
    await lab.offer(*urls("a.test", 10), *urls("b.test", 10))
    assert await dispatch(lab) == Dispatched(2 * cap, -1, "OK")
    assert (await dispatch(lab)).moved == 0
    held = await lab.read()
    assert await lab.end(held[0]) == "DONE"
    assert (await dispatch(lab)).moved == 1


async def test_a_cap_of_one_host_wins_over_that_of_the_crawl(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=1)
    await lab.client.hset(lab.keys.host(A), "cap", 4)
    await lab.offer(*urls("a.test", 10))
    assert (await dispatch(lab)).moved == 4


@pytest.mark.parametrize(("delay_ms", "hosts_own", "said"), [(0, "", None), (0, 700, 700), (500, "", 500), (500, 0, 0)])
async def test_an_entry_says_how_polite_to_be_where_settings_do_not_tell(
    open_lab: OpenLab, delay_ms: int, hosts_own: int | str, said: int | None
) -> None:
    lab = await open_lab(delay_ms=delay_ms)
    await lab.offer("http://a.test/")
    assert await lab.frontier.set_host("http://a.test", delay=hosts_own) == "OK"
    assert len(await lab.take()) == 1
    [entry] = (await lab.snapshot())["stream:fetch"]["entries"]
    assert (entry.get("delay"), entry.get("cap")) == (said, None if said is None else 1)


async def test_callers_at_the_same_time_keep_the_caps_together(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=3)
    await lab.offer(*(url for n in range(20) for url in urls(f"h{n}.test", 6)))
    moved = sum(one.moved for one in await asyncio.gather(*(dispatch(lab, 7) for _ in range(40))))
    held = await lab.read()
    assert moved == len(held) == 60
    assert set(Counter(one.host for one in held).values()) == {3}


async def test_the_delay_counts_from_the_end_of_the_fetch(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=60_000)
    await lab.offer(*urls("a.test", 3))
    [held] = await lab.take()
    await lab.let_pass(40_000)
    assert await dispatch(lab) == Dispatched(0, -1, "IDLE")
    ended = await lab.commit(lab.commit_of(held, since_end_ms=10_000), limit=10)
    assert ended.dispatched == Dispatched(0, near(50_000), "OK")
    await lab.let_pass(ended.dispatched.next_ms - 2000)
    assert (await dispatch(lab)).moved == 0
    await lab.let_pass(2000)
    assert (await dispatch(lab)).moved == 1


async def test_a_task_that_was_not_fetched_costs_no_delay(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=60_000)
    await lab.offer(*urls("a.test", 2))
    [held] = await lab.take()
    await lab.end(held, Outcome.DROPPED, is_fetched=False)
    [held] = await lab.take()
    await lab.frontier.hand_back(FETCH_STREAM, [held.id])
    assert (await dispatch(lab)).moved == 1


async def test_a_retry_after_leaves_the_host_alone(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=2)
    await lab.offer(*urls("a.test", 5))
    one, two = await lab.take()
    await lab.end(one, Outcome.RETRY, block_ms=90_000)
    await lab.end(two)
    assert (await dispatch(lab)).next_ms == near(90_000)
    await lab.let_pass(90_000)
    assert (await dispatch(lab)).moved == 2


async def test_a_longer_delay_from_robots_wins(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True, delay_ms=1000)
    await lab.offer(*urls("a.test", 3))
    [robots] = await lab.take()
    await lab.end(robots, detail=("{}", 10**9, 30_000))
    assert (await dispatch(lab)).next_ms == near(30_000)
    await lab.let_pass(31_000)
    [held] = await lab.take()
    await lab.end(held)
    assert (await dispatch(lab)).next_ms == near(30_000)


async def test_an_unanswering_host_backs_off_twice_as_long_each_time(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    waits = []
    for _ in range(8):
        [held] = await lab.take()
        assert held.task.path == "/0"
        assert held.task.attempt == 1
        await lab.end(held, Outcome.UNANSWERED, detail=("2", held.stored, "connect", 10_000, 300_000, 1000))
        wait = (await dispatch(lab)).next_ms
        waits.append(round(wait, -4))
        await lab.let_pass(wait)
    assert waits == [10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000, 300_000]
    [held] = await lab.take()
    assert (await lab.snapshot())["failing"]
    await lab.end(held)
    assert await lab.host(A) == {
        "queued": 2,
        "pages": 1,
        "due": near(await lab.now()),
        "blocked_until": near(await lab.now()),
    }
    assert "failing" not in await lab.snapshot()


# -- levels


async def serve(lab: Lab, count: int) -> list[str]:
    """Return the paths of the next tasks, each ended before the next is taken."""
    served = []
    for _ in range(count):
        [held] = await lab.take()
        served.append(held.task.path)
        await lab.end(held)
    return served


async def offer_levels(lab: Lab) -> None:
    for level in (Level.LOW, Level.NORMAL, Level.HIGH):
        await lab.offer(f"{A}/{level.name}", level=level)


async def test_a_host_is_asked_only_for_levels_at_which_it_may_have_tasks(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=1)
    await lab.offer(*urls("a.test", 2))
    await lab.offer(*urls("b.test", 2), level=Level.HIGH)

    async def looks() -> int:
        client: Any = lab.client
        return int((await client.info("commandstats")).get("cmdstat_lpop", {"calls": 0})["calls"])

    before = await looks()
    assert (await dispatch(lab)).moved == 2
    assert await looks() == before + 2


async def test_levels_are_forgotten_with_the_last_task(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await offer_levels(lab)
    assert (await lab.host(A))["levels"] == 31
    assert await serve(lab, 3) == ["/HIGH", "/NORMAL", "/LOW"]
    await lab.offer(f"{A}/next")
    assert "levels" not in await lab.host(A)
    assert await serve(lab, 1) == ["/next"]


async def test_tasks_that_an_older_version_queued_are_found(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await offer_levels(lab)
    await lab.client.hdel(lab.keys.host(A), "levels")
    assert await serve(lab, 3) == ["/NORMAL", "/HIGH", "/LOW"]
    assert (await lab.host(A)).get("queued") is None


async def test_a_recount_finds_levels_anew(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await offer_levels(lab)
    await lab.client.hdel(lab.keys.host(A), "levels")
    assert await lab.frontier.reconcile() == 0
    assert await serve(lab, 3) == ["/HIGH", "/NORMAL", "/LOW"]


# -- marks and budgets


async def test_twice_the_live_slots_wait_and_no_more(open_lab: OpenLab) -> None:
    lab = await open_lab(slots=4)
    await lab.offer(*(f"http://h{n}.test/" for n in range(20)))
    assert await dispatch(lab) == Dispatched(8, 0, "OK")
    assert await dispatch(lab) == Dispatched(0, 0, "FULL")
    held = await lab.read(count=3)
    assert (await dispatch(lab)).moved == 3
    await lab.frontier.control(slots=0)
    assert (await lab.commit(*map(lab.commit_of, held), limit=10)).dispatched == Dispatched(0, 0, "FULL")


async def test_words_say_why_nothing_is_sent(open_lab: OpenLab) -> None:
    lab = await open_lab()
    assert await dispatch(lab) == Dispatched(0, -1, "IDLE")
    await lab.offer(f"{A}/")
    for field, value, word in (
        ("paused", "1", "PAUSED"),
        ("stopped", "MEMORY_FULL", "MEMORY_FULL"),
    ):
        await lab.frontier.control(**{field: value})
        assert await lab.changes(dispatch(lab)) == (Dispatched(0, -1, word), {})
        await lab.frontier.control(**{field: ""})
    # A flag that nothing holds any more (THROTTLED: test_store_sinks.py) is taken down instead.
    await lab.frontier.control(throttled="out")
    assert (await dispatch(lab)).moved == 1
    assert "throttled" not in (await lab.snapshot())["state"]


@pytest.mark.parametrize("cap", [1, 4])
async def test_pages_max_is_exact_whatever_else_ends(open_lab: OpenLab, cap: int) -> None:
    lab = await open_lab(pages_max=30, host_concurrency=cap)
    await lab.offer(*(url for n in range(4) for url in urls(f"h{n}.test", 40)))
    ends = [Outcome.DONE, Outcome.RETRY, Outcome.DEAD, Outcome.REDIRECTED, Outcome.DROPPED, Outcome.DONE]
    done = n = 0
    word = "RUNNING"
    while word == "RUNNING":
        await lab.frontier.due()
        for held in await lab.take():
            n += 1
            outcome = ends[n % len(ends)]
            done += outcome is Outcome.DONE
            # Each commit dispatches into the slot that it frees, while the others are in flight.
            assert (await lab.commit(lab.commit_of(held, outcome), limit=5)).words == ["DONE"]
            totals = await lab.totals()
            assert totals.get("page.done", 0) + totals["page.streamed"] <= 30
        await lab.let_pass(1000)
        word, *_ = await lab.frontier.finish()
    assert (word, done) == ("LIMIT", 30)
    assert await dispatch(lab) == Dispatched(0, -1, "BUDGET")
    await lab.frontier.control(pages_max=31)
    assert (await dispatch(lab)).moved == 1


@pytest.mark.parametrize("cap", [1, 4])
async def test_pages_per_host_max_is_exact_and_the_rest_is_dropped(open_lab: OpenLab, cap: int) -> None:
    lab = await open_lab(pages_per_host_max=5, host_concurrency=cap)
    await lab.offer(*urls("a.test", 20), *urls("b.test", 3))
    outcomes = [Outcome.RETRY, Outcome.DONE, Outcome.DONE, Outcome.DEAD]
    n = 0
    while True:
        await lab.frontier.due()
        held = await lab.take()
        if not held and "delayed" not in await lab.snapshot():
            break
        for one in held:
            n += 1
            outcome = outcomes[n % 4] if one.host == A else Outcome.DONE
            new = links(f"{A}/more{n}") if outcome is Outcome.DONE else links()
            await lab.commit(lab.commit_of(one, outcome, links=new), limit=5)
            await lab.check()
        await lab.let_pass(1000)
        await lab.frontier.give_up(after_ms=10**9, idle_ms=10**9)
    await lab.frontier.give_up(after_ms=10**9, idle_ms=10**9)
    state = await lab.check()
    assert (state[f"host:{A}"]["pages"], state["host:http://b.test"]["pages"]) == (5, 3)
    totals = state["totals"]
    assert totals["page.dropped"] == totals["page.dropped.host_budget"] > 0
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "ENDED"
    # With a larger budget the host is served again.
    await lab.frontier.control(pages_per_host_max=6)
    await lab.frontier.reconcile()
    await lab.offer(f"{A}/again")
    assert (await dispatch(lab)).moved == 1


async def test_hosts_that_wait_for_their_budget_do_not_hide_the_others(open_lab: OpenLab) -> None:
    """Over a hundred of them, with a slot free by their cap and none by their budget, in front of one that may go."""
    lab = await open_lab(pages_per_host_max=1, host_concurrency=2)
    await lab.offer(*(url for n in range(120) for url in urls(f"h{n}.test", 2)))
    moved = 0
    while (one := await dispatch(lab)).moved:
        moved += one.moved
    assert moved == 120
    assert one == Dispatched(0, -1, "IDLE")
    await lab.offer("http://other.test/")
    assert (await dispatch(lab)).moved == 1


async def test_links_stop_the_crawl_above_the_frontiers_bound(open_lab: OpenLab) -> None:
    lab = await open_lab(frontier_max=10)
    await lab.offer(*urls("a.test", 5))
    [held] = await lab.take()
    # By chunks before the commit, or by the commit itself: both count.
    assert await lab.frontier.offer(links(*urls("b.test", 6)), whose=held.id) == ("OK", 6)
    assert await lab.client.hget(lab.keys.state, "stopped") is None
    assert await lab.frontier.offer(links(*urls("b.test", 6)), whose=held.id) == ("OK", 0)
    assert await lab.client.hget(lab.keys.state, "stopped") is None
    assert await lab.frontier.offer(links(*urls("b.test", 9)), whose=held.id) == ("OK", 3)
    assert await lab.client.hget(lab.keys.state, "stopped") == b"FRONTIER_FULL"
    await lab.frontier.control(stopped="")
    await lab.end(held, links=links(f"{A}/new"))
    assert await lab.client.hget(lab.keys.state, "stopped") == b"FRONTIER_FULL"
    assert (await dispatch(lab)).word == "FRONTIER_FULL"
    assert (await lab.frontier.finish())[0] == "STOPPED"


async def test_seeds_wait_at_the_frontiers_bound_and_do_not_stop_the_crawl(open_lab: OpenLab) -> None:
    lab = await open_lab(frontier_max=10)
    assert await lab.offer(*urls("a.test", 15)) == 15
    assert await lab.frontier.offer(links(f"{A}/more")) == ("FULL", 15)
    assert await lab.client.hget(lab.keys.state, "stopped") is None
    assert (await dispatch(lab)).moved == 1


# -- robots


def robots_of(held: list[Held]) -> list[str]:
    return [one.host for one in held if one.task.kind is Kind.ROBOTS]


async def test_one_robots_task_opens_the_gate_for_all_pages(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True, host_concurrency=4)
    await lab.offer(*urls("a.test", 6), *urls("b.test", 6))
    await asyncio.gather(*(dispatch(lab, 5) for _ in range(20)))
    held = await lab.read()
    assert sorted(robots_of(held)) == [A, "http://b.test"]
    assert len(held) == 2
    assert held[0].task.level is Level.CONTROL
    assert held[0].task.path == "/robots.txt"
    await lab.end(held[0], detail=('{"rules":1}', 5_000, 0))
    assert await lab.frontier.robots(held[0].host) == b'{"rules":1}'
    assert await lab.client.pttl(lab.keys.robots(held[0].host)) == near(3_605_000, 5000)
    pages = await lab.take()
    assert [one.host for one in pages] == [held[0].host] * 4
    assert await lab.frontier.robots(held[1].host) is None


async def test_a_stale_verdict_is_asked_for_again(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 3))
    await lab.end_all(await lab.take())
    [page] = await lab.take()
    await lab.let_pass(60_001)
    await lab.end(page)
    [robots] = await lab.take()
    assert robots_of([robots])
    await lab.end(robots)
    [page] = await lab.take()
    assert page.task.kind is Kind.PAGE


@pytest.mark.parametrize("reason", ["robots", "connect"])
async def test_an_old_verdict_holds_while_no_other_can_be_had(open_lab: OpenLab, reason: str) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 3))
    [robots] = await lab.take()
    await lab.end(robots, detail=("old", 1000, 0, 30 * 86_400_000))
    await lab.let_pass(1001)
    [robots] = await lab.take()
    await lab.end(robots, Outcome.UNANSWERED, detail=("0", robots.stored, reason, 1000, 1000, 1000))
    # A host that answers is not held back for it; one that does not is, as for any other task.
    assert bool((await lab.snapshot()).get("failing")) is (reason == "connect")
    await lab.let_pass(1001)
    [page] = await lab.take()
    assert page.task.kind is Kind.PAGE
    await lab.end(page)
    assert await lab.frontier.robots(A) == b"old"
    assert (await lab.totals())["robots.dropped.old_copy"] == 1
    await lab.let_pass(600_000)
    assert robots_of(await lab.take()) == [A]


async def test_a_verdict_that_is_not_to_be_kept_holds_no_longer(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 3))
    [robots] = await lab.take()
    await lab.end(robots, detail=("none", 1000, 0))
    await lab.client.pexpire(lab.keys.robots(A), 3_600_000)
    await lab.let_pass(1001)
    [robots] = await lab.take()
    await lab.end(robots, Outcome.UNANSWERED, detail=("0", robots.stored, "robots", 1000, 1000, 1000))
    await lab.let_pass(1001)
    assert robots_of(await lab.take()) == [A]


async def test_a_worker_without_a_verdict_has_it_asked_for_again(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True, host_concurrency=3)
    await lab.offer(*urls("a.test", 5))
    await lab.end_all(await lab.take())
    pages = await lab.take()
    assert len(pages) == 3
    await lab.frontier.hand_back(FETCH_STREAM, [pages[0].id], is_robots_stale=True)
    await lab.frontier.hand_back(FETCH_STREAM, [pages[1].id], is_robots_stale=True)
    assert robots_of(await lab.take()) == [A]
    assert (await dispatch(lab)).moved == 0


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.UNANSWERED])
async def test_a_robots_task_that_comes_back_goes_first(open_lab: OpenLab, outcome: Outcome) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 3), level=Level.HIGH)
    [robots] = await lab.take()
    await lab.end(robots, outcome)
    assert (await dispatch(lab)).moved == 0
    await lab.let_pass(100_000)
    await lab.frontier.due()
    [held] = await lab.take()
    assert held.task.kind is Kind.ROBOTS
    await lab.end(held)
    [held] = await lab.take()
    assert held.task.kind is Kind.PAGE


async def test_a_dead_robots_task_takes_its_pages_with_it(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 3))
    [robots] = await lab.take()
    await lab.end(robots, Outcome.DEAD)
    assert await lab.frontier.give_up(after_ms=10**9, idle_ms=10**9) == (3, 0, 0)
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "ENDED"
    assert (await lab.totals())["page.dead.robots_unreachable"] == 3


@pytest.mark.parametrize("outcome", [Outcome.DROPPED, Outcome.REDIRECTED])
async def test_a_robots_task_cannot_end_without_a_verdict(open_lab: OpenLab, outcome: Outcome) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(f"{A}/")
    [robots] = await lab.take()
    assert await lab.end(robots, outcome) == "INVALID"


async def test_a_crawl_resumed_without_robots_serves_the_robots_tasks_it_has(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(f"{A}/")
    [robots] = await lab.take()
    await lab.frontier.hand_back(FETCH_STREAM, [robots.id])
    await lab.frontier.control(robots=0, closed=1)
    for _ in range(2):
        await lab.end_all(await lab.take())
    assert (await lab.frontier.finish())[0] == "ENDED"


# -- fairness, waiting times


async def test_hosts_take_turns(open_lab: OpenLab) -> None:
    lab = await open_lab(slots=2)
    hosts = [f"h{n}.test" for n in range(20)]
    await lab.offer(*(url for host in hosts for url in urls(host, 30)))
    served = Counter[str]()
    for _ in range(200):
        [held] = await lab.take(count=1)
        served[held.host] += 1
        await lab.let_pass(5)
        await lab.end(held)
    assert set(served.values()) == {10}


async def test_new_hosts_do_not_push_in_front_of_one_that_is_due(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=1000)
    await lab.offer(*urls("old.test", 2))
    await lab.end_all(await lab.take())
    await lab.let_pass(1500)
    await lab.offer(*(f"http://new{n}.test/" for n in range(50)))
    [first] = await lab.take(count=1)
    assert first.host == "http://old.test"


async def test_a_queue_with_fewer_tasks_than_counted_does_not_spin(open_lab: OpenLab) -> None:
    """Somebody took tasks out by hand: nothing can be sent, so the crawl must come to its end, and say so."""
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2))
    await lab.client.delete(lab.keys.queue(A, "2"))
    await lab.frontier.control(closed=1)
    assert await dispatch(lab) == Dispatched(0, -1, "OK")
    assert await dispatch(lab) == Dispatched(0, -1, "IDLE")
    assert (await lab.frontier.finish())[0] == "UNBALANCED"
    await lab.client.delete(lab.keys.totals)


# -- the clock


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
async def test_a_clock_that_jumps_lets_no_delay_pass(open_lab: OpenLab, jump_ms: int) -> None:
    """The state as it is when the server's clock has since jumped: the wall of the last call lies an hour off."""
    lab = await open_lab(delay_ms=60_000)
    await lab.offer(*urls("a.test", 2), *urls("b.test", 2))
    one, two = await lab.take()
    await lab.end(one)
    await lab.end(two, Outcome.RETRY, detail=(60_000, "2", two.stored))
    before = await lab.now()
    await lab.client.hincrby(lab.keys.state, "wall_ms", -jump_ms)

    assert (await dispatch(lab)).next_ms == near(60_000)
    assert await lab.frontier.due() == (0, near(60_000))
    assert await lab.frontier.give_up(after_ms=3_000_000, idle_ms=3_000_000) == (0, 0, 0)
    assert before <= await lab.now() <= before + 2000
    await lab.let_pass(61_000)
    assert (await dispatch(lab)).moved == 2


async def test_crawl_time_goes_on_and_never_back(open_lab: OpenLab) -> None:
    lab = await open_lab()
    seen: list[int] = []
    steps: list[Any] = [0, -10_000, 4000, 10**7, -(10**7), 0]
    for step in steps:
        await lab.client.hincrby(lab.keys.state, "wall_ms", -step)
        await lab.frontier.due()
        seen.append(await lab.now())
    assert seen == sorted(seen)
    # Only the step of 4 s is one that may have been time.
    assert seen[-1] - seen[0] == near(4000, 1500)
