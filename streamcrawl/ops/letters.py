"""Dead letters: found, counted, sent again, removed for good; over all shards of a crawl, in windows of bounded size.

What is sent again or removed is asked for by id, one script call for a window (replay.lua, forget.lua), so whatever
ends this process at any moment, every letter is either as it was or done, and the same command goes on with the rest.
It looks at what was dead when it began: a letter that dies again meanwhile is not sent twice. Start at `Where`, then
`newest_first`, `replay` and `purge`.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from streamcrawl.errors import CodecError, ConfigError
from streamcrawl.ops.words import host_test, moment
from streamcrawl.rules.task import CrawlTask, Kind, decode_task, encode_task
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.keys import FETCH

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards

LETTERS_PER_CALL: Final = 100
"""In one window: 100 letters of as many hosts take replay.lua 2 to 4 ms (tests/integration/test_store_cost.py)."""
COUNTED_MAX: Final = 10_000
"""Newest letters that are looked at for a table of counts."""
CODEC: Final = "codec"
"""The reason of letters whose task could not be read: what they carry in its place is none."""
ITEM_SHOWN_BYTES: Final = 2000
"""Of an item: one may have a page in it."""
ITEM: Final = "item"
"""The kind of a letter that is no task."""
_ID: Final = re.compile(r"(?:(\d{1,4})/)?(\d{1,19}(?:-\d{1,19})?)")
_LINE: Final = re.compile(rb'\[\d+,\d+,"([a-z]+)"')
"""As scripts tell the line of a task (kind_of in _hosts.lua)."""


class Attempts(StrEnum):
    """What becomes of the tries that a task had."""

    RESET = "reset"
    """As if it were new: attempt 1, no crash."""
    KEEP = "keep"
    """One more try: it was dead with its last one, so the next failure ends it again."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter."""

    shard: int
    entry_id: str
    stage: str
    reason: str
    host: str
    level: str
    stored: bytes
    """The task as it is stored."""
    error: str
    last_status: str
    worker: str
    task: CrawlTask | None
    """None when it cannot be read, and then it cannot be sent again either; and for an item."""
    item_url: str = ""
    """Of the page that an item comes from; '' for a task."""
    attempt: int = 0
    """Of an item."""

    @classmethod
    def read(cls, shard: int, entry_id: bytes, fields: dict[bytes, bytes]) -> Letter:
        texts = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields.items()}
        host, level, stored = texts.get("host", ""), texts.get("level", ""), fields.get(b"task", b"")
        task = None
        stage = texts.get("stage", FETCH)
        if stage == FETCH and texts.get("reason") != CODEC:
            with suppress(CodecError):
                task = decode_task(host, level, stored)
        error, last_status, worker = (texts.get(name, "") for name in ("error", "last_status", "worker"))
        return cls(
            shard=shard,
            entry_id=entry_id.decode(),
            stage=texts.get("stage", ""),
            reason=texts.get("reason", ""),
            host=host,
            level=level,
            stored=stored,
            error=error,
            last_status=last_status,
            worker=worker,
            task=task,
            item_url=texts.get("url", "") if stage != FETCH else "",
            attempt=int(texts["attempt"]) if stage != FETCH and texts.get("attempt", "").isdecimal() else 0,
        )

    @property
    def url(self) -> str:
        """The URL, of an item that of its page, or the host when there is none to be read."""
        return self.item_url or (self.host if self.task is None else self.task.url)

    @property
    def is_item(self) -> bool:
        """Whether it is an item of a stage, and no task."""
        return self.stage not in ("", FETCH)

    @property
    def is_sendable(self) -> bool:
        return self.is_item or self.task is not None

    @property
    def kind(self) -> str:
        if self.is_item:
            return ITEM
        line = _LINE.match(self.stored)
        return line[1].decode() if line is not None and line[1].decode() in set(Kind) else Kind.PAGE

    @property
    def died_at_ms(self) -> int:
        return int(self.entry_id.partition("-")[0])

    def name(self, shards: int) -> str:
        """Return the id as people write it: with its shard when the crawl has several."""
        return self.entry_id if shards == 1 else f"{self.shard}/{self.entry_id}"

    def as_json(self, shards: int) -> dict[str, Any]:
        task = self.task
        found: dict[str, Any] = {
            "id": self.name(shards),
            "url": self.url,
            "stage": self.stage,
            "reason": self.reason,
            "error": self.error,
            "attempts": (self.attempt if self.is_item else None) if task is None else task.attempt,
            "crashes": None if task is None else task.crashes,
            "first_seen_at": "" if task is None else moment(task.discovered_ms),
            "died_at": moment(self.died_at_ms),
            "last_status": self.last_status,
            "worker": self.worker,
            "kind": self.kind,
            "host": self.host,
            "level": self.level,
            "depth": None if task is None else task.depth,
            "referrer": None if task is None else task.referrer,
            "redirects": [] if task is None else list(task.redirects),
        }
        if self.is_item:
            return found | {"item": self.stored[:ITEM_SHOWN_BYTES].decode("utf-8", "replace")}
        return found if task is not None else found | {"stored": self.stored.decode("utf-8", "replace")}


