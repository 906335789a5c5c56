"""What does a page cost? CPU time of streamcrawl, its Redis included, against the bare loop on the same site.

Paired runs: each round measures the bare loop and streamcrawl, which writes its output file, one after the other and
in the opposite order from one round to the next, because the speed of a shared machine drifts. The ratio is the median
of the rounds' ratios. CPU is user and system time of every process of a side, from its start to its end: interpreter,
imports and the embedded redis-server with its start and stop belong to the price (`--startup` says what they come to,
and what the ratio is without them).

A figure counts only when the work was the same: the site's own count must show that each side fetched each page, and
none twice, and the output file must hold each page once. Otherwise the exit code is 1.

    python -m benchmarks.page_cost                              5 rounds of 5,000 pages, about a minute
    python -m benchmarks.page_cost --only bare --rounds 3       the bare loop alone
    python -m benchmarks.page_cost --roles -- --processes 2     options for streamcrawl after --; the split to stderr
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.process_tree import TreeUsage, measure
from benchmarks.site import SiteProcess, SiteReport, SiteSpec, add_spec_options, spec_from_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.nginx import NginxSite

BARE: Final = "bare"
CRAWL: Final = "crawl"
SIDES: Final = (BARE, CRAWL)

CONCURRENCY: Final = 64


@dataclass(frozen=True, slots=True)
class Run:
    """One side, measured once."""

    usage: TreeUsage
    served: SiteReport
    faults: tuple[str, ...]
    """Why the figure does not count; empty when it does."""


def command_of(side: str, site: SiteProcess | NginxSite, output: Path, crawl_arguments: list[str]) -> list[str]:
    """Return the command line of a side."""
    is_any_host = site.spec.hosts > 1
    if side == BARE:
        any_host = ["--any-host"] if is_any_host else []
        return [
            sys.executable, "-m", "benchmarks.bare_loop", site.root_url, f"--concurrency={CONCURRENCY}", *any_host
        ]  # fmt: skip
    return [
        str(Path(sys.executable).with_name("streamcrawl")), "crawl", site.root_url, "--fresh", "--quiet",
        "--delay", "0", "--host-concurrency", str(CONCURRENCY), "--concurrency", str(CONCURRENCY),
        "--processes", "1", "--no-robots",
        *(["--scope", "any"] if is_any_host else []), "-o", str(output),
        *crawl_arguments,
    ]  # fmt: skip


def run_side(side: str, site: SiteProcess, crawl_arguments: list[str]) -> Run:
    """Measure one side once, in a folder of its own, and check that it did the work."""
    site.report()
    with tempfile.TemporaryDirectory(prefix="page-cost-") as name:
        output = Path(name, "pages.jsonl")
        # The bare loop is a module of this folder's parent; streamcrawl keeps its store where it runs.
        folder = Path(__file__).parents[1] if side == BARE else Path(name)
        command = command_of(side, site, output, crawl_arguments)
        usage = measure(command, folder=folder, output=Path(name, "stdout"))
        served = site.report()
        faults = list(faults_of(usage, served, site.spec.pages))
        if side == CRAWL and not faults:
            faults += faults_of_output(output, site)
    for fault in faults:
        print(f"{side}: {fault}", file=sys.stderr)
    return Run(usage, served, tuple(faults))


def faults_of(usage: TreeUsage, served: SiteReport, pages: int) -> list[str]:
    """Return why a run does not count, by its processes and the site's log; empty when it does."""
    faults = []
    if usage.exit_code:
        faults.append(f"ended with exit code {usage.exit_code}")
    if served.distinct_pages != pages:
        faults.append(f"fetched {served.distinct_pages} of {pages} pages")
    if served.repeated_fetches:
        faults.append(f"fetched {served.repeated_fetches} pages again")
    if served.not_found:
        faults.append(f"asked {served.not_found} times for what is not there")
    if usage.unwaited_cpu_s:
        faults.append(f"lost sight of {usage.unwaited_cpu_s} s: a process was not waited for")
    if usage.left_behind:
        faults.append(f"left behind: {usage.left_behind}")
    return faults


def faults_of_output(output: Path, site: SiteProcess | NginxSite) -> list[str]:
    """Return why an output does not count: not each page once."""
    with output.open("rb") as lines:
        written = Counter(json.loads(line)["url"] for line in lines)
    if written == Counter(site.urls()):
        return []
    return [f"wrote {written.total()} records of {len(written)} URLs, not each of {site.spec.pages} pages once"]


