"""Does a second worker of a stage make it twice as fast, with the fetch as it is?

A program whose parse stage (`page(own_stage=True)`) works 20 ms at each page, one at a time in each process, over a
site that answers at once. It waits for its 20 ms rather than burn them: how many cores there are is another question.
One process of everything (`streamcrawl run`), and for the second side one more of the stage (`streamcrawl worker
--stage parse`). The rate is that of the pages that were parsed between the moment when every worker was at work and the
end; `ratio` is that of two workers over one. **The bar is 1.7**; below it, or with a page missing or parsed twice, the
exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.redis_server import RedisServer
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

RATIO_MIN: Final = 1.7
PROGRAM: Final = """
import json, os, time
from streamcrawl import Crawl

crawl = Crawl("scaling", delay="0", host_concurrency=16, obey_robots="no", scope="any")

@crawl.page(own_stage=True, concurrency=1)
def parse(response):
    time.sleep({work_s})
    with open("parsed", "ab", buffering=0) as journal:
        journal.write(json.dumps([time.monotonic(), os.getpid(), response.url]).encode() + b"\\n")
    for link in response.links():
        yield response.follow(link)
"""


def rate(site: SiteProcess, workers: int, work_ms: int) -> float:
    """Return pages a second that so many workers of the stage parse.

    Raises:
        RuntimeError: a page is missing, or was parsed twice.
    """
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        Path(folder, "scaling.py").write_text(PROGRAM.replace("{work_s}", str(work_ms / 1000)))
        place = ("--redis", server.url, "--quiet")
        # The stage has one process of `run`; the others are workers of their own, before the first page is there.
        helpers = [_start(folder, "worker", "scaling:crawl", "--stage", "parse", *place) for _ in range(1, workers)]
        run = _start(folder, "run", "scaling:crawl", site.seed_url, *place, "--memory-max", "500MB")
        if codes := [one.wait() for one in (run, *helpers) if one.wait()]:
            raise RuntimeError(f"exit codes {codes}")
        parsed = [json.loads(line) for line in Path(folder, "parsed").read_text().splitlines()]
    if any(count > 1 for count in Counter(url for *_, url in parsed).values()) or len(parsed) != len(
        site.expected_pages()
    ):
        raise RuntimeError(f"{len(parsed)} pages parsed of {len(site.expected_pages())}")
    began: dict[int, float] = {}
    for at, pid, _ in parsed:
        began.setdefault(pid, at)
    if len(began) != workers:
        raise RuntimeError(f"{len(began)} of {workers} workers had anything to do")
    after: list[float] = [at for at, *_ in parsed if at > max(began.values())]
    return (len(after) - 1) / (after[-1] - after[0])


def _start(folder: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "streamcrawl", *arguments], cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stage_scaling", description=__doc__)
    parser.add_argument("--pages", type=int, default=600)
    parser.add_argument("--work-ms", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rates: dict[int, list[float]] = {1: [], 2: []}
    began = time.monotonic()
    with SiteProcess(SiteSpec(hosts=4, pages_per_host=options.pages // 4, links=10)) as site:
        for round_ in range(options.rounds):
            for workers in (1, 2) if round_ % 2 == 0 else (2, 1):
                rates[workers].append(rate(site, workers, options.work_ms))
    ratio = statistics.median(two / one for one, two in zip(*rates.values(), strict=True))
    figures = {
        "benchmark": "stage_scaling",
        "pages": options.pages,
        "work_ms": options.work_ms,
        "pages_per_s_one_worker": round(statistics.median(rates[1]), 1),
        "pages_per_s_two_workers": round(statistics.median(rates[2]), 1),
        "ratio": round(ratio, 3),
        "took_s": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures))
    sys.exit(ratio < RATIO_MIN)


if __name__ == "__main__":
    main()
