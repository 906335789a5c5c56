"""Each limit of time ends a fetch by itself: to connect, between two reads, and for the whole."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from streamcrawl.errors import FetchTimeout
from streamcrawl.settings import make_settings
from streamcrawl.web.fetcher import Fetcher
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS: Final = ("connect_timeout_ms", "read_timeout_ms", "timeout_ms")
FAR_MS: Final = 600_000
"""Of the limits that a test is not about: the test would be ended before."""
NEAR_MS: Final = 300


@contextmanager
def host_that_lets_nobody_in() -> Iterator[str]:
    """Listen without accepting, with the queue of the kernel full: it answers no further SYN."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            for one in waiting:
                one.close()


@pytest.fixture(scope="module")
def site() -> Iterator[SiteProcess]:
    with SiteProcess(SiteSpec()) as running:
        yield running


@pytest.mark.parametrize(
    ("limit", "fault"),
    [
        ("connect_timeout_ms", ""),
        ("timeout_ms", ""),
        ("read_timeout_ms", "hang"),
        ("timeout_ms", "hang"),
        ("timeout_ms", "slow_drip"),
    ],
)
async def test_one_limit_alone_ends_the_fetch(site: SiteProcess, limit: str, fault: str) -> None:
    limits = dict.fromkeys(LIMITS, FAR_MS) | {limit: NEAR_MS}
    with host_that_lets_nobody_in() as closed:
        async with Fetcher(make_settings(name="fetcher", allow_private=True, **limits)) as fetcher, asyncio.timeout(30):
            with pytest.raises(FetchTimeout) as caught:
                await fetcher.fetch(site.url(1, f"/fault/{fault}") if fault else closed)
    assert caught.value.is_unanswered is (fault != "slow_drip")
