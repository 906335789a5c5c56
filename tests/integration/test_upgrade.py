"""A crawl that version 0.1 wrote, killed in the middle, under this version: upgraded in one step and run to its end.

What lies in it, and how it was made: schema_1.py.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from streamcrawl.errors import ConfigError, ExitCode, StoreIncompatible
from streamcrawl.ops.audit import audit
from streamcrawl.ops.status import read_status
from streamcrawl.rules.task import CrawlTask, decode_task
from streamcrawl.settings import SCHEMA, Given, make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.embedded import EmbeddedRedis
from streamcrawl.store.frontier import FETCH_STREAM, Entry, Frontier, Links
from streamcrawl.store.keys import CRAWLS, GROUP, Keys
from streamcrawl.store.shards import Shards, delete_crawl, join_crawl, open_crawl
from streamcrawl.store.tuning import decode_given, read_tuned, settings_of, tune
from streamcrawl.store.upgrade import BEGUN, upgrade_crawl
from tests.e2e.command import Command
from tests.integration.schema_1 import BAD, HOSTS, OUTPUT, expected, restore, run_old, serving
from tests.integration.snapshot import assert_accounts, assert_known_keys
from tests.redis_server import FAST, RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


GIVEN: Final = {
    "body_max_bytes": Given(1_000_000, BEGUN),
    "delay_ms": Given(5, BEGUN),
    "deny": Given(("denied",), BEGUN),
    "retry_base_ms": Given(50, BEGUN),
    "scope": Given("any", BEGUN),
}
"""What the old commands were told, without --concurrency, which is a matter of each machine now."""

CLOCK: Final = ("clock_ms", "wall_ms", "gap_at")
"""Fields that every script writes, whatever it answers."""


@pytest.fixture
async def old(store_client: Any, crawl_name: str, tmp_path: Path) -> AsyncIterator[Keys]:
    yield await restore(store_client, crawl_name, tmp_path)
    await delete_crawl(store_client, crawl_name)


async def everything(client: Any, keys: Keys) -> dict[str, Any]:
    """Return all keys of the crawl as DUMP gives them, hashes as they read."""
    found: dict[str, Any] = {}
    async for key in client.scan_iter(match=keys.pattern):
        short = key.decode().removeprefix(keys.prefix)
        is_hash = await client.type(key) == b"hash"
        found[short] = texts(await client.hgetall(key)) if is_hash else await client.dump(key)
    return found


def texts(row: dict[bytes, bytes]) -> dict[str, str]:
    return {field.decode(): value.decode() for field, value in row.items()}


def without_clock(state: dict[str, str]) -> dict[str, str]:
    return {field: value for field, value in state.items() if field not in CLOCK}


async def test_upgrade_says_in_the_state_what_schema_2_says_and_touches_nothing_else(
    store_client: Any, old: Keys, crawl_name: str, tmp_path: Path
) -> None:
    before = await everything(store_client, old)
    said: list[str] = []
    feeder = next(field for field in before["state"] if field.startswith("feeder:"))
    settings = make_settings(crawl_name, {})
    [sink] = msgspec.json.decode(before["state"]["crawl"])["sinks"]
    crawl, is_new = await open_crawl(store_client, settings, sinks=[sink], log=said.append)
    after = await everything(store_client, old)

    assert not is_new
    assert said == [
        f"crawl {crawl_name}: upgraded from schema 1 to 2; workers of the older version may run on, its commands are "
        "refused from now on"
    ]
    state, was = without_clock(after.pop("state")), without_clock(before.pop("state"))
    stored, was_stored = msgspec.json.decode(state.pop("crawl")), msgspec.json.decode(was.pop("crawl"))
    assert decode_given(state.pop("settings").encode()) == GIVEN
    del was[feeder]
    added = {"seeds_max": "2000000", "stage_max": "1000", "stage_bytes": "64000000", "sink_max_bytes": "64000000"}
    added |= {"delay_factor": "2", "delay_max_ms": "60000", "demotion_max": "16", "one_round": "0"}
    assert state == was | {"schema": "2", "upgraded_from": "1", "version": "1"} | added
    del was_stored["settings"], was_stored["scope"]["kind"]
    assert stored == was_stored
    assert stored["sinks"] == {sink: str(tmp_path / OUTPUT)}
    # As one that left in order: who starts next takes its place, and until then the crawl is unfed and not at its end.
    assert after.pop("feeders") == {feeder.removeprefix("feeder:"): "0 "}
    assert after == before

    assert await store_client.sismember(CRAWLS, crawl_name)
    tuned = await read_tuned(await join_crawl(store_client, crawl_name))
    assert (tuned.version, tuned.given) == (1, GIVEN)
    in_force = settings_of(crawl, crawl_name, tuned.given)
    assert (in_force.delay_ms, in_force.scope, in_force.deny) == (5, "any", ("denied",))
    await assert_accounts(crawl.first)
    await assert_known_keys(crawl.first)
    assert (await audit(crawl)).faults == []


async def test_repeated_upgrade_and_two_at_once_do_it_once(store_client: Any, old: Keys, crawl_name: str) -> None:
    said: list[str] = []
    done = await asyncio.gather(*(upgrade_crawl(store_client, crawl_name, log=said.append) for _ in range(5)))
    assert Counter(done) == {True: 1, False: 4}
    assert len(said) == 1
    before = await everything(store_client, old)
    assert not await upgrade_crawl(store_client, crawl_name)
    assert await everything(store_client, old) == before


async def test_looking_at_an_old_crawl_changes_nothing_and_what_would_is_refused(
    store_client: Any, old: Keys, crawl_name: str
) -> None:
    before = await everything(store_client, old)
    status = await read_status(store_client, crawl_name)
    assert status.page("queued") == int(before["totals"]["page.queued"]) > 200
    assert (status.dead_letters, status.is_closed) == (1, False)
    report = await audit(await join_crawl(store_client, crawl_name, is_only_read=True))
    assert (report.faults, report.notes) == ([], ["written by an older version (schema 1), not upgraded yet"])
    with pytest.raises(
        StoreIncompatible, match=r"older version .*`streamcrawl crawl --resume`, `worker` or `seed` upg"
    ):
        await join_crawl(store_client, crawl_name)
    after = await everything(store_client, old)
    assert without_clock(after.pop("state")) == without_clock(before.pop("state"))
    assert after == before


async def test_crawl_of_a_newer_schema_is_refused(store_client: Any, old: Keys, crawl_name: str) -> None:
    await store_client.hset(old.state, "schema", SCHEMA + 1)
    before = await everything(store_client, old)
    settings = make_settings(crawl_name, {})
    words = rf"newer version of streamcrawl \(schema {SCHEMA + 1}, this one reads {SCHEMA}\): install that version here"
    for asked in (
        upgrade_crawl(store_client, crawl_name),
        join_crawl(store_client, crawl_name),
        join_crawl(store_client, crawl_name, is_only_read=True),
        open_crawl(store_client, settings),
    ):
        with pytest.raises(StoreIncompatible, match=words):
            await asked
    assert await everything(store_client, old) == before


async def test_old_command_that_offers_seeds_is_waited_for_while_a_worker_lives(
    store_client: Any, old: Keys, crawl_name: str
) -> None:
    [worker, *_] = await store_client.hkeys(old.workers)
    info = (await store_client.hget(old.workers, worker)).split(b" ", 1)[1]
    now_ms = (await store_client.time())[0] * 1000
    await store_client.hset(old.workers, worker, b"%d %s" % (now_ms, info))
    before = await everything(store_client, old)
    with pytest.raises(ConfigError, match=r"offering seeds to it \(feeder \w+\): let it offer them all, or stop it"):
        await upgrade_crawl(store_client, crawl_name)
    after = await everything(store_client, old)
    assert without_clock(after.pop("state")) == without_clock(before.pop("state"))
    assert after == before

    # On an embedded server whose folder is ours nobody can be alive, whatever the rows of the last run say.
    assert await upgrade_crawl(store_client, crawl_name, is_alone=True)


async def test_old_command_that_has_offered_all_its_seeds_may_run_on(
    store_client: Any, old: Keys, crawl_name: str
) -> None:
    [feeder] = [field for field in await store_client.hkeys(old.state) if field.startswith(b"feeder:")]
    await run_old(store_client, "feed", old, feeder.removeprefix(b"feeder:"), "done", 30_000)
    [worker, *_] = await store_client.hkeys(old.workers)
    await store_client.hset(old.workers, worker, b"%d 6 {}" % ((await store_client.time())[0] * 1000))
    assert await upgrade_crawl(store_client, crawl_name)
    assert await store_client.hget(old.state, "closed") == b"1"
    assert not await store_client.exists(old.feeders)


async def test_what_scripts_went_by_stays_in_force_whatever_else_was_stored(
    store_client: Any, old: Keys, crawl_name: str
) -> None:
    """A command that was killed between its opening and the storing of its settings."""
    await store_client.hset(old.state, mapping={"delay_ms": 250, "robots": 0, "pages_max": 1000})
    await upgrade_crawl(store_client, crawl_name)
    tuned = await read_tuned(await join_crawl(store_client, crawl_name))
    changed = {"delay_ms": Given(250, BEGUN), "obey_robots": Given(False, BEGUN), "pages_max": Given(1000, BEGUN)}
    assert tuned.given == GIVEN | changed
    assert await store_client.hmget(old.state, "delay_ms", "robots", "pages_max") == [b"250", b"0", b"1000"]


async def test_crawl_that_was_opened_and_not_begun_is_upgraded_too(
    store_client: Any, old: Keys, crawl_name: str
) -> None:
    await store_client.hdel(old.state, "crawl")
    assert await upgrade_crawl(store_client, crawl_name)
    tuned = await read_tuned(await join_crawl(store_client, crawl_name))
    assert tuned.given == {"delay_ms": Given(5, BEGUN)}
    assert not await store_client.hexists(old.state, "crawl")


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("{", "cannot be read"),
        ('{"scope":{},"settings":{"timeout_ms":0}}', "with what this one refuses"),
    ],
)
async def test_what_cannot_be_brought_over_is_refused_and_left(
    store_client: Any, old: Keys, crawl_name: str, stored: str, words: str
) -> None:
    await store_client.hset(old.state, "crawl", stored)
    before = await everything(store_client, old)
    with pytest.raises(StoreIncompatible, match=words + r".* with (the|that) version"):
        await upgrade_crawl(store_client, crawl_name)
    assert await everything(store_client, old) == before


async def test_seeds_that_old_workers_ended_do_not_hold_back_new_ones(
    store_client: Any, old: Keys, crawl_name: str
) -> None:
    await upgrade_crawl(store_client, crawl_name)
    crawl = await join_crawl(store_client, crawl_name)
    # More than there is left to do: they were offered by ours, and ended by workers that do not count them.
    await store_client.hincrby(old.totals, "seed.created", 5000)
    await tune(crawl, crawl_name, {"seeds_waiting_max": Given(1000, "test")})
    links = Links()
    links.add(CrawlTask(host=HOSTS[0], path="/new"))
    assert await crawl.first.offer(links) == ("OK", 1)


# -- with workers


def assert_complete(folder: Path, asked: list[str]) -> None:
    """Every page once in the output, and none of those fetched again that the old version had committed."""
    records = [msgspec.json.decode(line) for line in (folder / OUTPUT).read_bytes().splitlines()]
    urls = Counter(record["url"] for record in records)
    assert {url: count for url, count in urls.items() if count > 1} == {}
    assert set(urls) == expected()
    assert {url: count for url, count in Counter(asked).items() if count > 1} == {}
    assert BAD not in asked
    assert not any("/private/" in url for url in asked)
    assert not {f"{host}/robots.txt" for host in HOSTS[:3]} & set(asked)


async def test_embedded_crawl_of_the_old_version_is_resumed_to_its_end(tmp_path: Path, crawl_name: str) -> None:
    command = Command(tmp_path / "here")
    folder = command.folder / ".streamcrawl" / crawl_name
    async with EmbeddedRedis(folder, memory_max_bytes=100_000_000) as server:
        client: Any = connect(server.url)
        keys = await restore(client, crawl_name, command.folder)
        # As after a kill just now: its rows say that a worker, and a feeder, may be alive.
        [worker, *_] = await client.hkeys(keys.workers)
        await client.hset(keys.workers, worker, b"%d 6 {}" % ((await client.time())[0] * 1000))
        await client.aclose()
    status = await asyncio.to_thread(command.run, "status", crawl_name)
    assert status.code == ExitCode.DONE
    async with serving() as asked:
        result = await asyncio.to_thread(command.run, "crawl", "--resume", "--name", crawl_name, STREAMCRAWL_DELAY="")
    assert result.code == ExitCode.WITH_DEAD_LETTERS, result.err
    assert f"crawl {crawl_name}: upgraded from schema 1 to 2" in result.err
    assert re.search(rf"resuming crawl {crawl_name}: \d+ pages done, \d+ queued\n", result.err)
    assert_complete(command.folder, asked)
    assert (await asyncio.to_thread(command.run, "audit", crawl_name)).code == ExitCode.DONE


async def test_worker_of_the_old_version_ends_what_it_holds_beside_ours(tmp_path: Path, crawl_name: str) -> None:
    """A rolling change: the entries of the old worker have neither delay nor cap, and its scripts are the old ones."""
    command = Command(tmp_path / "here")
    with RedisServer(options={**FAST, "maxmemory": "100mb"}) as server:
        client: Any = connect(server.url)
        keys = await restore(client, crawl_name, command.folder)
        await upgrade_crawl(client, crawl_name)
        frontier = Frontier(client, keys, (await client.hget(keys.state, "epoch")).decode())
        held = [row["message_id"] for row in await client.xpending_range(keys.fetch_stream, GROUP, "-", "+", 10)]
        assert len(held) == 2
        [(entry_id, fields)] = await client.xrange(keys.fetch_stream, held[0], held[0])
        entry = Entry(entry_id.decode(), fields)
        assert set(fields) == {b"host", b"level", b"task"}
        # The old worker drops one of the pages it holds, dispatches with its own scripts, and asks for the end.
        ended: list[Any] = [entry.id, fields[b"host"].decode(), "page", "dropped", 0, 0, 0, ["handler"], [], []]
        drop = msgspec.msgpack.encode(ended)
        assert (await run_old(client, "commit", keys, "w-old", 2, drop))[1] == [b"DONE"]
        assert (await run_old(client, "commit", keys, "w-old", 2, drop))[1] == [b"LEASE_LOST"]
        assert (await run_old(client, "dispatch", keys, 4))[1] > 0
        assert (await run_old(client, "finish", keys))[0] == b"RUNNING"
        await assert_accounts(frontier)
        assert (await audit(Shards([frontier]))).faults == []
        # Then it is stopped: it gives back what it has not begun, and leaves. What its scripts dispatched is ours.
        rest = msgspec.msgpack.encode([entry_id.decode() for entry_id in held[1:]])
        assert (await run_old(client, "hand_back", keys, FETCH_STREAM, rest, "0"))[1] == 1
        await client.delete(keys.workers)
        arguments = ("crawl", "--resume", "--name", crawl_name, "--redis", server.url)
        async with serving() as asked:
            result = await asyncio.to_thread(command.run, *arguments, STREAMCRAWL_DELAY="")
        assert result.code == ExitCode.WITH_DEAD_LETTERS, result.err
        dropped = decode_task(fields[b"host"].decode(), fields[b"level"].decode(), fields[b"task"]).url
        records = [msgspec.json.decode(line) for line in (command.folder / OUTPUT).read_bytes().splitlines()]
        urls = [record["url"] for record in records]
        assert len(urls) == len(set(urls))
        assert expected() - set(urls) >= {dropped}
        assert dropped not in asked
        await assert_accounts(frontier)
        assert (await audit(Shards([frontier]))).faults == []
        await client.aclose()
