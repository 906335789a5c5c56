"""What do metrics cost of a page? The counts that a worker makes for one, and a scrape, against the CPU of the page.

Counts are always on, so they cannot be left out of a crawl to see: the very calls of a page that is fetched, parsed,
committed and written are made in a loop, on the block of cells that a worker has. The page is that of page_cost.py, all
processes and Redis included. A scrape is counted as one each 5 s, which is more than Prometheus asks by default.

    python -m benchmarks.metrics_cost             some 20 s

Exit code 1 when the two together come to more than 3 %.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.page_cost import CRAWL, run_side, warm_up
from benchmarks.site import SiteProcess, SiteSpec
from streamcrawl.ops.metrics import WorkerMetrics
from streamcrawl.work import meters
from streamcrawl.work.meters import FETCH, SUPERVISOR, Meters
from streamcrawl.work.supervisor import Reading

SHARE_MAX: Final = 0.03
SCRAPE_EVERY_S: Final = 5.0
BATCH: Final = 16
"""Pages in one commit: fewer than a busy worker has, so that a call counts for more."""


def count_page(cells: Meters, n: int) -> None:
    """Make the counts of one page and of its record."""
    cells.observe(meters.QUEUE_WAIT, 0.02)
    cells.observe(meters.FETCH_SECONDS, 0.08, "page")
    cells.add(meters.FETCH_RESPONSES, 1, "page", "2xx")
    cells.add(meters.BODY_BYTES, 6000, "page")
    cells.observe(meters.HANDLER_SECONDS, 0.001)
    cells.observe(meters.TASK_LATENCY, 12.0)
    cells.add(meters.COMMITS, 1, "page", "done")
    cells.observe(meters.TASK_LATENCY, 0.2)  # of its record, in the writer
    if n % BATCH == 0:
        cells.observe(meters.BATCH_SIZE, BATCH)
        cells.observe(meters.REDIS_SECONDS, 0.002, "commit")
        cells.observe(meters.REDIS_SECONDS, 0.002, "sink_commit")


def counts_us(pages: int = 100_000) -> float:
    """Return the CPU time of the counts of one page, µs."""
    cells = Meters()
    began = time.process_time()
    for n in range(pages):
        count_page(cells, n)
    return (time.process_time() - began) / pages * 1e6


class _Supervisor:
    """As much of one as a scrape asks for: two workers and the supervisor itself."""

    def readings(self) -> list[Reading]:
        cells = Meters().read()
        roles = (FETCH, FETCH, SUPERVISOR)
        return [
            Reading(role=role, stage=role, cells=cells, pids=[], restarts=0, slots=64, busy=3) for role in roles[1:]
        ]

    def heartbeat_age_ms(self) -> int:
        return 100


def scrape_ms(times: int = 50) -> float:
    """Return the CPU time of one scrape of a fetch and its supervisor, ms."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerMetrics("bench", lambda: _Supervisor(), {"info": 1}))  # type: ignore[arg-type,return-value]
    began = time.process_time()
    for _ in range(times):
        generate_latest(registry)
    return (time.process_time() - began) / times * 1e3


def main() -> None:
    """Measure and compare."""
    argparse.ArgumentParser(prog="python -m benchmarks.metrics_cost", description=__doc__).parse_args()
    warm_up((CRAWL,), [])
    with SiteProcess(SiteSpec(pages=2000)) as site:
        run = run_side(CRAWL, site, [])
    page_us = run.usage.cpu_s / 2000 * 1e6
    counts, scrape = counts_us(), scrape_ms()
    share = counts / page_us
    # Of one process that is busy all the time.
    scrapes = scrape / 1e3 / SCRAPE_EVERY_S
    row = {
        "benchmark": "metrics_cost",
        "page_cpu_us": round(page_us),
        "counts_us_per_page": round(counts, 2),
        "counts_share": round(share, 4),
        "scrape_cpu_ms": round(scrape, 2),
        "scrape_share": round(scrapes, 4),
    }
    print(json.dumps(row))
    raise SystemExit(bool(run.faults) or share + scrapes > SHARE_MAX)


if __name__ == "__main__":
    main()
