"""Runs the command for the examples, from whatever folder they are started in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""Where the programs are found."""


def streamcrawl(*words: str, folder: str | None = None, **environment: str) -> str:
    """Run the command in a folder, by default this one; return what it prints.

    Raises:
        SystemExit: it ends otherwise than done or done with dead letters; it has said why, and its exit code stays.
    """
    done = subprocess.run(
        [sys.executable, "-m", "streamcrawl", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 4):
        sys.exit(done.returncode)
    return done.stdout
