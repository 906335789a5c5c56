"""Every word of every script: a whole state is put in, the script acts once, and all that changed is compared.

The cases are kept by (script, word), and a test compares that list with the headers of the .lua files: a new word
without a case fails. Most cases call twice: a reply may be lost, so the second call must be as harmless as its header
says. GONE is tried for all scripts alike.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from streamcrawl.errors import ConfigError, CrawlGone, StoreIncompatible
from streamcrawl.rules.task import Kind, Level, Outcome
from streamcrawl.settings import SCHEMA, make_settings
from streamcrawl.store.frontier import (
    LINKS,
    Allowance,
    Beat,
    Dispatched,
    Frontier,
    StageCommit,
    Wait,
    check_stage,
    open_shard,
)
from streamcrawl.store.keys import GROUP
from streamcrawl.store.restarts import restarts_of
from streamcrawl.store.scripts import Scripts, script_names, source
from streamcrawl.store.shards import delete_crawl
from tests.integration.snapshot import FETCH_STREAM, Held, Lab, fast, links, near, sitemaps, urls
from tests.unit.test_scripts import words_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

    Case = Callable[[OpenLab], Awaitable[None]]

CASES: Final[dict[tuple[str, str], Case]] = {}
A: Final = "http://a.test"
B: Final = "http://b.test"
FENCE: Final = "1-1"
"""An entry id that was never given."""


def case(script: str, word: str) -> Callable[[Case], Case]:
    def keep(act: Case) -> Case:
        assert (script, word) not in CASES
        CASES[script, word] = act
        return act

    return keep


def entry(held: Held) -> dict[str, Any]:
    """What lies in the stream for it without any delay, as `fast` has it: nothing of politeness then."""
    return {"host": held.host, "level": int(held.task.level), "task": held.stored}


# -- open


@case("open", "OPENED")
async def opened(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"], pages_max=7)
    epoch = lab.frontier.epoch
    await delete_crawl(lab.client, crawl_of(lab))
    assert await lab.snapshot() == {}
    frontier, is_new = await open_shard(lab.client, make_settings(**fast(crawl_of(lab), pages_max=7)), sinks=["out"])
    state = await Lab(frontier).snapshot()
    assert is_new
    assert state.pop("state") == {
        "cap": 1,
        "crashes_max": 3,
        "one_round": 0,
        "delay_factor": 2,
        "delay_max_ms": 0,
        "delay_ms": 0,
        "demotion_max": 16,
        "epoch": frontier.epoch,
        "frontier_max": 20_000_000,
        "identity": '{"shards":1}',
        "pages_max": 7,
        "robots": 0,
        "schema": SCHEMA,
        "seeds_max": 2_000_000,
        "seen_buckets": 1,
        "sink_max": 10_000,
        "sink_max_bytes": 64_000_000,
        "sinks": "out",
        "stage_bytes": 64_000_000,
        "stage_max": 1000,
        "version": 1,
    }
    empty: dict[str, Any] = {"entries": [], "pending": [], "consumers": []}
    assert state == {FETCH_STREAM: empty, f"{FETCH_STREAM}:out": empty}
    assert frontier.epoch != epoch


@case("open", "JOINED")
async def joined(open_lab: OpenLab) -> None:
    lab = await open_lab(pages_max=7)
    values = fast(crawl_of(lab), delay_ms=5)
    (frontier, is_new), changed = await lab.changes(open_shard(lab.client, make_settings(**values)))
    assert (frontier.epoch, is_new) == (lab.frontier.epoch, False)
    assert changed == {}  # what it was begun with stays, whatever the next one asks for


async def refused(lab: Lab, error: type[Exception], words: str, **values: Any) -> None:
    before = await lab.snapshot()
    sinks = values.pop("sinks", [])
    with pytest.raises(error, match=words):
        await open_shard(lab.client, make_settings(**fast(crawl_of(lab), **values)), sinks=sinks)
    assert await lab.snapshot() == before


@case("open", "SCHEMA")
async def other_schema(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.client.hset(lab.keys.state, "schema", SCHEMA + 1)
    await refused(lab, StoreIncompatible, "a newer version")


@case("open", "IDENTITY")
async def other_identity(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.client.hset(lab.keys.state, "identity", '{"shards":2}')
    await refused(lab, ConfigError, "cannot change")


@case("open", "SINKS")
async def other_sinks(open_lab: OpenLab) -> None:
    await refused(await open_lab(sinks=["b", "a"]), ConfigError, r"other outputs \(a,b\)", sinks=["a"])
    with pytest.raises(ConfigError, match="output name 'page' will not do"):
        await open_lab(sinks=["page"])


@case("open", "LEFTOVER")
async def half_deleted(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    await lab.client.hdel(lab.keys.state, "epoch")
    await refused(lab, ConfigError, "deletion broke off")
    await delete_crawl(lab.client, crawl_of(lab))
    assert (await open_shard(lab.client, make_settings(**fast(crawl_of(lab)))))[1]


def crawl_of(lab: Lab) -> str:
    return lab.keys.prefix.split("{")[1].split(":")[0]


# -- delete


def delete_step(lab: Lab, *words: str) -> Awaitable[list[Any]]:
    return Scripts(lab.client, lab.keys.state).run("delete", lab.frontier.epoch, *words)


@case("delete", "OK")
async def delete_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    epoch = lab.frontier.epoch
    answer, changed = await lab.changes(delete_step(lab, f"host:{A}", "no key"))
    assert answer == [b"OK", 1]
    assert changed == {f"host:{A}": {"queued": (1, None)}, "state": {"epoch": (_read_as(epoch), None)}}
    assert await lab.changes(delete_step(lab, f"host:{A}")) == ([b"OK", 0], {})
    await delete_crawl(lab.client, crawl_of(lab))


def _read_as(epoch: str) -> int | str:
    # The snapshot shows what looks like a number as one.
    return int(epoch) if epoch.isdecimal() else epoch


@case("delete", "BEGUN")
async def delete_begun(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await delete_crawl(lab.client, crawl_of(lab))
    anew = await open_lab()
    await anew.offer(f"{A}/")
    assert await lab.changes(delete_step(lab, f"host:{A}", "state")) == ([b"BEGUN"], {})


# -- offer


@case("offer", "OK")
async def offer_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    offered = links(f"{A}/1", f"{A}/2", depth=1)
    offered.add(Held("", (await _seed(lab, f"{B}/")).task, "").task)
    answer, changed = await lab.changes(lab.frontier.offer(offered))
    assert answer == ("OK", 2)
    [one, two] = changed.pop(f"queue:{A}:2")[1]
    assert one.startswith("[0,1")
    assert one.endswith(',"page","/1",1]')
    assert two.endswith(',"page","/2",1]')
    assert len(changed.pop("seen:0")[1]) == 2
    assert changed == {
        f"host:{A}": {"queued": (None, 2)},
        "schedule": {A: (None, near(await lab.now()))},
        "state": {"seen": (1, 3)},
        "totals": {"page.created": (1, 3), "page.queued": (1, 3)},
    }
    assert await lab.changes(lab.frontier.offer(offered)) == (("OK", 0), {})
    assert await lab.frontier.offer_seeds(offered) == ("OK", 0, 0.0)
    # One seed is there and three pages: what counts is the nearer bound.
    await lab.frontier.control(seeds_max=2, frontier_max=60)
    assert await lab.frontier.offer_seeds(offered) == ("OK", 0, 0.5)
    await lab.frontier.control(frontier_max=4)
    assert await lab.frontier.offer_seeds(offered) == ("OK", 0, 0.75)


async def _seed(lab: Lab, url: str) -> Held:
    await lab.offer(url)
    state = await lab.snapshot()
    host = url.removesuffix("/")
    return lab.held(b"", {b"host": host.encode(), b"level": b"2", b"task": state[f"queue:{host}:2"][0].encode()})


@case("offer", "LEASE_LOST")
async def offer_lease_lost(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 1))
    [held] = await lab.take()
    assert await lab.frontier.offer(links(f"{B}/"), whose=held.id) == ("OK", 1)
    await lab.end(held)
    for fence in (held.id, FENCE, "none"):
        assert await lab.changes(lab.frontier.offer(links(f"{B}/2"), whose=fence)) == (("LEASE_LOST", 0), {})
    # A stream that was flushed has no group: nothing is pending either.
    await lab.client.delete(lab.keys.fetch_stream)
    assert (await lab.frontier.offer(links(f"{B}/2"), whose=held.id))[0] == "LEASE_LOST"
    await lab.frontier.dispatch(0)


@case("offer", "FULL")
async def offer_full(open_lab: OpenLab) -> None:
    lab = await open_lab(frontier_max=2)
    await lab.offer(*urls("a.test", 2))
    assert await lab.changes(lab.frontier.offer(links(f"{B}/"))) == (("FULL", 2), {})
    await lab.take()
    assert await lab.frontier.offer(links(f"{B}/")) == ("OK", 1)


async def test_links_of_a_sitemap_wait_while_half_of_the_frontier_is_taken(open_lab: OpenLab) -> None:
    lab = await open_lab(frontier_max=20)
    await lab.offer(*urls("a.test", 8))
    offered = partial(lab.frontier.offer, whose=LINKS, can_wait=True)
    # To only ask is answered by a lower mark, so that what is read once there is room brings more than a few.
    assert await lab.changes(offered(links())) == (("FULL", 8), {})
    assert await offered(links(*urls("b.test", 2), depth=1)) == ("OK", 2)
    assert await lab.changes(offered(links(f"{B}/9", depth=1))) == (("FULL", 10), {})
    assert await lab.frontier.offer(links(f"{B}/9", depth=1), whose=LINKS) == ("OK", 1)
    # Sitemaps themselves are no pages, and bounded with them: what an index lists does not wait for what it lists.
    assert await lab.frontier.offer(sitemaps(*urls("c.test", 9)), whose=LINKS) == ("OK", 9)
    assert "stopped" not in (await lab.snapshot())["state"]
    await lab.frontier.offer(sitemaps(f"{B}/map"), whose=LINKS)
    assert (await lab.snapshot())["state"]["stopped"] == "FRONTIER_FULL"


@case("offer", "WAIT")
async def offer_wait(open_lab: OpenLab) -> None:
    lab = await open_lab(seeds_waiting_max=2)
    await lab.offer(*urls("a.test", 2))
    [held] = await lab.take()
    assert await lab.changes(lab.frontier.offer(links(f"{B}/"))) == (("WAIT", 2), {})
    # Links never wait, and are no seeds; what is tried again is a seed still.
    assert await lab.frontier.offer(links(f"{B}/1", depth=1), whose=LINKS) == ("OK", 1)
    assert await lab.frontier.offer(links(f"{B}/2", depth=1), whose=held.id) == ("OK", 1)
    await lab.end(held, Outcome.RETRY)
    assert await lab.frontier.offer(links(f"{B}/")) == ("WAIT", 2)
    await lab.let_pass(1000)
    await lab.frontier.due()
    held = next(one for one in await lab.take() if one.host == A)
    await lab.end(held)
    assert await lab.frontier.offer(links(f"{B}/")) == ("OK", 1)


@case("offer", "INVALID")
async def offer_invalid(open_lab: OpenLab) -> None:
    lab = await open_lab()
    good = ["5", A, "2", '"page","/",0]']
    broken: list[tuple[int, Any]] = [
        (1, [5, *good[1:]]),
        (1, ["5.5", *good[1:]]),
        (1, ["123456789012345678901", *good[1:]]),
        (1, ["5", "a.test", *good[2:]]),
        (1, ["5", "http://a|b", *good[2:]]),
        (1, ["5", A, "0", good[3]]),
        (1, ["5", A, "2", '"robots","/",0]']),
        (1, ["5", A, "2", '"page","/",0']),
        (1, good[:3]),
        (1, "text"),
        (1, 7),
        (2, [*good, *good[:3], 9]),
        (251, good * 251),
    ]
    for n, flat in broken:
        run = Scripts(lab.client, lab.keys.state).run(
            "offer", lab.frontier.epoch, "seeds", msgspec.msgpack.encode(flat)
        )
        assert await lab.changes(run) == ([b"INVALID", n], {}), flat
    run = Scripts(lab.client, lab.keys.state).run("offer", lab.frontier.epoch, "seeds", b"\xc1")
    assert await lab.changes(run) == ([b"INVALID", 1], {})


# -- dispatch, start


@case("dispatch", "OK")
async def dispatch_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    held = await _seed(lab, f"{A}/")
    answer, changed = await lab.changes(lab.frontier.dispatch(10))
    assert answer == Dispatched(1, -1, "OK")
    assert changed == {
        f"host:{A}": {"queued": (1, None), "in_flight": (None, 1)},
        f"queue:{A}:2": ([held.stored], None),
        "schedule": {A: (near(await lab.now()), None)},
        FETCH_STREAM: {"entries": ([], [entry(held)])},
        "totals": {"page.queued": (1, 0), "page.streamed": (None, 1)},
    }
    assert await lab.changes(lab.frontier.dispatch(10)) == (Dispatched(0, -1, "IDLE"), {})


async def _slow_pair(open_lab: OpenLab, **values: Any) -> tuple[Lab, Held, Held]:
    """Two entries of one host with a cap of 2 and a delay, both read."""
    lab = await open_lab(host_concurrency=2, delay_ms=60_000, **values)
    await lab.offer(*urls("a.test", 2))
    first = await lab.take()
    await lab.let_pass(60_000)
    second = await lab.take()
    return lab, first[0], second[0]


def ask(lab: Lab, held: Held, wait_max_ms: int = 100_000) -> Awaitable[tuple[str, int]]:
    return lab.frontier.start(held.id, held.host, wait_max_ms=wait_max_ms, margin_ms=500)


@case("start", "START")
async def start_ok(open_lab: OpenLab) -> None:
    lab, one, _ = await _slow_pair(open_lab)
    answer, changed = await lab.changes(ask(lab, one))
    assert answer == ("START", 0)
    assert changed == {f"host:{A}": {"start_due": (1, near(await lab.now() + 60_500))}}
    assert await ask(lab, one) == ("WAIT", near(60_500))  # a lost START costs one delay more


@case("start", "WAIT")
async def start_wait(open_lab: OpenLab) -> None:
    lab, one, two = await _slow_pair(open_lab)
    await ask(lab, one)
    assert await lab.changes(ask(lab, two)) == (("WAIT", near(60_500)), {})
    await lab.let_pass(60_500)
    assert await ask(lab, two) == ("START", 0)


@case("start", "BACK")
async def start_back(open_lab: OpenLab) -> None:
    lab, one, two = await _slow_pair(open_lab)
    await ask(lab, one)
    now = await lab.now()
    answer, changed = await lab.changes(ask(lab, two, 1000))
    assert answer == ("BACK", near(60_500))
    assert changed == {f"host:{A}": {"due": (near(now + 60_000), near(now + 60_500))}}
    # What goes back comes again when it may start, and not at once, to be handed back again.
    assert await lab.frontier.hand_back(FETCH_STREAM, [two.id]) == 1
    assert await lab.frontier.dispatch(10) == Dispatched(0, near(60_500), "OK")


@case("start", "LEASE_LOST")
async def start_lease_lost(open_lab: OpenLab) -> None:
    lab, one, _ = await _slow_pair(open_lab)
    await lab.end(one)
    assert await lab.changes(ask(lab, one)) == (("LEASE_LOST", 0), {})


# -- visit


@case("visit", "GO")
async def visit_go(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=1000)
    answer, changed = await lab.changes(lab.frontier.begin_visit(B, wait_max_ms=0, took_max_ms=5000))
    word, wait_ms, reservation = answer
    assert (word, wait_ms, reservation) == ("GO", 0, near(await lab.now() + 6001))
    assert changed == {f"host:{B}": {"due": (None, reservation)}}
    # Nothing of the host is started meanwhile, and if its end is never told, after it must be over.
    await lab.offer(f"{B}/")
    assert await lab.frontier.dispatch(5) == Dispatched(0, near(6001), "OK")
    await lab.let_pass(6001)
    assert (await lab.frontier.dispatch(5)).moved == 1


@case("visit", "OK")
async def visit_ended(open_lab: OpenLab) -> None:
    lab = await open_lab(delay_ms=1000)
    await lab.frontier.set_host(A, cap=2)
    for host, fields in ((B, {"due"}), (A, {"due", "start_due"})):
        _, _, reservation = await lab.frontier.begin_visit(host, wait_max_ms=0, took_max_ms=5000)
        _, changed = await lab.changes(lab.frontier.end_visit(host, reservation, since_end_ms=200))
        now = await lab.now()
        assert changed == {f"host:{host}": dict.fromkeys(fields, (reservation, near(now + 801)))}
        assert (await lab.changes(lab.frontier.end_visit(host, reservation, since_end_ms=0)))[1] == {}
        # The next one waits for the delay, before it is told to go.
        answer = await lab.frontier.begin_visit(host, wait_max_ms=1000, took_max_ms=0)
        assert answer == ("GO", near(801, 801), near(now + 1802))


@case("visit", "WAIT")
async def visit_wait(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{B}/1", f"{B}/2")
    [held] = await lab.take()
    answer, changed = await lab.changes(lab.frontier.begin_visit(B, wait_max_ms=5000, took_max_ms=5000))
    assert answer == ("WAIT", 100, 0)
    assert changed[f"host:{B}"]["due"][1] == near(await lab.now() + 1000)
    # Room is made for it, though the host has no delay: the next page is not started when this one ends.
    await lab.end(held)
    assert (await lab.frontier.dispatch(5)).moved == 0
    assert await lab.frontier.begin_visit(B, wait_max_ms=0, took_max_ms=5000) == ("WAIT", near(1000), 0)
    assert (await lab.frontier.begin_visit(B, wait_max_ms=5000, took_max_ms=5000))[0] == "GO"


@case("visit", "NO")
async def visit_no(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{B}/")
    await lab.frontier.set_host(B, blocked=1)
    assert await lab.changes(lab.frontier.begin_visit(B, wait_max_ms=5000, took_max_ms=5000)) == (("NO", 0, 0), {})


# -- commit


@case("commit", "OK")
async def commit_ok_and_dispatches(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2))
    [held] = await lab.take()
    committed = await lab.commit(lab.commit_of(held), limit=5)
    assert (committed.words, committed.dispatched) == (["DONE"], Dispatched(1, -1, "OK"))
    assert (await lab.commit(limit=5)).words == []


@case("commit", "DONE")
async def commit_done(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    new = links(f"{A}/", f"{B}/1", depth=1)
    commit = lab.commit_of(held, links=new, items=("out", '{"n":1}'))
    committed, changed = await lab.changes(lab.commit(commit))
    assert committed.words == ["DONE"]
    now = near(await lab.now())
    assert len(changed.pop("seen:0")[1]) == 1
    assert len(changed.pop(f"queue:{B}:2")[1]) == 1
    assert changed == {
        f"host:{A}": {"due": (None, now), "in_flight": (1, None), "pages": (None, 1)},
        f"host:{B}": {"queued": (None, 1)},
        "schedule": {B: (None, now)},
        "state": {"answered_at": (None, now), "seen": (1, 2)},
        FETCH_STREAM: {"entries": ([entry(held)], []), "pending": ([["w1", entry(held)]], [])},
        f"{FETCH_STREAM}:out": {"entries": ([], [{"item": '{"n":1}'}])},
        "totals": {
            "out.bytes": (None, 7),
            "out.created": (None, 1),
            "out.streamed": (None, 1),
            "page.created": (1, 2),
            "page.done": (None, 1),
            "page.queued": (0, 1),
            "page.streamed": (1, 0),
            "seed.ended": (None, 1),
        },
    }


async def test_commit_counts_links_that_are_left_out(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3))
    [held] = await lab.take()
    commit = lab.commit_of(held, left_out={"trap_query": 2, "depth": 7})
    committed, changed = await lab.changes(lab.commit(commit, commit))
    assert committed.words == ["DONE", "LEASE_LOST"]
    counted = {name: count for name, count in changed["totals"].items() if name.startswith("links.")}
    assert counted == {"links.trap_query": (None, 2), "links.depth": (None, 7)}
    # A worker of the version before says nothing of them.
    [held] = await lab.take()
    packed = msgspec.msgpack.decode(lab.commit_of(held).pack())
    older = msgspec.msgpack.encode(packed[:10])
    assert (await lab.frontier.commit("w1", [older], 0)).words == ["DONE"]


async def test_sitemap_is_no_page_and_has_a_line_of_its_own(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/map")
    answer, changed = await lab.changes(lab.frontier.offer(sitemaps(f"{A}/map", f"{B}/map"), whose=LINKS))
    assert answer == ("OK", 2), "the page at the same URL is another task"
    assert changed["totals"] == {"sitemap.created": (None, 2), "sitemap.queued": (None, 2)}
    as_page, other = sorted(await lab.take(), key=lambda one: one.host)
    assert (as_page.task.kind, other.task.kind) == (Kind.PAGE, Kind.SITEMAP)
    await lab.end(as_page)
    [held] = await lab.take()
    committed, changed = await lab.changes(lab.commit(lab.commit_of(held, Outcome.CONTINUED)))
    late, _ = await lab.changes(lab.commit(lab.commit_of(held, Outcome.CONTINUED)))
    assert (committed.words, late.words) == (["DONE"], ["LEASE_LOST"])
    assert changed["delayed"] == {f"fetch|2|{held.host}|{held.stored}": (None, near(await lab.now() + 1000))}
    assert changed["totals"] == {
        "sitemap.continued": (None, 1),
        "sitemap.delayed": (None, 1),
        "sitemap.streamed": (2, 1),
    }
    assert await lab.end(other, detail=("broken", "too_large"), left_out={"sitemap_hosts": 3}) == "DONE"
    await lab.let_pass(1000)
    await lab.frontier.due()
    [held] = await lab.take()
    for broken in (
        lab.commit_of(held, detail=("Broken",)),
        lab.commit_of(held, detail=("x" * 33,)),
        lab.commit_of(held, detail=tuple("abcdefghi")),
        lab.commit_of(held, Outcome.CONTINUED, detail=(1000, "0", held.stored)),
        lab.commit_of(held, Outcome.CONTINUED, detail=(1000, "2", held.stored.replace("sitemap", "page"))),
    ):
        assert (await lab.commit(broken)).words == ["INVALID"]
    await lab.end(held, Outcome.DEAD)
    [letter] = (await lab.snapshot())["dead"]["entries"]
    [raw] = await lab.client.xrange(lab.keys.dead)
    replay = [(raw[0].decode(), letter["host"], "0", held.stored.encode())]
    assert await lab.frontier.replay(replay) == ["INVALID"]
    assert await lab.frontier.replay([(*replay[0][:2], "2", replay[0][3])]) == ["QUEUED"]
    await lab.frontier.control(closed=1)
    assert (await lab.frontier.finish())[0] == "RUNNING"
    [held] = await lab.take()
    assert await lab.end(held, Outcome.DROPPED, detail=("no_sitemap",)) == "DONE"
    await finish_says(lab, "ENDED", 4, done=1)
    totals = await lab.totals()
    flawed = {name: count for name, count in totals.items() if name.startswith(("sitemap.flawed", "links."))}
    assert flawed == {"sitemap.flawed.broken": 1, "sitemap.flawed.too_large": 1, "links.sitemap_hosts": 3}
    await lab.client.hincrby(lab.keys.totals, "sitemap.created", 1)
    assert (await lab.frontier.finish())[0] == "UNBALANCED"
    await lab.client.hincrby(lab.keys.totals, "sitemap.created", -1)
    # A page is never continued: it offers its links or fails.
    await lab.offer(f"{A}/page")
    [held] = await lab.take()
    assert (await lab.commit(lab.commit_of(held, Outcome.CONTINUED))).words == ["INVALID"]


@case("commit", "LEASE_LOST")
async def commit_lease_lost(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    commit = lab.commit_of(held, links=links(f"{B}/"), items=("out", "{}"))
    assert (await lab.commit(commit)).words == ["DONE"]
    committed, changed = await lab.changes(lab.commit(commit))
    assert committed.words == ["LEASE_LOST"]
    assert changed == {"totals": {"page.lease_lost": (None, 1)}}


class StrangeRefusal(StrEnum):
    OTHER = "http_500"


@case("commit", "INVALID")
async def commit_invalid(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    for broken in (
        lab.commit_of(held, items=("nowhere", "{}")),
        lab.commit_of(held, links=links(*urls("b.test", 251))),
        lab.commit_of(held, Outcome.RETRY, detail=(1000, "0", held.stored)),
        lab.commit_of(held, Outcome.RETRY, detail=(1000, "2", held.stored.replace("page", "robots"))),
        lab.commit_of(held, Outcome.RETRY, detail=(-1, "2", held.stored)),
        lab.commit_of(held, took_ms=-1),
        lab.commit_of(held, refusal=StrangeRefusal.OTHER),
        lab.commit_of(held, left_out={"Trap": 1}),
        lab.commit_of(held, left_out={"x" * 33: 1}),
        lab.commit_of(held, left_out={"depth": -1}),
        lab.commit_of(held, left_out=dict.fromkeys("abcdefghijklmnopq", 1)),
    ):
        committed, changed = await lab.changes(lab.commit(broken))
        assert (committed.words, changed) == (["INVALID"], {})
    assert await lab.end(held, links=links(*urls("b.test", 250))) == "DONE"


@case("commit", "RESTARTED")
async def commit_restarted(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    committed, changed = await lab.changes(lab.commit(lab.commit_of(held, server="0" * 40, links=links(f"{B}/"))))
    assert (committed.words, changed) == (["RESTARTED"], {})
    assert await lab.end(held, server=restarts_of(lab.client).run_id) == "DONE"


# -- items of stages

ITEM: Final = '["Book",{"n":1},2]'


async def _items(open_lab: OpenLab, *items: str, **values: Any) -> tuple[Lab, list[str]]:
    """Open a crawl with the stages "enrich" and "save", and put items into the first; return them as read by "t1"."""
    lab = await open_lab(sinks=["out"], **values)
    rows = {"enrich": {"from": ["page"]}, "save": {"from": ["enrich"], "batch": 10}}
    assert await lab.frontier.flow(["enrich", "save"], msgspec.json.encode(rows)) == ["enrich", "save"]
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    flat = [part for item in items for part in ("enrich", item)]
    assert await lab.end(held, items=flat, url=f"{A}/page") == "DONE"
    return lab, await read_items(lab)


async def read_items(lab: Lab, stage: str = "enrich", consumer: str = "t1") -> list[str]:
    answer: Any = await lab.client.xreadgroup(GROUP, consumer, {lab.keys.stage_stream(stage): ">"})
    return [entry_id.decode() for entry_id, _ in answer[0][1]] if answer else []


def item_entry(item: str = ITEM, *, attempt: int = 1, crashes: int = 0) -> dict[str, Any]:
    return {"item": item, "url": f"{A}/page", "attempt": attempt, "crashes": crashes}


async def commit_items(lab: Lab, *commits: StageCommit) -> list[str]:
    words, _ = await lab.frontier.stage_commit("t1", "enrich", [commit.pack() for commit in commits], 0)
    return words


@case("flow", "OK")
async def flow_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    act = partial(lab.frontier.flow, ["one"], b'{"one":{"from":["page"],"batch":1}}')
    names, changed = await lab.changes(act())
    assert names == ["one"]
    assert changed.pop("stream:one")
    assert changed["state"].pop("flow")
    assert changed == {"state": {"stages": (None, "one")}}
    assert (await lab.changes(act()))[1] in ({}, {"state": {}})
    assert await lab.frontier.flow(["two@2"], b'{"two@2":{"from":["one"],"batch":1}}') == ["one", "two@2"]
    assert msgspec.json.decode(await lab.client.hget(lab.keys.state, "flow")).keys() == {"one", "two@2"}
    with pytest.raises(ConfigError, match="stage name 'Page' will not do"):
        check_stage("Page")


@case("stage_commit", "OK")
async def stage_commit_ok_says_what_is_over_its_mark(open_lab: OpenLab) -> None:
    lab, [held] = await _items(open_lab, ITEM, stage_waiting_max=10)
    many = StageCommit(held, Outcome.DONE, items=[part for n in range(17) for part in ("save", f'["any",{n},0]')])
    words, over = await lab.frontier.stage_commit("t1", "enrich", [many.pack()], 0)
    assert (words, set(over)) == (["DONE"], {"save"})  # its mark is two batches of 10
    assert (await lab.frontier.dispatch(1)).word != "THROTTLED"  # pages do not feed it
    assert await lab.frontier.stage_commit("t1", "enrich", [], 0) == ([], frozenset({"save"}))


@case("stage_commit", "DONE")
async def stage_commit_done(open_lab: OpenLab) -> None:
    lab, held = await _items(open_lab, ITEM, ITEM, ITEM, ITEM)
    new = links(f"{A}/", f"{B}/1", depth=1)
    commits = [
        StageCommit(held[0], Outcome.DONE, links=new, items=("save", ITEM, "out", '{"n":1}'), left_out={"depth": 2}),
        StageCommit(held[1], Outcome.RETRY, (1000,)),
        StageCommit(held[2], Outcome.DEAD, ("handler", "why")),
        StageCommit(held[3], Outcome.DROPPED, ("unwanted",)),
    ]
    words, changed = await lab.changes(commit_items(lab, *commits))
    assert words == ["DONE"] * 4
    assert len(changed.pop("seen:0")[1]) == 1
    assert len(changed.pop(f"queue:{B}:2")[1]) == 1
    now = near(await lab.now())
    [letter] = changed.pop("dead")["entries"][1]
    assert letter == {
        "stage": "enrich", "reason": "handler", "host": A, "level": "", "task": ITEM, "url": f"{A}/page", "attempt": 1,
        "crashes": 0, "error": "why", "last_status": "", "worker": "t1",
    }  # fmt: skip
    assert changed == {
        f"host:{B}": {"queued": (None, 1)},
        "schedule": {B: (None, now)},
        "state": {"reasons:enrich": (None, 1), "seen": (1, 2)},
        "delayed": {f"stage|enrich|{held[1]}|2|0|{len(A) + 5}|{A}/page{ITEM}": (None, near(await lab.now() + 1000))},
        f"{FETCH_STREAM}:out": {"entries": ([], [{"item": '{"n":1}'}])},
        "stream:enrich": {"entries": ([item_entry()] * 4, []), "pending": ([["t1", item_entry()]] * 4, [])},
        "stream:save": {"entries": ([], [item_entry()])},
        "totals": {
            "enrich.bytes": (4 * len(ITEM), 0),
            "enrich.dead": (None, 1),
            "enrich.dead.handler": (None, 1),
            "enrich.delayed": (None, 1),
            "enrich.done": (None, 1),
            "enrich.dropped": (None, 1),
            "enrich.dropped.unwanted": (None, 1),
            "enrich.retried": (None, 1),
            "enrich.streamed": (4, 0),
            "links.depth": (None, 2),
            "out.bytes": (None, 7),
            "out.created": (None, 1),
            "out.streamed": (None, 1),
            "page.created": (1, 2),
            "page.queued": (0, 1),
            "save.bytes": (None, len(ITEM)),
            "save.created": (None, 1),
            "save.streamed": (None, 1),
        },
    }
    await lab.let_pass(1000)
    assert (await lab.frontier.due())[0] == 1
    assert (await lab.snapshot())["stream:enrich"]["entries"] == [item_entry(attempt=2)]
    assert (await lab.frontier.finish()).word == "RUNNING"


@case("stage_commit", "LEASE_LOST")
async def stage_commit_lease_lost(open_lab: OpenLab) -> None:
    lab, [held] = await _items(open_lab, ITEM)
    commit = StageCommit(held, Outcome.DONE, links=links(f"{B}/"), items=("save", ITEM))
    assert await commit_items(lab, commit) == ["DONE"]
    words, changed = await lab.changes(commit_items(lab, commit))
    assert (words, changed) == (["LEASE_LOST"], {"totals": {"enrich.lease_lost": (None, 1)}})


@case("stage_commit", "INVALID")
async def stage_commit_invalid(open_lab: OpenLab) -> None:
    lab, [held] = await _items(open_lab, ITEM)
    for broken in (
        StageCommit(held, Outcome.DONE, items=("nowhere", ITEM)),
        StageCommit(held, Outcome.DONE, links=links(*urls("b.test", 251))),
        StageCommit(held, Outcome.RETRY, (-1,)),
        StageCommit(held, Outcome.RETRY, ("soon",)),
        StageCommit(held, Outcome.DEAD, ("no word", "why")),
        StageCommit(held, Outcome.DROPPED, ("a.b",)),
        StageCommit(held, Outcome.REDIRECTED),
        StageCommit(held, Outcome.DONE, left_out={"Trap": 1}),
        StageCommit("no id", Outcome.DONE),
    ):
        words, changed = await lab.changes(commit_items(lab, broken))
        assert (words, changed) == (["INVALID"], {})
    words, _ = await lab.frontier.stage_commit("t1", "nowhere", [StageCommit(held, Outcome.DONE).pack()], 0)
    assert words == ["INVALID"]
    # One bad element stops none of its batch.
    both = StageCommit("x", Outcome.DONE), StageCommit(held, Outcome.DONE)
    assert await commit_items(lab, *both) == ["INVALID", "DONE"]


@case("stage_commit", "RESTARTED")
async def stage_commit_restarted(open_lab: OpenLab) -> None:
    lab, [held] = await _items(open_lab, ITEM)
    words, changed = await lab.changes(commit_items(lab, StageCommit(held, Outcome.DONE, server="0" * 40)))
    assert (words, changed) == (["RESTARTED"], {})
    assert await commit_items(lab, StageCommit(held, Outcome.DONE, server=restarts_of(lab.client).run_id)) == ["DONE"]


# -- cookies


@case("cookies", "OK")
async def cookies_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    jar = "site:a.test"
    changes = ["a;a.test;/", "ds", "1 = é;", 0, "b;a.test;/", "", "", 60_000]
    act = partial(lab.frontier.cookies, jar, changes)
    found, changed = await lab.changes(act())
    assert found == changes
    assert set(changed) == {f"cookies:{jar}"}
    assert 0 < await lab.client.pttl(lab.keys.prefix + f"cookies:{jar}") <= 30 * 86_400_000
    again = await act()
    assert again == changes
    # Read alone it changes nothing; what is set again comes last, and what is to go goes.
    found, changed = await lab.changes(lab.frontier.cookies(jar))
    assert (found[:7], changed) == (changes[:7], {})
    assert found[7] <= 60_000
    found = await lab.frontier.cookies(jar, ["a;a.test;/", "", "2", 0, "none;a.test;/", "", "", -1])
    assert [found[0], *found[4:]] == ["b;a.test;/", "a;a.test;/", "", "2", 0]
    assert await lab.frontier.cookies("site:b.test") == []
    found = await lab.frontier.cookies(jar, ["a;a.test;/", "", "", -1, "b;a.test;/", "", "", -1])
    assert (found, await lab.client.exists(lab.keys.prefix + f"cookies:{jar}")) == ([], 0)


async def test_jar_of_cookies_is_bounded_and_forgets_what_has_expired(open_lab: OpenLab) -> None:
    lab = await open_lab()
    flat = [part for n in range(150) for part in (f"{n};a.test;/", "", "1", 0)]
    found = await lab.frontier.cookies("host:a.test", flat)
    assert [int(key.partition(";")[0]) for key in found[::4]] == list(range(50, 150))
    big = [part for n in range(20) for part in (f"big{n};a.test;/", "", "x" * 4000, 0)]
    found = await lab.frontier.cookies("host:a.test", big)
    assert found[::4] == [f"big{n};a.test;/" for n in range(12, 20)]
    assert await lab.frontier.cookies("host:b.test", ["a;b.test;/", "", "1", 1, "b;b.test;/", "", "1", 0])
    async with asyncio.timeout(10):
        while len(await lab.frontier.cookies("host:b.test")) > 4:  # noqa: ASYNC110 - it is the server's clock
            await asyncio.sleep(0.001)
    assert await lab.client.hkeys(lab.keys.prefix + "cookies:host:b.test") == [b"b;b.test;/"]


# -- leases of addresses


@case("addresses", "OK")
async def addresses_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    wanted = [part for n in range(4) for part in ("192.0.2.1", f"0:{n}-1", f"http://h{n}.test")]
    other = ["2001:db8::/64", "0:9-1", A]
    act = partial(lab.frontier.addresses, [], [*wanted, *other], cap=2, ttl_ms=60_000)
    waits, changed = await lab.changes(act())
    assert waits == [0, 0, 250, 250, 0]
    now = await lab.now()
    assert changed == {
        "address:192.0.2.1": {"0:0-1": (None, near(now + 60_000)), "0:1-1": (None, near(now + 60_000))},
        "awaiting:192.0.2.1": {f"http://h{n}.test": (None, near(now + 250)) for n in (2, 3)},
        "address:2001:db8::/64": {"0:9-1": (None, near(now + 60_000))},
    }
    assert await act() == [0, 0, 250, 250, 0]
    # The line grows, and what is given back goes to whoever asks first.
    assert await lab.frontier.addresses([], ["192.0.2.1", "0:7-1", "http://h7.test"], cap=2, ttl_ms=60_000) == [500]
    given = ["192.0.2.1", "0:0-1", "192.0.2.1", "0:0-1", "198.51.100.1", "0:0-1"]
    assert await lab.frontier.addresses(given, wanted[6:9], cap=2, ttl_ms=60_000) == [0]
    assert await lab.client.zrange(lab.keys.prefix + "awaiting:192.0.2.1", 0, -1) == [
        b"http://h3.test",
        b"http://h7.test",
    ]


async def test_lease_of_an_address_runs_out_and_a_line_is_bounded(open_lab: OpenLab) -> None:
    lab = await open_lab()
    many = [part for n in range(250) for part in ("192.0.2.1", f"0:{n}-1", f"http://h{n}.test")]
    waits = await lab.frontier.addresses([], many, cap=1, ttl_ms=30_000)
    assert (waits[:3], waits[-1]) == ([0, 250, 500], 60_000)
    await lab.let_pass(30_001)
    assert await lab.frontier.addresses([], many[3:6], cap=1, ttl_ms=30_000) == [0]
    for key in ("address:192.0.2.1", "awaiting:192.0.2.1"):
        assert 0 < await lab.client.pttl(lab.keys.prefix + key) <= 60_000


# -- what goes back


@case("hand_back", "OK")
async def hand_back_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2))
    [held] = await lab.take()
    act = partial(lab.frontier.hand_back, FETCH_STREAM, [held.id, FENCE])
    back, changed = await lab.changes(act())
    assert back == 1
    assert changed.pop(f"queue:{A}:2")[1][0] == held.stored
    assert changed == {
        f"host:{A}": {"queued": (1, 2), "in_flight": (1, None)},
        "schedule": {A: (None, near(await lab.now()))},
        FETCH_STREAM: {"entries": ([entry(held)], []), "pending": ([["w1", entry(held)]], [])},
        "totals": {"page.queued": (1, 2), "page.streamed": (1, 0)},
    }
    assert await lab.changes(act()) == (0, {})


async def test_hand_back_lets_a_host_wait_and_counts_why(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2))
    [held] = await lab.take()
    act = partial(lab.frontier.hand_back, FETCH_STREAM, [held.id], wait=Wait(30_000, "proxy_error"))
    back, changed = await lab.changes(act())
    assert back == 1
    due = near(await lab.now() + 30_000)
    assert changed[f"host:{A}"] == {"queued": (1, 2), "in_flight": (1, None), "due": (None, due)}
    assert changed["schedule"] == {A: (None, due)}
    assert changed["totals"] == {
        **{"page.queued": (1, 2), "page.streamed": (1, 0)},
        **{"page.waited": (None, 1), "page.waited.proxy_error": (None, 1)},
    }
    assert (await lab.frontier.dispatch(5)).moved == 0
    assert await lab.changes(act()) == (0, {})
    # Waits do not add up, and a shorter one takes nothing from a longer.
    await lab.let_pass(30_000)
    [again] = await lab.take()
    assert await lab.frontier.hand_back(FETCH_STREAM, [again.id], wait=Wait(0, "proxy_error")) == 1
    assert (await lab.frontier.dispatch(5)).moved == 1


@case("put_back", "OK")
async def put_back_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    await lab.frontier.beat([Beat("w1", FETCH_STREAM, 4, "{}", [])], lease_ms=1000)
    act = partial(lab.frontier.put_back, FETCH_STREAM, "w1", is_crash=True)
    back, changed = await lab.changes(act())
    assert back == 1
    now = near(await lab.now())
    assert changed.pop("workers")["w1"][1] is None
    assert changed == {
        f"host:{A}": {"queued": (None, 1), "in_flight": (1, None), "due": (None, now)},
        f"queue:{A}:2": (None, ["[1" + held.stored[2:]]),
        "schedule": {A: (None, now)},
        FETCH_STREAM: {
            "entries": ([entry(held)], []),
            "pending": ([["w1", entry(held)]], []),
            "consumers": (["w1"], []),
        },
        "totals": {"page.queued": (0, 1), "page.streamed": (1, 0), "page.crashed": (None, 1)},
    }
    assert await lab.changes(act()) == (0, {})


@case("reclaim", "OK")
async def reclaim_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    await lab.let_reclaim()
    await lab.let_idle([held], 60_000)
    act = partial(lab.frontier.reclaim, FETCH_STREAM, lease_ms=30_000)
    answer, changed = await lab.changes(act())
    assert answer == ("OK", 1)
    now = near(await lab.now())
    assert set(changed.pop("state", {})) <= {f"reclaim_at:{FETCH_STREAM}"}
    assert changed == {
        f"host:{A}": {"queued": (None, 1), "in_flight": (1, None), "due": (None, now)},
        f"queue:{A}:2": (None, ["[1" + held.stored[2:]]),
        "schedule": {A: (None, now)},
        FETCH_STREAM: {"entries": ([entry(held)], []), "pending": ([["w1", entry(held)]], [])},
        "totals": {"page.queued": (0, 1), "page.streamed": (1, 0), "page.crashed": (None, 1), "reclaimed": (None, 1)},
    }
    answer, changed = await lab.changes(act())
    assert (answer, set(changed) - {"state"}) == (("OK", 0), set())


@case("reclaim", "HOLD")
async def reclaim_hold(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    await lab.let_idle(await lab.take(), 60_000)
    answer, changed = await lab.changes(lab.frontier.reclaim(FETCH_STREAM, lease_ms=30_000))
    assert answer == ("HOLD", 30_000)
    assert list(changed) == ["state"]
    assert sorted(changed["state"]) == [f"reclaim_at:{FETCH_STREAM}", f"reclaim_hold:{FETCH_STREAM}"]
    assert (await lab.frontier.reclaim(FETCH_STREAM, lease_ms=30_000))[0] == "HOLD"


@case("beat", "OK")
async def beat_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    beats = [Beat("w1", FETCH_STREAM, 4, '{"pid":1}', [held.id, FENCE]), Beat("w2", FETCH_STREAM, 2, "{}", [])]
    answer, changed = await lab.changes(lab.frontier.beat(beats, lease_ms=30_000))
    assert answer == ([[FENCE], []], 6)
    workers = changed.pop("workers")
    assert [row[1].split(" ", 1)[1] for row in workers.values()] == ['4 {"pid":1}', "2 {}"]
    sample = changed["state"].pop("samples")[1]
    assert [int(one) for one in sample.split(" ")] == [near(await lab.now()), near(await lab.now()), 0, 1]
    assert changed == {"state": {"slots": (1000, 6)}}
    beats = [Beat("w1", FETCH_STREAM, -1, "{}", []), Beat("w2", FETCH_STREAM, 2, "{}", [])]
    answer, changed = await lab.changes(lab.frontier.beat(beats, lease_ms=30_000))
    assert (answer, changed["state"]) == (([[], []], 2), {"slots": (6, 2)})
    assert changed["workers"]["w1"][1] is None


@case("due", "OK")
async def due_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    assert await lab.frontier.due() == (0, -1)
    await lab.end(held, Outcome.RETRY, is_fetched=False)
    assert await lab.frontier.due() == (0, near(1000))
    await lab.let_pass(1000)
    [member] = (await lab.snapshot())["delayed"]
    stored = member.rpartition("|")[2]
    answer, changed = await lab.changes(lab.frontier.due())
    assert answer == (1, -1)
    assert changed == {
        "delayed": {member: (near(await lab.now()), None)},
        f"host:{A}": {"queued": (None, 1)},
        f"queue:{A}:2": (None, [stored]),
        "schedule": {A: (None, near(await lab.now()))},
        "totals": {"page.delayed": (1, 0), "page.queued": (0, 1)},
    }
    assert await lab.changes(lab.frontier.due()) == ((0, -1), {})


@case("revisit", "OK")
async def revisit_ok(open_lab: OpenLab) -> None:
    lab = await open_lab(revisit_ms=1000)
    rest = '"page","/",1,1,"",[],0,0,{},["again",1000,"","",""]]'
    assert await lab.changes(lab.frontier.revisit()) == ((0, -1), {})
    await lab.client.zadd(lab.keys.revisits, {f"3|{A}|{rest}": 5})
    answer, changed = await lab.changes(lab.frontier.revisit())
    assert answer == (1, -1)
    [stored] = changed.pop(f"queue:{A}:3")[1]
    assert stored.startswith("[0,")
    assert stored.endswith(f",{rest}")
    assert changed == {
        "revisits": {f"3|{A}|{rest}": (5, None)},
        f"host:{A}": {"levels": (None, 3), "queued": (None, 1)},
        "schedule": {A: (None, near(await lab.now()))},
        "totals": {"page.created": (None, 1), "page.queued": (None, 1), "page.revisited": (None, 1)},
    }
    assert await lab.changes(lab.frontier.revisit()) == ((0, -1), {})


@case("give_up", "OK")
async def give_up_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2))
    [held] = await lab.take()
    await lab.end(held, Outcome.UNANSWERED)
    act = partial(lab.frontier.give_up, after_ms=0, idle_ms=0)
    answer, changed = await lab.changes(act(limit=1))
    assert answer == (1, 1, 1)
    letter = changed["dead"]["entries"][1][0]
    assert letter == {
        "stage": "fetch",
        "reason": "host_unreachable",
        "host": A,
        "level": 2,
        "task": held.stored,
        "error": "no answer of use; 1 tries failed in a row, the last: connect",
        "last_status": "",
        "worker": "",
    }
    now = near(await lab.now())
    assert len(changed.pop(f"queue:{A}:2")[1]) == 1
    del changed["dead"]
    assert changed == {
        "failing": {A: (now, None)},
        "given_up": {A: (None, now)},
        "giving_up": {A: (None, now)},
        f"host:{A}": {"given_up": (None, "host_unreachable"), "queued": (2, 1)},
        "schedule": {A: (now, None)},
        "totals": {
            "page.queued": (2, 1),
            "page.dead": (None, 1),
            "page.dead.host_unreachable": (None, 1),
            "seed.ended": (None, 1),
        },
    }
    assert await act(limit=5) == (1, 0, 0)
    assert await lab.changes(act(limit=5)) == ((0, 0, 0), {})


@case("reconcile", "OK")
async def reconcile_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 2), *urls("b.test", 1))
    await lab.take()
    await lab.client.hset(lab.keys.host(A), mapping={"in_flight": 3, "queued": 9})
    await lab.client.zadd(lab.keys.schedule, {B: 1})
    mended, changed = await lab.changes(lab.frontier.reconcile())
    assert mended == 2
    assert changed == {f"host:{A}": {"in_flight": (3, 1), "queued": (9, 1)}, "schedule": {B: (1, None)}}
    assert await lab.changes(lab.frontier.reconcile()) == (0, {})


@case("reconcile", "BEHIND")
async def reconcile_behind(open_lab: OpenLab) -> None:
    await refused_to_who_is_behind(await open_lab(), "reconcile")


@case("audit", "BEHIND")
async def audit_behind(open_lab: OpenLab) -> None:
    await refused_to_who_is_behind(await open_lab(), "audit")


async def refused_to_who_is_behind(lab: Lab, script: str) -> None:
    await lab.offer(*(f"http://h{n}.test/" for n in range(1001)))
    while await lab.take():
        pass
    entries = [entry_id for entry_id, _ in await lab.client.xrange(lab.keys.fetch_stream)]
    assert len(entries) == 1001
    host = "http://h0.test"
    await lab.client.hset(lab.keys.host(host), "in_flight", 7)
    ask = partial(Scripts(lab.client, lab.keys.state).run, script, lab.frontier.epoch, msgspec.msgpack.encode([host]))
    assert await lab.changes(ask("0-0", msgspec.msgpack.encode([[]]))) == ([b"BEHIND"], {})
    # Who has read the first one is not.
    [first] = [one[0] for one in await lab.client.xrange(lab.keys.fetch_stream, count=1)]
    assert (await ask(first, msgspec.msgpack.encode([[first.decode()]])))[0] == b"OK"
    await lab.frontier.reconcile()


@case("audit", "OK")
async def audit_ok(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    await lab.offer(*urls("a.test", 3), *urls("b.test", 1))
    held = await lab.take()
    await lab.end(held[0], items=("out", "{}"))
    answer, changed = await lab.changes(lab.audit_chunk([A, B]))
    totals = {b"page.created": b"4", b"page.queued": b"2", b"page.streamed": b"1", b"page.done": b"1"}
    assert totals.items() <= dict(zip(answer[1][::2], answer[1][1::2], strict=True)).items()
    done = held[0].host.encode()
    left = held[1].host.encode()
    assert answer[2:5] == [[b"stream:fetch", 1, 1, b"stream:fetch:out", 1, 0], 0, 0]
    rows = {answer[5][n]: answer[5][n + 1 : n + 13] for n in range(0, len(answer[5]), 13)}
    queued = {done: 2, left: 0} if done == A.encode() else {done: 0, left: 2}
    assert rows == {
        done: [queued[done]] * 2 + [0, 0] + [int(queued[done] > 0)] * 2 + [0] * 6,
        left: [queued[left]] * 2 + [1, 1, 0, 0] + [0] * 6,
    }
    assert answer[6:] == [[], [b"page", 1], []]
    assert changed == {}


@case("control", "OK")
async def control_ok(open_lab: OpenLab) -> None:
    lab = await open_lab(pages_max=5)
    act = partial(lab.frontier.control, paused=1, pages_max="")
    since = (None, near(await lab.now()))
    assert (await lab.changes(act()))[1] == {
        "state": {"paused": (None, 1), "paused_at": since, "held_at:paused": since, "pages_max": (5, None)},
    }
    assert (await lab.changes(act()))[1] == {}
    back = await lab.changes(lab.frontier.control(paused=""))
    assert sorted(back[1]["state"]) == ["held_at:paused", "held_ms:paused", "paused", "paused_at"]


@case("tune", "OK")
async def tune_ok(open_lab: OpenLab) -> None:
    lab = await open_lab(pages_max=5)
    act = partial(lab.frontier.tune, 2, b'{"delay_ms":[50,"here"]}', ["delay_ms", "50", "pages_max", ""])
    answer, changed = await lab.changes(act())
    assert answer == ("OK", 2)
    assert changed == {
        "state": {
            "delay_ms": (0, 50),
            "pages_max": (5, None),
            "settings": (None, '{"delay_ms":[50,"here"]}'),
            "version": (1, 2),
        }
    }
    # Shards but the first keep no JSON.
    assert await lab.changes(lab.frontier.tune(5, b"", ["delay_ms", "60"])) == (
        ("OK", 5),
        {"state": {"delay_ms": (50, 60), "version": (2, 5)}},
    )


@case("tune", "CONFLICT")
async def tune_conflict(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.frontier.tune(2, b"{}", ["cap", "2"])
    for version in (1, 2):
        assert await lab.changes(lab.frontier.tune(version, b"{}", ["cap", "3"])) == (("CONFLICT", 2), {})


@case("host", "OK")
async def host_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    tell = partial(lab.frontier.set_host, A)
    for _ in range(2):
        assert await tell(delay=700, cap=3) == "OK"
        assert (await lab.host(A))["delay_set"] == 700
    [held] = await lab.take()
    assert (held.delay, held.cap) == (700, 3)
    await lab.frontier.hand_back(FETCH_STREAM, [held.id])
    await lab.let_pass(701)  # it was due its delay after it was handed out
    now = near(await lab.now())
    blocked = {"blocked": {A: (None, now)}, f"host:{A}": {"blocked": (None, 1)}, "schedule": {A: (now, None)}}
    assert await lab.changes(tell(blocked=1)) == ("OK", blocked)
    assert await lab.changes(tell(blocked=1)) == ("OK", {})
    assert await lab.take() == []
    answer, changed = await lab.changes(tell(blocked="", delay="", cap=""))
    assert answer == "OK"
    assert changed == {
        "blocked": {A: (now, None)},
        f"host:{A}": {"blocked": (1, None), "delay_set": (700, None), "cap": (3, None)},
        "schedule": {A: (None, now)},
    }
    [held] = await lab.take()
    assert (held.delay, held.cap) == (0, 1)
    # Another chance: as if it had never failed, and what is left of it may be fetched.
    await lab.end(held, Outcome.UNANSWERED)
    await lab.frontier.give_up(after_ms=0, idle_ms=0, limit=0)
    assert (await lab.host(A))["given_up"] == "host_unreachable"
    for _ in range(2):
        assert await tell(chance=1) == "OK"
        state = await lab.snapshot()
        assert state[f"host:{A}"] == {"queued": 1, "due": now}
        assert list(state["schedule"]) == [A]
        assert not {"failing", "giving_up", "blocked"} & state.keys()


@case("host", "INVALID")
async def host_invalid(open_lab: OpenLab) -> None:
    lab = await open_lab(politeness_by="domain")
    run = Scripts(lab.client, lab.keys.state).run
    before = await lab.snapshot()
    for name in ("http://a.one.com", "http://a.one.com|two.com", "http://aone.com|one.com", "|one.com", ""):
        assert await run("host", lab.frontier.epoch, name, msgspec.msgpack.encode(["cap", "2"])) == [b"INVALID"]
        assert await run("visit", lab.frontier.epoch, name, "begin", 0, 100) == [b"NO"]
    assert await lab.snapshot() == before


@case("host", "MANY")
async def host_many(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.frontier.set_host(B, blocked=1)
    many = {f"http://h{n}.test": 1 for n in range(9_999)}
    await lab.client.zadd(lab.keys.blocked, many)
    assert await lab.changes(lab.frontier.set_host(A, delay=5, blocked=1)) == ("MANY", {})
    assert await lab.changes(lab.frontier.set_host(B, blocked=1)) == ("OK", {})
    await lab.client.zrem(lab.keys.blocked, *many)


# -- the budget over shards


@case("grant", "OK")
async def grant_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    act = partial(lab.frontier.grant, 1, Allowance(0, 0, 0, 9), wanted=6, budget=10)
    assert await lab.changes(act()) == ((6, 4), {"grants": {"granted:1": (None, 6), "returned:1": (None, 0)}})
    assert await lab.changes(act()) == ((6, 4), {})  # granted again, not once more
    assert await lab.frontier.grant(2, Allowance(0, 0, 0, 9), wanted=9, budget=10) == (4, 0)
    # What one gives back, another one may have; a smaller budget leaves less than nothing.
    back = partial(lab.frontier.grant, 1, Allowance(6, 5, 1, 0), wanted=0, budget=10)
    assert await lab.changes(back()) == ((6, 5), {"grants": {"returned:1": (0, 5)}})
    assert await lab.frontier.grant(2, Allowance(4, 0, 4, 9), wanted=9, budget=3) == (4, -2)
    assert await lab.frontier.grant(2, Allowance(4, 0, 4, 9), wanted=9, budget=10) == (9, 0)


@case("allow", "OK")
async def allow_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 3), *urls("b.test", 1))
    await lab.take(count=1)
    act = partial(lab.frontier.allow, 3)
    assert await lab.changes(act()) == (
        Allowance(3, 0, 1, 3),
        {"state": {"granted": (None, 3), "returned": (None, 0), "pages_max": (None, 3)}},
    )
    assert await lab.changes(act()) == (Allowance(3, 0, 1, 3), {})
    assert await lab.changes(lab.frontier.allow(2)) == (Allowance(3, 0, 1, 3), {})  # an old answer, come late
    # What is done or under way cannot be given back.
    assert await lab.changes(lab.frontier.allow(3, back=9)) == (
        Allowance(3, 2, 1, 3),
        {"state": {"returned": (0, 2), "pages_max": (3, 1)}},
    )
    assert await lab.changes(lab.frontier.allow(3, back=9)) == (Allowance(3, 2, 1, 3), {})
    assert (await lab.frontier.dispatch(5)).word == "BUDGET"
    assert await lab.changes(lab.frontier.allow(None)) == (Allowance(3, 2, 1, 3), {"state": {"pages_max": (1, None)}})
    # A sitemap is not of the budget, and stands still without it all the same.
    await lab.frontier.offer(sitemaps("http://c.test/map"), whose=LINKS)
    assert (await lab.frontier.allow(None)).queued == 4


# -- what an operator sends again, or away


async def _buried(open_lab: OpenLab, **values: Any) -> tuple[Lab, str, Held]:
    """A crawl with one dead letter of A; its id, and the entry as it was in hand."""
    lab = await open_lab(**values)
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    await lab.end(held, Outcome.DEAD)
    [[letter, _]] = await lab.client.xrange(lab.keys.dead)
    return lab, letter.decode(), held


@case("replay", "OK")
@case("replay", "QUEUED")
async def replay_queued(open_lab: OpenLab) -> None:
    lab, letter, held = await _buried(open_lab)
    act = partial(lab.frontier.replay, [(letter, A, "1", held.stored.encode())])
    words, changed = await lab.changes(act())
    assert words == ["QUEUED"]
    now = near(await lab.now())
    assert len(changed["dead"]["entries"][0]) == 1
    del changed["dead"]
    assert changed == {
        f"host:{A}": {"levels": (None, 1), "queued": (None, 1)},
        f"queue:{A}:1": (None, [held.stored]),
        "schedule": {A: (None, now)},
        "totals": {
            "page.dead": (1, 0),
            "page.dead.http": (1, 0),
            "page.queued": (0, 1),
            "page.replayed": (None, 1),
            "seed.ended": (1, 0),
        },
    }
    assert await lab.changes(act()) == (["GONE"], {})
    await lab.end_all(await lab.take())
    await lab.frontier.control(closed=1)
    await finish_says(lab, "ENDED", 2, done=1)


@case("replay", "INVALID")
async def replay_invalid(open_lab: OpenLab) -> None:
    lab, letter, held = await _buried(open_lab)
    good = held.stored.encode()
    broken = [
        (letter, B, "2", good),
        (letter, A, "0", good),
        (letter, A, "2", good[:-1]),
        (letter, A, "2", good.replace(b"page", b"robots")),
        (letter, A, "0", good.replace(b"page", b"robots")),
        ("no id", A, "2", good),
        ("99999999999999999999-1", A, "2", good),
    ]
    words, changed = await lab.changes(lab.frontier.replay(broken))
    assert (words, changed) == (["INVALID"] * len(broken), {})
    assert await lab.frontier.replay([*broken, (letter, A, "2", good)]) == ["INVALID"] * len(broken) + ["QUEUED"]


@case("replay", "ASKED")
async def replay_asked(open_lab: OpenLab) -> None:
    lab = await open_lab(obey_robots=True)
    await lab.offer(f"{A}/")
    [robots] = await lab.take()
    await lab.end(robots, Outcome.DEAD)
    assert await lab.frontier.give_up(after_ms=0, idle_ms=0) == (1, 0, 0)
    letters = [
        (entry_id.decode(), A, fields[b"level"].decode(), fields[b"task"])
        for entry_id, fields in await lab.client.xrange(lab.keys.dead)
    ]
    assert await lab.frontier.replay(letters) == ["ASKED", "QUEUED"]
    assert await lab.changes(lab.frontier.replay(letters)) == (["GONE", "GONE"], {})
    totals = await lab.totals()
    assert (totals["robots.dropped.replayed"], totals["page.replayed"]) == (1, 1)
    # Its gate asks again, once.
    [again] = await lab.take()
    assert again.task.kind is Kind.ROBOTS
    await lab.end(again)
    [held] = await lab.take()
    await lab.end(held)


@case("forget", "OK")
async def forget_ok(open_lab: OpenLab) -> None:
    lab, letter, _ = await _buried(open_lab)
    act = partial(lab.frontier.forget, [letter, FENCE, "no id"])
    answer, changed = await lab.changes(act())
    assert answer == 1
    assert len(changed.pop("dead")["entries"][0]) == 1
    assert changed == {
        "totals": {
            "page.dead": (1, 0),
            "page.dead.http": (1, 0),
            "page.dropped": (None, 1),
            "page.dropped.purged": (None, 1),
        }
    }
    assert await lab.changes(act()) == (0, {})


@case("purge", "OK")
async def purge_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 4))
    key = f"queue:{A}:2"
    first, second, third, fourth = (await lab.snapshot())[key]
    answer, changed = await lab.changes(lab.frontier.purge(A, "2", 3, [second.encode(), fourth.encode()]))
    assert answer == (1, 2)
    assert changed == {
        f"host:{A}": {"queued": (4, 3)},
        key: ([first, second, third, fourth], [fourth, first, third]),
        "totals": {
            "page.queued": (4, 3),
            "page.dropped": (None, 1),
            "page.dropped.purged": (None, 1),
            "seed.ended": (None, 1),
        },
    }
    answer, changed = await lab.changes(lab.frontier.purge(A, "2", 500, None))
    assert answer == (3, 0)
    assert (changed[f"host:{A}"], changed["schedule"][A][1], changed[key][1]) == ({"queued": (3, None)}, None, None)
    assert await lab.changes(lab.frontier.purge(A, "2", 500, None)) == ((0, 0), {})
    assert await lab.offer(*urls("a.test", 4)) == 0  # they stay seen
    # A robots task is not for purging: its host would wait for it for ever.
    await lab.frontier.control(robots=1)
    await lab.offer(f"{B}/")
    [robots] = await lab.take()
    await lab.frontier.hand_back(FETCH_STREAM, [robots.id])
    assert await lab.changes(lab.frontier.purge(B, "0", 500, None)) == ((0, 0), {})


# -- feed


@case("feed", "OK")
async def feed_ok(open_lab: OpenLab) -> None:
    lab = await open_lab()
    feed = partial(lab.frontier.feed, lease_ms=1000)
    until = near(await lab.now() + 1000)
    assert await feed("one", "begin") == (1, "")
    for _ in range(2):
        assert await feed("two", "begin") == (2, "")
    until_ms, _, cursor = str((await lab.snapshot())["feeders"]["one"]).partition(" ")
    assert int(until_ms) == until
    assert cursor == ""
    for _ in range(2):
        assert await feed("one", "done") == (1, "")
        assert "closed" not in (await lab.snapshot())["state"]  # the other one is not through
    for _ in range(2):
        assert await feed("two", "done") == (0, "")
        assert (await lab.snapshot())["state"]["closed"] == 1
    # What one has left in order, or by its death, waits for a new beginning, and knows then how far it was.
    assert await feed("one", "begin") == (1, "")
    assert "closed" not in (await lab.snapshot())["state"]
    assert await feed("one", "sign", cursor="17 a") == (1, "17 a")
    assert await feed("one", "leave") == (1, "17 a")
    assert await feed("two", "sign") == (2, "")
    assert await feed("two", "done") == (1, "")
    assert "closed" not in (await lab.snapshot())["state"]
    assert await feed("one", "begin") == (1, "17 a")
    assert await feed("one", "leave") == (1, "17 a")
    assert await feed("two", "begin") == (1, "")
    assert await feed("three", "alone") == (1, "")
    assert await feed("three", "done") == (0, "")
    # An operator keeps it open whoever is done, and closes it whoever died; a feeder that lives is waited for.
    assert (await feed("", "open"))[0] == 1
    assert "closed" not in (await lab.snapshot())["state"]
    await feed("four", "begin")
    assert (await feed("four", "done"))[0] == 1
    await feed("four", "begin")
    await feed("five", "begin")
    await feed("four", "leave")
    assert (await feed("", "close"))[0] == 1
    assert (await feed("five", "done"))[0] == 0
    assert (await lab.snapshot())["state"]["closed"] == 1


@case("finish", "UNFED")
async def finish_unfed(open_lab: OpenLab) -> None:
    lab = await open_lab()
    feed = partial(lab.frontier.feed, lease_ms=60_000)
    await feed("one", "begin")
    await feed("two", "begin")
    await finish_says(lab, "RUNNING", 0)
    await feed("one", "done")
    await finish_says(lab, "RUNNING", 0)
    await lab.let_pass(60_000)
    await finish_says(lab, "UNFED", 0)  # no sign of life
    await feed("two", "sign")
    await finish_says(lab, "RUNNING", 0)
    await feed("two", "leave")
    await finish_says(lab, "UNFED", 0)
    await feed("two", "begin")
    await feed("two", "done")
    await finish_says(lab, "ENDED", 0)


# -- finish


async def finish_says(lab: Lab, word: str, created: int, done: int = 0) -> None:
    rest, changed = await lab.changes(lab.frontier.finish())
    assert (rest[:3], changed) == ((word, created, done), {})
    state = (await lab.snapshot())["state"]
    assert rest.mind == (state["version"], str(state.get("paused", "")), state.get("stopped", ""))


@case("finish", "RUNNING")
async def finish_running(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    await finish_says(lab, "RUNNING", 0)  # more seeds may come
    await lab.frontier.control(closed=1)
    await lab.offer(f"{A}/")
    await finish_says(lab, "RUNNING", 1)  # queued
    [held] = await lab.take()
    await lab.frontier.control(paused=1, stopped="MEMORY_FULL")
    await finish_says(lab, "RUNNING", 1)  # in the stream: whatever else is said, it is under way
    await lab.end(held, items=("out", "{}"))
    await finish_says(lab, "RUNNING", 1, done=1)  # a record waits for its sink


@case("finish", "ENDED")
async def finish_ended(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.frontier.control(closed=1)
    await finish_says(lab, "ENDED", 0)
    await lab.offer(f"{A}/")
    [held] = await lab.take()
    await lab.end(held, Outcome.RETRY)
    await finish_says(lab, "RUNNING", 1)
    await lab.let_pass(1000)
    await lab.frontier.due()
    [held] = await lab.take()
    await lab.end(held)
    await finish_says(lab, "ENDED", 1, done=1)
    # What a blocked host keeps does not hold the end, robots task included, as long as it is counted right.
    await lab.offer(*urls("b.test", 2))
    assert await lab.frontier.set_host(B, blocked=1) == "OK"
    await finish_says(lab, "ENDED", 3, done=1)
    await lab.frontier.set_host(B, blocked="")
    await finish_says(lab, "RUNNING", 3, done=1)


@case("finish", "LIMIT")
async def finish_limit(open_lab: OpenLab) -> None:
    lab = await open_lab(pages_max=1)
    await lab.offer(*urls("a.test", 2))
    await lab.end_all(await lab.take())
    await finish_says(lab, "LIMIT", 2, done=1)


@case("finish", "STOPPED")
async def finish_stopped(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.offer(f"{A}/")
    await lab.frontier.control(stopped="MEMORY_FULL")
    await finish_says(lab, "STOPPED", 1)


@case("finish", "PAUSED")
async def finish_paused(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.frontier.control(paused=1)
    await finish_says(lab, "PAUSED", 0)
    await lab.offer(f"{A}/")
    await lab.frontier.control(closed=1)
    await finish_says(lab, "PAUSED", 1)


@case("finish", "UNBALANCED")
async def finish_unbalanced(open_lab: OpenLab) -> None:
    lab = await open_lab()
    await lab.frontier.control(closed=1)
    for field, wrong in (("page.created", 1), ("page.queued", 1), ("page.streamed", 1), ("page.delayed", -1)):
        await lab.client.hincrby(lab.keys.totals, field, wrong)
        assert (await lab.frontier.finish())[0] == "UNBALANCED", field
        await lab.client.hincrby(lab.keys.totals, field, -wrong)
    await finish_says(lab, "ENDED", 0)
    # A page that is counted in the stream and lies nowhere would hold its share of the budget for ever.
    await lab.frontier.control(pages_max=2, closed="")
    await lab.offer(*urls("a.test", 3))
    await lab.end_all(await lab.take())
    await lab.client.hincrby(lab.keys.totals, "page.streamed", 1)
    assert (await lab.frontier.dispatch(5)).word == "BUDGET"
    await finish_says(lab, "UNBALANCED", 3, done=1)
    await lab.client.hincrby(lab.keys.totals, "page.streamed", -1)
    # What blocked hosts keep is not the end's concern, but all that is queued has to be theirs.
    await lab.frontier.control(pages_max="", closed=1)
    await lab.frontier.set_host(A, blocked=1)
    await finish_says(lab, "ENDED", 3, done=1)
    await lab.client.hincrby(lab.keys.host(A), "queued", 1)
    await finish_says(lab, "UNBALANCED", 3, done=1)
    await lab.client.hincrby(lab.keys.host(A), "queued", -1)


# -- sinks


@case("sink_open", "OK")
async def sink_open_ok(open_lab: OpenLab) -> None:
    lab, ids = await _records(open_lab, 2)
    await lab.client.hset(lab.keys.offsets, "out:offset", 70)
    act = partial(lab.frontier.sink_open, "out", "s2", lease_ms=1000)
    answer, changed = await lab.changes(act())
    assert answer == ("OK", 2, 70, "")
    assert changed.pop("offsets") == {"out:owner": ("s1", "s2"), "out:writer": (1, 2)}
    stream = changed.pop(f"{FETCH_STREAM}:out")
    assert changed == {}
    assert len(stream["pending"][0]) == len(ids)
    assert stream["consumers"] == (["s1"], [])
    assert "entries" not in stream  # the same records, as new entries
    assert await lab.changes(act()) == (("OK", 2, 70, ""), {})


@case("sink_open", "BUSY")
async def sink_open_busy(open_lab: OpenLab) -> None:
    lab, _ = await _records(open_lab, 1)
    await lab.frontier.beat([Beat("s1", f"{FETCH_STREAM}:out", 0, "{}", [])], lease_ms=1000)
    assert await lab.changes(lab.frontier.sink_open("out", "s2", lease_ms=60_000)) == (("BUSY", 0, 0, ""), {})


async def _records(open_lab: OpenLab, count: int) -> tuple[Lab, list[str]]:
    """A crawl with records that the sink "out" has read and not committed."""
    lab = await open_lab(sinks=["out"])
    await lab.offer(*[f"http://h{n}.test/" for n in range(count)])
    for held in await lab.take():
        await lab.end(held, items=("out", f'{{"n":"{held.host}"}}'))
    assert await lab.frontier.sink_open("out", "s1", lease_ms=1000) == ("OK", 1, 0, "")
    [[_, rows]] = await lab.client.xreadgroup(GROUP, "s1", {lab.keys.sink_stream("out"): ">"})
    return lab, [entry_id.decode() for entry_id, _ in rows]


SIZE = len('{"n":"http://h0.test"}')
"""Of each of these records."""


def written(
    lab: Lab, ids: list[str], *, writer: int = 1, expected: int = 0, offset: int = 90, server: str = "", part: str = ""
) -> Awaitable[Any]:
    return lab.frontier.sink_commit(
        "out",
        writer=writer,
        expected=expected,
        offset=offset,
        entry_ids=ids,
        size=SIZE * len(ids),
        server=server,
        part=part,
    )


@case("sink_commit", "DONE")
async def sink_commit_done(open_lab: OpenLab) -> None:
    lab, ids = await _records(open_lab, 2)
    answer, changed = await lab.changes(written(lab, ids))
    assert answer == ("DONE", None)
    assert changed.pop("offsets") == {"out:offset": (None, 90)}
    stream = changed.pop(f"{FETCH_STREAM}:out")
    assert (len(stream["entries"][0]), len(stream["pending"][0])) == (2, 2)
    assert changed == {"totals": {"out.done": (None, 2), "out.streamed": (2, 0), "out.bytes": (2 * SIZE, 0)}}


async def test_commit_of_a_sink_keeps_which_part_it_writes(open_lab: OpenLab) -> None:
    lab, ids = await _records(open_lab, 1)
    assert await written(lab, ids, part="3 70") == ("DONE", None)
    assert await lab.frontier.sink_open("out", "s1", lease_ms=1000) == ("OK", 1, 90, "3 70")


@case("sink_commit", "OFFSET_MISMATCH")
async def sink_commit_mismatch(open_lab: OpenLab) -> None:
    lab, ids = await _records(open_lab, 2)
    assert await lab.changes(written(lab, ids, expected=5)) == (("OFFSET_MISMATCH", 0), {})
    await written(lab, ids)
    assert await lab.changes(written(lab, ids)) == (("OFFSET_MISMATCH", 90), {})


@case("sink_commit", "LEASE_LOST")
async def sink_commit_lease_lost(open_lab: OpenLab) -> None:
    lab, ids = await _records(open_lab, 2)
    assert await lab.changes(written(lab, [*ids, FENCE])) == (("LEASE_LOST", [FENCE]), {})
    assert await written(lab, ids, offset=0) == ("DONE", None)
    assert await lab.changes(written(lab, ids, offset=0)) == (("LEASE_LOST", ids), {})


@case("sink_commit", "RESTARTED")
async def sink_commit_restarted(open_lab: OpenLab) -> None:
    lab, ids = await _records(open_lab, 1)
    assert await lab.changes(written(lab, ids, server="0" * 40)) == (("RESTARTED", None), {})
    assert await written(lab, ids, server=restarts_of(lab.client).run_id) == ("DONE", None)


@case("sink_commit", "REPLACED")
async def sink_commit_replaced(open_lab: OpenLab) -> None:
    lab, ids = await _records(open_lab, 1)
    await lab.frontier.sink_open("out", "s2", lease_ms=1000)
    assert await lab.changes(written(lab, ids)) == (("REPLACED", None), {})


# -- upgrade


async def of_schema_1(open_lab: OpenLab) -> Lab:
    """A crawl in which the state says what an older version's would; test_upgrade.py has a real one."""
    lab = await open_lab()
    now = await lab.now()
    await lab.client.hset(lab.keys.state, mapping={"schema": 1, "feeder:one": now + 60_000, "feeder:two": 0})
    await lab.client.hdel(lab.keys.state, "version", "settings")
    return lab


