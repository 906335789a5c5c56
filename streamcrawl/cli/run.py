"""`streamcrawl run`: the options of `crawl` for a program. What it does is in cli/crawl_run.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamcrawl.cli.crawl import command as crawl_command
from streamcrawl.cli.options import CONTEXT, GroupedCommand, guarded

if TYPE_CHECKING:
    from streamcrawl.errors import ExitCode


@click.command("run", cls=GroupedCommand, context_settings=CONTEXT)
@click.argument("app", metavar="MODULE:ATTRIBUTE")
@guarded
@click.pass_context
def command(context: click.Context, /, **_: Any) -> ExitCode:
    """Run a program: all of its stages here, from its seeds, until nothing is left.

    MODULE:ATTRIBUTE names a streamcrawl.Crawl, as `shop:crawl` does in shop.py of this folder. Its name, seeds and
    settings are those of the program where none are given here. Items that no stage takes go to its sinks and to -o
    FILE; with neither, to NAME.jsonl. --processes N gives N processes to the fetch and to each stage; add more on any
    machine with `streamcrawl worker MODULE:ATTRIBUTE --stage S`. The same command again goes on after a stop.

    \b
    streamcrawl run shop:crawl
    streamcrawl run shop:crawl https://shop.example.org/
    streamcrawl run shop:crawl --redis redis://10.0.0.5:6379/0 --processes 4 -o prices.jsonl
    """
    from streamcrawl.cli.crawl_run import CrawlOptions, crawl  # Redis, asyncio and rich: not for --help

    return crawl(CrawlOptions.from_click(context))


# Whatever can be said of a crawl can be said of a program's.
command.params += crawl_command.params
