"""What a metrics port says, as tests want to ask it."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "streamcrawl_"


@dataclass(frozen=True, slots=True)
class Scrape:
    """All samples of one scrape."""

    text: str
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]
    """Name and labels -> value; names without the prefix of all."""

    @classmethod
    def of(cls, text: str) -> Self:
        found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series = (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items()))
                assert series not in found, f"twice: {series}"
                found[series] = sample.value
        return cls(text, found)

    def all(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return the series of a name that have these labels."""
        wanted = labels.items()
        return {own: value for (its, own), value in self.samples.items() if its == name and wanted <= own}

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the series of a name that have these labels, of which there must be one."""
        found = self.all(name, **labels)
        assert found, f"no {name} with {labels}"
        return sum(found.values())

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the sums by a label, zeros left out."""
        sums: dict[str, float] = {}
        for own, value in self.all(name, **labels).items():
            word = dict(own)[label]
            sums[word] = sums.get(word, 0) + value
        return {word: value for word, value in sums.items() if value}

    def series(self, *but: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        """Return which series there are, the labels `but` left out."""
        return {(name, frozenset(pair for pair in own if pair[0] not in but)) for name, own in self.samples}


class Port:
    """A port that shows metrics."""

    def __init__(self, url: str) -> None:
        """Take the URL before /metrics."""
        self.url = url

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Return status and body of a page."""
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, headers=dict(headers or {})), timeout=40
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def json(self, path: str) -> Any:
        """Return a page that is JSON."""
        return json.loads(self.get(path)[1])

    def scrape(self) -> Scrape:
        status, text = self.get("/metrics")
        assert status == 200, text
        return Scrape.of(text)


def check_by_promtool(text: str) -> str:
    """Return what promtool finds wrong with an exposition; '' when all is well."""
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is needed: apt install prometheus"
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    said = checked.stdout + checked.stderr
    return said or ("" if checked.returncode == 0 else f"exit code {checked.returncode}")
