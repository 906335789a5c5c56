"""`streamcrawl audit`."""

from __future__ import annotations

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


@click.command("audit", cls=GroupedCommand, context_settings=CONTEXT)
@click.argument("name")
@redis_option(help="Redis that keeps the crawl. Default: ./.streamcrawl. [STREAMCRAWL_REDIS]")
@click.option("--json", "is_json", is_flag=True, cls=GroupedOption, help="One JSON object on standard output.")
@config_option()
@debug_option()
@guarded
def command(name: str, redis_url: str | None, is_json: bool, debug: bool) -> int:
    """Recount the crawl NAME from its structures and name every figure that does not fit, one a line.

    Nothing may be lost: all that was found is queued, under way, delayed, dead, done or dropped for a reason. May be
    run at any time, beside a running crawl too; changes nothing. It reads every host and every key, which takes a
    second for some ten thousand. The memory of seen URLs is not recounted. Exit code 6 when something does not fit.
    """
    from streamcrawl.cli.look import run_audit

    return run_audit(name, redis_url, is_json=is_json)
