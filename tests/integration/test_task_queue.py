"""TaskQueue as its users know it: asyncio.Queue's names, and what they mean when several processes use them.

Two objects on one server stand for two processes: they share nothing but Redis.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from streamcrawl import (
    Drop,
    Handle,
    LeaseLost,
    QueueClosed,
    QueueEmpty,
    QueueFull,
    QueueGone,
    Retry,
    TaskQueue,
)
from streamcrawl.errors import CodecError, ConfigError, StoreFull, StoreIncompatible
from streamcrawl.queue.puts import PACE_MAX_S, PACED_FROM
from streamcrawl.store.connection import connect
from streamcrawl.store.keys import GROUP, QUEUES, QueueKeys
from tests.redis_server import FAST, RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Open = Callable[..., Awaitable[TaskQueue[Any]]]

SOON_S: Final = 20.0
"""For what happens at once on a quiet machine."""
LEASE_S: Final = 60
"""Longer than a test: what ends it here is the test itself."""


async def until(is_so: Callable[[], Awaitable[bool]], what: str, timeout_s: float = SOON_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not await is_so():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        await asyncio.sleep(0.01)


async def take_back(queue: TaskQueue[Any], other: TaskQueue[Any], handle: Handle[Any]) -> None:
    """Have the other member find that the lease of a handle is over, as if beats had been held up."""
    keys, client = QueueKeys(queue.name), queue._client
    seconds, _ = await client.time()
    level = handle.level
    await client.hset(keys.state, mapping={f"reclaim_at:{level}": seconds * 1000, f"reclaim_hold:{level}": 0})
    held = await client.xclaim(
        keys.stream(level), GROUP, queue.member, 0, [handle.id], idle=LEASE_S * 2000, justid=True
    )
    assert held == [handle.id.encode()]
    assert await other._opened.reclaim() == ("OK", 1)


@pytest.fixture
async def open_queue(redis_server: RedisServer, crawl_name: str) -> AsyncIterator[Open]:
    """Opens the test's queue, as often as it is called; afterwards its counts balance and its keys are known."""
    async with AsyncExitStack() as stack:

        async def opened(redis: str | Redis = redis_server.url, **options: Any) -> TaskQueue[Any]:
            return await stack.enter_async_context(TaskQueue(crawl_name, redis, **options))

        yield opened
    keys = QueueKeys(crawl_name)
    client = connect(redis_server.url)
    if await client.exists(keys.state):
        async with TaskQueue(crawl_name, redis_server.url) as queue:
            stats = await queue.stats()
            assert stats.is_balanced, stats
            assert stats.out == 0, "what was out when its TaskQueue was left is given back"
            assert set(stats.members) <= {queue.member}
        async for raw in client.scan_iter(match=keys.pattern):
            kind = keys.describe(bytes(raw).decode())
            assert kind is not None, raw
            assert await client.type(raw) == kind.type.encode()
        assert not await client.exists(keys.members, keys.puts, keys.settles)
    await client.aclose()


# -- the names of asyncio.Queue


async def test_items_come_in_their_order_and_once(open_queue: Open) -> None:
    producer, consumer = await open_queue(), await open_queue()
    await producer.put({"n": 0})
    await producer.put_many([{"n": n} for n in range(1, 600)])
    got: list[int] = []
    while len(got) < 600:
        handles = await consumer.get_many(100)
        assert all(handle.attempts == 1 for handle in handles)
        got += [handle.item["n"] for handle in handles]
        assert await consumer.task_done_many(handles) == []
    assert got == list(range(600))
    await producer.join()
    with pytest.raises(QueueEmpty):
        await consumer.get_nowait()
    with pytest.raises(asyncio.QueueEmpty):
        await consumer.get_nowait()


