"""Does a supervisor get its children whatever becomes of the process that forks them?"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from streamcrawl.work.board import Board
from streamcrawl.work.nursery import Nursery

if TYPE_CHECKING:
    import pytest


async def test_stopped_nursery_is_replaced_and_keeps_nobody_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board.create(1)
    nursery = Nursery()
    pids = []
    try:
        for wait_s in (30.0, 3.0):
            monkeypatch.setattr("streamcrawl.work.nursery.BIRTH_WAIT_S", wait_s)
            child = await nursery.start_child("fetch", board.fd, board.capacity)
            pids.append(child.pid)
            monkeypatch.setattr("streamcrawl.work.nursery.BIRTH_WAIT_S", 30.0)
            assert nursery._process is not None
            os.kill(nursery._process.pid, signal.SIGSTOP)
            child.kill()
            await child.wait()
    finally:
        async with asyncio.timeout(10):
            await nursery.close()
        board.close()
    assert len(set(pids)) == 2
