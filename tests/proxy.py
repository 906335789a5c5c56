"""A TCP proxy that fails connections at random, at every moment that a client has to think of.

A cut connection is gone at once and on both sides. One that has become a black hole stays open, as if a firewall had
forgotten it: nothing passes any more and nobody is told. `Fault` says what the server had seen by then: that is what
decides whether a command may be sent again. Others are late and lose nothing. Runs in the event loop of the test.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    import random

_CHUNK_BYTES: Final = 65_536


class Fault(Enum):
    """What happened to a connection, and when."""

    CUT_BEFORE = "cut before the command reached the server"
    CUT_COMMAND = "cut in the middle of the command"
    CUT_AFTER = "cut after the command was executed, before its answer"
    CUT_ANSWER = "cut in the middle of the answer"
    HOLE_BEFORE = "a black hole before the command reached the server"
    HOLE_AFTER = "a black hole after the command was executed, before its answer"
    LATE = "a command or an answer held back for a while"


class Shares(NamedTuple):
    """Of all chunks, how many meet a fault; a cut or a hole is a connection's last."""

    cut: float = 0.0
    hole: float = 0.0
    late: float = 0.0
    late_max_s: float = 1.0


class _Link:
    """One connection through the proxy."""

    is_hole = False


class FailingProxy:
    """Listens on a free port of 127.0.0.1 while the block runs, and passes everything to a server on another one."""

    def __init__(self, server_port: int, dice: random.Random, shares: Shares) -> None:
        """Prepare the proxy; faults happen while `is_failing`."""
        self.port = 0
        self.is_failing = False
        self.faults: Counter[Fault] = Counter()
        self._server_port = server_port
        self._dice = dice
        self._shares = shares
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
            link = _Link()
            out = (Fault.CUT_BEFORE, Fault.CUT_COMMAND, Fault.HOLE_BEFORE)
            back = (Fault.CUT_AFTER, Fault.CUT_ANSWER, Fault.HOLE_AFTER)
            pumps = (
                asyncio.create_task(self._pump(link, client, to_server, *out)),
                asyncio.create_task(self._pump(link, server, to_client, *back)),
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

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *faults: Fault
    ) -> None:
        """Pass chunks on until the connection ends or is cut, with the chunk held back or with half of it passed."""
        whole, torn, hole = faults
        with suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_BYTES):
                fault = self._roll(whole, torn, hole)
                if link.is_hole:
                    continue
                if fault is not None:
                    self.faults[fault] += 1
                if fault is hole:
                    link.is_hole = True
                    continue
                if fault is Fault.LATE:
                    await asyncio.sleep(self._dice.uniform(0, self._shares.late_max_s))
                elif fault is torn:
                    writer.write(chunk[: len(chunk) // 2])
                    await writer.drain()
                    return
                elif fault is whole:
                    return
                writer.write(chunk)
                await writer.drain()

    def _roll(self, whole: Fault, torn: Fault, hole: Fault) -> Fault | None:
        if not self.is_failing:
            return None
        cut, hole_share, late, _ = self._shares
        number = self._dice.random()
        if number < cut:
            return self._dice.choice((whole, torn))
        if number < cut + hole_share:
            return hole
        return Fault.LATE if number < cut + hole_share + late else None
