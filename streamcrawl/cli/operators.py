"""What `dead`, `replay`, `pending`, `queue`, `host` and `explain` do: open a crawl, do one thing, say what came of it.

Results go to standard output, progress and advice to standard error. With `--json` a list is one object a line, and
everything else one object.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from streamcrawl.cli import interrupts
from streamcrawl.cli.bar import Bar
from streamcrawl.cli.options import write
from streamcrawl.cli.store import existing_store, start_command
from streamcrawl.cli.stored import read_state, read_stored
from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.ops import letters, pending, queues, replays
from streamcrawl.ops.explain import explain, explanation_lines
from streamcrawl.ops.hosts import (
    add_dead,
    host_lines,
    host_list_lines,
    host_page,
    hosts_to_set,
    known_hosts,
    largest_hosts,
    list_hosts,
)
from streamcrawl.ops.status import counted, number, read_status
from streamcrawl.ops.words import moment, parse_moment_ms
from streamcrawl.settings import parse_duration_ms
from streamcrawl.store.connection import mapped_errors, server_ms
from streamcrawl.store.shards import join_crawl
from streamcrawl.work.replay import LOST

if TYPE_CHECKING:
    import re
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from streamcrawl.cli.groups import Place
    from streamcrawl.ops.letters import Letter, Tally, Where
    from streamcrawl.ops.replays import Count, Replay
    from streamcrawl.ops.status import LogStatus
    from streamcrawl.store.shards import Shards

_LISTED: int = 50
"""Letters that are listed without --limit."""


@asynccontextmanager
async def _opened(place: Place) -> AsyncIterator[Shards]:
    async with existing_store(place.redis_url, place.name) as store:
        yield await join_crawl(store.client, place.name)


def _run(place: Place, work: Callable[[Shards], Awaitable[ExitCode]]) -> ExitCode:
    async def run() -> ExitCode:
        async with _opened(place) as crawl:
            return await work(crawl)

    return interrupts.run(run())


def _json(document: Any) -> None:
    write(msgspec.json.encode(document).decode())


def _note(text: str) -> None:
    """Say something beside the result: on standard error, whether anybody reads it or not."""
    try:
        click.echo(text, err=True)
    except OSError:
        sys.stderr = None  # nobody does any more


def _need_choice(is_chosen: bool, is_all: bool, options: str) -> None:
    if is_chosen and is_all:
        raise ConfigError(f"--all means every one of them, and others are chosen too: leave --all out, or {options}")
    if not is_chosen and not is_all:
        raise ConfigError(f"say which: {options}; or --all for every one of them")


# -- dead letters


async def _where(
    crawl: Shards,
    *,
    where: Sequence[str],
    hosts: Sequence[str],
    stage: str | None,
    since: str | None,
    until: str | None,
    match: re.Pattern[str] | None,
    ids: Sequence[str],
) -> Where:
    with mapped_errors():
        now_ms = server_ms(await crawl.client.time())
    return letters.Where(
        values=letters.parse_where(where),
        hosts=tuple(hosts),
        stage=stage,
        since_ms=None if since is None else parse_moment_ms("--since", since, now_ms),
        until_ms=None if until is None else parse_moment_ms("--until", until, now_ms),
        match=match,
        ids=tuple(ids),
    )


def list_letters(place: Place, *, by: str | None, limit: int | None, **chosen: Any) -> ExitCode:
    """List letters, or counts of them."""

    async def work(crawl: Shards) -> ExitCode:
        where = await _where(crawl, **chosen)
        if by is not None:
            await _list_counts(place, crawl, where, by, limit)
            return ExitCode.DONE
        left = limit or _LISTED
        async with aclosing(letters.newest_first(crawl, where)) as found:
            async for letter in found:
                if left == 0:
                    if limit is None:
                        _note(f"the newest {_LISTED}; --limit N shows more, --by reason counts all")
                    break
                if left == (limit or _LISTED) and not place.is_json:
                    write(_LETTER_HEAD)
                _json(letter.as_json(len(crawl))) if place.is_json else write(_letter_line(letter, len(crawl)))
                left -= 1
        if left == (limit or _LISTED) and not place.is_json:
            write("no dead letters" + ("" if where.is_all else " of this kind"))
        return ExitCode.DONE

    return _run(place, work)


_LETTER_HEAD = f"{'id':<20}  {'died at':<20}  {'reason':<18}  {'tries':>5}  {'status':>6}  url"


def _letter_line(letter: Letter, shards: int) -> str:
    tries = (letter.attempt or "") if letter.task is None else letter.task.attempt
    kind = f" (item of {letter.stage})" if letter.is_item else "" if letter.kind == "page" else f" ({letter.kind} task)"
    return (
        f"{letter.name(shards):<20}  {moment(letter.died_at_ms):<20}  {letter.reason:<18}  {tries:>5}  "
        f"{letter.last_status or '-':>6}  {letter.url}{kind}"
    )


async def _list_counts(place: Place, crawl: Shards, where: Where, by: str, limit: int | None) -> None:
    if by == "reason" and where.is_all and limit is None:
        counts = await letters.totals_by_reason(crawl)
        note = "all"
    else:
        most = limit or letters.COUNTED_MAX
        counts, found = await letters.count_by(crawl, where, by, most)
        note = f"the newest {found:,}" if found == most else "all" if where.is_all else "all of this kind"
    if place.is_json:
        _json({"by": by, "counted": note, "counts": counts})
        return
    for value, count in counts.items():
        write(f"{count:>12,}  {value or '-'}")
    write(f"{sum(counts.values()):>12,}  dead letters: {note}")


def show_letter(place: Place, letter_id: str) -> ExitCode:
    """Show one letter whole; in a crawl of several shards, each that has this id."""

    async def work(crawl: Shards) -> ExitCode:
        where = letters.Where(ids=(letter_id,))
        async with aclosing(letters.newest_first(crawl, where)) as found:
            shown = [letter async for letter in found]
        if not shown:
            raise ConfigError(f"there is no dead letter {letter_id}; it may have been replayed or purged")
        for letter in shown:
            document = letter.as_json(len(crawl))
            if place.is_json:
                _json(document)
            else:
                write("\n".join(_field_lines(document)))
        return ExitCode.DONE

    return _run(place, work)


def _field_lines(document: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in document.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else "-" if value in (None, "") else str(value)
        first, *rest = shown.splitlines() or [""]
        lines += [f"{name.replace('_', ' '):<15}{first}", *(f"{'':<15}{line}" for line in rest)]
    return lines


def replay_letters(
    place: Place, *, is_all: bool, attempts: str, limit: int | None, is_dry: bool, **chosen: Any
) -> ExitCode:
    """Send letters again."""

    async def work(crawl: Shards) -> ExitCode:
        where = await _where(crawl, **chosen)
        _need_choice(not where.is_all, is_all, "--where, --host, --stage, --since, --until, --match or --id")
        with Bar("replay", await letters.letter_count(crawl)) as bar:
            tally = await letters.replay(
                crawl, where, attempts=letters.Attempts(attempts), limit=limit, is_dry=is_dry, watch=bar.watch
            )
        _say(place, tally, _REPLAYED, "dead letter", is_stopped=bar.is_stopped)
        if tally.words["QUEUED"] + tally.words["ASKED"]:
            await _say_who_works(place, crawl)
        return ExitCode.STOPPED if bar.is_stopped else ExitCode.DONE

    return _run(place, work)


def purge_letters(place: Place, *, is_all: bool, limit: int | None, is_dry: bool, **chosen: Any) -> ExitCode:
    """Remove letters for good."""

    async def work(crawl: Shards) -> ExitCode:
        where = await _where(crawl, **chosen)
        _need_choice(not where.is_all, is_all, "--where, --host, --stage, --since, --until, --match or --id")
        with Bar("purge", await letters.letter_count(crawl)) as bar:
            tally = await letters.purge(crawl, where, limit=limit, is_dry=is_dry, watch=bar.watch)
        _say(place, tally, _PURGED, "dead letter", is_stopped=bar.is_stopped)
        return ExitCode.STOPPED if bar.is_stopped else ExitCode.DONE

    return _run(place, work)


_REPLAYED = {
    "QUEUED": "queued again",
    "ASKED": "for robots.txt, which a host asks for by itself before its next page",
    "GONE": "gone: another replay or purge was faster",
    "INVALID": "left as they are: their task cannot be read, or is not what the letter says (`dead show`)",
    "FOUND": "would be sent again",
}
_PURGED = {"PURGED": "removed for good", "GONE": "gone already", "FOUND": "would be removed"}
_DROPPED = {"DROPPED": "dropped", "FOUND": "would be dropped"}
_LOOK_S = 0.3
"""Between two looks at how far a replay is."""
_TAKEN_BACK = {
    "BACK": "taken back, at the head of their queues",
    "GONE": "ended meanwhile",
    "ALIVE": "left with workers that are alive; --force takes them too, and what they do is done again",
}


def _say(place: Place, tally: Tally, phrases: Mapping[str, str], noun: str, *, is_stopped: bool) -> None:
    """Say what came of it; `phrases` by word."""
    words = {word: count for word, count in tally.words.items() if count}
    if place.is_json:
        _json({"looked": tally.looked, "stopped": is_stopped, **{word.lower(): tally.words[word] for word in phrases}})
        return
    for word, count in words.items():
        write(f"{count:,} {phrases[word]}")
    if not words:
        write(f"no {noun} to do it to ({tally.looked:,} looked at)")
    if is_stopped:
        _note("stopped: the same command goes on with the rest")


async def _say_who_works(place: Place, crawl: Shards) -> None:
    """Say how to go on when nobody is there to do what was asked for."""
    rows = await pending.workers(crawl)
    if any(is_alive for _, is_alive in rows.values()):
        return
    stored = read_stored(await read_state(crawl.client, place.name))
    start = start_command(place.name, place.redis_url, place.options, stored.app if stored else "")
    _note(f"no worker is alive; to have it done: {start}")


# -- retained logs


def replay_log(
    place: Place,
    *,
    stage: str | None,
    log: str,
    first: str | None,
    last: str | None,
    is_missing: bool,
    where: tuple[str, ...],
    is_dry: bool,
    is_detached: bool,
    cancel: str | None,
) -> ExitCode:
    """Begin a replay and wait for it, only count, or end one."""
    if cancel is not None:
        if stage is not None:
            raise ConfigError("--cancel ends a replay that is under way: leave --stage out")
        return _run(place, lambda crawl: _cancel_replay(place, crawl, cancel))
    if stage is None:
        raise ConfigError("say where to: --stage STAGE (`streamcrawl status` lists them)")
    if first is None and not is_missing:
        raise ConfigError("say from when: --from start, --from 2h or a time; or --missing for what it never got")

    async def work(crawl: Shards) -> ExitCode:
        with mapped_errors():
            now_ms = server_ms(await crawl.client.time())
        asked = replays.Asked(
            stage,
            log,
            None if first in (None, "start") else parse_moment_ms("--from", first, now_ms),
            None if last is None else parse_moment_ms("--to", last, now_ms),
            is_missing,
            where,
        )
        plans = await replays.plans_of(crawl, asked)
        if is_dry:
            with Bar("replay", sum(one.entries for one in await _logs_of(crawl, plans))) as bar:
                tally = await replays.count(crawl, plans, bar.watch)
            _say(place, tally, {"FOUND": "would be sent again"}, "entry", is_stopped=bar.is_stopped)
            return ExitCode.STOPPED if bar.is_stopped else ExitCode.DONE
        if not await replays.is_any(crawl, plans):
            if is_missing:
                _write_result(place, plans, replays.Count(0, 0), has_ended=True)
                return ExitCode.DONE
            raise ConfigError(
                "nothing of it was written in that time: `streamcrawl status` says how old the oldest entry is"
            )
        await replays.begin(crawl, plans)
        return await _await_replay(place, crawl, plans, is_detached=is_detached)

    return _run(place, work)


async def _logs_of(crawl: Shards, plans: Sequence[Replay]) -> list[LogStatus]:
    names = {plan.log for plan in plans}
    return [log for log in (await read_status(crawl.client, crawl.first.keys.crawl)).logs if log.name in names]


async def _await_replay(place: Place, crawl: Shards, plans: Sequence[Replay], *, is_detached: bool) -> ExitCode:
    entries = sum(one.entries for one in await _logs_of(crawl, plans))
    what = f"{', '.join(one.log for one in plans)} into {plans[0].target}"
    ids = ", ".join(one.id for one in plans)
    _note(f"replay {ids}: log {what}, {number(entries)} entries in it; the workers do it, with or without this command")
    is_told = False
    with Bar("replay", entries) as bar:
        while True:
            has_ended, count = await replays.progress(crawl, plans)
            tally = letters.Tally(count.looked)
            tally.words["SENT"] += count.found
            is_going_on = bar.watch(tally) and not is_detached
            if has_ended or not is_going_on:
                break
            status = await read_status(crawl.client, place.name)
            if not status.is_alive:
                break
            target = next(one for one in status.stages if one.stage == plans[0].target)
            if target.is_unread and not is_told:
                is_told = True
                _note(f"no worker reads {target.stage}: streamcrawl worker MODULE:ATTRIBUTE --stage {target.stage}")
            await asyncio.sleep(_LOOK_S)
    _write_result(place, plans, count, has_ended=has_ended)
    if has_ended:
        return ExitCode.DONE
    if bar.is_stopped:
        _note(f"the workers go on with it; streamcrawl replay {place.name} --cancel {plans[0].id} ends it")
        return ExitCode.STOPPED
    await _say_who_works(place, crawl)
    return ExitCode.DONE


def _write_result(place: Place, plans: Sequence[Replay], count: Count, *, has_ended: bool) -> None:
    """Say how far a replay is."""
    if place.is_json:
        ids = [one.id for one in plans]
        counts = {"looked": count.looked, "sent": count.found}
        _json({"replays": ids, **counts, "ended": has_ended, "has_gap": count.has_gap})
        return
    if has_ended and not count.looked:
        write("nothing is missing")
    else:
        so_far = "" if has_ended else " so far"
        write(f"{number(count.found)} sent{so_far}, of {number(count.looked)} looked at")
        if count.has_gap:
            _note(LOST)


async def _cancel_replay(place: Place, crawl: Shards, replay_id: str) -> ExitCode:
    await replays.cancel(crawl, replay_id)
    _json({"cancelled": replay_id}) if place.is_json else write(
        f"replay {replay_id}: ended; what it has sent stays sent"
    )
    return ExitCode.DONE


def drop_stage(place: Place, *, stage: str, is_forced: bool, is_dry: bool) -> ExitCode:
    """Drop what nobody is to read."""

    async def work(crawl: Shards) -> ExitCode:
        found = replays.stage_to_drop(await read_status(crawl.client, place.name), stage)
        left = found.waiting + found.pending + found.delayed
        tally = letters.Tally(left)
        if is_dry:
            tally.words["FOUND"] += left
            _say(place, tally, _DROPPED, "item", is_stopped=False)
            return ExitCode.DONE
        if found.slots and not is_forced:
            raise ConfigError(
                f"workers read stage {found.stage} ({counted(found.slots, 'slot')}): stop them first, or --force drops "
                "what they have in hand as well"
            )
        with Bar("drop", left) as bar:
            tally = await replays.drop(crawl, found.stage, watch=bar.watch)
        _say(place, tally, _DROPPED, "item", is_stopped=bar.is_stopped)
        return ExitCode.STOPPED if bar.is_stopped else ExitCode.DONE

    return _run(place, work)


# -- what workers have in hand


def _which(*, stage: str | None, consumer: str | None, idle_ms: int | None, ids: Sequence[str]) -> pending.Which:
    return pending.Which(stage=stage, consumer=consumer, idle_ms=idle_ms or 0, ids=tuple(ids))


def list_pending(place: Place, *, limit: int, **chosen: Any) -> ExitCode:
    """List what workers have in hand."""

    async def work(crawl: Shards) -> ExitCode:
        left = limit
        async with aclosing(pending.rows(crawl, _which(**chosen))) as windows:
            async for _, window in windows:
                for row in window[:left]:
                    _json(row.as_json(len(crawl))) if place.is_json else write(pending.row_line(row, len(crawl)))
                if len(window) > left:
                    _note(f"the first {limit}; --limit N shows more")
                    left = 0
                    break
                left -= len(window)
        if left == limit and not place.is_json:
            write("nothing is in the hands of workers" + ("" if _which(**chosen).is_all else " of this kind"))
        return ExitCode.DONE

    return _run(place, work)


def show_pending(place: Place, entry_id: str) -> ExitCode:
    """Show one entry that is in somebody's hands."""

    async def work(crawl: Shards) -> ExitCode:
        async with aclosing(pending.rows(crawl, pending.Which(ids=(entry_id,)))) as windows:
            shown = [row async for _, window in windows for row in window]
        if not shown:
            raise ConfigError(f"no worker has an entry {entry_id} in hand; it may have ended (`pending ls` lists them)")
        for row in shown:
            _json(row.as_json(len(crawl))) if place.is_json else write("\n".join(_field_lines(row.as_json(len(crawl)))))
        return ExitCode.DONE

    return _run(place, work)


