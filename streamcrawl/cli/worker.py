"""`streamcrawl worker`: its options and their help. What it does is in cli/worker_run.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamcrawl.cli.options import (
    AUTH_HELP,
    CONCURRENCY_HELP,
    CONTEXT,
    HEADER_HELP,
    PROCESSES_HELP,
    PROXY_HELP,
    Duration,
    GroupedCommand,
    GroupedOption,
    SettingValue,
    config_option,
    debug_option,
    given_settings,
    guarded,
    log_options,
    metrics_options,
    place_of,
    redis_option,
)
from streamcrawl.settings import ENVIRONMENT_PREFIX

if TYPE_CHECKING:
    from streamcrawl.errors import ExitCode
    from streamcrawl.settings import SlotLimits


@click.command("worker", cls=GroupedCommand, context_settings=CONTEXT)
@click.argument("name", metavar="NAME|MODULE:ATTRIBUTE")
@click.option(
    "--stage",
    "stages",
    metavar="S",
    multiple=True,
    cls=GroupedOption,
    help="Of a program: work for this stage only; may be repeated. `page` is the fetch. Default: all.",
)
@click.option(
    "--name",
    "crawl_name",
    metavar="NAME",
    cls=GroupedOption,
    help="Of a program: the crawl, where `run` gave it another name than the program has.",
)
@redis_option(help="Redis that keeps the crawl, the same for all of its workers. [STREAMCRAWL_REDIS]")
@click.option(
    "--processes",
    type=SettingValue("processes", "processes"),
    metavar="N|auto",
    cls=GroupedOption,
    setting="processes",
    help=PROCESSES_HELP,
)
@click.option(
    "--concurrency",
    type=SettingValue("concurrency", "slots"),
    metavar="N|MIN-MAX|auto",
    cls=GroupedOption,
    setting="concurrency",
    help=CONCURRENCY_HELP,
)
@click.option(
    "--header",
    "headers",
    metavar="HOST: NAME: VALUE",
    multiple=True,
    cls=GroupedOption,
    setting="headers",
    help=HEADER_HELP,
)
@click.option(
    "--auth",
    "auth",
    metavar="HOST: USER:PASSWORD",
    multiple=True,
    cls=GroupedOption,
    setting="auth",
    help=AUTH_HELP,
)
@click.option(
    "--proxy",
    "proxies",
    metavar="URL",
    multiple=True,
    cls=GroupedOption,
    setting="proxies",
    help=PROXY_HELP,
)
@click.option(
    "--nameserver",
    "nameservers",
    metavar="ADDRESS[:PORT]",
    multiple=True,
    cls=GroupedOption,
    setting="nameservers",
    help="Ask this DNS server, and not those of the operating system; may be repeated.",
)
@click.option(
    "--grace",
    "grace_ms",
    type=Duration(),
    cls=GroupedOption,
    setting="grace_ms",
    help="How long a stop waits for what is under way; what is not done by then is handed back. Default: 30s.",
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
@metrics_options()
@log_options()
@config_option()
@debug_option(envvar=ENVIRONMENT_PREFIX + "DEBUG")
@guarded
def command(
    name: str,
    stages: tuple[str, ...],
    crawl_name: str | None,
    redis_url: str | None,
    processes: int | None,
    concurrency: SlotLimits | None,
    headers: tuple[str, ...],
    auth: tuple[str, ...],
    proxies: tuple[str, ...],
    nameservers: tuple[str, ...],
    grace_ms: int | None,
    is_json: bool,
    is_quiet: bool,
    metrics_port: int | None,
    metrics_host: str | None,
    traces: int | None,
    log_format: str,
    log_level: str,
    debug: bool,
) -> ExitCode:
    """Work at the crawl NAME on a shared Redis, or at that of a program, with everybody else who does, until it ends.

    May be started on any machine, as often as wanted, at any moment: one that comes before its crawl waits for it, and
    Ctrl-C or SIGTERM stops it in order, with nothing lost, repeated or left behind. While the crawl is paused, or
    waits for seeds, it stays.

    The settings of the crawl are those it was created with, or that `settings set` changed; an output is written by
    one process at a time, on the machine that has its file, and another one there goes on when that one ends.

    \b
    streamcrawl worker wide --redis redis://10.0.0.5:6379/0 --processes 4
    streamcrawl worker shop:crawl --stage priced --redis redis://10.0.0.5:6379/0
    """
    from streamcrawl.cli.worker_run import work

    context = click.get_current_context()
    return work(
        name,
        redis_url,
        given=given_settings(context),
        place=place_of(context),
        stages=stages,
        crawl_name=crawl_name,
        is_json=is_json,
        is_quiet=is_quiet,
        log_format=log_format,
        log_level=log_level,
    )
