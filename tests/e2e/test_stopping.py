"""Ctrl-C and SIGTERM in each phase: it ends soon, says how to go on, and nothing is lost or fetched twice."""

from __future__ import annotations

import json
import shlex
import signal
from collections import Counter
from typing import TYPE_CHECKING

import psutil
import pytest

from streamcrawl.errors import ExitCode
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from tests.e2e.command import Command, Running

PAGES_BEFORE = 10


def start_and_wait_for_pages(command: Command, site: SiteProcess) -> Running:
    running = command.start("crawl", site.seed_url, "--scope", "any")
    running.until(lambda: command.lines() >= PAGES_BEFORE, f"{PAGES_BEFORE} pages in the output")
    return running


def assert_goes_on(command: Command, site: SiteProcess, summary: str) -> None:
    """Run what the summary of an interrupted crawl says, and assert that each page was fetched and written once."""
    program, *arguments = shlex.split(summary.rpartition("  go on: ")[2])
    assert program == "streamcrawl"
    assert len(command.records()) < len(site.expected_pages()), "it was over before it could be interrupted"
    assert command.run(*arguments).code == ExitCode.DONE
    assert command.pages() == site.expected_pages()
    fetches = Counter(request.host + request.path for request in site.requests())
    assert {url: count for url, count in fetches.items() if count > 1} == {}


def test_ctrl_c_stops_in_order_and_the_command_it_names_goes_on(command: Command, leisurely_site: SiteProcess) -> None:
    with start_and_wait_for_pages(command, leisurely_site) as running:
        running.interrupt()
        result = running.wait(15)
    assert result.code == ExitCode.STOPPED
    assert "stopping: up to 30 s for what is under way; once more to stop at once\n" in result.err
    assert "Traceback" not in result.err
    assert "crawl 127.0.0.1: interrupted\n" in result.out
    assert " still to fetch\n" in result.out
    assert_goes_on(command, leisurely_site, result.out)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_a_closed_terminal_do_the_same(
    command: Command, leisurely_site: SiteProcess, number: signal.Signals
) -> None:
    with start_and_wait_for_pages(command, leisurely_site) as running:
        running.process.send_signal(number)
        result = running.wait(15)
    assert result.code == ExitCode.STOPPED
    assert_goes_on(command, leisurely_site, result.out)


def test_second_ctrl_c_does_not_wait_for_what_is_under_way(command: Command) -> None:
    with SiteProcess(SiteSpec(pages_per_host=3, slow_hosts=(1,), slow_ms=60_000)) as site:
        with command.start("crawl", site.seed_url) as running:
            running.until(lambda: _in_hand(command) == 1, "the page is being fetched")
            running.interrupt()
            running.until(lambda: "stopping: " in running.err, "the first Ctrl-C is heard")
            running.interrupt()
            result = running.wait(10)
        assert result.code == ExitCode.STOPPED
        assert "stopping at once\n" in result.err
        assert "Traceback" not in result.err
        assert command.run("audit", "127.0.0.1").code == ExitCode.DONE
        left = json.loads(command.run("status", "127.0.0.1", "--json").out)["totals"]
        assert (left["page.queued"], left["page.streamed"]) == (1, 0)


def _in_hand(command: Command) -> int:
    status = command.run("status", "127.0.0.1", "--json")
    # Between its start and the first script the crawl is not there, or no server answers.
    return int(json.loads(status.out)["pending"]) if status.code == 0 else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_seeds_are_awaited_ends_it_at_once(command: Command, number: signal.Signals) -> None:
    with command.start("crawl", "--seeds", "-", keeps_stdin_open=True) as running:
        process = psutil.Process(running.process.pid)
        running.until(lambda: process.num_threads() > 1, "a thread reads the seeds")
        running.process.send_signal(number)
        assert running.wait(5) == (ExitCode.STOPPED, "", "streamcrawl: interrupted\n")
    assert list(command.folder.iterdir()) == []


@pytest.mark.parametrize("place", ["lock", "server"])
def test_signal_while_the_store_is_opened_ends_it(command: Command, site: SiteProcess, place: str) -> None:
    folder = command.folder / ".streamcrawl" / "127.0.0.1"
    with command.start("crawl", site.seed_url) as running:
        watched = folder / ("crawl.lock" if place == "lock" else "redis.log")
        running.until(watched.exists, f"{watched.name} is there")
        running.process.send_signal(signal.SIGTERM)
        result = running.wait(10)
    assert result.code == ExitCode.STOPPED
    assert "Traceback" not in result.err
    # Whichever moment it was: the same command begins or resumes.
    assert command.run("crawl", site.seed_url).code == ExitCode.DONE
    assert command.pages() == site.expected_pages(scope="host")
