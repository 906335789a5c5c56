"""What does a fleet of 50 workers of 200 slots cost its Redis, how fairly does it share, and when is one Redis full?

Everything is the product but the network: supervisors, worker processes, their loops, scripts, leases, an output in
JSONL. What is fetched comes from a model of the web (web_model.py) after a time that is drawn from it, so 10,000
fetches are under way at a time without a socket, and every figure of Redis is that of such a fleet.

Workers are processes of their own, under a few supervisors as on so many machines. First they wait without work, which
is what an idle fleet costs; then the seeds come. Redis's figures are its own account of itself (INFO) and hardly depend
on the machine. How long a worker waits for it is the workers' own metrics: on two cores most of that is waiting for a
core.

    python -m benchmarks simulated                              50 x 200, 5,000 hosts of two pages in the mean
    python -m benchmarks simulated --shards 4 --hosts 10000 --pages 20000
    python -m benchmarks simulated --hosts 100 --host-concurrency 100 --delay-ms 0

Exit code 1 when a page is missing, was had twice or came from nowhere, or a host was asked too early or too often.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from array import array
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from benchmarks.simulated_fetcher import Setup, announced, read_requests
from benchmarks.web_model import Web, WebSpec
from streamcrawl.rules.scope import Scope
from streamcrawl.rules.task import CrawlTask, Kind, decode_task
from streamcrawl.rules.urls import split_url
from streamcrawl.settings import CLASSES, Given, SettingClass, make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import LINKS_PER_CALL, Links
from streamcrawl.store.shards import open_crawl
from streamcrawl.store.tuning import encode_given, tune
from streamcrawl.work.meters import (
    BATCH_SIZE,
    COMMANDS,
    COMMIT_WAIT,
    COMMITS,
    CPU_SECONDS,
    FETCH,
    LEASE_LOST,
    LOOP_LAG,
    QUEUE_WAIT,
    REDIS_SECONDS,
    Family,
    Meters,
    added,
)
from streamcrawl.work.supervisor import SinkSpec, Supervisor
from tests.integration.drive import violations
from tests.redis_server import RedisServer
from tests.site.server import LoggedRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis.asyncio import Redis

    from benchmarks.simulated_fetcher import Request
    from streamcrawl.settings import Settings
    from streamcrawl.store.shards import Shards

OUTPUT: Final = "pages"
SAMPLE_S: Final = 0.5
READY_LOOK_S: Final = 0.05
READY_MAX_S: Final = 300
BUSY_FROM, BUSY_TO = 0.1, 0.9
"""The part of the pages between which the fleet is taken to be busy: before, hosts are still found; after, few are
left."""
JUDGED_REQUESTS: Final = 6
"""A host with fewer says nothing of how evenly hosts come on."""
FAULTS_SHOWN: Final = 20
_SCRIPTS: Final = ("cmdstat_evalsha", "cmdstat_eval")
_US: Final = 1e6


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    web: WebSpec
    workers: int = 50
    slots: int = 200
    supervisors: int = 5
    shards: int = 1
    delay_ms: int = 0
    host_concurrency: int = 1
    obey_robots: bool = True
    timeout_ms: int = 10_000
    idle_s: float = 5.0
    """How long the fleet waits for its first work while its cost is measured."""

    def settings(self, values: dict[str, Any]) -> Settings:
        return make_settings(name="simulated", shards=self.shards, concurrency=self.slots, **values)

    def values(self) -> dict[str, Any]:
        """Return what the crawl is set to."""
        return {
            "scope": "any",
            "delay_ms": self.delay_ms,
            # How hosts are spared is not the question, and the delay is to be known to the ms when the log is judged.
            "delay_factor": 0,
            "delay_max_ms": self.delay_ms,
            "demotion_max": 0,
            "host_concurrency": self.host_concurrency,
            "obey_robots": self.obey_robots,
            "timeout_ms": self.timeout_ms,
            "retry_base_ms": 500,
            "retry_max_ms": 2000,
            "host_backoff_base_ms": 500,
            "host_backoff_max_ms": 2000,
            "host_give_up_ms": 10_000,
            "host_give_up_idle_ms": 5000,
            "memory_max_bytes": 4_000_000_000,
        }


class Sample(NamedTuple):
    at_s: float
    redis_cpu_s: float
    ended: int
    busy: int


class Ran(NamedTuple):
    """What came of a run, before it is judged."""

    word: str
    figures: dict[str, Any]
    statuses: dict[str, int]
    """URL -> status of its record."""
    records: int
    dead: set[str]
    created: int
    """Pages that the crawl knew."""
    log: list[str]


# -- the run


async def run(plan: Plan, url: str, folder: Path, began_s: float, fetcher: str) -> Ran:
    """Run the fleet until its crawl has ended."""
    values = plan.values()
    settings, web, said = plan.settings(values), Web(plan.web), list[str]()
    given = {
        field: Given(value, "benchmark")
        for field, value in values.items()
        if CLASSES[field][0] in (SettingClass.TUNABLE, SettingClass.RESTING)
    }
    output = folder / "pages.jsonl"
    async with AsyncExitStack() as opened:
        client = connect(url)
        opened.push_async_callback(client.aclose)
        crawl, _ = await open_crawl(client, settings, sinks=[OUTPUT], given=encode_given(given))
        tuned, _ = await tune(crawl, settings.name, {})
        supervisors = []
        for number in range(plan.supervisors):
            many = (plan.workers + number) // plan.supervisors
            own_client = connect(url)  # as on a machine of its own
            opened.push_async_callback(own_client.aclose)
            own, _ = await open_crawl(own_client, settings, sinks=[OUTPUT])
            supervisors.append(
                Supervisor(
                    url,
                    msgspec.structs.replace(settings, processes=many),
                    own,
                    scope=Scope.from_settings(settings, web.seeds).state(),
                    sinks=[SinkSpec(OUTPUT, str(output) if number == 0 else "")],
                    version=tuned.version,
                    fetcher=fetcher,
                    log=said.append,
                )
            )
        fleet = _Fleet(supervisors)
        running = [asyncio.create_task(supervisor.run()) for supervisor in supervisors]
        try:
            await fleet.ready(plan.workers, running)
            idle = await _idle_cost(client, plan.idle_s)
            before = await _cpu_s(client)
            samples = [Sample(time.monotonic(), before, 0, 0)]
            sampling = asyncio.create_task(_sample(client, fleet, samples))
            await _seed(crawl, web.seeds)
            words = await asyncio.gather(*running)
            sampling.cancel()
            used_s = await _cpu_s(client) - before
            account = await _account(client)
        finally:
            for supervisor in supervisors:
                supervisor.stop()
                supervisor.stop()
            await asyncio.gather(*running, return_exceptions=True)
        created, dead = await _ended(crawl)
    lines = [msgspec.json.decode(line) for line in output.read_bytes().splitlines()]
    statuses = {record["url"]: record["status"] for record in lines}
    pages = max(1, created)
    meters = fleet.meters()
    figures = {
        **idle,
        "took_s": round(samples[-1].at_s - samples[0].at_s, 1),
        "slots_busy_peak": max(sample.busy for sample in samples),
        "redis_cpu_us_per_page": round(used_s * _US / pages, 1),
        **_busy_figures(samples),
        **{f"{name}_per_page": round(value / pages, 2) for name, value in account.counts.items()},
        "calls_per_page": {name: round(value / pages, 3) for name, value in account.top.items()},
        "worker_calls_per_page": {
            name: round(calls / pages, 3) for name in COMMANDS[FETCH] if (calls := meters.count(REDIS_SECONDS, name))
        },
        **account.script_us,
        **_waits(meters),
        "commits_lease_lost": round(sum(meters.count(COMMITS, kind.value, LEASE_LOST) for kind in Kind)),
        "worker_cpu_us_per_page": round(meters.count(CPU_SECONDS) * _US / pages),
    }
    return Ran(_worst(words), figures, statuses, len(lines), dead, created, said)


class _Fleet:
    """All supervisors with their workers."""

    def __init__(self, supervisors: Sequence[Supervisor]) -> None:
        self._supervisors = supervisors

    async def ready(self, workers: int, running: Sequence[asyncio.Task[str]]) -> None:
        """Wait until all workers are at work.

        Raises:
            TimeoutError: they are not; or what a supervisor raised.
        """
        async with asyncio.timeout(READY_MAX_S):
            while True:
                children = [child for one in self._supervisors for child in one.children]
                if sum(child.is_ready for child in children if child.role == "fetch") >= workers:
                    return
                for task in running:
                    if task.done():
                        task.result()
                await asyncio.sleep(READY_LOOK_S)

    def meters(self) -> Meters:
        """Return what all fetch workers have counted, ended ones too."""
        cells = [reading.cells for one in self._supervisors for reading in one.readings() if reading.role == FETCH]
        return Meters(memoryview(array("d", added(*cells))))

    @property
    def busy(self) -> int:
        return sum(child.busy for one in self._supervisors for child in one.children if child.role == "fetch")


async def _seed(crawl: Shards, urls: Sequence[str]) -> None:
    todo = [Links() for _ in crawl]
    for url in urls:
        host, path = split_url(url)
        todo[crawl.index_of(host)].add(CrawlTask(host=host, path=path))
    for frontier, links in zip(crawl, todo, strict=True):
        while links:
            await frontier.offer(links.take(LINKS_PER_CALL))
    await crawl.first.control(closed=1)


async def _idle_cost(client: Redis, idle_s: float) -> dict[str, Any]:
    """Return what a fleet without work costs Redis; its account begins anew behind it."""
    await client.config_resetstat()
    before, began = await _cpu_s(client), time.monotonic()
    await asyncio.sleep(idle_s)
    took_s = time.monotonic() - began
    used_s = await _cpu_s(client) - before
    account = await _account(client)
    await client.config_resetstat()
    return {
        "idle_redis_cpu_share": round(used_s / took_s, 4),
        "idle_commands_per_s": round(account.counts["commands"] / took_s),
    }


async def _sample(client: Redis, fleet: _Fleet, samples: list[Sample]) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        ended, _ = fleet.meters().worked()
        samples.append(Sample(time.monotonic(), await _cpu_s(client), ended, fleet.busy))


async def _cpu_s(client: Redis) -> float:
    info: Any = await client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


class _Account(NamedTuple):
    counts: dict[str, float]
    top: dict[str, int]
    script_us: dict[str, Any]


async def _account(client: Redis) -> _Account:
    """Return what the server did since its account was begun."""
    stats: Any = await client.info("stats")
    commands: Any = await client.info("commandstats")
    latency: Any = await client.info("latencystats")
    inside = {name: used for name, used in commands.items() if name not in _SCRIPTS}
    scripts = [commands[name] for name in _SCRIPTS if name in commands]
    counts = {
        "script_calls": sum(used["calls"] for used in scripts),
        "script_us": sum(used["usec"] for used in scripts),
        "commands": sum(used["calls"] for used in inside.values()),
        "bytes_in": stats["total_net_input_bytes"],
        "bytes_out": stats["total_net_output_bytes"],
    }
    top = sorted(inside, key=lambda name: -inside[name]["usec"])[:8]
    script = latency.get("latency_percentiles_usec_evalsha", {})
    script_us = {f"script_us_{name.replace('.', '')}": round(float(value)) for name, value in script.items()}
    return _Account(counts, {name.removeprefix("cmdstat_"): inside[name]["calls"] for name in top}, script_us)


async def _ended(crawl: Shards) -> tuple[int, set[str]]:
    """Return how many pages the crawl knew, and those that are dead."""
    created, dead = 0, set[str]()
    for frontier in crawl:
        totals: Any = await frontier.client.hgetall(frontier.keys.totals)
        created += int(totals.get(b"page.created", 0))
        letters: Any = await frontier.client.xrange(frontier.keys.dead)
        for _, fields in letters:
            task = decode_task(fields[b"host"].decode(), fields[b"level"].decode(), fields[b"task"])
            if task.kind is Kind.PAGE:
                dead.add(task.url)
    return created, dead


def _worst(words: Sequence[str]) -> str:
    return next((word for word in words if word != "ENDED"), "ENDED")


def _busy_figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return what Redis and the fleet did while most hosts had work."""
    everything = samples[-1].ended
    busy = [sample for sample in samples if BUSY_FROM * everything <= sample.ended <= BUSY_TO * everything]
    if len(busy) < 2 or busy[-1].ended == busy[0].ended:
        return {}
    took_s, ended = busy[-1].at_s - busy[0].at_s, busy[-1].ended - busy[0].ended
    used_s = busy[-1].redis_cpu_s - busy[0].redis_cpu_s
    return {
        "busy_s": round(took_s, 1),
        "busy_tasks_per_s": round(ended / took_s),
        "busy_slots_median": round(median(sample.busy for sample in busy)),
        "busy_redis_cpu_share": round(used_s / took_s, 3),
        "busy_redis_cpu_us_per_task": round(used_s * _US / ended, 1),
        "one_redis_carries_tasks_per_s_at_least": round(ended / used_s),
    }


