"""What the commands share: options in groups, durations and sizes, and one line for an error.

Imports nothing heavy: it is loaded for every `--help`.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from streamcrawl.errors import ConfigError, StreamcrawlError
from streamcrawl.settings import (
    CLASSES,
    ENVIRONMENT_PREFIX,
    ConfigFile,
    Given,
    gather,
    parse_duration_ms,
    parse_size_bytes,
    read_config,
    read_value,
    typed_as,
    variable_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
HEADER_HELP: Final = (
    "Send this header to a host: example.org, *.example.org, https://example.org:8443 or * for all; may be repeated. "
    "It is not kept: give it to each command that runs workers. Secrets are best given by the variable, one a line, or "
    "in the --config file."
)
AUTH_HELP: Final = (
    "Send a user name and password (HTTP Basic) to a host, over https only unless HOST begins with http://. Not kept "
    "either; see --header."
)
PROXY_HELP: Final = (
    "Fetch through this proxy: http://, socks5:// (names are resolved here) or socks5h:// (by the proxy), with "
    "USER:PASSWORD@ where one is needed. May be repeated: each host keeps one of them, and goes to another while "
    "its own fails. Not kept either; see --header."
)
PROCESSES_HELP: Final = (
    "Worker processes on this machine, of the fetch and of each stage of a program. auto: as many in all as there are "
    "cores for it. Default: 1."
)
CONCURRENCY_HELP: Final = (
    "Fetches at a time in each process: just N, or from MIN to MAX, as many as the process, its memory, the network "
    "and what follows can bear. Default: auto, which is 16-256."
)
_CONFIG: Final = "streamcrawl.config"
"""Where a context keeps its settings file."""


class Duration(click.ParamType[int]):
    """Seconds or a number with a unit; int milliseconds inside."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_duration_ms(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class MaybeDuration(click.ParamType[int | None]):
    """The same, or `none`, which wins over one that the environment or a file gives."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        try:
            # Read as any setting that is a duration or not set.
            return value if isinstance(value, int) else cast("int | None", read_value("revisit_ms", value))
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


class Limit(click.ParamType[int | None]):
    """A whole number, or `none` for no limit, which wins over one that the environment or a file gives."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        try:
            # Read as any setting that is a number or not set.
            return value if isinstance(value, int) else cast("int | None", read_value("pages_max", value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class SettingValue(click.ParamType[Any]):
    """The value of a setting, as its file takes it."""

    def __init__(self, field: str, name: str) -> None:
        self.name = name
        self._field = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return read_value(self._field, value) if isinstance(value, str) else value
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Names(click.ParamType[tuple[str, ...]]):
    """Names of query parameters between commas; `none` for an empty list, which wins over the environment or a file."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else cast("tuple[str, ...]", read_value("drop_params", value))


class Networks(click.ParamType[tuple[str, ...]]):
    """Networks between commas; `none` for an empty list, which wins over the environment or a file."""

    name = "networks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else cast("tuple[str, ...]", read_value("ip_exempt", value))


class OnePath(click.ParamType[str]):
    """A path; one from the environment is whole, whatever spaces are in it, where the option may be repeated."""

    name = "path"

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


class GroupedOption(click.Option):
    """An option under a heading of the help."""

    def __init__(self, *args: Any, group: str = "Options", setting: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        if setting:
            self.help = f"{self.help} [{variable_of(setting)}]"


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


def guarded(function: F) -> F:
    """Make an error of ours one line on standard error and the command's exit code; with --debug its traceback too."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except StreamcrawlError as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            context = click.get_current_context(silent=True)
            if context is not None and context.params.get("log_format") == "json":
                from streamcrawl.work import logs

                click.echo(logs.as_json(logs.Said.error(str(error))), err=True)
            else:
                click.echo(f"streamcrawl: {error}", err=True)
            return error.exit_code

    return run  # type: ignore[return-value]  # the signature is the function's own


def write(text: str) -> bool:
    """Write a line to standard output. Whoever read it may have gone (`| head`), which is no error of ours.

    Returns:
        Whether somebody still reads.

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
        return False
    return True


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


def metrics_options(**kwargs: Any) -> Callable[[F], F]:
    """Give a command that runs workers the options of its metrics and traces."""

    def decorate(function: F) -> F:
        host = click.option(
            "--metrics-host",
            "metrics_host",
            metavar="ADDRESS",
            cls=GroupedOption,
            setting="metrics_host",
            help="Where --metrics-port listens. Default: 127.0.0.1; 0.0.0.0 is every network of the machine.",
            **kwargs,
        )
        port = click.option(
            "--metrics-port",
            "metrics_port",
            type=int,
            metavar="PORT",
            cls=GroupedOption,
            setting="metrics_port",
            help="Show metrics for Prometheus at /metrics, and /healthz, /readyz, for all processes of this command; "
            "0 for a free port. Default: none.",
            **kwargs,
        )
        traces = click.option(
            "--traces",
            "traces",
            type=Limit(),
            metavar="N",
            cls=GroupedOption,
            setting="traces",
            help="Follow one page of N, and the items that come of it, by OpenTelemetry: traces go to "
            "OTEL_EXPORTER_OTLP_ENDPOINT by OTLP over HTTP (needs streamcrawl[otel]). Give it to all workers. Default: "
            "none.",
            **kwargs,
        )
        return port(host(traces(function)))

    return decorate


def log_options(**kwargs: Any) -> Callable[[F], F]:
    """Give a command that runs for long the options of its log."""

    def decorate(function: F) -> F:
        level = click.option(
            "--log-level",
            type=click.Choice(["info", "warning", "error"]),
            default="info",
            envvar=ENVIRONMENT_PREFIX + "LOG_LEVEL",
            cls=GroupedOption,
            help="What matters less is not said: info, warning (mended by itself) or error (somebody has to act). "
            f"Default: info. [{ENVIRONMENT_PREFIX}LOG_LEVEL]",
            **kwargs,
        )
        format_ = click.option(
            "--log-format",
            type=click.Choice(["console", "json"]),
            default="console",
            envvar=ENVIRONMENT_PREFIX + "LOG_FORMAT",
            cls=GroupedOption,
            help="Messages on standard error as sentences (console) or as JSON lines with crawl, stage, worker, entry "
            f"and task where they have one (json). Default: console. [{ENVIRONMENT_PREFIX}LOG_FORMAT]",
            **kwargs,
        )
        return format_(level(function))

    return decorate


def config_option(**kwargs: Any) -> Callable[[F], F]:
    """Give a command `--config FILE`: what the file says holds where neither an option nor the environment says more.

    Settings come by `given_settings`. Any other option with a variable of ours (`--redis`, `--name`, `--output`, …)
    gets its default from the file. Arguments do not: what a command deletes or pauses is typed.
    """
    return click.option(
        "--config",
        metavar="FILE",
        envvar=ENVIRONMENT_PREFIX + "CONFIG",
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        cls=GroupedOption,
        help='TOML file with lines such as delay = "0.5s" or redis = "redis://…": names as in the environment, but '
        f"without {ENVIRONMENT_PREFIX}, in lower case. Those variables and options win. [{ENVIRONMENT_PREFIX}CONFIG]",
        **kwargs,
    )


def _read_config(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    if not path or ctx.resilient_parsing:
        return
    try:
        config = read_config(Path(path))
    except ConfigError as error:
        # The command and its `guarded` have not begun.
        raise click.UsageError(str(error), ctx) from error
    ctx.meta[_CONFIG] = config
    defaults: dict[str, Any] = dict(ctx.default_map or {})
    for option in ctx.command.params:
        variable = option.envvar if isinstance(option.envvar, str) else ""
        value = config.options.get(variable.removeprefix(ENVIRONMENT_PREFIX).lower())
        if value is not None and isinstance(option, click.Option):
            defaults[option.name] = (value,) if option.multiple else value
    ctx.default_map = defaults


def config_of(ctx: click.Context) -> ConfigFile | None:
    """Return the settings file of a command that has `config_option`; None when there is none."""
    return ctx.meta.get(_CONFIG)


def given_settings(ctx: click.Context) -> dict[str, Given]:
    """Return every setting that was given for a command, by field, with where: options > environment > `--config`.

    An option is one of a setting when its parameter is named like the field (`delay_ms`).

    Raises:
        ConfigError: what the environment says is no value.
    """
    typed = {
        name: Given(value, typed_as(name, value))
        for name, value in ctx.params.items()
        if name in CLASSES and is_typed(ctx, name)
    }
    return gather(typed, config=config_of(ctx))


def is_typed(ctx: click.Context, name: str) -> bool:
    """Return whether a parameter was given on the command line, rather than by environment, file or default."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def place_of(ctx: click.Context) -> tuple[str, ...]:
    """Return the options that say where a crawl is kept, as they must be typed again; passwords are left out."""
    from streamcrawl.store.connection import redacted  # redis-py: not for --help

    config = config_of(ctx)
    place: list[str] = []
    if config is not None and is_typed(ctx, "config"):
        place += ["--config", config.path]
    if is_typed(ctx, "redis_url"):
        place += ["--redis", redacted(ctx.params["redis_url"])]
    return tuple(place)
