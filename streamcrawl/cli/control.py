"""`streamcrawl pause`, `resume`, `drain`, `close` and `delete`: options and help. What they do is in cli/fleet.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from streamcrawl.cli.options import (
    CONTEXT,
    Duration,
    GroupedCommand,
    GroupedOption,
    config_option,
    debug_option,
    guarded,
    place_of,
    redis_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.errors import ExitCode

DRAIN_MAX_MS: Final = 1_800_000
"""What is in hand when a crawl is paused ends within handler_timeout (10 min by default), and what waits in the stream
behind it, at most once the slots, within as long again; the rest is for the outputs."""


def _command(name: str) -> Callable[[Callable[..., ExitCode]], click.Command]:
    """Make a function the command `name`, with the options that all of these have."""

    def decorate(function: Callable[..., ExitCode]) -> click.Command:
        for decorator in (
            guarded,
            debug_option(),
            config_option(),
            click.option(
                "--json", "is_json", is_flag=True, cls=GroupedOption, help="One JSON object on standard output."
            ),
            redis_option(help="Redis that keeps the crawl. Default: ./.streamcrawl. [STREAMCRAWL_REDIS]"),
            click.argument("name"),
            click.command(name, cls=GroupedCommand, context_settings=CONTEXT),
        ):
            function = decorator(function)
        return function  # type: ignore[return-value]  # the last decorator has made a command of it

    return decorate


@_command("pause")
def pause(name: str, redis_url: str | None, is_json: bool, debug: bool) -> ExitCode:
    """Hand out nothing new of the crawl NAME, on all machines, until `streamcrawl resume`.

    What has been handed out is still fetched: at most twice as many pages as there are slots. It is the crawl that is
    paused and not its workers: they stay, and whoever joins or resumes a run finds it paused.
    """
    from streamcrawl.cli import fleet

    return fleet.pause(name, redis_url, is_json=is_json, place=place_of(click.get_current_context()))


@_command("resume")
def resume(name: str, redis_url: str | None, is_json: bool, debug: bool) -> ExitCode:
    """Go on with the crawl NAME after `pause` or `drain`, or after it stopped at a bound that has been raised since.

    Starts no worker: without any alive it says how.
    """
    from streamcrawl.cli import fleet

    return fleet.resume(name, redis_url, is_json=is_json, place=place_of(click.get_current_context()))


@_command("drain")
@click.option(
    "--timeout",
    "timeout_ms",
    type=Duration(),
    default=DRAIN_MAX_MS,
    cls=GroupedOption,
    help="Give up waiting after so long (exit code 3); the crawl stays paused. Default: 30m.",
)
def drain(name: str, redis_url: str | None, timeout_ms: int, is_json: bool, debug: bool) -> ExitCode:
    """Pause the crawl NAME and wait until nothing of it is in any hand: no page under way, no record unwritten.

    Then every worker may be stopped without anything being handed back, Redis be backed up or moved, and
    `streamcrawl resume` goes on.
    """
    from streamcrawl.cli import fleet

    place = place_of(click.get_current_context())
    return fleet.drain(name, redis_url, timeout_ms=timeout_ms, is_json=is_json, place=place)


@_command("close")
def close(name: str, redis_url: str | None, is_json: bool, debug: bool) -> ExitCode:
    """Let the crawl NAME end once all that it knows is done: no more seeds are waited for.

    Takes `seed --keep-open` back, and no longer waits for commands that died before they had offered all their seeds.
    Those that live are waited for, and named.
    """
    from streamcrawl.cli import fleet

    return fleet.close(name, redis_url, is_json=is_json)


@_command("delete")
@click.option("--yes", "-y", "is_sure", is_flag=True, cls=GroupedOption, help="Do not ask.")
def delete(name: str, redis_url: str | None, is_sure: bool, is_json: bool, debug: bool) -> ExitCode:
    """Delete the crawl NAME: its queue, what it has seen, its dead letters. Its output files stay.

    Workers of it that are alive end by themselves. A deletion that broke off is ended by the same command.
    """
    from streamcrawl.cli import fleet

    return fleet.delete(name, redis_url, is_sure=is_sure, is_json=is_json)
