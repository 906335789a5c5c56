"""A server that is full, or that forgot the scripts: what still works, and what is refused as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import StoreFull
from streamcrawl.rules.task import Outcome
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Beat
from tests.integration.snapshot import FETCH_STREAM, Lab, fast, links, urls
from tests.redis_server import RedisServer, found_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.conftest import OpenLab


@pytest.fixture(params=found_binaries())
async def full(request: pytest.FixtureRequest, crawl_name: str) -> AsyncIterator[Lab]:
    """A crawl with entries in hand, on a server of its own that has no memory left."""
    with RedisServer(binary=request.param) as server:
        client = connect(server.url)
        lab = await Lab.opened(client, sinks=["out"], **fast(crawl_name, host_concurrency=4))
        await lab.frontier.sink_open("out", "s1", lease_ms=1000)
        await lab.offer(*urls("a.test", 10))
        # Every script is known to the server, as it is after the first seconds of a crawl.
        await lab.frontier.reclaim(FETCH_STREAM, lease_ms=30_000)
        await client.config_set("maxmemory", 1_000_000)
        assert (await client.info("memory"))["used_memory"] > 1_000_000
        yield lab
        await client.config_set("maxmemory", 0)
        await lab.check()
        await client.aclose()


async def test_a_full_server_takes_nothing_new(full: Lab) -> None:
    before = await full.snapshot()
    with pytest.raises(StoreFull, match="raise its maxmemory"):
        await full.offer("http://b.test/")
    with pytest.raises(StoreFull):
        await full.frontier.dispatch(5)
    assert await full.snapshot() == before


async def test_a_full_server_drains(full: Lab) -> None:
    await full.client.config_set("maxmemory", 0)
    one, two, three, four = await full.take()
    await full.client.config_set("maxmemory", 1_000_000)
    frontier = full.frontier

    assert await full.end(one, links=links("http://c.test/"), items=("out", "{}")) == "DONE"
    assert await full.end(two, Outcome.RETRY, detail=(0, "2", two.stored)) == "DONE"
    assert await full.end(three, Outcome.UNANSWERED) == "DONE"
    assert await frontier.due() == (1, -1)
    assert (await frontier.beat([Beat("w1", FETCH_STREAM, 4, "{}", [four.id])], lease_ms=30_000))[0] == [[]]
    assert await frontier.hand_back(FETCH_STREAM, [four.id]) == 1
    assert await frontier.put_back(FETCH_STREAM, "w1", is_crash=True) == 0
    assert (await frontier.reclaim(FETCH_STREAM, lease_ms=30_000))[0] == "HOLD"
    assert await frontier.give_up(after_ms=0, idle_ms=0) == (9, 1, 0)
    assert (await frontier.sink_open("out", "s1", lease_ms=1000))[0] == "OK"
    assert await frontier.sink_commit("out", writer=1, expected=0, offset=5, entry_ids=[]) == ("DONE", None)
    await frontier.control(stopped="MEMORY_FULL")
    assert await frontier.reconcile() == 0
    assert (await frontier.finish())[0] == "RUNNING"


async def test_a_server_that_forgot_the_scripts_learns_them_again(open_lab: OpenLab) -> None:
    lab = await open_lab()
    for n in range(3):
        assert await lab.offer(f"http://a.test/{n}") == 1
        await lab.client.script_flush()
    assert (await lab.frontier.dispatch(5)).moved == 1
