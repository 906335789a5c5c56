"""`streamcrawl seed` as it is typed: files and pipes into a crawl on a shared Redis, or in this folder."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.store.connection import connect
from streamcrawl.store.keys import Keys

if TYPE_CHECKING:
    from tests.e2e.command import Command, Result
    from tests.redis_server import RedisServer
    from tests.site.server import SiteProcess

CREATE = ("--create", "--no-robots", "--depth", "0", "--memory-max", "100MB", "-o", "out.jsonl")


@pytest.fixture
def place(redis_server: RedisServer) -> tuple[str, str]:
    return ("--redis", redis_server.url)


def write_lines(command: Command, lines: list[str], name: str = "urls.txt") -> str:
    (command.folder / name).write_text("".join(f"{line}\n" for line in lines))
    return name


def pages_of(site: SiteProcess, count: int = 20) -> list[str]:
    return [site.url(1 + number % 2, f"/p/{number}?x") for number in range(count)]


def many(count: int) -> list[str]:
    return [f"http://h{number % 100}.example/{number:080}" for number in range(count)]


def counts(result: Result) -> tuple[int, ...]:
    """Return new, known and refused of a summary."""
    found = re.search(r"([\d,]+) new, ([\d,]+) known, ([\d,]+) refused, in", result.out)
    assert found is not None, result
    return tuple(int(text.replace(",", "")) for text in found.groups())


async def keys_of(redis_server: RedisServer, name: str) -> list[bytes]:
    client = connect(redis_server.url)
    try:
        return [key async for key in client.scan_iter(match=f"{Keys(name).pattern.partition(':0')[0]}*")]
    finally:
        await client.aclose()


@pytest.mark.parametrize("shards", ["1", "4"])
def test_workers_fetch_what_is_seeded_whoever_comes_first(
    shards: str, command: Command, site: SiteProcess, place: tuple[str, str], crawl_name: str
) -> None:
    urls = pages_of(site)
    file = write_lines(command, ["# mine", *urls, "no url", urls[0]])
    with command.start("worker", crawl_name, *place) as worker:
        worker.until(lambda: "waiting for crawl" in worker.err, "the worker to wait")
        result = command.run("seed", crawl_name, file, *place, *CREATE, "--shards", shards)
        assert worker.wait().code == ExitCode.DONE
    assert result.code == ExitCode.DONE
    assert counts(result) == (20, 1, 1)
    assert f"{file}:22: 'no url' is not an http(s) URL\n" in result.err
    assert command.pages("out.jsonl") == set(urls)


def test_crawl_in_this_folder_is_seeded_and_resumed(command: Command, site: SiteProcess) -> None:
    urls = pages_of(site)
    file = write_lines(command, urls[:15])
    begun = command.run("seed", "here", file, "--create", "--no-robots", "--depth", "0")
    assert (begun.code, counts(begun)) == (ExitCode.DONE, (15, 0, 0))
    more = command.run("seed", "here", "-", stdin="\n".join(urls[10:]))
    assert (more.code, counts(more)) == (ExitCode.DONE, (5, 5, 0))
    assert command.run("crawl", "--resume", "--name", "here").code == ExitCode.DONE
    assert command.pages("here.jsonl") == set(urls)


def test_crawl_that_runs_in_this_folder_takes_more_seeds(command: Command, site: SiteProcess) -> None:
    urls = pages_of(site)
    more = write_lines(command, urls[1:])
    with command.start(
        "crawl", "--seeds", "-", "--no-robots", "--depth", "0", "--name", "here", keeps_stdin_open=True
    ) as crawl:
        assert crawl.process.stdin is not None
        crawl.process.stdin.write(f"{urls[0]}\n".encode())
        crawl.process.stdin.flush()
        crawl.until(lambda: command.lines("here.jsonl") > 0, "the first page")
        result = command.run("seed", "here", more)
        crawl.process.stdin.close()
        assert crawl.wait().code == ExitCode.DONE
    assert (result.code, counts(result)) == (ExitCode.DONE, (19, 0, 0))
    assert "1 other command that offered seeds did not end yet" in result.out
    assert command.pages("here.jsonl") == set(urls)


async def test_name_without_a_crawl_is_refused_and_leaves_nothing(
    command: Command, redis_server: RedisServer, place: tuple[str, str], crawl_name: str
) -> None:
    file = write_lines(command, ["http://a.example/"])
    result = command.run("seed", crawl_name, file, *place)
    assert result.code == ExitCode.USAGE
    assert f"there is no crawl '{crawl_name}' in this store; `streamcrawl seed {crawl_name} {file}" in result.err
    assert "--create` begins it" in result.err
    useless = command.run("seed", crawl_name, "-", *place, *CREATE, stdin="word\n")
    assert useless.code == ExitCode.USAGE
    assert useless.err.startswith("stdin:1: 'word' is not an http(s) URL\n")
    assert await keys_of(redis_server, crawl_name) == []
    assert command.run("seed", "here", file).err.startswith("streamcrawl: there is no crawl 'here' in .streamcrawl")
    missing = command.run("seed", crawl_name, "none.txt", *place, "--create")
    assert (missing.code, missing.err) == (
        ExitCode.USAGE, "streamcrawl: none.txt cannot be read: No such file or directory\n"
    )  # fmt: skip


def test_settings_of_a_crawl_that_is_there_stay(command: Command, place: tuple[str, str], crawl_name: str) -> None:
    file = write_lines(command, ["http://a.example/"])
    assert command.run("seed", crawl_name, file, *place, *CREATE).code == ExitCode.DONE
    other = command.run("seed", crawl_name, file, *place, *CREATE[:-1], "other.jsonl", "--delay", "9s")
    assert (other.code, counts(other)) == (ExitCode.DONE, (0, 1, 0))
    assert "not followed here, because it is the crawl's: delay 9s (--delay), it has 0" in other.err
    assert "-o other.jsonl is left out" in other.err
    assert not (command.folder / "other.jsonl").exists()
    shards = command.run("seed", crawl_name, file, *place, "--shards", "2")
    assert shards.code == ExitCode.USAGE
    assert "cannot change" in shards.err


def test_interrupted_file_goes_on_where_it_was(command: Command, place: tuple[str, str], crawl_name: str) -> None:
    file = write_lines(command, many(4000))
    with command.start("seed", crawl_name, file, *place, *CREATE, "--frontier-max", "2500") as running:
        running.until(lambda: "the frontier is full" in running.err, "the bound")
        running.interrupt()
        stopped = running.wait()
    assert stopped.code == ExitCode.STOPPED
    before, _, _ = counts(stopped)
    assert f"go on with: streamcrawl seed {crawl_name} {file} --redis" in stopped.out
    line = int(re.findall(r"stopped behind line ([\d,]+)", stopped.out)[0].replace(",", ""))
    assert 1000 < line <= before
    assert command.run("settings", "set", crawl_name, "frontier_max=100000", *place).code == ExitCode.DONE
    rest = command.run("seed", crawl_name, file, *place)
    assert rest.code == ExitCode.DONE
    assert f"seeds: {file} goes on behind line {line:,}\n" in rest.err
    # The count goes on too; what was accepted behind the cursor is known the second time.
    assert counts(rest) == (4000 - (before - line), before - line, 0)


def test_crawl_that_is_kept_open_ends_when_it_is_closed(
    command: Command, site: SiteProcess, place: tuple[str, str], crawl_name: str
) -> None:
    urls = pages_of(site)
    result = command.run("seed", crawl_name, write_lines(command, urls), *place, *CREATE, "--keep-open")
    close = f"streamcrawl close {crawl_name} {' '.join(place)}"
    assert f"the crawl stays open for more, until: {close}\n" in result.out
    with command.start("worker", crawl_name, *place) as worker:
        worker.until(lambda: command.lines("out.jsonl") == len(urls), "all pages")
        second = command.run("seed", crawl_name, "-", *place, stdin=site.url(1, "/p/1?late"))
        assert "stays open" in second.out
        worker.until(lambda: command.lines("out.jsonl") == len(urls) + 1, "the late page")
        assert command.run("close", crawl_name, *place).code == ExitCode.DONE
        assert worker.wait().code == ExitCode.DONE


def test_what_programs_and_quiet_people_get(command: Command, place: tuple[str, str], crawl_name: str) -> None:
    file = write_lines(command, [*many(10), "bad"])
    result = command.run("seed", crawl_name, file, *place, *CREATE, "--json")
    (line,) = result.out.splitlines()
    found = json.loads(line)
    assert found.pop("elapsed_s") >= 0
    assert found == {
        "event": "summary", "crawl": crawl_name, "line": 11, "new": 10, "known": 0, "refused": 1,
        "complete": True, "others": 0, "kept_open": False,
    }  # fmt: skip
    quiet = command.run("seed", crawl_name, file, *place, "--quiet")
    assert (quiet.out, quiet.err) == ("", f"{file}:11: 'bad' is not an http(s) URL\n")


def test_crawl_begins_with_what_a_slow_pipe_has_brought(command: Command, site: SiteProcess) -> None:
    """Standard input stays open for hours; what came first is fetched meanwhile."""
    with command.start(
        "crawl", "--seeds", "-", "--depth", "0", "--name", "slow", "--no-robots", keeps_stdin_open=True
    ) as crawl:
        assert crawl.process.stdin is not None
        for number in (1, 2):
            crawl.process.stdin.write(f"{site.url(1, f'/p/{number}')}\n".encode())
            crawl.process.stdin.flush()
            crawl.until(lambda number=number: command.lines("slow.jsonl") == number, f"page {number}")  # type: ignore[misc]
        crawl.process.stdin.close()
        assert crawl.wait().code == ExitCode.DONE


@pytest.mark.parametrize("arguments", [("--json",), ("--log-format", "json"), ("--quiet",), ()])
def test_lines_that_are_no_urls_are_named_however_it_is_shown(command: Command, arguments: tuple[str, ...]) -> None:
    (command.folder / "urls.txt").write_text("http://127.0.0.1:1/\nnot a url\n")
    result = command.run("seed", "some", "urls.txt", "--create", *arguments)
    assert result.code == ExitCode.DONE
    said = [line for line in result.err.splitlines() if "not a url" in line]
    assert len(said) == 1
    if "--log-format" in arguments:
        lines = [json.loads(line) for line in result.err.splitlines()]
        assert {line["crawl"] for line in lines} == {"some"}
        assert [line["level"] for line in lines if "not a url" in line["message"]] == ["warning"]
