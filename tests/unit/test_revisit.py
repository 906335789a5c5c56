"""When a page is fetched again, and what a visit found."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.revisit import (
    Content,
    Found,
    RevisitPolicy,
    Visit,
    conditions_of,
    content_digest,
    etag_of,
    modified_of,
    next_visit,
)
from streamcrawl.rules.task import CrawlTask, LastVisit, decode_task, encode_task
from streamcrawl.settings import make_settings

HOUR = 3_600_000
DATE = "Tue, 01 Dec 2026 02:00:00 GMT"
POLICY = RevisitPolicy(8 * HOUR, HOUR, 64 * HOUR)
BEFORE = LastVisit(8 * HOUR, "aa", '"1"', DATE)
NEW = Content("bb", '"2"', "")


@pytest.mark.parametrize(
    ("given_ms", "policy"),
    [
        ((None, None, None), None),
        ((8000, None, None), RevisitPolicy(8000, 1000, 64_000)),
        ((8000, 2000, 9000), RevisitPolicy(8000, 2000, 9000)),
        ((8000, 9000, 7000), RevisitPolicy(8000, 8000, 8000)),
        ((1, None, None), RevisitPolicy(1, 1, 8)),
        ((10**14, None, 10**15), RevisitPolicy(10**12, 10**12, 10**12)),
    ],
)
def test_first_interval_lies_within_the_bounds(
    given_ms: tuple[int | None, int | None, int | None], policy: RevisitPolicy | None
) -> None:
    first, least, most = given_ms
    settings = make_settings(name="c", revisit_ms=first, revisit_min_ms=least, revisit_max_ms=most)
    assert RevisitPolicy.from_settings(settings) == policy


@pytest.mark.parametrize(
    ("before", "status", "content", "visit"),
    [
        (None, 200, NEW, Visit(Found.NEW, LastVisit(8 * HOUR, *NEW))),
        (None, 404, NEW, None),
        (BEFORE, 200, NEW, Visit(Found.CHANGED, LastVisit(4 * HOUR, *NEW))),
        (BEFORE, 200, NEW._replace(digest="aa"), Visit(Found.UNCHANGED, LastVisit(12 * HOUR, "aa", '"2"', ""))),
        (BEFORE, 304, Content(""), Visit(Found.UNCHANGED, LastVisit(12 * HOUR, "aa", '"1"', DATE))),
        (BEFORE, 304, Content("", '"3"'), Visit(Found.UNCHANGED, LastVisit(12 * HOUR, "aa", '"3"', DATE))),
        (BEFORE, 403, NEW, Visit(Found.FAILED, LastVisit(16 * HOUR, "aa", '"1"', DATE))),
        (BEFORE, 404, NEW, Visit(Found.FAILED, LastVisit(32 * HOUR, "aa", '"1"', DATE))),
        (LastVisit(64 * HOUR), 404, NEW, Visit(Found.GONE, None)),
        (BEFORE, 410, NEW, Visit(Found.GONE, None)),
        (LastVisit(HOUR, "aa"), 200, NEW, Visit(Found.CHANGED, LastVisit(HOUR, *NEW))),
        (LastVisit(60 * HOUR, "bb"), 200, NEW, Visit(Found.UNCHANGED, LastVisit(64 * HOUR, *NEW))),
    ],
)
def test_what_a_visit_finds(before: LastVisit | None, status: int, content: Content, visit: Visit | None) -> None:
    assert next_visit(POLICY, before, status, content) == visit


def test_interval_settles_where_a_third_of_the_visits_finds_a_change() -> None:
    period_ms, now_ms, seen = 7 * HOUR, 0, -1
    last: LastVisit | None = None
    found: list[Found] = []
    for _ in range(300):
        state = now_ms // period_ms
        visit = next_visit(POLICY, last, 200, Content(str(state)))
        assert visit is not None
        assert visit.last is not None
        found.append(visit.found)
        last, seen = visit.last, state
        now_ms += last.interval_ms
    assert seen > 0
    assert 0.25 < found.count(Found.CHANGED) / len(found) < 0.5


def test_conditions() -> None:
    assert conditions_of(None) == conditions_of(LastVisit(1, "aa")) == {}
    assert conditions_of(BEFORE) == {"If-None-Match": '"1"', "If-Modified-Since": DATE}
    assert conditions_of(LastVisit(1, "", "", DATE)) == {"If-Modified-Since": DATE}


@pytest.mark.parametrize(
    ("text", "kept"),
    [('"a"', True), ('W/"a-1"', True), ('""', True), ("a", False), ('"a b"', False), ('"a]"', False), ('"{a"', False),
     ('"a\\b|"', True), ('"a\x7f"', False), ('"\xe4"', False), ('"' + "a" * 127 + '"', False), (None, False)],
)  # fmt: skip
def test_only_an_etag_that_may_stand_in_a_header_is_kept(text: str | None, kept: bool) -> None:
    assert etag_of(text) == (text if kept else "")


def test_only_a_date_is_kept_as_last_modified() -> None:
    assert modified_of(f" {DATE} ") == DATE
    assert modified_of("x" * 41) == modified_of("a\r\nb: c, 2026") == modified_of(None) == ""


def test_tags_comments_and_scripts_are_not_content() -> None:
    page = b'<p id="%d">Price <b>5</b></p><!-- made at %d --><script>t=%d</script>'
    assert len({content_digest(page % (n, n, n), is_html=True) for n in range(3)}) == 1
    assert content_digest(page.replace(b"5", b"6"), is_html=True) != content_digest(page, is_html=True)
    assert content_digest(b"a <1>", is_html=False) != content_digest(b"a <2>", is_html=False)


@pytest.mark.parametrize("part", [b"<", b"<script", b"<script>", b"<a ", b"</script", b"<!--", b"> <"])
def test_digest_costs_no_more_than_the_length_of_a_body(part: bytes) -> None:
    def took_s(times: int) -> float:
        began = time.process_time()
        content_digest(part * times, is_html=True)
        return time.process_time() - began

    # A square of the length would be hours.
    assert took_s(1_000_000) < 60


@given(
    st.integers(1, 10**12),
    st.text("0123456789abcdef", max_size=16),
    st.text('"!#~\\,[]', max_size=20),
    st.text("Mon, 1:+-", max_size=30),
    st.none() | st.just("http://a.test/r"),
)
def test_task_carries_the_last_visit(
    interval_ms: int, digest: str, etag: str, modified: str, referrer: str | None
) -> None:
    last = LastVisit(interval_ms, digest, etag, modified)
    task = CrawlTask(host="http://a.test", path="/p?q=1", depth=2, referrer=referrer, again=last)
    assert decode_task(task.host, task.level.value, encode_task(task)) == task
