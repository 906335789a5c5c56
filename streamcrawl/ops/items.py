"""Where are the items of a page? In the streams of stages and outputs, in hand, delayed or dead. Reads only.

An item is known by the URL of the page that it came from, at first or in the end; a record of an output by the `url` in
it, which items of a program need not have. Each place is searched to a bound, and a bound that was reached is said.
Start at `items_of`.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.ops.letters import Where, newest_of
from streamcrawl.ops.pending import stages, stream_of
from streamcrawl.ops.words import glob_of, moment, span
from streamcrawl.store.connection import NoGroup, mapped_errors
from streamcrawl.store.keys import FETCH, GROUP
from streamcrawl.work.program import FETCHED

if TYPE_CHECKING:
    from streamcrawl.ops.hosts import HostPage
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards

FOUND_MAX: Final = 20
"""Items that are named; a page may have thousands."""
LOOKED_MAX: Final = 20_000
"""Entries of each stream, and newest dead letters, that are searched."""
BYTES_MAX: Final = 100_000_000
"""In each of them: pages on their way to a stage have their bodies with them, and come over the network."""
DELAYED_MAX: Final = 200_000
_PER_CALL: Final = 100
_DELAYED_PER_CALL: Final = 1000


class FoundItem(msgspec.Struct):
    """Where one item is."""

    stage: str
    """As `pending` calls it: a stage of the program, or `fetch:<sink>`."""
    place: str
    """waiting, in hand, delayed or dead."""
    words: str
    facts: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"stage": self.stage, "place": self.place, "words": self.words, **self.facts}


class FoundItems(msgspec.Struct):
    found: list[FoundItem] = msgspec.field(default_factory=list)
    """At most FOUND_MAX, the furthest on their way last."""
    searched: list[str] = msgspec.field(default_factory=list)
    """Where the search ended at its bound."""
    has_stages: bool = False
    """The crawl is a program's: what a page gave need not be written anywhere."""

    @property
    def is_full(self) -> bool:
        return len(self.found) >= FOUND_MAX


async def items_of(crawl: Shards, frontier: Frontier, page: HostPage, url: str) -> FoundItems:
    """Return the items of the page at a URL; `page` is of its host, `frontier` the shard that it lies in."""
    items = FoundItems()
    known = (await stages(crawl))[1:]
    for stage in known:
        await _in_stream(frontier, stage, url, items)
    of_program = [stage for stage in known if not stage.startswith(f"{FETCH}:")]
    items.has_stages = bool(of_program)
    if of_program:
        await _delayed(frontier, page, url, items)
        await _dead(frontier, page, url, items)
    return items


async def _in_stream(frontier: Frontier, stage: str, url: str, items: FoundItems) -> None:
    stream, place = frontier.keys.prefix + stream_of(stage), "-"
    wanted, needle = url.encode(), b'"url":%b' % msgspec.json.encode(url)
    looked = size = 0
    while not items.is_full:
        with mapped_errors():
            window: Any = await frontier.client.xrange(stream, place, "+", count=_PER_CALL)
        for entry_id, fields in window:
            item = fields.get(b"item", b"")
            size += len(item)
            is_its = fields[b"url"] == wanted if b"url" in fields else needle in item
            if is_its and not items.is_full:
                items.found.append(await _of_entry(frontier, stream, stage, entry_id.decode(), fields))
        looked += len(window)
        if len(window) < _PER_CALL:
            return
        if looked >= LOOKED_MAX or size >= BYTES_MAX:
            items.searched.append(f"the oldest {looked:,} entries of {stage}")
            return
        place = f"({window[-1][0].decode()}"


async def _of_entry(
    frontier: Frontier, stream: str, stage: str, entry_id: str, fields: dict[bytes, bytes]
) -> FoundItem:
    what = _what(fields.get(b"item", b"")) if b"url" in fields else "its record"
    facts: dict[str, Any] = {"entry": entry_id, "attempt": int(fields.get(b"attempt", 1))}
    rows: Any = []
    try:
        with mapped_errors():
            rows = await frontier.client.xpending_range(stream, GROUP, entry_id, entry_id, 1)
    except NoGroup:
        pass  # flushed or deleted meanwhile: nobody has it
    if not rows:
        return FoundItem(stage, "waiting", f"{what} waits for {stage} ({entry_id})", facts)
    consumer, idle_ms = rows[0]["consumer"].decode("utf-8", "replace"), rows[0]["time_since_delivered"]
    held = f"{what} is in the hands of {consumer}, whose lease was last renewed {span(idle_ms)} ago ({entry_id})"
    return FoundItem(stage, "in hand", held, facts | {"worker": consumer, "idle_ms": idle_ms})


async def _delayed(frontier: Frontier, page: HostPage, url: str, items: FoundItems) -> None:
    # As `delay_item` of _items.lua writes it, with the length of the URL in bytes in front.
    start = f"|{len(url.encode())}|{url}"
    looked, cursor = 0, 0
    while not items.is_full:
        with mapped_errors():
            answer: Any = await frontier.client.zscan(
                frontier.keys.delayed, cursor, match=f"stage|*{glob_of(start)}*", count=_DELAYED_PER_CALL
            )
        cursor, rows = answer
        for member, score in rows:
            _, stage, _, attempt, _, size, rest = member.decode("utf-8", "replace").split("|", 6)
            if not size.isdigit() or not rest.startswith(url):
                continue
            due_in_ms = int(score) - page.state.now_ms
            item = member.partition(url.encode())[2]
            when = f"in {span(due_in_ms)}" if due_in_ms > 0 else "now"
            words = f"{_what(item)} is delayed: attempt {attempt} at {stage} is due {when}"
            facts = {"attempt": int(attempt), "due_in_ms": due_in_ms}
            items.found.append(FoundItem(stage, "delayed", words, facts))
        looked += _DELAYED_PER_CALL
        if not cursor:
            return
        if looked >= DELAYED_MAX:
            items.searched.append(f"{looked:,} delayed tasks and items")
            return


async def _dead(frontier: Frontier, page: HostPage, url: str, items: FoundItems) -> None:
    looked = size = 0
    async with aclosing(newest_of(frontier, page.shard, Where())) as letters:
        async for letter in letters:
            if letter.is_item and letter.url == url:
                cause = letter.error.splitlines()[-1] if letter.error else ""
                why = ": ".join(part for part in (f"{letter.reason}, attempt {letter.attempt}", cause) if part)
                words = f"{_what(letter.stored)} is dead at {letter.stage} since {moment(letter.died_at_ms)}: {why}"
                facts = {"letter": letter.entry_id, "reason": letter.reason, "attempt": letter.attempt}
                items.found.append(
                    FoundItem(
                        letter.stage, "dead", f"{words} (letter {letter.entry_id})", facts | {"error": letter.error}
                    )
                )
            looked, size = looked + 1, size + len(letter.stored)
            if items.is_full:
                return
            if looked >= LOOKED_MAX or size >= BYTES_MAX:
                items.searched.append(f"the newest {looked:,} dead letters")
                return


def _what(item: bytes) -> str:
    """Return how to call an item, by the type in front of it."""
    kind = item[2:].partition(b'"')[0].decode("utf-8", "replace") if item.startswith(b'["') else ""
    if kind == FETCHED:
        return "the page itself"
    return f"an item ({kind})" if kind not in ("", "any") else "an item"
