"""The CPU time of a command with everything it starts: children, their children, and those nobody waits for.

How it is counted: a wrapper process makes itself the *subreaper* of its descendants, starts the command, and waits for
it and for every orphan that falls to it. So each process of the tree is waited for by somebody inside the tree, the
kernel adds its time to whoever waited, and RUSAGE_CHILDREN of the wrapper is the sum of all, to the microsecond.
An embedded redis-server is a grandchild and counts whether its parent reaps it or dies first. (The one way out is a
process that ignores SIGCHLD: the kernel then drops the time of its children. `unwaited_cpu_s` shows such a loss.)

How it is split: /proc is sampled five times a second and the last value of each process kept, by role. A process's
last fifth of a second is missed, so the split explains the total and never replaces it: what it misses is named. The
same samples give the memory.

Linux only. `python -m benchmarks.process_tree --check` measures a tree of known cost and exits 1 if a part is lost.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
SAMPLE_MS: Final = 200
"""Reading /proc costs 1 to 2 ms a time: at most 1 % of one core, none of it counted."""

ORPHAN_GRACE_S: Final = 10.0
"""What still runs so long after the command has ended is killed and named in `left_behind`."""

TIMEOUT_S: Final = 600.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
REDIS: Final = "redis"
_ROLES: Final = {"crawl-fetch": "worker", "crawl-sink": "sink", "crawl-nursery": "nursery"}
"""By the names that streamcrawl gives its processes (work/nursery.py)."""


@dataclass(slots=True)
class ProcessUsage:
    """One process as it was last seen."""

    pid: int
    role: str
    cpu_s: float
    command: str
    memory_bytes: int
    """The most that a sample saw, each page shared with others counted as its share (PSS)."""


@dataclass(slots=True)
class TreeUsage:
    """What a command cost, with all its descendants."""

    exit_code: int
    wall_s: float
    cpu_s: float
    """Exact: user and system time of every process that was waited for."""
    cpu_s_by_role: dict[str, float] = field(default_factory=dict)
    """From samples; `unsampled` is what the samples missed of `cpu_s`."""
    unwaited_cpu_s: float = 0.0
    """What samples saw beyond `cpu_s`: more than 0 means that a process was never waited for and `cpu_s` is too low."""
    left_behind: list[str] = field(default_factory=list)
    """Commands that had to be killed after the command had ended."""
    memory_peak_bytes: int = 0
    """The most that all processes but a redis-server held at one sample (PSS, so that what they share counts once)."""
    processes: list[ProcessUsage] = field(default_factory=list)


def measure(
    command: Sequence[str], *, folder: Path, timeout_s: float = TIMEOUT_S, output: Path | None = None
) -> TreeUsage:
    """Run a command in a folder until it and all its descendants have ended, and return what it cost.

    Args:
        output: Takes the command's standard output; None lets it through.

    Raises:
        RuntimeError: the wrapper itself failed; its message is on standard error.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        wrapper = [sys.executable, "-m", "benchmarks.process_tree", "--report", report.name, "--folder", str(folder)]
        wrapper += ["--timeout", str(timeout_s), *(["--output", str(output)] if output else []), "--", *command]
        if subprocess.run(wrapper, check=False, cwd=Path(__file__).parents[1]).returncode:
            raise RuntimeError("the process that measures failed; see its error above")
        fields = json.loads(Path(report.name).read_bytes())
    fields["processes"] = [ProcessUsage(**process) for process in fields["processes"]]
    return TreeUsage(**fields)


@dataclass(slots=True)
class _Sample:
    cpu_s: float
    command: list[str]
    is_root: bool
    memory_bytes: int = 0


