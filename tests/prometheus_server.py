"""A real Prometheus on a free port of 127.0.0.1, that scrapes what it is told to and never outlives the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import yaml

from streamcrawl.store import keeper
from tests.redis_server import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_START_S: Final = 30.0


def find_command(name: str) -> str:
    """Return the path of prometheus or promtool.

    Raises:
        RuntimeError: it is not there; the tests need it and skip nothing.
    """
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"no {name}: the tests need `apt install prometheus`")
    return found


class Series(NamedTuple):
    """One series of an answer: its labels, and its values in order of time."""

    labels: dict[str, str]
    values: list[float]


class Prometheus:
    """`with Prometheus(folder, targets, rules) as prometheus:` runs one.

    Args:
        folder: Where its data and its log lie.
        targets: Job -> addresses that it scrapes.
        rules: Files of rules.
        interval: Between two scrapes, and between two evaluations.
    """

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], rules: Sequence[Path], *, interval: str = "500ms"
    ) -> None:
        self._folder = folder
        self._address = f"127.0.0.1:{free_port()}"
        self._configuration = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
                for job, addresses in targets.items()
            ],
        }

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        configuration = self._folder / "prometheus.yml"
        configuration.write_text(yaml.safe_dump(self._configuration))
        command = [
            find_command("prometheus"),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._address}",
            "--log.level=warn",
        ]
        reading_end, self._lifeline = os.pipe()
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, "guard", str(reading_end), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(reading_end,),
                start_new_session=True,
            )
        os.close(reading_end)
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"prometheus does not start:\n{(self._folder / 'prometheus.log').read_text()}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lifeline)
        self._process.wait(30)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self._address}"

    def instant(self, expr: str) -> list[Series]:
        """Return the present answer to a query."""
        found = self._ask("query", query=expr)["result"]
        return [Series(one["metric"], [float(one["value"][1])]) for one in found]

    def over(self, expr: str, *, since: float) -> list[Series]:
        """Return the answers of each second since a time (of the wall clock), as a panel asks for them."""
        found = self._ask("query_range", query=expr, start=str(since), end=str(time.time()), step="1")["result"]
        return [Series(one["metric"], [float(value) for _, value in one["values"]]) for one in found]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {one["labels"]["alertname"] for one in self._ask("alerts")["alerts"] if one["state"] == "firing"}

    def faults(self) -> list[str]:
        """Return what Prometheus could not evaluate or scrape."""
        rules = [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]
        targets = self._ask("targets")["activeTargets"]
        return [
            *(f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")),
            *(f"{target['scrapeUrl']}: {target['lastError']}" for target in targets if target["lastError"]),
        ]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=2):
                return True
        except OSError:
            return False

    def _ask(self, what: str, **parameters: str) -> Any:
        data = urllib.parse.urlencode(parameters).encode() or None
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/{what}", data=data, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters.get('query', what)}: {error.read().decode()}") from error
