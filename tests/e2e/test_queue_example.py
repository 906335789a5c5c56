"""examples/duplicates.py, run as its docstring says; and once with one of its processes killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.e2e.command import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.e2e

COMMAND = [sys.executable, "-m", "examples.duplicates"]
END_S = 100


def make_files(folder: Path, count: int) -> list[list[str]]:
    """Write files of which every three are equal; return the groups as the program prints them."""
    groups = []
    for group in range(count // 3):
        names = [folder / f"{part}" / f"{group:04}.txt" for part in "abc"]
        for name in names:
            name.parent.mkdir(exist_ok=True)
            name.write_text(f"content of {group}\n")
        groups.append([str(name) for name in names])
    (folder / "only.txt").write_text("no other is like this")
    return groups


def test_duplicates_are_found_with_one_command(tmp_path: Path) -> None:
    groups = make_files(tmp_path, 60)
    ran = subprocess.run(
        [*COMMAND, tmp_path], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=END_S
    )
    assert [line.split("  ") for line in ran.stdout.splitlines()] == groups
    assert "61 files, 20 groups" in ran.stderr


def test_killed_process_costs_no_file_and_an_unreadable_one_is_named(tmp_path: Path, redis_server: RedisServer) -> None:
    groups = make_files(tmp_path, 600)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    program = subprocess.Popen(
        [*COMMAND, tmp_path, "--redis", redis_server.url, "--lease", "2"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stderr is not None
        pids = [int(pid) for pid in re.findall(r"\d+", program.stderr.readline())]
        # Before it has begun or in the midst of it, as the machine likes: the result is the same.
        with suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGKILL)
        out, err = program.communicate(timeout=END_S)
    finally:
        program.kill()
        program.wait()
    assert [line.split("  ") for line in out.splitlines()] == groups
    assert "not read" in err
    assert "FileNotFoundError" in err
    assert program.returncode == 1
