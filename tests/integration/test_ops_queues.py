"""Queued tasks: listed in their order, removed by host, level and pattern, and the rest stays as it was."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.ops import queues
from streamcrawl.ops.queues import PAGE_LEVELS, TASKS_PER_CALL, Chosen
from streamcrawl.rules.task import Level
from tests.integration.operated import SHARDS, Operated
from tests.integration.snapshot import urls

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from streamcrawl.ops.letters import Tally

A = "http://a.test"


async def queued(operated: Operated, host: str = A, level: Level = Level.NORMAL) -> list[str]:
    frontier = operated.crawl.of(host)
    found = [one async for window in queues.tasks_of(frontier, host, level) for one in window]
    assert [one.place for one in found] == list(range(len(found)))
    return [one.task.url for one in found if one.task is not None]


async def purge(operated: Operated, chosen: Chosen | None = None, **values: Any) -> Tally:
    given: dict[str, Any] = {"limit": None, "is_dry": False, "watch": lambda _: True} | values
    return await queues.purge(operated.crawl, chosen or Chosen(), **given)


async def test_tasks_are_listed_first_to_last(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    wanted = urls("a.test", 2 * TASKS_PER_CALL + 1)
    await operated.offer(wanted)
    assert await queued(operated) == wanted
    assert await queued(operated, "http://none.test") == []
    (window,) = [window async for window in queues.tasks_of(operated.crawl.first, "http://a.test", Level.NORMAL)][2:]
    assert window[0].as_json()["url"] == wanted[-1]
    assert queues.queued_line(window[0]).endswith(wanted[-1])
    await operated.labs[0].client.lset(operated.labs[0].keys.queue(A, "2"), 0, "no task")
    (window, *_) = [window async for window in queues.tasks_of(operated.crawl.first, A, Level.NORMAL)]
    assert queues.queued_line(window[0]).endswith("(cannot be read)")
    assert window[0].as_json()["url"] == A


@pytest.mark.parametrize("shards", SHARDS)
async def test_what_matches_is_purged_and_the_rest_keeps_its_order(
    redis_client: Redis, crawl_name: str, shards: int
) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=shards)
    wanted = urls("a.test", 3 * TASKS_PER_CALL + 7)
    hosts = [f"http://h{n}.test" for n in range(8)]
    await operated.offer(wanted)
    for level in PAGE_LEVELS:
        await operated.offer([f"{host}/{level.name}/{n}" for host in hosts for n in range(10)], level=level)
    even = re.compile(r"[02468]$")
    chosen = Chosen(match=even)
    count = await queues.queued_count(operated.crawl, chosen)
    assert count == len(wanted) + 3 * 8 * 10
    going = sum(1 for url in wanted if even.search(url)) + 3 * 8 * 5
    assert (await purge(operated, chosen, is_dry=True)).words == {"FOUND": going}
    tally = await purge(operated, chosen)
    assert tally.words == {"PURGED": going}
    assert tally.looked >= count  # a queue may come twice by SCAN
    assert not tally.is_cut
    assert await queued(operated) == [url for url in wanted if not even.search(url)]
    assert await queued(operated, hosts[0], Level.LOW) == [f"{hosts[0]}/LOW/{n}" for n in range(1, 10, 2)]
    await operated.check()
    assert (await purge(operated, chosen)).words["PURGED"] == 0
    assert await operated.total("page.dropped.purged") == going
    await operated.offer(wanted)  # they stay seen
    assert await operated.total("page.queued") == count - going
    assert (await purge(operated)).words == {"PURGED": count - going}
    assert await operated.total("page.queued") == 0
    await operated.check()


async def test_host_level_and_limit_narrow_it(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=2)
    for level in PAGE_LEVELS:
        await operated.offer([f"http://{host}.test/{level.name}/{n}" for host in "ab" for n in range(10)], level=level)
    only = Chosen(hosts=(A,), levels=(Level.LOW,))
    assert await queues.queued_count(operated.crawl, only) == 10
    assert (await purge(operated, only, limit=3)).words == {"PURGED": 3}
    assert await queued(operated, level=Level.LOW) == [f"{A}/LOW/{n}" for n in range(3, 10)]
    last = Chosen(hosts=(A,), match=re.compile("[789]$"))
    assert (await purge(operated, last, limit=4, is_dry=True)).words == {"FOUND": 4}
    tally = await purge(operated, last, limit=4)
    assert (tally.words["PURGED"], tally.is_cut) == (4, True)
    await operated.check()
    assert (await purge(operated, Chosen(hosts=(A,)))).words["PURGED"] == 23
    assert await operated.total("page.queued") == 30
    assert (await purge(operated, Chosen(hosts=("http://none.test",)))).words.total() == 0
    await operated.check()


async def test_stopped_between_two_windows_nothing_is_lost(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    wanted = urls("a.test", 3 * TASKS_PER_CALL)
    await operated.offer(wanted)
    odd = Chosen(hosts=(A,), match=re.compile("[13579]$"))
    looks: list[int] = []

    def once(tally: Tally) -> bool:
        looks.append(tally.looked)
        return False

    assert (await purge(operated, odd, watch=once)).is_cut
    assert looks == [TASKS_PER_CALL]
    await operated.check()
    left = await queued(operated)
    assert len(left) == len(wanted) - TASKS_PER_CALL // 2
    assert sorted(left) == sorted(url for n, url in enumerate(wanted) if n >= TASKS_PER_CALL or n % 2 == 0)
    await purge(operated, odd)
    assert sorted(await queued(operated)) == sorted(wanted[::2])
    await operated.check()


async def test_purge_beside_workers_keeps_every_account(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, host_concurrency=50)
    lab = operated.labs[0]
    await operated.offer(urls("a.test", 4 * TASKS_PER_CALL))
    odd = Chosen(match=re.compile("[13579]$"))
    for _ in range(4):
        held = await lab.take(count=50)
        await purge(operated, odd, limit=TASKS_PER_CALL)
        await lab.frontier.hand_back("stream:fetch", [one.id for one in held[::2]])
        await lab.end_all(held[1::2])
        await operated.check()
    while (await purge(operated, odd)).words["PURGED"]:
        await operated.check()
    assert not any(re.search("[13579]$", url) for url in await queued(operated))


async def test_robots_tasks_are_not_for_purging(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, obey_robots=True)
    lab = operated.labs[0]
    await operated.offer(urls("a.test", 2))
    (held,) = await lab.take()
    await lab.frontier.hand_back("stream:fetch", [held.id])
    assert (await purge(operated)).words == {"PURGED": 2}
    assert await lab.client.llen(lab.keys.queue(A, "0")) == 1
    await operated.check()
