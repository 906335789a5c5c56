"""A crawl as version 0.1 left it (schema 1), killed in the middle: data/schema_1.json, put into a server by `restore`.

Made by version 0.1 itself: `make` runs its command against the small site of this module, runs it again with a file of
seeds, kills both while seeds are being offered, and dumps every key. The first line of the file says what lies in it.
The addresses are fixed, because fingerprints of URLs are part of the state; `serving` gives them to one test at a time.

    PYTHONPATH=. python -m tests.integration.schema_1 OLD   # OLD: a checkout of commit 6c8d030
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import os
import sys
import tempfile
import zlib
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from streamcrawl.store.connection import connect
from streamcrawl.store.keys import Keys
from tests.e2e.processes import processes_in
from tests.redis_server import FAST, RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


DUMP: Final = Path(__file__).parent / "data" / "schema_1.json"
HOSTS: Final = tuple(f"http://127.93.17.{n}:18210" for n in range(1, 41))
"""Below the ports that systems give to clients, on addresses that nobody else takes."""
PAGES: Final = 30
"""`/p/<i>` of each of the first three hosts."""
SEEDS: Final = [f"{HOSTS[n % len(HOSTS)]}/s/{n}" for n in range(700)]
"""Three chunks, of which version 0.1 had offered one or two when it was killed."""
LATER: Final = f"{HOSTS[2]}/later"
BAD: Final = f"{HOSTS[1]}/bad"
FOLDER: Final = "/folder-of-the-crawl"
"""Stands in the dump where the folder of the crawl stood; `restore` puts its own there."""
NAME: Final = "old"
OUTPUT: Final = "pages.jsonl"
_LOOK_S: Final = 0.002


class Dump(msgspec.Struct):
    """The file: keys by their name without the crawl's prefix, as DUMP gives them, and the output beside them."""

    about: str
    keys: dict[str, str]
    output: str
    scripts: dict[str, str]
    """Of version 0.1, for its workers that run on after the upgrade."""


def expected() -> set[str]:
    """Return the URLs that have a record at the end; `BAD` becomes a dead letter."""
    return {f"{host}/p/{page}" for host in HOSTS[:3] for page in range(PAGES)} | set(SEEDS) | {LATER}


@cache
def read_dump() -> Dump:
    return msgspec.json.decode(DUMP.read_bytes(), type=Dump)


async def run_old(client: Any, name: str, keys: Keys, *arguments: Any) -> list[Any]:
    """Run a script of version 0.1 on the crawl, as one of its workers would."""
    epoch: Any = await client.hget(keys.state, "epoch")
    text = _unpacked(read_dump().scripts[name]).decode()
    answer: Any = await client.execute_command("EVAL", text, 1, keys.state, epoch, *arguments)
    return list(answer)


async def restore(client: Any, name: str, folder: Path) -> Keys:
    """Put the crawl into a server under another name, and its output into a folder; return its keys."""
    dump = read_dump()
    keys = Keys(name)
    for short, value in dump.keys.items():
        ttl_ms = 0 if (kind := keys.describe(keys.prefix + short)) is None or kind.is_permanent else 3_600_000
        await client.restore(keys.prefix + short, ttl_ms, _unpacked(value))
    stored: Any = await client.hget(keys.state, "crawl")
    await client.hset(keys.state, "crawl", stored.replace(FOLDER.encode(), os.fsencode(folder)))
    (folder / OUTPUT).write_bytes(_unpacked(dump.output))
    (folder / "seeds.txt").write_text("\n".join(SEEDS))
    return keys


def _packed(value: bytes) -> str:
    return base64.b64encode(zlib.compress(value, 9)).decode()


def _unpacked(value: str) -> bytes:
    return zlib.decompress(base64.b64decode(value))


@asynccontextmanager
async def serving(*, is_kind: bool = True) -> AsyncIterator[list[str]]:
    """Serve the site until the block ends; yields the list of all URLs that were asked for.

    Args:
        is_kind: `LATER` is answered; else it asks to come back in some seconds.
    """
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        url = f"http://{request.host}{request.path}"
        asked.append(url)
        word, _, number = request.path[1:].partition("/")
        if word == "robots.txt":
            return web.Response(text="User-agent: *\nDisallow: /private/\n")
        if url == BAD:
            return web.Response(status=503)
        if url == LATER and not is_kind:
            return web.Response(status=503, headers={"Retry-After": "3"})
        links: list[str] = []
        if word == "p":
            links = [f"/p/{child}" for child in range(2 * int(number) + 1, 2 * int(number) + 3) if child < PAGES]
            if int(number) == 0:
                links += [
                    *(f"{host}/p/0" for host in HOSTS[:3]),
                    LATER,
                    BAD,
                    "/private/1",
                    "http://127.93.17.1:1/denied",
                ]
            await asyncio.sleep(0.03)
        body = f"<!DOCTYPE html><title>{url}</title>" + "".join(f'<a href="{link}">x</a>' for link in links)
        return web.Response(text=body, content_type="text/html")

    lock = os.open(Path(tempfile.gettempdir()) / f"streamcrawl-tests-18210-{os.getuid()}", os.O_RDWR | os.O_CREAT)
    try:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            for host in HOSTS:
                await web.TCPSite(runner, host.removeprefix("http://").partition(":")[0], 18210).start()
            yield asked
        finally:
            await runner.cleanup()
    finally:
        os.close(lock)


