"""Every script, for eight shards, on the nodes of a real cluster: none touches a key of another slot.

A cluster node refuses what a script does with a key of another slot, even one of its own, so a call that gets its usual
answer has kept to its slot; `test_node_refuses_keys_of_another_slot` shows that it does. A script without a call below
fails the test: add one to CALLS, where the state that it needs is there, and assert an answer of its main path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from redis.exceptions import ResponseError

from streamcrawl.errors import StoreIncompatible
from streamcrawl.rules.task import Outcome
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import check_server, connect, mapped_errors
from streamcrawl.store.frontier import FETCH_STREAM, LINKS, Allowance, Beat, StageCommit, open_shard, sink_stream
from streamcrawl.store.keys import GROUP, Keys, QueueKeys
from streamcrawl.store.queue_store import Ending, open_queue, pack_item
from streamcrawl.store.scripts import Scripts, digest, script_names
from tests.integration.snapshot import Lab, fast, links, page, urls
from tests.redis_cluster import NODES, RedisCluster, slot_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Call = Callable[[Lab], Awaitable[None]]

NAME: Final = "slots"
"""Always the same, because it decides which nodes the shards are on; the cluster is this module's own."""
SHARDS: Final = 8
EPOCH: Final = "0123456789abcdef"
SINK: Final = "out"
LEASE_MS: Final = 60_000
HOSTS: Final = ("http://a.example", "http://b.example", "http://c.example")
PAGES: Final = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


# -- one call of each script, in the order of a crawl's life


async def feed(lab: Lab) -> None:
    assert await lab.frontier.feed("seeds", "begin", lease_ms=LEASE_MS, cursor="7") == (1, "7")


async def tune(lab: Lab) -> None:
    assert await lab.frontier.tune(2, b"{}", ["delay_ms", "0"]) == ("OK", 2)


async def grant(lab: Lab) -> None:
    nothing = Allowance(granted=0, returned=0, used=0, queued=0)
    granted, left = await lab.frontier.grant(3, nothing, wanted=50, budget=100)
    assert 0 < granted <= 50
    assert left == 100 - granted


async def allow(lab: Lab) -> None:
    assert await lab.frontier.allow(100, back=20) == Allowance(granted=100, returned=20, used=0, queued=0)


async def offer(lab: Lab) -> None:
    addresses = [url for host in HOSTS for url in urls(host.removeprefix("http://"), PAGES)]
    assert await lab.frontier.offer(links(*addresses)) == ("OK", len(addresses))
    assert await lab.frontier.offer(links(*addresses), whose=LINKS) == ("OK", 0)


async def beat(lab: Lab) -> None:
    beats = [Beat("w1", FETCH_STREAM, 1000, "{}", ["0-1"]), Beat("s1", sink_stream(SINK), 0, "{}")]
    assert await lab.frontier.beat(beats, lease_ms=LEASE_MS) == ([["0-1"], []], 1000)


async def dispatch(lab: Lab) -> None:
    assert (await lab.frontier.dispatch(100)).moved == len(HOSTS)


async def start(lab: Lab) -> None:
    for held in await lab.take("w1"):
        assert await lab.frontier.start(held.id, held.host, wait_max_ms=0, margin_ms=0) == ("START", 0)
    assert (await lab.frontier.put_back(FETCH_STREAM, "w1", is_crash=False)) == len(HOSTS)


async def visit(lab: Lab) -> None:
    word, _, reservation = await lab.frontier.begin_visit("http://v.example", wait_max_ms=0, took_max_ms=0)
    assert word == "GO"
    await lab.frontier.end_visit("http://v.example", reservation, since_end_ms=0)


async def addresses(lab: Lab) -> None:
    wanted = [part for n in range(2) for part in ("192.0.2.1", f"0:{n}-1", f"http://h{n}.example")]
    assert await lab.frontier.addresses([], wanted, cap=1, ttl_ms=1000) == [0, 250]
    assert await lab.frontier.addresses(["192.0.2.1", "0:0-1"], wanted[3:], cap=1, ttl_ms=1000) == [0]


async def cookies(lab: Lab) -> None:
    change = ["a;a.example;/", "", "1", 0]
    assert await lab.frontier.cookies("site:a.example", change) == change


