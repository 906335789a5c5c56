"""What this process may use of its machine: cores, and memory that is still free.

A container has less than the machine around it, and says so in files of its control group; asked are the group of this
process and those above it, since each may have a limit. What a system does not tell is None. Sources: cgroups(7), the
kernel's cgroup-v2.rst (cpu.max, memory.max, memory.current, memory.stat) and proc_meminfo(5). The functions that read
files ask no disk: these are in the kernel's memory.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")


class Memory(NamedTuple):
    """Bytes: what may still be taken, and what there is in all."""

    free: int
    whole: int


def usable_cores(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return how many cores this process may keep busy: those it is bound to, and of a container's share whole ones."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have none
        cores = os.cpu_count() or 1
    shares = [_quota(folder) for folder in _groups(proc, cgroup)]
    return max(1, min([cores, *(int(share) for share in shares if share is not None)]))


def processes_each(cores: int, jobs: int) -> int:
    """Return how many processes each of some jobs gets (the fetch, and the stages here) where nobody said how many.

    A process keeps one core busy at most, a page takes about a millisecond of it: so as many as cores in all, and where
    that leaves a rest one more for each, since not all of them have to work all the time.
    """
    return max(1, -(-cores // max(1, jobs)))


def memory(proc: Path = PROC, cgroup: Path = CGROUP) -> Memory | None:
    """Return the memory of the machine or of the container, whichever has less left; None where that is not known."""
    found = [one for folder in _groups(proc, cgroup) if (one := _memory_of(folder)) is not None]
    fields = _fields(proc / "meminfo")
    if "MemAvailable:" in fields and "MemTotal:" in fields:
        found.append(Memory(1024 * fields["MemAvailable:"], 1024 * fields["MemTotal:"]))
    return min(found, default=None)


def _groups(proc: Path, cgroup: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group (version 2) and of those above it."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, _, path = line.partition("::")
        if number == "0" and path.startswith("/"):
            # In a namespace of its own a process sees its group as the root.
            own = PurePosixPath(path)
            for group in (own, *own.parents):
                yield cgroup / str(group).lstrip("/")
            return


def _quota(folder: Path) -> float | None:
    """Return the cores that a group may use; None for no limit."""
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # `max`, or no such file
        return None


def _memory_of(folder: Path) -> Memory | None:
    limit, used = _text(folder / "memory.max").strip(), _text(folder / "memory.current").strip()
    if not (limit.isdecimal() and used.isdecimal()):
        return None
    # Pages of files that nobody has used of late are given back before anybody is refused memory.
    spare = _fields(folder / "memory.stat").get("inactive_file", 0)
    return Memory(max(0, int(limit) - int(used) + spare), int(limit))


def _fields(path: Path) -> dict[str, int]:
    """Return the lines of a file that are a name and a number."""
    found = {}
    for line in _text(path).splitlines():
        name, *values = line.split()
        if values and values[0].isdecimal():
            found[name] = int(values[0])
    return found


def _text(path: Path) -> str:
    """Return what a file says; '' when it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
