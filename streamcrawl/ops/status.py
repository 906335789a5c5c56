"""What a crawl is doing, in one look that costs the same for a small crawl and a large one.

Reads counters and lengths only, and the newest dead letters for the names of hosts that were given up: no scan of
anything that grows with the crawl. Start at `read_status`. `as_json` is what `streamcrawl status --json` prints.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import CodecError, ConfigError
from streamcrawl.rules.task import Kind, decode_task
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.keys import GROUP, ROOT, Keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from redis.asyncio import Redis

HOSTS_NAMED_MAX: Final = 20
DEAD_READ_MAX: Final = 1000
"""Newest dead letters looked at for the names of given-up hosts: some 300 kB, read once per look."""
ALIVE_MS: Final = 90_000
"""A worker that has not beaten for three leases (of the default length) is not alive."""
_HOST_REASONS: Final = frozenset({"host_unreachable", "robots_unreachable"})
_STATE_KEY: Final = re.compile(rf"^{ROOT}:\{{(.+):(\d+)\}}:state$")


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    consumer: str
    slots: int
    beat_age_ms: int
    info: str
    """JSON as the worker wrote it: pid, machine, role."""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    name: str
    path: str
    """As given with -o; '' when the crawl was not started by the command line."""
    waiting: int
    """Records that nobody has read yet."""
    written: int
    offset: int
    """Bytes that are written and committed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    url: str
    reason: str
    error: str
    last_status: str
    died_at_ms: int


@dataclass(slots=True)
class Status:
    """One crawl at one moment; counts are of pages unless their name says otherwise."""

    name: str
    is_closed: bool = False
    """All seeds are in: the crawl ends when nothing is left."""
    is_paused: bool = False
    stopped: str = ""
    """Why dispatch stopped (FRONTIER_FULL, MEMORY_FULL, …); '' while it has not."""
    throttled: str = ""
    """The sink that is over its mark; '' when none is."""
    totals: dict[str, int] = field(default_factory=dict)
    """Every counter, `page.done` and so on: keys.py, `totals`."""
    streamed: int = 0
    """Entries of the fetch stream, of which `pending` are in the hands of workers."""
    pending: int = 0
    hosts_scheduled: int = 0
    hosts_failing: int = 0
    hosts_giving_up: int = 0
    given_up: list[str] = field(default_factory=list)
    """Hosts that were given up, at most HOSTS_NAMED_MAX, as far as the newest dead letters name them."""
    dead_letters: int = 0
    newest_dead: list[DeadLetter] = field(default_factory=list)
    """Newest first, at most 5."""
    seen: int = 0
    slots: int = 0
    workers: list[WorkerStatus] = field(default_factory=list)
    sinks: list[SinkStatus] = field(default_factory=list)
    memory_bytes: int = 0
    """Of the whole server."""
    memory_max_bytes: int = 0
    """Limit of the server; 0 when it has none."""

    def page(self, state: str) -> int:
        """Return a count of pages: created, queued, streamed, delayed, done, dead, dropped, retried, …"""
        return self.totals.get(f"page.{state}", 0)

    def by_reason(self, state: str) -> dict[str, int]:
        """Return pages that are `dead` or `dropped` by reason, the most frequent first; robots tasks that died too."""
        counts: Counter[str] = Counter()
        for kind in Kind:
            start = f"{kind}.{state}."
            for name, count in self.totals.items():
                if name.startswith(start) and count:
                    counts[name.removeprefix(start)] += count
        return dict(counts.most_common())

    def as_json(self) -> dict[str, Any]:
        document = msgspec.to_builtins(self)
        document["dead_by_reason"] = self.by_reason("dead")
        document["dropped_by_reason"] = self.by_reason("dropped")
        return dict(document)


