"""What is wrong with a Redis, and with the machine that this runs on: findings, from what both say of themselves.

A constant number of commands (INFO, CONFIG GET, SLOWLOG GET, a few ECHOs, TIME), none of which changes anything; what
the user of the URL may not ask is said and left out. Start at `read_server` and `server_findings`. Sources: redis.conf
of Redis 7.0 and 8.2; for versions the security advisories of Redis and Valkey (CVE-2025-49844, October 2025).
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.exceptions import ResponseError

from streamcrawl.ops.status import counted, number, span
from streamcrawl.store.connection import mapped_errors, server_info, server_ms, server_refusal, version_refusal
from streamcrawl.store.scripts import digest, script_names
from streamcrawl.work.janitor import MEMORY_MARK
from streamcrawl.work.machine import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from streamcrawl.store.connection import Version

ECHOS: Final = 5
"""Not PING, which a server refuses whose disk is full."""
ANSWER_SLOW_MS: Final = 20.0
"""A commit is one round trip, and each page waits for one."""
SKEW_MS: Final = 2000
SLOW_US: Final = 20_000
"""Of a command; scripts of ours take 5 ms at most, and everybody waits for one that takes longer."""
SLOW_LOOKED: Final = 128
SLOW_OVER_S: Final = 3600
"""What was slow before that is no news."""
FORK_SLOW_US: Final = 500_000
LAG_S: Final = 10
FILES_LEAST: Final = 4096
"""Open files of a process: 512 slots have one connection each to a host, and as many may be kept open."""
DISK_LEAST_BYTES: Final = 50_000_000
DISK_SPARE_BYTES: Final = 500_000_000
DISK_WORDS: Final = frozenset({"disk_full", "disk_near"})
"""Of findings about the file system of a folder."""
NEAR: Final = 0.9
_CONFIG: Final = (
    "save", "stop-writes-on-bgsave-error", "client-output-buffer-limit", "maxclients", "disable-thp", "dir",
    "appendfsync",
)  # fmt: skip
_LUA_FIXED: Final[dict[str, tuple[Version, ...]]] = {
    "redis": ((7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
"""The first version of each series in which a script cannot run code of its own (CVE-2025-49844)."""


class Severity(StrEnum):
    FAULT = "fault"
    """Something is lost, may be, or stands still until somebody acts."""
    WARNING = "warning"
    """It costs work, or becomes a fault."""
    NOTE = "note"


class Area(StrEnum):
    """What a finding is about; a fault of it decides the exit code."""

    AUDIT = "audit"
    REDIS = "redis"
    MACHINE = "machine"
    CRAWL = "crawl"
    LETTERS = "letters"


class Finding(msgspec.Struct, frozen=True):
    severity: Severity
    area: Area
    word: str
    """What it is, for programs."""
    text: str
    """What is wrong, with its figure."""
    do: str = ""
    """What mends it: a command, or a sentence."""
    runbook: str = ""
    """Heading of its paragraph in docs/runbook.md; '' where it has none."""
    crawl: str = ""
    """'' for what is not of one crawl."""


class ServerLook(msgspec.Struct):
    """What a Redis says of itself."""

    info: dict[str, Any]
    config: dict[str, str] = msgspec.field(default_factory=dict)
    """Empty when we may not ask."""
    slow: list[tuple[int, int, str]] = msgspec.field(default_factory=list)
    """Start (s since the epoch), µs, and the first words of the slow commands it remembers."""
    refused: list[str] = msgspec.field(default_factory=list)
    """What we may not ask."""
    answer_ms: float = 0.0
    """Of a command that does nothing, the median."""
    skew_ms: int = 0
    """The server's clock before (negative: behind) this machine's."""
    round_trip_ms: int = 0


async def read_server(client: Redis) -> ServerLook:
    """Ask a server.

    Raises:
        StoreError: it does not answer, or not even INFO may be asked.
    """
    with mapped_errors():
        info: Any = await client.info()
    look = ServerLook(info)
    try:
        with mapped_errors():
            config: Any = await _asked(client.config_get(*_CONFIG))
            look.config = _texts(config)
    except _NotAllowed:
        look.refused.append("CONFIG GET")
    try:
        with mapped_errors():
            for row in await _asked(client.slowlog_get(SLOW_LOOKED)):
                age_s = int(info.get("server_time_usec") or 0) // 1_000_000 - row["start_time"]
                if row["duration"] >= SLOW_US and age_s <= SLOW_OVER_S:
                    look.slow.append((row["start_time"], row["duration"], _command_in(row["command"])))
    except _NotAllowed:
        look.refused.append("SLOWLOG GET")
    took = []
    for _ in range(ECHOS):
        began = time.perf_counter()
        with mapped_errors():
            await client.echo("")
        took.append(1000 * (time.perf_counter() - began))
    look.answer_ms = statistics.median(took)
    try:
        before = time.time()
        with mapped_errors():
            said: Any = await _asked(client.time())
        after = time.time()
        look.skew_ms = round(server_ms(said) - 500 * (before + after))
        look.round_trip_ms = round(1000 * (after - before))
    except _NotAllowed:
        look.refused.append("TIME")
    return look


class _NotAllowed(Exception):
    """The server knows the question, and does not answer it to us."""


async def _asked(question: Any) -> Any:
    try:
        return await question
    except ResponseError as error:
        # NOPERM, or a hosted server without the command.
        raise _NotAllowed from error


def _texts(answer: dict[Any, Any]) -> dict[str, str]:
    def text(value: Any) -> str:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    return {text(name): text(value) for name, value in answer.items()}


def _command_in(command: bytes | str) -> str:
    """Return a command without its arguments, which may have a URL in them; of a script of ours its name."""
    text = command.decode("utf-8", "replace") if isinstance(command, bytes) else command
    name, _, rest = text.partition(" ")
    if name.upper() != "EVALSHA":
        return name
    asked = rest.partition(" ")[0]
    return next((f"{one}.lua" for one in script_names() if digest(one) == asked), f"{name} {asked}")


def server_findings(look: ServerLook, *, is_embedded: bool = False) -> Iterator[Finding]:
    """Yield what is wrong with a server."""
    yield from _fitness(look)
    yield from _memory(look, is_embedded=is_embedded)
    yield from _disk_of(look)
    yield from _replicas(look)
    yield from _clients(look)
    yield from _speed(look)
    for what in look.refused:
        text = f"{what} may not be asked by this user, so what it would show was not looked at"
        yield _note("not_asked", text, f"ACL SETUSER USER +{what.lower().replace(' ', '|')}")


def _fault(word: str, text: str, do: str = "", runbook: str = "") -> Finding:
    return Finding(Severity.FAULT, Area.REDIS, word, text, do, runbook)


def _warning(word: str, text: str, do: str = "", runbook: str = "") -> Finding:
    return Finding(Severity.WARNING, Area.REDIS, word, text, do, runbook)


def _note(word: str, text: str, do: str = "", runbook: str = "") -> Finding:
    return Finding(Severity.NOTE, Area.REDIS, word, text, do, runbook)


def _fitness(look: ServerLook) -> Iterator[Finding]:
    info = look.info
    server = server_info(info)
    refusal = server_refusal(info)
    if version_refusal(server.flavour, server.version):
        word = "version"
    elif info.get("role") == "slave":
        word = "replica"
    elif server.policy != "noeviction":
        word = "policy"
    else:
        word = "topology"
    if refusal is not None:
        text, _, mend = refusal.partition(": ")
        yield _fault(word, text, mend)
    if server.policy != "noeviction" and word != "policy":
        yield _fault(
            "policy", f"maxmemory-policy is {server.policy}", "redis-cli CONFIG SET maxmemory-policy noeviction"
        )
    if lua_hole(server.flavour, server.version) and word != "version":
        name = f"{server.flavour.capitalize()} {'.'.join(map(str, server.version))}"
        text = (
            f"{name}: who may run scripts can run code of their own (CVE-2025-49844), unless its packager has mended it"
        )
        fixed = ", ".join(".".join(map(str, one)) for one in _LUA_FIXED[server.flavour])
        yield _warning("cve", text, f"install a fixed version: {fixed} or newer")
    if int(info.get("loading") or 0):
        yield _warning(
            "loading", "it is still loading its data: nothing else is answered", "wait", "StreamcrawlRedisDown"
        )
    evicted = int(info.get("evicted_keys") or 0)
    if evicted:
        text = f"{counted(evicted, 'key')} were evicted since it was started: parts of a crawl may be gone"
        yield _warning("evicted", text, "streamcrawl audit NAME says whether they are", "StreamcrawlAuditUnbalanced")


def lua_hole(flavour: str, version: Version) -> bool:
    """Return whether scripts of such a server can break out, as far as its version says."""
    fixed = _LUA_FIXED.get(flavour, ())
    same = next((one for one in fixed if one[:2] == version[:2]), None)
    # A series in between that was never mended, or one that began mended.
    return version < same if same is not None else bool(fixed) and version < fixed[-1]


def _memory(look: ServerLook, *, is_embedded: bool) -> Iterator[Finding]:
    info = look.info
    used, most, whole = (int(info.get(name) or 0) for name in ("used_memory", "maxmemory", "total_system_memory"))
    mib = f"{used / 1e6:,.0f} MB"
    raise_it = "redis-cli CONFIG SET maxmemory SIZE, with room for a fork"
    if is_embedded:
        raise_it = "go on with a larger --memory-max"
    if not most:
        if not is_embedded:
            text = f"no maxmemory ({mib} in use): what ends its growth is the kernel, and with it Redis"
            yield _warning("maxmemory_unset", text, raise_it)
        return
    share = used / (MEMORY_MARK * most)
    figure = f"{mib} of {most / 1e6:,.0f} MB; nothing new is dispatched above {MEMORY_MARK * most / 1e6:,.0f} MB"
    if share >= 1:
        yield _fault("memory_full", f"memory is above the mark: {figure}", raise_it, "StreamcrawlMemoryFull")
    elif share >= NEAR:
        yield _warning("memory_near", f"memory is near the mark: {figure}", raise_it, "StreamcrawlRedisMemoryNearMark")
    if whole and most > whole:
        text = f"maxmemory ({most / 1e6:,.0f} MB) is more than its machine has ({whole / 1e6:,.0f} MB)"
        yield _warning("maxmemory_large", text, "redis-cli CONFIG SET maxmemory SIZE")
    ratio = float(info.get("mem_fragmentation_ratio") or 0)
    if ratio > 1.5 and used > 200_000_000:
        text = f"memory is fragmented: {ratio:.1f} times as much is taken from the machine as is in use ({mib})"
        yield _note("fragmented", text, "redis-cli CONFIG SET activedefrag yes, where its allocator can")


def _disk_of(look: ServerLook) -> Iterator[Finding]:
    info, config = look.info, look.config
    rewrite = "make room on its disk, then redis-cli BGREWRITEAOF; do not restart it before"
    if not info.get("aof_enabled"):
        text = "no append-only file: a restart of it loses the crawls since its last dump, or all of them"
        yield _warning("aof_off", text, "redis-cli CONFIG SET appendonly yes, and CONFIG REWRITE", "StreamcrawlAofOff")
    for field, what in (("aof_last_write_status", "write"), ("aof_last_bgrewrite_status", "rewrite")):
        if info.get("aof_enabled") and info.get(field, "ok") != "ok":
            text = f"the last {what} of the append-only file failed: writes are refused until one succeeds"
            yield _fault("aof_failed", text, rewrite, "StreamcrawlAofFailed")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = "the last dump (RDB) failed"
        # Unknown means the default, which is yes where it dumps at all.
        if config.get("save", "?") and config.get("stop-writes-on-bgsave-error", "yes") == "yes":
            text += ": writes are refused until one succeeds (MISCONF)"
            yield _fault("rdb_failed", text, "make room on its disk, then redis-cli BGSAVE", "StreamcrawlAofFailed")
        else:
            yield _warning("rdb_failed", text, "make room on its disk, then redis-cli BGSAVE")
    delayed = int(info.get("aof_delayed_fsync") or 0)
    if delayed:
        text = f"its disk was too slow {counted(delayed, 'time')} since it was started: a write waited for an fsync"
        yield _note("fsync_slow", text, "a faster disk, or one of its own for Redis")


def _replicas(look: ServerLook) -> Iterator[Finding]:
    for n in range(int(look.info.get("connected_slaves") or 0)):
        one = look.info.get(f"slave{n}")
        if not isinstance(one, dict):
            continue
        where = f"{one.get('ip')}:{one.get('port')}"
        if one.get("state") != "online":
            yield _warning("replica_offline", f"its replica {where} is {one.get('state')}", f"see the log of {where}")
        elif int(one.get("lag") or 0) > LAG_S:
            text = f"its replica {where} is {one['lag']} s behind: a failover would lose as much"
            yield _warning("replica_lag", text, f"see the network to {where}, and its load")


def _clients(look: ServerLook) -> Iterator[Finding]:
    info, config = look.info, look.config
    most = int(config.get("maxclients") or info.get("maxclients") or 0)
    there = int(info.get("connected_clients") or 0)
    if most and there >= NEAR * most:
        text = f"{number(there)} of {number(most)} clients are connected: others will be refused"
        yield _warning("clients_near", text, "redis-cli CONFIG SET maxclients N")
    words = config.get("client-output-buffer-limit", "").split()
    limits = {words[n]: words[n + 1 : n + 4] for n in range(0, len(words) - 3, 4)}
    for limit in limits.get("normal", [])[:2]:
        if limit.isdecimal() and 0 < int(limit) < 64_000_000:
            text = (
                f"client-output-buffer-limit cuts a client off at {int(limit) / 1e6:.1f} MB: a large answer never comes"
            )
            yield _warning("output_buffer", text, 'redis-cli CONFIG SET client-output-buffer-limit "normal 0 0 0"')
            break


def _speed(look: ServerLook) -> Iterator[Finding]:
    if look.answer_ms > ANSWER_SLOW_MS:
        text = f"an answer takes {look.answer_ms:.0f} ms from this machine: each page waits for such a round trip"
        yield _warning(
            "answer_slow", text, "see the network, and whether Redis is short of CPU", "StreamcrawlHeartbeatLate"
        )
    if abs(look.skew_ms) > SKEW_MS + look.round_trip_ms:
        way = "ahead of" if look.skew_ms > 0 else "behind"
        text = (
            f"its clock is {span(abs(look.skew_ms))} {way} this machine's: politeness and leases go by its own alone, "
            "times in records and logs do not fit together"
        )
        yield _warning("clock_skew", text, "set both clocks by NTP")
    if look.slow:
        longest = max(look.slow, key=lambda one: one[1])
        text = (
            f"{counted(len(look.slow), 'slow command')} of {SLOW_US // 1000} ms or more in the last hour, the longest "
            f"{longest[1] / 1000:,.0f} ms ({longest[2]}): everybody waits for one"
        )
        yield _warning("slow_commands", text, "redis-cli SLOWLOG GET 128, then find who sends them")
    fork_us = int(look.info.get("latest_fork_usec") or 0)
    if fork_us > FORK_SLOW_US:
        text = f"its last fork stopped it for {span(fork_us // 1000)}"
        yield _warning("fork_slow", text, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled on its machine")


# -- this machine


def machine_findings(folder: Path | None, look: ServerLook | None, *, is_local: bool) -> Iterator[Finding]:
    """Yield what is wrong with this machine.

    Args:
        folder: Of the data of an embedded server; None without one.
        look: At the server; None when nothing runs.
        is_local: It runs on this machine.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard not in (resource.RLIM_INFINITY, -1) and hard < FILES_LEAST:
        text = f"a process may open {number(hard)} files here: so many connections are all that a worker can have"
        yield Finding(
            Severity.WARNING, Area.MACHINE, "files_limit", text, f"ulimit -Hn {FILES_LEAST * 4}, or LimitNOFILE="
        )
    used = int(look.info.get("used_memory") or 0) if look is not None else 0
    if is_local and look is not None and folder is None and (said := look.config.get("dir")):
        folder = Path(said)
    if folder is not None:
        yield from _disk(folder, used)
    if is_local and look is not None:
        yield from _kernel(look, used)


