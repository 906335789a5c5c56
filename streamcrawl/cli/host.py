"""`streamcrawl host`: look at hosts, say how one is to be treated."""

from __future__ import annotations

from typing import Any

import click

from streamcrawl.cli.groups import Place, limit_option, option, subcommand
from streamcrawl.cli.options import CONTEXT


@click.group("host", context_settings=CONTEXT)
def command() -> None:
    """Hosts of a crawl. HOST is a key (https://example.org), host:port, a name, or a URL of it.

    A name means the host by http and by https, whichever the crawl knows; another port has to be said.
    """


@subcommand(command, "ls")
@limit_option(20, "Hosts of each sort")
def ls(place: Place, limit: int) -> int:
    """List hosts of the crawl NAME that stand out: blocked, failing, demoted, given up, with most queued
    (of a sample)."""
    from streamcrawl.cli.operators import list_of_hosts

    return list_of_hosts(place, limit)


@subcommand(command, "show")
@click.argument("host")
def show(place: Place, host: str) -> int:
    """Show all that the crawl NAME knows of a host, and why it is or is not being fetched."""
    from streamcrawl.cli.operators import show_host

    return show_host(place, host)


@subcommand(command, "set")
@click.argument("host")
@option(
    "--delay",
    metavar="TIME",
    help="Between two fetches, whatever crawl and robots.txt say: 5s. `default` goes back.",
)
@option("--cap", metavar="N", help="Fetches of it at a time. `default` goes back.")
@option(
    "--retry",
    "is_retry",
    is_flag=True,
    help="Forget that it failed, refused, was given up or demoted; for its dead letters: `dead replay`.",
)
def set_(place: Place, **options: Any) -> int:
    """Say how the crawl NAME treats a host, from the next dispatch on.

    Where its politeness is by domain, what is said of a host holds for all of its registered domain.
    """
    from streamcrawl.cli.operators import set_host

    return set_host(place, **options)


@subcommand(command, "block")
@click.argument("host")
def block(place: Place, host: str) -> int:
    """Fetch nothing more of a host. What is queued of it waits, and does not hold the end of the crawl NAME.

    What is under way is finished. A host that the crawl has not met yet may be blocked too.
    """
    from streamcrawl.cli.operators import block_host

    return block_host(place, host, is_blocked=True)


@subcommand(command, "unblock")
@click.argument("host")
def unblock(place: Place, host: str) -> int:
    """Fetch a blocked host again."""
    from streamcrawl.cli.operators import block_host

    return block_host(place, host, is_blocked=False)
