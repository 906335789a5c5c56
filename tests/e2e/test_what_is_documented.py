"""README, the guide of operations, Makefile and help against the command: what they name is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import click
import pytest

from streamcrawl.cli import cli
from streamcrawl.errors import ExitCode
from tests.e2e.command import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.command import Command

OPTIONS = """
    -o --name --redis --processes --concurrency --depth --max-pages --max-pages-per-host --scope --allow --deny --seeds
    --delay --host-concurrency --no-robots --user-agent --timeout --min-rate --max-body --lease --frontier-max
    --memory-max --drop-params --sort-query --fresh --resume --json --quiet --config --shards --robots
    --rotate-size --rotate-every
"""
README = (REPOSITORY / "README.md").read_text()
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text()


def every_command(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield found
        if isinstance(found, click.Group):
            yield from every_command(found)


def test_help_has_every_option(command: Command) -> None:
    result = command.run("crawl", "--help")
    assert result.code == ExitCode.DONE
    assert {
        option for option in OPTIONS.split() if not re.search(rf"^  (-\w, |--\w+ / )?{option}\b", result.out, re.M)
    } == set()


def test_readme_names_no_option_that_is_not_there() -> None:
    known = {"--help", "--build", "--scale"}  # the last two are options of `docker compose`
    for command in every_command(cli):
        known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) <= known


def test_commands_of_the_readme_are_understood(command: Command) -> None:
    (command.folder / "urls.txt").write_text("https://example.org/\n")
    context = click.Context(cli)
    lines = [line.partition("#")[0] for line in README.splitlines() if line.startswith("streamcrawl ")]
    assert len(lines) > 5
    for line in lines:
        # Parsed to the end, with the last word refused: nothing is fetched from the hosts that the README names.
        words = shlex.split(line)[1:]
        result = command.run(*words, "--not-an-option")
        path = " ".join(words[: 2 if isinstance(cli.get_command(context, words[0]), click.Group) else 1])
        assert result.err == f"streamcrawl: No such option '--not-an-option' (see streamcrawl {path} --help)\n"


def test_commands_of_the_guide_of_operations_are_understood() -> None:
    lines = [line.partition("#")[0] for line in OPERATIONS.splitlines() if line.startswith("streamcrawl ")]
    assert len(lines) > 20
    for line in lines:
        found: click.Command | None = cli
        words = shlex.split(line)[1:]
        context = click.Context(cli)
        while isinstance(found, click.Group):
            found = found.get_command(context, words.pop(0))
        assert found is not None, line
        # Parsed to the end, nothing is run.
        found.make_context("streamcrawl", words)


def test_readme_lists_the_exit_codes() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d) \|", README, re.M)}
    assert listed == set(map(int, ExitCode))


@pytest.mark.parametrize(
    "target", ["help", "setup", "crawl", "test", "chaos", "fuzz", "check", "format", "bench", "clean"]
)
def test_make_has_the_target(target: str) -> None:
    done = make("-n", target, "URL=https://example.org/")
    assert done.returncode == 0, done.stderr


def test_make_hands_urls_and_options_on_as_they_were_typed() -> None:
    done = make("-n", "crawl", "URL=http://a/?x=1&y=$z;'q http://b/", "ARGS=--depth 1 -o 'a b.jsonl'")
    # Where nothing is set up yet, the lines that do it come first.
    assert shlex.split(done.stdout.splitlines()[-1]) == [
        ".venv/bin/streamcrawl", "crawl", "http://a/?x=1&y=$z;'q", "http://b/", "--depth", "1", "-o", "a b.jsonl",
    ]  # fmt: skip


def test_make_crawl_without_url_says_so_and_sets_nothing_up() -> None:
    done = make("crawl")
    assert done.returncode == 2
    assert done.stderr.startswith("say what to crawl: make crawl URL=https://example.org/")
    assert done.stdout == ""


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # As a user types it: under `make test` this would be a make within a make, which says where it is.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
