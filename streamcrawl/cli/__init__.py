"""The streamcrawl command: one file per group of commands.

Start at `main`. A command's module is imported when it is run or asked for help, and holds its options only; what it
does lies in a module that it imports in turn, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any, Final

import click

from streamcrawl.cli.hiding import hide_passwords
from streamcrawl.errors import ExitCode

GC_THRESHOLD: Final = 50_000
"""Objects between two looks of the collector. At its default pace it goes through all that is being imported again and
again, which is a tenth of what a start costs (2026-12-01); a command leaves little behind that has to be found so."""
_COMMANDS: Final = {
    "crawl": ("streamcrawl.cli.crawl", "Crawl sites: start, resume or join a crawl."),
    "run": ("streamcrawl.cli.run", "Run a program of yours: fetch, stages and sinks."),
    "status": ("streamcrawl.cli.status", "Show what a crawl is doing, or list the crawls that are here."),
    "why": ("streamcrawl.cli.why", "Say what limits a crawl now, which hosts decide its end, and when that may be."),
    "doctor": (
        "streamcrawl.cli.doctor",
        "Say what is wrong with crawls, their Redis and this machine, and what to do.",
    ),
    "exporter": ("streamcrawl.cli.exporter", "Show crawls to Prometheus and to autoscalers."),
    "audit": ("streamcrawl.cli.audit", "Recount a crawl and name every figure that does not fit."),
    "seed": ("streamcrawl.cli.seed", "Feed URLs from a file or standard input into a crawl."),
    "worker": ("streamcrawl.cli.worker", "Work at a crawl on a shared Redis, beside all others who do."),
    "pause": ("streamcrawl.cli.control:pause", "Hand out nothing new of a crawl, on all machines."),
    "resume": ("streamcrawl.cli.control:resume", "Go on with a crawl that was paused or stopped."),
    "drain": ("streamcrawl.cli.control:drain", "Pause a crawl and wait until nothing of it is under way."),
    "close": ("streamcrawl.cli.control:close", "Let a crawl end once all that it knows is done."),
    "delete": ("streamcrawl.cli.control:delete", "Delete a crawl; its output files stay."),
    "settings": ("streamcrawl.cli.settings", "Show the settings of a crawl, or change them while it runs."),
    "explain": ("streamcrawl.cli.explain", "Say what a crawl knows of a URL, and why it is or is not fetched."),
    "dead": ("streamcrawl.cli.dead", "Dead letters: list, show, send again, remove."),
    "replay": ("streamcrawl.cli.replay", "Send what a log has kept through a stage again, or to a new one."),
    "pending": ("streamcrawl.cli.pending", "What workers have in hand: list, show, take back."),
    "queue": ("streamcrawl.cli.queue", "What waits to be fetched, or for a stage: list, remove."),
    "host": ("streamcrawl.cli.host", "Hosts: list, show, set delay and cap, block, unblock."),
}
"""Command -> where it is (`module`, whose `command` it is, or `module:attribute`), and its line in the help."""


class _LazyGroup(click.Group):
    """Knows its commands by name and imports only the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        from importlib.metadata import version  # 20 ms that only this needs

        click.echo(f"streamcrawl {version('streamcrawl')}")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """A crawler that loses nothing, repeats nothing and hammers nobody.

    \b
    streamcrawl crawl https://example.org/                     crawl a site into example.org.jsonl
    streamcrawl crawl --resume                                 go on with it after Ctrl-C or a crash
    streamcrawl worker wide --redis redis://10.0.0.5/0         work at a crawl with other machines
    streamcrawl status                                         which crawls are here
    streamcrawl why example.org                                what limits one, and when it may end
    streamcrawl doctor example.org                             what is wrong with one, and what to do
    streamcrawl audit example.org                              recount one

    \b
    Exit codes: 0 done; 2 wrong use or settings; 3 stopped before the end by a limit or a signal (resumable);
    4 done, but with dead letters or hosts that were given up; 5 store unavailable; 6 audit failed.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code. Errors are one line on standard error."""
    code: Any
    gc.set_threshold(GC_THRESHOLD)
    if arguments is None:
        hide_passwords()
    try:
        code = cli.main(arguments, prog_name="streamcrawl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = ExitCode.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        click.echo(f"streamcrawl: {error.format_message().rstrip('.')}{hint}", err=True)
        code = ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("streamcrawl: interrupted", err=True)
        code = ExitCode.STOPPED
    except SystemExit:
        # Click's own, and only for this: whoever read its help has gone (`| head`).
        code = ExitCode.DONE
    if arguments is None:
        # The interpreter's last look for cycles goes through all that was imported, to free what the system takes back
        # in a moment: a sixth of what a start costs (2026-12-01).
        gc.freeze()
    sys.exit(int(code or 0))
