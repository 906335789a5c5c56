"""The recount: reconcile mends what hosts count, audit names what is wrong, and neither calls a fault the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import StoreUnavailable
from streamcrawl.rules.task import Outcome
from streamcrawl.store import recount
from streamcrawl.store.recount import Walk
from tests.integration.snapshot import FETCH_STREAM, Held, Lab, assert_accounts, urls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.conftest import OpenLab

A, B = "http://a.test", "http://b.test"


@pytest.fixture
async def mixed(open_lab: OpenLab) -> AsyncIterator[Lab]:
    """A crawl with something in every structure."""
    lab = await open_lab(sinks=["out"], host_concurrency=2)
    await lab.offer(*urls("a.test", 6), *urls("b.test", 2), *urls("c.test", 2))
    held = {one.task.url: one for one in await lab.take()}
    await lab.end(held["http://c.test/0"], items=("out", "{}"))
    await lab.end(held["http://c.test/1"], Outcome.RETRY)
    await lab.end(held["http://b.test/0"], Outcome.DEAD)
    assert lab.frontier.epoch
    yield lab
    # What a test broke is put right, so that the check of the fixture tells what else it broke.
    await lab.frontier.reconcile()


async def rows_of(lab: Lab, *hosts: str) -> dict[str, tuple[int, ...]]:
    """Return audit's row of each host: queued counted and found, in_flight counted and found, scheduled, should be."""
    flat = (await lab.audit_chunk(hosts))[5]
    return {flat[n].decode(): tuple(flat[n + 1 : n + 7]) for n in range(0, len(flat), 13)}


async def test_audit_agrees_with_a_sound_crawl(mixed: Lab) -> None:
    assert await rows_of(mixed, A, B, "http://none.test") == {
        A: (4, 4, 2, 2, 0, 0),
        B: (0, 0, 1, 1, 0, 0),
        "http://none.test": (0, 0, 0, 0, 0, 0),
    }
    answer: list[Any] = await mixed.audit_chunk([])
    totals = dict(zip(answer[1][::2], map(int, answer[1][1::2]), strict=True))
    assert totals[b"page.created"] == 10
    assert answer[2:5] == [[b"stream:fetch", 3, 3, b"stream:fetch:out", 1, 0], 1, 1]
    assert sorted(answer[6]) == [A.encode(), B.encode()]  # none of them was asked for
    assert answer[7] == [b"page", 3]


async def test_a_removed_queue_element_is_named(mixed: Lab) -> None:
    removed = await mixed.client.lpop(mixed.keys.queue(A, "2"))
    assert (await rows_of(mixed, A))[A] == (4, 3, 2, 2, 0, 0)
    with pytest.raises(AssertionError, match=r"page.queued: counted 4, found 3"):
        await assert_accounts(mixed.frontier)
    assert await mixed.frontier.reconcile() == 1
    assert (await rows_of(mixed, A))[A] == (3, 3, 2, 2, 0, 0)
    await mixed.client.lpush(mixed.keys.queue(A, "2"), removed)


async def test_a_removed_stream_entry_is_named(mixed: Lab) -> None:
    [entry_id, fields] = (await mixed.client.xrange(mixed.keys.fetch_stream))[0]
    await mixed.client.xdel(mixed.keys.fetch_stream, entry_id)
    host = fields[b"host"].decode()
    counted, found = (await rows_of(mixed, host))[host][2:4]
    assert (counted, found) == ((2, 1) if host == A else (1, 0))
    answer = await mixed.audit_chunk([])
    assert answer[2][:3] == [b"stream:fetch", 2, 3]  # a pending row more than there are entries
    assert answer[7] == [b"page", 2]
    with pytest.raises(AssertionError, match=r"page.streamed: counted 3, found 2"):
        await assert_accounts(mixed.frontier)
    await mixed.client.xack(mixed.keys.fetch_stream, "workers", entry_id)
    await mixed.client.hincrby(mixed.keys.totals, "page.streamed", -1)
    await mixed.client.hincrby(mixed.keys.totals, "page.created", -1)
    await mixed.client.hincrby(mixed.keys.totals, "seed.ended", 1)


