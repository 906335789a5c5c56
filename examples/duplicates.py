"""Find files with equal content: a pipeline of three stages on two queues, and no crawl.

    python -m examples.duplicates FOLDER [--processes 2] [--lease 10] [--redis URL]

    walk ──▶ queue "files" ──▶ hash, in any number of processes ──▶ queue "digests" ──▶ collect

The walk waits while a thousand files wait to be hashed, so a slow disk keeps it from filling the memory. Kill any of
the hashing processes (the program names them): its files are hashed by the others once its lease is over. A file may be
hashed twice then, but its digest is put with the path as its id, so it arrives once. Each stage ends by `close`, when
the one before it is settled. Without --redis a server of its own runs as long as the program does.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import secrets
import sys
import tempfile
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

from streamcrawl import TaskQueue
from streamcrawl.errors import ConfigError, StoreError
from streamcrawl.store.embedded import EmbeddedRedis


async def walk(folder: Path, files: TaskQueue[str]) -> int:
    """Put the path of every file under `folder`; return how many there are."""
    count = 0
    for parent, _, names in os.walk(folder):
        await files.put_many(str(Path(parent, name)) for name in names)
        count += len(names)
    return count


def digest_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def hash_files(url: str, name: str) -> None:
    """Hash what comes until there is no more, four files at a time."""
    files = TaskQueue(f"{name}-files", url, type=str, prefetch=4)
    digests = TaskQueue(f"{name}-digests", url, type=tuple[str, str])

    async def work() -> None:
        async for handle in files:
            async with files.process(handle) as path:  # an error is a retry, and at last a dead letter
                digest = await asyncio.to_thread(digest_of, path)
                await digests.put((digest, path), id=hashlib.sha256(path.encode()).hexdigest())

    async with files, digests:
        await asyncio.gather(*(work() for _ in range(4)))


async def collect(digests: TaskQueue[tuple[str, str]]) -> list[list[str]]:
    """Return the groups of equal files, once there are no more."""
    paths: dict[str, list[str]] = defaultdict(list)
    async for handle in digests:
        digest, path = handle.item
        paths[digest].append(path)
        await digests.task_done(handle)
    return sorted(sorted(equal) for equal in paths.values() if len(equal) > 1)


async def find(folder: Path, url: str, processes: int, lease_s: float) -> int:
    """Run the pipeline; return the exit code: 1 when files could not be read."""
    name = f"duplicates-{secrets.token_hex(4)}"
    async with (
        TaskQueue(f"{name}-files", url, type=str, maxsize=1000, lease_s=lease_s, attempts_max=2) as files,
        TaskQueue(f"{name}-digests", url, type=tuple[str, str], lease_s=lease_s) as digests,
    ):
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=run_worker, args=(url, name)) for _ in range(processes)]
        for worker in workers:
            worker.start()
        print("hashing in", ", ".join(str(worker.pid) for worker in workers), file=sys.stderr, flush=True)
        collecting = asyncio.create_task(collect(digests))
        count = await walk(folder, files)
        await files.close()
        await files.join()
        await digests.close()
        groups = await collecting
        for worker in workers:
            await asyncio.to_thread(worker.join)
        unread = await files.dead_letters(1000)
        await files.delete()
        await digests.delete()
    for letter in unread:
        print(f"not read: {letter.item}: {letter.error.splitlines()[-1]}", file=sys.stderr)
    for equal in groups:
        print("  ".join(equal))
    print(f"{count} files, {len(groups)} groups of equal ones", file=sys.stderr)
    return 1 if unread else 0


def run_worker(url: str, name: str) -> None:
    asyncio.run(hash_files(url, name))


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.duplicates", description="Find files with equal content.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--redis", metavar="URL")
    parser.add_argument(
        "--lease", type=float, default=10.0, metavar="SECONDS", help="until a dead process's files are others'"
    )
    options = parser.parse_args()
    async with AsyncExitStack() as stack:
        url = options.redis
        if url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duplicates-")))
            server = await stack.enter_async_context(EmbeddedRedis(folder, memory_max_bytes=256_000_000))
            url = server.url
        return await find(options.folder, url, options.processes, options.lease)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except (ConfigError, StoreError) as error:
        sys.exit(str(error))
