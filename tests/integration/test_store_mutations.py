"""Do the tests of the store notice when the protocol is broken? Each line that carries a guarantee is broken once.

A mutation changes a copy of the .lua text in memory; a small fixed set of the other modules' tests then runs, and one
of them must fail. With the text as it is all of them pass.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest

from streamcrawl.errors import StreamcrawlError
from streamcrawl.rules.task import Outcome
from streamcrawl.store import scripts
from tests.integration import (
    test_store_contracts,
    test_store_dispatch,
    test_store_hosts,
    test_store_leases,
    test_store_seen,
    test_store_sinks,
)
from tests.integration.snapshot import Lab, fast
from tests.integration.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

MUTATIONS: Final[dict[str, tuple[str, str, str]]] = {
    "the fence": (
        "_stream",
        "if call('XACK', STREAM, 'workers', id) ~= 1 then return false end",
        "call('XACK', STREAM, 'workers', id)",
    ),
    "the entry stays": ("_stream", "  call('XDEL', STREAM, id)\n  local h", "  local h"),
    "in_flight in leave": ("_stream", "h.in_flight = h.in_flight - 1", "h.in_flight = h.in_flight"),
    "in_flight in enter": ("_stream", "h.in_flight = h.in_flight + 1", "h.in_flight = h.in_flight"),
    "alone": ("_stream", "if crashes < 2 or alone then", "if true then"),
    "the dedup": ("_seen", "fp) == 0 then return false end", "fp) == 2 then return false end"),
    "the split": ("_seen", "if #move > 0 then", "if false then"),
    "the cap": ("_dispatch", "math.min(cap - h.in_flight, room - moved)", "room - moved"),
    "the cap in the schedule": ("_hosts", " or h.in_flight >= cap_of(h)", ""),
    "the mark": ("_dispatch", "math.min(limit, 2 * (tonumber(S.slots) or 0) - waiting_in(STREAM))", "limit"),
    "the budget": ("_dispatch", "- (tonumber(done[2]) or 0)", ""),
    "the gate": ("_hosts", "if h.robots == 'asked' then return 'asked' end", ""),
    "the delay": ("commit", "fetch_ended(h, now - math.min(c[6], 60000))", ""),
    "the epoch": ("_state", "if S.epoch ~= ARGV[1] then return {'GONE'} end", ""),
    "the host's budget in the schedule": ("_hosts", "h.pages + h.in_flight >= PAGES_MOST", "h.pages >= PAGES_MOST"),
    "the host's budget": ("_dispatch", "PAGES_MOST - h.pages - h.in_flight", "PAGES_MOST - h.pages"),
    "the first turn": ("_hosts", "elseif score > 0 then", "else"),
    "the frontier's bound": ("offer", "if whose ~= 'seeds' then stop_when_full() end", ""),
    "two stay": ("put_back", "is_cut and limit - 2 or #rows", "#rows"),
    "cut before": ("reclaim", "and not is_cut and not was_cut", "and not is_cut"),
    "a pending consumer stays": ("reclaim", "#call('XPENDING', stream, 'workers', '-', '+', 1, row[2]) == 0", "true"),
    "the clock's jump": ("_state", "if step > 0 and step <= 5000 then", "if step > 0 then"),
    "the clock's way back": ("_state", "if step > 0 and step <= 5000 then", "if step <= 5000 then"),
    "the hold": ("reclaim", "if wall < held_until and held_until - wall <= lease then", "if false then"),
    "the lease": ("reclaim", "'IDLE', lease,", "'IDLE', 0,"),
    "the offset": ("sink_commit", "(tonumber(have[2]) or 0) ~= tonumber(ARGV[4])", "false"),
    "the writer": ("sink_commit", "if have[1] ~= ARGV[3] then return {'REPLACED'} end", ""),
    "all or nothing": ("sink_commit", "if #lost > 0 then return", "if false then return"),
    "the low mark": ("sink_commit", "* 0.2)", "* 0.9)"),
    "the host of an entry": ("commit", "entry[2][2] == c[2] and", ""),
    "the length of an id": ("_state", "and #ms <= 19 and #seq <= 19", ""),
    "the failing host's time": ("give_up", "elseif h.failed_at - since >= most then", "elseif true then"),
    "all balanced": ("finish", "total(line .. '.created') ~= ", "false and 0 ~= "),
}


CHECK_S: Final = 15
"""Longer than any check takes on a busy machine."""


async def broken_commits(open_lab: OpenLab) -> None:
    """Two elements that an XACK or an in_flight must not be reached with."""
    lab = await open_lab()
    await lab.offer("http://a.test/", "http://b.test/")
    one, two = await lab.take()
    commit = lab.commit_of(one)
    for entry_id, host in (("99999999999999999999-1", one.host), (one.id, two.host)):
        commit.entry_id, commit.host = entry_id, host
        assert (await lab.commit(commit)).words == ["INVALID"]
        await lab.check()


async def a_walk(open_lab: OpenLab) -> None:
    client = (await open_lab()).client
    walk = await Walk.opened(client, f"m{uuid4().hex[:12]}", 2, shards=1)
    for _ in range(100):
        await walk.step()
    await walk.drain()


def _case(script: str, word: str) -> Callable[[OpenLab], Awaitable[None]]:
    return test_store_contracts.CASES[script, word]


CHECKS: Final[tuple[Callable[[Any], Awaitable[None]], ...]] = (
    _case("commit", "DONE"),
    _case("commit", "LEASE_LOST"),
    _case("reclaim", "HOLD"),
    _case("finish", "UNBALANCED"),
    broken_commits,
    lambda lab: test_store_contracts.test_a_worker_of_another_epoch_writes_nothing(lab, "dispatch"),
    lambda lab: test_store_leases.test_a_late_commit_writes_nothing(lab, test_store_leases._put_back, Outcome.DONE),
    test_store_leases.test_renewed_rows_in_front_do_not_starve_stalled_ones_behind,
    test_store_leases.test_a_task_that_kills_its_worker_dies_alone_and_its_neighbours_live,
    test_store_leases.test_names_of_dead_workers_do_not_pile_up,
    test_store_leases.test_the_name_of_a_dead_worker_stays_until_all_it_held_is_taken_back,
    lambda lab: test_store_leases.test_the_last_of_many_taken_back_in_steps_is_not_alone(lab, "put_back"),
    lambda lab: test_store_leases.test_the_last_of_many_taken_back_in_steps_is_not_alone(lab, "reclaim"),
    lambda lab: test_store_dispatch.test_a_host_has_no_more_in_flight_than_its_cap(lab, 1),
    test_store_dispatch.test_twice_the_live_slots_wait_and_no_more,
    lambda lab: test_store_dispatch.test_pages_max_is_exact_whatever_else_ends(lab, 4),
    test_store_dispatch.test_one_robots_task_opens_the_gate_for_all_pages,
    lambda lab: test_store_dispatch.test_a_clock_that_jumps_lets_no_delay_pass(lab, 3_600_000),
    test_store_dispatch.test_crawl_time_goes_on_and_never_back,
    test_store_dispatch.test_hosts_that_wait_for_their_budget_do_not_hide_the_others,
    lambda lab: test_store_dispatch.test_pages_per_host_max_is_exact_and_the_rest_is_dropped(lab, 4),
    test_store_dispatch.test_new_hosts_do_not_push_in_front_of_one_that_is_due,
    test_store_dispatch.test_links_stop_the_crawl_above_the_frontiers_bound,
    test_store_dispatch.test_the_delay_counts_from_the_end_of_the_fetch,
    lambda lab: test_store_hosts.test_time_in_which_nobody_asked_says_nothing_about_a_host(lab, "paused"),
    test_store_seen.test_the_same_url_twice_in_one_call_is_new_once,
    test_store_seen.test_fingerprints_of_any_sign_and_length_are_found_again,
    test_store_sinks.test_a_batch_from_a_wrong_offset_is_not_written,
    test_store_sinks.test_a_batch_with_one_lost_record_is_not_written_at_all,
    test_store_sinks.test_a_writer_silent_for_a_lease_is_replaced_and_notices,
    test_store_sinks.test_dispatch_stops_above_the_high_mark_until_under_the_low_one,
    a_walk,
)


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], None]]:
    """Replaces one piece of one .lua text until the test ends."""
    read = scripts._read

    def forget() -> None:
        scripts.source.cache_clear()
        scripts.digest.cache_clear()

    def replace(name: str, old: str, new: str) -> None:
        assert read(name).count(old) == 1, f"{name}.lua changed: say anew what this mutation breaks"
        monkeypatch.setattr(
            scripts, "_read", lambda wanted: read(wanted).replace(old, new) if wanted == name else read(wanted)
        )
        forget()

    yield replace
    monkeypatch.undo()
    forget()


async def first_failure(client: Redis) -> BaseException | None:
    """Run the checks until one fails; return what it raised."""

    async def open_lab(**values: Any) -> Lab:
        sinks = values.pop("sinks", ())
        return await Lab.opened(client, sinks=sinks, **fast(f"m{uuid4().hex[:12]}", **values))

    for check in CHECKS:
        try:
            # A crawl that never comes to its end is a way of failing, too.
            async with asyncio.timeout(CHECK_S):
                await check(open_lab)
        except (AssertionError, StreamcrawlError, ValueError, KeyError, TimeoutError, pytest.fail.Exception) as error:
            return error
    return None


async def test_the_checks_pass_on_the_text_as_it_is(redis_client: Redis) -> None:
    failure = await first_failure(redis_client)
    if failure is not None:
        raise failure


@pytest.mark.parametrize("broken", MUTATIONS)
async def test_a_broken_protocol_is_noticed(
    redis_client: Redis, mutate: Callable[[str, str, str], None], broken: str
) -> None:
    mutate(*MUTATIONS[broken])
    assert await first_failure(redis_client) is not None
