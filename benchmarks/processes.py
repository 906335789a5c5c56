"""How much faster are two processes than one?

The same crawl with one worker process and with two (or as many as are asked for), its Redis and its output included,
in rounds of alternating order. On a machine of two cores the site, Redis, the writer of the output and the supervisor
share them with the workers, so twice is out of reach: `limit_pages_per_s` is what the cores could do if all of them
were busy all the time with what a page costs, site included, and `share_of_limit` how near a run came.

Rates are wall-clock time and mean something only on a quiet machine: `others_pct` is what other processes took of its
cores meanwhile. Above 10 % in any run there is no verdict. `possible_…`, that limit over what one core can do for the
busiest process of the crawl with one, comes from CPU times alone; a starved crawl commits smaller batches, so that it
is an estimate there.

    python -m benchmarks processes                                  20,000 pages, 3 rounds
    python -m benchmarks processes --processes 1 --processes 4

Exit code 1 when a crawl was not complete, or on a quiet machine with two cores two processes fetched less than 1.6
times as many pages a second as one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.page_cost import CRAWL, command_of, faults_of, faults_of_output, warm_up
from benchmarks.process_tree import measure
from benchmarks.site import SiteProcess, SiteSpec, add_spec_options, spec_from_options

PAGES: Final = 20_000
ROUNDS: Final = 3
BAR: Final = 1.6
OTHERS_MAX_PCT: Final = 10.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


_MEDIANS: Final = (
    "pages_per_s", "cpu_s_per_1000_pages", "busiest_cpu_s_per_1000_pages", "limit_pages_per_s", "share_of_limit"
)  # fmt: skip


def busy_cpu_s() -> float:
    """Return for how long all cores together have been busy since the machine started, taken (steal) time included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / _TICKS_PER_S


def run_once(processes: int, site: SiteProcess) -> dict[str, Any]:
    """Crawl the site once; return the figures by names that carry their unit."""
    pages, cores = site.spec.pages, os.cpu_count() or 1
    site.report()
    with tempfile.TemporaryDirectory(prefix="processes-") as name:
        output = Path(name, "pages.jsonl")
        busy_before_s = busy_cpu_s()
        command = command_of(CRAWL, site, output, ["--processes", str(processes)])
        usage = measure(command, folder=Path(name), output=Path(name, "stdout"))
        busy_s = busy_cpu_s() - busy_before_s
        served = site.report()
        faults = faults_of(usage, served, site.spec.pages)
        if not faults:
            faults = faults_of_output(output, site)
    for fault in faults:
        print(f"{processes} processes: {fault}", file=sys.stderr)
    ours_s = usage.cpu_s + served.cpu_s
    limit = cores * pages / ours_s
    return {
        "processes": processes,
        "wall_s": round(usage.wall_s, 2),
        "pages_per_s": round(pages / usage.wall_s, 1),
        "cpu_s_per_1000_pages": round(usage.cpu_s / pages * 1000, 3),
        "busiest_cpu_s_per_1000_pages": round(max(one.cpu_s for one in usage.processes) / pages * 1000, 3),
        "site_cpu_s_per_1000_pages": round(served.cpu_s / pages * 1000, 3),
        "limit_pages_per_s": round(limit, 1),
        "share_of_limit": round(pages / usage.wall_s / limit, 2),
        "others_pct": round(max(0.0, busy_s - ours_s) / (cores * usage.wall_s) * 100, 1),
        "faults": faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks processes", description=(__doc__ or "").split("\n")[0])
    add_spec_options(parser)
    parser.set_defaults(pages=PAGES)
    parser.add_argument("--processes", type=int, action="append", metavar="N", help="may be repeated (1 and 2)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    options = parser.parse_args()
    counts: list[int] = options.processes or [1, 2]
    spec: SiteSpec = spec_from_options(options)
    runs: list[dict[str, Any]] = []
    warm_up([CRAWL], [])
    with SiteProcess(spec) as site:
        for number in range(options.rounds):
            for processes in counts[:: -1 if number % 2 else 1]:
                run = {"round": number + 1, **run_once(processes, site)}
                runs.append(run)
                print(json.dumps(run), file=sys.stderr, flush=True)
    rates = {count: [run["pages_per_s"] for run in runs if run["processes"] == count] for count in counts}
    is_quiet = all(run["others_pct"] <= OTHERS_MAX_PCT for run in runs)
    is_same_work = not any(run["faults"] for run in runs)
    summary: dict[str, Any] = {
        "benchmark": "processes",
        "cores": os.cpu_count(),
        "pages": spec.pages,
        "links_per_page": spec.links,
    }
    for count in counts:
        mine = [run for run in runs if run["processes"] == count]
        for key in _MEDIANS:
            summary[f"{key}_of_{count}"] = round(median(run[key] for run in mine), 3)
    is_good = is_same_work
    for count in counts[1:]:
        # Of each round by itself: a shared machine drifts.
        times = median(many / one for many, one in zip(rates[count], rates[counts[0]], strict=True))
        summary[f"{count}_times_{counts[0]}"] = round(times, 2)
        one_core = 1000 / summary[f"busiest_cpu_s_per_1000_pages_of_{counts[0]}"]
        summary[f"possible_{count}_times_{counts[0]}"] = round(summary[f"limit_pages_per_s_of_{count}"] / one_core, 2)
        if is_quiet and (counts[0], count, os.cpu_count()) == (1, 2, 2):
            is_good &= times >= BAR
    print(json.dumps(summary | {"is_quiet": is_quiet, "is_same_work": is_same_work}))
    raise SystemExit(not is_good)


if __name__ == "__main__":
    main()
