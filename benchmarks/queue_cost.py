"""What does a task cost on TaskQueue: put, get and task_done of nothing, in one process?

    python -m benchmarks.queue_cost --others

Each side is a program of its own that puts all tasks and then works them off in the same process, uvloop in each.
Rounds alternate in their order. CPU of that process is counted from the first put to the last task settled, without
start-up and imports; that of Redis apart, from its own INFO. Every task carries its number, and a figure with a task
missing or done twice is none: `is_complete`. `--others` installs each library, pinned, into an environment of its own
(contestants/*.txt), with what its documentation says is fastest: no results kept, 100 tasks at a time,
batches of 100 or more where it has them. `bare` is redis-py with pipelines of 100 and no protection at all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median
from typing import Any, Final, NamedTuple

import redis

from benchmarks.environments import NotInstallable, add_venvs_option, python_of
from tests.redis_server import DURABLE, FAST, RedisServer

TASKS: Final = 20_000
ROUNDS: Final = 3
BAR_BATCHED: Final = 8.0
BAR_SINGLE: Final = 3.0
"""Times the tasks per CPU second of the best of the others."""
TIMEOUT_S: Final = 600

_PRELUDE: Final = """
import asyncio, json, logging, sys, time
import uvloop

URL, N = sys.argv[1], int(sys.argv[2])
TEXT = "https://www.example-shop.com/catalogue/category/books/item-00012345/index.html?page=12"
times, hits, seen, ended = [], 0, bytearray(N), None

def mark():
    times.append((time.process_time(), time.perf_counter()))

def hit(n):
    global hits
    hits += 1
    seen[n] = 1
    if hits == N and ended is not None:
        ended.set()

async def put_by(put, callers=100):
    numbers = iter(range(N))
    async def some():
        for n in numbers:
            await put(n)
    await asyncio.gather(*(some() for _ in range(callers)))

def report():
    put, work = (times[1][0] - times[0][0], times[2][0] - times[1][0])
    wall = times[2][1] - times[0][1]
    print(json.dumps({"put_cpu_s": put, "work_cpu_s": work, "wall_s": wall, "hits": hits, "distinct": sum(seen)}))
    sys.stdout.flush()
"""

_BATCHED: Final = """
from streamcrawl import TaskQueue

async def main():
    async with TaskQueue("bench", URL, maxsize=0) as queue:
        mark()
        for first in range(0, N, 250):
            await queue.put_many({"url": TEXT, "n": n} for n in range(first, min(N, first + 250)))
        mark()
        while hits < N:
            handles = await queue.get_many(250)
            for handle in handles:
                hit(handle.item["n"])
            assert not await queue.task_done_many(handles)
        await queue.join()
        mark()
        assert (await queue.stats()).totals == {"created": N, "done": N}
    report()

uvloop.run(main())
"""

_SINGLE: Final = """
from streamcrawl import TaskQueue

async def main():
    async with TaskQueue("bench", URL, maxsize=0) as queue:
        async def work():
            async for handle in queue:
                hit(handle.item["n"])
                await queue.task_done(handle)
        mark()
        await put_by(lambda n: queue.put({"url": TEXT, "n": n}))
        mark()
        working = [asyncio.create_task(work()) for _ in range(100)]
        await queue.join()
        mark()
        assert (await queue.stats()).totals == {"created": N, "done": N}
        await queue.close()
        await asyncio.gather(*working)
    report()

uvloop.run(main())
"""

_BARE: Final = """
from redis.asyncio import Redis

async def main():
    client = Redis.from_url(URL, protocol=2)
    await client.xgroup_create("s", "g", "0", mkstream=True)
    mark()
    for first in range(0, N, 100):
        pipeline = client.pipeline(transaction=False)
        for n in range(first, min(N, first + 100)):
            pipeline.xadd("s", {"item": json.dumps({"url": TEXT, "n": n})})
        await pipeline.execute()
    mark()
    while hits < N:
        ((_, entries),) = await client.xreadgroup("g", "c", {"s": ">"}, count=100)
        for _, fields in entries:
            hit(json.loads(fields[b"item"])["n"])
        ids = [entry_id for entry_id, _ in entries]
        pipeline = client.pipeline(transaction=False)
        pipeline.xack("s", "g", *ids)
        pipeline.xdel("s", *ids)
        await pipeline.execute()
    mark()
    await client.aclose()
    report()

uvloop.run(main())
"""

_TASKIQ: Final = """
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

logging.disable(logging.WARNING)
broker = RedisStreamBroker(URL, consumer_id="0", xread_count=100)

@broker.task(task_name="noop")
async def noop(url: str, n: int) -> None:
    hit(n)

async def main():
    global ended
    ended = asyncio.Event()
    await broker.startup()
    mark()
    await put_by(lambda n: noop.kiq(TEXT, n))
    mark()
    receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=100, max_prefetch=100))
    await ended.wait()
    mark()
    report()
    receiver.cancel()
    await asyncio.wait((receiver,), timeout=5)
    await broker.shutdown()

uvloop.run(main())
"""

_STREAQ: Final = """
import os
import anyio
import coredis
from streaq import Worker

coredis.Config.optimized = True
worker = Worker(redis_url=URL, concurrency=100, prefetch=100, handle_signals=False)

@worker.task(ttl=0, silent=True)
async def noop(url: str, n: int) -> None:
    hit(n)

