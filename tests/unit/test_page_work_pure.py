"""What a slot decides without asking anybody: reading an entry, burying a task, what became known of its links."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from streamcrawl.response import Response
from streamcrawl.rules.robots_rules import RobotsRules
from streamcrawl.rules.scope import Scope
from streamcrawl.rules.task import CrawlTask, Kind, Level, Outcome, decode_task, encode_task
from streamcrawl.settings import Given, make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Commit, Entry, Frontier
from streamcrawl.store.keys import Keys
from streamcrawl.store.shards import Shards
from streamcrawl.web.fetcher import Answer, Fetcher
from streamcrawl.work.board import Board
from streamcrawl.work.links import SLOT_BITS, RecentlySeen
from streamcrawl.work.page_work import PageWork
from streamcrawl.work.stall import StallWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "http://example.org"
TASK = CrawlTask(host=HOST, path="/a?b=1", level=Level.HIGH, depth=3, discovered_ms=17, referrer=f"{HOST}/")


def entry_of(task: bytes, *, host: str = HOST, level: str = "2") -> Entry:
    return Entry("5-1", {b"host": host.encode(), b"level": level.encode(), b"task": task})


@pytest.fixture
def work() -> Iterator[PageWork]:
    """With its real parts, none of which is used here: a client connects with its first command."""
    settings = make_settings(name="unit", attempts_max=3, retry_base_ms=70)
    frontier = Frontier(connect("redis://127.0.0.1:1/0"), Keys("unit"), "epoch")
    board = Board.create(1)
    scope = Scope.from_settings(settings, [HOST])
    yield PageWork(
        settings, scope, Shards([frontier]), Fetcher(settings), board, (), stalls=StallWatch(), on_stuck=lambda: None
    )
    board.close()


# -- reading an entry


@pytest.mark.parametrize(
    "task", [TASK, CrawlTask(host=HOST, path="/robots.txt", kind=Kind.ROBOTS, level=Level.CONTROL)]
)
def test_entry_gives_its_task(work: PageWork, task: CrawlTask) -> None:
    assert work.decode(entry_of(encode_task(task), level=task.level.value)) == task


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (b"", Kind.PAGE),
        (b"\xff\xfe", Kind.PAGE),
        (b"{}", Kind.PAGE),
        (b'[0,1,"page"]', Kind.PAGE),
        (b'[0,1,"film","/a",0]', Kind.PAGE),
        (b'[0,1,"page","/\\"robots\\"",0', Kind.PAGE),
        (b'[0,1,"page","robots"', Kind.PAGE),
        (b'[0,1,"robots"]', Kind.ROBOTS),
        (b'[0,1,"sitemap","/a"', Kind.SITEMAP),
        (b'[0,1,"feed","/a",0]', Kind.PAGE),
    ],
)
def test_entry_that_cannot_be_read_becomes_a_dead_letter(work: PageWork, stored: bytes, kind: Kind) -> None:
    commit = work.decode(entry_of(stored))
    assert isinstance(commit, Commit)
    assert (commit.entry_id, commit.host, commit.kind, commit.outcome) == ("5-1", HOST, kind, Outcome.DEAD)
    assert decode_task(HOST, "2", commit.detail[1]).kind is kind  # purge takes it out of the line that it names
    assert commit.detail[2] == "codec"
    assert commit.detail[3]
    assert not commit.is_fetched


@pytest.mark.parametrize("level", ["", "4", "x"])
def test_level_that_is_none_cannot_be_read(work: PageWork, level: str) -> None:
    assert isinstance(work.decode(entry_of(encode_task(TASK), level=level)), Commit)


def test_entry_without_fields_cannot_be_read(work: PageWork) -> None:
    assert isinstance(work.decode(Entry("5-1", {})), Commit)


# -- pages that send their visitors on


@pytest.mark.parametrize(
    ("limit_ms", "status", "after_s", "is_followed"),
    [
        *((1000, 200, 1, True), (1000, 299, 0, True), (0, 200, 0, True)),
        *((None, 200, 0, False), (1000, 200, 2, False), (1000, 404, 0, False), (0, 200, 1, False)),
    ],
)
def test_meta_refresh_is_a_redirect_within_its_limit(
    work: PageWork, limit_ms: int | None, status: int, after_s: int, is_followed: bool
) -> None:
    settings = make_settings("unit", {"refresh_max_ms": Given(limit_ms, "test")})
    work.apply(settings, Scope.from_settings(settings, [HOST]))
    body = b"<META HTTP-EQUIV=REFRESH CONTENT='%d;/next'>" % after_s
    headers = CIMultiDictProxy(CIMultiDict({"Content-Type": "text/html"}))
    answer = Answer(TASK.url, status, headers, body, "text/html", None, None, 5, 0.0, None)
    found = work._sent_on(TASK, Response(TASK, answer), [], RobotsRules.allow_all())
    assert found == (f"{HOST}/next" if is_followed else None, None)


# -- endings


def test_buried_task_can_be_read_again(work: PageWork) -> None:
    commit = work.bury(entry_of(b""), TASK, "http_500", "answered 500", "500")
    level, stored, *why = commit.detail
    assert decode_task(HOST, level, stored) == TASK
    assert why == ["http_500", "answered 500", "500"]
    assert (commit.outcome, commit.host, commit.kind) == (Outcome.DEAD, HOST, Kind.PAGE)


def test_our_own_error_is_tried_again_and_at_last_a_dead_letter_with_its_traceback(work: PageWork) -> None:
    ends: list[tuple[Outcome, Any]] = []
    for attempt in (1, 2, 3):
        task = CrawlTask(host=HOST, path="/a", attempt=attempt)
        ending = work.internal_error(entry_of(b""), task, "x" * 5000 + "ValueError: here")
        assert isinstance(ending.commit, Commit)
        assert ending.commit.is_fetched, "it may have been: the host's delay counts"
        ends.append((ending.commit.outcome, ending.retry_delay_ms))
    assert ends == [(Outcome.RETRY, 70), (Outcome.RETRY, 70), (Outcome.DEAD, None)]
    assert ending.commit is not None
    assert ending.commit.detail[2] == "internal"
    assert ending.commit.detail[3].endswith("ValueError: here")
    assert len(ending.commit.detail[3]) == 4000


# -- recently seen


def test_url_is_recent_once_it_was_added() -> None:
    seen = RecentlySeen()
    assert "http://a/" not in seen
    seen.add_all(["http://a/", "http://b/"])
    assert "http://a/" in seen
    assert "http://c/" not in seen
    seen.clear()
    assert "http://a/" not in seen


def test_recently_seen_keeps_its_size_and_forgets_what_was_long_ago_first() -> None:
    seen = RecentlySeen()
    size = sys.getsizeof(seen._first) + sys.getsizeof(seen._second)
    count = 5 << SLOT_BITS
    urls = [f"http://a/{n}" for n in range(count)]
    for start in range(0, count, 1000):
        seen.add_all(urls[start : start + 1000])
        assert urls[start : start + 1000][-1] in seen
    assert sys.getsizeof(seen._first) + sys.getsizeof(seen._second) == size
    late, early = urls[-10_000:], urls[:10_000]
    # Hashes differ from run to run: of the late ones 2 are gone at a mean, of the early ones 400 are left.
    assert len(seen.unknown(late)) < 100
    assert len(seen.unknown(early)) > 9_000


def test_recently_seen_takes_nothing_else_for_known() -> None:
    seen = RecentlySeen()
    seen.add_all([f"http://a/{n}" for n in range(200_000)])
    others = [f"http://b/{n}" for n in range(200_000)]
    assert seen.unknown(others) == others
