"""`streamcrawl why` and `streamcrawl doctor` as a person types them: beside real workers, at rest, and at nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.cli.diagnosis import run_doctor
from streamcrawl.errors import ExitCode
from streamcrawl.ops import checkup
from streamcrawl.store.connection import connect
from streamcrawl.store.embedded import EmbeddedRedis
from tests.e2e.command import PROGRAM
from tests.integration.operated import Operated
from tests.integration.snapshot import urls, wait_until
from tests.redis_server import DURABLE, RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.e2e.command import Command, Result
    from tests.site.server import SiteProcess

WHY_ONCE = ("--sample", "0")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A server as it should be, of which a test may change everything."""
    with RedisServer(options=DURABLE | {"maxmemory": "500mb"}) as server:
        yield server


def made(server: RedisServer, name: str, act: Callable[[Operated], Awaitable[Any]], **values: Any) -> None:
    """Open a crawl and move it by hand."""

    async def make() -> None:
        client = connect(server.url)
        try:
            await act(await Operated.opened(client, name, **values))
        finally:
            await client.aclose()

    asyncio.run(make())


def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.out)
    return found


def words(found: dict[str, Any]) -> set[str]:
    # A packaged server may have a hole by its version, and a busy machine answers slowly.
    noise = {"cve", "answer_slow", "slow_commands", "fork_slow", "fsync_slow"}
    noise |= {"files_limit", "disk_near", "overcommit", "huge_pages"}
    return {one["word"] for one in found["findings"]} - noise


def kill_machine(supervisor: int, workers: list[int]) -> None:
    """End a command and its workers as if their machine had lost its power: nobody can say good-bye for another."""
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)


def test_crawl_whose_machine_was_lost_is_told_by_both(command: Command, redis: RedisServer) -> None:
    # Nobody listens there: the host fails, is left alone, and the crawl goes on for as long as it is waited for.
    port = free_port()
    at = ("lone", "--redis", redis.url, "--json")
    seed = f"http://127.0.0.1:{port}/"

    def causes() -> set[str]:
        result = command.run("why", *at, *WHY_ONCE)
        return {one["word"] for one in document(result)["causes"]} if result.code == ExitCode.DONE else set()

    def findings() -> dict[str, Any]:
        return {one["word"]: one for one in document(command.run("doctor", *at))["findings"]}

    begin = ("crawl", seed, "--name", "lone", "--redis", redis.url, "--lease", "5s", "--processes", "1")
    with command.start(*begin) as running:
        running.until(lambda: "failing" in causes(), "the host to fail", within_s=60)
        why = document(command.run("why", *at, *WHY_ONCE))
        assert [(one["host"], one["failing"]) for one in why["hosts"]] == [(seed.rstrip("/"), "connect")]
        found = command.run("doctor", *at)
        assert (found.code, words(document(found))) == (ExitCode.DONE, {"failing"})
        workers = document(command.run("status", *at))["workers"]
        kill_machine(running.process.pid, [one["pid"] for one in workers])
        running.process.wait()
    until(lambda: "worker_silent" in findings(), "the workers to be missed")
    assert "not heard of for longer than the lease of 5.0 s" in findings()["worker_silent"]["text"]
    until(lambda: "no_workers" in findings(), "the workers to be given up")
    result = command.run("doctor", "lone", "--redis", redis.url)
    assert result.code == ExitCode.STOPPED
    assert f"       > streamcrawl worker lone --redis {redis.url}" in result.out
    assert "; the last one beat " in result.out
    assert re.search(r"^doctor: looked at 1 crawl: 1 fault", result.out, re.M)


def until(is_true: Callable[[], bool], what: str, within_s: float = 60) -> None:
    """Ask again and again until it is so; each time a command is run, which takes its time."""
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, f"waited {within_s} s for {what}"


def test_two_looks_measure_and_top_limits_the_hosts(command: Command, redis: RedisServer) -> None:
    async def queued(operated: Operated) -> None:
        await operated.offer([*urls("a.test", 23), *urls("b.test", 3), *urls("c.test", 2)])

    made(redis, "wide", queued, delay_ms=1000, delay_max_ms=60_000)
    result = command.run("why", "wide", "--redis", redis.url, "--sample", "50ms", "--top", "2")
    assert result.code == ExitCode.DONE
    lines = result.out.splitlines()
    assert lines[0] == "crawl wide: at rest, no worker is alive"
    assert lines[1:3] == [
        "  1. no worker of the fetch is alive, 28 tasks wait",
        f"       > streamcrawl worker wide --redis {redis.url}",
    ]
    assert "hosts that decide the end:" in lines
    assert "  http://a.test needs at least 22 s for 23 pages at 1.0 s" in lines
    assert not any("c.test" in line for line in lines)
    assert document(command.run("why", "wide", "--redis", redis.url, "--sample", "50ms", "--json"))["sample_ms"] >= 50


