"""`streamcrawl queue`: look at what waits to be fetched, remove from it; drop what waits for a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamcrawl.cli.groups import Place, dry_run_option, limit_option, match_option, option, subcommand
from streamcrawl.cli.options import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


@click.group("queue", context_settings=CONTEXT)
def command() -> None:
    """What waits: URLs in the queues of hosts, and items for a stage of a program."""


def _chosen(function: F) -> F:
    for added in (
        option(
            "--level",
            "levels",
            type=click.Choice(["high", "normal", "low"]),
            multiple=True,
            help="Default: all. Repeatable.",
        ),
        match_option("Tasks"),
        option(
            "--host", "hosts", multiple=True, metavar="HOST", help="Of this host: key, host:port, name. Repeatable."
        ),
    ):
        function = added(function)
    return function


@subcommand(command, "ls")
@_chosen
@limit_option(50, "Tasks, or hosts,")
def ls(place: Place, **options: Any) -> int:
    """List what waits in the queues of --host, first to last. Without it: the hosts of the crawl NAME with most queued.

    Those hosts are the largest of a sample, because a crawl may have a million of them. With --json one object a line.
    """
    from streamcrawl.cli.operators import list_queued

    return list_queued(place, **options)


@subcommand(command, "purge")
@_chosen
@option("--all", "is_all", is_flag=True, help="Every task of every host: needed when nothing else chooses.")
@limit_option(None, "Tasks")
@dry_run_option()
def purge(place: Place, **options: Any) -> int:
    """Remove tasks from the queues of the crawl NAME: they count as dropped (purged), stay seen and do not come back.

    It goes once over what is queued. Beside workers a few tasks may be passed over as they move: run it again until it
    finds none. Stopped at any moment, a queue has all that was not removed, perhaps turned. New links of the same kind
    are kept out by `settings set NAME deny=…`. Exit code 3 when it was stopped.
    """
    from streamcrawl.cli.operators import purge_queues

    return purge_queues(place, **options)


@subcommand(command, "drop")
@option("--stage", required=True, metavar="STAGE", help="NAME, or NAME@VERSION where there are several.")
@option("--force", "is_forced", is_flag=True, help="Although workers read it: what they have in hand is dropped too.")
@dry_run_option()
def drop(place: Place, **options: Any) -> int:
    """Drop the items of a stage of the crawl NAME that no program has any more: waiting, in hand and delayed ones.

    They count as dropped (removed), and what the full stage held back goes on. Its dead letters stay (`dead purge
    --stage`). Stopped at any moment, the same command goes on with the rest. Exit code 3 when it was stopped.
    """
    from streamcrawl.cli.operators import drop_stage

    return drop_stage(place, **options)