async def main():
    global ended
    ended = asyncio.Event()
    async with worker:
        mark()
        for first in range(0, N, 1000):
            await worker.enqueue_many([noop.enqueue(TEXT, n) for n in range(first, min(N, first + 1000))])
        mark()
    async with anyio.create_task_group() as group:
        await group.start(worker.run_async)
        await ended.wait()
        mark()
        report()
        os._exit(0)

anyio.run(main, backend_options={"use_uvloop": True})
"""

_ARQ: Final = """
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

logging.disable(logging.WARNING)

async def noop(ctx, url, n):
    hit(n)

async def main():
    pool = await create_pool(RedisSettings.from_dsn(URL))
    mark()
    await put_by(lambda n: pool.enqueue_job("noop", TEXT, n))
    mark()
    worker = Worker(
        [func(noop, name="noop", keep_result=0)], redis_pool=pool, burst=True, max_jobs=100, keep_result=0,
        poll_delay=0.01, queue_read_limit=500, log_results=False, handle_signals=False,
    )
    await worker.async_run()
    mark()
    report()
    await worker.close()

uvloop.run(main())
"""

_SAQ: Final = """
from saq import Queue, Worker

logging.disable(logging.WARNING)

async def noop(ctx, *, url, n):
    hit(n)

async def main():
    global ended
    ended = asyncio.Event()
    queue = Queue.from_url(URL)
    await queue.connect()
    mark()
    await put_by(lambda n: queue.enqueue("noop", url=TEXT, n=n, ttl=-1))
    mark()
    worker = Worker(queue, [noop], concurrency=100)
    working = asyncio.create_task(worker.start())
    await ended.wait()
    mark()
    report()
    await worker.stop()
    working.cancel()
    await asyncio.wait((working,), timeout=5)

uvloop.run(main())
"""


class Side(NamedTuple):
    program: str
    environment: str = ""
    """By the name of its pins in contestants/; none for this one."""


SIDES: Final[dict[str, Side]] = {
    "streamcrawl_batched": Side(_BATCHED),
    "streamcrawl_single": Side(_SINGLE),
    "bare": Side(_BARE),
    "taskiq_redis": Side(_TASKIQ, "taskiq_redis"),
    "streaq": Side(_STREAQ, "streaq"),
    "arq": Side(_ARQ, "arq"),
    "saq": Side(_SAQ, "saq"),
}


def measure(python: str, side: Side, server: RedisServer, tasks: int) -> dict[str, Any]:
    """Run one side once, on an empty server."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        before = client.info("cpu")
        command = [python, "-c", _PRELUDE + side.program, server.url, str(tasks)]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
        after = client.info("cpu")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[0])
    found["redis_cpu_s"] = sum(after[part] - before[part] for part in ("used_cpu_user", "used_cpu_sys"))
    return found


def cpu_s_of(run: dict[str, Any]) -> float:
    """Return the CPU seconds of one run's process, put to settled."""
    return float(run["put_cpu_s"] + run["work_cpu_s"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue_cost")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--others", action="store_true", help="measure other libraries as well (needs pip)")
    add_venvs_option(parser)
    parser.add_argument("--aof", action="store_true", help="on a server that keeps a log (everysec)")
    options = parser.parse_args()
    sides = {name: side for name, side in SIDES.items() if options.others or not side.environment}
    pythons = {}
    for name, side in sides.items():
        try:
            pythons[name] = str(python_of(side.environment, options.venvs)) if side.environment else sys.executable
        except NotInstallable as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    sides = {name: sides[name] for name in pythons}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    with RedisServer(options=DURABLE if options.aof else FAST) as server:
        for number in range(options.rounds):
            for name in list(sides)[:: -1 if number % 2 else 1]:
                runs[name].append(measure(pythons[name], sides[name], server, options.tasks))
                print(f"round {number + 1}: {name} {json.dumps(runs[name][-1])}", file=sys.stderr)
    figures: dict[str, Any] = {"tasks": options.tasks, "rounds": options.rounds}
    is_good, others = True, list[str]()
    for name, found in runs.items():
        is_complete = all(one["hits"] == one["distinct"] == options.tasks for one in found)
        # What another library does twice or leaves out costs it its place, and says nothing of ours.
        if not sides[name].environment:
            is_good &= is_complete
        elif is_complete:
            others.append(name)
        cpu_us = [1e6 * cpu_s_of(one) / options.tasks for one in found]
        figures[name] = {
            "cpu_us_per_task": round(median(cpu_us), 1),
            "put_cpu_us": round(median(1e6 * one["put_cpu_s"] / options.tasks for one in found), 1),
            "redis_cpu_us_per_task": round(median(1e6 * one["redis_cpu_s"] / options.tasks for one in found), 1),
            "tasks_per_s": round(median(options.tasks / one["wall_s"] for one in found)),
            "is_complete": is_complete,
        }
    if others and is_good:
        # Of each round by itself: a shared machine drifts.
        for name, bar in (("streamcrawl_batched", BAR_BATCHED), ("streamcrawl_single", BAR_SINGLE)):
            ratios = [
                min(cpu_s_of(runs[other][number]) for other in others) / cpu_s_of(ours)
                for number, ours in enumerate(runs[name])
            ]
            figures[f"{name}_times_best_other"] = round(median(ratios), 1)
            is_good &= median(ratios) >= bar
    print(json.dumps(figures))
    raise SystemExit(not is_good)


if __name__ == "__main__":
    main()
