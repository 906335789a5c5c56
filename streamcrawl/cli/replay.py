"""`streamcrawl replay`: send entries of retained logs into a stage. What it does is in cli/operators.py."""

from __future__ import annotations

from typing import Any

import click

from streamcrawl.cli.groups import Place, about_a_crawl, dry_run_option, option
from streamcrawl.cli.options import CONTEXT, GroupedCommand


@click.command("replay", cls=GroupedCommand, context_settings=CONTEXT)
@about_a_crawl
@option(
    "--stage", metavar="STAGE", help="Into this stage, sink or output: NAME, or NAME@VERSION where there are several."
)
@option(
    "--log", default="", metavar="LOG", help="Of this log only, as `status` names it. Default: all that hold its items."
)
@option(
    "--from",
    "first",
    metavar="TIME",
    help="What was written since: `start`, how long ago (2h), or a time in ISO 8601 (UTC where it names no zone).",
)
@option("--to", "last", metavar="TIME", help="What was written until then. Default: now.")
@option(
    "--missing",
    "is_missing",
    is_flag=True,
    help="What was never sent to the stage, because it was declared later: all of it, so neither --where nor --from go "
    "with it. May be repeated at any time: nothing is sent twice.",
)
@option(
    "--where",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only items of this type (type=Book), given by this version of a stage (version=2), or of pages whose URL "
    "begins so (url=https://example.org/a/). All that are given must hold.",
)
@dry_run_option()
@option("--no-wait", "is_detached", is_flag=True, help="Leave it to the workers at once.")
@option("--cancel", metavar="ID", help="End a replay that is under way; what it has sent stays sent.")
def command(place: Place, **options: Any) -> int:
    """Send what a retained log of the crawl NAME holds into a stage, as new items.

    Logs are kept by `retain=` of a stage or page handler (what it gives) and by --keep-bodies (the pages that a stage
    parses: run a better parser over them without a fetch).

    The workers of the crawl do it, with the stage's mark in view, so neither this command nor any of them has to
    survive; it waits until they are through. The crawl does not end before; one that has ended goes on with it when it
    is started again. What was sent before is sent again: an output file gets it twice, a database by its id once. Exit
    code 3 when this command was stopped and the workers go on.

    \b
    streamcrawl replay shop --stage parse --from 2h --dry-run
    streamcrawl replay shop --stage audit_trail --missing
    """
    from streamcrawl.cli.operators import replay_log

    return replay_log(place, **options)
