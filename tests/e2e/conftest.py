"""Fixtures of the tests that run the command itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.command import Command
from tests.e2e.programs import Programs
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The command, in an empty folder."""
    return Command(tmp_path / "here")


@pytest.fixture(scope="session")
def site() -> Iterator[SiteProcess]:
    """Three hosts of 30 pages, some behind redirects: crawled in half a second, and without a state of its own."""
    with SiteProcess(SiteSpec(hosts=3, pages_per_host=30, redirect_within=0.1, redirect_across=0.1)) as running:
        yield running


@pytest.fixture
def leisurely_site() -> Iterator[SiteProcess]:
    """Two hosts of 60 pages that take 40 ms each: two to three seconds in which a crawl can be interrupted."""
    with SiteProcess(SiteSpec(hosts=2, pages_per_host=60, latency_ms=40)) as running:
        yield running


@pytest.fixture
def programs(command: Command) -> Iterator[Programs]:
    """The programs of tests/programs.py, in an empty folder; what was started is ended afterwards."""
    found = Programs(command)
    yield found
    for running in found.running:
        running.__exit__()
