"""`streamcrawl why`."""

from __future__ import annotations

from typing import Any

import click

from streamcrawl.cli.groups import Place, about_a_crawl, option
from streamcrawl.cli.options import CONTEXT, Duration, GroupedCommand


@click.command("why", cls=GroupedCommand, context_settings=CONTEXT)
@about_a_crawl
@option("--top", type=click.IntRange(min=1, max=1000), default=10, metavar="N", help="Hosts shown. Default: 10.")
@option(
    "--sample",
    "sample_ms",
    type=Duration(),
    default=2000,
    metavar="DURATION",
    help="Between the two looks that the rate is measured by; 0: one look, and the rate of the last half minute. "
    "Default: 2s.",
)
def command(place: Place, **options: Any) -> int:
    """Say what limits the crawl NAME now, most limiting first, which hosts decide its end, and when that may be.

    Each line that somebody can act on has a command below it. A host needs its delay for each page that it has queued,
    whatever the number of workers: the end comes no sooner than that of the slowest, nor than the rate allows. Of more
    than 5,000 scheduled hosts a sample is looked at, and what it does not hold is said. Changes nothing.
    """
    from streamcrawl.cli.diagnosis import show_why

    return show_why(place, **options)