async def test_a_changed_in_flight_is_named_and_mended(mixed: Lab) -> None:
    await mixed.client.hincrby(mixed.keys.host(A), "in_flight", -1)
    assert (await rows_of(mixed, A))[A] == (4, 4, 1, 2, 0, 1)
    with pytest.raises(AssertionError, match=r"in_flight of http://a.test: counted 1, found 2"):
        await assert_accounts(mixed.frontier)
    assert await mixed.frontier.reconcile() == 1
    assert (await rows_of(mixed, A))[A] == (4, 4, 2, 2, 0, 0)


@pytest.mark.parametrize("is_in", [True, False])
async def test_a_host_wrongly_in_or_out_of_the_schedule_is_named_and_mended(mixed: Lab, is_in: bool) -> None:
    if is_in:
        await mixed.client.zadd(mixed.keys.schedule, {B: 5})
    else:
        held = [one for one in await all_held(mixed) if one[1] == A.encode()]
        await mixed.frontier.hand_back(FETCH_STREAM, [entry_id for entry_id, _ in held])
        await mixed.client.zrem(mixed.keys.schedule, A)
    host = B if is_in else A
    assert (await rows_of(mixed, host))[host][4:] == ((1, 0) if is_in else (0, 1))
    assert await mixed.frontier.reconcile() == 1
    assert (await rows_of(mixed, host))[host][4:] == ((0, 0) if is_in else (1, 1))


async def all_held(lab: Lab) -> list[tuple[str, bytes]]:
    rows = await lab.client.xrange(lab.keys.fetch_stream)
    return [(entry_id.decode(), fields[b"host"]) for entry_id, fields in rows]


async def test_reconcile_goes_through_every_host(open_lab: OpenLab) -> None:
    lab = await open_lab()
    hosts = [f"http://h{n}.test" for n in range(450)]
    await lab.offer(*(f"{host}/" for host in hosts))
    async with lab.client.pipeline(transaction=False) as pipe:
        for host in hosts:
            pipe.hset(lab.keys.host(host), mapping={"in_flight": 1, "queued": 7})
            pipe.zrem(lab.keys.schedule, host)
        await pipe.execute()
    assert await lab.frontier.reconcile() == 450
    assert await lab.frontier.reconcile() == 0
    assert {host async for chunk in lab.frontier.host_chunks(7) for host in chunk} == set(hosts)


