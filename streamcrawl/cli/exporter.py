"""`streamcrawl exporter`: its options and their help. What it does is in cli/exporter_run.py."""

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
    log_options,
    redis_option,
)
from streamcrawl.settings import ENVIRONMENT_PREFIX

if TYPE_CHECKING:
    from streamcrawl.errors import ExitCode

PORT: Final = 9465


@click.command("exporter", cls=GroupedCommand, context_settings=CONTEXT)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@redis_option(help="Redis that keeps the crawls. Default: ./.streamcrawl. [STREAMCRAWL_REDIS]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    default=PORT,
    envvar=ENVIRONMENT_PREFIX + "EXPORTER_PORT",
    cls=GroupedOption,
    help=f"Where it listens; 0 for a free port. Default: {PORT}. [{ENVIRONMENT_PREFIX}EXPORTER_PORT]",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    envvar=ENVIRONMENT_PREFIX + "EXPORTER_HOST",
    cls=GroupedOption,
    help="On this address. Default: 127.0.0.1; 0.0.0.0 is every network of the machine. "
    f"[{ENVIRONMENT_PREFIX}EXPORTER_HOST]",
)
@log_options()
@config_option()
@debug_option(envvar=ENVIRONMENT_PREFIX + "DEBUG")
@guarded
def command(
    names: tuple[str, ...],
    redis_url: str | None,
    port: int,
    host: str,
    log_format: str,
    log_level: str,
    debug: bool,
) -> ExitCode:
    """Show crawls to Prometheus: all of a Redis, or those that are named. Runs until Ctrl-C or SIGTERM.

    \b
    /metrics                 streams, queues, hosts, dead letters, workers, balance, memory of Redis
    /scale/CRAWL/STAGE       backlog of a stage as JSON, for KEDA and other autoscalers
    /healthz, /readyz        whether it lives, and whether Redis answers

    It only reads, a few bounded answers for each crawl whatever its size, and may run twice. Crawls come and go
    meanwhile, and so may Redis. Without --redis it shows the one crawl of this folder that is named.

    \b
    streamcrawl exporter --redis redis://10.0.0.5:6379/0 --host 0.0.0.0
    streamcrawl exporter example.org
    """
    from streamcrawl.cli.exporter_run import export

    return export(names, redis_url, host, port, is_json=log_format == "json", log_level=log_level)
