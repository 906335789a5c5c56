"""Starts a redis-server that cannot outlive the process that wanted it, not even after `kill -9`.

A script for an interpreter of its own, standard library only: `python -I -S keeper.py WAY NUMBER COMMAND...`.
It never talks to Redis and never decides anything about a crawl. Two ways:

- `become PARENT_PID` (Linux): asks the kernel for SIGTERM when the parent dies, then becomes the server (exec). No
  process stands in between, so none can be killed in between. The kernel means the parent's *thread*: start it in one
  that lives as long as the server.
- `guard LIFELINE_FD` (anywhere): stays as the server's parent and ends it once the other end of the pipe is closed,
  which the kernel does for whoever held it. A guard that is itself killed leaves the server to its owner.

redis-server takes SIGTERM for SHUTDOWN: it flushes its append-only file and exits. Sources: prctl(2); server.c of
Redis 7.0.
"""

from __future__ import annotations

import os
import sys

# What one of the two ways needs it imports itself: `become` is a part of every start, and imports were half of it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
_SIGTERM = 15
"""On any system; the module `signal` takes longer to import than all that is done here."""
_END_S = 30
"""A server that has not ended this long after SIGTERM gets SIGKILL: longer than any flush of an append-only file."""


def become(parent_pid: int, command: list[str]) -> None:
    """Replace this process by `command`, which gets SIGTERM when the thread that started us ends. Linux only.

    Raises:
        OSError: prctl refused, or the command cannot be executed.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, _SIGTERM, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # A parent that died before the call above sends no signal any more: the server would stay for ever.
    if os.getppid() == parent_pid:
        os.execv(command[0], command)


def guard(lifeline: int, command: list[str]) -> int:
    """Run `command` until it ends by itself or the other end of `lifeline` (the reading end of a pipe) is closed.

    Returns its exit code, 128 and the signal's number when a signal ended it. Whoever wants the server to end signals
    the server or closes the pipe; a signal to the guard is not passed on.
    """
    import subprocess
    import threading

    os.set_inheritable(lifeline, False)
    # The other descriptors pass through: one of them holds the lock of the server's folder.
    with subprocess.Popen(command, close_fds=False) as server:
        threading.Thread(target=_end_with_lifeline, args=(lifeline, server), daemon=True).start()
        code = server.wait()
    return code if code >= 0 else 128 - code


def _end_with_lifeline(lifeline: int, server: subprocess.Popen[bytes]) -> None:
    import subprocess

    while os.read(lifeline, 1):
        pass
    server.terminate()
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()


def main(arguments: list[str]) -> int:
    """Run the way that the arguments name; return the exit code."""
    way, number, *command = arguments
    if way == "become":
        become(int(number), command)
        return 0
    return guard(int(number), command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