async def upgraded(lab: Lab, *, lease_ms: int, was: Sequence[str] = (), values: Sequence[str] = ()) -> list[Any]:
    pack = msgspec.msgpack.encode
    run = Scripts(lab.client, lab.keys.state).run
    return await run("upgrade", lab.frontier.epoch, pack(list(was)), pack(list(values)), lease_ms)


@case("upgrade", "UPGRADED")
async def upgrade_done(open_lab: OpenLab) -> None:
    lab = await of_schema_1(open_lab)
    asked = upgraded(lab, lease_ms=0, was=["delay_ms", "0", "crawl", ""], values=["version", "1", "delay_ms", ""])
    answer, changed = await lab.changes(asked)
    assert answer == [b"UPGRADED"]
    assert changed.pop("feeders") == {"one": (None, "0 "), "two": (None, "0 ")}
    assert set(changed) == {"state"}
    state = await lab.client.hgetall(lab.keys.state)
    assert {b"delay_ms", b"feeder:one", b"feeder:two"} & set(state) == set()
    assert (state[b"schema"], state[b"upgraded_from"], state[b"version"]) == (b"2", b"1", b"1")


@case("upgrade", "SCHEMA")
async def upgrade_again(open_lab: OpenLab) -> None:
    lab = await open_lab()
    assert await lab.changes(upgraded(lab, lease_ms=0, values=["cap", "9"])) == ([b"SCHEMA", b"2"], {})


