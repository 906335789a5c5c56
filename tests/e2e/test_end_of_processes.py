"""How soon a crawl is over, and what is left of it when it is killed: nothing but its data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from tests.e2e.processes import processes_in

if TYPE_CHECKING:
    from tests.e2e.command import Command
    from tests.site.server import SiteProcess


@pytest.mark.parametrize("workers", [1, 3])
def test_command_ends_within_two_seconds_of_its_last_page(command: Command, site: SiteProcess, workers: int) -> None:
    with command.start("crawl", site.seed_url, "--scope", "any", "--processes", str(workers)) as running:
        result = running.wait()
        ended_ms = time.monotonic() * 1000
    assert result.code == ExitCode.DONE
    # The embedded Redis has saved and stopped by then too.
    took_ms = ended_ms - max(request.end_ms for request in site.requests())
    print(f"ended {took_ms:.0f} ms after the last page")
    assert took_ms < 2000


def test_killed_command_leaves_no_process_and_goes_on(command: Command, leisurely_site: SiteProcess) -> None:
    with command.start("crawl", leisurely_site.seed_url, "--scope", "any", "--processes", "2") as crawl:
        crawl.until(lambda: command.lines() >= 5, "some pages are written")
        assert {"crawl-fetch", "crawl-sink", "crawl-nursery", "redis-server"} <= set(processes_in(command.folder))
        crawl.process.kill()
        crawl.process.wait()
    deadline = time.monotonic() + 20
    while left := processes_in(command.folder):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.02)
    assert command.run("crawl", "--resume").code == ExitCode.DONE
    assert command.pages() == leisurely_site.expected_pages()
