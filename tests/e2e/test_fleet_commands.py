"""pause, resume, drain, close, delete and settings, on crawls of several shards that a test moves by hand."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.settings import CLASSES, Given, SettingClass, fields_of, key_of, make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Beat
from streamcrawl.store.keys import CRAWLS, Keys
from streamcrawl.store.shards import Shards, delete_crawl, open_crawl
from streamcrawl.store.tuning import encode_given
from streamcrawl.work.seeds import Cursor
from tests.e2e.command import PROGRAM, Command
from tests.integration.snapshot import Lab, fast, urls
from tests.redis_server import RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

    OpenCrawl = Callable[..., Awaitable[Shards]]

SHARDS = 3
HOSTS = [f"host{n}.test" for n in range(12)]
"""Of as many registrable domains, so every shard has some."""


@pytest.fixture
async def open_by_hand(redis_client: Redis, crawl_name: str) -> AsyncIterator[OpenCrawl]:
    """Opens the test's crawl, of SHARDS shards, with one output."""

    async def opened(given: dict[str, Given] | None = None, **values: Any) -> Shards:
        settings = make_settings(**fast(crawl_name, shards=SHARDS, **values))
        crawl, _ = await open_crawl(redis_client, settings, sinks=["out"], given=encode_given(given or {}))
        stored = {"scope": {}, "sinks": {"out": f"/somewhere/{crawl_name}.jsonl"}}
        await crawl.first.control(crawl=msgspec.json.encode(stored).decode())
        return crawl

    yield opened
    await delete_crawl(redis_client, crawl_name)


async def offer(crawl: Shards, pages: int = 2) -> int:
    """Offer some pages of every host; return how many there are."""
    for host in HOSTS:
        assert await Lab(crawl.of(f"http://{host}")).offer(*urls(host, pages)) == pages
    return len(HOSTS) * pages


async def dispatch(crawl: Shards) -> int:
    for frontier in crawl:
        await frontier.control(slots=100)
    return sum([(await frontier.dispatch(100)).moved for frontier in crawl])


async def fields(crawl: Shards, field: str) -> list[bytes | None]:
    return [await crawl.client.hget(frontier.keys.state, field) for frontier in crawl]  # type: ignore[misc]


async def beat(crawl: Shards, *consumers: str) -> None:
    for frontier in crawl:
        beats = [Beat(consumer, "stream:fetch", 5, "{}") for consumer in consumers]
        await frontier.beat(beats, lease_ms=30_000)


# -- pause, resume


