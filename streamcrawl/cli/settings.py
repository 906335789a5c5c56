"""`streamcrawl settings show` and `settings set`: their options and help. What they do is in cli/settings_run.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from streamcrawl.errors import ExitCode

_REDIS: Final = "Redis that keeps the crawl. Default: ./.streamcrawl. [STREAMCRAWL_REDIS]"
_JSON: Final = "One JSON object on standard output."


@click.group("settings", context_settings=CONTEXT)
def command() -> None:
    """Show the settings of a crawl, and change them while it runs."""


@command.command("show", cls=GroupedCommand, short_help="Show every setting, and where its value comes from.")
@click.argument("name")
@redis_option(help=_REDIS)
@click.option("--json", "is_json", is_flag=True, cls=GroupedOption, help=_JSON)
@config_option()
@debug_option()
@guarded
def show(name: str, redis_url: str | None, is_json: bool, debug: bool) -> ExitCode:
    """Show every setting of the crawl NAME, and where its value comes from.

    Settings of a machine (processes, concurrency, grace) are not the crawl's: every command that runs workers has its
    own.
    """
    from streamcrawl.cli.settings_run import show_settings

    return show_settings(name, redis_url, is_json=is_json)


@command.command("set", cls=GroupedCommand, short_help="Change settings for everybody.")
@click.argument("name")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@redis_option(help=_REDIS)
@click.option("--json", "is_json", is_flag=True, cls=GroupedOption, help=_JSON)
@config_option()
@debug_option()
@guarded
def set_(name: str, changes: tuple[str, ...], redis_url: str | None, is_json: bool, debug: bool) -> ExitCode:
    """Change settings of the crawl NAME for everybody, in force everywhere within a second.

    KEY is a name as `settings show` has it, or as the option of `crawl` is called; KEY= alone goes back to the default.
    All changes of one command come into force together, or none does.

    \b
    streamcrawl settings set wide delay=2s max-pages=500000
    streamcrawl settings set wide deny='/calendar/ [?&]sort='
    streamcrawl settings set wide delay=
    """
    from streamcrawl.cli.settings_run import set_settings

    return set_settings(name, redis_url, changes, is_json=is_json)