def test_all_crawls_of_a_redis_are_looked_at(command: Command, redis: RedisServer) -> None:
    empty = command.run("doctor", "--redis", redis.url, "--json")
    assert (empty.code, document(empty)["crawls"], words(document(empty))) == (ExitCode.DONE, [], set())

    async def dead(operated: Operated) -> None:
        await operated.kill(urls("a.test", 2), reason="handler")
        await operated.crawl.control(closed="1")

    async def paused(operated: Operated) -> None:
        await operated.offer(urls("a.test", 2))
        await operated.crawl.control(paused="1")

    made(redis, "dead", dead)
    result = command.run("doctor", "--redis", redis.url, "--json")
    assert result.code == document(result)["exit_code"] == ExitCode.WITH_DEAD_LETTERS
    made(redis, "paused", paused)
    result = command.run("doctor", "--redis", redis.url, "--json")
    assert document(result)["crawls"] == ["dead", "paused"]
    assert {(one["crawl"], one["word"]) for one in document(result)["findings"] if one["crawl"]} == {
        ("dead", "dead_letters"), ("paused", "paused"), ("paused", "no_workers"),
    }  # fmt: skip
    assert result.code == ExitCode.STOPPED

    async def break_it() -> None:
        client = connect(redis.url)
        try:
            await client.hincrby("streamcrawl:{dead:0}:totals", "page.done", 1)
            await client.config_set("maxmemory-policy", "allkeys-lru")
        finally:
            await client.aclose()

    asyncio.run(break_it())
    for name in ((), ("dead",), ("dead", "--quick")):
        result = command.run("doctor", *name, "--redis", redis.url, "--json")
        assert result.code == ExitCode.AUDIT_FAILED
        assert {"unbalanced", "policy"} <= words(document(result))
    assert command.run("doctor", "paused", "--redis", redis.url).code == ExitCode.STORE_UNAVAILABLE


def test_what_is_not_there_is_one_line(command: Command, redis: RedisServer) -> None:
    for what in ("why", "doctor"):
        result = command.run(what, "nope", "--redis", redis.url)
        assert (result.code, result.out) == (ExitCode.USAGE, "")
        assert result.err == (
            "streamcrawl: there is no crawl 'nope' in this store; `streamcrawl status` lists those that are\n"
        )
        nowhere = command.run(what, "nope", "--redis", f"redis://127.0.0.1:{free_port()}/0")
        assert (nowhere.code, nowhere.out, nowhere.err.count("\n")) == (ExitCode.STORE_UNAVAILABLE, "", 1)
        assert command.run(what, "nope").code == ExitCode.USAGE  # nor in this folder
    nowhere = command.run("doctor", "--redis", f"redis://127.0.0.1:{free_port()}/0")
    assert (nowhere.code, nowhere.err.count("\n")) == (ExitCode.STORE_UNAVAILABLE, 1)
    assert command.run("why", "--redis", redis.url).code == ExitCode.USAGE  # it needs a name
    empty = command.run("doctor", "--json")
    assert (empty.code, words(document(empty))) == (ExitCode.DONE, {"no_crawls"})


def test_crawl_of_this_folder_is_looked_at_with_its_disk(command: Command, site: SiteProcess) -> None:
    assert command.run("crawl", site.seed_url, "--name", "here", "--max-pages", "3", "--quiet").code == ExitCode.STOPPED
    rests = command.run("doctor", "--json")
    assert (rests.code, words(document(rests))) == (ExitCode.DONE, {"at_rest"})
    [note] = [one for one in document(rests)["findings"] if one["word"] == "at_rest"]
    assert note["do"] == "streamcrawl doctor here"
    result = command.run("doctor", "here", "--json")
    found = document(result)
    assert found["crawls"] == ["here"]
    assert "aof_off" not in words(found)
    assert "maxmemory_unset" not in words(found)
    why = document(command.run("why", "here", "--json", *WHY_ONCE))
    by_word = {one["word"]: one for one in why["causes"]}
    assert by_word["budget"]["text"] == "its budget of 3 pages is reached (max-pages)"
    assert by_word["no_workers"]["do"] == "streamcrawl crawl --resume --name here"


@contextmanager
def embedded(command: Command, name: str) -> Iterator[tuple[asyncio.Runner, EmbeddedRedis]]:
    """Run the server of an embedded crawl, which has a page to fetch, and no worker."""

    async def make() -> None:
        client = connect(server.url)
        try:
            await (await Operated.opened(client, name)).offer(urls("a.test", 1))
        finally:
            await client.aclose()

    with asyncio.Runner() as runner:
        server = EmbeddedRedis(command.folder / ".streamcrawl" / name, memory_max_bytes=500_000_000)
        runner.run(server.start())
        try:
            runner.run(make())
            yield runner, server
        finally:
            runner.run(server.stop())


