"""`streamcrawl explain`."""

from __future__ import annotations

import click

from streamcrawl.cli.groups import Place, about_a_crawl
from streamcrawl.cli.options import CONTEXT, GroupedCommand


@click.command("explain", cls=GroupedCommand, context_settings=CONTEXT)
@about_a_crawl
@click.argument("url")
def command(place: Place, url: str) -> int:
    """Say what the crawl NAME knows of a URL: seen or not, where its task is, in scope, which robots.txt line decides.

    Of a page that was fetched it says where its items are: in a stage of the program, in an output, in hand, delayed or
    dead. Long queues are searched to a bound, and a bound that was reached is said. Changes nothing.
    """
    from streamcrawl.cli.operators import explain_url

    return explain_url(place, url)
