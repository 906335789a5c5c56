"""Politeness by registrable domain: what is one for all hosts of a domain, and what stays each host's own.

Whole states of a real Redis go in and come out. That it holds whatever is done in whatever order is played by walk.py.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops.audit import audit
from streamcrawl.rules.politeness import Refusal
from streamcrawl.rules.task import Kind, Outcome
from streamcrawl.settings import make_settings
from streamcrawl.store.frontier import Dispatched, Frontier, StageCommit, Wait, name_of, open_shard
from streamcrawl.store.keys import CRAWLS, GROUP
from streamcrawl.store.scripts import Scripts
from streamcrawl.store.shards import join_crawl, shard_of
from tests.integration.snapshot import FETCH_STREAM, Held, Lab, fast, links, near, urls

if TYPE_CHECKING:
    from tests.integration.conftest import OpenLab

A: Final = "http://a.one.com"
B: Final = "http://b.one.com"
C: Final = "http://c.two.com"
ONE: Final = "domain:one.com"
AFTER_MS: Final = 3_600_000
IDLE_MS: Final = 300_000


async def opened(open_lab: OpenLab, **values: Any) -> Lab:
    return await open_lab(politeness_by="domain", **values)


async def hosts_taken(lab: Lab, rounds: int) -> list[str]:
    """End what is dispatched so often, with an answer; return the hosts in their order."""
    found = []
    for _ in range(rounds):
        for held in await lab.take():
            found.append(held.host)
            await lab.end(held)
    return found


def hang(held: Held, first: str = "retry", reason: str = "timeout", jitter: int = 1000) -> dict[str, Any]:
    """Return how an attempt ends whose host took the connection and hung."""
    level = held.task.level.value
    return {"detail": (level, held.stored, reason, 1000, 60_000, jitter, first, 0, held.stored, "it hung")}


# -- one at a time, a delay apart


async def test_a_domain_has_the_state_that_its_hosts_have_without(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, delay_ms=1000)
    await lab.offer(f"{A}/", f"{B}/", f"{C}/")
    now = near(await lab.now())
    state = await lab.check()
    assert state["schedule"] == {"one.com": now, "two.com": now}
    assert state["turns:one.com"] == {A: now, B: now}
    assert state[f"host:{A}"] == {"queued": 1, "domain": "one.com"}
    assert ONE not in state

    one, two = sorted(await lab.take(), key=lambda held: held.host)
    assert {held.host for held in (one, two)} == {A, C}
    state = await lab.check()
    assert (state[ONE], state["turns:one.com"]) == ({f"in_flight:{A}": 1}, {B: now})
    assert "schedule" not in state  # both at their cap

    _, changed = await lab.changes(lab.end(one, since_end_ms=200))
    due = near(await lab.now() + 801)
    assert changed[ONE] == {f"in_flight:{A}": (1, None), "due": (None, due)}
    assert changed["schedule"] == {"one.com": (None, due)}
    assert (await lab.frontier.dispatch(5)).moved == 0
    await lab.let_pass(1001)
    [held] = await lab.take()
    assert held.host == B


async def test_seeds_bring_their_domain_as_links_do(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    assert (await lab.frontier.offer_seeds(links(f"{A}/", f"{B}/")))[:2] == ("OK", 2)
    assert (await lab.check())["schedule"].keys() == {"one.com"}


async def test_schemes_ports_and_names_of_a_domain_count_as_one(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    kin = ("http://one.co.uk", "https://one.co.uk", "http://one.co.uk:81", "http://w.w.one.co.uk")
    others = (
        "http://two.co.uk",
        "http://127.0.0.1",
        "http://[::1]",
        "http://wiki",
        "http://a.corp",
        "http://a.github.io",
    )
    same = {"http://127.0.0.1:81": "127.0.0.1", "https://[::1]:81": "[::1]", "https://wiki:81": "wiki"}
    await lab.offer(*(f"{host}/" for host in (*kin, *others, *same)))
    state = await lab.check()
    domains = {key.removeprefix("host:"): h["domain"] for key, h in state.items() if key.startswith("host:")}
    assert domains == {
        **dict.fromkeys(kin, "one.co.uk"),
        **{host: host.removeprefix("http://") for host in others},
        **same,
    }
    assert len(await lab.take()) == 1 + len(others)


async def test_robots_txt_and_a_visit_count_too(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, delay_ms=1000, obey_robots=True)
    await lab.offer(f"{A}/", f"{B}/")
    [held] = await lab.take()
    assert held.task.kind is Kind.ROBOTS
    # Another worker, whose robots.txt redirects there, has to wait; this one, on its own behalf, does not.
    assert (await lab.frontier.begin_visit(B, wait_max_ms=5000, took_max_ms=5000))[0] == "WAIT"
    await lab.let_pass(1001)
    word, _, reservation = await lab.frontier.begin_visit(B, wait_max_ms=5000, took_max_ms=5000, is_kin=True)
    assert word == "GO"
    await lab.frontier.end_visit(B, reservation, since_end_ms=0)
    due = (await lab.snapshot())[ONE]["due"]
    assert due == near(await lab.now() + 1001)
    await lab.end(held)
    assert (await lab.frontier.dispatch(5)).moved == 0
    await lab.let_pass(1100)
    [held] = await lab.take()
    assert (held.host, held.task.kind) == (B, Kind.ROBOTS)


async def test_with_a_cap_the_domain_has_that_many_and_hosts_share_them(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, host_concurrency=3)
    await lab.offer(*urls("a.one.com", 9), *urls("b.one.com", 9), f"{C}/")
    taken = Counter(held.host for held in await lab.take())
    assert taken == {A: 2, B: 1, C: 1}
    state = await lab.check()
    assert state[ONE] == {f"in_flight:{A}": 2, f"in_flight:{B}": 1}


async def test_starts_of_a_domain_are_a_delay_apart_whichever_host_they_are_of(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, host_concurrency=2, delay_ms=1000)
    await lab.offer(f"{A}/", f"{B}/")
    [one] = await lab.take()
    await lab.let_pass(1001)
    [two] = await lab.take()
    assert {one.host, two.host} == {A, B}

    async def start(held: Held) -> tuple[str, int]:
        return await lab.frontier.start(held.id, held.host, wait_max_ms=5000, margin_ms=0)

    assert await start(one) == ("START", 0)
    assert await start(two) == ("WAIT", near(1000, 900))
    await lab.end(one)
    await lab.let_pass(500)
    assert (await start(two))[0] == "WAIT"  # from the end of the other host's fetch
    await lab.let_pass(600)
    assert await start(two) == ("START", 0)


async def test_what_a_dead_worker_had_of_one_host_holds_its_siblings_for_the_delay(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, delay_ms=1000)
    await lab.offer(f"{A}/", f"{B}/")
    [held] = await lab.take("w1")
    await lab.let_pass(1)  # who is offered and put back in one millisecond waits for as long as the other
    assert await lab.frontier.put_back(FETCH_STREAM, "w1", is_crash=True) == 1
    assert await lab.frontier.dispatch(5) == Dispatched(0, near(1001, 900), "OK")
    await lab.let_pass(1001)
    [after] = await lab.take("w2")
    assert after.host != held.host  # its turn was had


async def test_a_wait_of_one_host_passes_it_over_and_no_other(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.offer(f"{A}/", *urls("b.one.com", 2))
    [held] = await lab.take()
    assert held.host == A
    await lab.frontier.hand_back(FETCH_STREAM, [held.id], wait=Wait(60_000, "address_cap"))
    assert await hosts_taken(lab, 4) == [B, B]
    await lab.let_pass(60_001)
    assert await hosts_taken(lab, 1) == [A]


# -- turns


async def test_a_host_with_very_much_does_not_keep_its_siblings_waiting(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, delay_ms=10)
    await lab.offer(*urls("a.one.com", 500))
    found = []
    for n in range(9):
        if n == 2:
            await lab.offer(*urls("b.one.com", 3), *urls("c.one.com", 1))
        await lab.let_pass(20)
        found += await hosts_taken(lab, 1)
    assert Counter(found[2:]) == {A: 3, B: 3, "http://c.one.com": 1}
    assert found[2:6].count(A) <= 2


async def test_a_dispatch_looks_at_few_of_the_hosts_of_a_large_domain(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, delay_ms=1000)
    await lab.offer(*(f"http://h{n}.one.com/" for n in range(400)), f"{C}/")

    async def calls() -> int:
        return int((await lab.client.info("commandstats"))["cmdstat_hgetall"]["calls"])

    before = await calls()
    assert len(await lab.take()) == 2
    assert await calls() - before <= 6
    state = await lab.snapshot()
    assert len(state["turns:one.com"]) == 399


async def test_hosts_that_fail_come_with_each_fifth_turn_while_others_are_well(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    down = [f"http://down{n}.one.com" for n in range(20)]
    await lab.offer(*(f"{host}/" for host in down), *urls("a.one.com", 60))
    found = []
    for _ in range(120):
        for held in await lab.take():
            found.append(held.host)
            await lab.end(held, Outcome.UNANSWERED if held.host in down else Outcome.DONE)
        await lab.let_pass(1000)
    rest = found[len(down) * 2 :]  # by then each has failed
    assert 0 < 4 * sum(host in down for host in rest[:20]) <= 20
    await lab.check()
    # With nothing else left they are asked one after another.
    [held] = await lab.take()
    assert held.host in down


# -- what a domain bears


@pytest.mark.parametrize("refusal", [Refusal.TOO_MANY, Refusal.UNAVAILABLE])
async def test_a_refusal_of_one_host_slows_its_siblings(open_lab: OpenLab, refusal: Refusal) -> None:
    lab = await opened(open_lab, delay_ms=1000, delay_max_ms=60_000)
    await lab.offer(*urls("a.one.com", 2), f"{B}/", *urls("c.two.com", 2))
    await lab.let_pass(1)  # turns are by the ms
    held = {one.host: one for one in await lab.take()}
    await lab.end(held[A], Outcome.UNANSWERED, refusal=refusal, took_ms=5, **hang(held[A], reason=refusal.value))
    await lab.end(held[C])
    assert (await lab.snapshot())[ONE]["throttled"] == 2000
    await lab.let_pass(1001)
    assert [one.host for one in await lab.take()] == [C]
    await lab.let_pass(1001)
    [sibling] = await lab.take()
    assert (sibling.host, sibling.delay) == (B, 2000)
    await lab.end(sibling, took_ms=5)
    state = await lab.check()
    assert 1000 < state[ONE]["throttled"] < 2000  # an answer of any of them brings it back
    assert not {"throttled", "due", "blocked_until"} & state[f"host:{A}"].keys()


async def test_a_retry_after_is_of_the_whole_domain(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.offer(f"{A}/", f"{B}/", *urls("c.two.com", 2))
    held = {one.host: one for one in await lab.take()}
    await lab.commit(*(lab.commit_of(one, block_ms=60_000 if one.host == A else 0) for one in held.values()))
    assert [one.host for one in await lab.take()] == [C]
    await lab.let_pass(60_001)
    assert [one.host for one in await lab.take()] == [B]


async def test_a_crawl_delay_of_one_host_holds_after_its_own_fetches(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, obey_robots=True, delay_ms=10)
    await lab.offer(*urls("a.one.com", 3), *urls("b.one.com", 3))
    delays = {A: 5000, B: 0}
    started: list[tuple[int, str]] = []
    for _ in range(400):
        for held in await lab.take():
            started.append((await lab.now(), held.host))
            is_robots = held.task.kind is Kind.ROBOTS
            await lab.end(held, detail=("{}", 10**9, delays[held.host]) if is_robots else ())
        await lab.let_pass(100)
    assert Counter(host for _, host in started) == {A: 4, B: 4}
    for (before, host), (after, _) in pairwise(started):
        assert after - before >= max(10, delays[host])


async def test_an_operator_sets_delay_and_cap_of_a_domain_by_any_host_of_it(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.offer(*urls("a.one.com", 3), *urls("b.one.com", 3))
    answer, changed = await lab.changes(lab.frontier.set_host("https://one.com", delay=700, cap=2))
    assert (answer, changed) == ("OK", {ONE: {"delay_set": (None, 700), "cap": (None, 2)}})
    [held] = await lab.take()
    assert (held.delay, held.cap) == (700, 2)
    await lab.frontier.set_host(B, delay="", cap="")
    due = near(await lab.now() + 700)
    assert (await lab.snapshot())[ONE] == {"due": due, "start_due": 1, f"in_flight:{held.host}": 1}
    # Blocked is a host for itself.
    await lab.frontier.set_host(A, blocked=1)
    await lab.end(held)
    await lab.let_pass(701)
    assert set(await hosts_taken(lab, 9)) == {B}


# -- circuits


async def test_a_connection_that_is_not_had_is_the_affair_of_its_host(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, delay_ms=10, delay_max_ms=60_000)
    await lab.offer(*urls("a.one.com", 2), *urls("b.one.com", 2))
    [held] = await lab.take()
    assert held.host == A
    connect = (held.task.level.value, held.stored, "connect_timeout", 1000, 60_000, 1000)
    await lab.end(held, Outcome.UNANSWERED, detail=connect, refusal=Refusal.TIMEOUT, took_ms=5)
    state = await lab.check()
    assert state[f"host:{A}"]["failing"] == "connect_timeout"
    assert state[ONE].keys() == {"due"}
    assert set(state["probes:one.com"]) == {A}
    for _ in range(2):
        await lab.let_pass(11)
        assert await hosts_taken(lab, 1) == [B]
    assert (await lab.frontier.dispatch(5)).moved == 0


async def test_three_hosts_in_a_row_that_hang_open_the_circuit_of_their_domain(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, host_concurrency=2)
    await lab.offer(*(f"http://h{n}.one.com/{path}" for n in range(6) for path in range(2)))
    for n in range(3):
        first, *others = await lab.take()
        await lab.frontier.hand_back(FETCH_STREAM, [one.id for one in others])
        await lab.end(first, Outcome.UNANSWERED, **hang(first))
        is_open = n == 2
        state = await lab.check()
        assert (state[ONE].get("failing"), state[ONE]["failures"]) == ("timeout" if is_open else None, n + 1)
    assert state["totals"]["page.retried"] == 2  # the third is the domain's: no try is counted
    assert state["totals"]["page.unanswered"] == 1
    wait = await lab.frontier.dispatch(5)
    assert (wait.moved, wait.next_ms) == (0, near(4000, 500))
    await lab.let_pass(4001)
    await lab.frontier.due()
    [probe] = await lab.take()  # half-open: one, although the cap is two
    assert probe.cap == 1
    await lab.end(probe)
    state = await lab.check()
    assert not {"failing", "failures", "failing_since"} & state[ONE].keys()
    assert len(await lab.take() + await lab.take()) == 2


async def test_an_answer_of_any_host_begins_the_count_of_the_domain_anew(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.offer(*(f"http://h{n}.one.com/" for n in range(8)))
    for n in range(8):
        [held] = await lab.take()
        if n % 3 == 2:
            await lab.end(held)
        else:
            await lab.end(held, Outcome.UNANSWERED, **hang(held))
    state = await lab.check()
    assert state[ONE]["failures"] == 2
    assert "failing" not in state


# -- giving up


async def give_up(lab: Lab) -> tuple[int, int, int]:
    return await lab.frontier.give_up(after_ms=AFTER_MS, idle_ms=IDLE_MS, limit=500)


async def test_one_host_is_given_up_and_its_siblings_go_on(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.offer(*urls("a.one.com", 3), *urls("b.one.com", 20))
    for _ in range(16):
        [held] = await lab.take()
        await lab.end(held, Outcome.UNANSWERED if held.host == A else Outcome.DONE)
        await lab.let_pass(AFTER_MS // 8)
    assert await give_up(lab) == (3, 1, 0)
    state = await lab.check()
    assert state[f"host:{A}"]["given_up"] == "host_unreachable"
    assert state["schedule"].keys() == {"one.com"}
    [held] = await lab.take()
    assert held.host == B


async def test_the_shorter_limit_waits_for_siblings_that_are_well(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.offer(*urls("a.one.com", 2), f"{B}/1")

    async def fail(host: str) -> None:
        [held] = await lab.take()
        assert held.host == host
        await lab.end(held, Outcome.UNANSWERED)
        await lab.let_pass(IDLE_MS)

    await fail(A)
    [well] = await lab.take()
    assert well.host == B
    assert await give_up(lab) == (0, 0, 0)  # it is under way, and answers
    await lab.end(well)
    await fail(A)
    await lab.let_pass(60_000)
    await fail(A)
    assert await give_up(lab) == (2, 1, 0)


async def test_a_domain_that_hangs_is_given_up_with_all_its_hosts(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.offer(*(f"http://h{n}.one.com/" for n in range(120)), *urls("c.two.com", 2))
    # Something is left to do.
    await lab.client.hset(lab.keys.domain("two.com"), "blocked_until", await lab.now() + 10**9)
    await lab.frontier.set_host(C, cap="")

    async def hang_one() -> None:
        await lab.frontier.due()
        for held in await lab.take():
            await lab.end(held, Outcome.UNANSWERED, **hang(held))
        await lab.let_pass(120_000)

    for _ in range(29):
        await hang_one()
    assert await give_up(lab) == (0, 0, 0)
    for _ in range(4):
        await hang_one()
    given = [(await give_up(lab))[1] for _ in range(4)]
    assert sum(given) == 120
    assert max(given) <= 60
    state = await lab.check()
    assert state["totals"]["page.dead.host_unreachable"] == 120
    assert "turns:one.com" not in state
    assert "probes:one.com" not in state
    errors = {letter["error"] for letter in state["dead"]["entries"]}
    assert "no answer of use of any host of one.com" in errors
    # Whoever is found of it later gets all tries.
    assert not {"failing", "failures"} & state[ONE].keys()
    await lab.offer("http://new.one.com/")
    await lab.let_pass(120_000)
    [held] = await lab.take()
    await lab.end(held, Outcome.UNANSWERED, **hang(held))
    assert (await give_up(lab))[1] == 0


async def test_domains_that_are_down_together_are_given_up_in_bounded_steps(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    domains = [f"d{n}.com" for n in range(5)]
    await lab.offer(*(f"http://h{n}.{name}/" for name in domains for n in range(30)))
    for _ in range(36):
        await lab.frontier.due()
        for held in await lab.take():
            await lab.end(held, Outcome.UNANSWERED, **hang(held))
        await lab.let_pass(120_000)
    given: list[int] = []
    while not given or given[-1]:
        given.append((await give_up(lab))[1])
    assert sum(given) == 150
    assert max(given) <= 60
    state = await lab.check()
    assert state["totals"]["page.dead.host_unreachable"] == 150
    assert not [key for key in state if key.startswith(("turns:", "probes:"))]


async def test_a_chance_for_a_host_forgives_its_domain(open_lab: OpenLab) -> None:
    lab = await opened(open_lab, delay_max_ms=60_000)
    await lab.offer(*(f"http://h{n}.one.com/" for n in range(4)))
    for _ in range(4):
        await lab.let_pass(60_000)
        for held in await lab.take():
            await lab.end(held, Outcome.UNANSWERED, refusal=Refusal.TIMEOUT, took_ms=1, **hang(held))
    state = await lab.snapshot()
    assert {"failing", "throttled", "blocked_until"} <= state[ONE].keys()
    await lab.frontier.set_host("http://h0.one.com", chance=1)
    state = await lab.check()
    assert not {"failing", "failures", "throttled", "blocked_until"} & state[ONE].keys()


# -- recounts


async def test_what_a_domain_counts_wrong_is_found_and_mended(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.offer(*urls("a.one.com", 3), f"{B}/", f"{C}/")
    held = {one.host: one for one in await lab.take()}
    await lab.client.sadd(CRAWLS, lab.keys.crawl)

    async def faults() -> str:
        return "\n".join((await audit(lab.crawl)).faults)

    assert await lab.frontier.reconcile() == 0
    assert await faults() == ""

    await lab.client.hset(lab.keys.domain("one.com"), f"in_flight:{A}", 4)
    assert f"{A}: one.com counts 4 of it in flight, found 1" in await faults()
    assert await lab.frontier.reconcile() == 1
    await lab.check()

    await lab.client.delete(lab.keys.turns("one.com"))
    assert f"{B}: not in its domain's turns" in await faults()
    assert await lab.frontier.reconcile() == 2
    await lab.check()

    await lab.end(held[A])
    await lab.client.delete(lab.keys.schedule)
    assert "one.com: not in the schedule, should be" in await faults()
    assert await lab.frontier.reconcile() >= 1
    await lab.check()

    await lab.client.delete(lab.keys.domain("one.com"))
    [again] = await lab.take()
    await lab.client.delete(lab.keys.domain("one.com"))
    assert await lab.frontier.reconcile() >= 1
    state = await lab.check()
    assert state[ONE] == {f"in_flight:{again.host}": 1}
    await lab.client.srem(CRAWLS, lab.keys.crawl)


async def test_a_host_in_the_turns_of_another_domain_leaves_them(open_lab: OpenLab) -> None:
    """Its hash was lost and made anew by a worker that knows other public suffixes."""
    lab = await opened(open_lab)
    await lab.offer(*urls("b.one.com", 2))
    await lab.client.zadd(lab.keys.turns("one.com"), {C: 1})
    await lab.offer(f"{C}/")
    found = await hosts_taken(lab, 3)
    assert sorted(found) == [B, B, C]


# -- what is offered, and what a crawl is


async def test_a_link_without_its_domain_is_refused(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    before = await lab.snapshot()
    plain = Frontier(lab.client, lab.keys, lab.frontier.epoch)
    assert await plain.offer(links(f"{A}/")) == ("INVALID", 1)
    run = Scripts(lab.client, lab.keys.state).run
    for name in (f"{A}|two.com", "http://aone.com|one.com", f"{A}|", f"{A}|one.com|one.com", "http://a/b|b"):
        packed = msgspec.msgpack.encode(["5", name, "2", '"page","/",0]'])
        assert await run("offer", lab.frontier.epoch, "seeds", packed) == [b"INVALID", 1]
    assert await lab.snapshot() == before


async def test_links_of_pages_and_of_stages_and_seeds_bring_their_domains(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    await lab.frontier.flow(["enrich"], b'{"enrich": {"from": ["page"], "batch": 1}}')
    assert await lab.frontier.offer_seeds(links(f"{C}/")) == ("OK", 1, 0.0)
    [held] = await lab.take()
    item = ("enrich", '["any",{},0]')
    assert await lab.end(held, links=links(f"{A}/1", depth=1), items=item, url=f"{C}/") == "DONE"
    stream = lab.keys.stage_stream("enrich")
    rows: Any = await lab.client.xreadgroup(GROUP, "t1", {stream: ">"})
    ending = StageCommit(rows[0][1][0][0].decode(), Outcome.DONE, links=links(f"{B}/1", depth=1))
    words, _ = await lab.frontier.stage_commit("t1", "enrich", [ending.pack(by_domain=True)], 0)
    assert words == ["DONE"]
    state = await lab.check()
    assert state["turns:one.com"].keys() == {A, B}


async def test_a_crawl_stays_by_what_it_was_made_with(open_lab: OpenLab) -> None:
    lab = await opened(open_lab)
    name = lab.keys.crawl
    with pytest.raises(ConfigError, match="cannot change"):
        await open_shard(lab.client, make_settings(**fast(name)))
    joined = await join_crawl(lab.client, name)
    assert joined.first.by_domain
    assert joined.count_as_one(A, B)
    assert not joined.count_as_one(A, C)
    assert joined.first.scheduled_as(A) == "one.com"


def test_a_domain_lies_in_one_shard() -> None:
    for shards in (2, 7):
        assert len({shard_of(host, shards) for host in (A, B, "https://one.com:81")}) == 1
    assert name_of(A, by_domain=True) == f"{A}|one.com"
    assert name_of(A, by_domain=False) == A
