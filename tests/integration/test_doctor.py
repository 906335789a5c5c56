"""What is wrong with a Redis, a machine and a crawl: each finding staged on real servers, and what it ends with."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from streamcrawl.errors import ExitCode, StoreUnavailable
from streamcrawl.ops.checkup import (
    Area,
    Finding,
    ServerLook,
    Severity,
    lua_hole,
    machine_findings,
    read_server,
    runs_here,
    server_findings,
)
from streamcrawl.ops.doctor import RUNBOOK, as_json, crawl_findings, exit_code, finding_lines, in_order
from streamcrawl.ops.why import read_why
from streamcrawl.rules.task import Outcome
from streamcrawl.store.connection import connect, mapped_errors
from streamcrawl.store.shards import delete_crawl, join_crawl
from tests.e2e.command import REPOSITORY
from tests.integration.operated import Operated
from tests.integration.snapshot import Lab, urls, wait_until
from tests.integration.test_why import FLOW, LEASE_MS, SINK, TYPED, beat, replaying
from tests.redis_server import DURABLE, FAST, RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab


REPLICA: Final = {"ip": "r", "port": 1, "state": "online", "lag": 0}


async def found_in(lab: Lab, *, is_audited: bool = False) -> dict[str, Finding]:
    """Return the findings of a crawl by word; of several with the same word the first."""
    found: dict[str, Finding] = {}
    for one in in_order(await crawl_findings(lab.crawl, lab.keys.crawl, TYPED, is_audited=is_audited)):
        assert one.crawl == lab.keys.crawl
        found.setdefault(one.word, one)
    return found


@asynccontextmanager
async def server_of(options: Mapping[str, str] = FAST, **values: Any) -> AsyncIterator[tuple[RedisServer, Redis]]:
    with RedisServer(options=options, **values) as server:
        client = connect(server.url)
        try:
            yield server, client
        finally:
            await client.aclose()


async def words_of(client: Redis, **values: Any) -> dict[str, Finding]:
    return {one.word: one for one in server_findings(await read_server(client), **values)}


# -- Redis


async def test_server_as_it_should_be_has_no_fault() -> None:
    async with server_of(DURABLE | {"maxmemory": "1gb"}) as (_, client):
        found = await words_of(client)
        # A packaged server may have a hole by its version, and a busy machine answers slowly.
        assert set(found) <= {"cve", "answer_slow", "slow_commands", "fork_slow", "fsync_slow"}
        assert exit_code(found.values()) == ExitCode.DONE


async def test_eviction_is_a_fault_and_what_it_evicted_is_told() -> None:
    async with server_of(DURABLE | {"maxmemory": "5mb", "maxmemory-policy": "allkeys-lru"}) as (_, client):
        for n in range(60):
            await client.set(f"k{n}", b"x" * 200_000)
        found = await words_of(client)
        assert found["policy"].severity is Severity.FAULT
        assert found["policy"].text == "maxmemory-policy allkeys-lru lets Redis drop parts of a crawl without a word"
        assert found["policy"].do == "redis-cli CONFIG SET maxmemory-policy noeviction"
        assert re.match(r"\d+ keys were evicted since it was started", found["evicted"].text)
        assert exit_code(found.values()) == ExitCode.STORE_UNAVAILABLE


async def test_server_that_keeps_nothing_and_has_no_limit_is_warned_of() -> None:
    async with server_of() as (_, client):
        found = await words_of(client)
        assert (found["aof_off"].severity, found["aof_off"].runbook) == (Severity.WARNING, "StreamcrawlAofOff")
        assert found["maxmemory_unset"].text.startswith("no maxmemory (")
        assert "maxmemory_unset" not in await words_of(client, is_embedded=True)  # only looked at


async def test_memory_near_and_above_the_mark() -> None:
    async with server_of() as (_, client):
        await client.set("ballast", b"x" * 20_000_000)

        async def at(share: float) -> dict[str, Finding]:
            used = int((await client.info("memory"))["used_memory"])
            await client.config_set("maxmemory", int(used / 0.8 / share))
            return await words_of(client)

        assert not {"memory_near", "memory_full"} & (await at(0.5)).keys()
        near = (await at(0.95))["memory_near"]
        assert (near.severity, near.runbook) == (Severity.WARNING, "StreamcrawlRedisMemoryNearMark")
        full = (await at(1.1))["memory_full"]
        assert (full.severity, full.runbook) == (Severity.FAULT, "StreamcrawlMemoryFull")
        assert "larger --memory-max" in (await words_of(client, is_embedded=True))["memory_full"].do
        await client.config_set("maxmemory", 10**15)
        assert (await words_of(client))["maxmemory_large"].severity is Severity.WARNING


async def test_full_disk_is_a_fault_until_a_write_succeeds() -> None:
    async with server_of(DURABLE | {"save": "1000 1"}, may_fill=True) as (server, client):
        with server.full_disk():

            async def has_failed(field: str) -> bool:
                return bool((await client.info("persistence"))[field] == "err")

            await client.bgsave()
            await wait_until(lambda: has_failed("rdb_last_bgsave_status"), "the dump to fail")
            with pytest.raises(StoreUnavailable, match="MISCONF"):
                await _set(client)
            await wait_until(lambda: has_failed("rdb_last_bgsave_status"), "the dump to have failed")
            found = await words_of(client)
            assert found["rdb_failed"].severity is Severity.FAULT
            assert found["rdb_failed"].text.endswith("writes are refused until one succeeds (MISCONF)")
            await client.config_set("stop-writes-on-bgsave-error", "no")
            assert (await words_of(client))["rdb_failed"].severity is Severity.WARNING
            await _set_unheard(client)
            await wait_until(lambda: has_failed("aof_last_write_status"), "the append-only file to fail")
            failed = (await words_of(client))["aof_failed"]
            assert (failed.severity, failed.runbook) == (Severity.FAULT, "StreamcrawlAofFailed")


async def _set(client: Redis) -> None:
    with mapped_errors():
        await client.set("a", "b")


async def _set_unheard(client: Redis) -> None:
    """Write something, whether the server takes it or not."""
    try:
        await _set(client)
    except StoreUnavailable:
        return


async def test_replica_is_a_fault_and_its_crawls_are_looked_at_all_the_same(crawl_name: str) -> None:
    async with server_of() as (primary, client), server_of() as (replica, second):
        operated = await Operated.opened(client, crawl_name)
        await operated.offer(urls("a.test", 3))
        await operated.kill(urls("b.test", 1))
        await second.replicaof("127.0.0.1", primary.port)

        async def is_there() -> bool:
            # Both have to know: the primary hears of it after its replica.
            up = (await second.info("replication")).get("master_link_status") == "up"
            known: Any = (await client.info("replication")).get("slave0", {})
            return up and known.get("state") == "online"

        await wait_until(is_there, "the replica to follow")
        found = await words_of(second)
        assert found["replica"].severity is Severity.FAULT
        assert found["replica"].do == f"give --redis its primary, 127.0.0.1:{primary.port}"
        assert "replica_offline" not in await words_of(client)
        crawl = await join_crawl(second, crawl_name, is_only_read=True)
        # With the audit: its script only reads, so a replica runs it.
        words = {one.word for one in await crawl_findings(crawl, crawl_name, TYPED, is_audited=True)}
        assert words == {"no_workers", "dead_letters"}
        assert replica.port != primary.port


async def test_slow_commands_client_limits_and_clients_are_told() -> None:
    async with server_of(FAST | {"slowlog-log-slower-than": "1000"}) as (_, client):
        assert "slow_commands" not in await words_of(client)
        await client.config_set("slowlog-log-slower-than", 20_000)
        await client.eval("local t = redis.call('TIME') repeat local n = redis.call('TIME') "
                          "until (n[1] - t[1]) * 1000000 + n[2] - t[2] > 30000", 0)  # fmt: skip
        slow = (await words_of(client))["slow_commands"]
        assert re.match(r"\d+ slow commands? of 20 ms or more in the last hour, the longest \S+ ms \(", slow.text)
        await client.config_set("client-output-buffer-limit", "normal 1000000 0 0")
        assert "cuts a client off at 1.0 MB" in (await words_of(client))["output_buffer"].text
        there = int((await client.info("clients"))["connected_clients"])
        await client.config_set("maxclients", there)
        assert (await words_of(client))[
            "clients_near"
        ].text == f"{there} of {there} clients are connected: others will be refused"


async def test_clock_that_is_wrong_is_told() -> None:
    async with server_of(has_clock=True) as (server, client):
        assert "clock_skew" not in await words_of(client)
        server.set_clock(3600)
        skew = (await words_of(client))["clock_skew"]
        assert skew.severity is Severity.WARNING
        assert re.match(r"its clock is (1 h|59 min 5\d s)( \d+ \w+)? ahead of this machine's", skew.text)
        server.set_clock(-3600)
        assert " behind this machine's" in (await words_of(client))["clock_skew"].text


async def grant(client: Any, *rules: str) -> None:
    """Give the user `reader` rights; Any: redis-py has no types for it."""
    await client.execute_command("ACL", "SETUSER", "reader", *rules)


async def test_what_may_not_be_asked_is_said_and_nothing_is_written(crawl_name: str) -> None:
    async with server_of() as (server, client):
        operated = await Operated.opened(client, crawl_name)
        await operated.offer(urls("a.test", 3))
        await operated.kill(urls("b.test", 2), reason="handler")
        await operated.check()
        [lab] = operated.labs
        rights = ["+@read", "+@connection", "+info", "+time"]
        await grant(client, "on", ">pw", "~*", *rights)
        reader = connect(server.url.replace("//", "//reader:pw@"))
        try:
            found = await words_of(reader)
            assert {one.text.partition(" may")[0] for one in server_findings(await read_server(reader))
                    if one.word == "not_asked"} == {"CONFIG GET", "SLOWLOG GET"}  # fmt: skip
            assert found["not_asked"].severity is Severity.NOTE
            crawl = await join_crawl(reader, crawl_name, is_only_read=True)
            words = {one.word for one in await crawl_findings(crawl, crawl_name, TYPED, is_audited=True)}
            assert words == {"not_audited", "not_compared", "no_workers", "dead_letters"}
            await grant(client, "+@transaction")
            words = {one.word for one in await crawl_findings(crawl, crawl_name, TYPED, is_audited=True)}
            assert words == {"not_audited", "no_workers", "dead_letters"}
            await read_why(crawl, crawl_name)
            # With scripts it is recounted too: audit.lua only reads.
            await grant(client, "+@scripting", "+config|get", "+slowlog|get")
            assert "not_asked" not in await words_of(reader)
            before, clock = await lab.snapshot(), await client.hmget(lab.keys.state, ["clock_ms", "wall_ms"])
            words = {one.word for one in await crawl_findings(crawl, crawl_name, TYPED, is_audited=True)}
            assert words == {"no_workers", "dead_letters"}
            assert await lab.snapshot() == before
            assert await client.hmget(lab.keys.state, ["clock_ms", "wall_ms"]) == clock
        finally:
            await reader.aclose()


async def test_server_that_is_not_there_is_unavailable() -> None:
    with RedisServer() as server:
        client = connect(server.url)
        try:
            server.stop()
            with pytest.raises(StoreUnavailable):
                await read_server(client)
        finally:
            await client.aclose()


@pytest.mark.parametrize(
    ("flavour", "version", "is_open"),
    [
        ("redis", (7, 0, 15), True), ("redis", (7, 2, 10), True), ("redis", (7, 2, 11), False),
        ("redis", (7, 4, 6), False), ("redis", (8, 0, 3), True), ("redis", (8, 2, 1), True),
        ("redis", (8, 2, 3), False), ("redis", (8, 4, 0), False), ("valkey", (7, 2, 10), True),
        ("valkey", (8, 0, 6), False), ("valkey", (8, 1, 3), True), ("valkey", (9, 0, 0), False),
    ],
)  # fmt: skip
def test_versions_with_a_hole_are_known(flavour: str, version: tuple[int, int, int], is_open: bool) -> None:
    assert lua_hole(flavour, version) is is_open


@pytest.mark.parametrize(
    ("told", "word", "severity"),
    [
        ({"redis_version": "8.2.1"}, "version", Severity.FAULT),
        ({"redis_version": "6.2.0"}, "version", Severity.FAULT),
        ({"redis_mode": "sentinel"}, "topology", Severity.FAULT),
        ({"cluster_enabled": 1}, "topology", Severity.FAULT),
        ({"loading": 1}, "loading", Severity.WARNING),
        ({"latest_fork_usec": 900_000}, "fork_slow", Severity.WARNING),
        ({"aof_delayed_fsync": 3}, "fsync_slow", Severity.NOTE),
        ({"mem_fragmentation_ratio": 2.5, "used_memory": 300_000_000}, "fragmented", Severity.NOTE),
        ({"connected_slaves": 1, "slave0": REPLICA | {"state": "wait_bgsave"}}, "replica_offline", Severity.WARNING),
        ({"connected_slaves": 1, "slave0": REPLICA | {"lag": 60}}, "replica_lag", Severity.WARNING),
    ],
)  # fmt: skip
def test_what_a_server_says_that_cannot_be_staged_quickly(told: dict[str, Any], word: str, severity: Severity) -> None:
    sound = {"redis_version": "8.4.0", "aof_enabled": 1, "maxmemory": 10**9, "used_memory": 10**6}
    assert list(server_findings(ServerLook(sound))) == []
    found = {one.word: one for one in server_findings(ServerLook(sound | told))}
    assert found[word].severity is severity
    assert found[word].do


# -- this machine


async def test_machine_is_looked_at_where_the_server_is(tmp_path: Path) -> None:
    async with server_of(DURABLE) as (server, client):
        look = await read_server(client)
        assert runs_here(look)
        words = {one.word for one in machine_findings(None, look, is_local=True)}
        assert words <= {"files_limit", "disk_near", "disk_full", "overcommit", "huge_pages"}
        # More in memory than any disk has: a rewrite would not fit.
        look.info["used_memory"] = 10**18
        [near] = [one for one in machine_findings(tmp_path, look, is_local=False) if one.word == "disk_near"]
        assert (near.severity, near.area) == (Severity.WARNING, Area.MACHINE)
        assert str(tmp_path) in near.text
        assert list(machine_findings(tmp_path / "nowhere", None, is_local=False)) == []
        look.info["process_id"] = 1
        assert not runs_here(look)
        assert server.pid != 1


# -- crawls


async def test_sound_crawl_at_work_has_no_finding(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    await beat(lab)
    assert await found_in(lab) == {}
    assert exit_code([]) == ExitCode.DONE


async def test_pause_is_a_note_and_no_workers_a_fault(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    await lab.frontier.control(paused=1)
    await beat(lab)
    found = await found_in(lab)
    assert {word: one.severity for word, one in found.items()} == {"paused": Severity.NOTE}
    assert exit_code(found.values()) == ExitCode.DONE
    await lab.frontier.control(paused="")
    await lab.client.delete(lab.keys.workers)
    found = await found_in(lab)
    assert {word: one.severity for word, one in found.items()} == {"no_workers": Severity.FAULT}
    assert exit_code(found.values()) == ExitCode.STOPPED


async def test_replay_that_nobody_goes_on_with_is_a_fault(open_lab: OpenLab) -> None:
    lab = await replaying(open_lab)
    found = await found_in(lab)
    assert {word: one.severity for word, one in found.items()} == {"replay": Severity.FAULT}
    assert exit_code(found.values()) == ExitCode.STOPPED
    await beat(lab)
    assert await found_in(lab) == {}


async def test_dead_letters_are_explained_by_reason_with_how_to_replay(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=10)
    name = lab.keys.crawl
    await lab.offer(*urls("a.test", 6))
    await beat(lab, slots=100)
    for held, reason in zip(
        await lab.take(), ("timeout", "timeout", "http_503", "tls_expired", "dns", "own"), strict=True
    ):
        await lab.end(held, Outcome.DEAD, detail=(held.task.level.value, held.stored, reason, "late", ""))
    every = [
        one for one in await crawl_findings(lab.crawl, name, TYPED, is_audited=False) if one.word == "dead_letters"
    ]
    assert {one.severity for one in every} == {Severity.WARNING}
    texts = [one.text for one in every]
    assert texts[0] == "2 dead letters by timeout: no whole answer in time: too slow, or asked too fast"
    assert "1 dead letter by http_503: the host answered 503 to every try" in texts
    assert "1 dead letter by own" in texts  # a program's, of which we know nothing
    assert any(text.startswith("1 dead letter by tls_expired: no secure connection") for text in texts)
    assert every[0].do == (
        f"streamcrawl dead ls {name} --where reason=timeout --redis redis://r/0; when it is mended: "
        f"streamcrawl dead replay {name} --where reason=timeout --redis redis://r/0"
    )
    assert exit_code(every) == ExitCode.DONE

    await lab.offer(*urls("b.test", 1))
    [held] = await lab.take()
    await lab.end(held, Outcome.DEAD, detail=(held.task.level.value, held.stored, "handler", "late", ""))
    found = await found_in(lab)
    assert (found["dead_letters"].severity, found["dead_letters"].area) == (Severity.FAULT, Area.LETTERS)
    assert exit_code(found.values()) == ExitCode.WITH_DEAD_LETTERS


async def test_hosts_that_were_given_up_are_told_by_reason(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("down.test", 3))
    await beat(lab)
    [held] = await lab.take()
    await lab.end(held, Outcome.UNANSWERED, detail=(held.task.level.value, held.stored, "connect", 1000, 1000, 1000))
    assert await lab.frontier.give_up(after_ms=0, idle_ms=0) == (3, 1, 0)
    found = await found_in(lab)
    assert found["given_up"].text == (
        "1 host given up by host_unreachable: the host did not answer for host_give_up: it is gone, or this network is "
        "broken (http://down.test)"
    )
    assert found["given_up"].do.endswith(
        f"dead replay {lab.keys.crawl} --where reason=host_unreachable --redis redis://r/0"
    )
    assert found["dead_letters"].text.startswith("3 dead letters by host_unreachable")


async def test_damaged_count_is_what_the_audit_and_the_balance_find(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    await beat(lab)
    await lab.client.sadd("streamcrawl:crawls", lab.keys.crawl)
    assert await found_in(lab, is_audited=True) == {}
    await lab.client.hincrby(lab.keys.totals, "page.queued", 2)
    for is_audited in (True, False):
        found = await found_in(lab, is_audited=is_audited)
        assert (found["unbalanced"].severity, found["unbalanced"].area) == (Severity.FAULT, Area.AUDIT)
        assert found["unbalanced"].do == f"streamcrawl audit {lab.keys.crawl} --redis redis://r/0"
        assert exit_code(found.values()) == ExitCode.AUDIT_FAILED
    await lab.client.hincrby(lab.keys.totals, "page.queued", -2)
    await lab.client.srem("streamcrawl:crawls", lab.keys.crawl)


async def test_stage_without_readers_and_output_that_hangs_are_told(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=[SINK])
    await lab.frontier.flow(["enrich@1", "enrich@2", "save"], FLOW)
    await beat(lab)
    await lab.offer("http://a.test/")
    [held] = await lab.take()
    await lab.end(held, items=["enrich@1", '["any",{},0]', SINK, "{}"], url="http://a.test/")
    found = await found_in(lab)
    assert {word: one.severity for word, one in found.items()} == {
        "stage_unread": Severity.FAULT,
        "output_unwritten": Severity.FAULT,
    }
    assert exit_code(found.values()) == ExitCode.STOPPED
    await beat(lab, "e1", slots=4, role="stage", stage="enrich@1")
    await beat(lab, "e2", slots=4, role="stage", stage="enrich@2")
    await beat(lab, "s1", slots=0, role="sink", stage=SINK)
    found = await found_in(lab)
    assert {word: one.severity for word, one in found.items()} == {"versions": Severity.NOTE}
    assert found["versions"].text == "workers of 2 versions of stage enrich are at work: 1, 2"


async def test_output_that_is_held_up_and_what_it_holds_back_are_told_by_age(crawl_name: str) -> None:
    async with server_of(has_clock=True) as (server, client):
        operated = await Operated.opened(client, crawl_name, sinks=[SINK], sink_waiting_max=100, host_concurrency=200)
        await operated.offer(urls("a.test", 150))
        [lab] = operated.labs
        for held in await lab.take(count=85):
            await lab.end(held, items=(SINK, "{}"))
        await client.xreadgroup("workers", "s1", {lab.keys.sink_stream(SINK): ">"}, count=1)
        server.set_clock(3600)
        await beat(lab)
        await beat(lab, "s1", slots=0, role="sink", stage=SINK)
        found = await found_in(lab)
        assert re.match(rf"the output {SINK} has not written a record for (1 h|59 min)", found["output_stuck"].text)
        assert found["output_stuck"].runbook == "StreamcrawlSinkStalled"
        assert re.search(r": fetch waits for it, for (1 h|59 min)", found["throttled"].text)
        assert found["throttled"].runbook == "StreamcrawlStageFull"
        assert found["pending_old"].severity is Severity.WARNING


async def test_feeder_that_died_keeps_the_crawl_open(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 1))
    await beat(lab)
    await lab.frontier.feed("feeder-1", "begin", lease_ms=LEASE_MS)
    assert await found_in(lab) == {}
    await lab.let_pass(2 * LEASE_MS)
    dead = (await found_in(lab))["feeder_dead"]
    assert re.match(r"feeder-1 ended before all its seeds were in \(.* ago\)", dead.text)
    assert dead.do.endswith(f"streamcrawl close {lab.keys.crawl} --redis redis://r/0")


async def test_shards_with_different_settings_are_told(store_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(store_client, crawl_name, shards=3)
    await operated.labs[1].frontier.control(version=7)
    found = {one.word: one for one in await crawl_findings(operated.crawl, crawl_name, TYPED, is_audited=False)}
    assert found["settings_differ"].text.startswith("its shards have settings of versions 1, 7")
    await delete_crawl(store_client, crawl_name)


async def test_finished_crawl_has_no_fault(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 1))
    [held] = await lab.take()
    await lab.end(held)
    await lab.frontier.control(closed=1)
    assert await found_in(lab) == {}


# -- what is said


def finding(severity: Severity, area: Area, crawl: str = "") -> Finding:
    return Finding(severity, area, "word", f"{area} is wrong", "mend it", "StreamcrawlAofOff", crawl)


@pytest.mark.parametrize(
    ("areas", "code"),
    [
        ((), ExitCode.DONE),
        ((Area.LETTERS,), ExitCode.WITH_DEAD_LETTERS),
        ((Area.LETTERS, Area.CRAWL), ExitCode.STOPPED),
        ((Area.CRAWL, Area.MACHINE), ExitCode.STORE_UNAVAILABLE),
        ((Area.CRAWL, Area.REDIS), ExitCode.STORE_UNAVAILABLE),
        (tuple(Area), ExitCode.AUDIT_FAILED),
    ],
)
def test_gravest_fault_decides_the_exit_code(areas: tuple[Area, ...], code: ExitCode) -> None:
    assert exit_code(finding(Severity.FAULT, area) for area in areas) == code
    assert exit_code(finding(Severity.WARNING, area) for area in areas) == ExitCode.DONE


def test_findings_are_said_gravest_first() -> None:
    every = [
        finding(Severity.NOTE, Area.AUDIT),
        finding(Severity.FAULT, Area.CRAWL, "b"),
        finding(Severity.FAULT, Area.REDIS),
    ]
    assert finding_lines(in_order(every)) == [
        "fault    redis: redis is wrong", "         > mend it", f"         {RUNBOOK}streamcrawlaofoff",
        "fault    b: crawl is wrong", "         > mend it", f"         {RUNBOOK}streamcrawlaofoff",
        "note     audit: audit is wrong", "         > mend it", f"         {RUNBOOK}streamcrawlaofoff",
    ]  # fmt: skip
    document = json.loads(json.dumps(as_json(every[1])))
    assert document == {
        "severity": "fault", "area": "crawl", "word": "word", "text": "crawl is wrong", "do": "mend it",
        "runbook": f"{RUNBOOK}streamcrawlaofoff", "crawl": "b",
    }  # fmt: skip


def test_every_paragraph_that_is_named_is_in_the_runbook() -> None:
    headings = set(re.findall(r"^## (\w+)$", (REPOSITORY / "docs" / "runbook.md").read_text(), re.M))
    named: set[str] = set()
    for module in ("checkup", "doctor"):
        named |= set(
            re.findall(r'"(Streamcrawl\w+)"', (REPOSITORY / "streamcrawl" / "ops" / f"{module}.py").read_text())
        )
    assert len(named) > 10
    assert named <= headings