@case("upgrade", "CHANGED")
async def upgrade_of_what_has_changed(open_lab: OpenLab) -> None:
    lab = await of_schema_1(open_lab)
    for was in (["crawl", "{}"], ["delay_ms", ""]):
        assert await lab.changes(upgraded(lab, lease_ms=0, was=was, values=["cap", "9"])) == ([b"CHANGED"], {})
    await lab.client.hset(lab.keys.state, "schema", SCHEMA)


@case("upgrade", "FEEDING")
async def upgrade_while_seeds_are_offered(open_lab: OpenLab) -> None:
    lab = await of_schema_1(open_lab)
    await lab.frontier.beat([Beat("w1", FETCH_STREAM, 3, "{}")], lease_ms=1000)
    answer, changed = await lab.changes(upgraded(lab, lease_ms=30_000, values=["cap", "9"]))
    assert (answer, changed) == ([b"FEEDING", b"one"], {})
    # A feeder that gave no sign for a lease is gone, whoever else is alive.
    await lab.let_pass(60_001)
    assert await upgraded(lab, lease_ms=30_000) == [b"UPGRADED"]


# -- all of them

# -- retained logs and replays

LOG_ITEM: Final = '["Book;Thing",{"n":1},2]'
LOG_SIZE: Final = len(LOG_ITEM) + len(f"{A}/page") + 64