async def commit(lab: Lab) -> None:
    done, retried, unanswered = await lab.take("w1")
    found = links("http://d.example/1", "http://a.example/new")
    commits = [
        lab.commit_of(done, links=found, items=(SINK, '{"url":"x"}')),
        lab.commit_of(retried, Outcome.RETRY),
        lab.commit_of(unanswered, Outcome.UNANSWERED),
    ]
    committed = await lab.commit(*commits, limit=100)
    assert committed.words == ["DONE"] * 3
    assert committed.dispatched.moved >= 2
    dead, redirected, *_ = await lab.read("w1")
    committed = await lab.commit(lab.commit_of(dead, Outcome.DEAD), lab.commit_of(redirected, Outcome.REDIRECTED))
    assert committed.words == ["DONE"] * 2


async def due(lab: Lab) -> None:
    await lab.let_pass(10_000)
    assert (await lab.frontier.due())[0] == 1


async def revisit(lab: Lab) -> None:
    await lab.frontier.control(revisit_ms=1000)
    await lab.client.zadd(
        lab.keys.revisits, {'2|http://a.example|"page","/seen",0,1,"",[],0,0,{},["again",1000,"","",""]]': 1}
    )
    assert await lab.frontier.revisit() == (1, -1)
    await lab.frontier.control(revisit_ms="")


async def hand_back(lab: Lab) -> None:
    held = await lab.take("w1")
    assert await lab.frontier.hand_back(FETCH_STREAM, [one.id for one in held], is_robots_stale=True) == len(held) > 0


async def put_back(lab: Lab) -> None:
    held = await lab.take("w2")
    assert await lab.frontier.put_back(FETCH_STREAM, "w2", is_crash=True) == len(held) > 0


async def reclaim(lab: Lab) -> None:
    held = await lab.take("w3")
    await lab.let_idle(held, 2 * LEASE_MS, consumer="w3")
    await lab.let_reclaim()
    assert await lab.frontier.reclaim(FETCH_STREAM, lease_ms=LEASE_MS) == ("OK", len(held))
    assert held


async def sink_open(lab: Lab) -> None:
    assert await lab.frontier.sink_open(SINK, "s1", lease_ms=LEASE_MS) == ("OK", 1, 0, "")


async def sink_commit(lab: Lab) -> None:
    answer = await lab.client.xreadgroup(GROUP, "s1", {lab.keys.sink_stream(SINK): ">"})
    entry_ids = [entry_id.decode() for entry_id, _ in answer[0][1]]
    word = await lab.frontier.sink_commit(SINK, writer=1, expected=0, offset=12, entry_ids=entry_ids)
    assert word == ("DONE", None)


async def flow(lab: Lab) -> None:
    row = b'{"enrich":{"from":["page"],"batch":1}}'
    assert await lab.frontier.flow(["enrich"], row, {"enrich": 60_000}) == ["enrich"]


async def stage_commit(lab: Lab) -> None:
    # With links to new hosts, items for every kind of stream and each ending.
    stream = lab.keys.stage_stream("enrich")
    for n in range(3):
        await lab.client.xadd(stream, {"item": f'["any",{n},0]', "url": f"{HOSTS[0]}/", "attempt": 1, "crashes": 0})
    written = {"enrich.created": 3, "enrich.streamed": 3, "enrich.bytes": 3 * len('["any",0,0]')}
    await lab.client.hset(lab.keys.totals, mapping=written)
    answer = await lab.client.xreadgroup(GROUP, "t1", {stream: ">"})
    kept = ("log:enrich", '0["int",9,0]')
    done, retried, dead = (entry_id.decode() for entry_id, _ in answer[0][1])
    commits = [
        StageCommit(
            done, Outcome.DONE, links=links("http://e.example/1"), items=(SINK, "1", "enrich", '["any",9,0]', *kept)
        ),
        StageCommit(retried, Outcome.RETRY, (0,)),
        StageCommit(dead, Outcome.DEAD, ("handler", "why")),
    ]
    words, over = await lab.frontier.stage_commit("t1", "enrich", [commit.pack() for commit in commits], 100)
    assert (words, over) == (["DONE"] * 3, frozenset())
    await lab.let_pass(10)
    await lab.frontier.due()
    assert await lab.client.xlen(stream) == 2


async def plan(lab: Lab) -> None:
    asked = {"log": "enrich", "target": "enrich", "first": "-", "last": "+"}
    assert await lab.frontier.plan_replay("one", msgspec.json.encode(asked)) == ("OK", "")


async def copy(lab: Lab) -> None:
    assert await lab.frontier.copy_replay("one") == ("ENDED", 1)


async def trim(lab: Lab) -> None:
    assert await lab.frontier.trim_logs(is_full=True) == (1, False)


