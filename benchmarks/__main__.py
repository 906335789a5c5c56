"""`python -m benchmarks`: the short benchmarks one after the other; `--list` names all of them.

Each prints its JSON line as it ends. The exit code is 1 when one of them failed. `python -m benchmarks NAME …` runs one
of them with options of its own.
"""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple


class Benchmark(NamedTuple):
    """One question."""

    question: str
    short_arguments: tuple[str, ...] | None
    """What makes it short; None leaves it out of the short run."""
    duration: str


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "process_tree": Benchmark("Is the CPU time of a whole process tree counted in full?", ("--check",), "5 s"),
    "page_cost": Benchmark("What does a page cost, against the bare loop?", ("--rounds", "3", "--startup"), "1 min"),
    "redis_cost": Benchmark("What does a page cost Redis: CPU, bytes, scripts, commands?", (), "5 s"),
    "lifecycles": Benchmark("How many tasks a second does one Redis carry through their life?", (), "5 s"),
    "simulated": Benchmark(
        "What does a fleet of 50 workers cost its Redis, and is it fair? (short: 6 of them)",
        (
            "--workers",
            "6",
            "--slots",
            "100",
            "--supervisors",
            "2",
            "--hosts",
            "200",
            "--pages",
            "1500",
            "--latency-ms",
            "300",
            "--no-errors",
        ),
        "40 s",
    ),
    "memory": Benchmark("How much Redis memory does a known URL cost, and a queued one?", (), "1 min"),
    "frontier_size": Benchmark(
        "Do rate, memory and idle cost stay as they are in a frontier of millions?", None, "1 min"
    ),
    "million": Benchmark("What do commands on a million URLs cost, and do they hold Redis up?", None, "5 min"),
    "metrics_cost": Benchmark("What do metrics cost of a page? (fails above 3 %)", None, "20 s"),
    "politeness": Benchmark("How much longer than its delays need does a polite crawl take?", (), "15 s"),
    "conformance.charset": Benchmark("How many pages are read in the right encoding?", None, "2 s"),
    "peers": Benchmark(
        "What does a page cost with streamcrawl, and with Scrapy, crawlee and others?",
        ("--pages", "1000", "--rounds", "1"),
        "2 min",
    ),
    "processes": Benchmark("How much faster are two processes than one?", None, "2 min"),
    "soak": Benchmark("Does a worker grow over a million pages?", None, "30 min"),
    "queue_cost": Benchmark("What does a task on TaskQueue cost? (against others: --others)", (), "15 s"),
    "concurrency": Benchmark("Are slots that adapt ever slower than 64, and when faster?", None, "3 min"),
    "stage_scaling": Benchmark("Does a second worker of a stage make it twice as fast?", None, "1 min"),
    "docs_site": Benchmark("Does a crawl of real documentation find exactly what is there?", None, "1 min"),
    "alike": Benchmark("Are pages of real sites taken for near-identical? (wants --html)", None, "1 min"),
    "conformance.urls": Benchmark("Are URLs read as browsers read them? (wants --data)", None, "1 s"),
    "conformance.sitemaps": Benchmark("What is found in sitemaps, good and broken? (wants --data)", None, "10 s"),
    "conformance.robots": Benchmark("Does a robots.txt mean to us what it means to Google's parser?", None, "3 min"),
    "bare_loop": Benchmark("What is the least a page can cost? (page_cost runs it)", None, "with a site"),
    "site": Benchmark("The site itself, to be crawled by hand.", None, "until Ctrl-D"),
}


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in BENCHMARKS:
        del sys.argv[0]
        runpy.run_module(f"benchmarks.{sys.argv[0]}", run_name="__main__", alter_sys=True)
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the short benchmarks.")
    parser.add_argument("--list", action="store_true", help="name all benchmarks and end")
    parser.add_argument("name", nargs="?", help="run this one, with the options after it")
    options = parser.parse_args()
    if options.name is not None:
        parser.error(f"there is no benchmark {options.name!r}; --list names all")
    if options.list:
        for name, benchmark in BENCHMARKS.items():
            mark = " " if benchmark.short_arguments is None else "*"
            print(f"{mark} python -m benchmarks {name:20} {benchmark.duration:13} {benchmark.question}")
        print("(* runs with `python -m benchmarks`; each takes --help)")
        return
    failed = False
    for name, benchmark in BENCHMARKS.items():
        if benchmark.short_arguments is None:
            continue
        print(f"{name}: {benchmark.question}", file=sys.stderr)
        command = [sys.executable, "-m", f"benchmarks.{name}", *benchmark.short_arguments]
        failed |= subprocess.run(command, check=False, cwd=Path(__file__).parents[1]).returncode != 0
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
