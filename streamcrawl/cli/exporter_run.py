"""What `streamcrawl exporter` does: serves what ops/exporter.py finds until a signal comes. Start at `export`."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import click

from streamcrawl.cli.store import FOLDER, embedded_folder, embedded_names
from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.ops.exporter import Exporter
from streamcrawl.ops.serving import Serving
from streamcrawl.settings import check_name
from streamcrawl.store.connection import connect
from streamcrawl.store.embedded import EmbeddedRedis
from streamcrawl.work.logs import Level, Logger

if TYPE_CHECKING:
    from collections.abc import Sequence


def export(
    names: Sequence[str], redis_url: str | None, host: str, port: int, *, is_json: bool, log_level: str
) -> ExitCode:
    """Run the command; return its exit code.

    Raises:
        ConfigError: no crawl can have such a name, there is no such crawl here, or nothing can listen on the port.
    """
    for name in names:
        check_name(name)
    logger = Logger(lambda line: click.echo(line, err=True), is_json=is_json, least=Level(log_level))
    url = redis_url if redis_url is not None else _embedded_url(names)
    return asyncio.run(_serve(url, names, host, port, logger))


def _embedded_url(names: Sequence[str]) -> str:
    """Return where the private server of the one crawl listens, whether it runs now or not."""
    there = embedded_names()
    if not names and len(there) == 1:
        names = there
    if len(names) != 1 or names[0] not in there:
        raise ConfigError(
            f"say which crawl to show: each one in {FOLDER} has a server of its own (there: "
            f"{', '.join(there) or 'none'}); give --redis URL for one elsewhere"
        )
    return EmbeddedRedis(embedded_folder(names[0]), memory_max_bytes=0).url


async def _serve(url: str, names: Sequence[str], host: str, port: int, logger: Logger) -> ExitCode:
    stop = asyncio.Event()
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_, stop.set)
    client = connect(url)
    try:
        async with Serving(host, port, Exporter(client, names).pages(), option="--port") as serving:
            logger(f"metrics at {serving.url}/metrics")
            await stop.wait()
    finally:
        await client.aclose()
    return ExitCode.DONE
