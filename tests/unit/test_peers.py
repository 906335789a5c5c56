"""How benchmarks/peers.py counts: ratios within a round, none where the work was not the same, bars at their links."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers import bar_of, plot_of, summarize, table_of


def run_of(name: str, number: int, cpu_s: float, **more: Any) -> dict[str, Any]:
    return {
        "round": number, "contestant": name, "links_per_page": 20, "pages": 5000, "cpu_s_per_1000_pages": cpu_s,
        "pages_per_s": 100.0, "faults": [], **more,
    }  # fmt: skip


def rows_of(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["contestant"]: row for row in summarize(runs)}


def test_a_ratio_is_the_median_of_the_rounds_and_not_one_of_medians() -> None:
    runs = [
        run_of(name, number, cpu_s)
        for number, (bare, ours, theirs) in enumerate([(1, 2, 4), (2, 2, 20), (3, 9, 27)])
        for name, cpu_s in (("bare", bare), ("streamcrawl", ours), ("scrapy", theirs))
    ]
    rows = rows_of(runs)
    assert rows["streamcrawl"]["times_bare"] == 2
    assert rows["scrapy"]["times_streamcrawl"] == 3
    assert rows["scrapy"]["cpu_s_per_1000_pages"] == 20
    assert list(rows) == ["bare", "streamcrawl", "scrapy"], "cheapest first"


@pytest.mark.parametrize("faulty", ["streamcrawl", "scrapy"])
def test_less_work_has_no_ratio(faulty: str) -> None:
    runs = [run_of("streamcrawl", 1, 1.0), run_of("scrapy", 1, 6.0)]
    next(run for run in runs if run["contestant"] == faulty)["faults"] = ["fetched 4 of 5 pages"]
    row = rows_of(runs)["scrapy"]
    assert "times_streamcrawl" not in row
    assert row["is_same_work"] is (faulty != "scrapy")
    assert ("not the same work" in table_of([row])) is (faulty == "scrapy")


def test_a_round_without_its_counterpart_has_no_ratio() -> None:
    assert "times_streamcrawl" not in rows_of([run_of("streamcrawl", 1, 1.0), run_of("scrapy", 2, 6.0)])["scrapy"]


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("scrapy", {"times_streamcrawl": 6.0}, "≥ 6 × ours"),
        ("scrapy", {"times_streamcrawl": 5.9}, "≥ 6 × ours, missed"),
        ("scrapy", {"times_streamcrawl": 5.9, "links_per_page": 1}, ""),
        ("scrapy", {"times_streamcrawl": 5.9, "pages": 1000}, ""),
        ("streamcrawl", {"times_bare": 1.5}, "≤ 1.4 × bare, missed"),
        ("aio_scrapy", {"times_streamcrawl": 2.0}, ""),
    ],
)
def test_a_bar_is_said_where_it_holds(name: str, more: dict[str, Any], said: str) -> None:
    assert bar_of({"contestant": name, "links_per_page": 20, "pages": 5000} | more) == said


def test_table_and_plot_say_what_redis_takes() -> None:
    rows = summarize([run_of("scrapy_redis", 1, 10.0, redis_cpu_s_per_1000_pages=2.0, redis_commands_per_page=21.5)])
    assert "| scrapy-redis | 10 | 2 |" in table_of(rows)
    assert "█" * 40 + "░" * 10 + " 10.00" in plot_of(rows)
