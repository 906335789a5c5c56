"""The streamcrawl command as a person runs it: the installed program, in a folder, with files and signals.

Start at `Command`. `run` waits for the end; `start` returns a `Running` that can be watched and signalled meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = Path(sys.executable).with_name("streamcrawl")
"""As installed beside the interpreter that runs the tests."""
_POLL_S: Final = 0.02


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


class Running:
    """A command that runs, in a process group of its own as a shell would give it. Ended by leaving the block."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process: Final = process
        self._out = out
        self._err = err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Its children and its embedded Redis notice, and end by themselves.
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def until(self, condition: Callable[[], Any], what: str, *, within_s: float = 20.0) -> None:
        """Wait until `condition()` is true while the command runs; `what` says in words what did not come."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, f"ended before: {what}\n{self.out}{self.err}"
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self.out}{self.err}"
            time.sleep(_POLL_S)

    def interrupt(self) -> None:
        """Do what Ctrl-C at a terminal does: SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, within_s: float = 40.0) -> Result:
        """Wait for the end."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {within_s:g} s:\n{self.out}{self.err}") from None
        return Result(code, self.out, self.err)


class Command:
    """Runs streamcrawl in one folder, without any setting of the surrounding environment and without delays."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        folder.mkdir(exist_ok=True)
        self._count = 0

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STREAMCRAWL_")}
        return {**clean, "STREAMCRAWL_DELAY": "0", **given}

    def start(self, *arguments: str, keeps_stdin_open: bool = False, **environment: str) -> Running:
        """Start the command; standard input is empty unless it is kept open."""
        self._count += 1
        out, err = (self.folder.with_name(f"{self.folder.name}.{self._count}.{what}") for what in ("out", "err"))
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [PROGRAM, *arguments],
                cwd=self.folder,
                env=self.environment(environment),
                stdin=subprocess.PIPE if keeps_stdin_open else subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
        return Running(process, out, err)

    def run(self, *arguments: str, stdin: str | None = None, **environment: str) -> Result:
        """Run the command to its end."""
        with self.start(*arguments, keeps_stdin_open=stdin is not None, **environment) as running:
            if running.process.stdin is not None:
                running.process.stdin.write((stdin or "").encode())
                running.process.stdin.close()
            return running.wait()

    def records(self, name: str = "127.0.0.1.jsonl") -> list[dict[str, Any]]:
        """Return the records of an output file; fails when a line of it is none."""
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def lines(self, name: str = "127.0.0.1.jsonl") -> int:
        """Return how many records an output file has by now; 0 when it is not there yet."""
        with suppress(FileNotFoundError):
            return (self.folder / name).read_bytes().count(b"\n")
        return 0

    def pages(self, name: str = "127.0.0.1.jsonl") -> set[str]:
        """Return the final URLs of the pages with status 200; fails when one of them is there twice."""
        found = Counter(record["final_url"] for record in self.records(name) if record["status"] == 200)
        assert {url: count for url, count in found.items() if count > 1} == {}
        return set(found)