async def read_status(client: Redis, name: str, *, shard: int = 0) -> Status:
    """Look at a crawl.

    Raises:
        ConfigError: there is no crawl of this name.
        StoreUnavailable: as every call of the store.
    """
    keys = Keys(name, shard)
    async with client.pipeline(transaction=False) as pipe:
        pipe.hgetall(keys.state)
        pipe.hgetall(keys.totals)
        pipe.hgetall(keys.workers)
        pipe.hgetall(keys.offsets)
        for key in (keys.schedule, keys.failing, keys.giving_up):
            pipe.zcard(key)
        pipe.zrange(keys.giving_up, 0, HOSTS_NAMED_MAX - 1)
        pipe.xlen(keys.dead)
        pipe.xrevrange(keys.dead, count=DEAD_READ_MAX)
        pipe.xlen(keys.fetch_stream)
        pipe.xpending(keys.fetch_stream, GROUP)
        pipe.info("memory")
        pipe.time()
        with mapped_errors():
            answers: list[Any] = await pipe.execute(raise_on_error=False)
    state = answers[0]
    if isinstance(state, dict) and b"epoch" not in state:
        raise ConfigError(f"there is no crawl {name!r} in this store; `streamcrawl status` lists those that are")
    with mapped_errors():
        for place, answer in enumerate(answers):
            # XPENDING alone may be refused: a stream that was lost has no group, and the rest is still worth showing.
            if isinstance(answer, Exception):
                if place != 11:
                    raise answer
                answers[place] = {"pending": 0}
    (
        _,
        totals,
        workers,
        offsets,
        scheduled,
        failing,
        giving_up,
        emptying,
        dead,
        newest,
        streamed,
        pending,
        memory,
        now,
    ) = answers
    now_ms = now[0] * 1000 + now[1] // 1000
    letters = list(_dead_letters(newest))
    texts = _texts(state)
    status = Status(
        name=name,
        is_closed=texts.get("closed") == "1",
        is_paused=texts.get("paused") == "1",
        stopped=texts.get("stopped", ""),
        throttled=texts.get("throttled", ""),
        totals={field: int(count) for field, count in _texts(totals).items()},
        streamed=streamed,
        pending=pending["pending"],
        hosts_scheduled=scheduled,
        hosts_failing=failing,
        hosts_giving_up=giving_up,
        given_up=_given_up([host.decode() for host in emptying], letters),
        dead_letters=dead,
        newest_dead=[letter for _, letter in letters[:5]],
        seen=int(texts.get("seen", 0)),
        slots=int(texts.get("slots", 0)),
        workers=sorted(_workers(_texts(workers), now_ms), key=lambda worker: worker.consumer),
        memory_bytes=int(memory["used_memory"]),
        memory_max_bytes=int(memory["maxmemory"]),
    )
    status.sinks = await _sinks(client, keys, status, texts, _texts(offsets))
    return status


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}


def _workers(rows: Mapping[str, str], now_ms: int) -> Iterable[WorkerStatus]:
    for consumer, row in rows.items():
        beat, slots, info = (*row.split(" ", 2), "", "")[:3]
        if beat.isdecimal() and slots.isdecimal():
            yield WorkerStatus(consumer, int(slots), max(0, now_ms - int(beat)), info)


async def _sinks(
    client: Redis, keys: Keys, status: Status, state: Mapping[str, str], offsets: Mapping[str, str]
) -> list[SinkStatus]:
    paths = stored_sinks(state)
    sinks = []
    for name in filter(None, state.get("sinks", "").split(",")):
        with mapped_errors():
            length = await client.xlen(keys.sink_stream(name))
            groups: Any = await client.xinfo_groups(keys.sink_stream(name)) if length else []
        sinks.append(
            SinkStatus(
                name=name,
                path=paths.get(name, ""),
                waiting=length - sum(group["pending"] for group in groups),
                written=status.totals.get(f"{name}.done", 0),
                offset=int(offsets.get(f"{name}:offset", 0)),
            )
        )
    return sinks


def stored_sinks(state: Mapping[str, str]) -> dict[str, str]:
    """Return sink name -> path as the crawl's state has them (cli/crawl.py writes it); empty when it has none."""
    with suppress(msgspec.DecodeError):
        stored = msgspec.json.decode(state.get("crawl", "{}"))
        if isinstance(stored, dict) and isinstance(stored.get("sinks"), dict):
            return {str(name): str(path) for name, path in stored["sinks"].items()}
    return {}


