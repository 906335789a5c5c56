"""Retained logs as people use them: a sink that comes later, a better parser, a stage that no program has any more."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.programs import Programs


@pytest.fixture(scope="module")
def host() -> Iterator[SiteProcess]:
    """One host of 60 pages, without a state of its own."""
    with SiteProcess(SiteSpec(hosts=1, pages_per_host=60)) as running:
        yield running


def refusal(programs: Programs, *arguments: str) -> str:
    result = programs.command.run(*arguments)
    assert result.code == ExitCode.USAGE, result
    assert result.err.count("\n") == 1, "one line"
    return result.err


def test_sink_that_comes_later_gets_what_it_missed_and_pages_are_parsed_again_without_a_fetch(
    programs: Programs, host: SiteProcess
) -> None:
    seeds = programs.seeds(host.seed_url)
    expected = host.expected_pages(scope="host")
    programs.run("without_late", *seeds)
    fetched = len(host.requests())
    programs.run("with_late", *seeds)
    assert programs.noted("late") == [], "it is told of, and nothing comes by itself"

    missing = ("replay", "retaining", "--stage", "late", "--missing")
    result = programs.command.run(*missing)
    assert result.code == ExitCode.DONE, result
    assert "no worker is alive" in result.err
    assert "streamcrawl run tests.programs:with_late --resume" in result.err, "a plain crawl would be refused"
    again = ("replay", "retaining", "--stage", "parse", "--from", "1h", "--no-wait", "--json")
    assert programs.ask(*again)["ended"] is False
    programs.run("with_late", *seeds)
    # To the second sink once what it had missed, and to all what the parser gave anew.
    for what, times in (("parsed", 2), ("early", 2), ("late", 2)):
        assert sorted(programs.noted(what)) == sorted(list(expected) * times), what
    assert len(host.requests()) == fetched, "nothing was fetched again"
    assert "nothing is missing" in programs.ask(*missing), "said twice it is sent once"

    status = programs.ask("status", "retaining", "--json")
    logs = {log["name"]: log for log in status["logs"]}
    assert (logs["parse"]["entries"], logs["fetched.parse"]["entries"]) == (120, 60)
    totals = programs.audit("retaining")
    assert (totals["late.copied"], totals["parse.copied"], totals["parse.created"]) == (60, 60, 120)

    assert "nothing of it was written in that time" in refusal(
        programs, "replay", "retaining", "--stage", "early", "--from", "start", "--to", "7d"
    )


def test_stage_that_no_program_has_any_more_is_dropped_with_a_count(programs: Programs, host: SiteProcess) -> None:
    seeds = (*programs.seeds(host.seed_url), "-o", "out.jsonl")
    running = programs.start("run", "first", *seeds, STREAMCRAWL_GRACE="0")

    def left() -> int:
        stages = programs.status("versioned").get("stages", ())
        return sum(stage["waiting"] for stage in stages if stage["stage"] == "work@1")

    running.until(lambda: left() > 10, "items of the stage")
    assert "workers read stage work@1" in refusal(programs, "queue", "drop", "versioned", "--stage", "work")
    running.process.send_signal(signal.SIGINT)
    assert running.wait().code == ExitCode.STOPPED
    refused = programs.start("run", "lacking", *seeds).wait()
    assert (refused.code, "streamcrawl queue drop versioned --stage work@1" in refused.err) == (ExitCode.USAGE, True)
    assert " dropped\n" in programs.ask("queue", "drop", "versioned", "--stage", "work@1")
    programs.run("lacking", *seeds)
    totals = programs.audit("versioned")
    assert totals["work@1.dropped.removed"] == totals["work@1.created"] > 10
