"""What do the commands cost on a crawl of a million URLs, and for how long does one of them hold Redis up?

A private redis-server without persistence gets a crawl of 20,000 hosts, one of them a calendar with a quarter of all
URLs. Each command is run as it is typed, in a process of its own, one after the other:

- `seed` of the file;
- `status` and `audit`;
- `dead replay` of 100,000 dead letters, which are made here, by the scripts that workers use;
- `queue purge` of 500,000: the calendar by its host, and as many by `--match` over all other hosts;
- `delete`.

Of each: wall time, its CPU and the server's, its largest memory, what the server holds afterwards, and the longest time
for which one command held the server up: by LATENCY, and by SLOWLOG, which names it. Both are wall time and hold what
the operating system took in between too; as root the server runs as a real-time
process, or every call of a busy machine would look slow.

    python -m benchmarks.million             a million; two to four minutes
    python -m benchmarks.million --urls 100000

Exit code 1 when a command failed, did not do what it was asked for, or held the server up for more than 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.memory import private_server, servers
from streamcrawl.rules.task import Kind, Outcome
from streamcrawl.store.frontier import Commit
from streamcrawl.store.keys import FETCH, GROUP
from streamcrawl.store.scripts import digest, script_names
from streamcrawl.store.shards import join_crawl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from resource import struct_rusage

    from redis.asyncio import Redis

    from streamcrawl.store.frontier import Frontier

URLS: Final = 1_000_000
HOSTS: Final = 20_000
DEAD_SHARE: Final = 10
"""Every tenth becomes a dead letter."""
CALENDAR_SHARE: Final = 4
"""Every fourth is of the calendar."""
BLOCK_MAX_MS: Final = 20
SLOW_US: Final = 5000
CALENDAR: Final = "https://calendar.example.org"
NAME: Final = "million"
BATCH: Final = 100
"""Commits in one call, as many as a worker sends."""


class Step(NamedTuple):
    """One command, as it is typed."""

    label: str
    words: list[str]
    expected: dict[str, int]
    """Figures that its JSON output must have."""


def write_urls(path: Path, urls: int) -> None:
    """Write the seeds: three of four on many hosts, a third of these under /archive/, and the calendar's."""
    with path.open("w") as file:
        for number in range(urls):
            if number % CALENDAR_SHARE == 0:
                file.write(f"{CALENDAR}/events?day={number:07}&view=month\n")
            else:
                folder = "archive" if number % 3 == 0 else "articles"
                file.write(
                    f"https://www.site-{number % (HOSTS - 1):05}.example/{folder}/{number:07}.html?id={number}\n"
                )


async def bury(frontier: Frontier, count: int) -> None:
    """Make dead letters of `count` tasks, with the calls of a worker."""
    await frontier.control(slots=1000)
    client: Any = frontier.client
    left = count
    while left:
        await frontier.dispatch(min(left, 1000))
        answer = await client.xreadgroup(GROUP, "w", {frontier.keys.fetch_stream: ">"}, count=min(left, BATCH))
        commits = [
            Commit(
                entry_id=entry_id.decode(),
                host=fields[b"host"].decode(),
                kind=Kind.PAGE,
                outcome=Outcome.DEAD,
                is_fetched=True,
                detail=(fields[b"level"].decode(), fields[b"task"].decode(), "http", "503", "503"),
            )
            for entry_id, fields in (answer[0][1] if answer else [])
        ]
        if commits:
            await frontier.commit("w", [commit.pack() for commit in commits], BATCH)
            left -= len(commits)
    # What was dispatched and not taken goes back, or it would count as waiting.
    rest = [entry_id.decode() for entry_id, _ in await client.xrange(frontier.keys.fetch_stream)]
    if rest:
        await client.xreadgroup(GROUP, "w", {frontier.keys.fetch_stream: ">"}, count=len(rest))
        await frontier.hand_back(f"stream:{FETCH}", rest)
    await frontier.control(slots="")


class Ran(NamedTuple):
    """A command that has ended."""

    code: int
    wall_s: float
    usage: struct_rusage
    said: dict[str, Any]
    """Its last line of JSON."""