def _waits(meters: Meters) -> dict[str, Any]:
    """Return how long things took, as the workers' own metrics have it."""
    rows: list[tuple[str, Family, tuple[str, ...]]] = [
        ("commit_call", REDIS_SECONDS, ("commit",)),
        ("commit_wait", COMMIT_WAIT, ()),
        ("dispatch_to_read", QUEUE_WAIT, ()),
        ("loop_lag", LOOP_LAG, ()),
    ]
    found: dict[str, Any] = {}
    for name, family, labels in rows:
        for share in (0.5, 0.99):
            found[f"{name}_ms_p{share * 100:g}"] = round(1000 * _quantile(meters, family, labels, share), 1)
    batches = meters.count(BATCH_SIZE)
    found["commit_batch_mean"] = round(meters.total(BATCH_SIZE) / max(1, batches), 1)
    return found


def _quantile(meters: Meters, family: Family, labels: tuple[str, ...], share: float) -> float:
    """Return a quantile of a histogram, evenly within its bucket; beyond the last bound, that bound."""
    row, bounds = family.row(labels), family.bounds
    counts = meters.read()[row : row + len(bounds) + 1]
    left = share * sum(counts)
    for at, bound in enumerate(bounds):
        if left <= counts[at]:
            below = bounds[at - 1] if at else 0.0
            return below + (bound - below) * (left / counts[at] if counts[at] else 0.0)
        left -= counts[at]
    return bounds[-1]


