"""`streamcrawl status`."""

from __future__ import annotations

import click

from streamcrawl.cli.options import (
    CONTEXT,
    GroupedCommand,
    GroupedOption,
    config_option,
    debug_option,
    guarded,
    redis_option,
)


@click.command("status", cls=GroupedCommand, context_settings=CONTEXT)
@click.argument("name", required=False)
@redis_option(help="Redis that keeps the crawl. Default: ./.streamcrawl. [STREAMCRAWL_REDIS]")
@click.option("--json", "is_json", is_flag=True, cls=GroupedOption, help="One JSON object on standard output.")
@config_option()
@debug_option()
@guarded
def command(name: str | None, redis_url: str | None, is_json: bool, debug: bool) -> int:
    """Show what the crawl NAME is doing: pages, queue, hosts, workers, output, memory. Without NAME: list the crawls.

    Reads a few counters, whatever the size of the crawl, and changes nothing. The private Redis of a crawl that is not
    running is started for the look and stopped again.
    """
    from streamcrawl.cli.look import list_crawls, show_status

    if name is None:
        return list_crawls(redis_url, is_json=is_json)
    return show_status(name, redis_url, is_json=is_json)
