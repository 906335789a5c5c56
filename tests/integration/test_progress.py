"""What a running crawl shows: lines where nobody sits in front, JSON for programs, every figure from Redis."""

from __future__ import annotations

import asyncio
import io
import json
import re
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from streamcrawl.ops import progress
from streamcrawl.ops.progress import Progress
from streamcrawl.rules.task import Outcome
from streamcrawl.settings import make_settings
from streamcrawl.store.shards import delete_crawl, open_crawl
from tests.integration.snapshot import Lab, fast, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab


async def half_done_lab(open_lab: OpenLab) -> Lab:
    """Three hosts with four pages each: three in hand, of which one fails, one dies, and one gets no answer."""
    lab = await open_lab(host_concurrency=1)
    await lab.offer(*(f"http://h{host}.example/{page}" for host in range(3) for page in range(4)))
    retried, dead, unanswered = await lab.take()
    await lab.end(retried, Outcome.RETRY)
    await lab.end(dead, Outcome.DEAD)
    await lab.end(unanswered, Outcome.UNANSWERED)
    return lab


def progress_of(lab: Lab, mode: str, screen: io.StringIO, write: Callable[[str], None]) -> Progress:
    console = Console(file=screen, width=40) if mode == "live" else None
    return Progress(
        lab.crawl, console, mode=mode, pages_max=None, workers=lambda: (2, 5), write=write,
        say=lambda line: print(line, file=screen),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["lines", "json"])
async def test_figures_of_a_running_crawl_are_shown_again_and_again(
    open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.05)
    lab = await half_done_lab(open_lab)
    screen, written, stop = io.StringIO(), list[str](), asyncio.Event()

    def shown() -> list[str]:
        return written if mode == "json" else screen.getvalue().splitlines()

    async def has_shown(count: int) -> bool:
        return len(shown()) >= count

    task = asyncio.create_task(progress_of(lab, mode, screen, written.append).run(stop))
    try:
        await wait_until(lambda: has_shown(2), "two lines")
        # Pages get done, and fewer are left: now there is a rate, and how long the rest will take.
        await lab.let_pass(3_600_000)
        await lab.frontier.due()
        for _ in range(2):
            await lab.let_pass(3_600_000)
            await lab.end_all(await lab.take())
        so_far = len(shown())
        await wait_until(lambda: has_shown(so_far + 2), "two more lines")
    finally:
        stop.set()
        await task
    first, last = shown()[0], shown()[-1]
    if mode == "lines":
        # Whole lines for a log, however narrow the console, without a code of the terminal.
        assert "\x1b" not in screen.getvalue()
        assert re.fullmatch(
            r"0 pages · 0\.0/s · 10 queued · \d hosts · 2 errors · 1 dead · 2 workers \(5 busy\) · 0:00:\d\d"
            r" · 1 host not answering · http://\w+\.example: connect",
            first,
        )
        assert re.match(r"[56] pages · \d+\.\d/s · .* · 0:00:\d\d left", last)
    else:
        before, after = json.loads(first), json.loads(last)
        assert before["event"] == "progress"
        assert (before["done"], before["queued"], before["delayed"], before["errors"], before["dead"]) == (
            0,
            10,
            1,
            2,
            1,
        )
        assert (before["failing"], before["processes"], before["busy"], before["eta_s"]) == (1, 2, 5, None)
        assert before["failing_why"].endswith(".example: connect")
        assert after["done"] > 0
        assert after["pages_per_s"] > 0
        assert after["eta_s"] >= 0


async def test_hosts_at_their_cap_are_counted_too(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.05)
    lab = await open_lab(host_concurrency=1)
    await lab.offer(*(f"http://h{host}.example/{page}" for host in range(5) for page in range(2)))
    assert len(await lab.take(count=3)) == 3
    assert await lab.client.zcard(lab.keys.schedule) == 2
    written, stop = list[str](), asyncio.Event()

    def write(line: str) -> None:
        written.append(line)
        stop.set()

    await progress_of(lab, "json", io.StringIO(), write).run(stop)
    assert json.loads(written[0])["hosts"] == 5


async def test_shards_are_summed_up(store_client: Redis, crawl_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.05)
    crawl, _ = await open_crawl(store_client, make_settings(**fast(crawl_name, shards=2)))
    labs = [Lab(frontier) for frontier in crawl]
    for lab, host in zip(labs, ("http://a.example", "http://b.example"), strict=True):
        await lab.frontier.control(slots=10)
        await lab.offer(*(f"{host}/{n}" for n in range(3)), "http://c.example/")
        held = await lab.take()
        await lab.end(held[0])
    await labs[1].frontier.control(stopped="FRONTIER_FULL")
    written, stop = list[str](), asyncio.Event()

    def write(line: str) -> None:
        written.append(line)
        stop.set()

    shown = Progress(crawl, None, mode="json", pages_max=None, workers=lambda: (1, 1), write=write, say=write)
    await shown.run(stop)
    figures = json.loads(written[0])
    assert (figures["done"], figures["queued"], figures["in_hand"], figures["slots"]) == (2, 4, 2, 20)
    assert (figures["hosts"], figures["note"]) == (4, "stopped: FRONTIER_FULL")
    await delete_crawl(store_client, crawl_name)


async def test_nothing_is_shown_when_nothing_is_to_be_said(open_lab: OpenLab) -> None:
    lab = await open_lab()
    screen, written = io.StringIO(), list[str]()
    await progress_of(lab, "none", screen, written.append).run(asyncio.Event())
    assert (screen.getvalue(), written) == ("", [])