def run(command: list[str]) -> Ran:
    """Run a command to its end."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - started
        out.seek(0)
        lines = out.read().splitlines()
    return Ran(process.returncode, wall_s, usage, json.loads(lines[-1]) if lines else {})


async def watched(client: Redis, url: str, step: Step) -> dict[str, Any]:
    """Run one command; return what it cost, here and there."""
    server: Any = client
    await server.latency_reset()
    await server.slowlog_reset()
    before = await server.info("cpu")
    command = [sys.executable, "-m", "streamcrawl", *step.words, "--redis", url, "--json"]
    ran = await asyncio.to_thread(run, command)
    after, memory = await server.info("cpu"), await server.info("memory")
    missed = {name: ran.said.get(name) for name, count in step.expected.items() if ran.said.get(name) != count}
    blocked = [row async for row in latencies(client)]
    return {
        "wall_s": round(ran.wall_s, 2),
        "cpu_s": round(ran.usage.ru_utime + ran.usage.ru_stime, 2),
        "redis_cpu_s": round(sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys")), 2),
        "rss_mb": ran.usage.ru_maxrss // 1024,
        "redis_mb": memory["used_memory"] // 1_000_000,
        "blocked_ms": max((ms for _, ms in blocked), default=0),
        "slowest_ms": await slowest(client),
        "exit_code": ran.code,
        **({"not_as_asked": missed} if missed else {}),
    }


async def latencies(client: Redis) -> Any:
    """Yield (event, its longest time in ms) since the last reset, for commands alone: there is no persistence."""
    server: Any = client
    for event, _, _, longest in await server.latency_latest():
        if event.decode() in ("command", "fast-command"):
            yield event.decode(), longest


async def slowest(client: Redis) -> dict[str, float]:
    """Return the longest time of each command over SLOW_US, in ms, scripts by their names."""
    names = {digest(name).encode(): f"{name}.lua" for name in script_names()}
    server: Any = client
    found: dict[str, float] = {}
    for row in await server.slowlog_get(10_000):
        words = row["command"].split()
        name = words[0].decode()
        if name in ("EVALSHA", "EVAL") and len(words) > 1:
            name = names.get(words[1], "a script, for the first time")
        found[name] = max(found.get(name, 0.0), row["duration"] / 1000)
    return {name: round(ms, 1) for name, ms in sorted(found.items())}


def steps(urls: int, file: Path, output: Path) -> Iterator[Step]:
    """Yield what is measured, in order."""
    calendar = len(range(0, urls, CALENDAR_SHARE))
    archive = sum(1 for number in range(0, urls, 3) if number % CALENDAR_SHARE)
    settings = ["--create", "--scope", "any", "--delay", "0", "--no-robots", "--memory-max", "8GB", "-o", str(output)]
    yield Step("seed", ["seed", NAME, str(file), *settings], {"new": urls, "known": 0, "refused": 0})
    yield Step("status", ["status", NAME], {})
    yield Step("audit", ["audit", NAME], {})
    yield Step("dead replay", ["dead", "replay", NAME, "--all"], {"queued": urls // DEAD_SHARE})
    yield Step("purge host", ["queue", "purge", NAME, "--host", CALENDAR], {"purged": calendar})
    yield Step("purge match", ["queue", "purge", NAME, "--match", "/archive/"], {"purged": archive})
    yield Step("delete", ["delete", NAME, "--yes"], {})


async def measure(urls: int) -> dict[str, Any]:
    """Run everything once; return the figures by command."""
    binary = servers()["path"]
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="million-") as folder:
        file = Path(folder, "urls.txt")
        write_urls(file, urls)
        async with private_server(binary) as client:
            server: Any = client
            with contextlib.suppress(PermissionError):
                pid = (await server.info("server"))["process_id"]
                os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
            await server.config_set("latency-monitor-threshold", 1)
            await server.config_set("slowlog-log-slower-than", SLOW_US)
            url = f"unix://{server.connection_pool.connection_kwargs['path']}"
            for step in steps(urls, file, Path(folder, "out.jsonl")):
                if step.label == "dead replay":
                    await bury((await join_crawl(client, NAME)).first, urls // DEAD_SHARE)
                figures[step.label] = await watched(client, url, step)
                print(f"{step.label}: {figures[step.label]}", file=sys.stderr)
            figures["keys_left"] = await server.dbsize()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.million", description="Measure the commands on a crawl of a million URLs."
    )
    parser.add_argument("--urls", type=int, default=URLS, help="URLs of the crawl (default: %(default)s)")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.urls))
    rows = [row for row in figures.values() if isinstance(row, dict)]
    is_good = not figures["keys_left"] and all(
        row["exit_code"] == 0 and row["blocked_ms"] <= BLOCK_MAX_MS and "not_as_asked" not in row for row in rows
    )
    print(json.dumps({"benchmark": "million", "urls": options.urls, "hosts": HOSTS, **figures}))
    raise SystemExit(not is_good)


if __name__ == "__main__":
    main()
