"""Workers of a program die while they have items in hand: fetchers, every stage, sinks, and the writer of each output.

Each kill comes when pages have just begun to come: the seeds are given host by host, so there is work to the end. The
outputs are of every kind, all at once, and files in parts, so that some are killed while a part is being finished.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from functools import partial
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
    from pathlib import Path

    from tests.e2e.command import Running

__all__ = ["database", "postgres"]
"""Fixtures."""
pytestmark = pytest.mark.chaos

HOSTS = 30 if IS_FULL else 7
"""For each one process of each role is killed; in the short form a writer, and a fetcher and one of a stage in turn."""
PAGES = 20 if IS_FULL else 8
END_S = 300 if IS_FULL else 90
FETCH, STAGE = "crawl-fetch", "crawl-stage"
FILES = ("pages.jsonl", "pages.csv", "pages.parquet", "pages.warc.gz", "sqlite:///pages.db")


def has_noted(journal: Path, count: int) -> bool:
    return len(noted(journal, "weighing")) >= count


class Killer:
    """Kills processes of the program, and counts what they were for."""

    def __init__(self, command: Command, running: Running) -> None:
        self._command = command
        self._running = running
        self._dice = random.Random(5)
        self.kills: Counter[str] = Counter()

    def kill(self, role: str) -> None:
        """Kill one of the processes of a role."""
        found: list[psutil.Process] = []

        def are_there() -> bool:
            # One that was killed just now may not have its successor yet.
            found[:] = processes_in(self._command.folder).get(role, [])
            return bool(found)

        self._running.until(are_there, f"a {role}", within_s=40)
        with suppress(psutil.NoSuchProcess):
            self._dice.choice(found).kill()
            self.kills[role] += 1

    async def kill_writer(self, kind: str) -> None:
        """Kill the writer of the output whose place ends so."""

        async def is_killed() -> bool:
            status = await look_at_embedded(self._command.folder, "pipeline")
            assert status is not None
            names = {sink.name for sink in status.sinks if sink.path.endswith(kind)}
            for worker in status.workers:
                # One that was killed may be listed for a while, and its successor not yet.
                with suppress(psutil.NoSuchProcess):
                    if worker.stage in names and psutil.Process(worker.pid).name() == "crawl-sink":
                        psutil.Process(worker.pid).kill()
                        return True
            return False

        await until_true(self._running, is_killed, f"a writer of {kind}")
        self.kills[kind] += 1


async def test_killed_workers_of_every_stage_and_output_lose_and_repeat_nothing(tmp_path: Path, database: str) -> None:
    command = Command(tmp_path / "here")
    journal = command.folder / "journal"
    environment = {"PYTHONPATH": str(REPOSITORY), "TESTS_JOURNAL": str(journal), "TESTS_NAP": "0.03"}
    outputs = (*FILES, database)
    # As they are stored, a database without its password.
    kinds = [*(place.rpartition("/")[2] for place in FILES), database.rpartition("/")[2]]
    with SiteProcess(SiteSpec(hosts=HOSTS, pages_per_host=PAGES, latency_ms=5)) as site:
        arguments = ("run", "tests.programs:pipeline", "--seeds", "-", "--scope", "host", "--rotate-size", "2KB")
        limits = ("--processes", "2", "--lease", "2s", "--delay", "50ms")
        running = command.start(
            *arguments,
            *(part for output in outputs for part in ("-o", output)),
            *limits,
            keeps_stdin_open=True,
            **environment,
            STREAMCRAWL_CRASHES_MAX="1000",  # an innocent item may be in several hands that die
        )
        with running:
            killer = Killer(command, running)
            stdin = running.process.stdin
            assert stdin is not None
            for host in range(1, HOSTS + 1):
                wanted = len(noted(journal, "weighing")) + 1
                stdin.write(f"{site.url(host, '/p/0')}\n".encode())
                stdin.flush()
                running.until(partial(has_noted, journal, wanted), "items", within_s=40)
                await killer.kill_writer(kinds[host % len(kinds)])
                for role in (FETCH, STAGE, "crawl-sink") if IS_FULL else (FETCH, STAGE)[host % 2 :][:1]:
                    killer.kill(role)
            stdin.close()
            result = running.wait(END_S)
        assert result.code == ExitCode.DONE, result
        assert min(killer.kills[kind] for kind in kinds) >= HOSTS // len(kinds), killer.kills
        assert killer.kills[FETCH] + killer.kills[STAGE] >= HOSTS - 2, killer.kills
        expected = {site.url(host, f"/p/{page}") for host in range(1, HOSTS + 1) for page in range(PAGES)}
    folder, once = command.folder, sorted(expected)
    assert sorted(of_jsonl(folder)) == sorted(of_csv(folder)) == sorted(of_parquet(folder)) == once
    assert sorted(of_warc(folder)) == once, "an archive has pages, however often they were fetched"
    with closing(sqlite3.connect(folder / "pages.db")) as kept:
        assert sorted(msgspec.json.decode(item)["url"] for (item,) in kept.execute("select item from items")) == once
    assert sorted(msgspec.json.decode(item)["url"] for item in await rows(database, "SELECT item FROM items")) == once
    with closing(sqlite3.connect(folder / "kept.db")) as kept:
        assert sorted(url for (url,) in kept.execute("select url from kept")) == once
    audited = command.run("audit", "pipeline", "--json")
    assert audited.code == ExitCode.DONE, audited
    totals = json.loads(audited.out)["totals"]
    assert {totals[f"{line}.{state}"] for line in ("weigh", "label", "keep") for state in ("created", "done")} == {
        len(expected)
    }
