"""Is it still the same server process? If not, the last moments of the one before may be lost.

A server that syncs its append-only file every second loses up to a second or two when its machine fails, and a replica
that takes over lacks what had not reached it (redis.io, "Redis persistence" and "Replication"). The data does not tell:
what is lost is lost with its traces, and other processes go on writing at once. The server's run_id does tell: it is
another one for each process. So it is asked for on each new connection before the first command goes out, and no
command of a client can reach another server without `Restarts` having noticed.

What this process may still believe although the store has forgotten it has to be given up by whoever believes it:
`listen`. Start at `restarts_of`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

_RUN_ID: Final = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class Restarts:
    """Notices that the connections of one client lead to another server process than before."""

    def __init__(self) -> None:
        self.count = 0
        """How often that was so; moved before the first command to the other process is sent."""
        self._run_id = b""
        self._listeners: list[Callable[[], None]] = []

    @property
    def run_id(self) -> str:
        """Of the server that answered last; '' before the first connection, or when it does not say.

        Scripts compare it (_process.lua) for callers that build on an answer which they had earlier.
        """
        return self._run_id.decode()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each restart, before anything is asked of the other server. It must not block."""
        self._listeners.append(listener)

    async def on_connect(self, connection: Any) -> None:
        """Set a new connection up; redis-py calls it. What it raises is what the first command would have raised."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        found = _RUN_ID.search(await connection.read_response())
        run_id = found[1] if found is not None else b""
        if self._run_id not in (b"", run_id):
            self.count += 1
            for listener in self._listeners:
                listener()
        self._run_id = run_id


def restarts_of(client: Redis) -> Restarts:
    """Return what watches the connections of a client that `connect` made."""
    found = client.connection_pool.connection_kwargs["redis_connect_func"].__self__
    assert isinstance(found, Restarts)
    return found