class _Sampler:
    """Keeps the last state of every descendant of this process, by pid and start time (pids are used again)."""

    def __init__(self, root_pid: int) -> None:
        self._root_pid = root_pid
        self.seen: dict[tuple[int, int], _Sample] = {}
        self.memory_peak_bytes = 0

    def sample(self) -> list[int]:
        """Look at the tree once; return the pids in it that are alive, zombies left out."""
        alive = []
        together_bytes = 0
        for pid, letter, cpu_s, started in _states_below(os.getpid()):
            known = self.seen.setdefault((pid, started), _Sample(0.0, [], pid == self._root_pid))
            known.cpu_s = cpu_s
            # A zombie has no command line left, and a server may rename itself after its start.
            known.command = _read_command(pid) or known.command
            if letter not in "ZX":
                alive.append(pid)
                held_bytes = _read_memory(pid)
                known.memory_bytes = max(known.memory_bytes, held_bytes)
                if role_of(known.command, is_root=known.is_root) != REDIS:
                    together_bytes += held_bytes
        self.memory_peak_bytes = max(self.memory_peak_bytes, together_bytes)
        return alive


def descendants(pid: int) -> list[tuple[int, str]]:
    """Return the processes that now descend from one, itself first, with what each does (`role_of`)."""
    below = (child for child, letter, _, _ in _states_below(pid) if letter not in "ZX")
    return [(one, role_of(_read_command(one), is_root=one == pid)) for one in (pid, *below)]


