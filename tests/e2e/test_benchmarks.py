"""The benchmarks can be run: each one's --help, and the one that compares crawlers on a site of a few pages."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 110
"""Only against hanging; it takes four seconds."""


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_says_how_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    assert "usage: python -m benchmarks" in capsys.readouterr().out


def test_every_benchmark_is_listed_and_described() -> None:
    folder = ROOT / "benchmarks"
    readme = (folder / "README.md").read_text()
    modules = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in [*folder.glob("*.py"), *folder.glob("conformance/*.py")]
        if path.name[0] != "_" and "def main()" in path.read_text()
    }
    assert modules == BENCHMARKS.keys()
    for name in BENCHMARKS:
        assert f"({name.replace('.', '/')}.py)" in readme, name


def test_crawlers_are_compared_on_the_same_work() -> None:
    command = [
        sys.executable, "-m", "benchmarks", "peers", "--pages", "25", "--links", "3", "--rounds", "1",
        "--only", "bare", "--only", "streamcrawl_redis",
    ]  # fmt: skip
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ran.returncode == 0, ran.stderr
    *runs, summary = map(json.loads, ran.stdout.splitlines())
    assert [run["fetched"] for run in runs] == [25, 25]
    assert runs[1]["redis_cpu_s_per_1000_pages"] > 0
    assert [row["is_same_work"] for row in summary["rows"]] == [True, True]
    assert "| streamcrawl, given Redis |" in ran.stderr