async def _logged(open_lab: OpenLab, count: int = 1, **values: Any) -> Lab:
    """Open a crawl whose pages gave `count` items to the stage "enrich" and to the log "page"; none is left to do."""
    lab = await open_lab(sinks=["out"], **values)
    rows: dict[str, dict[str, Any]] = {
        "enrich": {"from": ["page"], "logs": ["page"]},
        "save": {"from": ["page"], "logs": ["page"], "takes": ["Thing"]},
    }
    await lab.frontier.flow(["enrich", "save"], msgspec.json.encode(rows), {"page": 3_600_000})
    for n in range(count):
        await lab.offer(f"{A}/{n}")
        [held] = await lab.take()
        items = ("enrich", ITEM, "log:page", f"0{LOG_ITEM}")
        assert await lab.end(held, items=items, url=f"{A}/page") == "DONE"
        assert await commit_items(lab, StageCommit((await read_items(lab))[0], Outcome.DONE)) == ["DONE"]
    return lab


def plan_of(target: str = "save", **conditions: Any) -> bytes:
    return msgspec.json.encode({"log": "page", "target": target, "first": "-", "last": "+", **conditions})


def log_entry(**values: Any) -> dict[str, Any]:
    return {"item": LOG_ITEM, "url": f"{A}/page", "line": "page", "to": "enrich", "result": 0} | values