async def drop(lab: Lab) -> None:
    assert await lab.frontier.drop_items("enrich", "9999999999999-0") == (3, False)


async def give_up(lab: Lab) -> None:
    # The one host that failed before fails again; the others, for the first time, are left.
    await lab.let_pass(10_000)
    held = await lab.take("w1")
    await lab.commit(*(lab.commit_of(one, Outcome.UNANSWERED) for one in held))
    buried, given_up, _ = await lab.frontier.give_up(after_ms=5000, idle_ms=5000)
    assert (buried > 0, given_up) == (True, 1)


async def replay(lab: Lab) -> None:
    letters = await lab.client.xrange(lab.keys.dead)
    letter_id, letter = next(one for one in letters if one[1][b"stage"] == b"fetch")
    sent = (letter_id.decode(), letter[b"host"].decode(), letter[b"level"].decode(), letter[b"task"])
    assert await lab.frontier.replay([sent]) == ["QUEUED"]


async def forget(lab: Lab) -> None:
    (letter_id, _), *_ = await lab.client.xrange(lab.keys.dead)
    assert await lab.frontier.forget([letter_id.decode()]) == 1


async def purge(lab: Lab) -> None:
    await lab.frontier.put_back(FETCH_STREAM, "", is_crash=False)
    level = page(f"{HOSTS[0]}/").level.value
    purged, kept = await lab.frontier.purge(HOSTS[0], level, 1, None)
    assert (purged, kept) == (1, 0)


async def host(lab: Lab) -> None:
    assert await lab.frontier.set_host(HOSTS[0], cap=2, delay=5, blocked=1) == "OK"
    assert await lab.frontier.set_host(HOSTS[0], cap="", delay="", blocked="", chance=1) == "OK"


async def reconcile(lab: Lab) -> None:
    await lab.client.hincrby(lab.keys.host(HOSTS[0]), "queued", 5)
    assert await lab.frontier.reconcile() == 1


async def control(lab: Lab) -> None:
    await lab.frontier.control(delay_ms=5)
    assert await lab.client.hget(lab.keys.state, "delay_ms") == b"5"


async def audit(lab: Lab) -> None:
    await lab.check()
    assert (await lab.audit_chunk(HOSTS))[0] == b"OK"


async def finish(lab: Lab) -> None:
    assert (await lab.frontier.finish()).word == "RUNNING"


async def upgrade(lab: Lab) -> None:
    await lab.client.hset(lab.keys.state, mapping={"schema": 1, "feeder:one": 0})
    pack = msgspec.msgpack.encode
    run = Scripts(lab.client, lab.keys.state).run
    assert await run("upgrade", lab.frontier.epoch, pack([]), pack(["version", "9"]), 0) == [b"UPGRADED"]


async def delete(lab: Lab) -> None:
    run = Scripts(lab.client, lab.keys.state).run
    assert await run("delete", lab.frontier.epoch, "robots:x", "grants", "no such key") == [b"OK", 1]
    assert await run("delete", lab.frontier.epoch, "grants") == [b"OK", 0]


CALLS: Final[tuple[Call, ...]] = (
    *(
        feed,
        tune,
        grant,
        allow,
        offer,
        beat,
        dispatch,
        start,
        visit,
        addresses,
        cookies,
        commit,
        due,
        revisit,
        hand_back,
        put_back,
        reclaim,
        sink_open,
        sink_commit,
        flow,
        stage_commit,
        plan,
        copy,
        trim,
        drop,
    ),
    *(give_up, replay, forget, purge, host, reconcile, control, audit, finish, upgrade, delete),
)
"""Each named for its script; `open` is called before them, and `delete`, which ends the epoch, is the last. They share
one crawl of cap 1 and without delay."""


