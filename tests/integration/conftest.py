"""Fixtures of the tests of the store: each of them runs on every redis-server that is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.store.connection import connect
from tests.integration.snapshot import Lab, fast
from tests.redis_server import RedisServer, found_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from redis.asyncio import Redis

    OpenLab = Callable[..., Awaitable[Lab]]


@pytest.fixture(scope="session", params=found_binaries())
def store_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(binary=request.param) as server:
        yield server


@pytest.fixture
async def store_client(store_server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(store_server.url)
    yield client
    await client.aclose()


@pytest.fixture
async def open_lab(store_client: Redis, crawl_name: str) -> AsyncIterator[OpenLab]:
    """Opens the test's crawl: `await open_lab(pages_max=3)`. Afterwards its accounts must hold, its keys be known."""
    labs: list[Lab] = []

    async def opened(**values: Any) -> Lab:
        sinks = values.pop("sinks", ())
        labs.append(await Lab.opened(store_client, sinks=sinks, **fast(crawl_name, **values)))
        return labs[-1]

    yield opened
    for lab in labs:
        if await store_client.hget(lab.keys.state, "epoch") == lab.frontier.epoch.encode():
            await lab.check()


@pytest.fixture
async def lab(open_lab: OpenLab) -> Lab:
    return await open_lab()
