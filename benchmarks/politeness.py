"""How much longer does a polite crawl take than its delays need, and does it keep to them?

A site of `--hosts` hosts with `--pages` pages each, crawled by `--processes` workers with one request at a time and
`--delay-ms` between two requests of a host. What the delays need is, for the host that needs most, its delays and the
time that its own answers took. Both figures, and every breach, are read from the web server's own log. Exit code 1 when
there is a breach, or when it took more than 15 % longer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Final
from uuid import uuid4

from tests.integration.drive import by_host, crawling, overlap_max, violations
from tests.redis_server import RedisServer
from tests.site.server import SiteProcess, SiteSpec

RATIO_MAX: Final = 1.15


async def measure(options: argparse.Namespace) -> dict[str, float | int | str]:
    spec = SiteSpec(hosts=options.hosts, pages_per_host=options.pages, links=8, latency_ms=options.latency_ms)
    with RedisServer() as server, SiteProcess(spec) as site:
        # Every host from the beginning: how soon one is found is a question of the site, not of politeness.
        seeds = [site.url(host, "/p/0") for host in range(1, options.hosts + 1)]
        async with crawling(
            server.url,
            f"b{uuid4().hex[:12]}",
            seeds,
            processes=options.processes,
            delay_ms=options.delay_ms,
            obey_robots=True,
        ) as run:
            await run.word(within_s=600)
        hosts = by_host(site.requests())
    needed_s = max(
        ((len(own) - 1) * options.delay_ms + sum(request.end_ms - request.start_ms for request in own)) / 1000
        for own in hosts.values()
    )
    everything = [request for own in hosts.values() for request in own]
    took_s = (max(r.end_ms for r in everything) - min(r.start_ms for r in everything)) / 1000
    return {
        "benchmark": "politeness",
        "hosts": len(hosts),
        "requests": len(everything),
        "processes": options.processes,
        "delay_ms": options.delay_ms,
        "needed_s": round(needed_s, 3),
        "took_s": round(took_s, 3),
        "ratio": round(took_s / needed_s, 3),
        "violations": len(violations(everything, cap=1, delay_ms=options.delay_ms)),
        "at_a_time_max": max(map(overlap_max, hosts.values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.politeness", description=__doc__)
    parser.add_argument("--hosts", type=int, default=40)
    parser.add_argument("--pages", type=int, default=50, help="per host")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--delay-ms", type=int, default=200)
    parser.add_argument("--latency-ms", type=int, default=0, help="of every page")
    figures = asyncio.run(measure(parser.parse_args()))
    print(json.dumps(figures))
    sys.exit(figures["violations"] != 0 or float(figures["ratio"]) > RATIO_MAX)


if __name__ == "__main__":
    main()