async def test_equal_items_stay_two_and_equal_ids_become_one(open_queue: Open) -> None:
    queue, other = await open_queue(dedup_max=3), await open_queue()
    await queue.put("same")
    await queue.put("same")
    await queue.put("once", id="a")
    await other.put("again", id="a")
    assert await queue.qsize() == 3
    for n in range(8):  # the window is the newest three: "a" leaves it
        await queue.put(n, id=f"b{n}")
    await queue.put("after the window", id="a")
    assert await queue.qsize() == 12
    assert await queue._client.zcard(QueueKeys(queue.name).ids) <= 3
    assert (await queue.stats()).totals["repeated"] == 1


async def test_id_is_forgotten_after_its_time(open_queue: Open) -> None:
    queue = await open_queue(dedup_s=0)
    await queue.put(1, id="a")
    await queue.put(2, id="a")
    assert await queue.qsize() == 2


async def test_full_queue_makes_a_put_wait_and_refuses_put_nowait(open_queue: Open) -> None:
    queue, other = await open_queue(maxsize=3), await open_queue()
    await queue.put_many([0, 1])
    await queue.put(2, delay_s=60)  # what is delayed has its place
    assert await other.full()
    with pytest.raises(QueueFull):
        await other.put_nowait(9)
    with pytest.raises(asyncio.QueueFull):
        await queue.put_nowait(9)
    waiting = asyncio.create_task(queue.put(3))
    done, _ = await asyncio.wait((waiting,), timeout=0.3)
    assert not done
    # Refused at once where others wait already.
    with pytest.raises(QueueFull):
        await queue.put_nowait(9)
    first = await other.get()
    await asyncio.wait_for(waiting, SOON_S)
    assert (first.item, await queue.qsize()) == (0, 3)


async def test_queue_with_as_many_dead_letters_as_it_may_have_is_full_and_loses_none(
    open_queue: Open, caplog: pytest.LogCaptureFixture
) -> None:
    queue, other = await open_queue(dead_max=2), await open_queue()
    await queue.put_many(range(4))
    for _ in range(3):
        await other.dead(await other.get(), "no use")
    stats = await other.stats()
    assert (stats.dead, stats.dead_max, stats.waiting) == (3, 2, 1), "what was accepted may die, and is kept"
    assert await queue.full()
    waiting = asyncio.create_task(queue.put(4))
    with pytest.raises(QueueFull, match=r"as many dead letters as it may \(dead_max\); look at `dead_letters\(\)`"):
        await other.put_nowait(9)
    done, _ = await asyncio.wait((waiting,), timeout=0.3)
    assert not done
    assert [record for record in caplog.records if "takes nothing more" in record.message]
    assert not waiting.done()
    assert await other.purge() == 3
    await asyncio.wait_for(waiting, SOON_S)
    await other.put_nowait(5)
    assert await queue.qsize() == 3


async def test_queue_that_was_full_takes_put_nowait_again_when_there_is_room(open_queue: Open) -> None:
    queue, other = await open_queue(maxsize=1), await open_queue()
    for is_first in (True, False):
        await queue.put_nowait(0)
        with pytest.raises(QueueFull):
            await queue.put_nowait(1)
        if is_first:  # also after somebody who waited for room and gave up
            waiting = asyncio.create_task(queue.put(2))
            await asyncio.wait((waiting,), timeout=0.05)
            waiting.cancel()
            await asyncio.wait((waiting,))
        await other.task_done(await other.get())
        assert await queue.qsize() == 0


async def test_put_many_beyond_the_bound_waits_for_room_as_often_as_it_must(open_queue: Open) -> None:
    queue, other = await open_queue(maxsize=10), await open_queue()
    putting = asyncio.create_task(queue.put_many(range(500)))
    got: list[int] = []
    while len(got) < 500:
        handles = await other.get_many(7)
        assert await other.qsize() <= 10
        got += [handle.item for handle in handles]
        await other.task_done_many(handles)
    await putting
    assert got == list(range(500))