async def test_no_script_leaves_the_slot_of_its_shard(cluster: RedisCluster) -> None:
    assert sorted(["open", *(call.__name__ for call in CALLS)]) == script_names(), "CALLS has one call of each script"
    settings = make_settings(**fast(NAME), shards=SHARDS)
    digests = [digest(name) for name in script_names()]
    nodes = set()
    for shard in range(SHARDS):
        keys = Keys(NAME, shard)
        node = cluster.node_of(keys.state)
        nodes.add(node.port)
        client: Any = connect(node.url)
        try:
            await client.ping()
            await client.config_resetstat()
            frontier, _ = await open_shard(client, settings, sinks=[SINK], shard=shard, epoch=EPOCH)
            for call in CALLS:
                await call(Lab(frontier))
            # Those that a script met by `pcall` count too.
            errors = await client.info("errorstats")
            assert set(errors) <= {"errorstat_NOSCRIPT", "errorstat_BUSYGROUP"}
            known = await client.script_exists(*digests)
            assert [name for name, is_known in zip(script_names(), known, strict=True) if not is_known] == []
            slot = slot_of(keys.state)
            written = [key.decode() async for key in client.scan_iter(match=keys.pattern, count=1000)]
            assert {slot_of(key) for key in written} == {slot}
            # All that the crawl wrote is there: a key of another slot would have another tag, and no shard's.
            assert {name.removeprefix(keys.prefix).split(":")[0] for name in written} >= {
                *("state", "totals", "seen", "queue", "host", "schedule", "stream", "dead", "workers", "offsets"),
            }
        finally:
            await client.aclose()
    assert len(nodes) == NODES


async def test_no_script_of_a_queue_leaves_its_slot(cluster: RedisCluster) -> None:
    nodes = set()
    for name in ("a", "b", "c", "d", "e"):
        keys = QueueKeys(name)
        node = cluster.node_of(keys.state)
        nodes.add(node.port)
        client: Any = connect(node.url)
        try:
            await client.ping()
            await client.config_resetstat()
            store = await open_queue(client, name, levels=2, values={"maxsize": 9})
            items = [pack_item(n % 2, 0, f"id{n}", b"x") for n in range(6)]
            assert (await store.put("w1", 1, 0, [*items, pack_item(0, 1, "", b"x")])).number == 7
            entries = [
                (level, entry_id.decode())
                for level, rows in enumerate(await store.take("w1", 6))
                for entry_id, _ in rows
            ]
            assert (await store.beat("w1", "{}", {0: [entries[0][1]]}))[1] == 7
            hows = [Ending(*entry, how) for entry, how in zip(entries, ("retry", "dead", "back"), strict=False)]
            assert not (await store.settle("w1", 1, {1: [entries[-1][1]]}, hows)).lost
            assert (await store.reclaim())[0] == "HOLD"
            await client.hset(keys.state, mapping={"reclaim_hold:0": 0, "reclaim_hold:1": 0})
            assert await store.reclaim() == ("OK", 0)
            while not (await store.tick("w1")).moved:
                pass
            assert await store.letters("replay", [(await store.dead("", 1))[0][0]]) == ("OK", 1)
            assert await store.close(is_closed=True) == 6
            assert len(await store.stats()) == 6
            assert await store.leave("w1") == 1
            found = {key.decode() async for key in client.scan_iter(match=keys.pattern)}
            assert {slot_of(key) for key in found} == {slot_of(keys.state)}
            await store.delete()
            # Those that a script met by `pcall` count too.
            assert set(await client.info("errorstats")) <= {"errorstat_NOSCRIPT"}
            digests = [digest(script) for script in script_names(of_queues=True)]
            assert all(await client.script_exists(*digests)), "each script is called above"
        finally:
            await client.aclose()
    assert len(nodes) == NODES


async def test_node_refuses_keys_of_another_slot(cluster: RedisCluster) -> None:
    """The other test rests on this: a script that leaves its slot meets an error, on its own node and on another."""
    state = Keys("tested", 0).state
    home = cluster.node_of(state)
    strange = [key for key in map("other{}".format, range(100)) if slot_of(key) != slot_of(state)]
    near = next(key for key in strange if cluster.node_of(key) is home)
    far = next(key for key in strange if cluster.node_of(key) is not home)
    client: Any = connect(home.url)
    try:
        await client.ping()
        for key in (near, far):
            with pytest.raises(ResponseError, match="Script attempted to access"):
                await client.eval(f"#!lua\nreturn redis.call('SET', '{key}', '1')", 1, state)
            await client.config_resetstat()
            await client.eval(f"#!lua\nredis.pcall('GET', '{key}')", 1, state)
            assert await client.info("errorstats")
    finally:
        await client.aclose()


async def test_cluster_node_that_has_other_slots_is_no_store(cluster: RedisCluster) -> None:
    key = Keys(NAME, 0).state
    away = next(node for node in cluster.nodes if node is not cluster.node_of(key))
    client = connect(away.url)
    try:
        for call in (check_server(client), client.get(key), Scripts(client, key).run("finish", EPOCH)):
            with pytest.raises(StoreIncompatible, match="node of a Redis Cluster"), mapped_errors():
                await call
    finally:
        await client.aclose()