async def test_a_verdict_out_of_date_does_not_hide_a_host_from_reconcile(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(f"{A}/")
    await lab.end_all(await lab.take())
    await lab.let_pass(100_000)
    assert await lab.frontier.reconcile() == 0
    [robots] = await lab.take()
    assert robots.task.path == "/robots.txt"


# -- a stream that no script can read at once


@pytest.fixture
async def crowded(open_lab: OpenLab) -> AsyncIterator[Lab]:
    """A crawl with 1,300 entries in the stream: 300 of one host, and one of each of 1,000 others."""
    lab = await open_lab(host_concurrency=300, slots=5000)
    await lab.offer(*urls("a.test", 310), *(f"http://h{n}.test/" for n in range(1000)))
    while await lab.take():
        pass
    assert await lab.client.xlen(lab.keys.fetch_stream) == 1300
    yield lab
    await lab.frontier.reconcile()


async def found_by(lab: Lab, walk: Walk, *hosts: str) -> dict[str, tuple[int, int]]:
    """Return in_flight as it is counted and as it was found."""
    found: dict[str, tuple[int, int]] = {}
    async for answer in lab.frontier.audit(walk, hosts):
        flat = answer[5]
        found |= {flat[n].decode(): (flat[n + 3], flat[n + 4]) for n in range(0, len(flat), 13)}
    return found


async def test_entries_of_a_long_stream_are_found_as_they_are_at_the_moment(crowded: Lab) -> None:
    walk = Walk(crowded.client, crowded.keys.fetch_stream)
    hosts = (A, "http://h0.test", "http://h999.test", B)
    assert await found_by(crowded, walk, *hosts) == {A: (300, 300), hosts[1]: (1, 1), hosts[2]: (1, 1), B: (0, 0)}
    assert walk.has_walked
    assert len(walk.hosts) == 1001
    # What the walk saw may have left since, and something else come.
    mine = [held for held in await held_of(crowded) if held.host in (A, hosts[1])]
    await crowded.end_all(mine[:60] + [one for one in mine if one.host == hosts[1]])
    await crowded.offer(f"{B}/")
    await crowded.frontier.dispatch(100)
    left = 300 - len([one for one in mine[:60] if one.host == A])
    assert await found_by(crowded, walk, *hosts) == {
        A: (left + 10, left + 10), hosts[1]: (0, 0), hosts[2]: (1, 1), B: (1, 1),
    }  # fmt: skip


async def held_of(lab: Lab) -> list[Held]:
    return [lab.held(*row) for row in await lab.client.xrange(lab.keys.fetch_stream)]


async def test_ids_of_many_entries_are_brought_in_parts(crowded: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recount, "SEEN_PER_CALL", 100)
    walk = Walk(crowded.client, crowded.keys.fetch_stream)
    hosts = [A, *(f"http://h{n}.test" for n in range(250))]
    answers = [answer[5] async for answer in crowded.frontier.audit(walk, hosts)]
    # The first answer came before anything was known to be too much.
    assert [len(flat) // 13 for flat in answers] == [1, 100, 100, 50]
    assert [flat[n].decode() for flat in answers for n in range(0, len(flat), 13)] == hosts


async def test_ids_are_forgotten_and_read_again_when_they_are_too_many(
    crowded: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recount, "KEPT_MAX", 0)
    walk = Walk(crowded.client, crowded.keys.fetch_stream)
    await found_by(crowded, walk, A)
    for left in (10, 0):
        held = await held_of(crowded)
        await crowded.end_all(held)
        await crowded.offer(*(f"http://n{held[0].id}-{n}.test/" for n in range(1100)))
        while await crowded.take():
            pass
        assert await found_by(crowded, walk, A) == {A: (left, left)}
    assert A not in walk.hosts


async def test_reconcile_is_right_with_a_long_stream(crowded: Lab) -> None:
    assert await crowded.frontier.reconcile() == 0
    await crowded.client.hset(crowded.keys.host(A), "in_flight", 3)
    await crowded.client.delete(crowded.keys.host("http://h7.test"))
    assert await crowded.frontier.reconcile() == 2
    assert (await crowded.host(A))["in_flight"] == 300
    assert (await crowded.host("http://h7.test"))["in_flight"] == 1


async def test_stream_that_runs_away_is_said_to(crowded: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recount, "TRIES_MAX", 1)
    with pytest.raises(StoreUnavailable, match="faster than they can be read"):
        await found_by(crowded, Walk(crowded.client, crowded.keys.fetch_stream), A)


# -- lists of hosts


async def test_lists_of_blocked_and_given_up_hosts_are_rebuilt(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/1", f"{A}/2", f"{B}/1")
    await lab.frontier.set_host(B, blocked=1)
    [held] = await lab.take()
    await lab.end(held, Outcome.UNANSWERED)
    assert (await lab.frontier.give_up(after_ms=0, idle_ms=0))[1] == 1
    before = await lab.snapshot()
    assert list(before["blocked"]) == [B]
    assert list(before["given_up"]) == [A]
    await lab.client.delete(lab.keys.blocked)
    await lab.client.zadd(lab.keys.blocked, {A: 1, "http://none.test": 1})
    await lab.client.rename(lab.keys.given_up, lab.keys.prefix + "x")
    await lab.client.delete(lab.keys.prefix + "x")
    assert await lab.frontier.reconcile() == 3
    after = await lab.snapshot()
    assert (list(after["blocked"]), list(after["given_up"])) == ([B], [A])
    assert await lab.frontier.reconcile() == 0
    await lab.frontier.set_host(B, blocked="")
    await lab.frontier.set_host(A, chance=1)
    after = await lab.snapshot()
    assert "blocked" not in after
    assert "given_up" not in after


async def test_host_over_its_page_budget_is_not_among_those_given_up(open_lab: OpenLab) -> None:
    lab = await open_lab(pages_per_host_max=1)
    await lab.offer(f"{A}/1", f"{A}/2")
    await lab.end_all(await lab.take())
    assert (await lab.host(A))["given_up"] == "host_budget"
    assert "given_up" not in await lab.snapshot()
    await lab.frontier.give_up(after_ms=0, idle_ms=0)