# -- judging


def faults_of(plan: Plan, ran: Ran, requests: Sequence[Request]) -> Iterator[str]:
    """Yield what is wrong with a run, in words."""
    if ran.word != "ENDED":
        yield f"it ended as {ran.word}"
    reached = Web(plan.web).reachable(ran.statuses.__contains__, ran.dead.__contains__)
    for url in reached.missing:
        yield f"{url} is missing"
    for url in (ran.statuses.keys() | ran.dead) - reached.known:
        yield f"{url} came from nowhere"
    for url in ran.statuses.keys() & ran.dead:
        yield f"{url} is done and dead"
    if ran.records != len(ran.statuses):
        yield f"{ran.records - len(ran.statuses)} records are there twice"
    if ran.created != len(reached.known):
        yield f"the crawl counts {ran.created} pages, and {len(reached.known)} can be reached"
    logged = [LoggedRequest(one.host, one.path, one.start_ms, one.end_ms, one.status) for one in requests]
    yield from violations(logged, cap=plan.host_concurrency, delay_ms=plan.delay_ms)


def fairness(plan: Plan, requests: Sequence[Request], began_s: float) -> dict[str, Any]:
    """Return how evenly hosts and workers came on.

    A request is *ready* when its URL was linked by a page that had come, and its host was free and past its delay; what
    passes until its start is its wait for Redis, a worker and a core. A host's progress is the share of its time with
    work that it did not wait: 1 at best, and the same for all where slots are shared evenly. Hosts that failed in
    between had to wait for that, and are left out; with several requests of a host at a time there is no such order.
    """
    by_worker = Counter(request.worker for request in requests)
    counts = [*by_worker.values(), *[0] * (plan.workers - len(by_worker))]
    found = {
        "jain_index_of_workers": round(jain(counts), 4),
        "requests_of_a_worker_min": min(counts),
        "requests_of_a_worker_max": max(counts),
    }
    if plan.host_concurrency != 1:
        return found
    linked_ms = _linked_ms(plan, requests, began_s)
    by_host: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        by_host[request.host].append(request)
    waits, progress = list[float](), list[float]()
    for own in by_host.values():
        own.sort(key=lambda request: request.start_ms)
        if len(own) < JUDGED_REQUESTS or any(request.status == 0 or request.status >= 500 for request in own):
            continue
        first_ms = min(linked_ms.get(request.url, request.start_ms) for request in own)
        host_waits, needed_ms, free_ms = list[float](), 0.0, 0.0
        for request in own:
            ready_ms = max(free_ms, linked_ms.get(request.url, first_ms))
            host_waits.append(max(0.0, request.start_ms - ready_ms))
            needed_ms += request.end_ms - request.start_ms + plan.delay_ms
            free_ms = request.end_ms + plan.delay_ms
        waits += host_waits
        progress.append(needed_ms / (needed_ms + sum(host_waits)))
    found |= {"hosts_judged": len(progress)}
    if len(progress) > 1:
        hundredths, tenths = quantiles(waits, n=100), quantiles(progress, n=10)
        found |= {
            "ready_to_start_ms_p50": round(hundredths[49], 1),
            "ready_to_start_ms_p99": round(hundredths[98], 1),
            "host_progress_min": round(min(progress), 3),
            "host_progress_p10": round(tenths[0], 3),
            "host_progress_p90": round(tenths[8], 3),
            "jain_index_of_hosts": round(jain(progress), 4),
        }
    return found


