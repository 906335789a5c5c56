"""What a process may use of its machine, from the files of a kernel."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from streamcrawl.work.machine import Memory, memory, processes_each, usable_cores

if TYPE_CHECKING:
    from pathlib import Path

CORES = len(os.sched_getaffinity(0))


class Kernel:
    """A /proc and a /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        self.write("proc/self/cgroup", "0::/\n")
        self.cgroup.mkdir()
        self.folder = folder

    def write(self, path: str, text: str) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def group(self, path: str, **files: str) -> None:
        for name, text in files.items():
            self.write(f"cgroup/{path}/{name.replace('_', '.', 1)}", text)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000\n", CORES),
        ("", CORES),
        ("nonsense", CORES),
        ("100000 0\n", CORES),
        ("100000 100000\n", 1),
        ("150000 100000\n", 1),
        ("10000 100000\n", 1),
        ("99900000 100000\n", CORES),
    ],
)
def test_cores_are_those_that_it_is_bound_to_and_of_a_quota_whole_ones(kernel: Kernel, quota: str, cores: int) -> None:
    kernel.group("", cpu_max=quota)
    assert usable_cores(kernel.proc, kernel.cgroup) == cores


def test_quota_of_a_group_above_counts_too(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "3:cpuset:/\n0::/pod/container\n")
    kernel.group("pod/container", cpu_max="max 100000")
    kernel.group("pod", cpu_max="100000 100000")
    assert usable_cores(kernel.proc, kernel.cgroup) == 1


def test_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, tmp_path) == CORES
    assert memory(tmp_path, tmp_path) is None


def test_memory_is_that_of_the_machine_or_of_the_container_that_has_less(kernel: Kernel) -> None:
    kernel.write(
        "proc/meminfo", "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    600 kB\nHugePages_Total: 0\n"
    )
    assert memory(kernel.proc, kernel.cgroup) == Memory(614_400, 1_024_000)
    kernel.write("proc/self/cgroup", "0::/pod\n")
    kernel.group("pod", memory_max="max\n", memory_current="5\n")
    assert memory(kernel.proc, kernel.cgroup) == Memory(614_400, 1_024_000)
    kernel.group("pod", memory_max="500000\n", memory_current="450000\n", memory_stat="anon 1\ninactive_file 30000\n")
    assert memory(kernel.proc, kernel.cgroup) == Memory(80_000, 500_000)


def test_this_machine_says_what_it_has() -> None:
    room = memory()
    assert room is not None
    assert 0 < room.free <= room.whole
    assert 1 <= usable_cores() <= CORES


@pytest.mark.parametrize(
    ("cores", "jobs", "each"), [(1, 1, 1), (8, 1, 8), (8, 4, 2), (8, 3, 3), (2, 5, 1), (1, 9, 1), (4, 0, 4)]
)
def test_processes_are_as_many_in_all_as_cores_or_one_more_each(cores: int, jobs: int, each: int) -> None:
    assert processes_each(cores, jobs) == each
