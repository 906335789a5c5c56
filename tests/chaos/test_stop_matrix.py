"""Every way to be stopped, in every place where work may stand, with full queues and with a single item in hand.

The place stands at a gate (or, for the fetch, at a slow site); then the signal comes. A clean stop lets what has begun
end, and nothing of it runs again; any other hands it back, or leaves it to the next run. In the end everything is in
the output once. The outputs cannot be made to stand at a gate: theirs is a crawl that writes to all of them, or rests.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL, look_at_embedded, until_true
from tests.e2e.command import REPOSITORY, Command
from tests.e2e.processes import processes_in
from tests.integration.test_sink_formats import database, of_csv, of_jsonl, of_parquet, of_warc, postgres, rows
from tests.programs import noted
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.command import Running

__all__ = ["database", "postgres"]
"""Fixtures."""
pytestmark = pytest.mark.chaos

STOPS = {
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGTERM twice": (signal.SIGTERM, signal.SIGTERM),
    "SIGKILL": (signal.SIGKILL,),
}
CLEAN = ("SIGTERM", "SIGINT")
PLACES = ("fetch", "handle", "dissect", "middle", "store")
"""The fetch, and functions of the program "gated": a page handler, parsing as a stage, a stage, a sink."""
SHORT = (
    ("SIGTERM", "dissect", True),
    ("SIGTERM twice", "middle", True),
    ("SIGKILL", "store", True),
    ("SIGINT", "handle", True),
    ("SIGTERM", "fetch", False),
    ("SIGKILL", "middle", False),
)
"""Each way, each place, both fillings."""
CASES = tuple(product(STOPS, PLACES, (True, False))) if IS_FULL else SHORT
SHORT_OUTPUTS = (("SIGKILL", True),)
"""A clean stop of all outputs is in tests/e2e/test_outputs.py."""
PAGES = 14
SLOW_MS = 1000
GRACE_S = 10
"""More than the slow site takes; in the other places the gate ends it."""
NOW_S = 6
"""A second signal waits for nothing; what the processes need on a loaded machine to be gone."""


class Program:
    """The program "gated", on one host of PAGES pages."""

    def __init__(self, folder: Path, site: SiteProcess, block: str, *, is_full: bool) -> None:
        self.command = Command(folder)
        self.journal, self.gate = self.command.folder / "journal", self.command.folder / "gate"
        self._site, self._block = site, block
        # A single item is that of the one seed, or for the stage that parses that of the one page behind it.
        self.pages = PAGES if is_full else 2 if block == "dissect" else 1
        seeds = [site.url(1, f"/p/{n}") for n in range(5 if is_full else 1)]
        (self.command.folder / "seeds.txt").write_text("\n".join(seeds))
        limits = ("--allow", "/p/[01]$") if self.pages == 2 else ("--depth", "9" if is_full else "0")
        self._arguments = ("--seeds", "seeds.txt", "-o", "out.jsonl", "--concurrency", "2", *limits)

    def start(self) -> Running:
        return self.command.start(
            *("run", "tests.programs:gated", *self._arguments, "--host-concurrency", "2", "--lease", "3s"),
            PYTHONPATH=str(REPOSITORY),
            TESTS_JOURNAL=str(self.journal),
            TESTS_GATE=str(self.gate),
            TESTS_BLOCK=self._block,
            STREAMCRAWL_GRACE=str(GRACE_S),
        )

    async def is_standing(self) -> bool:
        """Has work begun in the place, and do others wait behind it as the case says?"""
        if self._block != "fetch" and not noted(self.journal, self._block):
            return False
        status = await look_at_embedded(self.command.folder, "gated")
        found = {} if status is None else {stage.stage: stage for stage in status.stages}
        line = {"handle": "fetch", "dissect": "parse_deep"}.get(self._block, self._block)
        if status is None or line not in found or not found[line].pending:
            return False
        if self.pages < PAGES:
            return sum(stage.waiting + stage.pending for stage in found.values()) == 1
        if line == "fetch":
            return found[line].pending == 2 and status.page("queued") > 0
        return found[line].is_over

    def begun_twice(self) -> dict[tuple[str, str], int]:
        begun = Counter((word, line["url"]) for word in PLACES for line in noted(self.journal, word))
        begun += Counter(("fetch", one.host + one.path) for one in self._site.requests())
        return {what: count for what, count in begun.items() if count > 1}


def stop(running: Running, way: str) -> None:
    """Send the signals of a way, a second one when the first was heard."""
    for number, sent in enumerate(STOPS[way]):
        if sent == signal.SIGINT:
            running.interrupt()  # of a terminal: to its whole group
        else:
            running.process.send_signal(sent)
        if sent != signal.SIGKILL:
            said = "stopping: " if number == 0 else "stopping at once"
            running.until(lambda said=said: said in running.err, f"{said!r}")  # type: ignore[misc]


def assert_all_gone(command: Command, within_s: float) -> None:
    left = [process for group in processes_in(command.folder).values() for process in group]
    _, alive = psutil.wait_procs(left, timeout=within_s)
    assert alive == []
    assert processes_in(command.folder) == {}


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-{'full' if case[2] else 'empty'}")
def case(request: pytest.FixtureRequest) -> tuple[str, str, bool]:
    found: tuple[str, str, bool] = request.param
    return found


@pytest.fixture
def host(case: tuple[str, str, bool]) -> Iterator[SiteProcess]:
    slow = (1,) if case[1] == "fetch" else ()
    with SiteProcess(SiteSpec(hosts=1, pages_per_host=PAGES, slow_hosts=slow, slow_ms=SLOW_MS)) as running:
        yield running


async def test_stop_of_any_kind_anywhere_loses_nothing_and_a_clean_one_repeats_nothing(
    case: tuple[str, str, bool], host: SiteProcess, tmp_path: Path
) -> None:
    way, place, is_full = case
    program = Program(tmp_path / "here", host, place, is_full=is_full)
    with program.start() as running:
        await until_true(running, program.is_standing, f"work that stands in {place}")
        stop(running, way)
        if way in CLEAN:
            program.gate.touch()
        code = running.wait(GRACE_S if way in CLEAN else NOW_S).code
    assert code == (-signal.SIGKILL if way == "SIGKILL" else ExitCode.STOPPED), running.err
    assert_all_gone(program.command, NOW_S)
    expected = {host.url(1, f"/p/{n}") for n in range(PAGES)}
    if is_full:
        written = len(program.command.records("out.jsonl")) if (program.command.folder / "out.jsonl").exists() else 0
        assert written < len(expected), "it was over before it was stopped"

    program.gate.touch()
    with program.start() as running:
        result = running.wait(60)
    assert result.code == ExitCode.DONE, result
    records = [record["url"] for record in program.command.records("out.jsonl")]
    assert len(records) == len(set(records)) == program.pages
    assert set(records) <= expected
    again = program.begun_twice()
    if way in CLEAN:
        assert again == {}
    else:
        # What stood, no more: of the handler two, with their fetches, of the sink a batch.
        assert len(again) <= 4, again
        assert max(again.values(), default=2) == 2, again
    audited = program.command.run("audit", "gated", "--json")
    assert audited.code == ExitCode.DONE, audited
    totals = json.loads(audited.out)["totals"]
    if way != "SIGKILL":
        assert {name: count for name, count in totals.items() if name.endswith(".crashed") and count} == {}
    assert not [name for name, count in totals.items() if name.endswith((".queued", ".streamed", ".delayed")) and count]


# -- outputs

FILES = ("pages.jsonl", "pages.csv", "pages.parquet", "pages.warc.gz", "sqlite:///pages.db")


@pytest.mark.parametrize(("way", "is_full"), tuple(product(STOPS, (True, False))) if IS_FULL else SHORT_OUTPUTS)
async def test_stop_of_any_kind_while_all_outputs_are_written_or_rest_costs_no_record(
    way: str, is_full: bool, tmp_path: Path, database: str
) -> None:
    command = Command(tmp_path / "here")
    outputs = [part for place in (*FILES, database) for part in ("-o", place)]
    with SiteProcess(SiteSpec(hosts=2, pages_per_host=25, latency_ms=10)) as site:
        expected = sorted(site.url(host, f"/p/{n}") for host in (1, 2) for n in range(25))
        half = sorted(url for url in expected if url.startswith(site.url(1, "/")))

        def start() -> Running:
            return command.start(
                *("run", "tests.programs:pipeline", "--seeds", "-", "--scope", "host", "--rotate-size", "20KB"),
                *outputs,
                *("--lease", "3s"),
                PYTHONPATH=str(REPOSITORY),
                STREAMCRAWL_GRACE=str(GRACE_S),
                keeps_stdin_open=True,
            )

        with start() as running:
            feed(running, site.url(1, "/p/0"))
            wanted = 10 if is_full else len(half)
            running.until(lambda: len(all_parts(command.folder)) >= wanted, "records", within_s=40)
            if not is_full:
                await until_true(running, partial(is_at_rest, command), "a crawl that rests")
            stop(running, way)
            code = running.wait(GRACE_S).code
        assert code == (-signal.SIGKILL if way == "SIGKILL" else ExitCode.STOPPED), running.err
        assert_all_gone(command, NOW_S)
        with start() as running:
            feed(running, site.url(1, "/p/0"), site.url(2, "/p/0"))
            stdin = running.process.stdin
            assert stdin is not None
            stdin.close()
            result = running.wait(90)
        assert result.code == ExitCode.DONE, result
    folder = command.folder
    assert sorted(of_jsonl(folder)) == sorted(of_csv(folder)) == sorted(of_parquet(folder)) == expected
    assert sorted(of_warc(folder)) == expected
    with closing(sqlite3.connect(folder / "pages.db")) as kept:
        items = [item for (item,) in kept.execute("select item from items")]
    for found in items, await rows(database, "SELECT item FROM items"):
        assert sorted(msgspec.json.decode(item)["url"] for item in found) == expected
    assert command.run("audit", "pipeline").code == ExitCode.DONE


def feed(running: Running, *urls: str) -> None:
    stdin = running.process.stdin
    assert stdin is not None
    stdin.write("".join(f"{url}\n" for url in urls).encode())
    stdin.flush()


def all_parts(folder: Path) -> list[bytes]:
    """Return the lines of the JSONL output, those of the part that is being written too."""
    names = sorted(name for name in os.listdir(folder) if name.startswith("pages") and ".jsonl" in name)
    return [line for name in names for line in (folder / name).read_bytes().splitlines()]


async def is_at_rest(command: Command) -> bool:
    status = await look_at_embedded(command.folder, "pipeline")
    assert status is not None
    return not any(stage.waiting + stage.pending for stage in status.stages)
