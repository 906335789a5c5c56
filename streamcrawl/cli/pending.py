"""`streamcrawl pending`: look at what workers have in hand, take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamcrawl.cli.groups import Place, limit_option, option, subcommand
from streamcrawl.cli.options import CONTEXT, Duration

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


@click.group("pending", context_settings=CONTEXT)
def command() -> None:
    """Entries that workers have in hand: delivered, and not acknowledged yet."""


def _chosen(function: F) -> F:
    for added in (
        option("--id", "ids", multiple=True, metavar="ID", help="The entry of this id. Repeatable."),
        option("--idle", "idle_ms", type=Duration(), metavar="TIME", help="Not renewed for at least this long: 30s."),
        option("--consumer", metavar="C", help="In the hands of this worker, as `status` names it."),
        option("--stage", metavar="STAGE", help="Of this stage: fetch, or fetch:OUTPUT. Default: all."),
    ):
        function = added(function)
    return function


@subcommand(command, "ls")
@_chosen
@limit_option(100, "Entries")
def ls(place: Place, **options: Any) -> int:
    """List the entries of the crawl NAME that workers have in hand, oldest first.

    Shown are id, stage, time since the lease was renewed, deliveries, the worker and whether it is alive, the URL.
    With --json one object a line.
    """
    from streamcrawl.cli.operators import list_pending

    return list_pending(place, **options)


@subcommand(command, "show")
@click.argument("entry_id", metavar="ID")
def show(place: Place, entry_id: str) -> int:
    """Show one entry of the crawl NAME that a worker has in hand."""
    from streamcrawl.cli.operators import show_pending

    return show_pending(place, entry_id)


@subcommand(command, "replay")
@_chosen
@limit_option(None, "Entries")
@option("--all", "is_all", is_flag=True, help="Every entry: needed when nothing else chooses.")
@option(
    "--force", "is_forced", is_flag=True, help="From workers that are alive too: what they do is lost, and done again."
)
def replay(place: Place, **options: Any) -> int:
    """Take entries of the crawl NAME back from workers: their tasks go to the head of their queues, as they were.

    Meant for what a lost machine had in hand, when its lease is not worth waiting for. Entries of workers that are
    alive stay with them unless --force. Exit code 2 when that leaves nothing to do.
    """
    from streamcrawl.cli.operators import replay_pending

    return replay_pending(place, **options)
