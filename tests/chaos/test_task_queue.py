"""A TaskQueue loses nothing and settles all once: processes die, connections break, Redis forgets, tasks are cancelled.

After each of these: what was accepted was done, each exactly once by the store's count; and `join` and the end after
`close` came when that was so, and not before.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamcrawl import Handle, LeaseLost, QueueClosed, TaskQueue
from tests.chaos.crawl_process import IS_FULL
from tests.proxy import FailingProxy, Fault, Shares
from tests.redis_sentinel import Replicated
from tests.redis_server import DURABLE, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.chaos

KILLS: Final = 30 if IS_FULL else 5
CUTS_LEAST: Final = 100 if IS_FULL else 15
"""Of each kind."""
LOSSES: Final = 10 if IS_FULL else 2
EXAMPLES: Final = 200 if IS_FULL else 8
SOON_S: Final = 300.0 if IS_FULL else 60.0


class Member:
    """One process, a consumer or a producer (queue_process.py); killed at the latest by `close`."""

    def __init__(self, url: str, name: str, what: Path | str) -> None:
        command = [sys.executable, "-m", "tests.chaos.queue_process", url, name, str(what)]
        self.process = subprocess.Popen(command, env=os.environ)

    def kill9(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill9()


async def until(is_so: Callable[[], bool], what: str, timeout_s: float = SOON_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        await asyncio.sleep(0.02)


async def assert_settled(queue: TaskQueue[Any], accepted: int) -> None:
    """Everything accepted was done, and nothing is left."""
    stats = await queue.stats()
    assert stats.totals.get("created", 0) == stats.totals.get("done", 0) == accepted, stats
    assert (stats.waiting, stats.out, stats.delayed, stats.dead) == (0, 0, 0, 0), stats
    assert stats.is_balanced


async def test_killed_consumers_lose_nothing(redis_server: RedisServer, tmp_path: Path, crawl_name: str) -> None:
    dice, path = random.Random(crawl_name), tmp_path / "done"
    path.touch()
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(
            TaskQueue(crawl_name, redis_server.url, type=int, lease_s=1, crashes_max=1000, maxsize=200)
        )

        def start() -> Member:
            consumer = Member(redis_server.url, crawl_name, path)
            stack.callback(consumer.close)
            return consumer

        def count() -> int:
            return path.read_bytes().count(b"\n")

        consumers = [start() for _ in range(3)]
        killed, accepted = 0, 0
        are_killed = asyncio.Event()

        async def produce() -> None:
            nonlocal accepted
            while not are_killed.is_set():  # so that work goes on while they are killed, however fast the machine
                await queue.put_many(range(accepted, accepted + 50))
                accepted += 50

        producing = asyncio.create_task(produce())
        deadline = time.monotonic() + SOON_S
        while killed < KILLS or not (await queue.stats()).totals.get("crashed"):
            assert time.monotonic() < deadline
            seen = count()
            await until(lambda: count() > seen + 20, "work to go on")  # noqa: B023
            # Of those that have joined: one that is still starting has nothing to lose.
            pids = {member["pid"] for member in (await queue.stats()).members.values()}
            joined = [n for n, one in enumerate(consumers) if one.process.pid in pids]
            if not joined:
                continue
            number = dice.choice(joined)
            consumers[number].kill9()
            consumers[number] = start()
            killed += 1
        are_killed.set()
        await producing
        joining = asyncio.create_task(queue.join())
        await queue.close()
        codes = await asyncio.gather(*(asyncio.to_thread(one.process.wait, SOON_S) for one in consumers))
        assert codes == [0, 0, 0]
        # No consumer ends before the last item is settled, and then nobody joins any more.
        await asyncio.wait_for(joining, SOON_S)
        await assert_settled(queue, accepted)
        assert {int(line) for line in path.read_text().split()} == set(range(accepted))


async def test_killed_producers_have_put_or_not_and_each_id_once(
    redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    """Producers die at any moment and begin again from their start: by its id each item is there once, to the end."""
    dice, count, kills = random.Random(crawl_name), *((3000, KILLS) if IS_FULL else (300, 2))
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(TaskQueue(crawl_name, redis_server.url, type=int, maxsize=50))
        worked: Counter[int] = Counter()

        async def consume() -> None:
            async for handle in queue:
                worked[handle.item] += 1
                await queue.task_done(handle)

        consuming = [asyncio.create_task(consume()) for _ in range(4)]

        def start() -> Member:
            producer = Member(redis_server.url, crawl_name, f"0-{count}")
            stack.callback(producer.close)
            return producer

        for n in range(kills):
            producer = start()
            wanted = n * count // kills + dice.randrange(1, 30)
            await until(lambda: len(worked) >= wanted, "items of it")  # noqa: B023
            producer.kill9()
        assert await asyncio.to_thread(start().process.wait, SOON_S) == 0, "all of them are accepted"
        async with asyncio.timeout(SOON_S):
            await queue.join()
            assert set(worked) == set(range(count))
            await queue.close()
            await asyncio.gather(*consuming)
        assert set(worked.values()) == {1}
        await assert_settled(queue, count)


async def test_lost_answers_repeat_nothing(redis_server: RedisServer, crawl_name: str) -> None:
    dice = random.Random(crawl_name)
    # Nothing is long held up: a lease must not end by a broken connection, so that each delivery is the first.
    shares = Shares(cut=0.05, late=0.02, late_max_s=0.05)
    deliveries: Counter[int] = Counter()
    async with FailingProxy(redis_server.port, dice, shares) as proxy, AsyncExitStack() as stack:
        queues = [
            await stack.enter_async_context(TaskQueue(crawl_name, proxy.url, type=int, maxsize=100)) for _ in range(3)
        ]
        accepted = 0
        proxy.is_failing = True

        async def produce(queue: TaskQueue[int]) -> None:
            nonlocal accepted
            while min(proxy.faults[fault] for fault in CUTS) < CUTS_LEAST:
                number = accepted
                accepted += 1
                await queue.put(number)

        async def consume(queue: TaskQueue[int]) -> None:
            async for handle in queue:
                deliveries[handle.item] += 1
                if dice.random() < 0.05:
                    await queue.retry(handle)
                    deliveries[handle.item] -= 1
                else:
                    await queue.task_done(handle)

        consuming = [asyncio.create_task(consume(queue)) for queue in queues for _ in range(10)]
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*(produce(queue) for queue in queues for _ in range(5)))
            await queues[0].join()
            assert len(deliveries) == accepted
            await queues[1].close()
            await asyncio.gather(*consuming)
        proxy.is_failing = False
        await assert_settled(queues[2], accepted)
    assert set(deliveries.values()) == {1}, "no answer that was lost made a second delivery"


CUTS: Final = (Fault.CUT_BEFORE, Fault.CUT_COMMAND, Fault.CUT_AFTER, Fault.CUT_ANSWER)


async def test_store_that_lost_its_last_moments_gets_again_what_was_put(crawl_name: str) -> None:
    """The server dies with its machine, again and again, and forgets what it had accepted and settled just now."""
    with RedisServer(options=DURABLE | {"auto-aof-rewrite-percentage": "0"}) as server:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(
                TaskQueue(crawl_name, server.url, type=int, maxsize=0, lease_s=2)
            )
            queues = [await stack.enter_async_context(TaskQueue(crawl_name, server.url, type=int)) for _ in range(2)]
            worked: Counter[int] = Counter()
            accepted = 0

            async def consume(queue: TaskQueue[int]) -> None:
                async for handle in queue:
                    worked[handle.item] += 1
                    with suppress(LeaseLost):
                        await queue.task_done(handle)

            consuming = [asyncio.create_task(consume(queue)) for queue in queues for _ in range(4)]
            for _ in range(LOSSES):
                await producer.put_many(range(accepted, accepted + 100))
                accepted += 100
                size = server.append_log.stat().st_size
                for _ in range(40):
                    await producer.put(accepted, delay_s=0.3 if accepted % 3 == 0 else 0)
                    accepted += 1
                await until(lambda: len(worked) > accepted - 30, "work to be done that will be forgotten")  # noqa: B023
                server.kill9()
                assert server.lose_written(size) > 0
                server.start()
            async with asyncio.timeout(SOON_S):
                await producer.join()
                assert set(worked) == set(range(accepted))
                await producer.close()
                await asyncio.gather(*consuming)
            await assert_settled(producer, accepted)


async def test_failover_that_loses_writes_costs_no_item(crawl_name: str) -> None:
    """Replication is asynchronous: what the old master alone had accepted and settled is put, or delivered, again."""
    with Replicated() as servers:
        old, new = servers.servers
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(TaskQueue(crawl_name, servers.url, type=int, lease_s=2))
            consumer = await stack.enter_async_context(TaskQueue(crawl_name, servers.url, type=int))
            worked: Counter[int] = Counter()

            async def consume() -> None:
                async for handle in consumer:
                    worked[handle.item] += 1
                    with suppress(LeaseLost):
                        await consumer.task_done(handle)

            consuming = [asyncio.create_task(consume()) for _ in range(4)]
            await producer.put_many(range(100))
            await until(lambda: len(worked) == 100, "what both servers know of")
            servers.cut_replica_off()
            await producer.put_many(range(100, 200))
            await until(lambda: len(worked) == 200, "what only the old master knows of")
            old.kill9()
            await asyncio.to_thread(servers.until_master, new)
            await producer.put_many(range(200, 300))
            async with asyncio.timeout(SOON_S):
                await producer.join()
                assert set(worked) == set(range(300))
                await producer.close()
                await asyncio.gather(*consuming)
            await assert_settled(producer, 300)
            assert sum(worked.values()) > 300, "the new master had not heard that they were done"


async def test_paused_process_is_told_that_its_leases_are_lost(
    redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    path = tmp_path / "done"
    path.touch()
    async with TaskQueue(crawl_name, redis_server.url, type=int, lease_s=1, crashes_max=1000) as queue:
        consumer = Member(redis_server.url, crawl_name, path)
        try:
            accepted, deadline = 0, time.monotonic() + SOON_S
            while True:
                await queue.put_many(range(accepted, accepted + 200))
                accepted += 200
                await until(lambda: path.stat().st_size > 0, "the consumer to work")
                consumer.process.send_signal(signal.SIGSTOP)
                if (await queue.stats()).out:
                    break  # it was stopped with something in its hands
                assert time.monotonic() < deadline
                consumer.process.send_signal(signal.SIGCONT)
            handles: list[Handle[int]] = []
            while not handles or not any(handle.crashes for handle in handles):
                handles += await asyncio.wait_for(queue.get_many(500), SOON_S)
            consumer.process.send_signal(signal.SIGCONT)
            assert await queue.task_done_many(handles) == []
            await asyncio.wait_for(queue.join(), SOON_S)
            await queue.close()
            assert await asyncio.to_thread(consumer.process.wait, SOON_S) == 0
        finally:
            consumer.close()
        await assert_settled(queue, accepted)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_join_and_close_come_exactly_when_everything_accepted_is_settled(
    redis_server: RedisServer, crawl_name: str, seed: int
) -> None:
    asyncio.run(_walk(redis_server.url, f"{crawl_name}-{secrets.token_hex(4)}", random.Random(seed)))


class _Record:
    def __init__(self) -> None:
        self.accepted: set[int] = set()
        """Whose put returned."""
        self.maybe: set[int] = set()
        """Whose put was cancelled."""
        self.settling: set[int] = set()
        """Whose task_done was called in the end."""
        self.early: list[set[int]] = []
        """Of each consumer that ended, what was accepted and not settled at that moment."""
        self.number = 0


async def _walk(url: str, name: str, dice: random.Random) -> None:
    """Random producers and consumers on two members, whose tasks are cancelled at any await."""
    record = _Record()
    options: dict[str, Any] = {
        "maxsize": dice.choice([1, 5, 100]),
        "levels": dice.choice([1, 3]),
        "attempts_max": 10**6,
        "prefetch": dice.choice([0, 0, 8]),
    }
    levels = options["levels"]
    async with TaskQueue(name, url, type=int, **options) as first, TaskQueue(name, url, type=int, **options) as second:
        queues = (first, second)

        async def produce(queue: TaskQueue[int]) -> None:
            for _ in range(dice.randrange(1, 30)):
                number = record.number = record.number + 1
                record.maybe.add(number)
                delay_s = dice.choice([0, 0, 0, 0.02])
                await queue.put(number, priority=dice.randrange(levels), delay_s=delay_s)
                record.maybe.discard(number)
                record.accepted.add(number)

        async def consume(queue: TaskQueue[int]) -> None:
            while True:
                try:
                    handle = await queue.get()
                except QueueClosed:
                    record.early.append(record.accepted - record.settling)
                    raise
                try:
                    await asyncio.sleep(dice.choice([0, 0, 0.003]))
                    if dice.random() < 0.1:
                        await queue.retry(handle, after_s=dice.choice([0, 0.01]))
                        continue
                except asyncio.CancelledError:
                    queue.give_back_soon(handle)
                    raise
                record.settling.add(handle.item)
                await queue.task_done(handle)

        async def disturb() -> None:
            while not is_calm.is_set():
                for _ in range(dice.randrange(1, 12)):
                    await asyncio.sleep(0)
                await asyncio.sleep(dice.choice([0, 0.001]))
                number = dice.randrange(len(consuming))
                consuming[number].cancel()
                await asyncio.wait((consuming[number],))
                consuming[number] = asyncio.create_task(consume(dice.choice(queues)))
                if producing and dice.random() < 0.1:
                    dice.choice(producing).cancel()

        consuming = [asyncio.create_task(consume(dice.choice(queues))) for _ in range(dice.randrange(1, 6))]
        producing = [asyncio.create_task(produce(dice.choice(queues))) for _ in range(dice.randrange(1, 8))]
        is_calm = asyncio.Event()
        disturbing = asyncio.create_task(disturb())
        async with asyncio.timeout(SOON_S):
            await asyncio.wait((producing[0],))
            before = set(record.accepted)
            await dice.choice(queues).join()
            assert before <= record.settling, "join returned before all that was accepted is settled"
            await asyncio.gather(*producing, return_exceptions=True)
            is_calm.set()
            await disturbing
            await dice.choice(queues).close()
            with pytest.raises(QueueClosed):
                await dice.choice(queues).put(0)
            ends = await asyncio.gather(*consuming, return_exceptions=True)
            assert all(isinstance(end, QueueClosed) for end in ends), ends
        assert record.early == [set()] * len(consuming), "a consumer ended before the last item"
        assert record.accepted <= record.settling <= record.accepted | record.maybe
        await assert_settled(first, len(record.settling))
        await first.delete()
