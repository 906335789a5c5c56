"""What does a page cost Redis: CPU, bytes, calls of scripts, and commands inside of them?

A crawl of the synthetic site on a private redis-server, whose own account of itself (INFO) is divided by the pages. All
but the CPU hardly depends on the machine, so a change for the worse shows in one run.

    python -m benchmarks.redis_cost                      5,000 pages, 20 links on each
    python -m benchmarks.redis_cost -- --processes 2     options for streamcrawl after --

Exit code 1 when the crawl did not end as it should, or a page cost more CPU of Redis than the bar.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from redis import Redis

from benchmarks.page_cost import CRAWL, command_of
from benchmarks.site import SiteProcess, add_spec_options, spec_from_options
from tests.redis_server import RedisServer

CPU_MAX_US: Final = 60
"""The bar, per page of 20 links of which 18 are known."""
TOP: Final = 8
_SCRIPTS: Final = ("cmdstat_evalsha", "cmdstat_eval")


def account_of(client: Redis, pages: int) -> dict[str, Any]:
    """Return what the server did since its start, for one page."""
    cpu: Any = client.info("cpu")
    stats: Any = client.info("stats")
    commands: Any = client.info("commandstats")
    inside = {name: used for name, used in commands.items() if name not in _SCRIPTS}
    top = sorted(inside, key=lambda name: -inside[name]["usec"])[:TOP]
    scripts = [commands[name] for name in _SCRIPTS if name in commands]
    return {
        "redis_cpu_us_per_page": round((cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6 / pages, 1),
        "script_calls_per_page": round(sum(used["calls"] for used in scripts) / pages, 3),
        "script_us_per_page": round(sum(used["usec"] for used in scripts) / pages, 1),
        "commands_per_page": round(sum(used["calls"] for used in inside.values()) / pages, 2),
        "bytes_in_per_page": round(stats["total_net_input_bytes"] / pages),
        "bytes_out_per_page": round(stats["total_net_output_bytes"] / pages),
        "calls_per_page": {name.removeprefix("cmdstat_"): round(inside[name]["calls"] / pages, 3) for name in top},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.redis_cost", description=(__doc__ or "").split("\n")[0])
    add_spec_options(parser)
    parser.add_argument("crawl_arguments", nargs="*", help="after --: further options for streamcrawl crawl")
    options = parser.parse_args()
    spec = spec_from_options(options)
    with (
        RedisServer() as server,
        SiteProcess(spec) as site,
        tempfile.TemporaryDirectory(prefix="redis-cost-") as folder,
        Redis.from_url(server.url) as client,
    ):
        arguments = ["--redis", server.url, "--memory-max", "2GB", *options.crawl_arguments]
        command = command_of(CRAWL, site, Path(folder, "pages.jsonl"), arguments)
        exit_code = subprocess.run(command, cwd=folder, check=False).returncode
        fetched = site.report().distinct_pages
        account = account_of(client, spec.pages)
    facts = {"benchmark": "redis_cost", "pages": spec.pages, "links_per_page": spec.links}
    print(json.dumps({**facts, "fetched": fetched, **account}))
    if exit_code or fetched != spec.pages or account["redis_cpu_us_per_page"] > CPU_MAX_US:
        sys.exit(1)


if __name__ == "__main__":
    main()