@case("trim", "OK")
async def trim_ok(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab, 3)
    assert await lab.changes(lab.frontier.trim_logs()) == ((0, False), {})
    await lab.frontier.control(log_bytes=2 * LOG_SIZE)
    answer, changed = await lab.changes(lab.frontier.trim_logs())
    assert answer == (1, False)
    assert changed == {
        "log:page": {"entries": ([log_entry()], [])},
        "totals": {"log:page.bytes": (3 * LOG_SIZE, 2 * LOG_SIZE), "log:page.trimmed": (None, 1)},
    }
    # At the memory mark all of it is in the way; what is past its time is no loss.
    assert await lab.frontier.trim_logs(is_full=True) == (2, False)
    assert (await lab.totals())["log:page.trimmed"] == 3
    assert await lab.frontier.trim_logs(is_full=True) == (0, False)
    await lab.frontier.flow([], b"{}", {"page": 0})
    await lab.client.xadd(lab.keys.log("page"), {"item": LOG_ITEM, "url": f"{A}/page"})
    await lab.client.hincrby(lab.keys.totals, "log:page.created", 1)
    await lab.client.hincrby(lab.keys.totals, "log:page.bytes", LOG_SIZE)
    _, changed = await lab.changes(lab.frontier.trim_logs())
    assert changed["totals"] == {"log:page.bytes": (LOG_SIZE, 0), "log:page.expired": (None, 1)}


