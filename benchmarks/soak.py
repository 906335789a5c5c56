"""Does a worker grow? Its memory after a million pages against after 50,000, in one crawl.

One worker process crawls small pages of the synthetic site with its own Redis and writes them; once a second the
resident memory of every process is read and how many records the output has. A figure is the median of what was read
between so many pages and a fifth of `--early` more, or over as many pages before the end.

    python -m benchmarks soak                        a million pages; about half an hour
    python -m benchmarks soak --pages 200000

Exit code 1 when the crawl was not complete, or the worker held more than 5 % more at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.page_cost import CRAWL, command_of
from benchmarks.process_tree import descendants
from benchmarks.site import SiteProcess, SiteSpec, add_spec_options, spec_from_options

SPEC: Final = SiteSpec(pages=1_000_000, page_min_bytes=500, page_max_bytes=1000)
"""Its pages are as long as their links make them, so that the site holds them all in some 3 GB."""
EARLY: Final = 50_000
BAR_PCT: Final = 5.0
SAMPLE_S: Final = 1.0
POINTS: Final = 20
"""Of the curve in the JSON line."""
MB: Final = 1_000_000
WORKER: Final = "worker"


class Sample(NamedTuple):
    """One look at the crawl."""

    pages: int
    bytes_by_role: dict[str, int]


class _Lines:
    """Counts the lines of a file that grows, each part of it once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.count = 0

    def read(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while part := file.read(1 << 20):
                    self.count += part.count(b"\n")
                    self._offset += len(part)
        return self.count


def watch(process: subprocess.Popen[bytes], output: Path) -> list[Sample]:
    """Look at a crawl once a second until it has ended."""
    samples, lines = [], _Lines(output)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    while True:
        try:
            process.wait(SAMPLE_S)
        except subprocess.TimeoutExpired:
            held: Counter[str] = Counter()
            for pid, role in descendants(process.pid):
                try:
                    held[role] += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_bytes
                except OSError:
                    continue  # it has ended in between
            samples.append(Sample(lines.read(), dict(held)))
        else:
            return samples


def held_mb(samples: list[Sample], first: float, last: float) -> dict[str, float]:
    """Return the median of what each role held between two numbers of pages; empty when nobody looked meanwhile."""
    found: dict[str, list[int]] = {}
    for sample in samples:
        # At its end a crawl has fewer and fewer processes.
        if first <= sample.pages <= last and WORKER in sample.bytes_by_role:
            for role, held in sample.bytes_by_role.items():
                found.setdefault(role, []).append(held)
    return {role: round(median(held) / MB, 1) for role, held in sorted(found.items())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=(__doc__ or "").split("\n")[0])
    add_spec_options(parser)
    parser.set_defaults(
        **{name: getattr(SPEC, name) for name in ("pages", "links", "page_min_bytes", "page_max_bytes")}
    )
    parser.add_argument(
        "--early", type=int, default=EARLY, metavar="N", help="pages after which the first figure is read"
    )
    options = parser.parse_args()
    spec = spec_from_options(options)
    if options.early * 2 > spec.pages:
        parser.error("--pages must be at least twice --early: there would be nothing to compare")
    with SiteProcess(spec) as site, tempfile.TemporaryDirectory(prefix="soak-") as folder:
        output = Path(folder, "pages.jsonl")
        began_s = time.monotonic()
        with subprocess.Popen(command_of(CRAWL, site, output, []), cwd=folder) as process:
            samples = watch(process, output)
        wall_s = time.monotonic() - began_s
        served, written = site.report(), _Lines(output).read()
    window = options.early / 5
    early = held_mb(samples, options.early, options.early + window)
    late = held_mb(samples, spec.pages - window, spec.pages)
    step = max(1, len(samples) // POINTS)
    curve = [[sample.pages, round(sample.bytes_by_role.get(WORKER, 0) / MB, 1)] for sample in samples[step - 1 :: step]]
    is_same_work = (
        process.returncode == 0 and served.distinct_pages == written == spec.pages and not served.repeated_fetches
    )
    before, after = early.get(WORKER), late.get(WORKER)
    growth_pct = round((after / before - 1) * 100, 1) if before and after else None
    result: dict[str, Any] = {
        "benchmark": "soak",
        "pages": spec.pages,
        "early_pages": options.early,
        "wall_s": round(wall_s, 1),
        "pages_per_s": round(spec.pages / wall_s, 1),
        "rss_mb_early": early,
        "rss_mb_late": late,
        "worker_growth_pct": growth_pct,
        "worker_rss_mb_by_pages": curve,
        "is_same_work": is_same_work,
    }
    print(json.dumps(result))
    if growth_pct is None:
        print("nothing was read in one of the two windows: take more --pages", file=sys.stderr)
    raise SystemExit(not is_same_work or growth_pct is None or growth_pct > BAR_PCT)


if __name__ == "__main__":
    main()
