"""Ends a blocking read where it waits: in the server, by CLIENT UNBLOCK.

A read is never cancelled from outside (an entry could be delivered to nobody), so without this every stop, and the end
of every crawl, would take up to BLOCK_MS longer. It is a courtesy: where it fails the read runs out by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

if TYPE_CHECKING:
    from redis.asyncio import Redis


class Waker:
    """For one client with a single connection, `reader`; `client` is another one to the same server."""

    def __init__(self, reader: Redis, client: Redis) -> None:
        self._reader = reader
        self._client = client
        self._connection_id: int | None = None
        """By which the server knows the reading connection; None while it is to be asked, 0 when it may not be."""
        self._waking: asyncio.Task[None] | None = None

    async def learn(self) -> None:
        """Ask for the connection's id, once for each connection; before a read, as it has no other time.

        Raises:
            RedisError, OSError: the connection is gone.
        """
        if self._connection_id is not None:
            return
        try:
            self._connection_id = await self._reader.client_id()
        except ResponseError:
            self._connection_id = 0  # CLIENT is not permitted to us

    def forget(self) -> None:
        """The connection broke: the next one has another id."""
        self._connection_id = None

    def wake(self) -> None:
        """End the read that waits now, with nothing, as if its time were over."""
        if (self._waking is None or self._waking.done()) and self._connection_id:
            self._waking = asyncio.create_task(self._wake(self._connection_id), name="wake")

    async def close(self) -> None:
        if self._waking is not None:
            await self._waking

    async def _wake(self, connection_id: int) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._client.client_unblock(connection_id)