@case("drop", "UNKNOWN")
async def drop_unknown(open_lab: OpenLab) -> None:
    lab = await open_lab()
    with pytest.raises(ConfigError, match="no stage 'enrich'"):
        await lab.frontier.drop_items("enrich", "9-9")


@case("drop", "OK")
async def drop_ok(open_lab: OpenLab) -> None:
    lab, [held, retried] = await _items(open_lab, ITEM, ITEM, stage_waiting_max=2)
    assert await commit_items(lab, StageCommit(retried, Outcome.RETRY, (60_000,))) == ["DONE"]
    await lab.offer(f"{B}/")
    [page] = await lab.take()
    await lab.end(page, items=["enrich", ITEM] * 2, url=f"{A}/page")
    assert await lab.frontier.throttled() == {"enrich"}
    [member] = await lab.client.zrange(lab.keys.delayed, 0, -1)
    newest = (await lab.client.xrevrange(lab.keys.stage_stream("enrich"), count=1))[0][0].decode()
    act = partial(lab.frontier.drop_items, "enrich", newest, [member, b"fetch|2|http://a.test|x"])
    answer, changed = await lab.changes(act())
    assert answer == (4, False)
    assert changed.pop("stream:enrich") == {
        "entries": ([item_entry()] * 3, []), "pending": ([["t1", item_entry()]], []),
    }  # fmt: skip
    assert changed["delayed"].keys() == {member.decode()}
    assert changed["totals"] == {
        "enrich.bytes": (3 * len(ITEM), 0),
        "enrich.delayed": (1, 0),
        "enrich.dropped": (None, 4),
        "enrich.dropped.removed": (None, 4),
        "enrich.streamed": (3, 0),
    }
    assert changed["state"]["throttled"] == ("enrich", None), "what it held back goes on"
    assert await commit_items(lab, StageCommit(held, Outcome.DONE)) == ["LEASE_LOST"]
    assert await act() == (0, False)
    # Nothing that came behind what was there, and no more than a call may.
    await lab.offer(f"{B}/2")
    [page] = await lab.take()
    await lab.end(page, items=["enrich", ITEM] * 250, url=f"{A}/page")
    assert await act() == (0, False)
    assert await lab.frontier.drop_items("enrich", "9999999999999-0") == (200, True)
    assert await lab.frontier.drop_items("enrich", "9999999999999-0") == (50, False)


