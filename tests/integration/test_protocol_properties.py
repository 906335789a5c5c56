"""Whatever workers do, in whatever order: the accounts hold after every step, and the crawl comes to its end.

`Walk` plays several workers and a sink at random, with a plain model of who holds what beside them. It predicts each
answer that matters (DONE or LEASE_LOST, lost ids, how many come back), so the fence itself is under test, not only
the counts. A failure names its seed; the same seed walks the same way.
"""

from __future__ import annotations

import os
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamcrawl.rules.task import Kind, Outcome
from streamcrawl.store.frontier import Beat, Commit
from streamcrawl.store.keys import GROUP
from tests.integration.snapshot import FETCH_STREAM, Held, Lab, assert_accounts, fast, links

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

WORKERS: Final = ("w1", "w2", "w3")
DOWN: Final = "down.test"
HOSTS: Final = ("a.test", "b.test", "c.test:81", "d.test", "e.test", DOWN)
WEIGHTS: Final = {
    Kind.PAGE: {
        Outcome.DONE: 8,
        Outcome.RETRY: 3,
        Outcome.UNANSWERED: 1,
        Outcome.DEAD: 1,
        Outcome.DROPPED: 1,
        Outcome.REDIRECTED: 1,
    },
    Kind.ROBOTS: {Outcome.DONE: 20, Outcome.RETRY: 4, Outcome.UNANSWERED: 4, Outcome.DEAD: 1},
}
STEPS: Final = 150
SEEDS: Final = range(200 if os.environ.get("STREAMCRAWL_CHAOS") == "full" else 8)

STEP_NAMES: Final = [
    *["offer", "offer", "offer_fenced", "dispatch", "dispatch", "read", "read", "read", "start"],
    *["commit", "commit", "commit", "commit_again", "hand_back", "put_back", "reclaim", "beat"],
    *["let_pass", "let_pass", "give_up", "pause", "reconcile", "sink_open", "sink_commit"],
]
"""What a walk does next, drawn from here: what is written twice is done twice as often."""