def _linked_ms(plan: Plan, requests: Sequence[Request], began_s: float) -> dict[str, float]:
    """Return when each URL was first linked by a page that had come; not of seeds, nor of robots.txt."""
    web, linked_ms = Web(plan.web), dict[str, float]()
    for request in sorted(requests, key=lambda request: request.end_ms):
        if request.status in (200, 302):
            reply = web.reply(request.url, request.start_ms / 1000 - began_s)
            for url in (*reply.links, *([reply.location] if reply.location else [])):
                linked_ms.setdefault(url, request.end_ms)
    return linked_ms


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 when all have the same, 1/n when one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def simulate(plan: Plan, server: RedisServer, folder: Path) -> tuple[dict[str, Any], list[str], Ran]:
    """Run a plan on a server; returns its figures, its faults and all that came of it."""
    setup = Setup(plan.web, str(folder), time.monotonic())
    with announced(setup) as fetcher:
        ran = asyncio.run(run(plan, server.url, folder, setup.began_s, fetcher))
    requests = read_requests(folder)
    faults = list(faults_of(plan, ran, requests))
    facts = {
        "workers": plan.workers,
        "slots": plan.slots,
        "supervisors": plan.supervisors,
        "shards": plan.shards,
        "hosts": plan.web.hosts,
        "delay_ms": plan.delay_ms,
        "host_concurrency": plan.host_concurrency,
        "latency_ms": plan.web.latency_ms,
        "pages": ran.created,
        "done": len(ran.statuses),
        "dead": len(ran.dead),
        "requests": len(requests),
    }
    return {**facts, **ran.figures, **fairness(plan, requests, setup.began_s), "faults": len(faults)}, faults, ran


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated", description=(__doc__ or "").split("\n")[0])
    plan, web = Plan(web=WebSpec()), WebSpec()
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument("--workers", type=int, default=plan.workers, metavar="N", help="worker processes (%(default)s)")
    fleet.add_argument("--slots", type=int, default=plan.slots, metavar="N", help="of each (%(default)s)")
    fleet.add_argument("--supervisors", type=int, default=plan.supervisors, metavar="N", help="over them (%(default)s)")
    fleet.add_argument("--shards", type=int, default=plan.shards, metavar="N", help="on the one Redis (%(default)s)")
    fleet.add_argument("--delay-ms", type=int, default=100, metavar="N", help="of a host (%(default)s)")
    fleet.add_argument("--host-concurrency", type=int, default=plan.host_concurrency, metavar="N", help="(%(default)s)")
    fleet.add_argument("--no-robots", action="store_true", help="ask no host for its robots.txt")
    fleet.add_argument("--timeout-ms", type=int, default=plan.timeout_ms, metavar="N", help="of a fetch (%(default)s)")
    fleet.add_argument("--idle-s", type=float, default=plan.idle_s, metavar="S", help="without work (%(default)s)")
    model = parser.add_argument_group("the web")
    model.add_argument("--hosts", type=int, default=5000, metavar="N", help="(%(default)s)")
    model.add_argument("--pages", type=int, default=10_000, metavar="N", help="in all, nearly (%(default)s)")
    model.add_argument("--host-pages-max", type=int, metavar="N", help="of the largest hosts (5 times the mean)")
    model.add_argument("--seed", type=int, default=web.seed, metavar="N", help="another number, another web")
    model.add_argument("--links", type=int, default=web.links, metavar="N", help="of a page, in the mean (%(default)s)")
    model.add_argument("--latency-ms", type=int, default=3000, metavar="N", help="the median (%(default)s)")
    model.add_argument("--latency-sigma", type=float, default=web.latency_sigma, metavar="S", help="(%(default)s)")
    model.add_argument("--no-errors", action="store_true", help="every host and every page answers")
    options = parser.parse_args()
    errors = {"dead_hosts": 0.01, "missing": 0.02, "hanging": 0.001, "failing": 0.005, "outages": 0.01}
    plan = Plan(
        web=WebSpec(
            seed=options.seed,
            hosts=options.hosts,
            pages=options.pages,
            host_pages_max=options.host_pages_max or -(-5 * options.pages // options.hosts),
            seeds=max(1, options.hosts // 100),
            links=options.links,
            latency_ms=options.latency_ms,
            latency_sigma=options.latency_sigma,
            latency_max_ms=options.timeout_ms * 4 // 5,
            **{} if options.no_errors else errors,
        ),
        workers=options.workers,
        slots=options.slots,
        supervisors=min(options.supervisors, options.workers),
        shards=options.shards,
        delay_ms=options.delay_ms,
        host_concurrency=options.host_concurrency,
        obey_robots=not options.no_robots,
        timeout_ms=options.timeout_ms,
        idle_s=options.idle_s,
    )
    load = os.getloadavg()[0]
    with RedisServer() as server, tempfile.TemporaryDirectory(prefix="simulated-") as folder:
        figures, faults, ran = simulate(plan, server, Path(folder))
    for fault in faults[:FAULTS_SHOWN]:
        print(fault, file=sys.stderr)
    for line in ran.log[:FAULTS_SHOWN] if faults else []:
        print(line, file=sys.stderr)
    print(json.dumps({"benchmark": "simulated", **figures, "load_before": round(load, 1)}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
