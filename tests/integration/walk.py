"""A crawl moved at random: several workers, sinks and operators, over one shard or several, with a plain model beside.

The model knows who holds what, what was ever accepted and what was written, so it predicts each answer that matters
(DONE or LEASE_LOST, lost ids, how many come back) and not only that the counts agree. `step` does one of STEPS, which
draws what else it needs from `random`, and `check` compares everything. Start at `Walk.opened`.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from streamcrawl.errors import ConfigError, CrawlGone
from streamcrawl.rules.politeness import Refusal
from streamcrawl.rules.task import CrawlTask, Kind, Outcome, decode_task, encode_task
from streamcrawl.settings import Given, make_settings
from streamcrawl.store.frontier import LINKS, SEEDS, Allowance, Beat, Commit, Frontier, Wait
from streamcrawl.store.keys import GROUP
from streamcrawl.store.shards import delete_crawl, open_crawl
from streamcrawl.store.tuning import encode_given, read_tuned, tune
from streamcrawl.work.budget import BudgetLoop
from streamcrawl.work.end import word_of
from tests.integration.snapshot import (
    FETCH_STREAM,
    Held,
    Lab,
    State,
    assert_accounts,
    assert_known_keys,
    fast,
    links,
    sitemaps,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from streamcrawl.store.shards import Shards

Where = tuple[int, str]
"""Shard and id of an entry."""

WORKERS: Final = ("w1", "w2", "w3")
FEEDERS: Final = ("f1", "f2")
DOWN: Final = "down"
HOSTS: Final = ("a.test", "b.test", "c.test:81", "d.test", "e.test", "i.test", f"{DOWN}.test")
"""Of four shards each has one of these at least."""
KIN: Final = ("a.one.com", "b.one.com", "c.one.com:81", "d.two.com", "two.com", "i.org", f"{DOWN}.one.com")
"""The same where politeness is by domain: most count as one with others."""
WEIGHTS: Final = {
    Kind.PAGE: {
        Outcome.DONE: 8,
        Outcome.RETRY: 3,
        Outcome.UNANSWERED: 1,
        Outcome.DEAD: 2,
        Outcome.DROPPED: 1,
        Outcome.REDIRECTED: 1,
    },
    Kind.SITEMAP: {
        Outcome.DONE: 8,
        Outcome.CONTINUED: 3,
        Outcome.RETRY: 2,
        Outcome.UNANSWERED: 1,
        Outcome.DEAD: 1,
        Outcome.DROPPED: 1,
        Outcome.REDIRECTED: 1,
    },
    Kind.ROBOTS: {Outcome.DONE: 20, Outcome.RETRY: 4, Outcome.UNANSWERED: 4, Outcome.DEAD: 1},
}
STEPS: Final = [
    *["offer"] * 3,
    *["dispatch", "read", "commit"] * 8,
    *["offer_sitemaps", "offer_fenced", "commit_again", "start", "hand_back", "put_back", "reclaim", "beat"],
    *["let_pass", "let_pass", "let_pass", "give_up", "reconcile"],
    *["sink_open", "sink_commit", "sink_commit", "sink_hand_back"],
    *["pause", "replay", "forget", "purge", "tell_host", "tune", "budget", "deal", "deal", "feed", "begin_anew"],
]
"""What a walk does next, drawn from here: what is written twice is done twice as often."""
OPEN: Final = frozenset({"RUNNING", "UNFED"})
DRAIN_ROUNDS_MAX: Final = 3000


class Walk:
    """One crawl with its workers, its sink and its operator."""

    def __init__(self, crawl: Shards, seed: int, values: dict[str, Any]) -> None:
        self.random: Final = random.Random(seed)
        self.values: Final = values
        self.hosts: Final = KIN if values["politeness_by"] == "domain" else HOSTS
        self.trace: Final[list[str]] = []
        self._begin(crawl)

    def _begin(self, crawl: Shards) -> None:
        self.crawl = crawl
        self.labs = [Lab(frontier) for frontier in crawl]
        self.held: dict[str, dict[Where, Held]] = {worker: {} for worker in WORKERS}
        """What each worker believes to hold."""
        self.live: set[Where] = set()
        """What is really pending; the rest of what workers believe was taken from them."""
        self.ended: list[tuple[int, Commit]] = []
        self.known: set[str] = set()
        """URLs that were accepted."""
        self.known_sitemaps: set[str] = set()
        self.fetched: set[str] = set()
        self.written: set[str] = set()
        """Records that a sink has committed."""
        shards = range(len(self.labs))
        self.writers, self.offsets = [0 for _ in shards], [0 for _ in shards]
        self.sink_held: list[dict[str, str]] = [{} for _ in shards]
        self.flying: dict[str, int] = {}
        """In flight of each host at the last check: above a cap that was lowered it may only become less."""
        self.pages_max: int | None = self.values.get("pages_max")
        self.ceiling = self.pages_max
        """The most that the budget ever was."""
        self.rows: list[tuple[int, Allowance]] = []
        self.grants: list[tuple[int, int]] = []
        """Reports and grants that are under way and may come in any order, again, or never."""

    @classmethod
    async def opened(cls, client: Redis, name: str, seed: int, *, shards: int) -> Self:
        """Open a crawl of a kind that `seed` chooses."""
        values = fast(
            name,
            shards=shards,
            politeness_by=("host", "domain")[seed // 3 % 2],
            obey_robots=seed % 3 != 0,
            host_concurrency=1 + seed % 2,
            delay_ms=(0, 200)[seed // 2 % 2],
            delay_max_ms=(0, 1000)[seed // 2 % 3 % 2],
            crashes_max=2,
            pages_per_host_max=(None, 12)[seed // 4 % 2],
            pages_max=(None, 15)[seed // 8 % 2],
            seeds_waiting_max=30 * shards,
        )
        return cls(await _open(client, values), seed, values)

    async def step(self, name: str | None = None) -> None:
        """Do what is named, or anything, and check all that must hold."""
        name = name or self.random.choice(STEPS)
        self.trace.append(name)
        await getattr(self, name)()
        await self.check()

    # -- what must hold after every step

    async def check(self) -> list[State]:
        """Check the accounts of each shard, and what holds over all of them; return their states."""
        states = await asyncio.gather(*(assert_accounts(frontier, self.flying) for frontier in self.crawl))
        self.flying = {}
        for n, state in enumerate(states):
            for key in state:
                if key.startswith("host:"):
                    host = key.removeprefix("host:")
                    # With it a URL lies in one place over all shards, because it does in each.
                    assert self.crawl.index_of(host) == n, f"{host} has got into shard {n}"
                    self.flying[host] = state[key].get("in_flight", 0)
        totals = [state.get("totals", {}) for state in states]
        assert sum(of.get("page.created", 0) for of in totals) == len(self.known)
        assert sum(of.get("sitemap.created", 0) for of in totals) == len(self.known_sitemaps)
        assert sum(of.get("page.done", 0) for of in totals) == len(self.fetched)
        assert sum(of.get("out.done", 0) for of in totals) == len(self.written)
        if self.ceiling is not None:
            used = sum(of.get("page.done", 0) + of.get("page.streamed", 0) for of in totals)
            assert used <= self.ceiling, f"{used} pages of {self.ceiling} are done or under way"
        rests = await asyncio.gather(*(frontier.finish() for frontier in self.crawl))
        for n, (state, rest) in enumerate(zip(states, rests, strict=True)):
            expected = rest_of(state)
            assert rest.word == expected or (rest.word in OPEN and expected in OPEN), f"shard {n}: {rest}, {expected}"
        return states

    # -- discovery

    def some_urls(self) -> list[str]:
        return [
            f"http://{self.random.choice(self.hosts)}/{self.random.randrange(60)}"
            for _ in range(self.random.randrange(9))
        ]

    def by_shard(self, urls: list[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for url in urls:
            found[self.crawl.index_of(url.rpartition("/")[0])].append(url)
        return found

    def accept(self, urls: list[str]) -> int:
        """Note that URLs were taken in; returns how many of them had to be new."""
        new = set(urls) - self.known
        self.known |= new
        return len(new)

    async def offer(self) -> None:
        for n, urls in self.by_shard(self.some_urls()).items():
            for _ in range(self.random.choice((1, 1, 2))):  # an answer may be lost
                word, count = await self.crawl.frontiers[n].offer(links(*urls), whose=SEEDS)
                if word == "WAIT":
                    assert count >= 30
                else:
                    assert (word, count) == ("OK", self.accept(urls))

    async def offer_sitemaps(self) -> None:
        for n, urls in self.by_shard(self.some_urls()).items():
            word, count = await self.crawl.frontiers[n].offer(sitemaps(*urls), whose=LINKS, can_wait=True)
            assert (word, count) == ("OK", len(set(urls) - self.known_sitemaps))
            self.known_sitemaps.update(urls)

    async def offer_fenced(self) -> None:
        where, held = self.pick()
        if held is None:
            return
        for n, urls in self.by_shard(self.some_urls()).items():
            whose = where[1] if n == where[0] else LINKS
            word, count = await self.crawl.frontiers[n].offer(links(*urls, depth=1), whose=whose)
            if whose == LINKS or where in self.live:
                assert (word, count) == ("OK", self.accept(urls))
            else:
                assert word == "LEASE_LOST"

    # -- workers

    def some_shard(self) -> int:
        return self.random.randrange(len(self.labs))

    def pick(self) -> tuple[Where, Held | None]:
        mine = self.held[self.random.choice(WORKERS)]
        return self.random.choice(sorted(mine.items(), key=lambda row: row[0])) if mine else ((0, ""), None)

    def forget_entries(self, *gone: Where) -> None:
        self.live.difference_update(gone)
        for mine in self.held.values():
            for where in gone:
                mine.pop(where, None)

    async def dispatch(self) -> None:
        for frontier in self.crawl:
            await frontier.dispatch(self.random.randrange(1, 8))

    async def read(self) -> None:
        worker = self.random.choice(WORKERS)
        for n in range(len(self.labs)):
            await self.read_from(n, worker, self.random.randrange(1, 5))

    async def read_from(self, n: int, worker: str, count: int) -> None:
        for held in await self.labs[n].read(worker, count):
            assert (n, held.id) not in self.live, f"{held.id} was delivered twice"
            self.held[worker][n, held.id] = held
            self.live.add((n, held.id))

    async def start(self) -> None:
        where, held = self.pick()
        if held is not None:
            frontier = self.crawl.frontiers[where[0]]
            word, _ = await frontier.start(held.id, held.host, wait_max_ms=50, margin_ms=0)
            assert (word == "LEASE_LOST") == (where not in self.live)

    def commit_of(self, n: int, held: Held) -> tuple[Commit, dict[int, list[str]]]:
        """Return how an entry ends, and the links it brings by shard."""
        is_page = held.task.kind is Kind.PAGE
        weights = WEIGHTS[held.task.kind]
        outcome = self.random.choices(list(weights), list(weights.values()))[0]
        if DOWN in held.host:
            outcome = Outcome.UNANSWERED
        is_found = outcome in (Outcome.DONE, Outcome.REDIRECTED) and held.task.kind is not Kind.ROBOTS
        found = self.by_shard(self.some_urls() if is_found else [])
        commit = self.labs[n].commit_of(
            held,
            outcome,
            is_fetched=self.random.random() < 0.8,
            sketch=self.random.choice(("", "2AAAAAAAA", "2AAAAAAAB", "0CDEFGHIJ")),
            since_end_ms=self.random.randrange(50),
            block_ms=self.random.choice((0, 0, 0, 500)),
            took_ms=self.random.choice((0, 5, 400)),
            refusal=self.random.choice((None, None, None, *Refusal)),
            links=links(*found.get(n, ()), depth=1),
            items=("out", held.task.url) if outcome is Outcome.DONE and is_page else (),
        )
        return commit, found

    async def commit(self) -> None:
        held = {where: one for mine in self.held.values() for where, one in mine.items()}
        await self.commit_all({where: held[where] for where in held if self.random.random() < 0.5}, crash=0.15)

    async def commit_all(self, chosen: dict[Where, Held], *, crash: float = 0) -> None:
        """End entries: links of other shards go there first, and a worker may die after that."""
        for n in range(len(self.labs)):
            batch: list[tuple[Commit, list[str]]] = []
            for (shard, _), held in sorted(chosen.items(), key=lambda row: row[0]):
                if shard != n:
                    continue
                commit, found = self.commit_of(n, held)
                for other in found.keys() - {n}:
                    answer = await self.crawl.frontiers[other].offer(links(*found[other], depth=1), whose=LINKS)
                    assert answer == ("OK", self.accept(found[other]))
                if self.random.random() >= crash:
                    batch.append((commit, found.get(n, [])))
            if not batch:
                continue
            expected = ["DONE" if (n, commit.entry_id) in self.live else "LEASE_LOST" for commit, _ in batch]
            committed = await self.labs[n].commit(*(commit for commit, _ in batch), limit=self.random.randrange(4))
            assert committed.words == expected
            for (commit, urls), word in zip(batch, committed.words, strict=True):
                if word == "DONE":
                    self.ended.append((n, commit))
                    self.accept(urls)
                    if commit.items:
                        assert commit.items[1] not in self.fetched, "a page was recorded twice"
                        self.fetched.add(str(commit.items[1]))
                self.forget_entries((n, commit.entry_id))

    async def commit_again(self) -> None:
        """A reply was lost: the same commits once more."""
        for n, commit in self.ended[-3:]:
            assert (await self.labs[n].commit(commit)).words == ["LEASE_LOST"]

    async def hand_back(self) -> None:
        mine = self.held[self.random.choice(WORKERS)]
        n = self.some_shard()
        ids = [where[1] for where in sorted(mine) if where[0] == n and self.random.random() < 0.4]
        wait = Wait(self.random.choice((0, 500)), "proxy_error")
        how: dict[str, Any] = self.random.choice(({}, {"is_robots_stale": True}, {"is_begun": True}, {"wait": wait}))
        back = partial(self.crawl.frontiers[n].hand_back, FETCH_STREAM, ids, **how)
        assert await back() == len(self.live.intersection((n, entry_id) for entry_id in ids))
        assert await back() == 0
        self.forget_entries(*((n, entry_id) for entry_id in ids))

    async def put_back(self) -> None:
        """A worker has died, or ended in order."""
        worker = self.random.choice(WORKERS)
        is_crash = self.random.random() < 0.6
        for n, frontier in enumerate(self.crawl):
            mine = [where for where in self.held[worker] if where[0] == n]
            back = await frontier.put_back(FETCH_STREAM, worker, is_crash=is_crash)
            assert back == len(self.live.intersection(mine))
            self.forget_entries(*mine)

    async def reclaim(self) -> None:
        """A worker was cut off for a lease; it goes on believing that it holds what it held."""
        worker, n = self.random.choice(WORKERS), self.some_shard()
        cut_off = [
            held
            for where, held in self.held[worker].items()
            if where[0] == n and where in self.live and self.random.random() < 0.6
        ]
        if cut_off:
            await self.labs[n].let_idle(cut_off, 60_000, consumer=worker)
        await self.labs[n].let_reclaim()
        assert await self.crawl.frontiers[n].reclaim(FETCH_STREAM, lease_ms=30_000) == ("OK", len(cut_off))
        self.live.difference_update((n, held.id) for held in cut_off)

    async def beat(self) -> None:
        n = self.some_shard()
        beats = [
            Beat(worker, FETCH_STREAM, 20, "{}", [where[1] for where in sorted(mine) if where[0] == n])
            for worker, mine in self.held.items()
        ]
        lost, slots = await self.crawl.frontiers[n].beat(beats, lease_ms=30_000)
        assert slots == 20 * len(WORKERS)
        for beat, ids in zip(beats, lost, strict=True):
            assert ids == [entry_id for entry_id in beat.entry_ids if (n, entry_id) not in self.live]
            self.forget_entries(*((n, entry_id) for entry_id in ids))

    # -- time, and what it brings

    async def let_pass(self) -> None:
        await self.all_pass(self.random.choice((10, 100, 1000, 5000)))
        if self.random.random() < 0.5:
            await self.crawl.control(paused="")

    async def all_pass(self, ms: int) -> None:
        for lab in self.labs:
            await lab.let_pass(ms)
            await lab.frontier.due(self.random.randrange(1, 10))

    async def give_up(self) -> None:
        frontier = self.crawl.frontiers[self.some_shard()]
        await frontier.give_up(after_ms=60_000, idle_ms=20_000, limit=self.random.randrange(1, 10))

    async def reconcile(self) -> None:
        assert await self.crawl.reconcile() == 0

    # -- the sink

    async def sink_open(self) -> None:
        await self.open_sink(self.some_shard())

    async def open_sink(self, n: int) -> None:
        frontier, before = self.crawl.frontiers[n], self.writers[n]
        word, self.writers[n], stored, _ = await frontier.sink_open("out", f"sink{before}", lease_ms=30_000)
        assert (word, self.writers[n], stored) == ("OK", before + 1, self.offsets[n])
        call = partial(frontier.sink_commit, "out", expected=self.offsets[n], offset=10**9, entry_ids=[])
        assert await call(writer=before) == ("REPLACED", None)
        self.sink_held[n] = {}

    async def sink_commit(self) -> None:
        await self.write(self.some_shard())

    async def write(self, n: int) -> None:
        if not self.writers[n]:
            await self.open_sink(n)
        stream = self.labs[n].keys.sink_stream("out")
        rows: Any = await self.labs[n].client.xreadgroup(GROUP, f"sink{self.writers[n] - 1}", {stream: ">"}, count=5)
        for entry_id, fields in rows[0][1] if rows else ():
            self.sink_held[n][entry_id.decode()] = fields[b"item"].decode()
        before, ids = self.offsets[n], list(self.sink_held[n])
        size = before + 10 * len(ids)
        call = partial(self.crawl.frontiers[n].sink_commit, "out", writer=self.writers[n], expected=before, offset=size)
        call = partial(call, size=sum(map(len, self.sink_held[n].values())))
        assert await call(entry_ids=ids) == ("DONE", None)
        if ids:
            assert await call(entry_ids=ids) == ("OFFSET_MISMATCH", size)
        records = set(self.sink_held[n].values())
        assert len(records) == len(ids), "a record came twice in one batch"
        assert not records & self.written, "a record was written twice"
        self.written |= records
        self.offsets[n], self.sink_held[n] = size, {}

    async def sink_hand_back(self) -> None:
        n = self.some_shard()
        ids = list(self.sink_held[n])
        back = await self.crawl.frontiers[n].hand_back(f"{FETCH_STREAM}:out", ids)
        assert back == len(ids)
        self.sink_held[n] = {}

    # -- the operator

    async def pause(self) -> None:
        paused = self.random.choice(("1", "", "", ""))
        for frontier in self.crawl:
            await frontier.control(paused=paused)
            if self.random.random() < 0.1:
                return  # whoever did it died before the next shard

    async def some_letters(self, n: int) -> list[tuple[str, str, str, bytes]]:
        """Return some dead letters of a shard as they are to be sent again."""
        letters = []
        for entry_id, fields in await self.labs[n].client.xrange(self.labs[n].keys.dead):
            host, level = fields[b"host"].decode(), fields[b"level"].decode()
            task = decode_task(host, level, fields[b"task"])
            if self.random.random() < 0.5:
                afresh = {name: getattr(task, name) for name in task.__struct_fields__} | {"attempt": 1, "crashes": 0}
                task = CrawlTask(**afresh)
            if self.random.random() < 0.6:
                letters.append((entry_id.decode(), host, level, encode_task(task)))
        return letters[:250]

    async def replay(self) -> None:
        n = self.some_shard()
        letters = await self.some_letters(n)
        words = await self.crawl.frontiers[n].replay(letters)
        assert words == ["ASKED" if b',"robots",' in task else "QUEUED" for *_, task in letters]
        assert await self.crawl.frontiers[n].replay(letters) == ["GONE"] * len(letters)

    async def forget(self) -> None:
        n = self.some_shard()
        ids = [letter[0] for letter in await self.some_letters(n)][:3]
        assert await self.crawl.frontiers[n].forget(ids) == len(ids)
        assert await self.crawl.frontiers[n].forget(ids) == 0

    async def purge(self) -> None:
        host, level = f"http://{self.random.choice(self.hosts)}", self.random.choice("0122223")
        frontier = self.crawl.of(host)
        key = frontier.keys.queue(host, level)
        tasks: list[bytes] = await self.labs[self.crawl.index_of(host)].client.lrange(key, 0, -1)
        count = self.random.randrange(1, 12)
        taken = tasks[:count] if level != "0" else []
        which = None if self.random.random() < 0.3 else [task for task in taken if self.random.random() < 0.5]
        expected = len(taken if which is None else which)
        answer = await frontier.purge(host, level, count, which)
        assert answer == (expected, len(taken) - expected)

    async def tell_host(self) -> None:
        host = f"http://{self.random.choice(self.hosts)}"
        name, values = self.random.choice(
            (
                ("cap", (1, 2, 3, "")),
                ("delay", (0, 300, "")),
                ("blocked", (1, "", "")),
                ("blocked", (1, "", "")),
                ("chance", (1,)),
            )
        )
        for value in (self.random.choice(values),) * 2:
            assert await self.crawl.of(host).set_host(host, **{name: value}) == "OK"

    async def tune(self) -> None:
        before = await read_tuned(self.crawl)
        delay = Given(self.random.choice((0, 0, 0, 200)), "the operator")
        now, _ = await tune(self.crawl, self.values["name"], {"delay_ms": delay})
        assert now.given["delay_ms"].value == delay.value
        assert now.version - before.version == (before.given != now.given)
        # Whoever made the same version at the same time must see this one first.
        late = await self.crawl.first.tune(now.version, b"{}", ["delay_ms", "999999"])
        assert late == ("CONFLICT", now.version)

    async def budget(self) -> None:
        """Raise or lower `--max-pages`."""
        if self.pages_max is None or self.ceiling is None:
            return
        self.pages_max = self.random.randrange(5, 40)
        self.ceiling = max(self.ceiling, self.pages_max)
        if len(self.labs) == 1:
            await tune(self.crawl, self.values["name"], {"pages_max": Given(self.pages_max, "the operator")})

    async def deal(self) -> None:
        """One message between a shard and the first about the budget; it may come late, again or never."""
        if self.pages_max is None or len(self.labs) == 1:
            return
        n = self.some_shard()
        self.rows.append((n, await self.crawl.frontiers[n].allow(0, back=self.random.choice((0, 0, 0, 3)))))
        self.rows, self.grants = self.rows[-8:], self.grants[-8:]
        n, row = self.random.choice(self.rows)
        granted, _ = await self.crawl.first.grant(n, row, wanted=self.random.randrange(8), budget=self.pages_max)
        self.grants.append((n, granted))
        n, granted = self.random.choice(self.grants)
        await self.crawl.frontiers[n].allow(granted)

    async def feed(self) -> None:
        what: Any = self.random.choice(("begin", "sign", "done", "leave", "open", "close"))
        for _ in range(2):
            left, _ = await self.crawl.first.feed(self.random.choice(FEEDERS), what, lease_ms=20_000)
            closed = await self.crawl.client.hget(self.crawl.first.keys.state, "closed")
            assert (left == 0) == (closed is not None)

    async def begin_anew(self) -> None:
        if self.random.random() < 0.3:  # seldom: faults need a history
            await self.renew()

    async def renew(self) -> None:
        """The crawl is deleted and made again; workers of the one before live on and act."""
        stale = list(self.crawl)
        _, held = self.pick()
        if self.random.random() < 0.5:
            # Whoever deleted it died after the first step.
            await self.crawl.client.hdel(self.crawl.first.keys.state, "epoch")
            with pytest.raises(ConfigError, match="is being deleted"):
                await _open(self.crawl.client, self.values)
        await delete_crawl(self.crawl.client, self.values["name"])
        for lab in self.labs:
            assert await lab.snapshot() == {}
        crawl = await _open(self.crawl.client, self.values)
        for frontier in stale:
            await self._act_on(frontier, held)
        self._begin(crawl)

    async def _act_on(self, stale: Frontier, held: Held | None) -> None:
        host = f"http://{self.hosts[0]}"
        acts = [
            stale.offer(links(f"{host}/stale")),
            stale.dispatch(5),
            stale.beat([Beat("w1", FETCH_STREAM, 5, "{}", [])], lease_ms=1000),
            stale.set_host(host, cap=9),
            stale.allow(99),
            stale.control(paused=1),
            stale.replay([("1-1", host, "2", b'[0,0,"page","/",0]')]),
        ]
        if held is not None:
            acts.append(stale.commit("w1", [self.labs[0].commit_of(held, Outcome.DEAD).pack()], 5))
        for act in acts:
            with pytest.raises(CrawlGone):
                await act

    # -- the end

    async def drain(self) -> None:
        """All comes back to life and works to the end, and the end is said."""
        await self.crawl.control(paused="", closed="1")
        await self.crawl.first.control(open="")
        for host in self.hosts:
            await self.crawl.of(f"http://{host}").set_host(f"http://{host}", blocked="")
        for n in range(len(self.labs)):
            await self.open_sink(n)
        budget = BudgetLoop(self.crawl, pages_max=lambda: self.pages_max, log=self.trace.append)
        word = "RUNNING"
        for _ in range(DRAIN_ROUNDS_MAX):
            word = word_of([await frontier.finish() for frontier in self.crawl], self.pages_max)
            if word != "RUNNING":
                break
            if self.pages_max is not None and len(self.labs) > 1:
                await budget._deal(self.pages_max)
            await self.commit_all(
                {where: held for mine in self.held.values() for where, held in mine.items() if where in self.live}
            )
            self.held = {worker: {} for worker in WORKERS}
            await self.all_pass(2000)
            for n, frontier in enumerate(self.crawl):
                await frontier.give_up(after_ms=60_000, idle_ms=20_000, limit=100)
                await frontier.dispatch(100)
                await self.read_from(n, self.random.choice(WORKERS), 100)
                await self.write(n)
        for frontier in self.crawl:
            await assert_known_keys(frontier)
        states = await self.check()
        done = sum(state.get("totals", {}).get("page.done", 0) for state in states)
        assert word == "ENDED" or (word == "LIMIT" and self.pages_max is not None and done >= self.pages_max), word
        assert self.written == self.fetched
        for state in states:
            assert not state[FETCH_STREAM]["entries"]
            assert word == "LIMIT" or not [key for key in state if key.startswith("queue:")]


async def _open(client: Redis, values: dict[str, Any]) -> Shards:
    """Make a crawl, with live slots as if workers had beaten."""
    chosen = {field: value for field, value in values.items() if field not in ("name", "shards") and value is not None}
    given = {field: Given(value, "the test") for field, value in chosen.items()}
    crawl, is_new = await open_crawl(client, make_settings(**values), sinks=["out"], given=encode_given(given))
    assert is_new
    await crawl.control(slots=1000)
    return crawl


def rest_of(state: State) -> str:
    """Return what finish.lua must say of a shard whose accounts hold, from its structures alone."""
    fields, totals = state["state"], state.get("totals", {})
    if any(value["entries"] for key, value in state.items() if key.startswith("stream:")) or "giving_up" in state:
        return "RUNNING"
    blocked = state.get("blocked", {})
    free = sum(
        len(value)
        for key, value in state.items()
        if key.startswith("queue:") and key.removeprefix("queue:").rpartition(":")[0] not in blocked
    )
    if free or "delayed" in state:
        if fields.get("paused") == 1:
            return "PAUSED"
        is_spent = "pages_max" in fields and totals.get("page.done", 0) >= fields["pages_max"]
        return "LIMIT" if is_spent else "RUNNING"
    if fields.get("closed") == 1:
        return "ENDED"
    return "PAUSED" if fields.get("paused") == 1 else "RUNNING"
