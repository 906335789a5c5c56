"""How many tasks a second does one Redis carry through their life: dispatched, read and committed?

Only the scripts and the read, called as a worker calls them, and batched as it batches: a batch of commits, which
dispatches into the slots that it frees, and one read for them. There is neither a fetch nor a page. The CPU is the
server's own account of itself (INFO), so what calls it does not count, nor do the seeds that are put before.

    python -m benchmarks.lifecycles                  20,000 tasks of one host, and of 1,000
    python -m benchmarks.lifecycles --records 400    each with a record of so many bytes, which a sink takes
    python -m benchmarks.lifecycles --links 7        each with so many links: one begins it, all others are discovered

Exit code 1 when a task was not done, or a rate is below the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.rules.task import CrawlTask, Kind, Outcome
from streamcrawl.settings import Settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import LINKS_PER_CALL, Beat, Commit, Frontier, Links, open_shard
from streamcrawl.store.keys import GROUP
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio import Redis

BAR: Final = 40_000
"""Lifecycles per second of Redis CPU."""
HOSTS: Final = (1, 1000)
SINK: Final = "pages"
LEASE_MS: Final = 3_600_000
DISPATCH_MAX: Final = 100
"""As the worker has it (work/worker.py)."""


def task_of(number: int, hosts: int) -> CrawlTask:
    """Return a task; they are spread evenly over the hosts."""
    return CrawlTask(host=f"https://www.example-{number % hosts}.com", path=f"/catalogue/book-{number}.html")


async def seed(frontier: Frontier, tasks: int, hosts: int) -> None:
    for start in range(0, tasks, LINKS_PER_CALL):
        links = Links()
        for number in range(start, min(start + LINKS_PER_CALL, tasks)):
            links.add(task_of(number, hosts))
        await frontier.offer(links)


def links_of(number: int, tasks: int, hosts: int, count: int) -> Links:
    """Return the links of a page: its children in a tree over all of them, and pages that are known by then."""
    dice = Random(number)
    children = [child for child in (2 * number + 1, 2 * number + 2) if child < tasks]
    links = Links()
    for other in (*children, *(dice.randrange(number + 1) for _ in range(count - len(children)))):
        links.add(task_of(other, hosts))
    return links


async def work(
    frontier: Frontier, reader: Redis, batch: int, record: bytes, links: Mapping[str, Links], most: float = math.inf
) -> int:
    """Carry all tasks through their life, or no more batches once `most` are done; returns how many were done."""
    done = 0
    await frontier.dispatch(DISPATCH_MAX)
    while done < most:
        reply: Any = await reader.xreadgroup(GROUP, "worker", {frontier.keys.fetch_stream: ">"}, count=batch)
        entries = [entry for _, rows in reply for entry in rows]
        if not entries:
            break
        commits = [
            Commit(
                entry_id.decode(),
                fields[b"host"].decode(),
                Kind.PAGE,
                Outcome.DONE,
                is_fetched=True,
                took_ms=20,
                items=(SINK, record) if record else (),
                links=links[_path_of(fields[b"task"])] if links else Links(),
            )
            for entry_id, fields in entries
        ]
        committed = await frontier.commit("worker", [commit.pack() for commit in commits], DISPATCH_MAX)
        done += committed.words.count("DONE")
    return done


def _path_of(stored: bytes) -> str:
    return next(part for part in msgspec.json.decode(stored) if isinstance(part, str) and part.startswith("/"))


async def cpu_s(client: Redis) -> float:
    info: Any = await client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


async def measure(url: str, tasks: int, hosts: int, batch: int, record: bytes, links: int) -> tuple[float, int]:
    """Return CPU seconds of the server for the lives of the tasks, and how many were done."""
    client = connect(url)
    try:
        settings = Settings(
            name=f"hosts-{hosts}", delay_ms=0, host_concurrency=batch, obey_robots=False, sink_waiting_max=10 * tasks
        )
        frontier, _ = await open_shard(client, settings, sinks=[SINK] if record else [])
        await frontier.beat([Beat("worker", "stream:fetch", batch, "{}")], lease_ms=LEASE_MS)
        await seed(frontier, 1 if links else tasks, hosts)
        # Made before: who is measured is the server.
        of_pages = {task_of(n, hosts).path: links_of(n, tasks, hosts, links) for n in range(tasks if links else 0)}
        before_s = await cpu_s(client)
        done = await work(frontier, client, batch, record, of_pages)
        return await cpu_s(client) - before_s, done
    finally:
        await client.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lifecycles", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tasks", type=int, default=20_000, metavar="N")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="entries in one read and one commit")
    parser.add_argument("--records", type=int, default=0, metavar="BYTES", help="give each page a record for a sink")
    parser.add_argument("--links", type=int, default=0, metavar="N", help="2 or more: give each page so many")
    options = parser.parse_args()
    if options.links == 1:
        parser.error("--links 1: a page leads to two that are new")
    rates: dict[str, int] = {}
    is_complete = True
    with RedisServer() as server:
        for hosts in HOSTS:
            measured = measure(server.url, options.tasks, hosts, options.batch, b"x" * options.records, options.links)
            used_s, done = asyncio.run(measured)
            rates[f"lifecycles_per_redis_cpu_s_{hosts}_hosts"] = round(done / used_s)
            is_complete = is_complete and done == options.tasks
    facts = {"tasks": options.tasks, "batch": options.batch, "record_bytes": options.records, "links": options.links}
    print(json.dumps({"benchmark": "lifecycles", **facts, **rates, "is_complete": is_complete}))
    if not is_complete or (not options.records and not options.links and min(rates.values()) < BAR):
        sys.exit(1)


if __name__ == "__main__":
    main()
