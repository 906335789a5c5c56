"""Which pages are followed by traces, and what traces do not tell."""

from __future__ import annotations

import pytest

from streamcrawl.rules.task import CrawlTask
from streamcrawl.store.frontier import Entry
from streamcrawl.work.lag import ServerClock
from streamcrawl.work.program import Item
from streamcrawl.work.traces import Traces, current, request_span, span, without_secrets

TASKS = [CrawlTask(host="http://a.example", path=f"/{n}", discovered_ms=1000 + n) for n in range(1000)]
ENTRY = Entry("1-0", {})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://a.example/b?c=d", "https://a.example/b?c=d"),
        ("https://me:hunter2@a.example/b", "https://a.example/b"),
        ("https://a.example/b?x=1&access_token=hunter2&y=2", "https://a.example/b?x=1&access_token=REDACTED&y=2"),
        ("https://a.example/b?X-Amz-Signature=hunter2", "https://a.example/b?X-Amz-Signature=REDACTED"),
        ("https://a.example/b?sig=hunter2&AWSAccessKeyId=hunter2", "https://a.example/b?sig=REDACTED&AWSAccessKeyId=REDACTED"),
        ("https://a.example/b?keyword=red&design=blue", "https://a.example/b?keyword=red&design=blue"),
        ("not 'http://me:hunter2@b.example/?pwd=hunter2' today", "not 'http://b.example/?pwd=REDACTED' today"),
        ("a mail to me@a.example", "a mail to me@a.example"),
    ],
)  # fmt: skip
def test_credentials_are_left_out(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def traces(every: int, epoch: str = "e") -> Traces:
    return Traces(
        every=every, crawl="books", epoch=epoch, stage="fetch", consumer="w", stages=["parse"], clock=ServerClock(),
        log=lambda text: None,
    )  # fmt: skip


async def test_workers_follow_the_same_pages_about_one_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is to be sent: nobody listens there.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    made = [traces(10), traces(10), traces(100), traces(1)]
    try:
        followed = [
            {task.path: found.carried for task in TASKS if (found := one.begin(ENTRY, task)) is not None}
            for one in made
        ]
        assert 60 < len(followed[0]) < 140
        assert followed[2].keys() < followed[0].keys() < followed[3].keys()
        assert len(followed[3]) == len(TASKS)
        # Each try is a span of its own in the one trace.
        assert {path: one[:32] for path, one in followed[0].items()} == {
            path: one[:32] for path, one in followed[1].items()
        }
        assert followed[0] != followed[1]

        given = made[3].begin(ENTRY, TASKS[0])
        assert given is not None
        for wrong in ("", "0af7", given.carried.upper(), given.carried + "0"):
            assert made[3].begin(ENTRY, Item("Book", b"{}", "http://a.example/", trace=wrong)) is None
        of_item = made[2].begin(ENTRY, Item("Book", b"{}", "http://a.example/", trace=given.carried))
        assert of_item is not None, "an item is followed where its page is, whatever is said here"
        assert of_item.carried[:32] == given.carried[:32]
        marked = given.mark(["parse", b'["Book",{},1]', "out-1", b'{"url":"x"}'])
        assert marked == ["parse", b'["Book",{},1,"%b"]' % given.carried.encode(), "out-1", b'{"url":"x"}']
        assert Item.read({b"item": marked[1]}).trace == given.carried  # type: ignore[dict-item]
    finally:
        for one in made:
            await one.close()


def test_what_is_cut_off_a_text_hides_no_secret() -> None:
    assert "unter2" not in without_secrets("x" * 300 + " http://a.example/?token=" + "unter2" * 50)[-300:]


def test_where_nothing_is_followed_the_spans_are_none() -> None:
    assert current() is None
    assert span("handle") is request_span("GET", "http://a.example/")