def _states_below(root: int) -> Iterator[tuple[int, str, float, int]]:
    """Yield pid, state letter, CPU seconds and start time of every descendant of a process."""
    states: dict[int, tuple[int, str, float, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (state := _read_stat(int(name))) is not None:
            states[int(name)] = state
    children: dict[int, list[int]] = {}
    for pid, (parent, *_) in states.items():
        children.setdefault(parent, []).append(pid)
    pending = list(children.get(root, ()))
    while pending:
        pid = pending.pop()
        pending += children.get(pid, ())
        yield pid, *states[pid][1:]


def _read_stat(pid: int) -> tuple[int, str, float, int] | None:
    """Return parent, state letter, CPU seconds and start time of a process; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses itself; what follows the last one is regular.
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(fields[19])


def _read_memory(pid: int) -> int:
    """Return the proportional set size of a process; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) * 1024


def _read_command(pid: int) -> list[str]:
    """Return the command line of a process and its name in parentheses; empty when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0")
    except OSError:
        return []
    if not text:
        return []
    try:
        name = Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        name = ""
    return [*text.split("\0"), f"({name})"]


def role_of(command: Sequence[str], *, is_root: bool) -> str:
    """Return what a process of the tree does: redis, cli, one of the values of `_ROLES`, or other."""
    if command and "redis-server" in command[0]:
        return REDIS
    if is_root:
        return "cli"
    return _ROLES.get(command[-1].strip("()"), "other") if command else "other"


def _die_with_parent() -> None:
    """Have the kernel end this process with the one above it: a benchmark that is killed leaves no crawl behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _run(command: Sequence[str], folder: Path, timeout_s: float, output: Path | None) -> TreeUsage:
    """Run the command as this process's child and account for the tree. Only for a process made for this."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    began_s = time.monotonic()
    if output is None:
        process = subprocess.Popen(command, cwd=folder, preexec_fn=_die_with_parent)
    else:
        with output.open("wb") as sink:
            process = subprocess.Popen(command, cwd=folder, stdout=sink, preexec_fn=_die_with_parent)
    sampler, ended = _Sampler(process.pid), select.poll()
    pidfd = os.pidfd_open(process.pid)
    ended.register(pidfd, select.POLLIN)
    # The poll returns while the command is still a zombie, so that the last sample has its final figure.
    while not ended.poll(SAMPLE_MS):
        sampler.sample()
        if time.monotonic() - began_s > timeout_s:
            process.kill()
    sampler.sample()
    os.close(pidfd)
    exit_code, wall_s = process.wait(), time.monotonic() - began_s
    left_behind = _reap_orphans(sampler)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    usage = TreeUsage(exit_code, wall_s, cpu_s, left_behind=left_behind, memory_peak_bytes=sampler.memory_peak_bytes)
    for (pid, _), seen in sorted(sampler.seen.items()):
        role = role_of(seen.command, is_root=seen.is_root)
        usage.processes.append(ProcessUsage(pid, role, seen.cpu_s, " ".join(seen.command)[:200], seen.memory_bytes))
        usage.cpu_s_by_role[role] = round(usage.cpu_s_by_role.get(role, 0.0) + seen.cpu_s, 3)
    sampled_s = sum(process.cpu_s for process in usage.processes)
    # /proc counts in ticks, so each process may be off by one without anything being lost.
    allowance_s = len(usage.processes) / _TICKS_PER_S
    usage.cpu_s_by_role["unsampled"] = round(max(0.0, cpu_s - sampled_s), 3)
    usage.unwaited_cpu_s = round(max(0.0, sampled_s - cpu_s - allowance_s), 3)
    return usage


def _reap_orphans(sampler: _Sampler) -> list[str]:
    """Wait for every process that has fallen to us; kill what does not end by itself and return its commands."""
    deadline_s = time.monotonic() + ORPHAN_GRACE_S
    killed: dict[int, str] = {}
    while True:
        alive = sampler.sample()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return list(killed.values())
        if time.monotonic() > deadline_s:
            for pid in alive:
                killed.setdefault(pid, " ".join(_read_command(pid)))
                os.kill(pid, signal.SIGKILL)
        time.sleep(SAMPLE_MS / 1000)


# -- the check: a tree of known cost ----------------------------------------------------------------------------------

_BURN: Final = """\
import os, subprocess, sys, time
log, *plan = sys.argv[1:]
# "wait" starts the next process and waits for it, "orphan" leaves it behind, "daemon" does so in a session of its own.
if plan:
    command = [sys.executable, "-c", os.environ["BURN"], log, *plan[1:]]
    child = subprocess.Popen(command, start_new_session=plan[0] == "daemon")
while time.process_time() < 0.4:
    pass
if plan and plan[0] == "wait":
    child.wait()
with open(log, "a") as out:
    print(time.process_time(), file=out)
if plan and plan[0] != "wait":
    os._exit(0)
"""


def check() -> dict[str, object]:
    """Measure a tree in which each process burns 0.4 s and one in three is not waited for by its parent."""
    plan = ["wait", "orphan", "wait", "daemon", "wait"]
    with tempfile.TemporaryDirectory() as name:
        log = Path(name, "burnt")
        os.environ["BURN"] = _BURN
        usage = measure([sys.executable, "-c", _BURN, str(log), *plan], folder=Path(name))
        burnt = [float(line) for line in log.read_text().split()]
    return {
        "benchmark": "process_tree_check",
        "processes_expected": len(plan) + 1,
        "processes_that_burnt": len(burnt),
        "burnt_cpu_s": round(sum(burnt), 3),
        "measured_cpu_s": round(usage.cpu_s, 3),
        "sampled_cpu_s": round(sum(process.cpu_s for process in usage.processes), 3),
        # What a process uses after it has written its line is a few ms; a lost process would be 0.4 s.
        "is_complete": len(burnt) == len(plan) + 1 and 0 <= usage.cpu_s - sum(burnt) < 0.03 * len(burnt) + 0.05,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.process_tree", description="Measure a command's CPU time."
    )
    parser.add_argument("--check", action="store_true", help="measure a tree of known cost")
    parser.add_argument("--report", type=Path, help="write the figures here; standard output without it")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where the command runs")
    parser.add_argument("--output", type=Path, help="takes the command's standard output")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS")
    parser.add_argument("command", nargs="*", help="after --")
    options = parser.parse_args()
    if options.check:
        result = check()
        print(json.dumps(result))
        raise SystemExit(0 if result["is_complete"] else 1)
    if not options.command:
        parser.error("name a command after --")
    usage = _run(options.command, options.folder, options.timeout, options.output)
    text = json.dumps(
        {name: getattr(usage, name) for name in TreeUsage.__slots__ if name != "processes"}
        | {
            "processes": [
                {name: getattr(process, name) for name in ProcessUsage.__slots__} for process in usage.processes
            ]
        }
    )
    if options.report is not None:
        options.report.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
