"""What a crawl knows of one URL: in every place where its task can be, and in none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops import explain as module
from streamcrawl.ops import items as in_items
from streamcrawl.ops.explain import Explanation, explain, explanation_lines
from streamcrawl.rules.scope import Scope
from streamcrawl.rules.task import LastVisit, Level, Outcome, encode_rest
from streamcrawl.rules.urls import fingerprint
from streamcrawl.settings import make_settings
from streamcrawl.store.frontier import StageCommit
from streamcrawl.store.keys import GROUP
from streamcrawl.store.seen import is_seen
from tests.integration.operated import SHARDS, Operated
from tests.integration.snapshot import links, sitemaps, urls

if TYPE_CHECKING:
    from redis.asyncio import Redis

A = "http://a.test"
ROBOTS = '{"verdict":"parse","status":200,"delay_ms":0}\nUser-agent: *\nDisallow: /private\nAllow: /private/press\n'


async def asked(operated: Operated, url: str) -> Explanation:
    found = await explain(operated.crawl, operated.name, url)
    assert msgspec.json.encode(found.as_json())
    assert explanation_lines(found)[0] == found.url
    return found


async def test_page_that_waits_for_its_next_visit_is_found(
    redis_client: Redis, crawl_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    lab = operated.lab_of(A)
    await lab.frontier.control(revisit_ms=1000)
    await operated.offer([f"{A}/a?[b]=*", f"{A}/a"])
    for _ in range(2):
        [held] = await lab.take()
        rest = encode_rest(msgspec.structs.replace(held.task, again=LastVisit(7_200_000, "00ff"))).decode()
        assert await lab.end(held, detail=("new", "2", rest, 7_200_000)) == "DONE"
    for url in (f"{A}/a?[b]=*", f"{A}/a"):
        found = await asked(operated, url)
        assert found.verdict() == "fetched, and due to be visited again in 119 min, 2 h after its last visit"
        assert (found.found.place, found.as_json()["interval_ms"]) == ("kept", 7_200_000)
    for member in await lab.client.zrange(lab.keys.revisits, 0, -1):
        await lab.client.zincrby(lab.keys.revisits, -9_000_000, member)
    assert (await asked(operated, f"{A}/a")).verdict().startswith("fetched, and due to be visited again now, ")
    await lab.frontier.revisit()
    assert (await asked(operated, f"{A}/a")).found.place == "queued"
    # Others, until the bound ends the search.
    monkeypatch.setattr(module, "KEPT_MAX", 1000)
    rest = '"page","/b%d",1,1,"",[],0,0,{},["again",5,"","",""]]'
    await lab.client.zadd(lab.keys.revisits, {f"2|{A}|{rest % n}": 10**15 for n in range(5000)})
    await lab.client.delete(lab.keys.queue(A, "2"))
    await lab.frontier.reconcile()
    assert "1,000 pages that are to be visited again" in (await asked(operated, f"{A}/a")).found.searched


@pytest.mark.parametrize("shards", SHARDS)
async def test_task_is_found_wherever_it_is(redis_client: Redis, crawl_name: str, shards: int) -> None:
    operated = await Operated.opened(redis_client, crawl_name, shards=shards)
    lab = operated.lab_of(A)
    url = f"{A}/0"

    async def place() -> str:
        found = await asked(operated, url)
        assert found.shard == operated.crawl.index_of(A)
        assert (found.is_seen, found.found.searched) == (bool(found.found.place) or found.is_seen, [])
        return found.found.place

    assert await place() == ""
    assert (await asked(operated, url)).verdict().startswith("never seen")
    await operated.offer(urls("a.test", 3))
    assert await place() == "queued"
    assert (await asked(operated, f"{A}/2")).verdict() == "queued, level normal, with 2 tasks of its host before it"
    await lab.frontier.dispatch(1)
    assert await place() == "waiting"
    (held,) = await lab.read("w7")
    assert await place() == "in hand"
    assert (await asked(operated, url)).as_json()["worker"] == "w7"
    await lab.end(held, Outcome.RETRY)
    assert await place() == "delayed"
    assert (await asked(operated, url)).verdict().startswith("delayed: attempt 2 is due in ")
    await lab.let_pass(1000)
    assert (await asked(operated, url)).verdict() == "delayed: attempt 2 is due now"
    await lab.frontier.due()
    assert await place() == "queued"
    (held,) = await lab.take()
    await lab.end(held, Outcome.DEAD)
    assert await place() == "dead"
    assert ": http, attempt 2: 404 (letter " in (await asked(operated, url)).verdict()
    (held,) = await lab.take()
    await lab.end(held)
    found = await asked(operated, f"{A}/1")
    assert (found.found.place, found.is_seen) == ("", True)
    assert found.verdict() == "seen, and done: the output has its record"


async def test_items_of_a_page_are_found_wherever_they_are(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, sinks=["out"], host_concurrency=9)
    lab, url = operated.labs[0], f"{A}/[x]?*=%C3%BC"
    await lab.frontier.flow(["parse", "price@2"], b"{}")
    await operated.offer([url, f"{A}/[x]"])

    async def places() -> list[tuple[str, str]]:
        return [(one.stage, one.place) for one in (await asked(operated, url)).items.found]

    assert await places() == []
    canonical = (await asked(operated, url)).url
    for held in await lab.take():
        record = msgspec.json.encode({"url": held.task.url}).decode()
        items = ["parse", '["fetched",{"n":1},0]', "price@2", '["Price",{"n":2},0]', "out", record]
        await lab.end(held, items=items, url=held.task.url)
    assert await places() == [("fetch:out", "waiting"), ("parse", "waiting"), ("price@2", "waiting")]
    found = await asked(operated, url)
    assert found.url == canonical
    assert found.verdict().startswith("fetched; its record waits for fetch:out (")
    assert [one.words.partition(" (1")[0] for one in found.items.found[1:]] == [
        "the page itself waits for parse", "an item (Price) waits for price@2",
    ]  # fmt: skip
    [*_, first, second] = [line for line in explanation_lines(found) if " waits for " in line]
    assert first.index("the page itself") == second.index("an item (Price)")

    stream = lab.keys.stage_stream("price@2")
    answer: Any = await lab.client.xreadgroup(GROUP, "t1", {stream: ">"}, count=10)
    [entry_id] = [one.decode() for one, fields in answer[0][1] if fields[b"url"] == canonical.encode()]
    assert ("price@2", "in hand") in await places()
    assert (await asked(operated, url)).as_json()["items"][2]["worker"] == "t1"
    for outcome, detail, place in (
        (Outcome.RETRY, (60_000,), "delayed"),
        (Outcome.DEAD, ("handler", "price@2: it\nTraceback\nKeyError: 'price'"), "dead"),
    ):
        if place == "dead":
            await lab.client.zadd(lab.keys.delayed, dict.fromkeys(await lab.client.zrange(lab.keys.delayed, 0, -1), 1))
            await lab.frontier.due()
            answer = await lab.client.xreadgroup(GROUP, "t1", {stream: ">"}, count=10)
            entry_id = answer[0][1][0][0].decode()
        packed = [StageCommit(entry_id, outcome, detail).pack()]
        assert (await lab.frontier.stage_commit("t1", "price@2", packed, 0))[0] == ["DONE"]
        assert await places() == [("fetch:out", "waiting"), ("parse", "waiting"), ("price@2", place)]
    assert (await asked(operated, f"{A}/[x]")).items.found
    dead = (await asked(operated, url)).items.found[-1]
    assert ": handler, attempt 2: KeyError: 'price' (letter " in dead.words
    assert dead.facts["error"].startswith("price@2: it")


async def test_search_for_items_ends_at_its_bounds(
    redis_client: Redis, crawl_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operated = await Operated.opened(redis_client, crawl_name, host_concurrency=9)
    lab = operated.labs[0]
    await lab.frontier.flow(["parse"], b"{}")
    await operated.offer([f"{A}/many", f"{A}/last"])
    for held, count in zip(await lab.take(), (300, 1), strict=True):
        await lab.end(held, items=["parse", '["any",{},0]'] * count, url=held.task.url)
    assert len((await asked(operated, f"{A}/many")).items.found) == in_items.FOUND_MAX
    assert "and perhaps more: the first 20 are shown" in explanation_lines(await asked(operated, f"{A}/many"))[-3]
    assert [one.place for one in (await asked(operated, f"{A}/last")).items.found] == ["waiting"]
    for name, most in (("LOOKED_MAX", 200), ("BYTES_MAX", 200 * len('["any",{},0]'))):
        with monkeypatch.context() as patch:
            patch.setattr(in_items, name, most)
            found = await asked(operated, f"{A}/last")
            assert (found.items.found, found.items.searched) == ([], ["the oldest 200 entries of parse"]), name
            assert any("not looked for beyond the oldest" in line for line in explanation_lines(found))


async def test_what_was_typed_is_made_canonical_first(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    await operated.offer([f"{A}/x%20y"])
    found = await asked(operated, "HTTP://user@A.test:80/z/../x y?#part")
    assert (found.url, found.found.place) == (f"{A}/x%20y", "queued")
    assert f"{A}/x%20y (typed: HTTP://user@A.test:80/z/../x y?#part)" in "\n".join(explanation_lines(found))
    with pytest.raises(ConfigError, match="is not an http"):
        await asked(operated, "mailto:a@a.test")


async def test_which_line_of_robots_txt_decides(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, obey_robots=True)
    lab = operated.labs[0]
    await operated.offer([f"{A}/private/a"])
    assert (await asked(operated, f"{A}/private/a")).is_allowed is None
    (held,) = await lab.take()
    # Its robots task is no page of that URL.
    assert (await asked(operated, f"{A}/robots.txt")).found.place == ""
    await lab.end(held, detail=(ROBOTS, 3_600_000, 0))
    for path, is_allowed, words in (
        ("/private/a", False, "disallowed by line 2: Disallow: /private"),
        ("/private/press/a", True, "allowed by line 3: Allow: /private/press"),
        ("/public", True, "allowed: no line of the file is about it"),
    ):
        found = await asked(operated, A + path)
        assert (found.is_allowed, found.robots) == (is_allowed, words)
    (held,) = await lab.take()
    await lab.end(held, Outcome.DROPPED)
    dropped = await asked(operated, f"{A}/private/a")
    assert dropped.verdict() == (
        "seen, and nowhere any more: dropped, most likely: disallowed by line 2: Disallow: /private of its robots.txt "
        "(dropped in the whole crawl: robots 1)"
    )
    assert (await asked(operated, f"{A}/private/b")).verdict() == (
        "never seen: no page that was fetched links to it, and no seed is it; found, it would be dropped: disallowed "
        "by line 2: Disallow: /private of its robots.txt"
    )
    await lab.client.set(lab.keys.robots(A), '{"verdict":"allow","status":404,"delay_ms":0}\n', px=60_000)
    assert (await asked(operated, f"{A}/private/a")).is_allowed is True


async def test_sitemap_at_a_url_is_told_from_the_page_there(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, scope="any")
    lab, url = operated.labs[0], f"{A}/map"
    assert (await asked(operated, url)).sitemap == ""
    await lab.frontier.offer(sitemaps(url))
    found = await asked(operated, url)
    assert (found.is_seen, found.found.place, found.sitemap) == (
        False, "", "queued, level normal, with 0 tasks of its host before it",
    )  # fmt: skip
    assert "  as a sitemap  queued, level normal" in "\n".join(explanation_lines(found))
    (held,) = await lab.take()
    assert (await asked(operated, url)).sitemap.startswith("in the hands of w1")
    listed = links(f"{A}/listed", depth=1, referrer=url, modified_s=1_714_521_600)
    await lab.end(held, links=listed)
    assert (await asked(operated, url)).sitemap == "read or dropped: `status` counts them"
    found = await asked(operated, f"{A}/listed")
    assert found.found.facts["modified_at"] == "2024-05-01T00:00:00Z"
    assert "changed, says its sitemap" in "\n".join(explanation_lines(found))


async def test_scope_that_keeps_it_out_is_named(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, deny=(r"\.pdf$",))
    assert (
        await asked(operated, "http://b.test/x.pdf")
    ).out_of_scope == ""  # a program's crawl: its scope is not known
    scope = Scope.from_settings(make_settings(name="x"), [f"{A}/"])
    await operated.crawl.first.control(crawl=msgspec.json.encode({"scope": scope.state()}).decode())
    assert (await asked(operated, f"{A}/x.pdf")).out_of_scope == r"--deny '\\.pdf$' matches it"
    found = await asked(operated, "http://b.test/")
    assert found.out_of_scope.startswith("scope host: its host is no seed's")
    assert found.verdict() == "never seen, and out of scope: a link to it is not followed"
    # Found all the same, as a seed is: then links of its own pages are followed too.
    await operated.offer(["http://b.test/"])
    assert (await asked(operated, "http://b.test/y")).out_of_scope == ""


async def test_trap_that_a_link_is_taken_for_is_named(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    found = await asked(operated, f"{A}/a/b/a/b/a/b")
    assert found.left_out == "trap_repetition: the limit is the setting repeats_max"
    assert found.verdict() == "never seen, and taken for a trap: a link to it is not followed"
    assert any(line.split()[:2] == ["trap", "trap_repetition:"] for line in explanation_lines(found))
    # As a seed it is fetched all the same.
    await operated.offer([f"{A}/a/b/a/b/a/b"])
    assert (await asked(operated, f"{A}/a/b/a/b/a/b")).found.place == "queued"


async def test_reason_of_what_was_dropped_is_derived_where_it_can_be(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, pages_per_host_max=1, depth_max=3, allow_private=False)
    lab = operated.labs[0]
    inside = "http://169.254.169.254/latest"
    await operated.offer([*urls("a.test", 3), inside])
    for held in await lab.take():
        is_inside = held.task.url == inside
        await lab.end(held, Outcome.DROPPED if is_inside else Outcome.DONE, detail=("blocked_address",) * is_inside)
    await lab.frontier.give_up(after_ms=10**9, idle_ms=10**9)
    counts = "(dropped in the whole crawl: host_budget 2, blocked_address 1)"
    assert (await asked(operated, f"{A}/2")).verdict() == (
        f"seen, and nowhere any more: dropped, most likely: its host had its 1 pages {counts}"
    )
    assert (await asked(operated, inside)).verdict() == (
        "seen, and nowhere any more: dropped, most likely: 169.254.169.254 is a metadata address, which this crawl "
        f"does not connect to {counts}"
    )
    unseen = (await asked(operated, "http://b.test/")).verdict()
    assert unseen == "never seen: no page that was fetched links to it within --depth 3, and no seed is it"


async def test_url_is_looked_for_in_the_form_of_the_crawl(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name, drop_params=("tracking",), sort_query=True)
    await operated.offer([f"{A}/x?a=1&b=2"])
    found = await asked(operated, f"{A}/x?utm_source=mail&b=2&a=1")
    assert (found.url, found.found.place) == (f"{A}/x?a=1&b=2", "queued")


async def test_bound_that_was_reached_is_said(
    redis_client: Redis, crawl_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("QUEUED_MAX", 1000), ("DEAD_MAX", 20), ("DELAYED_MAX", 1000)):
        monkeypatch.setattr(module, name, most)
    operated = await Operated.opened(redis_client, crawl_name, host_concurrency=100)
    lab = operated.labs[0]
    await operated.kill([f"{A}/dead/{n}" for n in range(30)])
    assert (await asked(operated, f"{A}/dead/29")).found.place == "dead"
    assert (await asked(operated, f"{A}/dead/0")).verdict() == (
        "seen, and not found in the newest 20 dead letters; it may be there, done or dropped"
    )
    await operated.offer([f"{A}/low/{n}" for n in range(1200)], level=Level.LOW)
    assert (await asked(operated, f"{A}/low/900")).found.facts["queue_place"] == 900
    found = await asked(operated, f"{A}/low/1100")
    assert found.found.searched == ["the first 1,000 queued tasks of its host", "the newest 20 dead letters"]
    await lab.client.zadd(lab.keys.delayed, {f"fetch|2|{A}|{n}": 1 for n in range(5000)})
    assert "1,000 delayed tasks" in (await asked(operated, f"{A}/low/1100")).found.searched


async def test_delayed_search_is_of_the_host_alone(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    for host in ("http://[::1]:81", "http://[::1]:82"):
        await operated.offer([f"{host}/x*?[a]"])
    for lab, held in await operated.take():
        if held.host.endswith("81"):
            await lab.end(held, Outcome.RETRY)
    assert (await asked(operated, "http://[::1]:81/x*?[a]")).found.place == "delayed"
    assert (await asked(operated, "http://[::1]:82/x*?[a]")).found.place == "in hand"


async def test_seen_is_asked_as_the_scripts_reckon_it(redis_client: Redis, crawl_name: str) -> None:
    operated = await Operated.opened(redis_client, crawl_name)
    lab = operated.labs[0]
    wanted = urls("a.test", 4000)
    await operated.offer(wanted)
    state: Any = await lab.client.hget(lab.keys.state, "seen_buckets")
    assert int(state) > 10  # not a power of two, so that some buckets are split and others are not
    assert int(state) & (int(state) - 1)
    for url in wanted[::7]:
        assert await is_seen(lab.frontier, url), (url, fingerprint(url))
    for url in urls("b.test", 50):
        assert not await is_seen(lab.frontier, url)
