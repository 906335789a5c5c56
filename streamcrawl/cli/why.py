"""`streamcrawl why`."""

from __future__ import annotations

from typing import Any, Final

import click

from streamcrawl.cli.groups import Place, about_a_crawl, option
from streamcrawl.cli.options import CONTEXT, Duration, GroupedCommand

TOP_DEFAULT: Final = 10
SAMPLE_DEFAULT_MS: Final = 2000


@click.command("why", cls=GroupedCommand, context_settings=CONTEXT)
@about_a_crawl
@option(
    "--top",
    type=click.IntRange(min=1, max=1000),
    default=TOP_DEFAULT,
    metavar="N",
    help=f"Hosts shown. Default: {TOP_DEFAULT}.",
)
@option(
    "--sample",
    "sample_ms",
    type=Duration(),
    default=SAMPLE_DEFAULT_MS,
    metavar="DURATION",
    help="Between the two looks that the rate is measured by; 0: one look, and the rate of the last half minute. "
    f"Default: {SAMPLE_DEFAULT_MS // 1000}s.",
)
def command(place: Place, **options: Any) -> int:
    """Say what limits the crawl NAME now, most limiting first, which hosts decide its end, and when that may be.

    Each line that somebody can act on has a command below it. A host needs its delay for each page that it has queued,
    whatever the number of workers: the end comes no sooner than that of the slowest, and about when the rate tells, or
    when --max-pages is reached. Of more than 5,000 scheduled hosts, or 500 domains, a sample is looked at, and what it
    does not hold is said. Changes nothing.
    """
    from streamcrawl.cli.diagnosis import show_why

    return show_why(place, **options)
