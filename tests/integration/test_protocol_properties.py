"""Whatever workers, sinks and operators do, in whatever order: the accounts hold after every step, and the end comes.

walk.py plays them at random beside a plain model. Here Hypothesis chooses the steps, and shortens what fails; long
walks by a seed come on top, because many faults need a history. `make chaos` walks much further.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from streamcrawl.rules.task import Outcome
from streamcrawl.store.connection import connect
from streamcrawl.store.keys import GROUP
from tests.integration.snapshot import Lab, assert_accounts, fast, links
from tests.integration.walk import STEPS, Walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from tests.redis_server import RedisServer

IS_FULL: Final = os.environ.get("STREAMCRAWL_CHAOS") == "full"
SEEDS: Final = range(200 if IS_FULL else 4)
STEPS_OF_A_WALK: Final = 150
EXAMPLES: Final = 300 if IS_FULL else 10
STEPS_OF_AN_EXAMPLE: Final = 60 if IS_FULL else 30
STEPS_S: Final = 60
"""Longer than any step takes on a busy machine."""


class Protocol(RuleBasedStateMachine):
    """A walk whose steps Hypothesis chooses; each example ends with all of its work done."""

    url = ""
    shards = 1

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.client = connect(self.url)
        self.walk: Walk | None = None
        self.is_broken = False

    @initialize(seed=st.integers(0, 15))
    def open(self, seed: int) -> None:
        name = f"p{uuid4().hex[:12]}"
        self.walk = self.runner.run(Walk.opened(self.client, name, seed, shards=self.shards))
        for first in ("offer", "offer", "dispatch", "read"):  # so that the first steps have something to act on
            self.act(first, seed)

    def act(self, name: str, seed: int) -> None:
        assert self.walk is not None
        self.walk.random.seed(seed)
        try:
            self.runner.run(asyncio.wait_for(self.walk.step(name), STEPS_S))
        except BaseException:
            self.is_broken = True
            raise

    def teardown(self) -> None:
        try:
            if self.walk is not None and not self.is_broken:
                self.runner.run(asyncio.wait_for(self.walk.drain(), STEPS_S))
        finally:
            self.runner.run(self.client.aclose())
            self.runner.close()


def _rule(name: str) -> Callable[..., None]:
    def act(self: Protocol, seed: int) -> None:
        self.act(name, seed)

    act.__name__ = name
    return rule(seed=st.integers(0, 9999))(act)


def machine(url: str, shards: int) -> type[Protocol]:
    """Return the machine with a rule for each step, as often as STEPS has it."""
    rules = {f"{name}_{n}": _rule(name) for n, name in enumerate(STEPS)}
    return type("ProtocolOfShards", (Protocol,), {"url": url, "shards": shards, **rules})


@pytest.mark.chaos
@pytest.mark.timeout(3600 if IS_FULL else 600)  # to shorten what failed takes its time
@pytest.mark.parametrize("shards", [1, 4])
def test_accounts_hold_whatever_is_done_in_whatever_order(redis_server: RedisServer, shards: int) -> None:
    run_state_machine_as_test(
        machine(redis_server.url, shards),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS_OF_AN_EXAMPLE,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.chaos
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("seed", SEEDS)
async def test_accounts_hold_on_long_walks_and_the_crawl_ends(
    redis_client: Redis, crawl_name: str, seed: int, shards: int
) -> None:
    # Each half of the kinds of a crawl, whatever the number of seeds.
    walk = await Walk.opened(redis_client, crawl_name, seed * 5 + shards, shards=shards)
    try:
        for _ in range(STEPS_OF_A_WALK):
            await walk.step()
        await walk.drain()
    except BaseException as error:
        error.add_note(f"seed {seed}, shards {shards}: {' '.join(walk.trace)}")
        raise


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