def _disk(folder: Path, used: int) -> Iterator[Finding]:
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
        figure = f"{free / 1e6:,.0f} MB are free on the disk of {folder}"
        do = "make room there"
        if free < DISK_LEAST_BYTES:
            text = f"{figure}: Redis is about to refuse writes"
            yield Finding(Severity.FAULT, Area.MACHINE, "disk_full", text, do, "StreamcrawlAofFailed")
        elif free < max(DISK_SPARE_BYTES, used):
            text = f"{figure}: a rewrite of its append-only file may need {max(used, DISK_SPARE_BYTES) / 1e6:,.0f}"
            yield Finding(Severity.WARNING, Area.MACHINE, "disk_near", text, do, "StreamcrawlAofFailed")


def _kernel(look: ServerLook, used: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Iterator[Finding]:
    here = memory()
    if _read(proc / "sys/vm/overcommit_memory") == "0" and here is not None and used > here.whole // 2:
        text = (
            "vm.overcommit_memory is 0 and Redis has more than half of this machine: a fork for its file may be refused"
        )
        yield Finding(Severity.WARNING, Area.MACHINE, "overcommit", text, "sysctl vm.overcommit_memory=1")
    if "[always]" in _read(sys / "kernel/mm/transparent_hugepage/enabled") and look.config.get("disable-thp") == "no":
        text = "transparent huge pages are always on, and Redis does not switch them off for itself: forks take long"
        do = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        yield Finding(Severity.NOTE, Area.MACHINE, "huge_pages", text, do)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def runs_here(look: ServerLook, proc: Path = Path("/proc")) -> bool:
    """Return whether a server is a process of this machine, as far as its pid tells: that of another machine, or in a
    container, is no Redis here."""
    pid = server_info(look.info).os_pid
    name = _read(proc / str(pid) / "comm") if pid else ""
    return name.startswith(("redis", "valkey")) and (os.name == "posix")