async def test_handlers_that_put_into_their_own_full_queue_do_not_wait_for_themselves(open_queue: Open) -> None:
    queue = await open_queue(maxsize=4)
    done: list[int] = []

    async def work() -> None:
        async for handle in queue:
            async with queue.process(handle) as depth:
                if depth:
                    await queue.put_many([depth - 1] * 2)
                    await queue.put(depth - 1)
                done.append(depth)

    async def feed() -> None:
        for _ in range(3):
            await queue.put(3)
        await queue.join()
        await queue.close()

    async with asyncio.timeout(SOON_S):
        await asyncio.gather(feed(), work(), work())
    assert Counter(done) == {3: 3, 2: 9, 1: 27, 0: 81}


async def test_puts_gather_while_the_queue_is_nearly_full_and_go_at_once_when_it_is_not(open_queue: Open) -> None:
    queue, other = await open_queue(maxsize=PACED_FROM), await open_queue()
    await queue.put_many(range(PACED_FROM // 2))
    assert queue._puts.pace_s == 0
    await queue.put_many(range(PACED_FROM // 2))
    assert 0 < queue._puts.pace_s <= PACE_MAX_S
    while queue._puts.pace_s:
        await other.task_done_many(await other.get_many(250))
        await queue.put(0)


async def test_puts_of_a_small_queue_never_pause(open_queue: Open) -> None:
    queue = await open_queue(maxsize=PACED_FROM - 1)
    await queue.put_many(range(PACED_FROM - 1))
    assert queue._puts.pace_s == 0, "it could be empty before the pause is over"


async def test_put_that_is_cancelled_while_it_waits_for_room_has_not_put(open_queue: Open) -> None:
    queue = await open_queue(maxsize=1)
    await queue.put(0)
    waiting = asyncio.create_task(queue.put(1))
    behind = asyncio.create_task(queue.put(2))
    await asyncio.wait((waiting,), timeout=0.1)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert (await queue.get()).item == 0
    await behind
    assert (await queue.get()).item == 2


async def test_get_waits_for_its_timeout_and_keeps_what_came_too_late(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    with pytest.raises(TimeoutError):
        await queue.get(timeout=0.05)
    # The read of that get may still wait in Redis: what it brings is nobody's here, and comes to who asks.
    await other.put(1)
    handle = await asyncio.wait_for(other.get(), SOON_S)
    assert (handle.item, handle.attempts) == (1, 1)
    await other.task_done(handle)


async def test_read_ahead_goes_back_when_nobody_takes_it(open_queue: Open) -> None:
    queue, other = await open_queue(prefetch=5, lease_s=2), await open_queue()
    await queue.put_many(range(6))
    first = await queue.get()
    await until(lambda: is_size(other, 0), "the five behind it to be read ahead")
    assert len(await asyncio.wait_for(other.get_many(5), SOON_S)) >= 1
    assert first.item == 0


async def is_size(queue: TaskQueue[Any], size: int) -> bool:
    return await queue.qsize() == size


async def test_task_done_without_a_handle_needs_exactly_one(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put_many([1, 2, 3])
    with pytest.raises(ValueError, match="0 items out"):
        await queue.task_done()

    async def one() -> None:
        await queue.get()
        await queue.task_done()

    await asyncio.gather(one(), one())
    handle = await queue.get()
    await queue.task_done()
    with pytest.raises(ValueError, match="settled already"):
        await queue.task_done(handle)
    strange: Handle[Any] = Handle(1, "1-1", 0, 1, 0)
    with pytest.raises(ValueError, match="none that this TaskQueue handed out"):
        await queue.task_done(strange)


async def test_join_waits_for_everything_accepted(open_queue: Open) -> None:
    queue, other = await open_queue(attempts_max=1), await open_queue()
    await queue.put(1)
    await queue.put(2, delay_s=0.3)
    joining = asyncio.create_task(queue.join())
    first = await other.get()
    await other.dead(first, "no use")  # a dead letter is settled
    second = await asyncio.wait_for(other.get(), SOON_S)
    assert not joining.done()
    await other.retry(second, error="not now")  # the last attempt
    await asyncio.wait_for(joining, SOON_S)
    assert [letter.reason for letter in await queue.dead_letters()] == ["failed", "attempts"]


async def test_close_ends_every_consumer_after_the_last_item_and_none_before(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put("out")
    await queue.put("late", delay_s=0.5)
    held = await other.get()
    ends = [asyncio.create_task(collect(one)) for one in (queue, other, queue)]
    await queue.close()
    with pytest.raises(QueueClosed):
        await other.put(1)
    with pytest.raises(QueueClosed):
        await queue.put_many([1])
    await until(lambda: is_in(ends, "late", queue), "the late one")
    # Nobody ends while one is out: it may come back, and does.
    done, _ = await asyncio.wait(ends, timeout=0.5)
    assert not done
    await other.give_back(held)
    got = [item for items in await asyncio.wait_for(asyncio.gather(*ends), SOON_S) for item in items]
    assert sorted(got) == ["late", "out"]
    with pytest.raises(QueueClosed):
        await asyncio.wait_for(other.get(), SOON_S)
    with pytest.raises(QueueClosed):
        await asyncio.wait_for(queue.get_nowait(), SOON_S)
    await queue.reopen()
    await other.put("again")
    assert (await queue.get()).item == "again"


async def collect(queue: TaskQueue[Any]) -> list[Any]:
    got = []
    async for handle in queue:
        got.append(handle.item)
        await queue.task_done(handle)
    return got


async def is_in(tasks: list[asyncio.Task[list[Any]]], item: str, queue: TaskQueue[Any]) -> bool:
    return (await queue.stats()).totals.get("done", 0) == 1


# -- what asyncio.Queue has not


async def test_delayed_items_come_when_they_are_due_and_not_before(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    began = time.monotonic()
    for _ in range(2):  # equal ones stay two
        await queue.put("later", delay_s=0.4)
    await queue.put("now")
    items = [(await asyncio.wait_for(other.get(), SOON_S)).item for _ in range(3)]
    assert items == ["now", "later", "later"]
    assert time.monotonic() - began >= 0.4


async def test_urgent_items_come_first_and_the_others_get_their_share(open_queue: Open) -> None:
    queue, other = await open_queue(levels=3), await open_queue()
    for level in (2, 1, 0):
        await queue.put_many([level] * 64, priority=level)
    got = []
    for _ in range(64):
        handle = await other.get()
        got.append(handle.item)
        await other.task_done(handle)
    # One in 4 and one in 16, while all of them have work.
    assert [got.count(level) for level in range(3)] == [44, 16, 4]
    # In batches the share is the same; two levels are left to share what the third has no more of.
    batch = [handle.item for handle in await other.get_many(64)]
    assert [batch.count(level) for level in range(3)] == [20, 40, 4]
    with pytest.raises(ValueError, match="priority 3"):
        await queue.put(1, priority=3)
    with pytest.raises(ConfigError, match="has 3 priority levels, not 2"):
        await open_queue(levels=2)


async def test_retries_are_counted_and_the_last_is_a_dead_letter_that_can_be_replayed(open_queue: Open) -> None:
    queue = await open_queue(attempts_max=2)
    await queue.put({"n": 1})
    await queue.retry(await queue.get(), error="first")
    handle = await queue.get()
    assert handle.attempts == 2
    await queue.retry(handle, after_s=9, error="second")
    letter = (await queue.dead_letters())[0]
    assert (letter.item, letter.reason, letter.error, letter.attempts) == ({"n": 1}, "attempts", "second", 2)
    assert await queue.replay([letter.id, "1-1", "none"]) == 1
    handle = await queue.get()
    assert handle.attempts == 1
    await queue.dead(handle, "for good")
    await queue.close()
    with pytest.raises(QueueClosed, match="reopen it"):
        await queue.replay()
    assert await queue.purge() == 1
    assert await queue.dead_letters() == []


async def test_all_dead_letters_are_walked_through(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put_many(range(600))
    for _ in range(600):
        handle = await queue.get()
        asyncio.create_task(queue.dead(handle, f"error {handle.item}"))  # noqa: RUF006  join waits for them
    await queue.join()
    first = await queue.dead_letters(500)
    rest = await queue.dead_letters(500, after=first[-1].id)
    assert (len(first), len(rest)) == (500, 100)
    assert await queue.replay() == 600
    assert await queue.replay() == 0
    assert await queue.qsize() == 600


async def test_process_settles_by_how_its_block_ends(open_queue: Open) -> None:
    queue = await open_queue(attempts_max=2)
    await queue.put("good")
    async with queue.process() as item:
        assert item == "good"
    await queue.put("dropped")
    async with queue.process():
        raise Drop("of no use")
    await queue.put("bad")
    async with queue.process():
        raise Retry("soon", after_s=0)
    async with queue.process(await queue.get()):
        raise ZeroDivisionError("again \udcff")  # what no encoding takes
    (letter,) = await queue.dead_letters()
    assert letter.item == "bad"
    assert "ZeroDivisionError: again" in letter.error
    await queue.put("cancelled")

    async def work() -> None:
        async with queue.process():
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await until(lambda: is_size(queue, 0), "the item to be taken")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    handle = await asyncio.wait_for(queue.get(), SOON_S)
    assert (handle.item, handle.attempts) == ("cancelled", 1)
    await queue.task_done(handle)


async def test_process_takes_any_delay_and_an_end_that_was_said_by_hand(open_queue: Open) -> None:
    queue = await open_queue()
    for after_s in (-1, float("nan"), float("inf")):
        await queue.put("odd")
        async with queue.process():
            raise Retry("at a time that cannot be: at the nearest", after_s=after_s)
        stats = await queue.stats()
        is_now = after_s != float("inf")
        assert (stats.out, stats.waiting, stats.delayed) == (0, is_now, not is_now)
        if is_now:
            handle = await queue.get()
            async with queue.process(handle):
                await queue.task_done(handle)  # said by hand, which the end of the block leaves as it is
    with pytest.raises(ValueError, match="is settled already"):
        await queue.task_done_many([handle])
    await queue.put_many([1, 2])
    handles = await queue.get_many(2)
    with pytest.raises(ValueError, match="twice"):
        await queue.task_done_many([*handles, handles[0]])
    assert await queue.task_done_many(handles) == []


async def test_lost_lease_is_told_and_the_second_delivery_counts(open_queue: Open) -> None:
    queue, other = await open_queue(lease_s=LEASE_S), await open_queue()
    await queue.put("slow")
    handle = await queue.get()

    async def work() -> None:
        async with queue.process(handle):
            await asyncio.sleep(60)

    working = asyncio.create_task(work())
    await take_back(queue, other, handle)
    queue._keep.hurry()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(working, SOON_S)
    assert handle.is_lost
    with pytest.raises(LeaseLost):
        await queue.task_done(handle)
    assert await queue.task_done_many([handle]) == [handle]
    second = await asyncio.wait_for(other.get(), SOON_S)
    assert (second.item, second.attempts, second.crashes) == ("slow", 1, 1)
    await other.task_done(second)


async def test_late_task_done_settles_nothing(open_queue: Open) -> None:
    queue, other = await open_queue(lease_s=LEASE_S), await open_queue()
    await queue.put("slow")
    handle = await queue.get()
    await take_back(queue, other, handle)  # long before a beat tells it
    second = await asyncio.wait_for(other.get(), SOON_S)
    with pytest.raises(LeaseLost):
        await queue.task_done(handle)
    await other.task_done(second)
    assert (await other.stats()).totals["lease_lost"] == 1


async def test_item_whose_processes_die_is_dead_at_last(open_queue: Open) -> None:
    queue, other = await open_queue(lease_s=LEASE_S, crashes_max=2), await open_queue()
    await queue.put("poison")
    for _ in range(2):
        handle = await asyncio.wait_for(queue.get(), SOON_S)
        await take_back(queue, other, handle)
    (letter,) = await other.dead_letters()
    assert (letter.reason, letter.crashes) == ("crashed", 2)


async def test_leases_of_the_living_are_kept(open_queue: Open) -> None:
    queue, other = await open_queue(lease_s=0.4), await open_queue()
    await queue.put("long")
    handle = await queue.get()
    ended = time.monotonic() + 1.5
    while time.monotonic() < ended:
        with pytest.raises(TimeoutError):
            await other.get(timeout=0.2)
    assert not handle.is_lost
    await queue.task_done(handle)


# -- ends


async def test_leaving_gives_back_what_is_out_and_wakes_who_waits(
    redis_server: RedisServer, crawl_name: str, open_queue: Open
) -> None:
    other = await open_queue(maxsize=2)
    async with TaskQueue[Any](crawl_name, redis_server.url, prefetch=1) as queue:
        await queue.put_many([1, 2])
        held = await queue.get()
        await until(lambda: is_size(other, 0), "the second to be read ahead")
        await other.put_many([3, 4])
        putting = asyncio.create_task(queue.put(5))
        await asyncio.wait((putting,), timeout=0.1)
    with pytest.raises(QueueClosed):
        await putting
    with pytest.raises(QueueClosed, match="was left"):
        await queue.task_done(held)
    with pytest.raises(RuntimeError, match="entered before"):
        await queue.__aenter__()
    assert await other.qsize() == 4
    assert sorted(handle.item for handle in await other.get_many(4)) == [1, 2, 3, 4]


async def test_waiting_get_ends_when_its_queue_is_left(redis_server: RedisServer, crawl_name: str) -> None:
    async with TaskQueue[Any](crawl_name, redis_server.url) as queue:
        getting = asyncio.create_task(queue.get())
        await asyncio.wait((getting,), timeout=0.1)
    with pytest.raises(QueueClosed):
        await getting


async def test_outside_of_its_block_a_queue_does_nothing(redis_server: RedisServer, crawl_name: str) -> None:
    queue = TaskQueue[Any](crawl_name, redis_server.url)
    with pytest.raises(RuntimeError, match="async with"):
        await queue.put(1)


async def test_deleted_queue_is_gone_for_everybody(redis_client: Redis, open_queue: Open, crawl_name: str) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(10))
    getting = asyncio.create_task(collect(other))
    await queue.delete()
    with pytest.raises(QueueGone):
        await asyncio.wait_for(getting, SOON_S)
    with pytest.raises(QueueGone):
        await other.put(1)
    with pytest.raises(QueueGone):
        await queue.put(1)
    assert [key async for key in redis_client.scan_iter(match=QueueKeys(crawl_name).pattern)] == []
    assert not await redis_client.sismember(QUEUES, crawl_name)
    again = await open_queue()
    assert await again.qsize() == 0


async def test_stream_that_was_deleted_by_hand_is_made_again(redis_client: Redis, open_queue: Open) -> None:
    queue = await open_queue(levels=2)
    getting = asyncio.create_task(queue.get())
    await until(lambda: is_reading(redis_client), "the read to wait in Redis")
    await redis_client.delete(QueueKeys(queue.name).stream(0))
    await queue.put("after", priority=0)
    assert (await asyncio.wait_for(getting, SOON_S)).item == "after"
    await queue.task_done(getting.result())


async def is_reading(client: Redis) -> bool:
    return any(one["cmd"] == "xreadgroup" for one in await client.client_list())


# -- what goes in, and how


@dataclass
class Page:
    url: str
    depth: int = 0


async def test_items_keep_their_type(open_queue: Open, redis_server: RedisServer, crawl_name: str) -> None:
    queue = await open_queue(type=Page)
    await queue.put(Page("https://example.org/", 3))
    handle = await queue.get()
    assert handle.item == Page("https://example.org/", 3)
    await queue.task_done(handle)
    async with TaskQueue[Any](crawl_name, redis_server.url) as untyped:
        raw = {"binary": b"\xff\x00", "list": [1, None, 2.5], 7: "key"}
        await untyped.put(raw)
        handle = await untyped.get()
        assert handle.item == raw
        await untyped.task_done(handle)


async def test_item_that_cannot_be_read_is_a_dead_letter_at_once(open_queue: Open) -> None:
    untyped, typed = await open_queue(), await open_queue(type=Page)
    await untyped.put("no page")
    await untyped.put({"url": "https://example.org/"})
    handle = await asyncio.wait_for(typed.get(), SOON_S)
    assert handle.item == Page("https://example.org/")
    await typed.task_done(handle)
    await typed.join()
    (letter,) = await typed.dead_letters()
    assert (letter.reason, letter.item) == ("codec", msgspec.msgpack.encode("no page"))


@pytest.mark.parametrize(
    ("codec", "item"), [("json", {"a": [1, "ü"]}), ("bytes", b"\x00\xff \n"), ("msgpack", (1, b"2"))]
)
async def test_codecs_bring_back_what_went_in(open_queue: Open, codec: str, item: Any) -> None:
    queue = await open_queue(codec=codec)
    await queue.put(item)
    await queue.put(item, delay_s=0.01)
    for _ in range(2):
        handle = await asyncio.wait_for(queue.get(), SOON_S)
        assert handle.item == (list(item) if isinstance(item, tuple) else item)
        await queue.retry(handle)
        handle = await asyncio.wait_for(queue.get(), SOON_S)
        await queue.task_done(handle)


async def test_what_cannot_go_in_is_refused_in_a_line(open_queue: Open) -> None:
    queue = await open_queue()
    for bad, why in ((object(), "cannot be written"), (2**70, "cannot be written"), (b"x" * 1_000_001, "too large")):
        with pytest.raises(CodecError, match=why):
            await queue.put(bad)
    with pytest.raises(ValueError, match="delay_s"):
        await queue.put(1, delay_s=-1)
    with pytest.raises(ValueError, match="too long"):
        await queue.put(1, id="x" * 300)
    with pytest.raises(ValueError, match="1 or more"):
        await queue.get_many(0)
    with pytest.raises(CodecError):
        await (await open_queue(codec="bytes")).put("text")


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("a b", {}, "no name of a queue"),
        ("a:b", {}, "no name of a queue"),
        ("a", {"maxsize": -1}, "maxsize=-1"),
        ("a", {"lease_s": 0}, "lease_s=0"),
        ("a", {"levels": 6}, "levels=6"),
        ("a", {"codec": "pickle"}, "codec 'pickle'"),
        ("a", {"codec": "bytes", "type": Page}, "leave type= out"),
        ("a", {"max_size": 1}, "no max_size"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_asked(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        TaskQueue(name, "redis://127.0.0.1:1/0", **options)


async def test_settings_hold_for_all_members(open_queue: Open) -> None:
    queue = await open_queue(maxsize=5)
    assert (await (await open_queue()).stats()).maxsize == 5
    await open_queue(maxsize=7)
    assert (await queue.stats()).maxsize == 7


async def test_queue_of_another_schema_is_left_alone(redis_client: Redis, open_queue: Open) -> None:
    queue = await open_queue()
    await redis_client.hset(QueueKeys(queue.name).state, "schema", 99)
    with pytest.raises(StoreIncompatible, match="schema 99"):
        await open_queue()
    await redis_client.hset(QueueKeys(queue.name).state, "schema", 1)


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
async def test_client_of_any_kind_tells_only_where_redis_is(
    redis_server: RedisServer, open_queue: Open, options: dict[str, Any]
) -> None:
    async with Redis.from_url(redis_server.url, **options) as client:
        queue = await open_queue(client)
        await queue.put(b"x")
        assert (await queue.get()).item == b"x"
        await queue.task_done()
        assert await client.ping()


async def test_client_of_a_cluster_is_refused(crawl_name: str) -> None:
    client: Any = RedisCluster(host="127.0.0.1", port=1)
    with pytest.raises(ConfigError, match="RedisCluster of this kind"):
        await TaskQueue[Any](crawl_name, client).__aenter__()
    await client.aclose()


async def test_unix_socket_will_do(crawl_name: str) -> None:
    with RedisServer(unix=True) as server:
        async with Redis.from_url(server.url) as client, TaskQueue[Any](crawl_name, client) as queue:
            await queue.put(1)
            assert (await queue.get()).item == 1


async def test_full_server_refuses_puts_and_lets_the_queue_drain(crawl_name: str) -> None:
    with RedisServer(options=FAST | {"maxmemory": "8mb"}) as server:
        async with TaskQueue[Any](crawl_name, server.url, maxsize=0) as queue:
            accepted = 0
            with suppress(StoreFull):
                while accepted < 1000:
                    await queue.put_many([b"x" * 50_000] * 10)
                    accepted += 10
            assert 0 < accepted < 1000
            total = (await queue.stats()).totals["created"]
            assert total >= accepted
            for _ in range(total):
                await queue.task_done(await queue.get())
            await queue.put(b"x" * 50_000)
            await queue.task_done(await queue.get())
            assert (await queue.stats()).is_balanced


async def test_leaving_does_not_wait_for_a_store_that_is_away(crawl_name: str) -> None:
    async def leave(stop: Callable[[RedisServer], None]) -> None:
        with RedisServer() as server:
            async with TaskQueue[Any](crawl_name, server.url) as queue:
                await queue.put(1)
                await queue.get()
                getting = asyncio.create_task(queue.get())
                await asyncio.wait((getting,), timeout=0.1)
                stop(server)
                putting = asyncio.create_task(queue.put(3))
                await asyncio.wait((putting,), timeout=0.1)
            for task in (putting, getting):
                with pytest.raises(QueueClosed):
                    await task

    await asyncio.gather(leave(RedisServer.kill9), leave(RedisServer.sigstop))


async def test_many_items_out_are_all_kept(open_queue: Open) -> None:
    queue, other = await open_queue(lease_s=LEASE_S, maxsize=0), await open_queue()
    await queue.put_many(range(4500))
    handles: list[Handle[Any]] = []
    while len(handles) < 4500:
        handles += await queue.get_many(500)
    calls = (await queue._client.info("commandstats")).get("cmdstat_xclaim", {"calls": 0})["calls"]
    queue._keep.hurry()
    await until(lambda: has_claimed(queue, calls + 5), "the beat's calls")
    assert not any(handle.is_lost for handle in handles)
    assert await queue.task_done_many(handles) == []
    assert await other.empty()


async def has_claimed(queue: TaskQueue[Any], calls: int) -> bool:
    stats = (await queue._client.info("commandstats")).get("cmdstat_xclaim", {"calls": 0})
    return int(stats["calls"]) >= calls


async def test_stats_say_who_is_there_and_how_old_the_oldest_is(open_queue: Open) -> None:
    queue, other = await open_queue(levels=2), await open_queue()
    await queue.put("waits", priority=1)
    await queue.put("is out")
    await queue.put("late", delay_s=60)
    await until(lambda: has_members(queue, 2), "both beats")
    await other.get()
    stats = await queue.stats()
    assert (stats.waiting, stats.out, stats.delayed, stats.dead, stats.is_closed) == (1, 1, 1, 0, False)
    assert [level.oldest_s is not None for level in stats.levels] == [True, True]
    assert stats.members.keys() == {queue.member, other.member}


async def has_members(queue: TaskQueue[Any], count: int) -> bool:
    return len((await queue.stats()).members) == count
