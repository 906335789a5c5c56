"""Run a site by hand: `python -m tests.site --hosts 3 --pages 100 --flaky 0.05`. Prints its port."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from tests.site.model import SiteSpec
from tests.site.server import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.site", description=__doc__)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--pages", type=int, default=100, help="per host")
    parser.add_argument("--links", type=int, default=20, help="per page")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flaky", type=float, default=0.0, help="share of pages that answer 503 twice first")
    parser.add_argument("--redirect-within", type=float, default=0.0)
    parser.add_argument("--redirect-across", type=float, default=0.0)
    parser.add_argument("--latency-ms", type=int, default=0)
    parser.add_argument("--robots", default="allow", help="allow, none, disallow:/prefix/ or status:<code>")
    parser.add_argument("--dead-hosts", type=int, nargs="*", default=())
    parser.add_argument("--refusing-hosts", type=int, nargs="*", default=())
    parser.add_argument("--spec", help="a whole SiteSpec as JSON, instead of the options above")
    parser.add_argument("--log", type=Path, help="file for one JSON line per request")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when stdin does")
    options = parser.parse_args()
    try:
        if options.spec is not None:
            spec = msgspec.json.decode(options.spec, type=SiteSpec)
        else:
            spec = SiteSpec(
                hosts=options.hosts,
                pages_per_host=options.pages,
                links=options.links,
                seed=options.seed,
                flaky=options.flaky,
                redirect_within=options.redirect_within,
                redirect_across=options.redirect_across,
                latency_ms=options.latency_ms,
                robots=options.robots,
                dead_hosts=tuple(options.dead_hosts),
                refusing_hosts=tuple(options.refusing_hosts),
            )
    except (ValueError, msgspec.ValidationError) as error:
        sys.exit(str(error))
    run(spec, options.log, until_stdin_closes=options.until_stdin_closes)


if __name__ == "__main__":
    main()