@case("plan", "OK")
async def plan_ok(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab)
    act = partial(lab.frontier.plan_replay, "one", plan_of())
    answer, changed = await lab.changes(act())
    assert answer == ("OK", "")
    assert changed == {
        "replays": {"one": (None, plan_of().decode()), "one:at": (None, " 0 0")},
        "replayed": {"gone:one": (None, "0-0")},
    }
    assert await lab.changes(act()) == (("OK", ""), {})
    await lab.frontier.control(closed=1)
    rest = await lab.frontier.finish()
    assert (rest.word, rest.has_replays) == ("RUNNING", True), "a replay is something left to do"
    await lab.frontier.control(paused=1)
    assert (await lab.frontier.finish()).word == "PAUSED"
    await lab.frontier.control(paused="")
    _, changed = await lab.changes(lab.frontier.cancel_replay("one"))
    assert changed.keys() == {"replays", "replayed"}
    assert changed["replayed"].keys() == {"ended:one", "gone:one"}
    assert await lab.changes(lab.frontier.cancel_replay("one")) == (None, {})
    assert await lab.changes(act()) == (("OK", ""), {}), "begun again by a reply that was lost it would send twice"
    assert (await lab.frontier.finish()).word == "ENDED"
    for n in range(25):
        await lab.frontier.plan_replay(f"n{n}", plan_of())
        await lab.frontier.cancel_replay(f"n{n}")
    assert len((await lab.snapshot())["replayed"]) == 20
    await lab.frontier.cancel_replay("early")
    assert await lab.frontier.plan_replay("early", plan_of()) == ("OK", "")
    assert "replays" not in await lab.snapshot(), "cancelled before this shard was told of it"


@case("plan", "BUSY")
async def plan_busy(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab)
    await lab.frontier.plan_replay("one", plan_of())
    assert await lab.changes(lab.frontier.plan_replay("two", plan_of())) == (("BUSY", "one"), {})
    assert await lab.frontier.plan_replay("two", plan_of("enrich")) == ("OK", "")


@case("plan", "MANY")
async def plan_many(open_lab: OpenLab) -> None:
    lab = await open_lab()
    stages = [f"s{n}" for n in range(21)]
    await lab.frontier.flow(stages, b"{}", {"page": 1000})
    answers = [await lab.frontier.plan_replay(stage, plan_of(stage)) for stage in stages]
    assert answers == [("OK", "")] * 20 + [("MANY", "")]


@case("plan", "UNKNOWN")
async def plan_unknown(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab)
    for plan in (plan_of("none"), plan_of().replace(b'"page"', b'"none"')):
        assert await lab.changes(lab.frontier.plan_replay("one", plan)) == (("UNKNOWN", ""), {})
        assert (await lab.frontier.count_replay(plan))[0] == "UNKNOWN"


@case("plan", "COUNTED")
async def plan_counted(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab, 120)
    answer, changed = await lab.changes(lab.frontier.count_replay(plan_of()))
    assert changed == {}
    word, at, looked, found = answer
    assert (word, looked, found) == ("MORE", 100, 100)
    word, _, looked, found = await lab.frontier.count_replay(plan_of(), at)
    assert (word, looked, found) == ("END", 20, 20)
    for conditions, expected in (
        ({"is_missing": True}, 100),
        ({"is_results": True}, 0),
        ({"takes": ["Other", "Thing"]}, 100),
        ({"takes": ["Other"]}, 0),
        ({"type": "Thing"}, 100),
        ({"type": "Thin"}, 0),
        ({"version": ""}, 100),
        ({"version": "2"}, 0),
        ({"url": f"{A}/pa"}, 100),
        ({"url": f"{B}/"}, 0),
    ):
        assert (await lab.frontier.count_replay(plan_of(**conditions)))[3] == expected, conditions
    assert (await lab.frontier.count_replay(plan_of("enrich", is_missing=True)))[3] == 0


