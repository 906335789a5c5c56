"""Workers of a program die while they have items in hand: fetchers, every stage, sinks and the file's writer.

Each kill comes when pages have just begun to come: the seeds are given host by host, so there is work to the end.
"""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL
from tests.e2e.command import REPOSITORY, Command
from tests.e2e.processes import processes_in
from tests.programs import noted
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.chaos

HOSTS = 30 if IS_FULL else 12
PAGES = 20 if IS_FULL else 8
END_S = 300 if IS_FULL else 90
ROLES = ("crawl-fetch", "crawl-stage", "crawl-sink")


def has_noted(journal: Path, count: int) -> bool:
    return len(noted(journal, "weighing")) >= count


def has_process(folder: Path, role: str) -> bool:
    return bool(processes_in(folder).get(role))


def test_killed_workers_of_every_stage_lose_and_repeat_nothing(tmp_path: Path) -> None:
    dice = random.Random(5)
    command = Command(tmp_path / "here")
    journal = command.folder / "journal"
    environment = {"PYTHONPATH": str(REPOSITORY), "TESTS_JOURNAL": str(journal), "TESTS_NAP": "0.03"}
    kills: dict[str, int] = dict.fromkeys(ROLES, 0)
    with SiteProcess(SiteSpec(hosts=HOSTS, pages_per_host=PAGES, latency_ms=5)) as site:
        arguments = ("run", "tests.programs:pipeline", "--seeds", "-", "--scope", "host", "-o", "out.jsonl")
        limits = ("--processes", "2", "--lease", "2s", "--delay", "50ms")
        running = command.start(
            *arguments, *limits, keeps_stdin_open=True, **environment, STREAMCRAWL_CRASHES_MAX="1000"
        )  # an innocent item may be in several hands that die
        with running:
            stdin = running.process.stdin
            assert stdin is not None
            for host in range(1, HOSTS + 1):
                wanted = len(noted(journal, "weighing")) + 1
                stdin.write(f"{site.url(host, '/p/0')}\n".encode())
                stdin.flush()
                running.until(partial(has_noted, journal, wanted), "items", within_s=40)
                role = ROLES[host % len(ROLES)]
                # One that was killed just now may not have its successor yet.
                running.until(partial(has_process, command.folder, role), f"a {role}", within_s=40)
                with suppress(psutil.NoSuchProcess, IndexError):
                    dice.choice(processes_in(command.folder).get(role, [])).kill()
                    kills[role] += 1
            stdin.close()
            result = running.wait(END_S)
        assert result.code == ExitCode.DONE, result
        assert min(kills.values()) >= HOSTS // len(ROLES) - 1, kills  # one may have ended by itself meanwhile
        expected = {site.url(host, f"/p/{page}") for host in range(1, HOSTS + 1) for page in range(PAGES)}
    found = [record["url"] for record in command.records("out.jsonl")]
    assert len(found) == len(set(found)), "an item is in the file twice"
    assert set(found) == expected
    with closing(sqlite3.connect(command.folder / "kept.db")) as kept:
        assert {row[0] for row in kept.execute("select url from kept")} == expected
    audited = command.run("audit", "pipeline", "--json")
    assert audited.code == ExitCode.DONE, audited
    totals = json.loads(audited.out)["totals"]
    assert {totals[f"{line}.{state}"] for line in ("weigh", "label", "keep") for state in ("created", "done")} == {
        len(expected)
    }
