"""The examples, each run as its own docstring says."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from examples.shop import ITEMS, price_of
from tests.e2e.command import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


def run(example: str, folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STREAMCRAWL_")}
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{example}"],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_price_monitor_says_what_changed(tmp_path: Path) -> None:
    assert run("price_monitor", tmp_path) == f"day 1: {ITEMS} prices are new\nday 2: {ITEMS // 5} prices are new\n"
    changes = [json.loads(line) for line in (tmp_path / "changes-2.jsonl").read_text().splitlines()]
    assert {change["name"]: (change["before"], change["price"]) for change in changes} == {
        f"Item {item}": (price_of(item, 1), price_of(item, 2)) for item in range(0, ITEMS, 5)
    }
    with closing(sqlite3.connect(tmp_path / "prices.db")) as prices:
        assert dict(prices.execute("select name, price from prices")) == {
            f"Item {item}": price_of(item, 2) for item in range(ITEMS)
        }
