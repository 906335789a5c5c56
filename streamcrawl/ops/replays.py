"""Replays of retained logs, and what becomes of a stage that nobody reads any more.

A replay is a plan in the first shard (plan.lua), which the supervisors of the crawl carry out in all (work/replay.py):
whoever asked for it may end. A stage is dropped from here, in bounded steps, each a script call (drop.lua), so that
the same command goes on after a kill. Start at `Asked` and `begin`; `drop` is by itself.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from streamcrawl.errors import ConfigError, StoreUnavailable
from streamcrawl.ops.letters import Tally
from streamcrawl.ops.status import OUTPUT, STAGE, read_status, stream_key
from streamcrawl.store.connection import mapped_errors, server_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamcrawl.ops.letters import Watcher
    from streamcrawl.ops.status import StageStatus, Status
    from streamcrawl.store.shards import Shards

WHERE_KEYS: Final = ("type", "version", "url")
DURABLE_WAIT_MS: Final = 2000
_MEMBERS_PER_CALL: Final = 100
"""Delayed items of a stage that are dropped in one call."""


class Asked(NamedTuple):
    """Which entries of which logs a person wants to have sent again, and where to."""

    stage: str
    """Of a program, with its version or without, or an output."""
    log: str = ""
    """Only this one; '' for all that hold items of the stage."""
    first_ms: int | None = None
    last_ms: int | None = None
    is_missing: bool = False
    """Only what was never sent to the stage."""
    where: tuple[str, ...] = ()
    """`type=NAME`, `version=NAME`, `url=BEGINNING`."""


class Replay(NamedTuple):
    """One log into one stream, as the scripts take it (_replays.lua)."""

    id: str
    log: str
    target: str
    plan: bytes


class Count(NamedTuple):
    looked: int
    found: int
    has_gap: bool = False
    """The log has lost entries before they could be sent."""


async def plans_of(crawl: Shards, asked: Asked) -> list[Replay]:
    """Return what has to be done for what a person asked, one replay for each log.

    Raises:
        ConfigError: there is no such stage, no log of what it gets, or nothing in it; with what would mend it.
    """
    if asked.is_missing and (asked.where or asked.first_ms is not None):
        # One place in the log says up to where nothing is missing: what a walk left out would never be sent.
        raise ConfigError("--missing sends all that the stage never got: leave --where and --from out")
    name = crawl.first.keys.crawl
    status = await read_status(crawl.client, name)
    target = _target(status, asked.stage)
    row = (await _flow(crawl)).get(target)
    if row is None or not row.get("logs"):
        raise ConfigError(
            f"{target} gets nothing that a log holds, or an older version told of it: run the program once more"
        )
    kept = {log.name: log for log in status.logs}
    logs = [log for log in row["logs"] if log in kept and asked.log in ("", log)]
    if not logs:
        raise ConfigError(_no_log(target, asked, row["logs"], sorted(kept)))
    if not any(kept[log].entries for log in logs):
        raise ConfigError(
            f"nothing is in {_logs_text(logs)} (any more): a log keeps its entries {_kept_text(status, logs)}"
        )
    conditions: dict[str, Any] = {key: value for key, value in _parse_where(asked.where).items() if value}
    if asked.is_missing:
        conditions["is_missing"] = True
    if row.get("is_results"):
        conditions["is_results"] = True
    if row.get("takes"):
        conditions["takes"] = row["takes"]
    # To the end of what there is now: what comes later is sent by the crawl itself.
    with mapped_errors():
        now_ms = server_ms(await crawl.client.time())
    first = "-" if asked.first_ms is None else str(max(0, asked.first_ms))
    last = str(now_ms if asked.last_ms is None else min(now_ms, max(0, asked.last_ms)))
    stem = secrets.token_hex(3)
    return [
        Replay(
            f"{stem}{n if len(logs) > 1 else ''}",
            log,
            target,
            msgspec.json.encode({"log": log, "target": target, "first": first, "last": last, **conditions}),
        )
        for n, log in enumerate(logs)
    ]


async def count(crawl: Shards, replays: Sequence[Replay], watch: Watcher) -> Tally:
    """Count what replays would send, over all shards; `watch` may stop it. Word: FOUND."""
    tally = Tally()
    for replay in replays:
        for frontier in crawl:
            at, word = "", "MORE"
            while word == "MORE":
                word, at, looked, found = await frontier.count_replay(replay.plan, at)
                tally.looked += looked
                tally.words["FOUND"] += found
                if not watch(tally):
                    tally.is_cut = True
                    return tally
    return tally


async def is_any(crawl: Shards, replays: Sequence[Replay]) -> bool:
    """Return whether a replay would send anything at all."""
    return (await count(crawl, replays, lambda tally: not tally.words["FOUND"])).words["FOUND"] > 0


async def begin(crawl: Shards, replays: Sequence[Replay]) -> None:
    """Have them carried out; from here on the crawl does not end before they have.

    Raises:
        ConfigError: another one of the same log and stage is under way, or too many are.
    """
    name = crawl.first.keys.crawl
    for replay in replays:
        word, other = await crawl.first.plan_replay(replay.id, replay.plan)
        if word == "BUSY":
            raise ConfigError(
                f"replay {other} of log {replay.log} into {replay.target} is under way: it goes on while workers are "
                f"alive (streamcrawl status {name}); streamcrawl replay {name} --cancel {other} ends it"
                + "; --log begins the one of another log"
                * (len(replays) > 1)
            )
        if word == "MANY":
            raise ConfigError(f"20 replays are under way: wait until one of them ends (streamcrawl status {name})")
        if word != "OK":
            raise ConfigError(f"log {replay.log} or stage {replay.target} is gone")
    # Whoever goes on without waiting would not learn that a server forgot it in its last second.
    await crawl.first.wait_durable(DURABLE_WAIT_MS)


async def progress(crawl: Shards, replays: Sequence[Replay]) -> tuple[bool, Count]:
    """Return whether all of them have ended, and how far they are.

    Raises:
        StoreUnavailable: the store has forgotten one of them, because it was restarted or failed over.
    """
    looked = copied = 0
    has_ended, has_gap = True, False
    async with crawl.client.pipeline(transaction=False) as pipe:
        for frontier in crawl:
            for replay in replays:
                pipe.hget(frontier.keys.replays, f"{replay.id}:at")
                pipe.hmget(frontier.keys.replayed, [f"ended:{replay.id}", f"gap:{replay.id}"])
        with mapped_errors():
            answers: list[Any] = await pipe.execute()
    for n, (at, (ended, gap)) in enumerate(zip(answers[::2], answers[1::2], strict=True)):
        has_ended, has_gap = has_ended and ended is not None, has_gap or gap is not None
        row = at or ended
        if row is None and n >= len(replays):
            continue  # a shard that was not told of it yet
        if row is None:
            raise StoreUnavailable("the store was restarted and has forgotten this replay: ask for it again")
        _, looked_here, copied_here = row.decode().split(" ")
        looked, copied = looked + int(looked_here), copied + int(copied_here)
    return has_ended, Count(looked, copied, has_gap)


async def cancel(crawl: Shards, replay_id: str) -> None:
    """End a replay where it is; what it has sent stays sent.

    Raises:
        ConfigError: there is none of this id.
    """
    known = [one.id for one in (await read_status(crawl.client, crawl.first.keys.crawl)).replays]
    if replay_id not in known:
        raise ConfigError(f"no replay {replay_id!r} is under way: there is {', '.join(known) or 'none'}")
    for frontier in crawl:
        await frontier.cancel_replay(replay_id)


def _target(status: Status, name: str) -> str:
    """Return the line or output that a person means: exactly, or the only version of a stage, or that which is read."""
    names = [stage.stage for stage in status.stages if stage.kind in (STAGE, OUTPUT)]
    if name in names:
        return name
    of_name = [stage for stage in status.stages if stage.kind == STAGE and stage.stage.partition("@")[0] == name]
    candidates = of_name if len(of_name) == 1 else [stage for stage in of_name if stage.slots]
    if len(candidates) == 1:
        return candidates[0].stage
    if of_name:
        versions = ", ".join(stage.stage for stage in of_name)
        raise ConfigError(f"stage {name!r} has several versions: say which: --stage {versions}")
    raise ConfigError(f"there is no stage {name!r} in this crawl: there is {', '.join(names) or 'none'}")


async def _flow(crawl: Shards) -> dict[str, Any]:
    with mapped_errors():
        stored: Any = await crawl.client.hget(crawl.first.keys.state, "flow")
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(stored or b"{}", type=dict[str, Any])
    return {}


def _no_log(target: str, asked: Asked, wanted: Sequence[str], kept: Sequence[str]) -> str:
    if asked.log and asked.log not in wanted:
        return f"log {asked.log!r} holds nothing for {target}: what it gets would be in {', '.join(wanted)}"
    if any(log.startswith("fetched.") for log in wanted):
        return f"no pages are kept for {target}: --keep-bodies 24h does (or streamcrawl settings set … keep_bodies=24h)"
    is_kept = f"; kept is {', '.join(kept)}" if kept else ""
    return f"nothing of what {target} gets is kept: declare retain= where it comes from ({', '.join(wanted)}){is_kept}"


def _logs_text(logs: Sequence[str]) -> str:
    return f"log{'s' * (len(logs) > 1)} {', '.join(logs)}"


def _kept_text(status: Status, logs: Sequence[str]) -> str:
    keep_ms = max(log.keep_ms for log in status.logs if log.name in logs)
    return f"{keep_ms / 3_600_000:g} h" if keep_ms else "no time"


def _parse_where(pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in WHERE_KEYS or not equals or not value:
            raise ConfigError(f"--where {pair!r} will not do: write type=NAME, version=NAME or url=BEGINNING")
        if key in found:
            raise ConfigError(f"--where {key}= is given twice: one of each, and all must hold")
        found[key] = value
    return found


# -- a stage that nobody reads


def stage_to_drop(status: Status, name: str) -> StageStatus:
    """Return the stage of a line.

    Raises:
        ConfigError: there is none, or several versions.
    """
    line = _target(status, name)
    stage = next(one for one in status.stages if one.stage == line)
    if stage.kind != STAGE:
        raise ConfigError(f"{line} is an output: its records are written by the next run of the crawl, not dropped")
    return stage


async def drop(crawl: Shards, stage: str, *, watch: Watcher) -> Tally:
    """Drop what waits for a stage, is in hand or delayed there: up to the newest there is when it comes to a shard.

    Words: DROPPED.
    """
    tally = Tally()

    def is_over(dropped: int) -> bool:
        tally.looked += dropped
        tally.words["DROPPED"] += dropped
        tally.is_cut = not watch(tally)
        return tally.is_cut

    for frontier in crawl:
        key = stream_key(frontier.keys, STAGE, stage)
        with mapped_errors():
            newest: Any = await crawl.client.xrevrange(key, count=1)
        has_more = bool(newest)
        while has_more:
            dropped, has_more = await frontier.drop_items(stage, newest[0][0].decode())
            if is_over(dropped):
                return tally
        members: list[bytes] = []
        with mapped_errors():
            async for member, _ in crawl.client.zscan_iter(frontier.keys.delayed, match=f"stage|{stage}|*", count=1000):
                members.append(member)
                if len(members) == _MEMBERS_PER_CALL:
                    if is_over((await frontier.drop_items(stage, "", members))[0]):
                        return tally
                    members = []
        if members and is_over((await frontier.drop_items(stage, "", members))[0]):
            return tally
    return tally
