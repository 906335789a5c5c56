"""`streamcrawl status`."""

from __future__ import annotations

import click

from streamcrawl.cli.options import (
    CONTEXT,
    Duration,
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
@click.option("--watch", "is_watch", is_flag=True, cls=GroupedOption, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--interval",
    "interval_ms",
    metavar="DURATION",
    type=Duration(),
    default=1000,
    cls=GroupedOption,
    help="Between two looks of --watch, 100ms at least. Default: 1s.",
)
@config_option()
@debug_option()
@guarded
def command(
    name: str | None, redis_url: str | None, is_json: bool, is_watch: bool, interval_ms: int, debug: bool
) -> int:
    """Show what the crawl NAME is doing: pages, queue, hosts, workers, output, memory. Without NAME: list the crawls.

    Reads a few counters, whatever the size of the crawl, and changes nothing. Rates are over the last half minute. The
    private Redis of a crawl that is not running is started for the look and stopped again.

    With --watch, a terminal is painted anew at each look; elsewhere one block (with --json one line) follows the other.
    An outage of Redis is shown and survived; it ends when the crawl is deleted, or when its private Redis stops.
    """
    from streamcrawl.cli.look import list_crawls, show_status

    if is_watch:
        from streamcrawl.cli.watch import watch_status

        return watch_status(name, redis_url, interval_ms=interval_ms, is_json=is_json)
    if name is None:
        return list_crawls(redis_url, is_json=is_json)
    return show_status(name, redis_url, is_json=is_json)