@case("copy", "OK")
async def copy_ok(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab, 101)
    await lab.frontier.plan_replay("one", plan_of(takes=["Thing"]))
    answer, changed = await lab.changes(lab.frontier.copy_replay("one"))
    assert answer == ("OK", 100)
    (was, (now)) = changed.pop("replays")["one:at"]
    assert (was, now.split(" ")[1:]) == (" 0 0", ["100", "100"])
    copy = LOG_ITEM.replace("Book;", "")
    assert changed == {
        "stream:save": {"entries": ([], [item_entry(copy)] * 100)},
        "totals": {
            "save.bytes": (None, 100 * len(copy)), "save.copied": (None, 100), "save.created": (None, 100),
            "save.streamed": (None, 100),
        },
    }  # fmt: skip
    assert await lab.frontier.copy_replay("one") == ("ENDED", 1), "it goes on behind what it copied"


@case("copy", "ENDED")
async def copy_ended(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab, 2)
    await lab.frontier.plan_replay("one", plan_of("out", is_missing=True))
    answer, changed = await lab.changes(lab.frontier.copy_replay("one"))
    assert answer == ("ENDED", 2)
    assert changed.pop("replays").keys() == {"one", "one:at"}
    assert changed.pop("replayed").keys() == {"ended:one", "gone:one", "missing:page:out"}
    assert changed.pop(f"{FETCH_STREAM}:out")["entries"] == ([], [{"item": '{"n":1}'}] * 2), "an output gets bare items"
    assert changed["totals"]["out.copied"] == (None, 2)
    # What was missing once is missing no more; what came since, and was not sent there, is.
    assert await lab.frontier.plan_replay("two", plan_of("out", is_missing=True)) == ("OK", "")
    assert await lab.frontier.copy_replay("two") == ("ENDED", 0)
    await lab.frontier.plan_replay("three", plan_of("out"))
    assert await lab.frontier.copy_replay("three") == ("ENDED", 2), "as often as a person asks"


@case("copy", "OVER")
async def copy_over(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab, 2)
    assert await lab.changes(lab.frontier.copy_replay("one")) == (("OVER", 0), {})
    await lab.frontier.plan_replay("one", plan_of())
    await lab.frontier.copy_replay("one")
    assert await lab.changes(lab.frontier.copy_replay("one")) == (("OVER", 0), {})


@case("copy", "FULL")
async def copy_full(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab, 20, stage_waiting_max=10)
    await lab.frontier.plan_replay("one", plan_of())
    assert await lab.frontier.copy_replay("one") == ("FULL", 4)
    assert await lab.frontier.throttled() == frozenset(), "it holds nobody back who feeds the stage"
    answer, changed = await lab.changes(lab.frontier.copy_replay("one"))
    assert (answer, changed) == (("FULL", 0), {})
    ended = [StageCommit(one, Outcome.DONE).pack() for one in await read_items(lab, "save")]
    await lab.frontier.stage_commit("t1", "save", ended, 0)
    await lab.frontier.control(stage_bytes=1)
    assert await lab.frontier.copy_replay("one") == ("FULL", 1), "one always fits where none waits"
    # It is over the mark by that, and those who feed the stage are held back: they go first.
    await read_items(lab, "save")
    answer, changed = await lab.changes(lab.frontier.copy_replay("one"))
    assert (answer, changed) == (("FULL", 0), {})


@case("copy", "HELD")
async def copy_held(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab)
    await lab.frontier.plan_replay("one", plan_of())
    for field in ("paused", "stopped"):
        await lab.frontier.control(**{field: "1"})
        assert await lab.changes(lab.frontier.copy_replay("one")) == (("HELD", 0), {})
        await lab.frontier.control(**{field: ""})
    assert await lab.frontier.copy_replay("one") == ("ENDED", 1)


async def test_what_a_commit_writes_to_a_log_says_where_it_went_and_stays_within_its_bytes(open_lab: OpenLab) -> None:
    lab = await _logged(open_lab)
    assert (await lab.snapshot())["log:page"] == {"entries": [log_entry()]}
    await lab.frontier.control(log_bytes=3 * LOG_SIZE)
    await lab.offer(f"{A}/more")
    [held] = await lab.take()
    one = ("out", '{"n":1}', "log:page", f"1{LOG_ITEM}")
    assert await lab.end(held, items=one * 5, url=f"{A}/page") == "DONE"
    assert (await lab.snapshot())["log:page"] == {"entries": [log_entry(to="out", result=1)] * 3}
    assert (await lab.totals())["log:page.trimmed"] == 3
    # A stage gives by its line; and at the memory mark the log takes nothing more, and says so.
    await lab.frontier.flow(["enrich@2"], b"{}", {"enrich": 1000})
    await lab.client.xadd(lab.keys.stage_stream("enrich@2"), item_entry())
    for state in ("created", "streamed"):
        await lab.client.hincrby(lab.keys.totals, f"enrich@2.{state}", 1)
    await lab.client.hincrby(lab.keys.totals, "enrich@2.bytes", len(ITEM))
    [entry_id] = await read_items(lab, "enrich@2")
    commit = StageCommit(entry_id, Outcome.DONE, items=["save", ITEM, "log:enrich", f"0{LOG_ITEM}"]).pack()
    assert (await lab.frontier.stage_commit("t1", "enrich@2", [commit], 0))[0] == ["DONE"]
    assert (await lab.snapshot())["log:enrich"] == {"entries": [log_entry(line="enrich@2", to="save")]}
    await lab.frontier.control(stopped="MEMORY_FULL")
    [entry_id] = await read_items(lab, "save")
    commit = StageCommit(entry_id, Outcome.DONE, items=["log:enrich", f"1{LOG_ITEM}"]).pack()
    assert (await lab.frontier.stage_commit("t1", "save", [commit], 0))[0] == ["DONE"]
    assert (await lab.totals())["log:enrich.trimmed"] == 1
    # A log that nobody declared, or what it could not send again, is refused with its whole commit.
    await lab.frontier.control(stopped="")
    for items in (["log:none", f"1{LOG_ITEM}"], ["log:page", LOG_ITEM]):
        commit = StageCommit(FENCE, Outcome.DONE, items=items).pack()
        assert (await lab.frontier.stage_commit("t1", "save", [commit], 0))[0] == ["INVALID"]


async def test_pages_given_to_a_stage_that_parses_are_kept_while_the_setting_says_so(open_lab: OpenLab) -> None:
    lab = await open_lab()
    row = {"parse@2": {"from": ["page"], "logs": ["fetched.parse"], "takes": ["fetched"]}}
    await lab.frontier.flow(["parse@2"], msgspec.json.encode(row), {"fetched.parse": 0})
    stored = '["fetched",{"body":""},0]'

    async def give(path: str) -> None:
        await lab.offer(f"{A}/{path}")
        [held] = await lab.take()
        assert await lab.end(held, items=("parse@2", stored), url=f"{A}/{path}") == "DONE"

    await give("1")
    assert "log:fetched.parse" not in await lab.snapshot()
    await lab.frontier.control(keep_bodies=1000)
    await give("2")
    entry = log_entry(item=stored, url=f"{A}/2", to="parse")
    assert (await lab.snapshot())["log:fetched.parse"] == {"entries": [entry]}
    plan = {"log": "fetched.parse", "target": "parse@2", "first": "-", "last": "+", "takes": ["fetched"]}
    await lab.frontier.plan_replay("one", msgspec.json.encode(plan))
    assert await lab.frontier.copy_replay("one") == ("ENDED", 1)
    items = [entry["item"] for entry in (await lab.snapshot())["stream:parse@2"]["entries"]]
    assert items == [stored] * 3
    await lab.frontier.control(keep_bodies="")
    assert await lab.frontier.trim_logs() == (1, False)


@pytest.mark.parametrize(("script", "word"), sorted(CASES))
async def test_a_word_changes_what_its_header_says(open_lab: OpenLab, script: str, word: str) -> None:
    await CASES[script, word](open_lab)


def test_every_script_that_asks_for_the_epoch_is_tried_with_another_one() -> None:
    assert {name for name in script_names() if "GONE" in words_of(source(name))} == ARGUMENTS.keys()


def test_every_word_of_every_header_has_a_case() -> None:
    words = {(name, word) for name in script_names() for word in words_of(source(name))}
    assert {(script, word) for script, word in words if word != "GONE"} == set(CASES)


ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "audit": (msgspec.msgpack.encode([A]), "0-0", msgspec.msgpack.encode([[]])),
    "beat": (1000, msgspec.msgpack.encode(("w1", FETCH_STREAM, 3, "{}", [FENCE]))),
    "commit": ("w1", 5, b"\xc1"),
    "addresses": (msgspec.msgpack.encode([]), msgspec.msgpack.encode(["192.0.2.1", "0:1-1", A]), 1, 1000),
    "cookies": ("host:a.test", msgspec.msgpack.encode(["a;a.test;/", "", "1", 0])),
    "control": (msgspec.msgpack.encode(["paused", "1"]),),
    "copy": ("one",),
    "dispatch": (5,),
    "drop": ("one", FENCE, 5, msgspec.msgpack.encode([])),
    "plan": ("cancel", "one", ""),
    "trim": (5, ""),
    "due": (5,),
    "revisit": (5,),
    "allow": (5, 0),
    "feed": ("one", "begin", 1000, ""),
    "finish": (),
    "give_up": (0, 0, 5),
    "forget": (msgspec.msgpack.encode([FENCE]),),
    "grant": (1, 0, 0, 0, 5, 10),
    "hand_back": (FETCH_STREAM, msgspec.msgpack.encode([FENCE]), "unbegun"),
    "host": (A, msgspec.msgpack.encode(["cap", "2"])),
    "offer": ("seeds", msgspec.msgpack.encode(["5", A, "2", '"page","/",0]'])),
    "put_back": (FETCH_STREAM, "w1", "1", 5),
    "purge": (A, "2", 5, msgspec.msgpack.encode("all")),
    "reclaim": (FETCH_STREAM, 1000, 5),
    "reconcile": (msgspec.msgpack.encode([A]), "0-0", msgspec.msgpack.encode([[]])),
    "replay": (msgspec.msgpack.encode([FENCE, A, "2", '[0,0,"page","/",0]']),),
    "sink_commit": ("out", 1, 0, 10, msgspec.msgpack.encode([FENCE]), "", "", 0),
    "sink_open": ("out", "s9", 1000, 5),
    "flow": (msgspec.msgpack.encode(["one"]), b"{}", msgspec.msgpack.encode([])),
    "stage_commit": ("w1", "one", 5, b"\xc1"),
    "start": (FENCE, A, 100, 0),
    "visit": (A, "begin", 0, 100),
    "upgrade": (msgspec.msgpack.encode([]), msgspec.msgpack.encode(["cap", "2"]), 0),
    "tune": (2, "{}", msgspec.msgpack.encode(["cap", "2"])),
}


@pytest.mark.parametrize("script", [name for name in script_names() if name in ARGUMENTS])
async def test_a_worker_of_another_epoch_writes_nothing(open_lab: OpenLab, script: str) -> None:
    lab = await open_lab(sinks=["out"])
    await lab.offer(f"{A}/", f"{A}/2")
    await lab.take()
    before = await lab.snapshot(), await lab.client.hget(lab.keys.state, "clock_ms")
    run = Scripts(lab.client, lab.keys.state).run
    with pytest.raises(CrawlGone):
        await run(script, "0123456789abcdef", *ARGUMENTS[script])
    assert (await lab.snapshot(), await lab.client.hget(lab.keys.state, "clock_ms")) == before


async def test_a_deleted_crawl_says_gone_to_its_workers(open_lab: OpenLab, store_client: Redis) -> None:
    lab = await open_lab()
    await lab.offer(*urls("a.test", 700))
    keys = [key async for key in store_client.scan_iter(match=lab.keys.pattern)]
    assert await delete_crawl(store_client, crawl_of(lab)) == len(keys)
    frontier: Frontier = lab.frontier
    with pytest.raises(CrawlGone):
        await frontier.offer(links(f"{A}/new"))
    assert await lab.snapshot() == {}


async def test_levels_are_served_first_to_last(open_lab: OpenLab) -> None:
    lab = await open_lab()
    for level in (Level.LOW, Level.NORMAL, Level.HIGH):
        await lab.offer(f"{A}/{level.name}", level=level)
    served = []
    for _ in range(3):
        [held] = await lab.take()
        served.append(held.task.path)
        await lab.end(held)
    assert served == ["/HIGH", "/NORMAL", "/LOW"]