class Walk:
    """One crawl, its workers and its sink, moved at random."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.random = random.Random(seed)
        self.held: dict[str, dict[str, Held]] = {worker: {} for worker in WORKERS}
        """What each worker believes to hold, by entry id."""
        self.live: set[str] = set()
        """Ids that are really pending; the rest of what workers believe was taken from them."""
        self.ended: list[Commit] = []
        self.fetched: set[str] = set()
        self.writer = self.offset = 0
        self.sink_held: list[str] = []
        self.trace: list[str] = []

    def some_urls(self) -> list[str]:
        return [
            f"http://{self.random.choice(HOSTS)}/{self.random.randrange(60)}" for _ in range(self.random.randrange(6))
        ]

    async def offer(self) -> None:
        await self.lab.frontier.offer(links(*self.some_urls()))

    async def offer_fenced(self) -> None:
        held = self.pick()
        if held is None:
            return
        word, _ = await self.lab.frontier.offer(links(*self.some_urls()), whose=held.id)
        assert word == ("OK" if held.id in self.live else "LEASE_LOST")

    async def dispatch(self) -> None:
        await self.lab.frontier.dispatch(self.random.randrange(1, 8))

    async def read(self) -> None:
        worker = self.random.choice(WORKERS)
        for held in await self.lab.read(worker, self.random.randrange(1, 5)):
            assert held.id not in self.live, f"{held.id} was delivered twice"
            self.held[worker][held.id] = held
            self.live.add(held.id)

    def pick(self) -> Held | None:
        mine = self.held[self.random.choice(WORKERS)]
        return mine[self.random.choice(sorted(mine))] if mine else None

    def commit_of(self, held: Held) -> Commit:
        is_page = held.task.kind is Kind.PAGE
        weights = WEIGHTS[held.task.kind]
        outcome = self.random.choices(list(weights), list(weights.values()))[0]
        if DOWN in held.host:
            outcome = Outcome.UNANSWERED
        is_found = outcome in (Outcome.DONE, Outcome.REDIRECTED) and is_page
        return self.lab.commit_of(
            held,
            outcome,
            is_fetched=self.random.random() < 0.8,
            since_end_ms=self.random.randrange(50),
            block_ms=self.random.choice((0, 0, 0, 500)),
            links=links(*self.some_urls()) if is_found else links(),
            items=("out", held.task.url) if outcome is Outcome.DONE and is_page else (),
        )

    async def commit(self) -> None:
        chosen = {held.id: held for held in filter(None, (self.pick() for _ in range(self.random.randrange(1, 5))))}
        await self.commit_all([self.commit_of(held) for held in chosen.values()])

    async def commit_again(self) -> None:
        """A reply was lost: the same commits once more."""
        if self.ended:
            committed = await self.lab.commit(*self.ended[-3:])
            assert set(committed.words) == {"LEASE_LOST"}

    async def commit_all(self, commits: list[Commit]) -> None:
        expected = ["DONE" if commit.entry_id in self.live else "LEASE_LOST" for commit in commits]
        committed = await self.lab.commit(*commits, limit=self.random.randrange(4))
        assert committed.words == expected
        for commit, word in zip(commits, committed.words, strict=True):
            if word == "DONE":
                self.ended.append(commit)
                if commit.items:
                    assert commit.items[1] not in self.fetched, "a page was recorded twice"
                    self.fetched.add(str(commit.items[1]))
            self.forget(commit.entry_id)

    def forget(self, *ids: str) -> None:
        self.live.difference_update(ids)
        for mine in self.held.values():
            for entry_id in ids:
                mine.pop(entry_id, None)

    async def start(self) -> None:
        held = self.pick()
        if held is not None:
            word, _ = await self.lab.frontier.start(held.id, held.host, wait_max_ms=50, margin_ms=0)
            assert (word == "LEASE_LOST") == (held.id not in self.live)

    async def hand_back(self) -> None:
        mine = self.held[self.random.choice(WORKERS)]
        ids = [entry_id for entry_id in sorted(mine) if self.random.random() < 0.4]
        is_stale = self.random.random() < 0.2
        back = await self.lab.frontier.hand_back(FETCH_STREAM, ids, is_robots_stale=is_stale)
        assert back == len(self.live.intersection(ids))
        assert await self.lab.frontier.hand_back(FETCH_STREAM, ids) == 0
        self.forget(*ids)

    async def put_back(self) -> None:
        worker = self.random.choice(WORKERS)
        expected = len(self.live.intersection(self.held[worker]))
        back = await self.lab.frontier.put_back(FETCH_STREAM, worker, is_crash=self.random.random() < 0.6)
        assert back == expected
        self.forget(*self.held[worker])

    async def reclaim(self) -> None:
        """A worker was cut off for a lease; it goes on believing that it holds what it held."""
        worker = self.random.choice(WORKERS)
        cut_off = [held for held in self.held[worker].values() if held.id in self.live and self.random.random() < 0.6]
        if cut_off:
            await self.lab.let_idle(cut_off, 60_000, consumer=worker)
        await self.lab.let_reclaim()
        word, back = await self.lab.frontier.reclaim(FETCH_STREAM, lease_ms=30_000)
        assert (word, back) == ("OK", len(cut_off))
        self.live.difference_update(held.id for held in cut_off)

    async def beat(self) -> None:
        beats = [Beat(worker, FETCH_STREAM, 20, "{}", sorted(mine)) for worker, mine in self.held.items()]
        lost, slots = await self.lab.frontier.beat(beats, lease_ms=30_000)
        assert slots == 20 * len(WORKERS)
        for beat, ids in zip(beats, lost, strict=True):
            assert ids == [entry_id for entry_id in beat.entry_ids if entry_id not in self.live]
            self.forget(*ids)

    async def let_pass(self) -> None:
        await self.lab.let_pass(self.random.choice((10, 100, 1000, 5000)))
        await self.lab.frontier.due(self.random.randrange(1, 10))

    async def give_up(self) -> None:
        await self.lab.frontier.give_up(after_ms=60_000, idle_ms=20_000, limit=self.random.randrange(1, 10))

    async def pause(self) -> None:
        await self.lab.frontier.control(paused=self.random.choice(("1", "", "", "")))

    async def reconcile(self) -> None:
        assert await self.lab.frontier.reconcile() == 0

    async def sink_open(self) -> None:
        word, self.writer, stored = await self.lab.frontier.sink_open("out", f"sink{self.writer}", lease_ms=30_000)
        assert (word, stored) == ("OK", self.offset)
        self.sink_held = []

    async def sink_commit(self) -> None:
        if not self.writer:
            return
        stream = self.lab.keys.sink_stream("out")
        rows: Any = await self.lab.client.xreadgroup(GROUP, f"sink{self.writer - 1}", {stream: ">"}, count=5)
        self.sink_held += [entry_id.decode() for entry_id, _ in (rows[0][1] if rows else ())]
        size = self.offset + 10 * len(self.sink_held)
        call = partial(
            self.lab.frontier.sink_commit,
            "out",
            writer=self.writer,
            expected=self.offset,
            offset=size,
            entry_ids=self.sink_held,
        )
        assert await call() == ("DONE", None)
        if self.sink_held:
            assert await call() == ("OFFSET_MISMATCH", size)
        self.offset, self.sink_held = size, []

    async def step(self) -> None:
        name = self.random.choice(STEP_NAMES)
        self.trace.append(name)
        await getattr(self, name)()
        await self.lab.check()

    async def drain(self) -> None:
        """All comes back to life and works to the end."""
        await self.lab.frontier.control(paused="", closed="1")
        await self.sink_open()
        for _ in range(2000):
            word, *_ = await self.lab.frontier.finish()
            if word != "RUNNING":
                break
            for worker in WORKERS:
                live = [held for held in self.held[worker].values() if held.id in self.live]
                await self.commit_all([self.commit_of(held) for held in live])
                self.held[worker].clear()
            await self.lab.let_pass(2000)
            await self.lab.frontier.due(100)
            await self.lab.frontier.give_up(after_ms=60_000, idle_ms=20_000, limit=100)
            await self.lab.frontier.dispatch(100)
            await self.read()
            await self.sink_commit()
        assert word == "ENDED"


@pytest.mark.parametrize("seed", SEEDS)
async def test_accounts_hold_on_any_walk_and_the_crawl_ends(open_lab: OpenLab, seed: int) -> None:
    lab = await open_lab(
        sinks=["out"],
        obey_robots=seed % 3 != 0,
        host_concurrency=1 + seed % 2,
        delay_ms=(0, 200)[seed // 2 % 2],
        crashes_max=2,
        pages_per_host_max=(None, 12)[seed // 4 % 2],
    )
    walk = Walk(lab, seed)
    try:
        for _ in range(STEPS):
            await walk.step()
        await walk.drain()
    except BaseException as error:
        error.add_note(f"seed {seed}: {' '.join(walk.trace)}")
        raise
    state = await lab.check()
    assert not state[FETCH_STREAM]["entries"]
    assert not [key for key in state if key.startswith("queue:")]
    assert state["totals"].get("out.done", 0) == len(walk.fetched) == state["totals"].get("page.done", 0)


# -- elements of a commit that no worker of ours would send

JUNK: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=30),
    st.sampled_from(
        ["", "0-0", "99999999999999999999-1", "18446744073709551615-18446744073709551615", "page", "robots", "0"]
    ),
    st.lists(st.integers() | st.text(max_size=5), max_size=12).map(lambda values: [str(value) for value in values]),
    st.dictionaries(st.text(max_size=3) | st.integers(-2, 12), st.text(max_size=3), max_size=4),
)
"""Whatever MessagePack can carry, and texts that pass a careless check."""


@given(
    outcome=st.sampled_from(Outcome),
    path=st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)),
    junk=JUNK,
    raw=st.none()
    | st.binary(max_size=40)
    | st.sampled_from([b"\x91" * 5000, b"\xdf\xff\xff\xff\xff", b"\xc4\x01a", b""]),
)
@settings(
    max_examples=150,
    deadline=None,
    # The client is shared by the examples on purpose; each opens a crawl of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_a_broken_commit_changes_nothing_and_harms_no_neighbour(
    store_client: Redis, outcome: Outcome, path: tuple[int, int | None], junk: Any, raw: bytes | None
) -> None:
    lab = await Lab.opened(store_client, sinks=["out"], **fast(f"fuzz-{uuid4().hex[:12]}"))
    await lab.offer(*(f"http://{host}.test/" for host in ("before", "broken", "after")))
    before, broken, after = sorted(
        await lab.take(), key=lambda held: ["before", "broken", "after"].index(held.host[7:-5])
    )
    commit = lab.commit_of(broken, outcome, links=links("http://new.test/"), items=("out", "{}"))
    element: Any = msgspec.msgpack.decode(commit.pack())
    first, second = path
    if second is None or not isinstance(element[first], list):
        element[first] = junk
    elif element[first]:
        element[first][second % len(element[first])] = junk
    packed = msgspec.msgpack.encode(element) if raw is None else raw

    good = [lab.commit_of(held).pack() for held in (before, after)]
    words = (await lab.frontier.commit("w1", [good[0], packed, good[1]], 0)).words

    assert (words[0], words[2]) == ("DONE", "DONE")
    assert words[1] in ("DONE", "LEASE_LOST", "INVALID")
    is_pending = bool(await lab.client.xpending_range(lab.keys.fetch_stream, GROUP, broken.id, broken.id, 1))
    assert is_pending == (words[1] != "DONE")
    await assert_accounts(lab.frontier)
    if words[1] == "INVALID":
        # It must be able to end as a dead letter all the same.
        assert await lab.end(broken, Outcome.DEAD, detail=("2", broken.stored, "codec", "broken", "")) == "DONE"
        assert not await lab.client.exists(lab.keys.host("http://new.test"))
    await lab.check()
