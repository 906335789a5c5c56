"""What the commands share: options in groups, durations and sizes, and one line for an error.

Imports nothing heavy: it is loaded for every `--help`.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from streamcrawl.errors import ConfigError, StreamcrawlError
from streamcrawl.settings import ENVIRONMENT_PREFIX, parse_duration_ms, parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Duration(click.ParamType[int]):
    """Seconds or a number with a unit; int milliseconds inside."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_duration_ms(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Size(click.ParamType[int]):
    """A number of bytes with or without a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size_bytes(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class GroupedOption(click.Option):
    """An option under a heading of the help."""

    def __init__(self, *args: Any, group: str = "Options", setting: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        if setting:
            self.help = f"{self.help} [{variable(setting)}]"


class GroupedCommand(click.Command):
    """A command whose help lists options under their headings, in the order of declaration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, GroupedOption) and record is not None:
                groups.setdefault(parameter.group, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)


def variable(setting: str) -> str:
    """Return the environment variable of a setting: STREAMCRAWL_DELAY for `delay_ms`."""
    return ENVIRONMENT_PREFIX + setting.removesuffix("_ms").removesuffix("_bytes").upper()


def guarded(function: F) -> F:
    """Make an error of ours one line on standard error and the command's exit code; with --debug its traceback too."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except StreamcrawlError as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            click.echo(f"streamcrawl: {error}", err=True)
            return error.exit_code

    return run  # type: ignore[return-value]  # the signature is the function's own


def write(text: str) -> None:
    """Write a line to standard output. Whoever read it may have gone (`| head`), which is no error of ours.

    Raises:
        ConfigError: it cannot be written, on a full disk for example. What comes later is dropped without a word.
    """
    try:
        click.echo(text)
    except OSError as error:
        # Python would try the rest again at exit, and fail there with a traceback and a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise ConfigError(f"standard output cannot be written to: {error.strerror}") from error


def redis_option(**kwargs: Any) -> Callable[[F], F]:
    return click.option(
        "--redis",
        "redis_url",
        metavar="URL",
        envvar=ENVIRONMENT_PREFIX + "REDIS",
        cls=GroupedOption,
        **kwargs,
    )


def debug_option(**kwargs: Any) -> Callable[[F], F]:
    return click.option("--debug", is_flag=True, help="Show the traceback of an error.", cls=GroupedOption, **kwargs)
