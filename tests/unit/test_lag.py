"""The clock of the server, as a worker knows it, ends when it is told to, whatever the store does."""

from __future__ import annotations

import asyncio
import socket

from streamcrawl.store.connection import connect
from streamcrawl.work.lag import ServerClock


async def test_clock_of_a_server_that_is_away_ends_without_a_cancellation() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # nobody listens, and nobody else takes the port
        client = connect(f"redis://127.0.0.1:{unheard.getsockname()[1]}")
        clock = ServerClock()
        running = asyncio.create_task(clock.run(client))
        done, _ = await asyncio.wait((running,), timeout=0.2)
        assert not done, "it asks again until the server is there"
        clock.stop()
        await asyncio.wait_for(running, 10)
        assert clock.since_s(0) is None
        await client.aclose()