def replay_pending(place: Place, *, is_all: bool, is_forced: bool, limit: int | None, **chosen: Any) -> ExitCode:
    """Take entries back from workers."""

    async def work(crawl: Shards) -> ExitCode:
        which = _which(**chosen)
        _need_choice(not which.is_all, is_all, "--stage, --consumer, --idle or --id")
        with Bar("replay", 0) as bar:
            tally = await pending.take_back(crawl, which, limit=limit, is_forced=is_forced, watch=bar.watch)
        _say(place, tally, _TAKEN_BACK, "entry", is_stopped=bar.is_stopped)
        if bar.is_stopped:
            return ExitCode.STOPPED
        return ExitCode.USAGE if tally.words["ALIVE"] and not tally.words["BACK"] else ExitCode.DONE

    return _run(place, work)


# -- queues


async def _chosen_tasks(
    crawl: Shards, *, hosts: Sequence[str], levels: Sequence[str], match: re.Pattern[str] | None
) -> queues.Chosen:
    keys = [key for text in hosts for key in await known_hosts(crawl, text)]
    return queues.Chosen(
        hosts=tuple(dict.fromkeys(keys)),
        levels=tuple(queues.level_of(name) for name in dict.fromkeys(levels)) or queues.PAGE_LEVELS,
        match=match,
    )


