"""The server's own clock jumps: the living keep their slots, outputs and leases, the dead lose theirs within one lease.

With a real server whose clock is set (libfaketime); what a jump does to delays is in test_store_dispatch.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Beat
from tests.integration.snapshot import FETCH_STREAM, Lab, fast, urls, wait_until
from tests.redis_server import Binary, RedisServer, found_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

HOUR_S = 3600
LEASE_MS = 1000


@pytest.fixture(params=found_binaries())
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    binary: Binary = request.param
    with RedisServer(binary=binary, has_clock=True) as running:
        yield running


@pytest.fixture
async def clock_lab(server: RedisServer, crawl_name: str) -> AsyncIterator[Lab]:
    client = connect(server.url)
    lab = await Lab.opened(client, sinks=["out"], **fast(crawl_name, host_concurrency=2000))
    yield lab
    await lab.check()
    await client.aclose()


async def beat(lab: Lab, consumer: str, *entry_ids: str, stream: str = FETCH_STREAM) -> tuple[list[list[str]], int]:
    return await lab.frontier.beat([Beat(consumer, stream, 5, "{}", entry_ids)], lease_ms=LEASE_MS)


async def reclaim(lab: Lab) -> tuple[str, int]:
    return await lab.frontier.reclaim(FETCH_STREAM, lease_ms=LEASE_MS, limit=500)


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_other_machines_keep_their_slots(server: RedisServer, clock_lab: Lab, jump_s: int) -> None:
    await beat(clock_lab, "here")
    assert await beat(clock_lab, "elsewhere") == ([[]], 10)
    server.set_clock(jump_s)
    assert await beat(clock_lab, "here") == ([[]], 10)

    async def elsewhere_is_forgotten() -> bool:
        return (await beat(clock_lab, "here"))[1] == 5

    # It never beats again: it died. The jump must not keep it for the hour.
    await wait_until(elsewhere_is_forgotten, "the dead to lose its slots")


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_a_writer_keeps_its_output_until_it_is_silent(server: RedisServer, clock_lab: Lab, jump_s: int) -> None:
    async def opened(consumer: str) -> str:
        return (await clock_lab.frontier.sink_open("out", consumer, lease_ms=LEASE_MS))[0]

    assert await opened("first") == "OK"
    await beat(clock_lab, "first", stream=f"{FETCH_STREAM}:out")
    server.set_clock(jump_s)
    assert await opened("second") == "BUSY"
    await beat(clock_lab, "first", stream=f"{FETCH_STREAM}:out")
    assert await opened("second") == "BUSY"

    async def second_is_in() -> bool:
        return await opened("second") == "OK"

    await wait_until(second_is_in, "the second writer to take over")


@pytest.mark.parametrize("count", [2, 1002])
async def test_what_the_dead_hold_comes_back_although_the_clock_went_back(
    server: RedisServer, clock_lab: Lab, count: int
) -> None:
    """The rows are stamped an hour ahead; more of them than one call stamps anew."""
    await clock_lab.offer(*urls("a.test", count))
    alive, *dead = [one for _ in range(0, count, 100) for one in await clock_lab.take()]
    assert len(dead) == count - 1
    assert (await reclaim(clock_lab))[0] == "HOLD"
    server.set_clock(-HOUR_S)
    taken = 0

    async def all_dead_are_back() -> bool:
        nonlocal taken
        assert await beat(clock_lab, "w1", alive.id) == ([[]], 5), "who lives has lost its lease"
        word, back = await reclaim(clock_lab)
        taken += back if word == "OK" else 0
        return taken >= len(dead)

    await wait_until(all_dead_are_back, "what the dead held")
    assert taken == len(dead)
    state: Any = await clock_lab.check()
    assert len(state[FETCH_STREAM]["pending"]) == 1
    assert f"reclaim_fix:{FETCH_STREAM}" not in state["state"]
