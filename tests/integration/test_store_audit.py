"""The recount: reconcile mends what hosts count, audit names what is wrong, and neither calls a fault the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.rules.task import Outcome
from tests.integration.snapshot import FETCH_STREAM, Lab, assert_accounts, urls

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
    flat = (await lab.frontier.audit_chunk(hosts))[5]
    return {flat[n].decode(): tuple(flat[n + 1 : n + 7]) for n in range(0, len(flat), 7)}


async def test_audit_agrees_with_a_sound_crawl(mixed: Lab) -> None:
    assert await rows_of(mixed, A, B, "http://none.test") == {
        A: (4, 4, 2, 2, 0, 0),
        B: (0, 0, 1, 1, 0, 0),
        "http://none.test": (0, 0, 0, 0, 0, 0),
    }
    answer: list[Any] = await mixed.frontier.audit_chunk([])
    totals = dict(zip(answer[1][::2], map(int, answer[1][1::2]), strict=True))
    assert totals[b"page.created"] == 10
    assert answer[2:5] == [[b"stream:fetch", 3, 3, b"stream:fetch:out", 1, 0], 1, 1]
    assert sorted(answer[6]) == [A.encode(), B.encode()]
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
    answer = await mixed.frontier.audit_chunk([])
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
