"""A disk that is full and files that are damaged: said in one line with what to do, and nothing is lost."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psutil

from streamcrawl.errors import ExitCode
from tests.e2e.processes import processes_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.command import Command, Running
    from tests.site.server import SiteProcess

UNLIMITED: Final = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
ROOM_BYTES: Final = 1000
"""For about three records more."""


@contextmanager
def before_a_full_disk(command: Command, site: SiteProcess) -> Iterator[tuple[Running, psutil.Process]]:
    """Run a crawl whose output can grow no further, as on a full disk; yield it and its sink when it has said so."""
    with command.start("crawl", site.seed_url, "--scope", "any", STREAMCRAWL_GRACE="1s") as running:
        running.until(command.lines, "the first page is written")
        [sink] = processes_in(command.folder)["crawl-sink"]
        size = (command.folder / "127.0.0.1.jsonl").stat().st_size
        sink.rlimit(psutil.RLIMIT_FSIZE, (size + ROOM_BYTES, resource.RLIM_INFINITY))
        running.until(lambda: "waiting for room, nothing is lost" in running.err, "the full disk is said")
        yield running, sink


def test_full_disk_is_said_and_waited_for(command: Command, leisurely_site: SiteProcess) -> None:
    with before_a_full_disk(command, leisurely_site) as (running, sink):
        pages = leisurely_site.expected_pages()

        def fetched() -> int:
            return sum(request.path.startswith("/p/") for request in leisurely_site.requests())

        # Fetching goes on meanwhile; the end waits for the output.
        running.until(lambda: fetched() == len(pages), "all pages are fetched")
        assert command.lines() < len(pages)
        sink.rlimit(psutil.RLIMIT_FSIZE, UNLIMITED)
        result = running.wait()
    assert result.code == ExitCode.DONE
    assert result.err.count("waiting for room") == 1
    assert "127.0.0.1.jsonl can be written again" in result.err
    assert command.pages() == pages


def test_crawl_stopped_before_a_full_disk_writes_the_rest_when_it_goes_on(
    command: Command, leisurely_site: SiteProcess
) -> None:
    with before_a_full_disk(command, leisurely_site) as (running, _):
        running.interrupt()  # the output is waited for as long as fetches are: the grace period
        assert running.wait().code == ExitCode.STOPPED
    assert command.run("audit", "127.0.0.1").code == ExitCode.DONE
    assert command.run("crawl", "--resume").code == ExitCode.DONE
    assert command.pages() == leisurely_site.expected_pages()


def test_damaged_data_is_named_with_what_mends_it(command: Command, site: SiteProcess) -> None:
    assert command.run("crawl", site.seed_url, "--max-pages", "20").code == ExitCode.STOPPED
    folder = command.folder / ".streamcrawl" / "127.0.0.1" / "appendonlydir"
    [file] = folder.glob("*.incr.aof")
    with file.open("r+b") as damaged:
        damaged.seek(file.stat().st_size // 2)
        damaged.write(b"x" * 4096)  # more than one value: within one, Redis could not tell
    for arguments in (["crawl", "--resume"], ["crawl", site.seed_url], ["status", "127.0.0.1"]):
        result = command.run(*arguments)
        assert result.code == ExitCode.STORE_UNAVAILABLE
        assert result.err.startswith("streamcrawl: ")
        assert str(folder.relative_to(command.folder)) in result.err
        assert "--fix" in result.err
        assert "or start over with --fresh" in result.err
        assert result.err.count("\n") == 1
    assert command.run("crawl", site.seed_url, "--fresh").code == ExitCode.DONE
    assert command.pages() == site.expected_pages(scope="host")
