"""Do the tests of the store notice when the protocol is broken? Each line that carries a guarantee is broken once.

A mutation names a .lua file, a piece of its text that occurs there once, and what stands in its place. The copy lives
in memory: scripts are named by the hash of their content, so the server takes the broken one for another script, and
nothing on disk changes. Then that one of CHECKS runs which is to notice it, a test of another module, and has to
fail; with the text as it is all of them pass. Six of the mutations are left to a random walk as well. A piece that is
no longer found says that the script was rewritten: name anew what carries the guarantee.
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
    test_alike,
    test_pace,
    test_store_contracts,
    test_store_dispatch,
    test_store_domains,
    test_store_hosts,
    test_store_leases,
    test_store_seen,
    test_store_sinks,
)
from tests.integration.snapshot import Lab, fast, links
from tests.integration.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

MUTATIONS: Final[dict[str, tuple[str, str, str, str]]] = {
    "the fence": (
        "_stream",
        "if call('XACK', STREAM, 'workers', id) ~= 1 then return false end",
        "call('XACK', STREAM, 'workers', id)",
        "a late commit",
    ),
    "the entry stays": ("_stream", "else call('XDEL', STREAM, id) end", "end", "hand_back OK"),
    "in_flight in leave": ("_stream", "  fly(key, h, -1)\n", "", "cap"),
    "in_flight in enter": ("_stream", "  fly(key, h, 1)\n", "", "cap"),
    "alone": ("_stream", "if crashes < 2 or alone then", "if true then", "a killer"),
    "the dedup": ("_seen", "fp) == 0 then return false end", "fp) == 2 then return false end", "twice in one call"),
    "the split": ("_seen", "if #move > 0 then", "if false then", "fingerprints"),
    "the cap": ("_dispatch", "math.min(room_of(h), room - moved, most)", "math.min(room - moved, most)", "cap"),
    "the cap in the schedule": ("_hosts", " or own_room_of(h) <= 0", "", "cap"),
    "the mark": ("_dispatch", "math.min(limit, 2 * (tonumber(S.slots) or 0) - waiting_in(STREAM))", "limit", "waiting"),
    "the budget": ("_dispatch", "- (tonumber(done[2]) or 0)", "", "pages_max"),
    "the gate": ("_hosts", "if h.robots == 'asked' then return 'asked' end", "", "gate"),
    "the delay": ("commit", "if is_fetched then fetch_ended(h, ended_at) end", "", "delay"),
    "one probe": ("_hosts", "if p.failing ~= '' then return 1 end", "", "one probe"),
    "one probe of those handed out": (
        "start",
        "if (p.failing ~= '' and p.in_flight > 1) or (h.failing ~= '' and h.in_flight > 1) then",
        "if false then",
        "one probe of several",
    ),
    "one doubling for what was under way": ("_pace", " or began < h.throttled_at", "", "refused under way"),
    "the last page of a host": ("commit", " and h.queued <= 0 and h.in_flight <= 0", "", "refused by all"),
    "less with each answer": ("_pace", "if throttled > floor then", "if true then", "well again"),
    "alone it is as quick": ("_hosts", "times > 1 and others_wait(h) and times or 1", "times", "demoted alone"),
    "visited again": ("_alike", "if is_again and is_one_of_them then return end", "", "visited again and alike"),
    "demoted by and by": ("_alike", "h.alike >= ALIKE_MANY", "true", "strong evidence"),
    "the epoch": ("_now", "if S.epoch ~= ARGV[1] then return {'GONE'} end", "", "another epoch"),
    "the host's budget in the schedule": (
        "_hosts",
        "h.pages + h.in_flight >= PAGES_MOST",
        "h.pages >= PAGES_MOST",
        "hosts that wait",
    ),
    "the host's budget": (
        "_dispatch",
        "PAGES_MOST - h.pages - h.in_flight",
        "PAGES_MOST - h.pages",
        "pages_per_host_max",
    ),
    "the first turn": ("_hosts", "elseif score > 0 then", "elseif true then", "new hosts"),
    "the frontier's bound": ("offer", "if whose ~= 'seeds' then stop_when_full() end", "", "links above the bound"),
    "two stay": ("put_back", "is_cut and limit - 2 or #rows", "#rows", "put back in steps"),
    "cut before": ("reclaim", "and not is_cut and not was_cut", "and not is_cut", "reclaimed in steps"),
    "a pending consumer stays": (
        "reclaim",
        "#call('XPENDING', stream, 'workers', '-', '+', 1, row[2]) == 0",
        "true",
        "names of the dead",
    ),
    "the clock's jump": ("_now", "if step > 0 and step <= 5000 then", "if step > 0 then", "a clock that jumps"),
    "the clock's way back": ("_now", "if step > 0 and step <= 5000 then", "if step <= 5000 then", "crawl time"),
    "the hold": (
        "_lease",
        "return (wall < held_until and held_until - wall <= lease) and held_until - wall or 0",
        "return 0",
        "reclaim HOLD",
    ),
    "the lease": ("reclaim", "'IDLE', lease,", "'IDLE', 0,", "stalled behind renewed"),
    "the offset": ("sink_commit", "(tonumber(have[2]) or 0) ~= tonumber(ARGV[4])", "false", "a wrong offset"),
    "the writer": ("sink_commit", "if have[1] ~= ARGV[3] then return {'REPLACED'} end", "", "a writer replaced"),
    "all or nothing": ("sink_commit", "if #lost > 0 then return", "if false then return", "one lost record"),
    "the low mark": ("_items", "mark * 0.2", "mark * 0.9", "the marks"),
    "the host of an entry among others": ("commit", "fields[2] == c[2] and", "", "batches of commits"),
    "what a batch ended": ("commit", "for i = 1, #ended, 1000 do", "for i = 1, 0 do", "batches of commits"),
    "an entry that was not read ahead": ("commit", "if not fields then", "if false then", "batches of commits"),
    "the budget of a whole queue": ("_dispatch", "math.min(free, budget)", "free", "pages of the budget"),
    "the whole batch of a sink": ("sink_commit", "rows[i] ~= nil and rows[i][1] == ids[i]", "true", "one lost record"),
    "the host of an entry": ("commit", "fields[2] == c[2] and", "", "broken commits"),
    "the length of an id": ("_common", "and #ms <= 19 and #seq <= 19", "", "broken commits"),
    "the failing host's time": (
        "give_up",
        "(not is_domain_down and h.failed_at - since >= most)",
        "true",
        "time without asking",
    ),
    "the replay's deletion": (
        "_hosts",
        "  call('XDEL', P .. 'dead', id)\n  count(line",
        "  count(line",
        "replay QUEUED",
    ),
    "the replayed seed": ("replay", "  seed_ended(task, -1)\n", "", "replay QUEUED"),
    "the replayed host's chance": (
        "replay",
        "if h.given_up ~= '' then give_chance(key, h) end",
        "",
        "replay to a host given up",
    ),
    "the replayed host's letter": ("replay", "f.host ~= key or", "", "replay INVALID"),
    "the back-off of a host that fails": (
        "replay",
        "if h.given_up ~= '' then give_chance(key, h) end",
        "give_chance(key, h)",
        "replay to a failing host",
    ),
    "the gate of a dead robots task": (
        "commit",
        "h.robots, h.given_up = '', 'robots",
        "h.given_up = 'robots",
        "dead robots",
    ),
    "the purge's count": ("purge", "h.queued = h.queued - purged", "h.queued = h.queued - #tasks", "purge OK"),
    "the purge's tail": ("purge", "if #kept > 0 then call('RPUSH'", "if #kept < 0 then call('RPUSH'", "purge OK"),
    "the purge's seeds": ("purge", "    seed_ended(tasks[i])\n", "", "purge OK"),
    "the purge's levels": (
        "purge",
        "if not string.find(level, '^[1-3]$') then return {'OK', 0, 0} end",
        "",
        "purge OK",
    ),
    "the grant's pool": ("grant", "math.min(pool, known", "math.max(pool, known", "grant OK"),
    "the grant that has not arrived": (
        "grant",
        "+ tonumber(ARGV[6]) - granted)",
        "+ tonumber(ARGV[6]) - known)",
        "grant OK",
    ),
    "the grant that only grows": (
        "allow",
        "granted = math.max(granted, tonumber(ARGV[2]))",
        "granted = tonumber(ARGV[2])",
        "allow OK",
    ),
    "what is used is not given back": ("allow", "granted - returned - used)", "granted - returned)", "allow OK"),
    "the version": ("tune", "if have >= tonumber(ARGV[2]) then", "if have > tonumber(ARGV[2]) then", "tune CONFLICT"),
    "the blocked flag": ("_hosts", " or h.blocked ~= ''", "", "blocked"),
    "what blocked hosts keep": (
        "finish",
        "if queued ~= parked then return answer('UNBALANCED') end",
        "",
        "finish UNBALANCED",
    ),
    "the seeds offered": ("_seen", "if is_seed(rest) then count('seed.created', 1) end", "", "offer WAIT"),
    "the seeds ended": (
        "commit",
        "  count(c[3] .. '.done', 1)\n  seed_ended(entry_task)\n",
        "  count(c[3] .. '.done', 1)\n",
        "commit DONE",
    ),
    "the seeds' mark": ("offer", "if S.seeds_max and seeds >=", "if false and seeds >=", "offer WAIT"),
    "the feeders left": ("feed", "if left > 0 then call('HDEL'", "if left > 1 then call('HDEL'", "feed OK"),
    "what a domain has in flight": (
        "_hosts",
        "p.in_flight + n, (p[field] or 0) + n",
        "p.in_flight, p[field]",
        "a domain's cap",
    ),
    "the domain at its cap": ("_hosts", "if p.in_flight >= cap_of(p) then return nil end", "", "a domain's cap"),
    "the delay of a domain": (
        "_hosts",
        "if due > p.due then p.due = due end",
        "if due > h.due then h.due = due end",
        "a domain's state",
    ),
    "the turns of a domain": ("_hosts", "local is_moved = had_turn[key] or", "local is_moved =", "a domain's turns"),
    "a probe with each fifth turn": ("_dispatch", "p.unprobed >= 4", "false", "a domain's probes"),
    "the domain of a link": (
        "_hosts",
        "return keys_of[text] or nil, domains_of[text]",
        "return text, text",
        "a link without",
    ),
    "the cursor of a replay": ("copy", "now_at .. ' ' .. looked", "at .. ' ' .. looked", "copy OK"),
    "the share of a replay": ("copy", "waiting + 1 > most * 0.4", "false", "copy FULL"),
    "the count of what is dropped": ("drop", "count(stage .. '.dropped', dropped)\n", "", "drop OK"),
    "the time of a log": ("_logs", "if not (is_old or is_full or", "if not (true or", "trim OK"),
    "all balanced": ("finish", "total(line .. '.created') ~= ", "false and 0 ~= ", "finish UNBALANCED"),
}
"""What is broken: the .lua file, a piece of it, what stands in its place, and which of CHECKS must notice."""

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


async def batches_of_commits(open_lab: OpenLab) -> None:
    """Each of a batch is judged by its own entry, also where all are read at once: few slots, and many commits."""
    for slots in (4, 1000):
        lab = await open_lab(slots=slots)
        await lab.offer(*(f"http://{host}.test/" for host in "abcde"))
        one, two, three, four, five = await lab.take()
        assert await lab.end(five) == "DONE"
        commits = [lab.commit_of(held) for held in (two, one, two, three, four, five)]
        commits[3].host = one.host
        commits[4].links = links("http://a.test/new")
        words = (await lab.commit(*commits)).words
        assert words == ["DONE", "DONE", "LEASE_LOST", "INVALID", "DONE", "LEASE_LOST"]
        await lab.check()
        assert await lab.end(three) == "DONE"


async def pages_of_the_budget(open_lab: OpenLab) -> None:
    """Of one queue that has more, no more than the budget goes at once."""
    lab = await open_lab(pages_max=3, host_concurrency=10, delay_ms=0)
    await lab.offer(*(f"http://a.test/{n}" for n in range(9)))
    assert (await lab.frontier.dispatch(9)).moved == 3
    await lab.check()


async def a_walk(open_lab: OpenLab) -> None:
    client = (await open_lab()).client
    # Without a delay and with a cap of 1, so that much happens.
    for seed in (0, 4, 16, 28):
        walk = await Walk.opened(client, f"m{uuid4().hex[:12]}", seed, shards=1)
        for _ in range(150):
            await walk.step()
        await walk.renew()


def _case(script: str, word: str) -> Callable[[OpenLab], Awaitable[None]]:
    return test_store_contracts.CASES[script, word]


CHECKS: Final[dict[str, Callable[[Any], Awaitable[None]]]] = {
    **{f"{script} {word}": check for (script, word), check in test_store_contracts.CASES.items()},
    "broken commits": broken_commits,
    "batches of commits": batches_of_commits,
    "pages of the budget": pages_of_the_budget,
    "another epoch": lambda lab: test_store_contracts.test_a_worker_of_another_epoch_writes_nothing(lab, "dispatch"),
    "a late commit": lambda lab: test_store_leases.test_a_late_commit_writes_nothing(
        lab, test_store_leases._put_back, Outcome.DONE
    ),
    "stalled behind renewed": test_store_leases.test_renewed_rows_in_front_do_not_starve_stalled_ones_behind,
    "a killer": test_store_leases.test_a_task_that_kills_its_worker_dies_alone_and_its_neighbours_live,
    "names of the dead": test_store_leases.test_the_name_of_a_dead_worker_stays_until_all_it_held_is_taken_back,
    "put back in steps": lambda lab: test_store_leases.test_the_last_of_many_taken_back_in_steps_is_not_alone(
        lab, "put_back"
    ),
    "reclaimed in steps": lambda lab: test_store_leases.test_the_last_of_many_taken_back_in_steps_is_not_alone(
        lab, "reclaim"
    ),
    "cap": lambda lab: test_store_dispatch.test_a_host_has_no_more_in_flight_than_its_cap(lab, 1),
    "waiting": test_store_dispatch.test_twice_the_live_slots_wait_and_no_more,
    "pages_max": lambda lab: test_store_dispatch.test_pages_max_is_exact_whatever_else_ends(lab, 4),
    "gate": test_store_dispatch.test_one_robots_task_opens_the_gate_for_all_pages,
    "a clock that jumps": lambda lab: test_store_dispatch.test_a_clock_that_jumps_lets_no_delay_pass(lab, 3_600_000),
    "crawl time": test_store_dispatch.test_crawl_time_goes_on_and_never_back,
    "hosts that wait": test_store_dispatch.test_hosts_that_wait_for_their_budget_do_not_hide_the_others,
    "pages_per_host_max": lambda lab: test_store_dispatch.test_pages_per_host_max_is_exact_and_the_rest_is_dropped(
        lab, 4
    ),
    "new hosts": test_store_dispatch.test_new_hosts_do_not_push_in_front_of_one_that_is_due,
    "links above the bound": test_store_dispatch.test_links_stop_the_crawl_above_the_frontiers_bound,
    "delay": test_store_dispatch.test_the_delay_counts_from_the_end_of_the_fetch,
    "one probe": test_pace.test_open_circuit_lets_one_fetch_through_at_a_time,
    "one probe of several": test_pace.test_start_sends_all_but_one_back_while_the_circuit_is_open,
    "refused under way": lambda lab: test_pace.test_what_was_under_way_when_the_delay_doubled_does_not_double_it_again(
        lab, 0
    ),
    "refused by all": test_pace.test_host_that_refuses_everything_burns_no_task,
    "demoted alone": test_alike.test_alone_it_is_as_quick_as_any_and_waits_while_others_have_pages,
    "visited again and alike": test_alike.test_visited_again_a_page_says_the_same_and_that_is_no_evidence,
    "strong evidence": test_alike.test_a_host_is_demoted_on_strong_evidence_and_by_and_by,
    "well again": test_pace.test_a_host_that_is_well_again_is_soon_as_quick_as_any_other_and_keeps_nothing,
    "time without asking": lambda lab: test_store_hosts.test_time_in_which_nobody_asked_says_nothing_about_a_host(
        lab, "paused"
    ),
    "replay to a failing host": test_store_hosts.test_a_replay_takes_no_backoff_from_a_host_that_fails_now,
    "replay to a host given up": test_store_hosts.test_a_replay_gives_a_host_that_was_given_up_its_chance,
    "dead robots": test_store_hosts.test_a_dead_robots_task_is_asked_for_again_once_its_pages_are_replayed,
    "blocked": test_store_hosts.test_a_blocked_host_is_left_alone_in_every_state,
    "twice in one call": test_store_seen.test_the_same_url_twice_in_one_call_is_new_once,
    "fingerprints": test_store_seen.test_fingerprints_of_any_sign_and_length_are_found_again,
    "a domain's cap": test_store_domains.test_with_a_cap_the_domain_has_that_many_and_hosts_share_them,
    "a domain's state": test_store_domains.test_a_domain_has_the_state_that_its_hosts_have_without,
    "a domain's turns": test_store_domains.test_a_host_with_very_much_does_not_keep_its_siblings_waiting,
    "a domain's probes": test_store_domains.test_hosts_that_fail_come_with_each_fifth_turn_while_others_are_well,
    "a link without": test_store_domains.test_a_link_without_its_domain_is_refused,
    "a wrong offset": test_store_sinks.test_a_batch_from_a_wrong_offset_is_not_written,
    "one lost record": test_store_sinks.test_a_batch_with_one_lost_record_is_not_written_at_all,
    "a writer replaced": test_store_sinks.test_a_writer_silent_for_a_lease_is_replaced_and_notices,
    "the marks": test_store_sinks.test_dispatch_stops_above_the_high_mark_until_under_the_low_one,
}
WALKED: Final = ("the fence", "the dedup", "the cap", "in_flight in leave", "the epoch", "the offset")
"""What a walk must notice, too, which knows nothing of what was broken."""


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


async def failure_of(client: Redis, check: Callable[[OpenLab], Awaitable[None]]) -> BaseException | None:
    """Run a check; return what it raised."""

    async def open_lab(**values: Any) -> Lab:
        sinks = values.pop("sinks", ())
        return await Lab.opened(client, sinks=sinks, **fast(f"m{uuid4().hex[:12]}", **values))

    try:
        # A crawl that never comes to its end is a way of failing, too.
        async with asyncio.timeout(CHECK_S):
            await check(open_lab)
    except (AssertionError, StreamcrawlError, ValueError, KeyError, TimeoutError, pytest.fail.Exception) as error:
        return error
    return None


@pytest.mark.parametrize("check", sorted({check for *_, check in MUTATIONS.values()}))
async def test_a_check_passes_on_the_text_as_it_is(redis_client: Redis, check: str) -> None:
    failure = await failure_of(redis_client, CHECKS[check])
    if failure is not None:
        raise failure


@pytest.mark.parametrize("broken", MUTATIONS)
async def test_a_broken_protocol_is_noticed(
    redis_client: Redis, mutate: Callable[[str, str, str], None], broken: str
) -> None:
    *mutation, check = MUTATIONS[broken]
    mutate(*mutation)
    failure = await failure_of(redis_client, CHECKS[check])
    assert failure is not None
    assert "compiling" not in str(failure), "what does not compile breaks nothing in particular"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("broken", WALKED)
async def test_a_walk_notices_a_broken_protocol(
    redis_client: Redis, mutate: Callable[[str, str, str], None], broken: str
) -> None:
    *mutation, _ = MUTATIONS[broken]
    mutate(*mutation)
    assert await failure_of(redis_client, a_walk) is not None
