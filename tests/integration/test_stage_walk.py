"""Items moved at random through two stages, with a plain model beside: each is in one place, and comes out once.

The model knows who holds which item, so it predicts the word of every commit; after each step the accounts are compared
with the structures.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from streamcrawl.rules.task import Outcome
from streamcrawl.store.frontier import Beat, StageCommit
from streamcrawl.store.keys import GROUP

if TYPE_CHECKING:
    from tests.integration.conftest import OpenLab
    from tests.integration.snapshot import Lab

STEPS: Final = 80
NEXT: Final = {"first": "second", "second": "out"}
WORKERS: Final = ("t1", "t2")
FLOW: Final = {"first": {"from": ["page"]}, "second": {"from": ["first"]}, "out": {"from": ["second"]}}


class Walk:
    """One crawl and what is known of it."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.dice = random.Random(seed)
        self.made = 0
        self.held: dict[tuple[str, str], tuple[str, int]] = {}
        """(stage, entry) -> worker and item; of those that are still theirs."""
        self.gone: list[tuple[str, str]] = []
        """Entries that were ended or taken back."""
        self.sent = Counter[int]()
        """Copies of items that replays sent into a stage."""
        self.replays = 0
        self.lost = Counter[int]()
        """Items that were dropped or purged."""

    async def emit(self) -> None:
        """A page gives some items."""
        count = self.dice.randint(1, 4)
        await self.lab.offer(f"http://h{self.made}.test/")
        [page] = await self.lab.take()
        flat: list[str] = []
        for n in range(self.made, self.made + count):
            flat += ("first", f'["any",{n},0]', "log:page", f'0["int",{n},0]')
        assert await self.lab.end(page, items=flat, url=f"{page.host}/") == "DONE"
        self.made += count

    async def read(self) -> None:
        worker, stage = self.dice.choice(WORKERS), self.dice.choice(list(NEXT))
        stream = self.lab.keys.stage_stream(stage)
        answer: Any = await self.lab.client.xreadgroup(GROUP, worker, {stream: ">"}, count=self.dice.randint(1, 5))
        for entry_id, fields in answer[0][1] if answer else ():
            item = msgspec.json.decode(fields[b"item"])[1]
            self.held[stage, entry_id.decode()] = worker, item

    async def commit(self) -> None:
        """End some of a stage, among them some that are nobody's any more."""
        stage = self.dice.choice(list(NEXT))
        mine = [place for place in self.held if place[0] == stage]
        chosen = self.dice.sample(mine, min(len(mine), 3))
        old = [place for place in self.gone if place[0] == stage]
        chosen += self.dice.sample(old, min(len(old), 2))
        self.dice.shuffle(chosen)
        commits, words = [], []
        for place in chosen:
            outcome = self.dice.choice([Outcome.DONE] * 4 + [Outcome.RETRY, Outcome.DEAD, Outcome.DROPPED])
            item = self.held[place][1] if place in self.held else -1
            record = f'["any",{item},0]' if stage == "first" else str(item)
            details: dict[Outcome, tuple[Any, ...]] = {
                Outcome.RETRY: (self.dice.randint(0, 500),), Outcome.DEAD: ("handler", "x"), Outcome.DROPPED: ("no",),
            }  # fmt: skip
            items: tuple[str, ...] = (NEXT[stage], record) if outcome is Outcome.DONE else ()
            if items and stage == "first":
                items += ("log:first", f"0{record}")
            commits.append(StageCommit(place[1], outcome, details.get(outcome, ()), items=items))
            words.append("DONE" if place in self.held else "LEASE_LOST")
            if place in self.held and outcome is Outcome.DROPPED:
                self.lost[item] += 1
            self.end(place)
        answer, _ = await self.lab.frontier.stage_commit("t1", stage, [one.pack() for one in commits], 0)
        assert answer == words

    def end(self, place: tuple[str, str]) -> None:
        if self.held.pop(place, None) is not None:
            self.gone.append(place)

    async def die(self) -> None:
        """A worker dies with all that it holds of a stage."""
        worker, stage = self.dice.choice(WORKERS), self.dice.choice(list(NEXT))
        own = [place for place, (who, _) in self.held.items() if who == worker and place[0] == stage]
        back = await self.lab.frontier.put_back(f"stream:{stage}", worker, is_crash=self.dice.random() < 0.5)
        assert back == len(own)
        for place in own:
            self.end(place)

    async def hand_back(self) -> None:
        for place in self.dice.sample(list(self.held), min(len(self.held), 2)):
            assert await self.lab.frontier.hand_back(f"stream:{place[0]}", [place[1]]) == 1
            self.end(place)

    async def beat(self) -> None:
        """Renew what is held; of what is gone the beat says so."""
        for stage in NEXT:
            mine = [entry for where, entry in self.held if where == stage]
            old = [entry for where, entry in self.gone if where == stage][:5]
            [lost], _ = await self.lab.frontier.beat(
                [Beat("t1", f"stream:{stage}", 0, "{}", mine + old)], lease_ms=30_000
            )
            assert set(old) <= set(lost)
            assert not set(mine) & set(lost)
        await self.lab.frontier.control(slots=1000)
        # The beat took every row over, as the beat of one worker does that holds them all.
        self.held = {place: ("t1", item) for place, (_, item) in self.held.items()}

    async def wait(self) -> None:
        await self.lab.let_pass(300)
        await self.lab.frontier.due()

    async def revive(self) -> None:
        """Replay or purge some dead letters."""
        rows = await self.lab.client.xrange(self.lab.keys.dead, count=2)
        if self.dice.random() < 0.3:
            for _, fields in rows:
                self.lost[msgspec.json.decode(fields[b"task"])[1]] += 1
            assert await self.lab.frontier.forget([entry_id.decode() for entry_id, _ in rows]) == len(rows)
            return
        letters = [(entry_id.decode(), "", "", self.dice.choice([b"", b"keep"])) for entry_id, _ in rows]
        assert await self.lab.frontier.replay(letters) == ["QUEUED"] * len(rows)
        assert await self.lab.frontier.replay(letters) == ["GONE"] * len(rows)

    async def keep_less(self) -> None:
        """Change how much the logs may have, or let them give way."""
        await self.lab.frontier.control(log_bytes=self.dice.choice([300, 3000, 100_000]))
        await self.lab.frontier.trim_logs(is_full=self.dice.random() < 0.2)

    async def replay(self) -> None:
        """Begin a replay, or go on with the one there is, for a step; end it now and then."""
        log, target = self.dice.choice([("page", "first"), ("page", "second"), ("first", "second")])
        plan: dict[str, Any] = {"log": log, "target": target, "first": "-", "last": "+"}
        if self.dice.random() < 0.5:
            plan["is_missing"] = True
        self.replays += 1
        word, other = await self.lab.frontier.plan_replay(f"r{self.replays}", msgspec.json.encode(plan))
        before = await self.lab.client.xrange(self.lab.keys.log(log))
        chosen = f"r{self.replays}" if word == "OK" else other
        word, copied = await self.lab.frontier.copy_replay(chosen)
        assert word in ("ENDED", "FULL")
        if word == "FULL" and self.dice.random() < 0.5:
            await self.lab.frontier.cancel_replay(chosen)
        stream = self.lab.keys.stage_stream(target)
        added = await self.lab.client.xrevrange(stream, count=copied) if copied else []
        sent = [msgspec.json.decode(fields[b"item"])[1] for _, fields in reversed(added)]
        kept = [msgspec.json.decode(fields[b"item"])[1] for _, fields in before]
        # In their order, each once: a part of what lay there.
        places = iter(kept)
        assert all(one in places for one in sent)
        self.sent.update(sent)

    async def drain(self) -> None:
        """Do all that is left."""
        for stage in NEXT:
            while True:
                await self.lab.let_pass(1000)
                await self.lab.frontier.due()
                await self.revive()
                for worker in WORKERS:
                    await self.lab.frontier.put_back(f"stream:{stage}", worker, is_crash=False)
                stream = self.lab.keys.stage_stream(stage)
                answer: Any = await self.lab.client.xreadgroup(GROUP, "t1", {stream: ">"}, count=50)
                if not answer:
                    break
                commits = []
                for entry_id, fields in answer[0][1]:
                    item = msgspec.json.decode(fields[b"item"])[1]
                    record = f'["any",{item},0]' if stage == "first" else str(item)
                    commits.append(StageCommit(entry_id.decode(), Outcome.DONE, items=(NEXT[stage], record)).pack())
                words, _ = await self.lab.frontier.stage_commit("t1", stage, commits, 0)
                assert set(words) == {"DONE"}


@pytest.mark.parametrize("seed", [1, 2])
async def test_items_are_conserved_whatever_happens_to_their_workers(open_lab: OpenLab, seed: int) -> None:
    lab = await open_lab(sinks=["out"], crashes_max=50)
    await lab.frontier.flow(["first", "second"], msgspec.json.encode(FLOW), {"page": 3_600_000, "first": 3_600_000})
    walk = Walk(lab, seed)
    steps = [walk.emit, walk.read, walk.read, walk.commit, walk.commit, walk.die, walk.hand_back, walk.beat, walk.wait]
    steps += [walk.revive, walk.replay, walk.keep_less]
    for _ in range(STEPS):
        await walk.dice.choice(steps)()
        await lab.check()
    await walk.drain()
    state = await lab.check()
    out = Counter(int(entry["item"]) for entry in state["stream:fetch:out"]["entries"])
    made = Counter(range(walk.made)) + walk.sent
    assert out + walk.lost == made, "each item once, and once for each replay: out, or dropped, or purged"
    totals = state["totals"]
    assert sum(walk.sent.values()) == sum(totals.get(f"{stage}.copied", 0) for stage in NEXT) > 0