def list_queued(place: Place, *, limit: int, **chosen: Any) -> ExitCode:
    """List queued tasks of hosts, or the hosts with most queued."""

    async def work(crawl: Shards) -> ExitCode:
        tasks = await _chosen_tasks(crawl, **chosen)
        if not tasks.hosts:
            if tasks.match is not None or chosen["levels"]:
                raise ConfigError("--match and --level need --host here; `queue purge --dry-run` counts over all hosts")
            await _list_largest(place, crawl, limit)
            return ExitCode.DONE
        left, looked = limit, 0
        for host in tasks.hosts:
            for level in tasks.levels:
                async with aclosing(queues.tasks_of(crawl.of(host), host, level)) as windows:
                    async for window in windows:
                        looked += len(window)
                        shown = [queued for queued in window if tasks.admits(queued)][:left]
                        for queued in shown:
                            _json(queued.as_json()) if place.is_json else write(queues.queued_line(queued))
                        left -= len(shown)
                        if not left:
                            return ExitCode.DONE
        if left == limit and not place.is_json:
            write(f"nothing of it is queued ({looked:,} looked at)")
        return ExitCode.DONE

    return _run(place, work)


async def _list_largest(place: Place, crawl: Shards, limit: int) -> None:
    rows, looked, scheduled = await largest_hosts(crawl, limit)
    for row in rows:
        if place.is_json:
            _json({"host": row.host, "queued": row.queued, "in_flight": row.in_flight, "pages": row.pages})
        else:
            write(f"{row.queued:>12,}  {row.host}")
    if not place.is_json:
        write(f"the largest of {counted(looked, 'host')} looked at; {scheduled:,} are scheduled" if rows else
              f"nothing is queued ({counted(looked, 'host')} looked at)")  # fmt: skip


