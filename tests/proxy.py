"""A TCP proxy that cuts connections at random, at every moment that a client has to think of.

A cut connection is gone at once and on both sides. `Cut` says what the server had seen by then: that is what decides
whether a command may be sent again. Runs in the event loop of the test.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import random

_CHUNK_BYTES: Final = 65_536


class Cut(Enum):
    """When a connection was cut."""

    BEFORE = "before the command reached the server"
    TORN_COMMAND = "in the middle of the command"
    AFTER = "after the command was executed, before its answer"
    TORN_ANSWER = "in the middle of the answer"


class CuttingProxy:
    """Listens on a free port of 127.0.0.1 while the block runs, and passes everything to a server on another one."""

    def __init__(self, server_port: int, dice: random.Random, *, share: float) -> None:
        """Prepare the proxy.

        Args:
            share: Of all chunks, how many are a connection's last, while `is_cutting`.
        """
        self.port = 0
        self.is_cutting = False
        self.cuts: Counter[Cut] = Counter()
        self._server_port = server_port
        self._dice = dice
        self._share = share
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        to_server: asyncio.StreamWriter | None = None
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
            pumps = (
                asyncio.create_task(self._pump(client, to_server, Cut.BEFORE, Cut.TORN_COMMAND)),
                asyncio.create_task(self._pump(server, to_client, Cut.AFTER, Cut.TORN_ANSWER)),
            )
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except ConnectionError:
            pass  # the server is away: the client sees a connection that ends
        finally:
            for writer in (to_client, to_server):
                if writer is not None:
                    writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, whole: Cut, torn: Cut) -> None:
        """Pass chunks on until the connection ends or is cut, with the chunk held back or with half of it passed."""
        with suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if self.is_cutting and self._dice.random() < self._share:
                    cut = self._dice.choice((whole, torn))
                    self.cuts[cut] += 1
                    if cut is torn:
                        writer.write(chunk[: len(chunk) // 2])
                        await writer.drain()
                    return
                writer.write(chunk)
                await writer.drain()
