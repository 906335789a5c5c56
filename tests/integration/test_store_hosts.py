"""Hosts that do not answer are given up: when, for which reason, and how their tasks end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamcrawl.rules.task import Outcome
from tests.integration.snapshot import FETCH_STREAM, Lab, links, urls

if TYPE_CHECKING:
    from tests.integration.conftest import OpenLab

A = "http://a.test"
AFTER_MS = 3_600_000
IDLE_MS = 300_000


async def fail(lab: Lab, host: str = A, reason: str = "connect") -> None:
    """Fetch one task of the host, which does not answer."""
    await lab.let_pass(120_000)
    for held in await lab.take():
        if held.host == host:
            level = held.task.level.value
            await lab.end(held, Outcome.UNANSWERED, detail=(level, held.stored, reason, 1000, 60_000, 1000))
        else:
            await lab.frontier.hand_back(FETCH_STREAM, [held.id])


async def give_up(lab: Lab, limit: int = 500) -> tuple[int, int, int]:
    return await lab.frontier.give_up(after_ms=AFTER_MS, idle_ms=IDLE_MS, limit=limit)


async def busy(lab: Lab) -> None:
    """Something else is left to do: a host that answers, and waits for its turn."""
    await lab.offer("http://well.test/")
    await lab.client.hset(lab.keys.host("http://well.test"), "blocked_until", await lab.now() + 10**9)
    await lab.frontier.reconcile()


async def test_a_host_is_given_up_after_the_limit(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await busy(lab)
    await lab.offer(*urls("a.test", 3))
    await fail(lab)
    await lab.let_pass(AFTER_MS - 200_000)
    await fail(lab)
    assert await give_up(lab) == (0, 0, 0)
    await lab.let_pass(200_000)
    await fail(lab)
    assert await give_up(lab) == (3, 1, 0)
    state = await lab.check()
    assert state[f"host:{A}"]["given_up"] == "host_unreachable"
    assert state["totals"]["page.dead.host_unreachable"] == 3
    assert {letter["reason"] for letter in state["dead"]["entries"]} == {"host_unreachable"}
    assert "failing" not in state


async def test_an_answer_in_between_begins_the_count_anew(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 5))
    await fail(lab)
    await lab.let_pass(AFTER_MS)
    await lab.end_all(await lab.take())
    await fail(lab)
    assert await give_up(lab) == (0, 0, 0)


async def test_with_nothing_else_to_do_the_shorter_limit_holds(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2), *urls("b.test", 2))
    await fail(lab)
    await lab.let_pass(IDLE_MS)
    await fail(lab)
    assert await give_up(lab) == (0, 0, 0)  # the other host has work
    [other] = [held for held in await lab.take() if held.host != A]
    await lab.end(other, Outcome.RETRY, detail=(10**9, "2", other.stored))
    await lab.frontier.hand_back(FETCH_STREAM, [])
    await drop_all(lab, "http://b.test")
    assert await give_up(lab) == (0, 0, 0)  # a task is delayed
    await lab.let_pass(10**9)
    await lab.frontier.due()
    await drop_all(lab, "http://b.test")
    await fail(lab)
    assert await give_up(lab) == (2, 1, 0)


async def test_a_silence_of_everybody_is_not_taken_for_dead_hosts(open_lab: OpenLab) -> None:
    """A crawl of one site behind a network that is down for longer than the shorter limit loses nothing."""
    lab = await open_lab()
    await lab.offer(*urls("a.test", 4))
    await lab.end((await lab.take())[0])
    await fail(lab)
    await lab.let_pass(2 * IDLE_MS)
    await fail(lab)
    assert await give_up(lab) == (0, 0, 0)
    await lab.let_pass(AFTER_MS)
    await fail(lab)
    assert (await give_up(lab))[1] == 1


async def test_a_host_that_falls_silent_alone_is_given_up_by_the_shorter_limit(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    await lab.end((await lab.take())[0], is_fetched=True)
    await fail(lab)
    await lab.offer(*urls("b.test", 1))
    await lab.end(next(held for held in await lab.take() if held.host != A), is_fetched=True)
    await lab.let_pass(IDLE_MS)
    await fail(lab)
    assert (await give_up(lab))[1] == 1


async def test_the_shorter_limit_holds_while_failing_hosts_are_being_asked(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2), *urls("b.test", 2))

    async def fail_all() -> None:
        for held in await lab.take():
            detail = (held.task.level.value, held.stored, "timeout", 1000, 60_000, 1000)
            await lab.end(held, Outcome.UNANSWERED, detail=detail)
        await lab.let_pass(60_000)

    await fail_all()
    await lab.let_pass(IDLE_MS)
    await fail_all()
    asked = await lab.take()
    assert {held.host for held in asked} == {A, "http://b.test"}
    assert await give_up(lab) == (2, 2, 0)  # each has one task queued and one in hand
    for held in asked:
        detail = (held.task.level.value, held.stored, "timeout", 1000, 60_000, 1000)
        await lab.end(held, Outcome.UNANSWERED, detail=detail)
    assert await give_up(lab) == (2, 0, 0)
    assert (await lab.totals())["page.dead.host_unreachable"] == 4


async def drop_all(lab: Lab, host: str) -> None:
    while held := await lab.take():
        for one in held:
            if one.host == host:
                await lab.end(one, Outcome.DROPPED)
            else:
                await lab.end(one, Outcome.UNANSWERED)


@pytest.mark.parametrize("field", ["paused", "stopped", "throttled"])
async def test_time_in_which_nobody_asked_says_nothing_about_a_host(open_lab: OpenLab, field: str) -> None:
    lab = await open_lab()
    await busy(lab)
    await lab.offer(*urls("a.test", 2))
    await fail(lab)
    await lab.frontier.control(**{field: "1"})
    await lab.let_pass(2 * AFTER_MS)
    assert await give_up(lab) == (0, 0, 0)
    await lab.frontier.control(**{field: ""})
    assert await give_up(lab) == (0, 0, 0)
    await fail(lab)
    assert await give_up(lab) == (2, 1, 0)


async def test_tasks_are_buried_in_bounded_steps(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 25), *urls("b.test", 5))
    for host in (A, "http://b.test"):
        await fail(lab, host)
        await lab.let_pass(AFTER_MS)
        await fail(lab, host)
    steps = [await give_up(lab, 10)]
    await lab.check()
    while steps[-1][0]:
        steps.append(await give_up(lab, 10))
        await lab.check()
    assert [buried for buried, _, _ in steps] == [10, 10, 10, 0]
    assert sum(given for _, given, _ in steps) == 2
    assert (await lab.totals())["page.dead"] == 30


async def test_links_to_a_given_up_host_follow_it(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/", "http://well.test/")
    await fail(lab)
    await lab.let_pass(AFTER_MS)
    await fail(lab)
    assert (await give_up(lab))[:2] == (1, 1)
    [held] = await lab.take()
    await lab.end(held, links=links(*urls("a.test", 4)))
    assert await lab.take() == []
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "RUNNING"
    assert await give_up(lab) == (4, 0, 0)
    assert (await lab.frontier.finish())[0] == "ENDED"


async def test_what_is_in_flight_or_delayed_at_a_given_up_host_follows_too(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=3)
    await lab.offer(*urls("a.test", 3))
    one, two, three = await lab.take()
    await lab.end(one, Outcome.RETRY)
    await lab.end(two, Outcome.UNANSWERED)
    await lab.client.hset(lab.keys.host(A), "failed_at", await lab.now() + AFTER_MS)
    await lab.let_pass(AFTER_MS)
    assert await give_up(lab) == (1, 1, 0)
    await lab.end(three, Outcome.UNANSWERED)
    await lab.frontier.due()
    assert "failing" not in await lab.check()
    assert await give_up(lab) == (2, 0, 0)


@pytest.mark.parametrize(("reason", "given_up"), [("robots", "robots_unreachable"), ("connect", "host_unreachable")])
async def test_the_reason_tells_robots_from_a_host(open_lab: OpenLab, reason: str, given_up: str) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 2))
    for _ in range(2):
        await fail(lab, reason=reason)
        await lab.let_pass(IDLE_MS)
    assert await give_up(lab) == (3, 1, 0)  # the robots task is buried with its pages
    totals = (await lab.check())["totals"]
    assert totals[f"page.dead.{given_up}"] == 2
    assert totals[f"robots.dead.{given_up}"] == 1
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "ENDED"


@pytest.mark.parametrize(("when_first", "line"), [("retry", "delayed"), ("dead", "dead")])
async def test_a_first_failure_may_be_the_urls_own(open_lab: OpenLab, when_first: str, line: str) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 4))
    for n in range(1, 4):
        [held] = await lab.take()
        again = held.stored.replace(",0]", ",0,2]")
        detail = ("2", held.stored, "timeout", 1000, 60_000, 1000, when_first, 500, again, "no answer")
        await lab.end(held, Outcome.UNANSWERED, detail=detail)
        state = await lab.check()
        assert state["totals"][f"page.{line}"] == min(n, 2)
        assert ("failing" in state) == (n > 2)
    assert state["totals"]["page.unanswered"] == 1


async def test_a_robots_task_whose_first_failure_is_its_death_gives_the_host_up(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 2))
    [held] = await lab.take()
    detail = ("0", held.stored, "timeout", 1000, 60_000, 1000, "dead", 500, held.stored, "no answer")
    await lab.end(held, Outcome.UNANSWERED, detail=detail)
    assert await give_up(lab) == (2, 0, 0)
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "ENDED"


async def test_a_host_that_was_taken_back_loses_nothing(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    await lab.client.zadd(lab.keys.giving_up, {A: 1})
    assert await give_up(lab) == (0, 0, 0)
    assert len(await lab.take()) == 1


async def test_tasks_that_are_counted_and_lie_nowhere_do_not_hold_the_end(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    await fail(lab)
    await lab.client.lpop(lab.keys.queue(A, "2"))
    assert await lab.frontier.give_up(after_ms=0, idle_ms=0) == (2, 1, 0)
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "UNBALANCED"
    await lab.client.hincrby(lab.keys.totals, "page.queued", -1)
    await lab.client.hincrby(lab.keys.totals, "page.created", -1)
    await lab.client.hincrby(lab.keys.totals, "seed.ended", 1)


async def letters_of(lab: Lab) -> list[tuple[str, str, str, bytes]]:
    """Return the dead letters as they are sent again."""
    rows = await lab.client.xrange(lab.keys.dead)
    return [(row.decode(), f[b"host"].decode(), f[b"level"].decode(), f[b"task"]) for row, f in rows]


async def test_a_replay_gives_a_host_that_was_given_up_its_chance(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2))
    await fail(lab)
    await lab.frontier.give_up(after_ms=0, idle_ms=0)
    assert await lab.frontier.replay(await letters_of(lab)) == ["QUEUED", "QUEUED"]
    assert (await lab.host(A)).keys() == {"queued", "due"}
    assert await lab.frontier.give_up(after_ms=0, idle_ms=0) == (0, 0, 0)
    assert len(await lab.take()) == 1


async def test_a_replay_takes_no_backoff_from_a_host_that_fails_now(open_lab: OpenLab) -> None:
    """A long replay would otherwise ask it without a pause, and it would never be given up."""
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2))
    [held] = await lab.take()
    await lab.end(held, Outcome.DEAD)
    await fail(lab)
    before = await lab.host(A)
    _, changed = await lab.changes(lab.frontier.replay(await letters_of(lab)))
    assert changed[f"host:{A}"] == {"queued": (1, 2)}
    assert before["failures"] == 1
    assert not {"failing", "schedule", "giving_up"} & changed.keys()


@pytest.mark.parametrize("how", ["replay", "chance"])
async def test_a_robots_task_under_way_is_not_asked_for_again(open_lab: OpenLab, how: str) -> None:
    """Its host is given up meanwhile, and gets another chance before it has ended."""
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 2))
    await fail(lab, reason="robots")
    await lab.let_pass(120_000)
    [robots] = await lab.take()
    assert (await lab.frontier.give_up(after_ms=0, idle_ms=0, limit=1))[:2] == (1, 1)
    if how == "replay":
        assert await lab.frontier.replay(await letters_of(lab)) == ["QUEUED"]
    else:
        assert await lab.frontier.set_host(A, chance=1) == "OK"
    assert await lab.take("w2") == []
    await lab.check()
    await lab.end(robots)
    assert len(await lab.take()) == 1


async def test_a_dead_robots_task_is_asked_for_again_once_its_pages_are_replayed(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(*urls("a.test", 1))
    [robots] = await lab.take()
    await lab.end(robots, Outcome.DEAD)
    assert await lab.frontier.give_up(after_ms=0, idle_ms=0) == (1, 0, 0)
    [page] = [letter for letter in await letters_of(lab) if letter[2] != "0"]
    assert await lab.frontier.replay([page]) == ["QUEUED"]
    [again] = await lab.take()
    assert again.task.url == f"{A}/robots.txt"
    assert again.id != robots.id
    await lab.check()


async def test_a_blocked_host_is_left_alone_in_every_state(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.frontier.control(closed=1)
    await lab.offer(*urls("a.test", 3))
    [robots] = await lab.take()
    await lab.frontier.set_host(A, blocked=1)
    # What is under way ends as it ends; nothing follows it, neither links, nor what was to be tried again.
    await lab.end(robots, Outcome.RETRY, links=links(f"{A}/new"))
    await lab.let_pass(5000)
    await lab.frontier.due()
    assert await lab.take() == []
    assert (await lab.frontier.finish()).word == "ENDED"
    await lab.check()
    await lab.frontier.set_host(A, blocked="")
    [robots] = await lab.take()
    await lab.end(robots)
    [held] = await lab.take()
    await lab.frontier.set_host(A, blocked=1)
    await lab.frontier.put_back(FETCH_STREAM, "w1", is_crash=True)
    assert await lab.take() == []
    assert held.task.url == f"{A}/0"
    assert (await lab.frontier.finish()).word == "ENDED"
    await lab.check()