def purge_queues(place: Place, *, is_all: bool, limit: int | None, is_dry: bool, **chosen: Any) -> ExitCode:
    """Remove tasks from queues."""

    async def work(crawl: Shards) -> ExitCode:
        tasks = await _chosen_tasks(crawl, **chosen)
        _need_choice(bool(tasks.hosts or tasks.match or chosen["levels"]), is_all, "--host, --match or --level")
        with Bar("purge", await queues.queued_count(crawl, tasks)) as bar:
            tally = await queues.purge(crawl, tasks, limit=limit, is_dry=is_dry, watch=bar.watch)
        _say(place, tally, _PURGED, "queued task", is_stopped=bar.is_stopped)
        return ExitCode.STOPPED if bar.is_stopped else ExitCode.DONE

    return _run(place, work)


# -- hosts


def list_of_hosts(place: Place, limit: int) -> ExitCode:
    """List hosts that stand out."""

    async def work(crawl: Shards) -> ExitCode:
        found = await list_hosts(crawl, limit)
        if place.is_json:
            _json(msgspec.to_builtins(found))
        else:
            write("\n".join(host_list_lines(found)))
        return ExitCode.DONE

    return _run(place, work)


def show_host(place: Place, text: str) -> ExitCode:
    """Show all of a host; of both when a name means two."""

    async def work(crawl: Shards) -> ExitCode:
        for key in await known_hosts(crawl, text):
            page = await host_page(crawl, key)
            await add_dead(crawl, page)
            if place.is_json:
                _json(page.as_json())
            else:
                write("\n".join(host_lines(page)))
        return ExitCode.DONE

    return _run(place, work)


