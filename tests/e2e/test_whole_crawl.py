"""Crawls from the first URL to the exit code: which pages are in the file, and what is said of the rest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import deque
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.store.keys import Keys
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from tests.e2e.command import Command
    from tests.redis_server import RedisServer


def test_every_page_is_in_the_file_once(command: Command) -> None:
    spec = SiteSpec(hosts=4, pages_per_host=40, flaky=0.05, redirect_within=0.1, redirect_across=0.1)
    with SiteProcess(spec) as site:
        result = command.run(
            "crawl", site.seed_url, "--scope", "any", "--processes", "2", STREAMCRAWL_RETRY_BASE="50ms"
        )
        assert result.code == ExitCode.DONE, result.err
        assert command.pages() == site.expected_pages()
    file = command.folder / "127.0.0.1.jsonl"
    assert f"crawling into {file}\n" in result.err
    assert re.match(r"crawl 127\.0\.0\.1: complete\n  160 pages in 0:00:\d\d, ", result.out)
    assert f"  output: {file} (160 records)\n" in result.out
    assert command.run("audit", "127.0.0.1").code == ExitCode.DONE
    assert "crawl 127.0.0.1: complete" in command.run("status", "127.0.0.1").out


def test_politeness_by_domain_fetches_every_page_too(command: Command) -> None:
    with SiteProcess(SiteSpec(hosts=2, pages_per_host=10)) as site:
        result = command.run("crawl", site.seed_url, "--scope", "any", "--politeness-by", "domain")
        assert result.code == ExitCode.DONE, result.err
        assert command.pages() == site.expected_pages()
    assert command.run("audit", "127.0.0.1").code == ExitCode.DONE


def test_crawl_stays_on_the_host_of_its_seed(command: Command, site: SiteProcess) -> None:
    assert command.run("crawl", site.seed_url).code == ExitCode.DONE
    assert command.pages() == site.expected_pages(scope="host")


def reachable(site: SiteProcess, follows: Callable[[str, int], bool]) -> set[str]:
    """Return the pages of host 1 that are found from page 0 by links that `follows(path, depth)` lets through."""
    found = {"/p/0": 0}
    waiting = deque(found)
    while waiting:
        path = waiting.popleft()
        for host, target in site.site.links(1, int(path.removeprefix("/p/"))):
            if host == 1 and target not in found and follows(target, found[path] + 1):
                found[target] = found[path] + 1
                waiting.append(target)
    return {site.url(1, path) for path in found}


@pytest.mark.parametrize(
    ("options", "follows"),
    [
        (("--depth", "0"), lambda path, depth: False),
        (("--depth", "1"), lambda path, depth: depth <= 1),
        (("--scope", "prefix"), lambda path, depth: path.startswith("/p/")),
        (("--allow", "[02468]$", "--deny", "/p/4$"), lambda path, depth: path[-1] in "02468" and path != "/p/4"),
    ],
    ids=["depth 0", "depth 1", "prefix", "allow and deny"],
)
def test_links_outside_the_bounds_are_not_followed(
    command: Command, options: tuple[str, ...], follows: Callable[[str, int], bool]
) -> None:
    redirects = 0.2 if "prefix" in options else 0.0  # what is behind a redirect has a path outside the prefix
    with SiteProcess(SiteSpec(pages_per_host=40, redirect_within=redirects)) as site:
        assert command.run("crawl", site.seed_url, *options).code == ExitCode.DONE
        expected = reachable(site, follows)
        assert command.pages() == expected
        assert {request.path for request in site.requests()} - {"/robots.txt"} == {
            url.removeprefix(site.url(1, "")) for url in expected
        }


def test_budget_is_exact_and_a_larger_one_goes_on(command: Command, site: SiteProcess) -> None:
    first = command.run("crawl", site.seed_url, "--scope", "any", "--max-pages", "7")
    assert first.code == ExitCode.STOPPED
    assert len(command.records()) == 7
    assert "crawl 127.0.0.1: stopped at --max-pages" in first.out
    assert "  more: streamcrawl crawl --resume --name 127.0.0.1 --max-pages N" in first.out
    second = command.run("crawl", "--resume", "--max-pages", "20")
    assert second.code == ExitCode.STOPPED
    assert len(command.records()) == 20
    assert "resuming crawl 127.0.0.1: 7 pages done" in second.err
    assert "  13 pages in " in second.out
    assert "; 20 in all" in second.out
    # The scope of the first run is still in force, and the limit can be taken away by a large one.
    assert command.run("crawl", "--resume", "--name", "127.0.0.1", "--max-pages", "1000").code == ExitCode.DONE
    assert command.pages() == site.expected_pages()
    again = command.run("crawl", site.seed_url, "--scope", "any")
    assert again.code == ExitCode.DONE
    assert "no page was left to fetch; --fresh begins again" in again.out


def test_fresh_says_what_it_deletes_and_begins_again(command: Command, site: SiteProcess) -> None:
    command.run("crawl", site.seed_url, "--max-pages", "3", "-o", "old.jsonl")
    result = command.run("crawl", site.seed_url, "--fresh", "--depth", "0", "-o", "new.jsonl")
    assert result.code == ExitCode.DONE
    old = command.folder / "old.jsonl"
    assert re.search(
        r"^fresh: deleting crawl 127\.0\.0\.1: 3 pages done, \d+ queued, 0 dead letters$", result.err, re.M
    )
    assert re.search(rf"^fresh: deleting {re.escape(str(old))} \([\d,]+ bytes\)$", result.err, re.M)
    assert not old.exists()
    assert command.pages("new.jsonl") == {site.seed_url}


def test_host_that_does_not_answer_is_named_and_is_exit_code_4(command: Command) -> None:
    with SiteProcess(SiteSpec(hosts=2, pages_per_host=5, refusing_hosts=(2,))) as site:
        result = command.run("crawl", site.seed_url, "--scope", "any", "--host-give-up", "100ms")
        assert result.code == ExitCode.WITH_DEAD_LETTERS, result.err
        assert command.pages() == site.expected_pages()
        gone = site.url(2, "")
    assert f"  hosts given up, none of their pages could be had: {gone}\n" in result.out
    assert f"    {gone}/p/0: host_unreachable (" in result.out
    assert "deleting" not in result.err


async def test_damaged_counts_are_exit_code_6(
    command: Command, site: SiteProcess, redis_server: RedisServer, redis_client: Redis, crawl_name: str
) -> None:
    result = command.run(
        "crawl",
        site.seed_url,
        "--depth",
        "0",
        "--name",
        crawl_name,
        "--memory-max",
        "200MB",
        "--redis",
        redis_server.url,
    )
    assert result.code == ExitCode.DONE
    await redis_client.hincrby(Keys(crawl_name).totals, "page.done", 1)
    result = command.run("audit", crawl_name, "--redis", redis_server.url)
    assert result.code == ExitCode.AUDIT_FAILED
    assert "page: created 1, accounted for 2 = 2 done" in result.out
    document = json.loads(command.run("audit", crawl_name, "--json", "--redis", redis_server.url).out)
    assert document["sound"] is False


def test_environment_gives_options_and_the_command_line_wins(command: Command, site: SiteProcess) -> None:
    given = {"STREAMCRAWL_PAGES_MAX": "4", "STREAMCRAWL_OUTPUT": "from environment.jsonl", "STREAMCRAWL_NAME": "given"}
    assert command.run("crawl", site.seed_url, **given).code == ExitCode.STOPPED
    assert len(command.records("from environment.jsonl")) == 4
    assert command.run("crawl", site.seed_url, "--max-pages", "6", **given).code == ExitCode.STOPPED
    assert len(command.records("from environment.jsonl")) == 6


def test_module_can_be_run_instead_of_the_command(command: Command, site: SiteProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "streamcrawl", "crawl", site.seed_url, "--depth", "0", "--quiet"],
        cwd=command.folder, env=command.environment({}), capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.DONE, b"", b"")
    assert command.pages() == {site.seed_url}
