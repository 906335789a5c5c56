"""The scripts of TaskQueue, one call at a time: every word, every repetition, and an instance of each bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from redis.exceptions import ResponseError

from streamcrawl.errors import ConfigError, QueueGone, StoreIncompatible
from streamcrawl.store.connection import NoGroup, map_error
from streamcrawl.store.keys import GROUP, QueueKeys
from streamcrawl.store.queue_store import (
    DEFAULTS,
    PUTS_PER_CALL,
    Ending,
    Put,
    QueueStore,
    open_queue,
    pack_item,
)
from streamcrawl.store.scripts import script_names, source
from tests.unit.test_scripts import words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

ME: Final = "machine-1-me"
OTHER: Final = "machine-2-other"


def item(payload: bytes = b"x", *, level: int = 0, delay_ms: int = 0, item_id: str = "") -> bytes:
    return pack_item(level, delay_ms, item_id, payload)


@pytest.fixture
async def store(store_client: Redis, crawl_name: str) -> QueueStore:
    return await open_queue(
        store_client, crawl_name, levels=2, values={"maxsize": 5, "attempts_max": 2, "crashes_max": 2}
    )


async def read(store: QueueStore, count: int = 100, member: str = ME) -> list[tuple[int, str, dict[bytes, bytes]]]:
    return [
        (level, raw_id.decode(), dict(zip((fields or [])[::2], (fields or [])[1::2], strict=True)))
        for level, entries in enumerate(await store.take(member, count))
        for raw_id, fields in entries
    ]


async def totals(store: QueueStore) -> dict[str, int]:
    raw: dict[Any, Any] = await store.client.hgetall(store.keys.totals)
    return {word.decode(): int(n) for word, n in raw.items()}


async def let_reclaim(store: QueueStore) -> None:
    seconds, _ = await store.client.time()
    for level in range(store.settings.levels):
        fields: dict[Any, Any] = {f"reclaim_at:{level}": seconds * 1000, f"reclaim_hold:{level}": 0}
        await store.client.hset(store.keys.state, mapping=fields)


async def let_idle(store: QueueStore, level: int, entry_id: str, member: str = ME) -> None:
    await store.client.xclaim(
        store.keys.stream(level), GROUP, member, 0, [entry_id], idle=2 * store.settings.lease_ms, justid=True
    )


# -- put


async def test_repeated_put_says_the_same_and_writes_nothing_more(store: QueueStore) -> None:
    batch = [item(b"%d" % n) for n in range(7)]
    assert await store.put(ME, 1, 0, batch) == Put("OK", 5, 5, 5, 1.0)  # five is the bound
    assert await store.put(ME, 1, 0, batch) == Put("OK", 5, 5, 5, 1.0)
    await read(store, 2)
    # Read late by the server, when there is room: what it would add may have been cancelled since.
    assert await store.put(ME, 1, 0, batch) == Put("OK", 5, 5, 5, 0.6)
    assert await store.put(ME, 2, 5, [item(b"other")]) == Put("OK", 1, 6, 6, 0.8)
    assert (await store.put(ME, 1, 0, batch)).last == 6
    assert await store.put(ME, 2, 5, [item(b"other")]) == Put("OK", 1, 6, 6, 0.8)
    tick = await store.tick(ME)
    assert (tick.last, tick.turn, tick.accepted) == (6, 2, 1)
    # One that found no room at all writes nothing later, either.
    assert await store.put(ME, 3, 6, [item()] * 2) == Put("OK", 1, 7, 7, 1.0)
    assert await store.put(ME, 4, 7, [item(b"none")]) == Put("OK", 0, 7, 7, 1.0)
    await read(store, 1)
    assert await store.put(ME, 4, 7, [item(b"none")]) == Put("OK", 0, 7, 7, 0.8)
    # One that its member took for failed may have been executed after all: what follows it is no repetition.
    assert await store.put(ME, 5, 6, [item(b"last")]) == Put("OK", 1, 8, 8, 1.0)
    assert [fields[b"item"] for _, _, fields in await read(store)] == [b"3", b"4", b"other", b"x", b"last"]
    # Another member's are its own.
    assert (await store.put(OTHER, 1, 0, [item()])).last == 1
    assert (await totals(store))["created"] == 9


async def test_each_level_has_its_share_whatever_is_taken_at_a_time(store_client: Redis, crawl_name: str) -> None:
    for count in (1, 3, 7, 64):
        store = await open_queue(store_client, f"{crawl_name}-{count}", levels=5, values={"maxsize": 0})
        # As much as 256 turns may take of each, and something behind it.
        numbers = iter(range(1, 1000))
        for level in range(5):
            await store.put(ME, next(numbers), 0, [item(level=level)] * PUTS_PER_CALL)
        got = [0] * 5
        while sum(got) < 256:
            for level, _, _ in await read(store, min(count, 256 - sum(got))):
                got[level] += 1
        assert got == [171, 64, 16, 4, 1], count
        await store.delete()


async def test_store_that_forgot_says_from_where_on(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item(b"1"), item(b"2")])
    assert await store.put(ME, 2, 3, [item(b"4")]) == Put("FORGOT", 2)
    await store.close(is_closed=True)
    # Accepted before: neither closed nor full refuses it now.
    again = [item(b"%d" % n) for n in range(3, 9)]
    assert await store.put(ME, 3, 2, again, mode="again") == Put("OK", 6, 8, 8, 1.6)
    assert await store.put(ME, 4, 8, [item()]) == Put("CLOSED", 0)
    # A repetition of what was accepted before it was closed says so.
    assert await store.put(ME, 3, 2, again, mode="again") == Put("OK", 6, 8, 8, 1.6)
    # Nothing asks how it stands, closed or not.
    assert await store.put(ME, 5, 8, []) == Put("OK", 0, 8, 8, 1.6)


async def test_put_of_who_has_an_item_out_is_not_held_up_by_a_full_queue_but_by_a_closed_one(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item()] * 5)
    assert await store.put(OTHER, 1, 0, [item()]) == Put("OK", 0, 5, 0, 1.0)
    inside = [item(b"1"), item(b"2")]
    assert await store.put(OTHER, 2, 0, inside, mode="inside") == Put("OK", 2, 7, 2, 1.4)
    assert await store.put(OTHER, 2, 0, inside, mode="inside") == Put("OK", 2, 7, 2, 1.4), "once, however often said"
    await store.close(is_closed=True)
    assert await store.put(OTHER, 3, 2, inside, mode="inside") == Put("CLOSED", 0)


@pytest.mark.parametrize("bad", [b"", b"0 0", b"x 0 0 item", b"2 0 0 no such level", b"0 0 99 short"])
async def test_item_that_we_did_not_write_is_refused_with_its_batch(store: QueueStore, bad: bytes) -> None:
    with pytest.raises(StoreIncompatible, match="refuses item 1"):
        await store.put(ME, 1, 0, [item(), bad])
    assert await store.put(ME, 2, 0, []) == Put("OK", 0, 0, 0)


async def test_payload_may_hold_any_bytes(store: QueueStore) -> None:
    payloads = [bytes(range(256)), b"", b" 1 2 3 ", b"\n\r\n\0", "ü%s%1".encode()]
    await store.put(ME, 1, 0, [item(payload, delay_ms=1, item_id=f"é{n}") for n, payload in enumerate(payloads)])
    while (await store.client.zcard(store.keys.delayed)) > 0:
        await store.tick(ME)
    entries = await read(store)
    assert sorted(fields[b"item"] for _, _, fields in entries) == sorted(payloads)
    # And survive each way back.
    await store.settle(ME, 1, {}, [Ending(level, entry_id, "retry", 1) for level, entry_id, _ in entries])
    while (await store.client.zcard(store.keys.delayed)) > 0:
        await store.tick(ME)
    assert sorted(fields[b"item"] for _, _, fields in await read(store)) == sorted(payloads)


# -- settle


async def test_repeated_settle_says_the_same(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item(b"%d" % n, level=n % 2) for n in range(4)])
    entries = await read(store)
    done = {level: [entry_id for where, entry_id, _ in entries if where == level] for level in (0, 1)}
    done[1].append("1-1")
    first = await store.settle(ME, 1, done)
    assert (first.lost == {4}, first.left) == (True, 0)
    assert await store.settle(ME, 1, done) == first
    # Under the next number it is another call, and comes too late.
    assert (await store.settle(ME, 2, done)).lost == set(range(5))
    # The first once more, read late by the server: what is kept for a repetition of the second stays.
    await store.settle(ME, 1, done)
    assert (await store.settle(ME, 2, done)).lost == set(range(5))
    assert (await totals(store))["lease_lost"] == 6
    assert (await totals(store))["done"] == 4


async def test_each_ending_does_what_it_says(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item(b"%d" % n, level=1) for n in range(5)])
    ids = [entry_id for _, entry_id, _ in await read(store)]
    endings = [
        *(Ending(1, ids[0], "retry", 0), Ending(1, ids[1], "retry", 60_000), Ending(1, ids[2], "dead", 0, "why")),
        *(
            Ending(1, ids[3], "dead", 1, "unread"),
            Ending(1, ids[4], "back"),
            Ending(1, "1-1", "back"),
            Ending(1, "x", "dead"),
        ),
    ]
    assert (await store.settle(ME, 1, {}, endings)).lost == {5, 6}
    waiting = await read(store)
    assert [(fields[b"item"], fields[b"attempts"]) for _, _, fields in waiting] == [(b"0", b"1"), (b"4", b"0")]
    assert await store.client.zcard(store.keys.delayed) == 1
    letters = await store.dead("", 10)
    assert [(letter["item"], letter["reason"], letter["error"]) for _, letter in letters] == [
        (b"2", b"failed", b"why"),
        (b"3", b"codec", b"unread"),
    ]
    # The second attempt is the last.
    await store.settle(ME, 2, {}, [Ending(1, waiting[0][1], "retry", 9, "again")])
    assert (await store.dead(letters[-1][0], 10))[0][1]["reason"] == b"attempts"


async def test_entry_deleted_by_hand_leaves_no_row_behind(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item()])
    ((_, entry_id, _),) = await read(store)
    await store.client.xdel(store.keys.stream(0), entry_id)
    assert (await store.settle(ME, 1, {}, [Ending(0, entry_id, "back")])).lost == {0}
    assert (await store.client.xpending(store.keys.stream(0), GROUP))["pending"] == 0


# -- leases


async def test_beat_renews_what_is_held_and_names_what_is_not(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item(), item()])
    (_, mine, _), (_, theirs, _) = [*await read(store, 1), *await read(store, 1, OTHER)]
    await let_idle(store, 0, mine)
    lost, last, lease_ms = await store.beat(ME, "{}", {0: [mine, "1-1"], 1: ["2-2"]})
    assert (lost, last, lease_ms) == ([(0, "1-1"), (1, "2-2")], 2, DEFAULTS.lease_ms)
    await let_reclaim(store)
    assert await store.reclaim() == ("OK", 0)
    await let_idle(store, 0, theirs, OTHER)
    assert await store.reclaim() == ("OK", 1)
    # It is another entry now, which a late beat of its holder cannot take.
    assert (await store.beat(OTHER, "{}", {0: [theirs]}))[0] == [(0, theirs)]
    (_, again, fields) = (await read(store))[0]
    assert (again != theirs, fields[b"crashes"], fields[b"attempts"]) == (True, b"1", b"0")
    await let_idle(store, 0, again)
    await let_reclaim(store)
    assert await store.reclaim() == ("OK", 1)
    assert [letter["reason"] for _, letter in await store.dead("", 10)] == [b"crashed"]


async def test_after_a_gap_nobody_loses_a_lease_for_as_long(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item()])
    ((_, entry_id, _),) = await read(store)
    await let_idle(store, 0, entry_id)
    word, ms = await store.reclaim()
    assert (word, 0 < ms <= DEFAULTS.lease_ms) == ("HOLD", True)
    assert (await store.reclaim())[0] == "HOLD"
    await let_reclaim(store)
    assert await store.reclaim() == ("OK", 1)


async def test_member_that_is_silent_is_forgotten_but_not_its_number(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item()])
    await store.beat(ME, "{}", {})
    seconds, _ = await store.client.time()
    await store.client.hset(store.keys.members, ME, f"{(seconds - 1000) * 1000} {{}}")
    await let_reclaim(store)
    await store.reclaim()
    assert not await store.client.hexists(store.keys.members, ME)
    assert await store.put(ME, 1, 0, [item()]) == Put("OK", 1, 1, 1, 0.2)
    await store.client.hset(store.keys.puts, ME, f"1 {(seconds - 90_000) * 1000}")
    await let_reclaim(store)
    await store.reclaim()
    assert not await store.client.hexists(store.keys.puts, ME)


async def test_leaving_keeps_a_consumer_that_holds_something(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item()])
    ((_, entry_id, _),) = await read(store)
    assert await store.leave(ME) == 1
    await store.settle(ME, 1, {0: [entry_id]})
    assert await store.leave(ME) == 0
    assert [row["name"] for row in await store.client.xinfo_consumers(store.keys.stream(0), GROUP)] == []


# -- time


async def test_clock_that_goes_back_delays_nothing(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item(b"soon", delay_ms=50)])
    seconds, _ = await store.client.time()
    # As if the server's clock had been an hour ahead until now.
    await store.client.hset(store.keys.state, "wall_ms", (seconds + 3600) * 1000)
    assert (await store.tick(ME)).moved == 1
    assert int(await store.client.hget(store.keys.state, "ahead_ms") or 0) >= 3_599_000


async def test_due_items_are_moved_in_steps(store_client: Redis, crawl_name: str) -> None:
    store = await open_queue(store_client, crawl_name, levels=None, values={})
    for turn in (1, 2):
        await store.put(ME, turn, 0, [item(b"%d" % n, delay_ms=1) for n in range(PUTS_PER_CALL)])
    moved: list[int] = []
    while sum(moved) < 2 * PUTS_PER_CALL:
        tick = await store.tick(ME)
        moved.append(tick.moved)
    assert max(moved) <= 200
    assert (tick.left, tick.last) == (2 * PUTS_PER_CALL, 2 * PUTS_PER_CALL)


# -- the whole queue


async def test_only_one_queue_has_a_name(store: QueueStore) -> None:
    name, client = store.keys.name, store.client
    assert (await open_queue(client, name, levels=None, values={"maxsize": 9})).settings.maxsize == 9
    with pytest.raises(ConfigError, match="2 priority levels, not 3"):
        await open_queue(client, name, levels=3, values={})
    await client.hset(store.keys.state, "schema", 9)
    with pytest.raises(StoreIncompatible, match="schema 9"):
        await open_queue(client, name, levels=2, values={})
    with pytest.raises(ConfigError, match="no name"):
        await open_queue(client, "{x}", levels=2, values={})


async def test_after_a_deletion_every_script_says_gone(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item(), item(delay_ms=9), item(item_id="x")])
    await store.delete()
    assert [key async for key in store.client.scan_iter(match=store.keys.pattern)] == []
    for call in CALLS:
        with pytest.raises(QueueGone, match="deleted"):
            await call(store)
    new = await open_queue(store.client, store.keys.name, levels=None, values={})
    for call in CALLS:  # an object of the old one does nothing to the new one
        with pytest.raises(QueueGone):
            await call(store)
    assert new.epoch != store.epoch


async def test_letters_of_a_closed_queue_wait(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item()])
    ((_, entry_id, _),) = await read(store)
    await store.settle(ME, 1, {}, [Ending(0, entry_id, "dead", 0, "")])
    ids = [letter_id for letter_id, _ in await store.dead("", 1)]
    await store.close(is_closed=True)
    assert await store.letters("replay", ids) == ("CLOSED", 0)
    await store.close(is_closed=False)
    assert await store.letters("replay", [*ids, "no id"]) == ("OK", 1)
    assert await store.letters("purge", ids) == ("OK", 0)


async def test_groups_that_were_lost_are_made_again(store: QueueStore) -> None:
    for level in (0, 1):
        await store.client.delete(store.keys.stream(level))
    with pytest.raises(ResponseError) as caught:
        await store.client.xreadgroup(GROUP, ME, {store.keys.stream(0): ">"})
    assert isinstance(map_error(caught.value), NoGroup)
    assert await read(store) == []
    await store.client.delete(store.keys.stream(1))
    await store.stats()
    assert await store.client.xreadgroup(GROUP, ME, {store.keys.stream(1): ">"}) == []
    await store.client.delete(store.keys.stream(0))
    assert await store.leave(ME) == 0


CALLS: Final[tuple[Callable[[QueueStore], Any], ...]] = (
    lambda store: store.put(ME, 1, 0, [item()]),
    lambda store: store.take(ME, 1),
    lambda store: store.settle(ME, 1, {0: ["1-1"]}),
    lambda store: store.beat(ME, "{}", {0: ["1-1"]}),
    lambda store: store.reclaim(),
    lambda store: store.tick(ME),
    lambda store: store.close(is_closed=True),
    lambda store: store.stats(),
    lambda store: store.letters("purge", ["1-1"]),
    lambda store: store.leave(ME),
    lambda store: store.delete(),
)
"""One of each script but `open`."""


def test_calls_are_of_every_script() -> None:
    answered = {name for name in script_names(of_queues=True) if "GONE" in words_of(source(name))}
    assert len(CALLS) == len(answered)
    assert {*script_names(of_queues=True)} - answered == {"queue_open"}


async def test_keys_are_all_described(store: QueueStore) -> None:
    await store.put(ME, 1, 0, [item(item_id="a"), item(delay_ms=60_000), item(level=1)])
    entries = await read(store)
    await store.settle(ME, 1, {}, [Ending(*entry[:2], "dead") for entry in entries])
    await store.beat(ME, "{}", {})
    found = {key.decode() async for key in store.client.scan_iter(match=store.keys.pattern)}
    kinds = {kind.word for key in found if (kind := store.keys.describe(key)) is not None}
    assert kinds == {"stream", "delayed", "dead", "totals", "state", "members", "puts", "settles", "ids"}
    assert len(found) == 10
    assert QueueKeys("other").describe(store.keys.state) is None
    assert store.keys.describe(store.keys.prefix + "strange") is None