def set_host(place: Place, *, host: str, delay: str | None, cap: str | None, is_retry: bool) -> ExitCode:
    """Say how a host is to be treated."""
    values: dict[str, str | int] = {}
    if delay is not None:
        values["delay"] = "" if delay == "default" else _read_delay_ms(delay)
    if cap is not None:
        values["cap"] = "" if cap == "default" else _read_cap(cap)
    if is_retry:
        values["chance"] = 1
    if not values:
        raise ConfigError("say what to set: --delay TIME, --cap N or --retry")
    return _run(place, lambda crawl: _set_hosts(place, crawl, host, values))


_DELAY_MAX_MS = 604_800_000
"""A week: beyond that a host is better blocked."""


def _read_delay_ms(text: str) -> int:
    delay_ms = parse_duration_ms(text)
    if delay_ms > _DELAY_MAX_MS:
        raise ConfigError(f"--delay {text!r} will not do: the most is 7d; to leave a host alone there is `host block`")
    return delay_ms


_CAP_MAX = 10_000
"""As of --host-concurrency."""


def _read_cap(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _CAP_MAX):
        raise ConfigError(f"--cap {text!r} will not do: write a number from 1 to {_CAP_MAX:,}, or `default`")
    return int(text)


def block_host(place: Place, text: str, *, is_blocked: bool) -> ExitCode:
    """Block a host, or take that back."""
    return _run(place, lambda crawl: _set_hosts(place, crawl, text, {"blocked": "1" if is_blocked else ""}))


