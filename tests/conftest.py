"""Fixtures that all tests share. Tests share a server too, so each uses a crawl name of its own and flushes nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from streamcrawl.store.connection import connect
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio import Redis


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A runner in the background of a script leaves it ignored. Every command under test would inherit that, and those
    # that are interrupted would run on.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A server without persistence, one per test process. A test that stops or pauses it starts one of its own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
async def redis_client(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(redis_server.url)
    yield client
    await client.aclose()


@pytest.fixture
def crawl_name() -> str:
    """A name that no other test uses, so that leftovers and parallel runs cannot matter."""
    return f"t{uuid4().hex[:12]}"
