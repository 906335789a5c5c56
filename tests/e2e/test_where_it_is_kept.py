"""The store from outside: one crawl per folder, several commands on one Redis, and servers that will not do."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.store.connection import connect
from tests.e2e.command import Command
from tests.redis_server import FAST, RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.site.server import SiteProcess

SECRET = "hard-to-guess"


@contextmanager
def paused(site: SiteProcess) -> Iterator[None]:
    """Keep a site from answering, so that no crawl of it can end meanwhile."""
    os.kill(site.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(site.pid, signal.SIGCONT)


def test_second_crawl_of_a_name_in_a_folder_is_refused_while_the_first_runs(
    command: Command, leisurely_site: SiteProcess
) -> None:
    with command.start("crawl", leisurely_site.seed_url) as first:
        first.until(command.lines, "the first page is written")
        with paused(leisurely_site):
            second = command.run("crawl", leisurely_site.seed_url)
        assert second.code == ExitCode.USAGE
        assert f"is in use by another crawl (process {first.process.pid}): stop that one" in second.err
        assert second.err.count("\n") == 1
        assert command.run("audit", "127.0.0.1").code == ExitCode.DONE
        assert first.wait().code == ExitCode.DONE
    assert command.pages() == leisurely_site.expected_pages(scope="host")


def test_second_command_joins_a_crawl_on_a_shared_redis(
    command: Command, tmp_path: Path, leisurely_site: SiteProcess, redis_server: RedisServer, crawl_name: str
) -> None:
    arguments = [
        "crawl", leisurely_site.seed_url, "--scope", "any", "--name", crawl_name, "--redis", redis_server.url,
        "--memory-max", "500MB",
    ]  # fmt: skip
    other = Command(tmp_path / "there")
    with command.start(*arguments) as first:
        first.until(lambda: command.lines(f"{crawl_name}.jsonl"), "the first page is written")
        with paused(leisurely_site):
            hasty = other.run(*arguments, "--lease", "9s", "--shards", "3")
            assert "these cannot change" in hasty.err
            hasty = other.run(*arguments, "--lease", "9s")
        assert hasty.code == ExitCode.USAGE
        assert f"--lease 9s: crawl {crawl_name!r} is at work with 30s, and " in hasty.err
        assert hasty.err.count("\n") == 1
        with other.start(*arguments, "--host-concurrency", "2") as second:
            with paused(leisurely_site):
                second.until(lambda: f"joining crawl {crawl_name}: " in second.err, "the second joins")
                changed = "settings changed, for every worker of the crawl: host_concurrency 1 -> 2\n"
                assert changed in second.err
                told = "settings of version 2 are in force: host_concurrency 2"
                first.until(lambda: told in first.err, "the first one hears of it")
            assert second.wait().code == ExitCode.DONE
        assert first.wait().code == ExitCode.DONE
    assert command.pages(f"{crawl_name}.jsonl") == leisurely_site.expected_pages()
    assert list(other.folder.iterdir()) == []
    status = command.run("status", crawl_name, "--redis", redis_server.url)
    assert f"crawl {crawl_name}: complete\n" in status.out


def test_redis_that_is_not_there_is_exit_code_5(command: Command, site: SiteProcess) -> None:
    for arguments in (["crawl", site.seed_url], ["status", "x"], ["audit", "x"]):
        result = command.run(*arguments, "--redis", f"redis://:{SECRET}@127.0.0.1:{free_port()}/0")
        assert result.code == ExitCode.STORE_UNAVAILABLE
        assert result.err.startswith("streamcrawl: Redis does not answer now (")
        assert result.err.endswith("); try again when it does, or give another --redis URL\n")
        assert result.err.count("\n") == 1
        assert SECRET not in result.err


async def test_password_is_shown_nowhere(command: Command, site: SiteProcess) -> None:
    with RedisServer(options={**FAST, "maxmemory": "200mb"}) as server:
        client = connect(server.url)
        await client.config_set("requirepass", SECRET)
        await client.aclose()
        address = server.url.removeprefix("redis://")
        for wrong in (f"redis://{address}", f"redis://:{SECRET}-not@{address}", f"redis://someone:{SECRET}@{address}"):
            refused = command.run("crawl", site.seed_url, "--redis", wrong)
            assert refused.code == ExitCode.STORE_UNAVAILABLE
            assert refused.err.startswith("streamcrawl: Redis refused the user or the password: put both into the URL")
            assert SECRET not in refused.err
        for form in ("--json", "--debug"):
            result = command.run(
                "crawl", site.seed_url, "--max-pages", "2", form, "--redis", f"redis://:{SECRET}@{address}"
            )
            assert result.code == ExitCode.STOPPED
            assert f"--redis 'redis://:***@{address}'" in result.out
            assert SECRET not in result.out + result.err
        from_environment = command.run("status", STREAMCRAWL_REDIS=f"redis://:{SECRET}@{address}")
        assert from_environment.out.startswith("127.0.0.1: ")
        assert SECRET not in from_environment.out + from_environment.err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"}, ExitCode.STORE_UNAVAILABLE,
         "redis-cli CONFIG SET maxmemory-policy noeviction"),
        ({}, ExitCode.USAGE, "this Redis has no memory limit and --memory-max is not given"),
    ],
    ids=["eviction", "no limit"],
)  # fmt: skip
def test_redis_that_will_not_do_is_refused_with_what_mends_it(
    command: Command, site: SiteProcess, options: dict[str, str], code: ExitCode, message: str
) -> None:
    with RedisServer(options={**FAST, **options}) as server:
        result = command.run("crawl", site.seed_url, "--redis", server.url)
    assert result.code == code
    assert message in result.err
    assert result.err.count("\n") == 1
    assert list(command.folder.iterdir()) == []


@pytest.mark.parametrize("program", ["no-such-redis-server", "/bin/true"])
def test_redis_server_that_cannot_be_used_is_one_line(command: Command, site: SiteProcess, program: str) -> None:
    result = command.run("crawl", site.seed_url, STREAMCRAWL_REDIS_SERVER=program)
    assert result.code == ExitCode.USAGE
    assert result.err.startswith(f"streamcrawl: STREAMCRAWL_REDIS_SERVER={program} will not do: ")
    assert result.err.count("\n") == 1
    assert list(command.folder.iterdir()) == []


def test_output_that_is_given_twice_is_refused(command: Command, site: SiteProcess) -> None:
    result = command.run("crawl", site.seed_url, "-o", "a.jsonl", "-o", "./a.jsonl")
    assert result.code == ExitCode.USAGE
    assert "/a.jsonl is given twice" in result.err
    assert list(command.folder.iterdir()) == []


def test_output_of_a_crawl_cannot_change_or_vanish_unnoticed(command: Command, site: SiteProcess) -> None:
    assert command.run("crawl", site.seed_url, "--max-pages", "3", "-o", "a.jsonl").code == ExitCode.STOPPED
    other = command.run("crawl", site.seed_url, "-o", "b.jsonl")
    assert other.code == ExitCode.USAGE
    assert f"writes to {command.folder / 'a.jsonl'}: give the same -o or none" in other.err
    (command.folder / "a.jsonl").rename(command.folder / "away.jsonl")
    gone = command.run("crawl", "--resume")
    assert gone.code == ExitCode.USAGE
    assert "were written and confirmed. Put it back, or start over with --fresh\n" in gone.err
    (command.folder / "away.jsonl").rename(command.folder / "a.jsonl")
    assert command.run("crawl", "--resume", "--max-pages", "1000").code == ExitCode.DONE
    assert command.pages("a.jsonl") == site.expected_pages(scope="host")


def test_file_in_the_way_of_the_folder_is_named(command: Command, site: SiteProcess) -> None:
    (command.folder / ".streamcrawl").write_text("")
    result = command.run("crawl", site.seed_url)
    assert result.code == ExitCode.USAGE
    assert ".streamcrawl/127.0.0.1 cannot be a crawl's folder: " in result.err
    assert result.err.count("\n") == 1
