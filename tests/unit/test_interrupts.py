"""Does Ctrl-C end a command, also when something takes the first cancellation for its own?"""

from __future__ import annotations

import subprocess
import sys

DEAF = """
import asyncio, os, signal
from streamcrawl.cli.interrupts import run

async def command():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("swallowed", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)
        print("closed", flush=True)

async def quick():
    return "done"

print(run(quick()), flush=True)
try:
    run(command())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupt_that_was_swallowed_comes_again() -> None:
    done = subprocess.run([sys.executable, "-c", DEAF], capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout.split(), done.stderr) == (["done", "swallowed", "closed", "interrupted"], "")
