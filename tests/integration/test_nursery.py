"""Does a supervisor get its children whatever becomes of the process that forks them?"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
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
        for is_stopped in (False, True):
            # Only the one that is stopped is not waited for: the next one may take its time on a busy machine.
            stopped = nursery._process if is_stopped else None
            monkeypatch.setattr("streamcrawl.work.nursery.BIRTH_WAIT_S", 0.1 if is_stopped else 30.0)
            asking = asyncio.create_task(nursery.start_child("fetch", board.fd, board.capacity))
            if stopped is not None:
                await stopped.wait()
                monkeypatch.setattr("streamcrawl.work.nursery.BIRTH_WAIT_S", 30.0)
            child = await asking
            pids.append(child.pid)
            assert nursery._process is not None
            os.kill(nursery._process.pid, signal.SIGSTOP)
            child.kill()
            await child.wait()
    finally:
        async with asyncio.timeout(10):
            await nursery.close()
        board.close()
    assert len(set(pids)) == 2


EARLY = """
import asyncio, os, signal, psutil
from streamcrawl.work.board import Board
from streamcrawl.work.nursery import Nursery, _early, early_nursery

async def born(kill_first):
    board, nursery = Board.create(1), Nursery()
    forked = _early[0][1].pid
    if kill_first:
        os.kill(forked, signal.SIGKILL)
    child = await nursery.start_child("fetch", board.fd, board.capacity)
    print("forked" if psutil.Process(child.pid).ppid() == forked else "started", flush=True)
    child.kill()
    await child.wait()
    await nursery.close()

with early_nursery():
    unused = _early[0][1].pid
try:
    os.kill(unused, 0)
except ProcessLookupError:
    print("gone")
for kill_first in (False, True):
    with early_nursery():
        asyncio.run(born(kill_first))
"""


def test_nursery_is_forked_early_and_started_anew_when_that_one_is_dead() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["gone", "forked", "started"], "")