async def _set_hosts(place: Place, crawl: Shards, text: str, values: Mapping[str, str | int]) -> ExitCode:
    # What gives something back can only be about a host that is known.
    is_new = values.get("blocked") == "1" or "delay" in values or "cap" in values
    keys = await (hosts_to_set if is_new else known_hosts)(crawl, text)
    for key in keys:
        if await crawl.of(key).set_host(key, **values) == "MANY":
            raise ConfigError(
                f"{key} is not blocked: 10,000 hosts are already; keep them out by a rule (`settings set NAME deny=…`)"
            )
        page = await host_page(crawl, key)
        if place.is_json:
            _json(page.as_json())
        else:
            delay = f"delay {page.delay_ms / 1000:g} s, {page.cap} at a time"
            whose = key if page.of_domain is None else f"{key} (delay and cap are of all hosts of {page.fields.domain})"
            write(f"{whose}: {delay}; {page.standing()}")
    return ExitCode.DONE


# -- one URL


def explain_url(place: Place, url: str) -> ExitCode:
    """Say what is known of a URL."""

    async def work(crawl: Shards) -> ExitCode:
        found = await explain(crawl, place.name, url)
        if place.is_json:
            _json(found.as_json())
        else:
            write("\n".join(explanation_lines(found)))
        return ExitCode.DONE

    return _run(place, work)
