"""What a crawl says while it runs and when it ends: rates, estimates, endings, what to do next."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.ops.progress import WINDOW_S, Meter, Sample, clock
from streamcrawl.ops.status import DeadLetter, HostStatus, SinkStatus, Status, reasons
from streamcrawl.ops.summary import Run, exit_code, summary_json, summary_lines

RESUME = "streamcrawl crawl --resume --name c"
MORE = f"{RESUME} --max-pages N"


def status(**values: Any) -> Status:
    totals = values.pop("totals", {"page.done": 100})
    return Status(name="c", totals=totals, **values)


def run(word: str, pages_before: int = 0) -> Run:
    return Run(word, elapsed_s=10.0, pages_before=pages_before, resume=RESUME, more=MORE)


LETTER = DeadLetter("http://a/1", "timeout", "no answer in 30 s", "", 0)


@pytest.mark.parametrize(
    ("word", "values", "code"),
    [
        ("ENDED", {}, ExitCode.DONE),
        ("ENDED", {"dead_letters": 1}, ExitCode.WITH_DEAD_LETTERS),
        ("ENDED", {"given_up": ["http://a"]}, ExitCode.WITH_DEAD_LETTERS),
        ("ENDED", {"hosts_blocked": 1}, ExitCode.DONE),
        ("ENDED", {"hosts_blocked": 1, "totals": {"page.queued": 3}}, ExitCode.WITH_DEAD_LETTERS),
        ("LIMIT", {"dead_letters": 1}, ExitCode.STOPPED),
        ("STOPPED", {}, ExitCode.STOPPED),
        ("PAUSED", {}, ExitCode.STOPPED),
        ("INTERRUPTED", {}, ExitCode.STOPPED),
        ("UNFED", {}, ExitCode.STOPPED),
        ("UNBALANCED", {}, ExitCode.AUDIT_FAILED),
        ("UNAVAILABLE", {}, ExitCode.STORE_UNAVAILABLE),
        ("GONE", {}, ExitCode.STORE_UNAVAILABLE),
    ],
)
def test_each_ending_has_its_exit_code(word: str, values: dict[str, Any], code: ExitCode) -> None:
    assert exit_code(word, status(**values)) is code


def test_summary_of_a_complete_crawl() -> None:
    sink = SinkStatus("out", "/data/c.jsonl", waiting=0, written=100, offset=9)
    assert summary_lines(run("ENDED"), status(sinks=[sink])) == [
        "crawl c: complete",
        "  100 pages in 0:00:10, 10.0/s",
        "  output: /data/c.jsonl (100 records)",
    ]


def test_summary_names_what_failed() -> None:
    totals = {"page.done": 9, "page.dead.timeout": 6, "page.dead.http_500": 1, "page.dropped.robots": 2}
    lines = summary_lines(
        run("ENDED"), status(totals=totals, dead_letters=7, given_up=["http://a", "http://b"], newest_dead=[LETTER] * 5)
    )
    assert "  dropped: 2 (robots 2)" in lines
    assert "  dead: 7 (timeout 6, http_500 1)" in lines
    assert "  hosts given up, none of their pages could be had: http://a, http://b" in lines
    assert lines.count("    http://a/1: timeout (no answer in 30 s)") == 5
    assert "    and 2 more" in lines


def test_summary_names_what_blocked_hosts_keep() -> None:
    blocked = [HostStatus("http://a", 2000), HostStatus("http://b", 1)]
    lines = summary_lines(
        run("ENDED"), status(totals={"page.done": 9, "page.queued": 2010}, hosts_blocked=3, blocked=blocked)
    )
    assert "  2,010 still to fetch" in lines
    assert "  hosts blocked: http://a keeps 2,000 pages, http://b keeps 1 page and 1 more" in lines
    assert lines[-1] == f"  to fetch what a blocked host keeps: streamcrawl host unblock c HOST, then {RESUME}"


def test_summary_says_how_many_hosts_more_were_given_up() -> None:
    lines = summary_lines(run("ENDED"), status(hosts_given_up=1002, given_up=["http://a", "http://b"]))
    assert "  hosts given up, none of their pages could be had: http://a, http://b and 1,000 more" in lines


@pytest.mark.parametrize(
    ("word", "stopped", "first", "last"),
    [
        ("LIMIT", "", "crawl c: stopped at --max-pages", f"  more: {MORE}"),
        ("INTERRUPTED", "", "crawl c: interrupted", f"  go on: {RESUME}"),
        ("PAUSED", "", "crawl c: paused", f"  go on: {RESUME}"),
        ("STOPPED", "FRONTIER_FULL", "raise --frontier-max", f"  go on: {RESUME}"),
        ("STOPPED", "MEMORY_FULL", "raise --memory-max", f"  go on: {RESUME}"),
        ("UNBALANCED", "", "counts do not balance", "  look at it: streamcrawl audit c"),
    ],
)
def test_summary_of_a_stop_says_why_and_what_next(word: str, stopped: str, first: str, last: str) -> None:
    totals = {"page.done": 150, "page.queued": 30, "page.streamed": 2, "page.delayed": 1}
    lines = summary_lines(run(word, pages_before=50), status(totals=totals, stopped=stopped))
    assert first in lines[0]
    assert "100 pages in 0:00:10, 10.0/s; 150 in all" in lines[1]
    assert "  33 still to fetch" in lines
    assert lines[-1] == last


@pytest.mark.parametrize(
    ("stopped", "change"), [("FRONTIER_FULL", "frontier-max=N"), ("MEMORY_FULL", "memory-max=SIZE")]
)
def test_summary_of_a_command_without_the_option_names_one_that_has_it(stopped: str, change: str) -> None:
    one = msgspec.structs.replace(run("STOPPED"), tune="streamcrawl settings set c {} --redis redis://r")
    first = summary_lines(one, status(stopped=stopped))[0]
    assert f"raise it: streamcrawl settings set c {change} --redis redis://r" in first
    assert "--frontier-max" not in first
    assert "--memory-max" not in first


def test_summary_of_a_run_that_found_nothing_to_do() -> None:
    assert summary_lines(run("ENDED", pages_before=100), status())[-1] == (
        "  no page was left to fetch; --fresh begins again"
    )


def test_summary_for_programs_is_json() -> None:
    document = json.loads(json.dumps(summary_json(run("LIMIT", pages_before=1), status())))
    assert document["event"] == "summary"
    assert document["ending"] == "LIMIT"
    assert document["exit_code"] == 3
    assert document["pages"] == 99
    assert document["status"]["name"] == "c"


def test_reasons_are_in_order_of_their_counts() -> None:
    assert reasons({}) == "0"
    assert reasons(status(totals={"page.dead.a": 1, "robots.dead.b": 2000, "page.dead.c": 0}).by_reason("dead")) == (
        "2,001 (b 2,000, a 1)"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (83.9, "0:01:23"), (3600, "1:00:00"), (90_061, "1d 1:01:01")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def meter(*samples: Sample, pages_max: int | None = None) -> Meter:
    filled = Meter(pages_max)
    for sample in samples:
        filled.add(sample)
    return filled


def test_one_sample_gives_no_rate() -> None:
    one = meter(Sample(0.0, done=5, queued=3))
    assert one.rate == 0.0
    assert one.eta_s is None


def test_rate_and_estimate_are_over_the_window() -> None:
    both = meter(Sample(0.0, done=0, queued=100), Sample(10.0, done=50, queued=40, in_hand=5, delayed=5))
    assert both.rate == 5.0
    assert both.eta_s == 10.0


def test_crawl_that_hands_out_nothing_has_no_estimate() -> None:
    samples = (Sample(0.0, done=0, queued=100), Sample(10.0, done=50, queued=50))
    assert meter(*samples).eta_s == 10.0
    assert meter(*samples, Sample(11.0, done=50, queued=50, note="paused")).eta_s is None


def test_samples_older_than_the_window_do_not_count() -> None:
    many = meter(*(Sample(float(n), done=n if n < 40 else 40 + 10 * (n - 40), queued=1000 - n) for n in range(81)))
    assert many.rate == 10.0
    assert many.last.at_s - many._samples[0].at_s <= WINDOW_S + 1


def test_growing_frontier_has_no_estimate_unless_a_budget_ends_it() -> None:
    samples = (Sample(0.0, done=0, queued=100), Sample(10.0, done=50, queued=400))
    assert meter(*samples).eta_s is None
    assert meter(*samples, pages_max=100).eta_s == 10.0
    assert meter(*samples, pages_max=10_000).eta_s is None