async def test_pause_holds_every_shard_until_resume(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()
    await offer(crawl)
    assert await dispatch(crawl) == len(HOSTS)
    paused = command.run("pause", crawl_name, "--redis", redis_server.url)
    assert paused == (
        ExitCode.DONE,
        f"crawl {crawl_name}: paused; {len(HOSTS)} pages handed out before will still be fetched; "
        f"go on: streamcrawl resume {crawl_name} --redis {redis_server.url}\n",
        "",
    )
    assert await fields(crawl, "paused") == [b"1"] * SHARDS
    for frontier in crawl:
        lab = Lab(frontier)
        await lab.end_all(await lab.read())
    assert await dispatch(crawl) == 0

    await crawl.control(stopped="FRONTIER_FULL")
    resumed = command.run("resume", crawl_name, STREAMCRAWL_REDIS=redis_server.url)
    assert resumed.out == (
        f"crawl {crawl_name}: goes on (it had stopped: FRONTIER_FULL); no worker is alive, start some: "
        f"streamcrawl worker {crawl_name}\n"
    )
    assert await fields(crawl, "paused") + await fields(crawl, "stopped") == [None] * 2 * SHARDS
    assert await dispatch(crawl) == len(HOSTS)
    await beat(crawl, "w1")
    again = command.run("resume", crawl_name, "--redis", redis_server.url)
    assert again == (ExitCode.DONE, f"crawl {crawl_name}: was not paused\n", "")


@pytest.mark.parametrize(
    "word", [["pause"], ["resume"], ["drain"], ["close"], ["delete", "--yes"], ["settings", "show"]]
)
async def test_crawl_that_is_not_there_is_named_and_nothing_is_made(
    command: Command, redis_server: RedisServer, redis_client: Redis, crawl_name: str, word: list[str]
) -> None:
    there = command.run(*word, crawl_name, "--redis", redis_server.url)
    assert there == (
        ExitCode.USAGE,
        "",
        f"streamcrawl: there is no crawl {crawl_name!r} in this store; `streamcrawl status` lists those that are\n",
    )
    here = command.run(*word, crawl_name)
    assert here.code == ExitCode.USAGE
    assert here.err == (
        f"streamcrawl: there is no crawl {crawl_name!r} in .streamcrawl (there: none); "
        "give --redis URL for one elsewhere\n"
    )
    assert await redis_client.keys(f"*{crawl_name}*") == []
    assert list(command.folder.iterdir()) == []


def test_redis_that_is_not_there_is_one_line(command: Command, crawl_name: str) -> None:
    result = command.run("pause", crawl_name, "--redis", f"redis://127.0.0.1:{free_port()}")
    assert result.code == ExitCode.STORE_UNAVAILABLE
    assert result.err.count("\n") == 1


async def test_as_json(command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl) -> None:
    crawl = await open_by_hand()
    await offer(crawl)
    await dispatch(crawl)

    def run(*words: str) -> dict[str, Any]:
        result = command.run(*words, crawl_name, "--json", "--redis", redis_server.url)
        assert result.err == ""
        found: dict[str, Any] = json.loads(result.out)
        assert found.pop("crawl") == crawl_name
        return found

    assert run("pause") == {"paused": True, "in_stream": len(HOSTS)}
    assert run("drain", "--timeout", "0") == {
        "ending": "TIMEOUT", "exit_code": 3, "queued": len(HOSTS), "left": {"fetch": len(HOSTS), "out": 0},
    }  # fmt: skip
    assert run("resume") == {"paused": False, "was_paused": True, "was_stopped": "", "is_alive": False}
    assert run("close") == {"closed": True, "feeders": []}
    deleted = run("delete", "--yes")
    assert deleted.pop("keys") > SHARDS
    assert deleted == {"deleted": True, "kept": [f"/somewhere/{crawl_name}.jsonl"]}


# -- drain


async def test_drain_ends_when_nothing_is_in_any_hand(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()
    await offer(crawl)
    await dispatch(crawl)
    await beat(crawl, "w1")
    with command.start("drain", crawl_name, "--redis", redis_server.url) as draining:
        while await fields(crawl, "paused") != [b"1"] * SHARDS:
            assert draining.process.poll() is None, draining.err
        for frontier in crawl:
            lab = Lab(frontier)
            for held in await lab.read():
                await lab.end(held, items=("out", "{}\n"))
        draining.until(
            lambda: f"draining {crawl_name}: {len(HOSTS)} records to write\n" in draining.err, "records wait"
        )
        for frontier in crawl:
            _, writer, *_ = await frontier.sink_open("out", "s1", lease_ms=30_000)
            rows: Any = await crawl.client.xreadgroup("workers", "s1", {frontier.keys.sink_stream("out"): ">"})
            ids = [entry_id.decode() for entry_id, _ in rows[0][1]]
            await frontier.sink_commit("out", writer=writer, expected=0, offset=9, entry_ids=ids)
        result = draining.wait()
    assert result.code == ExitCode.DONE
    assert result.out == (
        f"crawl {crawl_name}: drained, {len(HOSTS)} pages still to fetch; workers may be stopped now; "
        f"go on: streamcrawl resume {crawl_name} --redis {redis_server.url}\n"
    )
    assert await fields(crawl, "paused") == [b"1"] * SHARDS


async def test_drain_says_that_nobody_works_and_gives_up_at_its_timeout(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()
    await offer(crawl)
    await dispatch(crawl)
    result = command.run("drain", crawl_name, "--redis", redis_server.url, "--timeout", "300ms")
    assert result.code == ExitCode.STOPPED
    assert result.err.startswith("no worker is alive: nobody takes what waits; start some: streamcrawl worker ")
    assert result.err.count("\n") == 1
    assert f"{len(HOSTS)} pages under way; it stays paused; wait longer: streamcrawl drain" in result.out
    assert await fields(crawl, "paused") == [b"1"] * SHARDS


@pytest.mark.parametrize("end", ["resumed", "deleted"])
async def test_drain_does_not_take_the_word_of_somebody_else_for_its_end(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl, end: str
) -> None:
    crawl = await open_by_hand()
    await offer(crawl)
    await dispatch(crawl)
    with command.start("drain", crawl_name, "--redis", redis_server.url) as draining:
        draining.until(lambda: "no worker is alive" in draining.err, "it waits")
        if end == "resumed":
            await crawl.control(paused="")
            result = draining.wait()
            assert result.code == ExitCode.STOPPED
            assert result.out.startswith(f"crawl {crawl_name}: resumed by someone else before it was drained")
        else:
            await delete_crawl(crawl.client, crawl_name)
            result = draining.wait()
            assert result.code == ExitCode.STORE_UNAVAILABLE
            assert "was deleted or begun afresh by someone else meanwhile\n" in result.err


async def test_interrupted_drain_says_that_the_crawl_stays_paused(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()
    await offer(crawl)
    await dispatch(crawl)
    with command.start("drain", crawl_name, "--redis", redis_server.url) as draining:
        draining.until(lambda: "no worker is alive" in draining.err, "it waits")
        draining.interrupt()
        result = draining.wait()
    assert result.code == ExitCode.STOPPED
    said = f"streamcrawl: interrupted; crawl {crawl_name} stays paused until `streamcrawl resume`\n"
    assert result.err.endswith(said)
    assert "Traceback" not in result.err


async def test_drain_waits_for_a_store_that_is_away_but_not_beyond_its_timeout(
    command: Command, crawl_name: str
) -> None:
    with RedisServer() as server:
        client = connect(server.url)
        crawl, _ = await open_crawl(client, make_settings(**fast(crawl_name)))
        await Lab(crawl.first).offer("http://a.test/")
        await dispatch(crawl)
        await client.aclose()
        with command.start("drain", crawl_name, "--redis", server.url, "--timeout", "4s") as draining:
            draining.until(lambda: "no worker is alive" in draining.err, "it waits")
            server.kill9()
            result = draining.wait()
    assert result.code == ExitCode.STORE_UNAVAILABLE
    assert result.err.count("drain: Redis does not answer now (") == 1
    assert result.err.splitlines()[-1].startswith("streamcrawl: Redis does not answer now (")


# -- close


async def test_close_waits_for_feeders_that_live_and_names_them(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()
    await crawl.first.feed("", "open")
    cursor = Cursor(source="urls.txt", line=12, new=10, refused=2).encode()
    await crawl.first.feed("alive", "begin", lease_ms=30_000, cursor=cursor)
    await crawl.first.feed("dead", "sign", lease_ms=0)
    first = command.run("close", crawl_name, "--redis", redis_server.url)
    said, feeder = first.out.splitlines()
    assert said == (
        f"crawl {crawl_name}: 1 command still offers seeds; it closes when the last is done, or dead for a lease"
    )
    assert feeder.startswith("  alive: at urls.txt line 12 (10 new, 0 known, 2 refused), last sign ")
    again = command.run("close", crawl_name, "--redis", redis_server.url, "--json")
    named = msgspec.json.decode(again.out)["feeders"]
    assert [(one["name"], one["cursor"], one["is_alive"]) for one in named] == [("alive", cursor, True)]
    assert (await fields(crawl, "closed"))[0] is None
    await crawl.first.feed("alive", "leave")
    second = command.run("close", crawl_name, "--redis", redis_server.url)
    assert second == (ExitCode.DONE, f"crawl {crawl_name}: closed; it ends once nothing is left to do\n", "")
    assert await fields(crawl, "closed") == [b"1"] * SHARDS


# -- delete


async def test_delete_says_what_it_deletes_and_asks(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()
    count = await offer(crawl)
    await beat(crawl, "w1")
    refused = command.run("delete", crawl_name, "--redis", redis_server.url)
    assert refused.code == ExitCode.USAGE
    assert refused.err.endswith(
        f"streamcrawl: nothing is deleted without a word: give --yes to delete crawl {crawl_name!r}\n"
    )
    assert at_terminal(command, "n\n", "delete", crawl_name, "--redis", redis_server.url) == ExitCode.STOPPED
    assert await crawl.client.exists(crawl.first.keys.state)
    neighbour, _ = await open_crawl(crawl.client, make_settings(**fast(f"{crawl_name}.x")), sinks=[])
    assert at_terminal(command, "y\n", "delete", crawl_name, "--redis", redis_server.url) == ExitCode.DONE
    told = command.folder.joinpath("terminal").read_text()
    assert f"crawl {crawl_name}: 0 pages done, {count} queued, 0 dead letters, {count} URLs seen\n" in told
    assert f"  kept: /somewhere/{crawl_name}.jsonl\n" in told
    assert await crawl.client.keys(f"streamcrawl:{{{crawl_name}:*") == []
    assert not await crawl.client.sismember(CRAWLS, crawl_name)
    # Another crawl whose name begins alike is still there.
    assert await crawl.client.hget(neighbour.first.keys.state, "epoch") == neighbour.epoch.encode()
    await delete_crawl(crawl.client, f"{crawl_name}.x")


def at_terminal(command: Command, answer: str, *arguments: str) -> int:
    """Run the command with a terminal as its standard input, and this typed there; what it says goes to `terminal`."""
    ours, its = pty.openpty()
    with command.folder.joinpath("terminal").open("w") as told:
        process = subprocess.Popen(
            [PROGRAM, *arguments], cwd=command.folder, env=command.environment({}), stdin=its, stdout=told, stderr=told
        )
        os.close(its)
        os.write(ours, answer.encode())
        code = process.wait(20)
    os.close(ours)
    return code


@pytest.mark.parametrize("left", ["everything", "one state", "the list"])
async def test_deletion_that_broke_off_is_ended_by_the_same_command(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl, left: str
) -> None:
    crawl = await open_by_hand()
    await offer(crawl)
    for frontier in crawl:
        await crawl.client.hdel(frontier.keys.state, "epoch")
    if left != "everything":
        kept = {crawl.first.keys.state.encode()} if left == "one state" else set()
        keys = set(await crawl.client.keys(f"streamcrawl:{{{crawl_name}:*")) - kept
        await crawl.client.delete(*keys)
    result = command.run("delete", crawl_name, "--yes", "--redis", redis_server.url)
    assert result.code == ExitCode.DONE
    assert result.err == f"crawl {crawl_name}: what a deletion that broke off has left\n"
    assert await crawl.client.keys(f"*{crawl_name}*") == []
    assert not await crawl.client.sismember(CRAWLS, crawl_name)


async def test_new_crawl_begun_during_a_second_deletion_is_left_alone(
    redis_client: Redis, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    await offer(await open_by_hand())
    began: list[str] = []

    async def first_deletion() -> None:
        await delete_crawl(redis_client, crawl_name)
        began.append((await open_by_hand()).epoch)

    # The other one deletes all and is followed by a new crawl between two steps of this one.
    scan = redis_client.scan_iter

    async def slow_scan(**options: Any) -> AsyncIterator[bytes]:
        redis_client.scan_iter = scan  # type: ignore[method-assign]
        async for key in scan(**options):
            yield key
        await first_deletion()

    redis_client.scan_iter = slow_scan  # type: ignore[assignment,method-assign]
    await delete_crawl(redis_client, crawl_name)
    assert await redis_client.hget(Keys(crawl_name).state, "epoch") == began[0].encode()
    assert await redis_client.sismember(CRAWLS, crawl_name)


# -- settings


async def test_settings_show_says_where_each_value_comes_from(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    await open_by_hand({"delay_ms": Given(200, "--delay"), "deny": Given(("/a", "b"), "crawl.toml")})
    result = command.run("settings", "show", crawl_name, "--redis", redis_server.url)
    assert result.code == ExitCode.DONE
    head, *rows, local = result.out.splitlines()
    assert head == f"crawl {crawl_name}: settings, version 1"
    said = {row.split()[0]: row.split(maxsplit=1)[1].split("  ", 1) for row in rows}
    assert [part.strip() for part in said["delay"]] == ["200ms", "--delay"]
    assert [part.strip() for part in said["deny"]] == ["/a b", "crawl.toml"]
    assert [part.strip() for part in said["timeout"]] == ["30s", "default"]
    assert [part.strip() for part in said["shards"]] == [str(SHARDS), "fixed when the crawl was created"]
    assert [part.strip() for part in said["lease"]] == ["30s", "default; changes only while no worker is alive"]
    assert {key_of(field) for field, (kind, _) in CLASSES.items() if kind is not SettingClass.LOCAL} == said.keys()
    assert local.startswith("of each machine and not of the crawl: processes (--processes), ")
    assert local.count("(--") == len(fields_of(SettingClass.LOCAL))
    shown = json.loads(command.run("settings", "show", crawl_name, "--json", "--redis", redis_server.url).out)
    assert shown["version"] == 1
    assert shown["settings"]["delay"] == {
        "field": "delay_ms", "value": 200, "text": "200ms", "class": "tunable", "source": "--delay",
    }  # fmt: skip


async def test_settings_set_changes_all_or_nothing(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()

    def set_(*changes: str) -> tuple[int, str, str]:
        return command.run("settings", "set", crawl_name, *changes, "--redis", redis_server.url)

    assert set_("delay=2s", "max-pages=500", "deny=/calendar/") == (
        ExitCode.DONE,
        "delay: 1s (default) -> 2s\n"
        "pages_max: no limit (default) -> 500\n"
        "deny: none (default) -> /calendar/\n"
        f"crawl {crawl_name}: settings version 2, in force everywhere within a second\n",
        "",
    )
    assert await fields(crawl, "delay_ms") == [b"2000"] * SHARDS
    assert await fields(crawl, "version") == [b"2"] * SHARDS
    assert set_("delay=", "delay_ms=3")[0] == ExitCode.USAGE
    assert set_("delay=", "deny=/calendar/")[1] == (
        f"delay: 2s -> 1s (default)\ndeny: /calendar/, as before\n"
        f"crawl {crawl_name}: settings version 3, in force everywhere within a second\n"
    )
    assert set_("deny=/calendar/", "timeout=")[1] == (
        "deny: /calendar/, as before\ntimeout: 30s, as before\n"
        f"crawl {crawl_name}: settings version 3, nothing changed\n"
    )
    assert json.loads(set_("timeout=5s", "--json")[1]) == {
        "crawl": crawl_name, "version": 4, "changed": {"timeout": [30_000, 5000]},
    }  # fmt: skip


async def test_settings_that_cannot_be_set_are_refused_with_the_reason(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()
    await beat(crawl, "w1")
    for change, why in (
        ("shards=4", "shards is fixed when the crawl is created ("),
        ("pages_max=0", "the least is 1"),
        ("lease=5s", "lease 5s: crawl "),
    ):
        refused = command.run("settings", "set", crawl_name, "timeout=1s", change, "--redis", redis_server.url)
        assert refused.code == ExitCode.USAGE
        assert why in refused.err
        assert refused.err.count("\n") == 1
    assert await fields(crawl, "version") == [b"1"] * SHARDS


async def test_resting_setting_changes_once_the_last_worker_has_left(
    command: Command, redis_server: RedisServer, crawl_name: str, open_by_hand: OpenCrawl
) -> None:
    crawl = await open_by_hand()
    await beat(crawl, "w1")
    for frontier in crawl:
        await frontier.beat([Beat("w1", "stream:fetch", -1, "{}")], lease_ms=30_000)
    result = command.run("settings", "set", crawl_name, "lease=5s", "--redis", redis_server.url)
    assert result.out.startswith("lease: 30s (default) -> 5s\n")
