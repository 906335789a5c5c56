"""Dead letters: chosen, listed, sent again and removed, over all shards."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops import letters
from streamcrawl.ops.letters import Attempts, Letter, Tally, Where
from streamcrawl.rules.task import Kind, Outcome
from tests.integration.operated import SHARDS, Operated
from tests.integration.snapshot import urls

if TYPE_CHECKING:
    from redis.asyncio import Redis


def on(_: Tally) -> bool:
    return True


async def listed(operated: Operated, where: Where | None = None) -> list[Letter]:
    return [letter async for letter in letters.newest_first(operated.crawl, where or Where())]


async def replay(operated: Operated, where: Where | None = None, **values: Any) -> Tally:
    given: dict[str, Any] = {"attempts": Attempts.RESET, "limit": None, "is_dry": False, "watch": on} | values
    return await letters.replay(operated.crawl, where or Where(), **given)


async def purge(operated: Operated, where: Where | None = None, **values: Any) -> Tally:
    given: dict[str, Any] = {"limit": None, "is_dry": False, "watch": on} | values
    return await letters.purge(operated.crawl, where or Where(), **given)


async def mixed(client: Redis, name: str, shards: int) -> Operated:
    operated = await Operated.opened(client, name, shards=shards)
    await operated.kill([f"http://h{n}.test/a" for n in range(6)], reason="timeout")
    await operated.kill([f"http://h{n}.test:81/b?q" for n in range(3)], reason="http_503", status="503", error="a\nb")
    await operated.kill(["https://www.h1.test/c"], reason="tls")
    return operated


@pytest.mark.parametrize("shards", SHARDS)
async def test_letters_are_listed_newest_first_over_all_shards(
    redis_client: Redis, crawl_name: str, shards: int
) -> None:
    operated = await mixed(redis_client, crawl_name, shards)
    found = await listed(operated)
    assert [letter.died_at_ms for letter in found] == sorted((one.died_at_ms for one in found), reverse=True)
    assert Counter(letter.reason for letter in found) == {"timeout": 6, "http_503": 3, "tls": 1}
    assert await letters.letter_count(operated.crawl) == 10
    assert await letters.totals_by_reason(operated.crawl) == {"timeout": 6, "http_503": 3, "tls": 1}
    assert await letters.count_by(operated.crawl, Where(), "status") == ({"": 7, "503": 3}, 10)
    assert (await letters.count_by(operated.crawl, Where(), "host", most=4))[1] == 4
    names = {letter.name(shards) for letter in found}
    assert len(names) == 10
    for name in names:
        assert [one.name(shards) for one in await listed(operated, Where(ids=(name,)))] == [name]
    assert found[0].as_json(shards)["url"] == "https://www.h1.test/c"
    assert found[0].as_json(shards)["attempts"] == 1


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, 10),
        ({"values": letters.parse_where(["reason=timeout"])}, 6),
        ({"values": letters.parse_where(["reason=timeout", "reason=tls"])}, 7),
        ({"values": letters.parse_where(["reason=timeout", "status=503"])}, 0),
        ({"values": letters.parse_where(["worker=w1", "kind=page"])}, 10),
        ({"values": letters.parse_where(["kind=robots"])}, 0),
        ({"hosts": ("http://h1.test",)}, 1),
        ({"hosts": ("h1.test",)}, 3),
        ({"hosts": ("h1.test:81",)}, 1),
        ({"hosts": ("test",)}, 10),
        ({"hosts": ("h1.test:81", "https://www.h1.test/other/path")}, 2),
        ({"hosts": ("1.test",)}, 0),
        ({"match": re.compile(r"/b\?q$")}, 3),
        ({"stage": "fetch"}, 10),
        ({"stage": "parse"}, 0),
        ({"since_ms": 0, "until_ms": 10**15}, 10),
        ({"since_ms": 10**14}, 0),
        ({"until_ms": 1}, 0),
        ({"ids": ("1-1",)}, 0),
    ],
)  # fmt: skip
async def test_every_part_that_is_given_must_hold(
    redis_client: Redis, crawl_name: str, where: dict[str, Any], expected: int
) -> None:
    operated = await mixed(redis_client, crawl_name, 1)
    assert len(await listed(operated, Where(**where))) == expected
    assert (await replay(operated, Where(**where), is_dry=True)).words["FOUND"] == expected
    assert Where(**where).is_all is (where == {})
    assert (await replay(operated, Where(**where))).words["QUEUED"] == expected
    assert await letters.letter_count(operated.crawl) == 10 - expected
    await operated.check()


def test_what_cannot_be_meant_is_refused() -> None:
    for pair in ("reason", "colour=red", "=x"):
        with pytest.raises(ConfigError, match="--where"):
            letters.parse_where([pair])
    for entry_id in ("x", "1-", "1-1-1", "1/"):
        with pytest.raises(ConfigError, match="no id"):
            Where(ids=(entry_id,))
    with pytest.raises(ConfigError, match="is no host"):
        Where(hosts=("http://",))


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("attempts", list(Attempts))
async def test_replayed_letters_are_fetched_again(
    redis_client: Redis, crawl_name: str, shards: int, attempts: Attempts
) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=shards)
    wanted = {f"http://h{n}.test/{m}" for n in range(5) for m in range(3)}
    await operated.offer(wanted, attempt=3, crashes=2, depth=1)
    while taken := await operated.take():
        for lab, held in taken:
            await lab.end(held, Outcome.DEAD)
    tally = await replay(operated, attempts=attempts)
    assert tally.words == {"QUEUED": 15}
    assert (tally.looked, tally.is_cut) == (15, False)
    await operated.check()
    assert (await operated.total("page.queued"), await operated.total("page.replayed")) == (15, 15)
    found = []
    while taken := await operated.take():
        for lab, held in taken:
            found.append(held.task)
            await lab.end(held)
    assert {task.url for task in found} == wanted
    assert {task.attempt for task in found} == {1 if attempts is Attempts.RESET else 3}
    assert {task.depth for task in found} == {1}
    assert await operated.total("page.done") == 15
    await operated.check()


async def test_replay_goes_over_many_windows_and_can_be_broken_off(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=2, host_concurrency=1000)
    count = 3 * letters.LETTERS_PER_CALL + 5
    await operated.kill(urls("a.test", count))
    looks: list[int] = []

    def twice(tally: Tally) -> bool:
        looks.append(tally.looked)
        return len(looks) < 2

    cut = await replay(operated, watch=twice)
    assert cut.is_cut
    assert cut.words == {"QUEUED": 2 * letters.LETTERS_PER_CALL}
    await operated.check()
    assert (await replay(operated, limit=7)).words == {"QUEUED": 7}
    rest = await replay(operated)
    assert not rest.is_cut
    assert rest.words == {"QUEUED": count - cut.meant - 7}
    assert (await replay(operated)).words == {}
    await operated.check()


async def test_letters_that_come_meanwhile_are_left_alone(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, host_concurrency=1000)
    await operated.kill(urls("a.test", 2 * letters.LETTERS_PER_CALL))
    lab = operated.labs[0]
    windows = letters.oldest_first(lab.frontier, 0, Where())
    looked, _ = await anext(windows)
    await operated.kill(urls("b.test", 10))  # what was replayed and died again would be such
    async for more, _ in windows:
        looked += more
    assert looked == 2 * letters.LETTERS_PER_CALL


async def test_replay_gives_a_host_that_was_given_up_another_chance(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    lab = operated.labs[0]
    await operated.offer(urls("a.test", 3))
    for _ in range(2):
        await lab.let_pass(120_000)
        (held,) = await lab.take()
        await lab.end(held, Outcome.UNANSWERED)
    await lab.frontier.give_up(after_ms=0, idle_ms=0, limit=10)
    assert await lab.frontier.give_up(after_ms=0, idle_ms=0, limit=10) == (0, 0, 0)
    assert (await lab.host("http://a.test"))["given_up"] == "host_unreachable"
    assert (await replay(operated, Where(hosts=("a.test",)))).words == {"QUEUED": 3}
    assert "given_up" not in await lab.host("http://a.test")
    await operated.check()
    assert len(await lab.take()) == 1


async def test_robots_letter_makes_its_host_ask_again(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, obey_robots=True)
    lab = operated.labs[0]
    await operated.offer(urls("a.test", 2))
    (held,) = await lab.take()
    assert held.task.kind is Kind.ROBOTS
    await lab.end(held, Outcome.DEAD, detail=("0", held.stored, "robots", "503", "503"))
    await lab.frontier.give_up(after_ms=10**9, idle_ms=10**9, limit=10)
    assert await letters.totals_by_reason(operated.crawl) == {"robots_unreachable": 2, "robots": 1}
    assert [letter.kind for letter in await listed(operated)].count("robots") == 1
    assert (await replay(operated)).words == {"QUEUED": 2, "ASKED": 1}
    await operated.check()
    (held,) = await lab.take()
    assert held.task.kind is Kind.ROBOTS
    await lab.end(held)
    assert len(await lab.take()) == 1
    await operated.check()


async def test_letter_that_cannot_be_read_stays_and_can_be_purged(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    lab = operated.labs[0]
    await operated.offer(urls("a.test", 1))
    await lab.client.lset(lab.keys.queue("http://a.test", "2"), 0, '[0,1,"page","/x",0,"no attempt"]')
    await lab.frontier.dispatch(1)
    entries: Any = await lab.client.xreadgroup("workers", "w1", {lab.keys.fetch_stream: ">"})
    fields = entries[0][1][0][1]
    commit = lab.commit_of(lab.held(entries[0][1][0][0], fields | {b"task": b'[0,1,"page","/x",0]'}))
    commit.outcome, commit.detail = Outcome.DEAD, ("2", fields[b"task"].decode(), "codec", "no task", "")
    assert (await lab.commit(commit)).words == ["DONE"]
    (letter,) = await listed(operated)
    assert (letter.task, letter.url) == (None, "http://a.test")
    assert letter.as_json(1)["stored"] == fields[b"task"].decode()
    assert (await replay(operated)).words == {"INVALID": 1}
    assert (await purge(operated)).words == {"PURGED": 1}
    await operated.check()


@pytest.mark.parametrize("shards", SHARDS)
async def test_purged_letters_are_gone_for_good(redis_client: Redis, crawl_name: str, shards: int) -> None:
    operated = await mixed(redis_client, crawl_name, shards)
    assert (await purge(operated, is_dry=True)).words == {"FOUND": 10}
    assert (await purge(operated, Where(values=letters.parse_where(["reason=timeout"])), limit=4)).words == {
        "PURGED": 4
    }
    assert (await purge(operated)).words == {"PURGED": 6}
    assert (await purge(operated)).words == {}
    assert await operated.total("page.dropped.purged") == 10
    await operated.check()
    await operated.offer(["http://h1.test/a"])  # seen for ever
    assert await operated.total("page.queued") == 0


async def test_id_and_time_must_both_hold(redis_client: Redis, crawl_name: str) -> None:
    operated = await mixed(redis_client, crawl_name, 1)
    (first, *_) = await listed(operated)
    name = first.name(1)
    assert len(await listed(operated, Where(ids=(name,), since_ms=first.died_at_ms))) == 1
    assert await listed(operated, Where(ids=(name,), until_ms=first.died_at_ms - 1)) == []
