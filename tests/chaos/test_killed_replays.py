"""Whoever takes part in a replay dies: the command that asked for it, the supervisors that do it, their workers.

What is sent is counted where it is sent, so a step that was done twice or left out shows in the counts, whatever the
sink saw.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL
from tests.e2e.command import Command
from tests.e2e.processes import processes_in
from tests.e2e.programs import Programs
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

PAGES = 400 if IS_FULL else 150
KILLS = 12 if IS_FULL else 3


def test_killed_command_and_killed_workers_send_each_entry_once(
    tmp_path: Path, redis_server: RedisServer, crawl_name: str
) -> None:
    dice = random.Random(7)
    programs = Programs(Command(tmp_path / "here"))
    place = ("--redis", redis_server.url, "--name", crawl_name)
    # Both sinks have a mark of 20 items: a replay waits for them all the way.
    limits = ("--memory-max", "500MB", "--lease", "2s", "--processes", "1")
    worker = ("with_late", *place, *limits)
    with SiteProcess(SiteSpec(hosts=1, pages_per_host=PAGES)) as site:
        expected = site.expected_pages(scope="host")
        seeds = programs.seeds(site.seed_url)
        programs.run("without_late", *seeds, *place, *limits)
        programs.run("with_late", *seeds, *place, *limits)  # tells of the sink, and ends
        asked = programs.command.start(
            "replay", crawl_name, "--redis", redis_server.url, "--stage", "late", "--missing"
        ).wait()
        assert (asked.code, "no worker is alive" in asked.err) == (ExitCode.DONE, True), asked
        for n in range(KILLS):
            before = len(programs.noted("late"))
            running = programs.start("run", *worker, *seeds, nap_s=0.1, STREAMCRAWL_CRASHES_MAX="1000")
            running.until(lambda before=before: len(programs.noted("late")) > before, "an item of the replay")  # type: ignore[misc]
            with suppress(psutil.NoSuchProcess, IndexError):
                dice.choice(processes_in(programs.command.folder).get("crawl-stage", [])).kill()
            if n % 2:
                running.process.kill()
                running.process.wait()
            else:
                running.interrupt()
                running.wait()
        running = programs.start("run", *worker, *seeds, nap_s=0.02)
        watching = programs.command.start(
            "replay", crawl_name, "--redis", redis_server.url, "--stage", "early", "--from", "start"
        )
        watching.until(lambda: "the workers do it" in watching.err, "a replay that is watched")
        watching.process.kill()
        watching.process.wait()
        result = running.wait(90)
        assert result.code == ExitCode.DONE, result
        # Where the crawl ended before it was asked for the second one: that is left to do now.
        programs.run(*worker, *seeds)
    assert set(programs.noted("late")) == expected == set(programs.noted("early"))
    totals = programs.audit(crawl_name, "--redis", redis_server.url)
    assert {totals[f"late.{state}"] for state in ("created", "copied", "done")} == {len(expected)}
    assert totals["early.copied"] == len(expected)
    assert totals["early.created"] == totals["early.done"] == 2 * len(expected)
