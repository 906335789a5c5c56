"""Who holds an entry: crashes, reclaim after a lease, heartbeats, and commits that come too late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.rules.task import Outcome
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import TAKEN_PER_CALL, Beat
from streamcrawl.store.keys import GROUP
from tests.integration.snapshot import FETCH_STREAM, Held, Lab, fast, links, urls, wait_until
from tests.redis_server import RedisServer, found_binaries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.conftest import OpenLab

LEASE_MS = 30_000


async def hosts_taken(lab: Lab, count: int, consumer: str = "w1") -> list[Held]:
    """Return `count` entries of as many hosts, read by one consumer."""
    await lab.offer(*(f"http://h{n}.test/" for n in range(count)))
    held = [one for _ in range(0, count, 100) for one in await lab.take(consumer)]  # 100 at most a call
    assert len(held) == count
    return held


async def reclaim(lab: Lab, limit: int = 100) -> tuple[str, int]:
    await lab.let_reclaim()
    return await lab.frontier.reclaim(FETCH_STREAM, lease_ms=LEASE_MS, limit=limit)


# -- the fence


async def _hand_back(lab: Lab, held: Held) -> None:
    assert await lab.frontier.hand_back(FETCH_STREAM, [held.id]) == 1


async def _put_back(lab: Lab, held: Held) -> None:
    assert await lab.frontier.put_back(FETCH_STREAM, "w1", is_crash=False) == 1


async def _reclaim(lab: Lab, held: Held) -> None:
    await lab.let_idle([held], LEASE_MS)
    assert await reclaim(lab) == ("OK", 1)


@pytest.mark.parametrize("take_back", [_hand_back, _put_back, _reclaim])
@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.CONTINUED])
async def test_a_late_commit_writes_nothing(
    open_lab: OpenLab, take_back: Callable[[Lab, Held], Awaitable[None]], outcome: Outcome
) -> None:
    lab = await open_lab(sinks=["out"])
    [held] = await hosts_taken(lab, 1)
    await take_back(lab, held)
    late = lab.commit_of(held, outcome, links=links("http://new.test/"), items=("out", "{}"), block_ms=1000)

    committed, changed = await lab.changes(lab.commit(late))
    assert committed.words == ["LEASE_LOST"]
    assert changed == {"totals": {"page.lease_lost": (None, 1)}}
    assert await lab.frontier.offer(links("http://new.test/"), whose=held.id) == ("LEASE_LOST", 0)
    assert (await lab.frontier.start(held.id, held.host, wait_max_ms=0, margin_ms=0))[0] == "LEASE_LOST"

    [again] = await lab.take("w2")
    assert again.id != held.id
    assert (await lab.commit(late)).words == ["LEASE_LOST"]  # also while another worker has the task
    assert await lab.end(again) == "DONE"
    assert (await lab.commit(late)).words == ["LEASE_LOST"]


# -- crashes


async def crash(lab: Lab, consumer: str, expected: int) -> None:
    """The worker dies with all it holds, and its supervisor says so."""
    assert await lab.frontier.put_back(FETCH_STREAM, consumer, is_crash=True) == expected


async def test_a_task_that_kills_its_worker_dies_alone_and_its_neighbours_live(open_lab: OpenLab) -> None:
    lab = await open_lab(crashes_max=3)
    await hosts_taken(lab, 17)
    poison = "http://h0.test"
    for n in range(1, 5):
        await crash(lab, "w1", 17)
        held = await lab.take()
        assert {one.task.crashes for one in held} == {min(n, 2)}, "a shared crash counts up to two only"
    for n in range(1, 4):
        # From now on it runs alone: its worker has handed the others back.
        others = [one.id for one in held if one.host != poison]
        assert await lab.frontier.hand_back(FETCH_STREAM, others) == 16
        await crash(lab, "w1", 1)
        held = await lab.take()
        assert len(held) == (17 if n < 3 else 16)
        assert {one.task.crashes for one in held if one.host == poison} == ({2 + n} if n < 3 else set())
    state = await lab.check()
    [letter] = state["dead"]["entries"]
    assert (letter["host"], letter["reason"], letter["worker"]) == (poison, "crashed", "w1")
    assert letter["task"].startswith("[5,")
    assert {one.task.crashes for one in held} == {2}
    await lab.end_all(held)
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "ENDED"


@pytest.mark.parametrize("way", ["put_back", "reclaim"])
async def test_the_last_of_many_taken_back_in_steps_is_not_alone(open_lab: OpenLab, way: str) -> None:
    """A worker with more entries than one call takes back: whichever comes last, it was not the only one."""
    lab = await open_lab(crashes_max=1)
    count = 2 * TAKEN_PER_CALL + 1
    held = await hosts_taken(lab, count)
    for n in range(1, 4):
        if way == "put_back":
            await crash(lab, "w1", count)
        else:
            await lab.let_idle(held, LEASE_MS)
            assert [(await reclaim(lab))[1] for _ in range(4)] == [TAKEN_PER_CALL, TAKEN_PER_CALL, 1, 0]
        held = await hosts_taken(lab, count)
        assert {one.task.crashes for one in held} == {min(n, 2)}
    assert "dead" not in await lab.snapshot()


async def test_an_orderly_end_counts_no_crash(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await hosts_taken(lab, 3)
    assert await lab.frontier.put_back(FETCH_STREAM, "w1", is_crash=False) == 3
    held = await lab.take("w2")
    assert {one.task.crashes for one in held} == {0}
    assert (await lab.snapshot())[FETCH_STREAM]["consumers"] == ["w2"]


async def test_all_consumers_are_put_back_each_judged_by_itself(open_lab: OpenLab) -> None:
    lab = await open_lab(crashes_max=1)
    await lab.offer(*(f"http://h{n}.test/" for n in range(5)))
    await lab.frontier.dispatch(100)
    for consumer, count in (("many", 4), ("one", 1)):
        await lab.read(consumer, count)
    for _ in range(2):  # two crashes all together, so that only those alone count from now on
        assert await lab.frontier.put_back(FETCH_STREAM, "", is_crash=True) == 5
        await lab.frontier.dispatch(100)
        for consumer, count in (("many", 4), ("one", 1)):
            held = await lab.read(consumer, count)
    assert held[0].task.crashes == 2
    assert await lab.frontier.put_back(FETCH_STREAM, "", is_crash=True) == 5
    state = await lab.check()
    assert [letter["host"] for letter in state["dead"]["entries"]] == [held[0].host]
    assert state[FETCH_STREAM]["consumers"] == []


async def test_a_robots_task_that_kills_its_worker_gives_its_host_up(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True, crashes_max=1)
    await lab.offer(*urls("a.test", 2))
    for _ in range(3):
        assert len(await lab.take()) == 1
        await crash(lab, "w1", 1)
    assert await lab.frontier.give_up(after_ms=10**9, idle_ms=10**9) == (2, 0, 0)
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "ENDED"
    assert (await lab.totals())["page.dead.robots_unreachable"] == 2


# -- reclaim


async def test_renewed_rows_in_front_do_not_starve_stalled_ones_behind(open_lab: OpenLab) -> None:
    lab = await open_lab(slots=2000)
    front = await hosts_taken(lab, 250, "alive")
    await lab.offer(*(f"http://z{n}.test/" for n in range(50)))
    behind = await lab.take("dead")
    assert len(behind) == 50
    await lab.let_idle(behind, LEASE_MS, consumer="dead")
    await lab.frontier.beat([Beat("alive", FETCH_STREAM, 64, "{}", [one.id for one in front])], lease_ms=LEASE_MS)
    assert await reclaim(lab, 30) == ("OK", 30)
    assert await reclaim(lab, 30) == ("OK", 20)
    assert await reclaim(lab, 30) == ("OK", 0)
    lost, _ = await lab.frontier.beat(
        [Beat("alive", FETCH_STREAM, 64, "{}", [one.id for one in front])], lease_ms=LEASE_MS
    )
    assert lost == [[]]


async def test_rows_without_an_entry_are_ended_and_lose_nothing_else(open_lab: OpenLab) -> None:
    """Somebody deletes entries by hand: their tasks are gone, which the accounts tell, and the others are not."""
    lab = await open_lab()
    held = await hosts_taken(lab, 5)
    await lab.let_idle(held, LEASE_MS)
    await lab.client.xdel(lab.keys.fetch_stream, held[0].id, held[3].id)
    assert await reclaim(lab) == ("OK", 3)
    state = await lab.snapshot()
    assert state[FETCH_STREAM]["pending"] == state[FETCH_STREAM]["entries"] == []
    assert await lab.frontier.reconcile() == 2
    await lab.frontier.control(closed=1)
    await lab.end_all(await lab.take())
    assert (await lab.frontier.finish())[0] == "UNBALANCED"
    await lab.client.hincrby(lab.keys.totals, "page.streamed", -2)
    await lab.client.hincrby(lab.keys.totals, "page.created", -2)
    await lab.client.hincrby(lab.keys.totals, "seed.ended", 2)


async def test_a_foreign_entry_becomes_a_dead_letter_and_stops_nobody(open_lab: OpenLab) -> None:
    lab = await open_lab()
    held = await hosts_taken(lab, 2)
    await lab.client.xadd(lab.keys.fetch_stream, {"hello": "world"})
    await lab.client.xreadgroup(GROUP, "w1", {lab.keys.fetch_stream: ">"})
    await lab.client.zadd(lab.keys.delayed, {"what is this": 1})
    assert await lab.frontier.due() == (1, -1)
    assert await lab.frontier.put_back(FETCH_STREAM, "w1", is_crash=True) == len(held) + 1
    state = await lab.check()
    assert [letter["reason"] for letter in state["dead"]["entries"]] == ["codec", "codec"]


async def test_names_of_dead_workers_do_not_pile_up(open_lab: OpenLab) -> None:
    lab = await open_lab()
    for n in range(20):
        await lab.read(f"idle{n}", 1)
    held = await hosts_taken(lab, 3, "holding")
    lease_ms = 20

    async def are_gone() -> bool:
        await lab.let_reclaim()
        await lab.frontier.beat([Beat("holding", FETCH_STREAM, 3, "{}", [one.id for one in held])], lease_ms=lease_ms)
        await lab.frontier.reclaim(FETCH_STREAM, lease_ms=1000 * lease_ms)
        _, back = await lab.frontier.reclaim(FETCH_STREAM, lease_ms=lease_ms)
        if back:  # this machine stood still for a lease between the beat and here
            held[:] = await lab.read("holding", 3)
        names: list[str] = (await lab.snapshot())[FETCH_STREAM]["consumers"]
        return names == ["holding"]

    await wait_until(are_gone, "the names of idle consumers to go")
    assert await lab.end(held[0]) == "DONE"


async def test_the_name_of_a_dead_worker_stays_until_all_it_held_is_taken_back(open_lab: OpenLab) -> None:
    """To remove a consumer is to forget its pending rows: their tasks would lie in the stream for ever."""
    lab = await open_lab()
    await hosts_taken(lab, 5, "dead")
    backs: list[int] = []

    async def is_gone() -> bool:
        await lab.let_reclaim()
        word, back = await lab.frontier.reclaim(FETCH_STREAM, lease_ms=20, limit=2)
        backs.extend([back] if word == "OK" and back else [])
        state = await lab.check()
        return not state[FETCH_STREAM]["consumers"]

    async def is_silent() -> bool:
        [consumer] = await lab.client.xinfo_consumers(lab.keys.fetch_stream, GROUP)
        return bool(consumer["idle"] >= 60)

    await wait_until(is_silent, "the worker to be silent for three leases")
    await wait_until(is_gone, "its name to go")
    assert sum(backs) == 5
    assert len(await lab.take("w2")) == 5


async def test_a_reader_whose_name_was_removed_still_gets_its_entries(
    open_lab: OpenLab, store_server: RedisServer
) -> None:
    """A worker that waits in a blocking read may look dead: what it is then given must be pending under its name."""
    lab = await open_lab()
    blocking: Any = connect(store_server.url, blocking=True, timeout_ms=20_000)
    try:
        read = asyncio.create_task(
            blocking.xreadgroup(GROUP, "patient", {lab.keys.fetch_stream: ">"}, count=5, block=15_000)
        )

        async def is_blocked() -> bool:
            return int((await lab.client.info("clients"))["blocked_clients"]) > 0

        await wait_until(is_blocked, "the read to block")
        await lab.client.xgroup_delconsumer(lab.keys.fetch_stream, GROUP, "patient")
        await lab.offer("http://a.test/")
        await lab.frontier.dispatch(5)
        [[_, [(entry_id, fields)]]] = await read
        held = lab.held(entry_id, fields)
        assert [row[0] for row in (await lab.snapshot())[FETCH_STREAM]["pending"]] == ["patient"]
        assert await lab.end(held) == "DONE"
    finally:
        await blocking.aclose()


@pytest.mark.parametrize("binary", found_binaries())
async def test_an_outage_of_the_server_costs_nobody_a_lease(binary: Any, crawl_name: str) -> None:
    """The server is paused for longer than the lease, for real; the first tick afterwards must hold."""
    lease_ms = 400
    with RedisServer(binary=binary) as server:
        client = connect(server.url, timeout_ms=20_000)
        try:
            lab = await Lab.opened(client, **fast(crawl_name))
            held = await hosts_taken(lab, 3)
            ids = [one.id for one in held]
            beats = [Beat("w1", FETCH_STREAM, 3, "{}", ids)]

            async def ticks() -> bool:
                await lab.frontier.beat(beats, lease_ms=lease_ms)
                return await lab.frontier.reclaim(FETCH_STREAM, lease_ms=lease_ms) == ("OK", 0)

            await wait_until(ticks, "the first hold to end")
            for _ in range(2):
                server.sigstop()
                tick = asyncio.create_task(lab.frontier.reclaim(FETCH_STREAM, lease_ms=lease_ms))
                await asyncio.sleep(1.5 * lease_ms / 1000)  # the outage itself: its length is all there is to wait for
                server.sigcont()
                # This one was sent before the beats could come through, and the entries look stalled.
                assert (await tick)[0] == "HOLD"
                assert (await lab.frontier.reclaim(FETCH_STREAM, lease_ms=lease_ms))[0] == "HOLD"
                await wait_until(ticks, "the hold to end")
            await lab.end_all(held)
            assert "page.crashed" not in await lab.totals()
            await lab.check()
        finally:
            await client.aclose()


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
async def test_a_clock_that_jumps_costs_nobody_a_lease(open_lab: OpenLab, jump_ms: int) -> None:
    """The ticks before the jump were written by a clock an hour off; then the hold is one lease, not an hour."""
    lab = await open_lab()
    held = await hosts_taken(lab, 2)
    await lab.let_idle(held, LEASE_MS)  # as a clock that jumps forward makes them look
    seconds, _ = await lab.client.time()
    before = seconds * 1000 - jump_ms
    await lab.frontier.control(
        **{f"reclaim_at:{FETCH_STREAM}": before, f"reclaim_hold:{FETCH_STREAM}": before + LEASE_MS}
    )
    assert await lab.frontier.reclaim(FETCH_STREAM, lease_ms=LEASE_MS) == ("HOLD", LEASE_MS)
    await lab.let_reclaim()
    assert await lab.frontier.reclaim(FETCH_STREAM, lease_ms=LEASE_MS) == ("OK", 2)


# -- beat


async def test_a_beat_does_not_steal_back_what_another_worker_has(open_lab: OpenLab) -> None:
    lab = await open_lab()
    [held] = await hosts_taken(lab, 1)
    await lab.let_idle([held], LEASE_MS)
    assert await reclaim(lab) == ("OK", 1)
    [again] = await lab.take("w2")
    lost, _ = await lab.frontier.beat(
        [Beat("w1", FETCH_STREAM, 1, "{}", [held.id]), Beat("w2", FETCH_STREAM, 1, "{}", [again.id])], lease_ms=LEASE_MS
    )
    assert lost == [[held.id], []]
    assert [row[0] for row in (await lab.check())[FETCH_STREAM]["pending"]] == ["w2"]


async def test_a_beat_of_many_entries_names_the_lost_in_order(open_lab: OpenLab) -> None:
    lab = await open_lab(slots=3000)
    held = await hosts_taken(lab, 1200)
    await lab.end_all(held[::3])
    ids = [one.id for one in held]
    lost, _ = await lab.frontier.beat([Beat("w1", FETCH_STREAM, 1200, "{}", ids)], lease_ms=LEASE_MS)
    assert lost == [ids[::3]]


async def test_a_beat_says_that_all_is_lost_with_the_stream(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.client.delete(lab.keys.fetch_stream)
    assert await lab.frontier.beat([Beat("w1", FETCH_STREAM, 3, "{}", ["1-1"])], lease_ms=LEASE_MS) == ([["1-1"]], 3)
    await lab.offer("http://a.test/")
    assert (await lab.frontier.dispatch(1)).moved == 1  # which makes the stream and its group again


async def test_workers_that_left_or_fell_silent_have_no_slots(open_lab: OpenLab) -> None:
    lab = await open_lab()

    async def beat(*workers: tuple[str, int]) -> int:
        beats = [Beat(name, FETCH_STREAM, slots, "{}", []) for name, slots in workers]
        return (await lab.frontier.beat(beats, lease_ms=1000))[1]

    assert await beat(("left", 5), ("silent", 7), ("alive", 11)) == 23
    assert await beat(("left", -1)) == 18
    row = (await lab.client.hget(lab.keys.workers, "silent")).split(b" ", 1)
    await lab.client.hset(lab.keys.workers, "silent", b"%d %s" % (int(row[0]) - 3000, row[1]))
    assert await beat(("alive", 11)) == 11
    assert list((await lab.snapshot())["workers"]) == ["alive"]
    assert await lab.client.hget(lab.keys.state, "slots") == b"11"


async def test_group_that_was_destroyed_comes_back_without_a_dispatch(lab: Lab) -> None:
    # Every host has its share in the stream: none is scheduled, so dispatch has no reason to look at the stream.
    await lab.offer(*urls("a.test", 2))
    (held,) = await lab.take()
    await lab.client.xgroup_destroy(lab.keys.fetch_stream, GROUP)
    await lab.let_reclaim()
    assert await lab.frontier.reclaim(FETCH_STREAM, lease_ms=60_000) == ("OK", 0)
    assert [one.id for one in await lab.read("w2")] == [held.id]
    assert await lab.end(held) == "DONE"