def warm_up(sides: Sequence[str], crawl_arguments: list[str]) -> None:
    """Run each side once, so that its bytecode is there, as it is of a package that was installed.

    Where the environment keeps Python from writing any, each start of a checkout would compile it: 0.2 s of CPU for
    what nobody pays who uses it.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with SiteProcess(SiteSpec(pages=1)) as site:
        for side in sides:
            run_side(side, site, crawl_arguments)


def startup_cpu_s(side: str, rounds: int, crawl_arguments: list[str]) -> float:
    """Return what a side costs on a site of a single page: its start and its end."""
    with SiteProcess(SiteSpec(pages=1)) as site:
        return statistics.median(run_side(side, site, crawl_arguments).usage.cpu_s for _ in range(rounds))


def summarize(runs: dict[str, list[Run]], spec: SiteSpec) -> dict[str, Any]:
    """Return the medians of each side and the median of the rounds' ratios, by names that carry their unit."""
    summary: dict[str, Any] = {}
    for side, of_side in runs.items():
        cpu_s = [run.usage.cpu_s for run in of_side]
        summary[f"{side}_cpu_s_per_1000_pages"] = round(statistics.median(cpu_s) / spec.pages * 1000, 3)
        summary[f"{side}_cpu_s_least_and_most"] = [round(min(cpu_s), 2), round(max(cpu_s), 2)]
        summary[f"{side}_wall_s"] = round(statistics.median(run.usage.wall_s for run in of_side), 2)
        if side == BARE:
            continue
        roles = dict.fromkeys(role for run in of_side for role in run.usage.cpu_s_by_role)
        summary[f"{side}_cpu_s_by_role"] = {
            role: round(statistics.median(run.usage.cpu_s_by_role.get(role, 0.0) for run in of_side), 2)
            for role in roles
        }
        # A side that did less work would look cheap.
        if BARE in runs and not any(run.faults for run in (*of_side, *runs[BARE])):
            pairs = zip(of_side, runs[BARE], strict=True)
            ratio = statistics.median(run.usage.cpu_s / bare.usage.cpu_s for run, bare in pairs)
            summary[f"{side}_ratio"] = round(ratio, 2)
    served = [run.served for of_side in runs.values() for run in of_side]
    summary["site_cpu_s_per_1000_pages"] = round(
        statistics.median(report.cpu_s for report in served) / spec.pages * 1000, 3
    )
    summary["is_same_work"] = not any(run.faults for of_side in runs.values() for run in of_side)
    return summary


def ratio_without_startup(runs: dict[str, list[Run]], summary: dict[str, Any]) -> float:
    """Return the ratio that a crawl approaches as it grows: each side's start-up is taken off before dividing."""
    startup_s: dict[str, float] = {side: summary[f"{side}_startup_cpu_s"] for side in (BARE, CRAWL)}
    pairs = zip(runs[CRAWL], runs[BARE], strict=True)
    return statistics.median(
        (run.usage.cpu_s - startup_s[CRAWL]) / (bare.usage.cpu_s - startup_s[BARE]) for run, bare in pairs
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_cost", description=(__doc__ or "").split("\n")[0])
    add_spec_options(parser)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--only", choices=SIDES, action="append", help="measure this side; may be repeated")
    parser.add_argument("--startup", action="store_true", help="also measure each side on a site of one page")
    parser.add_argument("--roles", action="store_true", help="list every process of the last round on standard error")
    parser.add_argument("crawl_arguments", nargs="*", help="after --: further options for streamcrawl crawl")
    options = parser.parse_args()
    sides = [side for side in SIDES if side in (options.only or SIDES)]
    if sides != [BARE] and not Path(sys.executable).with_name("streamcrawl").exists():
        parser.error("streamcrawl is not installed beside this python; run `make setup`, or use --only bare")
    spec = spec_from_options(options)
    runs: dict[str, list[Run]] = {side: [] for side in sides}
    warm_up(sides, options.crawl_arguments)
    with SiteProcess(spec) as site:
        for round_number in range(options.rounds):
            for side in sides if round_number % 2 == 0 else reversed(sides):
                runs[side].append(run_side(side, site, options.crawl_arguments))
        mean_bytes = site.mean_answer_bytes
    summary = summarize(runs, spec)
    if options.startup:
        for side in sides:
            startup_s = startup_cpu_s(side, min(options.rounds, 3), options.crawl_arguments)
            summary[f"{side}_startup_cpu_s"] = round(startup_s, 3)
        if f"{CRAWL}_ratio" in summary:
            summary[f"{CRAWL}_ratio_without_startup"] = round(ratio_without_startup(runs, summary), 2)
    if options.roles:
        for side in sides:
            for process in runs[side][-1].usage.processes:
                print(f"{side:13} {process.role:11} {process.cpu_s:7.2f} s  {process.command}", file=sys.stderr)
    facts = {"pages": spec.pages, "links_per_page": spec.links, "hosts": spec.hosts, "mean_answer_bytes": mean_bytes}
    print(json.dumps({"benchmark": "page_cost", **facts, "rounds": options.rounds, **summary}))
    if not summary["is_same_work"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