# -- making the file


async def make(old: Path) -> None:
    """Write the dump with the command of version 0.1 that lies in the checkout `old`."""
    server_options = {**FAST, "maxmemory": "500mb"}
    with tempfile.TemporaryDirectory() as folder, RedisServer(binary="system", options=server_options) as server:
        (Path(folder) / "seeds.txt").write_text("\n".join(SEEDS))
        client: Any = connect(server.url)
        keys = Keys(NAME)
        async with serving(is_kind=False):
            options = [
                "--name", NAME, "--redis", server.url, "-o", OUTPUT, "--scope", "any", "--deny", "denied",
                "--delay", "5ms", "--concurrency", "6", "--max-body", "1MB",
            ]  # fmt: skip
            await _run_until(client, old, folder, [f"{HOSTS[0]}/p/0", *options], lambda: _is_full(client, keys))
            before = int(await client.hget(keys.totals, "page.created"))

            async def is_feeding() -> bool:
                created = int(await client.hget(keys.totals, "page.created"))
                return before + 200 < created < before + len(SEEDS) - 100

            await _run_until(client, old, folder, ["--seeds", "seeds.txt", *options], is_feeding)
        await _write(client, keys, Path(folder), old)
        await client.aclose()


async def _is_full(client: Any, keys: Keys) -> bool:
    totals: Any = await client.hgetall(keys.totals)
    count = {field.decode(): int(value) for field, value in totals.items()}
    sinks = [key async for key in client.scan_iter(match=keys.pattern + "stream:fetch:*")]
    pending: Any = await client.xpending(keys.fetch_stream, "workers") if await client.exists(keys.fetch_stream) else {}
    return (
        min(count.get(f"page.{state}", 0) for state in ("queued", "streamed", "delayed", "dead", "done")) > 0
        and count.get("page.done", 0) > 20
        and bool(sinks)
        and await client.xlen(sinks[0]) > 0
        and any(field.endswith(b":offset") for field in await client.hkeys(keys.offsets))
        and pending["pending"] > 1
    )


async def _run_until(client: Any, old: Path, folder: str, arguments: list[str], is_there: Any) -> None:
    """Run the old command until a condition holds, with the server's writes stopped to look, and kill it there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "streamcrawl", "crawl", *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(old), "STREAMCRAWL_RETRY_BASE": "0.05"},
    )
    try:
        while True:
            await asyncio.sleep(_LOOK_S)
            await client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            if await is_there():
                break
            await client.execute_command("CLIENT", "UNPAUSE")
            if process.returncode is not None:
                raise RuntimeError("it ended before it could be killed: try again")
    finally:
        # Its children too: they would end in order, and give back what they hold.
        while found := [one for processes in processes_in(Path(folder)).values() for one in processes]:
            for one in found:
                one.kill()
            await asyncio.sleep(_LOOK_S)
        await process.wait()
        await client.execute_command("CLIENT", "UNPAUSE")


async def _write(client: Any, keys: Keys, folder: Path, old: Path) -> None:
    stored: Any = await client.hget(keys.state, "crawl")
    await client.hset(keys.state, "crawl", stored.replace(os.fsencode(folder), FOLDER.encode()))
    machine = os.uname().nodename.encode()
    for field, value in (await client.hgetall(keys.workers)).items():
        await client.hset(keys.workers, field, value.replace(machine, b"elsewhere"))
    totals: Any = await client.hgetall(keys.totals)
    said = ", ".join(f"{field.decode()} {value.decode()}" for field, value in sorted(totals.items()))
    found = {}
    async for key in client.scan_iter(match=keys.pattern):
        name = key.decode().removeprefix(keys.prefix)
        found[name] = _packed(await client.dump(key))
    code = "import json, streamcrawl.store.scripts as s; print(json.dumps({n: s.source(n) for n in s.script_names()}))"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(old)},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    scripts = msgspec.json.decode(printed, type=dict[str, str])
    dump = Dump(
        about=f"written by version 0.1 (commit 6c8d030) through tests/integration/schema_1.py; totals: {said}",
        keys=dict(sorted(found.items())),
        output=_packed((folder / OUTPUT).read_bytes()),
        scripts={
            name: _packed(scripts[name].encode()) for name in ("commit", "dispatch", "feed", "finish", "hand_back")
        },
    )
    DUMP.write_bytes(msgspec.json.format(msgspec.json.encode(dump), indent=1) + b"\n")


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
