"""What goes to which stream: for people on a terminal, for programs, and when nobody reads it any more."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from tests.e2e.command import PROGRAM

if TYPE_CHECKING:
    from tests.e2e.command import Command
    from tests.site.server import SiteProcess


def test_json_lines_are_all_that_is_on_standard_output(command: Command, site: SiteProcess) -> None:
    result = command.run("crawl", site.seed_url, "--max-pages", "5", "--json")
    documents = [json.loads(line) for line in result.out.splitlines()]
    assert [document["event"] for document in documents[:-1]] == ["progress"] * (len(documents) - 1)
    summary = documents[-1]
    assert (summary["event"], summary["ending"], summary["exit_code"]) == ("summary", "LIMIT", ExitCode.STOPPED)
    assert result.code == ExitCode.STOPPED
    assert summary["pages"] == 5
    assert summary["resume"] == "streamcrawl crawl --resume --name 127.0.0.1"
    assert json.loads(command.run("status", "--json").out) == {
        "crawls": [{"name": "127.0.0.1", "condition": "not running"}]
    }
    assert json.loads(command.run("status", "127.0.0.1", "--json").out)["totals"]["page.done"] == 5
    assert json.loads(command.run("audit", "127.0.0.1", "--json").out)["sound"] is True


def test_quiet_is_silent(command: Command, site: SiteProcess) -> None:
    assert command.run("crawl", site.seed_url, "--quiet", "--max-pages", "2") == (ExitCode.STOPPED, "", "")


@pytest.mark.parametrize(("stream", "form"), [("stdout", "--json"), ("stdout", "--delay=0"), ("both", "--delay=0")])
def test_crawl_goes_on_when_nobody_reads_what_it_says(
    command: Command, site: SiteProcess, stream: str, form: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [PROGRAM, "crawl", site.seed_url, "--max-pages", "6", form],
        cwd=command.folder,
        env=command.environment({}),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer if stream == "both" else subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert process.returncode == ExitCode.STOPPED
    assert b"Traceback" not in (process.stderr or b"")
    assert len(command.records()) == 6


@pytest.mark.parametrize("arguments", [["status"], ["crawl", "--help"]])
def test_reader_that_has_gone_is_no_error(command: Command, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [PROGRAM, *arguments], cwd=command.folder, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (0, b"")


def test_full_disk_behind_standard_output_is_one_line(command: Command) -> None:
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [PROGRAM, "status"], cwd=command.folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert process.returncode == ExitCode.USAGE
    assert process.stderr == "streamcrawl: standard output cannot be written to: No space left on device\n"


def test_live_line_fits_the_terminal(command: Command, leisurely_site: SiteProcess) -> None:
    columns = 60
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown = bytearray()

    def read() -> None:
        try:
            while block := os.read(screen, 65_536):
                shown.extend(block)
        except OSError:  # the last process has closed the terminal
            pass

    reading = threading.Thread(target=read)
    reading.start()
    process = subprocess.run(
        [PROGRAM, "crawl", leisurely_site.seed_url],
        cwd=command.folder,
        # COLUMNS, where it is set, would win over the terminal's own width.
        env={**command.environment({}), "TERM": "xterm", "COLUMNS": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        check=False,
    )
    os.close(terminal)
    reading.join()
    os.close(screen)
    assert process.returncode == ExitCode.DONE
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode())
    live = [line for line in re.split(r"[\r\n]+", text) if " pages · " in line]
    assert live
    assert [line for line in live if len(line) > columns] == []
    assert all(re.search(r"^\d+ pages · \d+\.\d/s · \d+ queued · .*\d:\d\d:\d\d", line) for line in live)