def test_embedded_server_that_hangs_is_a_fault_and_one_that_ended_is_at_rest(command: Command) -> None:
    with embedded(command, "here") as (_, server):
        os.kill(server.pid, signal.SIGSTOP)
        try:
            result = command.run("doctor", "--json")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        [hangs] = [one for one in document(result)["findings"] if one["crawl"] == "here"]
        assert (hangs["word"], hangs["severity"], hangs["area"]) == ("no_answer", "fault", "redis")
        assert hangs["text"].startswith("its Redis is there and does not answer")
        assert result.code == ExitCode.STORE_UNAVAILABLE
        result = command.run("doctor", "--json")
        assert (result.code, words(document(result))) == (ExitCode.STOPPED, {"no_workers"})
    result = command.run("doctor", "--json")
    assert (result.code, words(document(result))) == (ExitCode.DONE, {"at_rest"})


def test_embedded_crawl_that_is_half_deleted_is_a_fault(command: Command) -> None:
    async def break_it(url: str) -> None:
        client = connect(url)
        try:
            await client.hdel("streamcrawl:{here:0}:state", "epoch")
        finally:
            await client.aclose()

    with embedded(command, "here") as (runner, server):
        runner.run(break_it(server.url))
        result = command.run("doctor", "--json")
        [broken] = [one for one in document(result)["findings"] if one["crawl"] == "here"]
        assert (broken["word"], broken["severity"]) == ("unreadable", "fault")
        assert broken["text"].startswith("it cannot be looked at: there is no crawl 'here' in this store")
        assert result.code == ExitCode.STOPPED
        assert command.run("doctor", "here").code == ExitCode.USAGE  # who types a name is refused


def test_disk_of_many_crawls_is_told_once(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkup, "DISK_LEAST_BYTES", 10**18)  # no disk has so much
    with embedded(command, "one"), embedded(command, "two"):
        monkeypatch.chdir(command.folder)
        code = run_doctor(None, None, is_quick=False, is_json=True, options=())
    found = json.loads(capsys.readouterr().out)
    assert (code, found["crawls"]) == (ExitCode.STORE_UNAVAILABLE, ["one", "two"])
    [full] = [one for one in found["findings"] if one["word"].startswith("disk_")]
    assert full["text"].endswith(" MB are free on the disk of .streamcrawl: Redis is about to refuse writes")


def test_few_open_files_are_told(command: Command) -> None:
    limited = subprocess.run(
        ["bash", "-c", 'ulimit -n 1024; exec "$0" doctor --json', PROGRAM],
        cwd=command.folder,
        env=command.environment({}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert limited.returncode == ExitCode.DONE, limited.stderr
    [limit] = [one for one in json.loads(limited.stdout)["findings"] if one["word"] == "files_limit"]
    assert limit["text"].startswith("a process may open 1,024 files here")


def test_full_disk_is_told_and_hidden_by_nothing_that_it_refuses(command: Command, crawl_name: str) -> None:
    with RedisServer(options=DURABLE | {"maxmemory": "500mb", "save": "1000 1"}, may_fill=True) as server:

        async def queued(operated: Operated) -> None:
            await operated.offer(urls("a.test", 2))

        async def dump() -> None:
            client = connect(server.url)
            try:
                await client.bgsave()

                async def has_failed() -> bool:
                    return bool((await client.info("persistence"))["rdb_last_bgsave_status"] == "err")

                await wait_until(has_failed, "the dump to fail")
            finally:
                await client.aclose()

        made(server, crawl_name, queued)
        with server.full_disk():
            asyncio.run(dump())
            result = command.run("doctor", crawl_name, "--redis", server.url, "--json")
        assert result.code == ExitCode.STORE_UNAVAILABLE
        assert {"rdb_failed", "no_workers"} <= words(document(result))


def test_embedded_server_that_cannot_dump_is_known_to_run(command: Command, leisurely_site: SiteProcess) -> None:
    with command.start("crawl", leisurely_site.seed_url, "--name", "here", "--quiet") as running:
        running.until(lambda: command.lines("here.jsonl") > 0, "the first page")
        folder = command.folder / ".streamcrawl" / "here"
        (folder / "dump.rdb").mkdir()  # no file can take its place

        async def fail_to_dump() -> None:
            client = connect(EmbeddedRedis(folder, memory_max_bytes=0).url)
            try:
                await client.config_set("save", "1000 1")
                await client.bgsave()

                async def has_failed() -> bool:
                    return bool((await client.info("persistence"))["rdb_last_bgsave_status"] == "err")

                await wait_until(has_failed, "the dump to fail")
                status = await asyncio.to_thread(command.run, "status", "here")
                assert status.code == ExitCode.DONE, status.err
                found = document(await asyncio.to_thread(command.run, "doctor", "here", "--quick", "--json"))
                assert "rdb_failed" in words(found)
                assert found["exit_code"] == ExitCode.STORE_UNAVAILABLE
                everywhere = document(await asyncio.to_thread(command.run, "doctor", "--json"))
                assert everywhere["crawls"] == ["here"]
                assert "rdb_failed" in words(everywhere)
                await client.config_set("save", "")
            finally:
                await client.aclose()

        asyncio.run(fail_to_dump())
        assert running.wait().code == ExitCode.DONE
