"""What the commands for operators share: they are about one crawl, wherever it is kept.

Imports nothing heavy: it is loaded for every `--help`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
from streamcrawl.errors import ConfigError
from streamcrawl.settings import compile_pattern

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


class Place(NamedTuple):
    """Which crawl a command is about, and for whom it speaks."""

    name: str
    redis_url: str | None
    is_json: bool


def subcommand(group: click.Group, name: str) -> Callable[[F], click.Command]:
    """Make a function a command of a group; it gets a `Place` first, then its own arguments and options by name."""

    def made(function: F) -> click.Command:
        command: click.Command = group.command(name, cls=GroupedCommand, context_settings=CONTEXT)(
            about_a_crawl(function)
        )
        return command

    return made


def about_a_crawl(function: F) -> F:
    """Give a command the options of all: `--redis`, `--json`, `--config`, `--debug`; see `subcommand`."""

    @guarded
    @functools.wraps(function)
    def run(name: str, redis_url: str | None, is_json: bool, debug: bool, **own: Any) -> Any:
        return function(Place(name, redis_url, is_json), **own)

    # The last one added comes first: NAME, then the function's own, then those of all.
    own = getattr(function, "__click_params__", [])
    common: Any = run
    common.__click_params__ = []
    for option in (
        debug_option(),
        config_option(),
        click.option("--json", "is_json", is_flag=True, cls=GroupedOption, help="JSON on standard output."),
        redis_option(help="Redis that keeps the crawl. Default: ./.streamcrawl. [STREAMCRAWL_REDIS]"),
    ):
        common = option(common)
    common.__click_params__ += own
    return click.argument("name")(common)  # type: ignore[no-any-return]


def option(*names: str, **values: Any) -> Callable[[F], F]:
    """Declare an option of one command."""
    return click.option(*names, cls=GroupedOption, **values)


def limit_option(default: int | None, what: str) -> Callable[[F], F]:
    shown = f"Default: {default}." if default is not None else "Default: all."
    return option("--limit", type=click.IntRange(min=1), default=default, metavar="N", help=f"{what} at most. {shown}")


def dry_run_option() -> Callable[[F], F]:
    return option("--dry-run", "is_dry", is_flag=True, help="Count what would be done, and change nothing.")


class Pattern(click.ParamType["re.Pattern[str]"]):
    """A regular expression."""

    name = "regular expression"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[str]:
        try:
            return compile_pattern("it", value) if isinstance(value, str) else value
        except ConfigError as error:
            self.fail(str(error).removeprefix("it "), param, ctx)


def match_option(what: str) -> Callable[[F], F]:
    return option(
        "--match",
        type=Pattern(),
        metavar="RE",
        help=f"{what} whose whole URL has a match of this regular expression (re.search). One that takes for ever "
        "holds up this command and not the crawl: Ctrl-C stops it, a second one at once.",
    )
