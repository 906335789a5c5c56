"""Whom can owners of sites write to? Asked on a terminal, said in a line elsewhere, and sent with every request."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from streamcrawl.cli import contact
from streamcrawl.rules.scope import Scope
from streamcrawl.settings import make_settings
from tests.e2e.command import PROGRAM, Command
from tests.redis_server import free_port
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.command import Result

NOWHERE: Final = "http://nowhere.invalid/"
"""A host of other people, for all that can be known of a name which nobody can resolve."""
NAME: Final = "nowhere.invalid"
ASKS: Final = "Whom can the owners of these sites write to?"


@contextmanager
def at_a_terminal(command: Command, *arguments: str) -> Iterator[tuple[Callable[[str], str], Callable[[str], None]]]:
    """Run the command in the foreground of a terminal; yields what waits for a text, and what types one."""
    ours, theirs = pty.openpty()

    def take_the_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [PROGRAM, *arguments],
        cwd=command.folder,
        env=command.environment({"TERM": "xterm", "COLUMNS": "200"}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_the_terminal,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = ""

    def until(text: str) -> str:
        nonlocal shown
        deadline = time.monotonic() + 30
        while text not in shown:
            assert time.monotonic() < deadline, shown
            try:
                shown += os.read(ours, 65_536).decode("utf-8", "replace")
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:  # Linux says so when the other side has ended
                raise AssertionError(f"ended before {text!r}: {shown}") from None
        return shown

    def type_(text: str) -> None:
        os.write(ours, text.encode())

    try:
        yield until, type_
        process.send_signal(signal.SIGINT)
        until("go on: ")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def crawl_of_others(*more: str) -> tuple[str, ...]:
    # No name server answers: nothing leaves this machine.
    return ("crawl", NOWHERE, "--no-robots", "--nameserver", f"127.0.0.1:{free_port()}", *more)


def contact_of(command: Command) -> str:
    shown: Result = command.run("settings", "show", NAME)
    return next(line for line in shown.out.splitlines() if line.strip().startswith("contact"))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [(["me", "me@a.test"], "me@a.test"), ([""], "none")],
    ids=["named at the second try", "nobody"],
)
def test_terminal_is_asked_and_the_answer_is_kept(tmp_path: Path, typed: list[str], expected: str) -> None:
    command = Command(tmp_path / "here")
    with at_a_terminal(command, *crawl_of_others()) as (until, type_):
        until(ASKS)
        for n, text in enumerate(typed):
            if n:
                assert "nothing to write to" in until("nothing to write to")
            type_(text + "\n")
        until("queued")  # the live line
    assert expected in contact_of(command)


def test_elsewhere_one_line_says_what_is_missing_and_the_crawl_begins(tmp_path: Path) -> None:
    command = Command(tmp_path / "here")
    with command.start(*crawl_of_others()) as running:
        running.until(lambda: contact.MISSING in running.err, "what is missing")
        running.until(lambda: json.loads(command.run("status", NAME, "--json").out)["workers"], "its workers")
        running.interrupt()
        assert running.wait().err.count("--contact") == 1
    with command.start("crawl", "--resume", "--nameserver", f"127.0.0.1:{free_port()}") as running:
        running.until(lambda: "resuming" in running.err, "the resume")
        running.interrupt()
        assert "--contact" not in running.wait().err


def test_seed_says_it_too_when_it_begins_a_crawl(tmp_path: Path) -> None:
    command = Command(tmp_path / "here")
    done = command.run("seed", NAME, "-", "--create", "--no-robots", "--keep-open", stdin=f"{NOWHERE}\n")
    assert (done.code, done.err.count(contact.MISSING)) == (0, 1)


def test_crawl_of_a_site_of_ones_own_is_not_asked(tmp_path: Path) -> None:
    with SiteProcess(SiteSpec(hosts=1, pages_per_host=3, links=2)) as site:
        done = Command(tmp_path / "here").run("crawl", site.url(1, "/p/0"), "-o", "pages.jsonl")
        assert (done.code, "contact" in done.err.lower()) == (0, False)


@pytest.mark.parametrize(
    ("values", "seed", "is_missing"),
    [
        ({}, "https://example.org/", True),
        ({"pages_max": 301}, "https://example.org/", True),
        ({"pages_max": 300}, "https://example.org/", False),
        ({"contact": "me@a.test"}, "https://example.org/", False),
        ({"user_agent": "me/1 (me@a.test)"}, "https://example.org/", False),
        ({"user_agent": "me/1 (+https://a.test)"}, "https://example.org/", False),
        ({"user_agent": "me/1"}, "https://example.org/", True),
        ({}, "https://93.184.216.34/", True),
        ({}, "http://localhost:8000/", False),
        ({}, "http://127.0.0.9/", False),
        ({}, "http://[::1]/", False),
        ({}, "http://10.1.2.3/", False),
    ],
)
def test_when_a_contact_is_missing(values: dict[str, object], seed: str, is_missing: bool) -> None:
    settings = make_settings("any", values)
    assert contact.is_missing(settings, Scope.from_settings(settings, [seed]).state()) is is_missing
