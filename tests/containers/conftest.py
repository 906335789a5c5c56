"""Fixtures of the tests that need a container engine and the images that `.ci/containers` builds."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Images:
    """Names of images that are there; nothing is ever pulled."""

    streamcrawl: str
    redis: str
    prometheus: str
    next: str
    """The next version: another number, and other scripts by content."""


@pytest.fixture(scope="session")
def images() -> Images:
    """What was built from this checkout; without it the test is skipped, with the command that would run it."""
    names = [
        os.environ.get(f"STREAMCRAWL_TEST_{of}") for of in ("IMAGE", "REDIS_IMAGE", "PROMETHEUS_IMAGE", "NEXT_IMAGE")
    ]
    if not all(names):
        pytest.skip("no container engine was prepared: run .ci/containers (as root, on Debian)")
    return Images(*(name or "" for name in names))
