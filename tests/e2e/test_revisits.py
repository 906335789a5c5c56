"""`--revisit` as it is typed: a round ends, a resume has nothing due, a crawl goes on until it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamcrawl.errors import ExitCode
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from tests.e2e.command import Command

NAME = "127.0.0.1"
PAGES = 5


def test_round_ends_and_without_one_the_crawl_goes_on(command: Command) -> None:
    with SiteProcess(SiteSpec(pages_per_host=PAGES)) as site:

        def visits() -> list[int]:
            paths = [request.path for request in site.requests()]
            return [paths.count(f"/p/{n}") for n in range(PAGES)]

        result = command.run("crawl", site.seed_url, "--revisit", "1d", "--one-round")
        assert result.code == ExitCode.DONE, result.err
        assert command.pages() == site.expected_pages(scope="host")
        assert visits() == [1] * PAGES
        assert command.run("audit", NAME).code == ExitCode.DONE
        status = command.run("status", NAME).out
        assert f"crawl {NAME}: all fetched, the next page is due in 23 h 59 min" in status
        assert f"{PAGES} pages to be fetched again, the first in 23 h 59 min; found so far: {PAGES} (new" in status
        assert command.run("crawl", "--resume", "--name", NAME).code == ExitCode.DONE
        assert visits() == [1] * PAGES
        quick = ("--revisit", "200ms", "--revisit-max", "200ms")
        with command.start("crawl", "--fresh", site.seed_url, *quick) as running:
            running.until(lambda: min(visits()) >= 5, "four more visits of each page")
            running.interrupt()
            assert running.wait().code == ExitCode.STOPPED
        assert len(command.records()) >= 4 * PAGES
        assert command.run("audit", NAME).code == ExitCode.DONE
