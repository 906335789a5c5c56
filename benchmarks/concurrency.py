"""Is a crawl whose slots adapt ever slower than one of 64 slots, and how much faster when its pages take their time?

One site of `--hosts` hosts, each page of which answers after `--latency-ms`, crawled with `--concurrency 64` and with
`--concurrency auto` in alternation, each with one process. `ratio` is the median of the rounds' ratios of pages a
second (auto over 64), start and end of the commands included, `cpu_ratio` that of CPU seconds, of all of their
processes: where pages come at once a rate is what a page costs, and on a shared machine that is what can be told. Both
must have fetched every page once.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

SIDES: Final = ("64", "auto")


def crawl(site: SiteProcess, concurrency: str) -> tuple[float, float]:
    """Crawl the site; return pages a second, and CPU seconds per 1,000 of them.

    Raises:
        RuntimeError: pages are missing, or there twice.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "streamcrawl", "crawl", site.seed_url, "--scope", "any", "-o", "pages.jsonl"),
            *("--delay", "0", "--host-concurrency", "64", "--no-robots", "--concurrency", concurrency, "--quiet"),
        ]
        began, cpu_before_s = time.monotonic(), _cpu_s()
        subprocess.run(command, cwd=folder, check=True)
        took_s, cpu_s = time.monotonic() - began, _cpu_s() - cpu_before_s
        urls = [json.loads(line)["url"] for line in Path(folder, "pages.jsonl").read_text().splitlines()]
    if len(urls) != len(set(urls)) or set(urls) != site.expected_pages():
        raise RuntimeError(f"{len(urls)} records of {len(site.expected_pages())} pages")
    return len(urls) / took_s, 1000 * cpu_s / len(urls)


def _cpu_s() -> float:
    """Return the CPU time of all commands that have ended, and of what they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(options: argparse.Namespace) -> dict[str, float | int | str]:
    runs: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    spec = SiteSpec(
        hosts=options.hosts, pages_per_host=options.pages // options.hosts, links=10, latency_ms=options.latency_ms
    )
    with SiteProcess(spec) as site:
        for round_ in range(options.rounds):
            for side in SIDES if round_ % 2 else reversed(SIDES):
                runs[side].append(crawl(site, side))
    pairs = list(zip(*runs.values(), strict=True))
    ratios = [auto[0] / fixed[0] for fixed, auto in pairs]
    figures: dict[str, float | int | str] = {
        "benchmark": "concurrency",
        "pages": options.pages,
        "latency_ms": options.latency_ms,
    }
    for side, own in runs.items():
        figures[f"pages_per_s_{side}"] = round(statistics.median(rate for rate, _ in own), 1)
        figures[f"cpu_s_per_1000_pages_{side}"] = round(statistics.median(cpu_s for _, cpu_s in own), 3)
    return figures | {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "cpu_ratio": round(statistics.median(auto[1] / fixed[1] for fixed, auto in pairs), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.concurrency", description=__doc__)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--pages", type=int, default=4000)
    parser.add_argument("--latency-ms", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
