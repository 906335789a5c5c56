"""`streamcrawl dead`: look at dead letters, send them again, remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamcrawl.cli.groups import Place, dry_run_option, limit_option, match_option, option, subcommand
from streamcrawl.cli.options import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


@click.group("dead", context_settings=CONTEXT)
def command() -> None:
    """Dead letters: tasks that failed for good and are parked for a person, with why.

    Options that choose letters may be combined, and all of them must hold. Of one that is repeated any will do.
    """


def _chosen(function: F) -> F:
    """Give a command the options that choose letters."""
    for added in (
        option("--id", "ids", multiple=True, metavar="ID", help="Of this id, as `dead ls` shows it. Repeatable."),
        match_option("Letters"),
        option("--until", metavar="TIME", help="That died before: how long ago (1h), or a time in ISO 8601 (UTC)."),
        option("--since", metavar="TIME", help="That died since: how long ago (1h), or a time in ISO 8601 (UTC)."),
        option("--stage", metavar="STAGE", help="Of this stage: fetch."),
        option(
            "--host",
            "hosts",
            multiple=True,
            metavar="HOST",
            help="Of this host: its key (https://example.org), host:port, or a name, with all under it. Repeatable.",
        ),
        option(
            "--where",
            multiple=True,
            metavar="KEY=VALUE",
            help="With this reason, status, worker or kind (page, robots, sitemap): reason=timeout. Repeatable.",
        ),
    ):
        function = added(function)
    return function


@subcommand(command, "ls")
@_chosen
@option(
    "--by",
    type=click.Choice(["reason", "status", "worker", "kind", "host"]),
    help="Count them by this instead: exact by reason over all letters, else over the newest 10,000 (or --limit).",
)
@option("--limit", type=click.IntRange(min=1), metavar="N", help="Letters at most. Default: 50; see --by.")
def ls(place: Place, **options: Any) -> int:
    """List dead letters of the crawl NAME, the newest first: id, when, reason, attempts, last status, URL.

    With --json one object a line.
    """
    from streamcrawl.cli.operators import list_letters

    return list_letters(place, **options)


@subcommand(command, "show")
@click.argument("letter_id", metavar="ID")
def show(place: Place, letter_id: str) -> int:
    """Show one dead letter of the crawl NAME whole: its task, its error to the end."""
    from streamcrawl.cli.operators import show_letter

    return show_letter(place, letter_id)


@subcommand(command, "replay")
@_chosen
@option("--all", "is_all", is_flag=True, help="Every letter: needed when nothing else chooses.")
@option(
    "--attempts",
    type=click.Choice(["reset", "keep"]),
    default="reset",
    show_default=True,
    help="Begin to count a task's tries anew, or keep them: then one more failure ends it again.",
)
@limit_option(None, "Letters")
@dry_run_option()
def replay(place: Place, **options: Any) -> int:
    """Send dead letters of the crawl NAME again, oldest first: into the queues of their hosts, by the usual politeness.

    A host that was given up gets another chance. Each letter is sent in one step: stopped at any moment, the same
    command goes on with the rest. Letters that come to be while it runs are left alone. A host over
    --max-pages-per-host drops what comes back to it. Exit code 3 when it was stopped.
    """
    from streamcrawl.cli.operators import replay_letters

    return replay_letters(place, **options)


@subcommand(command, "purge")
@_chosen
@option("--all", "is_all", is_flag=True, help="Every letter: needed when nothing else chooses.")
@limit_option(None, "Letters")
@dry_run_option()
def purge(place: Place, **options: Any) -> int:
    """Remove dead letters of the crawl NAME for good. Their pages count as dropped (purged) and stay seen."""
    from streamcrawl.cli.operators import purge_letters

    return purge_letters(place, **options)
