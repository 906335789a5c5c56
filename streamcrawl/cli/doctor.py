"""`streamcrawl doctor`."""

from __future__ import annotations

import click

from streamcrawl.cli.options import (
    CONTEXT,
    GroupedCommand,
    GroupedOption,
    config_option,
    debug_option,
    guarded,
    place_of,
    redis_option,
)


@click.command("doctor", cls=GroupedCommand, context_settings=CONTEXT)
@click.argument("name", required=False)
@click.option(
    "--quick",
    "is_quick",
    is_flag=True,
    cls=GroupedOption,
    help="Compare counts with the sizes of structures, rather than audit NAME whole, which reads every key.",
)
@redis_option(help="Redis that keeps the crawls. Default: ./.streamcrawl. [STREAMCRAWL_REDIS]")
@click.option("--json", "is_json", is_flag=True, cls=GroupedOption, help="One JSON object on standard output.")
@config_option()
@debug_option()
@guarded
def command(name: str | None, is_quick: bool, redis_url: str | None, is_json: bool, debug: bool) -> int:
    """Say what is wrong, and what to do: with the crawl NAME, its Redis and this machine.

    Without NAME: with the Redis, and with all crawls on it, as --quick does it. A fault is something that is lost or
    may be, or that stands still until somebody acts; a warning costs work or becomes one; a note is worth knowing. What
    is merely slow is for `streamcrawl why`. Changes nothing, and needs no right to write.

    \b
    Exit codes, the first that holds: 2 there is no crawl NAME; 6 counts of a crawl do not fit its structures (as
    `audit`); 5 a fault of Redis or of this machine, or no Redis; 3 a fault by which a crawl stands still (no workers, a
    limit); 4 dead letters for a fault on our side (a handler, a crash); 0 no fault. Other dead letters and given-up
    hosts are warnings.
    """
    from streamcrawl.cli.diagnosis import run_doctor

    return run_doctor(
        name, redis_url, is_quick=is_quick, is_json=is_json, options=place_of(click.get_current_context())
    )
