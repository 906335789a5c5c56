"""`streamcrawl seed`: its options and their help. What it does is in cli/seed_run.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamcrawl.cli.crawl import command as crawl_command
from streamcrawl.cli.options import (
    CONTEXT,
    GroupedCommand,
    GroupedOption,
    config_option,
    debug_option,
    given_settings,
    guarded,
    log_options,
    place_of,
    redis_option,
)
from streamcrawl.settings import CLASSES, ENVIRONMENT_PREFIX, SettingClass

if TYPE_CHECKING:
    from streamcrawl.errors import ExitCode


@click.command("seed", cls=GroupedCommand, context_settings=CONTEXT)
@click.argument("name")
@click.argument("file", metavar="FILE|-")
@redis_option(help="Redis that keeps the crawl. Default: ./.streamcrawl. [STREAMCRAWL_REDIS]")
@click.option(
    "--create",
    "creates",
    is_flag=True,
    cls=GroupedOption,
    help="Begin the crawl when there is none of this name, with the settings of options, environment and file; "
    "without it a name that was mistyped is an error.",
)
@click.option(
    "--keep-open",
    "keeps_open",
    is_flag=True,
    cls=GroupedOption,
    help="The crawl may not end before `streamcrawl close NAME`, however many such commands feed it till then.",
)
@click.option(
    "--json",
    "is_json",
    is_flag=True,
    cls=GroupedOption,
    envvar=ENVIRONMENT_PREFIX + "JSON",
    help="Progress and summary as JSON lines on standard output.",
)
@click.option(
    "--quiet",
    "-q",
    "is_quiet",
    is_flag=True,
    cls=GroupedOption,
    envvar=ENVIRONMENT_PREFIX + "QUIET",
    help="No progress and no summary; warnings and errors only.",
)
@log_options()
@config_option()
@debug_option(envvar=ENVIRONMENT_PREFIX + "DEBUG")
@guarded
@click.pass_context
def command(context: click.Context, /, **_: object) -> ExitCode:
    """Feed the URLs of FILE, one a line, or of standard input (-) into the crawl NAME: millions, in constant memory.

    Blank lines and those that begin with # are left out; a line that is no URL is named and passed over. It waits
    while the crawl has too many already. Several may feed one crawl; it ends once the last of them is done.

    Ctrl-C stops in order. After that, or a crash, the same command goes on behind the lines that were accepted; when
    FILE is no longer the same it begins again, and what is known costs nothing. Standard input cannot go back.

    The options from "What to crawl" on are for --create: a crawl that is there keeps its own settings.

    \b
    streamcrawl seed wide urls.txt --redis redis://10.0.0.5:6379/0 --create --shards 4 --scope any -o wide.jsonl
    zcat more.gz | streamcrawl seed wide - --redis redis://10.0.0.5:6379/0
    """
    from streamcrawl.cli.seed_run import SeedOptions, seed  # Redis and asyncio: not for --help

    options = context.params
    return seed(
        SeedOptions(
            path=options["file"],
            **{name: options[name] for name in ("name", "redis_url", "outputs", "creates", "keeps_open")},
            **{name: options[name] for name in ("is_json", "is_quiet", "log_format", "log_level")},
            settings=given_settings(context),
            place=place_of(context),
        )
    )


def _options_of_a_crawl() -> list[click.Parameter]:
    """Return the options of `crawl` that say what a crawl is; those of a machine that works at it are left out."""
    return [
        option
        for option in crawl_command.params
        if option.name == "outputs" or (option.name in CLASSES and CLASSES[option.name][0] is not SettingClass.LOCAL)
    ]


command.params += _options_of_a_crawl()