_GROUPS: Final[dict[str, Callable[[Letter], str]]] = {
    "reason": lambda letter: letter.reason,
    "status": lambda letter: letter.last_status,
    "worker": lambda letter: letter.worker,
    "kind": lambda letter: letter.kind,
    "stage": lambda letter: letter.stage,
    "host": lambda letter: letter.host,
}
GROUPS: Final = tuple(_GROUPS)
"""What letters can be counted by."""
WHERE_KEYS: Final = ("reason", "status", "worker", "kind")


@dataclass(frozen=True, slots=True)
class Where:
    """Which dead letters; every part that is given must hold."""

    values: dict[str, frozenset[str]] = field(default_factory=dict)
    """By one of WHERE_KEYS: one of these."""
    hosts: tuple[str, ...] = ()
    """One of these, as `words.host_test` takes them."""
    stage: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    match: re.Pattern[str] | None = None
    """Searched in the URL."""
    ids: tuple[str, ...] = ()
    """`ID`, or `SHARD/ID`; none: whatever its id."""
    tests: tuple[Callable[[Letter], bool], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        for text in self.ids:
            if not _ID.fullmatch(text):
                raise ConfigError(f"--id {text!r} is no id of a dead letter; `dead ls` shows them: 1796078790000-0")
        tests: list[Callable[[Letter], bool]] = [
            lambda letter, key=key, among=among: _GROUPS[key](letter) in among  # type: ignore[misc]
            for key, among in self.values.items()
        ]
        if self.hosts:
            of_hosts = [host_test(text) for text in self.hosts]
            tests.append(lambda letter: any(is_one(letter.host) for is_one in of_hosts))
        if (since_ms := self.since_ms) is not None:
            tests.append(lambda letter: letter.died_at_ms >= since_ms)
        if (until_ms := self.until_ms) is not None:
            tests.append(lambda letter: letter.died_at_ms <= until_ms)
        if self.stage is not None:
            tests.append(lambda letter: letter.stage == self.stage)
        if (match := self.match) is not None:
            tests.append(lambda letter: match.search(letter.url) is not None)
        object.__setattr__(self, "tests", tuple(tests))

    @property
    def is_all(self) -> bool:
        """No part is given: every letter."""
        return not (self.tests or self.ids)

    def admits(self, letter: Letter) -> bool:
        return all(test(letter) for test in self.tests)

    def range(self) -> tuple[str, str]:
        """Return the ids between which letters may lie: an id begins with the ms in which it died."""
        first = "-" if self.since_ms is None else str(max(0, self.since_ms))
        return first, "+" if self.until_ms is None else str(max(0, self.until_ms))


def parse_where(pairs: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return `values` of a `Where` from texts like `reason=timeout`; of one key any, of several keys all must hold.

    Raises:
        ConfigError: a text is none of these.
    """
    found: dict[str, set[str]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in WHERE_KEYS or not equals:
            raise ConfigError(f"--where {pair!r} will not do: write one of {', '.join(f'{k}=…' for k in WHERE_KEYS)}")
        found.setdefault(key, set()).add(value)
    return {key: frozenset(values) for key, values in found.items()}


# -- reading


async def letter_count(crawl: Shards) -> int:
    """Return how many dead letters there are."""
    with mapped_errors():
        return sum([await frontier.client.xlen(frontier.keys.dead) for frontier in crawl])


async def newest_first(crawl: Shards, where: Where) -> AsyncGenerator[Letter, None]:
    """Yield the letters that `where` admits, over all shards, the newest first; one window of each shard in memory."""
    sources = [newest_of(frontier, shard, where) for shard, frontier in enumerate(crawl)]
    heads: list[tuple[int, int, int, Letter]] = []

    async def advance(shard: int) -> None:
        async for letter in sources[shard]:
            ms, _, count = letter.entry_id.partition("-")
            heapq.heappush(heads, (-int(ms), -int(count), shard, letter))
            return

    try:
        for shard in range(len(sources)):
            await advance(shard)
        while heads:
            *_, shard, letter = heapq.heappop(heads)
            yield letter
            await advance(shard)
    finally:
        for source in sources:
            await source.aclose()


async def newest_of(frontier: Frontier, shard: int, where: Where) -> AsyncGenerator[Letter, None]:
    """Yield the letters of one shard that `where` admits, the newest first."""
    if where.ids:
        for letter in sorted(await _by_id(frontier, shard, where), key=lambda one: one.died_at_ms, reverse=True):
            yield letter
        return
    first, last = where.range()
    while True:
        with mapped_errors():
            rows: Any = await frontier.client.xrevrange(frontier.keys.dead, last, first, count=LETTERS_PER_CALL)
        for entry_id, fields in rows:
            letter = Letter.read(shard, entry_id, fields)
            if where.admits(letter):
                yield letter
        if len(rows) < LETTERS_PER_CALL:
            return
        last = f"({rows[-1][0].decode()}"


async def oldest_first(frontier: Frontier, shard: int, where: Where) -> AsyncIterator[tuple[int, list[Letter]]]:
    """Yield windows, up to the newest there is now: how many letters were looked at, and those that are admitted."""
    if where.ids:
        found = await _by_id(frontier, shard, where)
        for start in range(0, len(found), LETTERS_PER_CALL):
            window = found[start : start + LETTERS_PER_CALL]
            yield len(window), window
        return
    first, last = where.range()
    with mapped_errors():
        newest: Any = await frontier.client.xrevrange(frontier.keys.dead, last, first, count=1)
    if not newest:
        return
    last = newest[0][0].decode()
    while True:
        with mapped_errors():
            rows: Any = await frontier.client.xrange(frontier.keys.dead, first, last, count=LETTERS_PER_CALL)
        if not rows:
            return
        letters = [Letter.read(shard, entry_id, fields) for entry_id, fields in rows]
        yield len(letters), [letter for letter in letters if where.admits(letter)]
        first = f"({rows[-1][0].decode()}"


async def _by_id(frontier: Frontier, shard: int, where: Where) -> list[Letter]:
    wanted = []
    for text in dict.fromkeys(where.ids):
        match = _ID.fullmatch(text)
        if match is not None and match[1] in (None, str(shard)):
            wanted.append(match[2] if "-" in match[2] else f"{match[2]}-0")
    found = []
    for start in range(0, len(wanted), LETTERS_PER_CALL):
        async with frontier.client.pipeline(transaction=False) as pipe:
            for entry_id in wanted[start : start + LETTERS_PER_CALL]:
                pipe.xrange(frontier.keys.dead, entry_id, entry_id)
            with mapped_errors():
                answers: list[Any] = await pipe.execute()
        found += [Letter.read(shard, entry_id, fields) for rows in answers for entry_id, fields in rows]
    return [letter for letter in found if where.admits(letter)]


async def count_by(crawl: Shards, where: Where, group: str, most: int = COUNTED_MAX) -> tuple[dict[str, int], int]:
    """Count the newest letters that `where` admits by one of GROUPS, the most frequent first; at most `most` of them.

    Returns:
        The counts, and how many letters that were: `most` when there may be more.
    """
    counts: Counter[str] = Counter()
    counted = 0
    async with aclosing(newest_first(crawl, where)) as letters:
        async for letter in letters:
            counts[_GROUPS[group](letter)] += 1
            counted += 1
            if counted == most:
                break
    return dict(counts.most_common()), counted


async def totals_by_reason(crawl: Shards) -> dict[str, int]:
    """Return all dead letters by reason, the most frequent first, from the counters: exact, whatever their number."""
    counts: Counter[str] = Counter()
    for frontier in crawl:
        with mapped_errors():
            totals: Any = await frontier.client.hgetall(frontier.keys.totals)
        for name, count in totals.items():
            _, _, reason = name.decode().partition(".dead.")
            if reason and int(count):
                counts[reason] += int(count)
    return dict(counts.most_common())


# -- changing


@dataclass(slots=True)
class Tally:
    """How far something over many tasks has come."""

    looked: int = 0
    words: Counter[str] = field(default_factory=Counter)
    """What became of those that were meant."""
    is_cut: bool = False
    """Stopped before the end, by a signal or at a limit."""

    @property
    def meant(self) -> int:
        return self.words.total()


Watcher: TypeAlias = "Callable[[Tally], bool]"
"""Called after every window; False stops."""


async def replay(
    crawl: Shards, where: Where, *, attempts: Attempts, limit: int | None, is_dry: bool, watch: Watcher
) -> Tally:
    """Send letters back, tasks to the queues of their hosts, items to their stages: oldest first in each shard, at most
    `limit`.

    Words: QUEUED; ASKED (a robots task: its host asks again by itself); GONE (another replay or purge was faster);
    INVALID (its task cannot be read, or is not what the letter says); with `is_dry` FOUND, and nothing is changed.
    """

    async def act(frontier: Frontier, letters: Sequence[Letter]) -> Iterable[str]:
        sent = [
            (letter.entry_id, letter.host, letter.level, encode_task(_again(letter.task, attempts)))
            if letter.task is not None
            else (letter.entry_id, "", "", b"keep" if attempts is Attempts.KEEP else b"")
            for letter in letters
            if letter.is_sendable
        ]
        words = await frontier.replay(sent) if sent else []
        return [*words, *["INVALID"] * (len(letters) - len(sent))]

    return await _each_window(crawl, where, act, limit=limit, is_dry=is_dry, watch=watch)


async def purge(crawl: Shards, where: Where, *, limit: int | None, is_dry: bool, watch: Watcher) -> Tally:
    """Remove letters for good, at most `limit`; their pages count as dropped, by the name `purged`, and stay seen.

    Words: PURGED, GONE; with `is_dry` FOUND, and nothing is changed.
    """

    async def act(frontier: Frontier, letters: Sequence[Letter]) -> Iterable[str]:
        forgotten = await frontier.forget([letter.entry_id for letter in letters])
        return ["PURGED"] * forgotten + ["GONE"] * (len(letters) - forgotten)

    return await _each_window(crawl, where, act, limit=limit, is_dry=is_dry, watch=watch)


async def _each_window(
    crawl: Shards, where: Where, act: Any, *, limit: int | None, is_dry: bool, watch: Watcher
) -> Tally:
    tally = Tally()
    for shard, frontier in enumerate(crawl):
        async for looked, letters in oldest_first(frontier, shard, where):
            chosen = letters if limit is None else letters[: limit - tally.meant]
            tally.looked += looked
            if chosen:
                tally.words.update(["FOUND"] * len(chosen) if is_dry else await act(frontier, chosen))
            if not watch(tally) or tally.meant == limit:
                tally.is_cut = True
                return tally
    return tally


def _again(task: CrawlTask, attempts: Attempts) -> CrawlTask:
    return task if attempts is Attempts.KEEP else msgspec.structs.replace(task, attempt=1, crashes=0)