def _dead_letters(entries: Sequence[Any]) -> Iterable[tuple[str, DeadLetter]]:
    """Yield (host key, letter) for entries of the `dead` stream."""
    for entry_id, fields in entries:
        texts = _texts(fields)
        host = texts.get("host", "")
        try:
            url = decode_task(host, texts.get("level", "2"), fields.get(b"task", b"")).url
        except CodecError:
            url = host
        yield (
            host,
            DeadLetter(
                url=url,
                reason=texts.get("reason", ""),
                error=texts.get("error", ""),
                last_status=texts.get("last_status", ""),
                died_at_ms=int(entry_id.partition(b"-")[0]),
            ),
        )


def _given_up(emptying: Sequence[str], letters: Iterable[tuple[str, DeadLetter]]) -> list[str]:
    named = dict.fromkeys(host for host, letter in letters if letter.reason in _HOST_REASONS)
    return list(dict.fromkeys([*emptying, *named]))[:HOSTS_NAMED_MAX]


async def crawl_names(client: Redis) -> list[str]:
    """Return the names of all crawls in a store, by SCAN over all of its keys; sorted."""
    names = set()
    with mapped_errors():
        async for key in client.scan_iter(match=f"{ROOT}:*:state", count=5000, _type="hash"):
            if match := _STATE_KEY.match(key.decode("utf-8", "replace")):
                names.add(match[1])
    return sorted(names)


# -- for people


def status_lines(status: Status) -> list[str]:
    """Return the status as lines of plain text."""
    lines = [f"crawl {status.name}: {condition(status)}", ""]
    rows = [
        ("pages done", number(status.page("done"))),
        ("queued", number(status.page("queued"))),
        ("in the stream", f"{number(status.streamed)} ({number(status.pending)} in the hands of workers)"),
        ("delayed", number(status.page("delayed"))),
        ("dead", reasons(status.by_reason("dead"))),
        ("dropped", reasons(status.by_reason("dropped"))),
        ("URLs seen", number(status.seen)),
        ("hosts scheduled", number(status.hosts_scheduled)),
        ("hosts failing", number(status.hosts_failing)),
        ("hosts given up", ", ".join(status.given_up) or "0"),
        ("memory", memory(status)),
    ]
    rows += [("worker", _worker_text(worker)) for worker in status.workers]
    rows += [
        (
            "output",
            f"{sink.path or sink.name}: {counted(sink.written, 'record')}, {counted(sink.offset, 'byte')}, "
            f"{number(sink.waiting)} waiting",
        )
        for sink in status.sinks
    ]
    width = max(len(label) for label, _ in rows)
    return lines + [f"  {label:<{width}}  {text}" for label, text in rows]


def condition(status: Status) -> str:
    """Return in some words what state the crawl is in."""
    words = []
    if status.is_paused:
        words.append("paused")
    if status.stopped:
        words.append(f"stopped ({status.stopped})")
    if status.throttled:
        words.append(f"throttled by {status.throttled}")
    left = status.page("queued") + status.streamed + status.page("delayed") + sum(sink.waiting for sink in status.sinks)
    if left:
        is_alive = any(worker.beat_age_ms < ALIVE_MS for worker in status.workers)
        words.append("at work" if is_alive else "at rest, no worker is alive")
    else:
        words.append("complete" if status.is_closed else "nothing to do, more seeds may come")
    return ", ".join(words)


def _worker_text(worker: WorkerStatus) -> str:
    info: dict[str, Any] = {}
    with suppress(msgspec.DecodeError):
        decoded = msgspec.json.decode(worker.info or "{}")
        info = decoded if isinstance(decoded, dict) else {}
    details = "".join(f", {key} {value}" for key, value in info.items())
    return (
        f"{worker.consumer}: {counted(worker.slots, 'slot')}, last beat {worker.beat_age_ms / 1000:.1f} s ago{details}"
    )


def reasons(counts: Mapping[str, int]) -> str:
    """Return `12 (timeout 10, dns 2)`, or `0`."""
    if not counts:
        return "0"
    return (
        f"{number(sum(counts.values()))} ({', '.join(f'{reason} {number(count)}' for reason, count in counts.items())})"
    )


def number(count: int) -> str:
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """Return `1 page`, `2,000 pages`: of nouns that take an s."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def memory(status: Status) -> str:
    """Return `5.1 MB of 1,000 MB`: of the server, whatever else is in it."""
    used = f"{status.memory_bytes / 1e6:,.1f} MB"
    return f"{used} of {status.memory_max_bytes / 1e6:,.0f} MB" if status.memory_max_bytes else used
