"""Runs the programs of tests/programs.py as a person would."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from streamcrawl.errors import ExitCode
from tests.e2e.command import REPOSITORY
from tests.programs import noted

if TYPE_CHECKING:
    from tests.e2e.command import Command, Running


class Programs:
    """Runs the programs of tests/programs.py, with a journal."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.journal = command.folder / "journal"
        self.gate = command.folder / "gate"
        self.running: list[Running] = []

    def start(self, word: str, program: str, *arguments: str, nap_s: float = 0.0, **rest: Any) -> Running:
        running = self.command.start(
            *(word, f"tests.programs:{program}", *arguments),
            PYTHONPATH=str(REPOSITORY),
            TESTS_JOURNAL=str(self.journal),
            TESTS_GATE=str(self.gate),
            TESTS_NAP=str(nap_s),
            **rest,
        )
        self.running.append(running)
        return running

    def run(self, program: str, *arguments: str, code: ExitCode = ExitCode.DONE, **rest: Any) -> str:
        result = self.start("run", program, *arguments, **rest).wait()
        assert result.code == code, result
        return result.out

    def seeds(self, *urls: str) -> tuple[str, str]:
        (self.command.folder / "seeds.txt").write_text("\n".join(urls))
        return "--seeds", "seeds.txt"

    def noted(self, what: str) -> list[str]:
        return [line["url"] for line in noted(self.journal, what)]

    def ask(self, word: str, program: str, *arguments: str) -> Any:
        result = self.command.run(word, program, *arguments)
        assert result.code == ExitCode.DONE, result
        return json.loads(result.out) if "--json" in arguments else result.out

    def status(self, program: str) -> dict[str, Any]:
        """Return the status of a crawl that has just been started here; empty until it is there."""
        result = self.command.run("status", program, "--json")
        if result.code != ExitCode.DONE:
            assert "there is no crawl" in result.err, result
            return {}
        status: dict[str, Any] = json.loads(result.out)
        return status

    def audit(self, program: str, *arguments: str) -> dict[str, int]:
        totals: dict[str, int] = self.ask("audit", program, *arguments, "--json")["totals"]
        return totals


def once(urls: list[str]) -> set[str]:
    """Return them as a set; fails when one is there twice."""
    assert [url for url, count in Counter(urls).items() if count > 1] == []
    return set(urls)
