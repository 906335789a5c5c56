"""What the loops call: one method for each script, one object for each shard of a crawl.

`Frontier` never decides; it packs arguments, runs a script (lua/*.lua, whose headers are the contracts) and names the
answers. Every method may raise `StoreUnavailable` (back off and repeat: every script is safe to repeat) and `CrawlGone`
(end). Start at `open_shard`; whole crawls, of one shard or several, are opened by shards.py. Durations are int ms.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from redis.exceptions import RedisError, ResponseError

from streamcrawl.errors import ConfigError, StoreIncompatible
from streamcrawl.rules.task import Kind, encode_rest
from streamcrawl.rules.urls import domain_of, fingerprint
from streamcrawl.settings import SCHEMA, SettingClass, Settings, fields_of, key_of, show_value
from streamcrawl.store.connection import map_error, mapped_errors
from streamcrawl.store.keys import GROUP, Keys
from streamcrawl.store.recount import Walk
from streamcrawl.store.scripts import Scripts, source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from redis.asyncio import Redis

    from streamcrawl.rules.politeness import Refusal
    from streamcrawl.rules.task import CrawlTask, Outcome

LINKS_PER_CALL: Final = 250
"""Links in one script call at most: 250 new ones on as many new hosts take the server 3 to 4 ms (tests/integration/
test_store_cost.py), and no script should take over 5 ms."""
RECONCILED_PER_CALL: Final = 100
TAKEN_PER_CALL: Final = 100
"""Entries taken back in one call at most: 100 of as many hosts take the server 2 to 4 ms."""
TRIMMED_PER_CALL: Final = 100
DROPPED_PER_CALL: Final = 200
SYNCED_AFTER_S: Final = 2.0
"""With `appendfsync everysec`, the second of a sync that is late included."""
FETCH_STREAM: Final = "stream:fetch"
SEEDS: Final = "seeds"
LINKS: Final = "links"
SCRIPT_SETTINGS: Final[tuple[tuple[str, str], ...]] = (
    ("delay_ms", "delay_ms"),
    ("delay_factor", "delay_factor"),
    ("delay_max_ms", "delay_max_ms"),
    ("demotion_max", "demotion_max"),
    ("cap", "host_concurrency"),
    ("robots", "obey_robots"),
    ("pages_max", "pages_max"),
    ("pages_per_host_max", "pages_per_host_max"),
    ("frontier_max", "frontier_max"),
    ("revisit_ms", "revisit_ms"),
    ("one_round", "one_round"),
    ("seeds_max", "seeds_waiting_max"),
    ("sink_max", "sink_waiting_max"),
    ("sink_max_bytes", "sink_max_bytes"),
    ("crashes_max", "crashes_max"),
    ("stage_max", "stage_waiting_max"),
    ("stage_bytes", "stage_max_bytes"),
    ("keep_bodies", "keep_bodies_ms"),
    ("log_bytes", "log_max_bytes"),
)
"""Field of the state hash that scripts read, and the setting it comes from."""
_DIVIDED: Final = (
    "frontier_max", "seeds_waiting_max", "sink_waiting_max", "sink_max_bytes", "stage_waiting_max", "stage_max_bytes",
    "log_max_bytes",
)  # fmt: skip

_PACK: Final = msgspec.msgpack.Encoder().encode
_STR32: Final = struct.Struct(">BI").pack
"""Head of a msgpack string. Records of archives are no UTF-8, and the reader inside Redis 7.0 does not know `bin`."""
_SINK: Final = re.compile(r"^(?!(page|robots|sitemap|seed|links)(\.|$))[A-Za-z0-9._-]+$")
"""Part of a key and of the names of counters, where it must not meet those of the lines of tasks."""
_TAKEN: Final = frozenset(
    {"page", "robots", "sitemap", "seed", "links", "fetch", "reclaimed", "throttled", "supervisor"}
)
_STAGE: Final = re.compile(rf"^(?!(?:{'|'.join(sorted(_TAKEN))})(?:@|$))[a-z][a-z0-9_]{{0,39}}(?:@[a-z0-9_]{{1,20}})?$")
"""Of a stage, with its version: no output is called so (cli/opening.py gives them a dash)."""


def name_of(host: str, *, by_domain: bool) -> str:
    """Return a host key as scripts take it that may meet the host for the first time: with its registrable domain where
    politeness is by domain, because none of them knows a public suffix."""
    return f"{host}|{domain_of(host)}" if by_domain else host


def sink_stream(sink: str) -> str:
    """Return a sink's stream, without the crawl's prefix."""
    return f"{FETCH_STREAM}:{sink}"


def stage_stream(stage: str) -> str:
    """Return the stream of a program's stage, without the crawl's prefix."""
    return f"stream:{stage}"


class Entry(msgspec.Struct, frozen=True):
    """One entry as read from a work stream of one shard; ids are unique within their shard only."""

    id: str
    fields: dict[bytes, bytes]
    shard: int = 0

    @property
    def where(self) -> tuple[int, str]:
        """Return shard and id, by which it is known in a process that works for several."""
        return self.shard, self.id


class Links(msgspec.Struct):
    """Links in the form that scripts take, flat: fingerprint, host key, level, rest, …"""

    flat: list[str | bytes] = msgspec.field(default_factory=list)

    def add(self, task: CrawlTask, fp: int | None = None) -> None:
        """Add one task to offer; `fp` is its fingerprint when it is not that of its URL, as of a sitemap
        (`sitemap_fingerprint`), or the caller has it already."""
        known = fingerprint(task.known_as) if fp is None else fp
        self.flat += (str(known), task.host, task.level.value, encode_rest(task))

    def __len__(self) -> int:
        return len(self.flat) // 4

    def named(self, *, by_domain: bool) -> list[Any]:
        """Return them with their hosts as scripts take them (`name_of`)."""
        flat = _as_text(self.flat)
        if by_domain:
            flat[1::4] = [name_of(host, by_domain=True) for host in flat[1::4]]
        return flat

    def take(self, count: int) -> Links:
        """Remove the first `count` links and return them."""
        head = Links(self.flat[: count * 4])
        del self.flat[: count * 4]
        return head


@dataclass(slots=True)
class Commit:
    """How one entry ends; `detail` by outcome as the header of commit.lua lists it."""

    entry_id: str
    host: str
    kind: Kind
    outcome: Outcome
    is_fetched: bool = False
    """A request went out, so the host's delay counts from its end."""
    since_end_ms: int = 0
    block_ms: int = 0
    detail: Sequence[Any] = ()
    links: Links = field(default_factory=Links)
    items: Sequence[str | bytes] = ()
    """Flat: sink, record, sink, record, …"""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Links of the page that are not followed, by reason (`LeftOut`)."""
    server: str = ""
    """run_id of the server that took links of the page before; '' when there were none."""
    took_ms: int = 0
    """How long the request took, connecting included; 0 when that says nothing of what the host bears."""
    refusal: Refusal | None = None
    """Why the host's delay doubles."""
    url: str = ""
    """Of the page, for its items."""
    sketch: str = ""
    """Of a sample of pages, what tells one from others of its host (rules/alike.py)."""

    def pack(self, since_end_ms: int | None = None, *, by_domain: bool = False) -> bytes:
        """Return the form that the script takes; `by_domain` as the frontier has it."""
        values = [
            self.entry_id,
            self.host,
            self.kind.value,
            self.outcome.value,
            int(self.is_fetched),
            self.since_end_ms if since_end_ms is None else since_end_ms,
            self.block_ms,
            _as_text(self.detail) or None,
            self.links.named(by_domain=by_domain) or None,
            [msgspec.Raw(_STR32(0xDB, len(one)) + one) if isinstance(one, bytes) else one for one in self.items]
            or None,
            [part for pair in self.left_out.items() for part in pair] or None,
            self.server or None,
            self.took_ms or None,
            None if self.refusal is None else self.refusal.value,
            self.url or None,
            self.sketch or None,
        ]
        while values[-1] is None:
            values.pop()
        return _PACK(values)


@dataclass(slots=True, init=False)
class StageCommit(Commit):
    """How one entry of a stage ends; `detail` by outcome as the header of stage_commit.lua lists it."""

    def __init__(
        self,
        entry_id: str,
        outcome: Outcome,
        detail: Sequence[Any] = (),
        *,
        links: Links | None = None,
        items: Sequence[str | bytes] = (),
        left_out: Mapping[str, int] | None = None,
        server: str = "",
        host: str = "",
    ) -> None:
        """Describe the end; `host` is that of the page that the item comes from, for people."""
        Commit.__init__(
            self,
            entry_id,
            host,
            Kind.PAGE,
            outcome,
            detail=detail,
            links=links or Links(),
            items=items,
            left_out=left_out or {},
            server=server,
        )

    def pack(self, since_end_ms: int | None = None, *, by_domain: bool = False) -> bytes:
        """Return the form that the script takes; nothing of a stage is counted from the end of its work."""
        return _PACK(
            (
                self.entry_id,
                self.outcome.value,
                _as_text(self.detail),
                self.links.named(by_domain=by_domain),
                _as_text(self.items),
                [part for pair in self.left_out.items() for part in pair],
                self.server,
            )
        )


def _as_text(values: Sequence[Any]) -> list[Any]:
    # The msgpack reader inside Redis 7.0 does not know the `bin` type: bytes must go out as str.
    return [value.decode() if isinstance(value, bytes) else value for value in values]


class Dispatched(msgspec.Struct, frozen=True):
    moved: int
    next_ms: int
    """Until the next host is due; 0 when work is due already, -1 when nothing is scheduled."""
    word: str
    """OK, IDLE, FULL, BUDGET, PAUSED, THROTTLED, or the reason of a stop (FRONTIER_FULL, MEMORY_FULL, …)."""


class Wait(NamedTuple):
    """Why an entry goes back although neither its host nor its page is to blame, and for how long."""

    ms: int
    reason: str
    """`proxy_error` or `address_cap`, counted as `page.waited.<reason>`."""


class Mind(NamedTuple):
    """What every shard's state says alike, unless a change is under way or broke off."""

    version: int
    """Of the settings."""
    paused: str
    stopped: str


class Rest(NamedTuple):
    """Whether a shard has come to rest, as finish.lua says."""

    word: str
    """RUNNING, ENDED, LIMIT, STOPPED, PAUSED, UNFED or UNBALANCED."""
    created: int
    """Pages discovered and replayed so far; it only grows."""
    done: int
    mind: Mind
    has_replays: bool


class Allowance(NamedTuple):
    """What one shard may fetch of the crawl's page budget: `granted - returned` in all."""

    granted: int
    returned: int
    used: int
    """Pages done or under way."""
    queued: int
    """Tasks that wait, sitemaps and robots.txt among them; 0 when none of them can be had."""


class Committed(msgspec.Struct, frozen=True):
    words: list[str]
    """DONE, LEASE_LOST, RESTARTED or INVALID for each commit, in order."""
    dispatched: Dispatched


class Beat(msgspec.Struct, frozen=True):
    """What one worker reports: `slots` -1 says that it has left."""

    consumer: str
    stream: str
    slots: int
    info: str
    """JSON for people: pid, machine, role."""
    entry_ids: Sequence[str] = ()


class Frontier:
    """One shard of one crawl, with the epoch that this process joined."""

    def __init__(self, client: Redis, keys: Keys, epoch: str, *, by_domain: bool = False) -> None:
        self.by_domain: Final = by_domain
        """Whether all hosts of a registrable domain count as one (`politeness_by`)."""
        self.client = client
        self.keys = keys
        self.epoch = epoch
        self._scripts = Scripts(client, keys.state)
        self._run = self._scripts.run

    def scheduled_as(self, host: str) -> str:
        """Return by which name the schedule knows a host: its key, or its domain where politeness is by domain."""
        return domain_of(host) if self.by_domain else host

    def observe(self, told: Callable[[str, float], None]) -> None:
        """Tell the name of each script that was answered from now on, and the seconds that it took."""
        self._scripts.observe = told

    async def offer(self, links: Links, *, whose: str = SEEDS, can_wait: bool = False) -> tuple[str, int]:
        """Offer at most LINKS_PER_CALL links.

        Args:
            whose: SEEDS, which wait at the bounds; LINKS of a page in another shard; or the entry of this shard whose
                page they come from, as their fence.
            can_wait: They come from a sitemap, which can be read again: FULL while half of the frontier's bound waits.

        Returns:
            ("OK", how many were new) | ("LEASE_LOST", 0) | ("FULL", tasks queued) | ("WAIT", seeds that are not ended
            yet) | ("INVALID", which).
        """
        answer = await self._offer(links, whose, can_wait=can_wait)
        return answer[0].decode(), answer[1] if len(answer) > 1 else 0

    async def offer_seeds(self, links: Links) -> tuple[str, int, float]:
        """Offer seeds, at most LINKS_PER_CALL: as `offer` answers, and how full the crawl is, in parts of its bound."""
        answer = await self._offer(links, SEEDS, can_wait=False)
        word = answer[0].decode()
        return word, answer[1], answer[2] / 1000 if word == "OK" else 1.0

    async def _offer(self, links: Links, whose: str, *, can_wait: bool) -> Any:
        packed = _PACK(links.named(by_domain=self.by_domain))
        return await self._run("offer", self.epoch, whose, packed, "1" if can_wait else "0")

    async def dispatch(self, limit: int) -> Dispatched:
        answer = await self._run("dispatch", self.epoch, limit)
        return Dispatched(answer[1], answer[2], answer[3].decode())

    async def commit(self, worker: str, packed: Iterable[bytes], limit: int) -> Committed:
        """Commit packed `Commit`s, at most LINKS_PER_CALL links in all, and dispatch up to `limit` tasks."""
        answer = await self._run("commit", self.epoch, worker, limit, *packed)
        words = [word.decode() for word in answer[1]]
        return Committed(words, Dispatched(answer[2], answer[3], answer[4].decode()))

    async def stage_commit(
        self, worker: str, stage: str, packed: Iterable[bytes], limit: int
    ) -> tuple[list[str], frozenset[str]]:
        """Commit packed `StageCommit`s of one stage, at most LINKS_PER_CALL links in all.

        Returns:
            DONE, LEASE_LOST, RESTARTED or INVALID for each, in order; and the streams that are over their mark.
        """
        answer = await self._run("stage_commit", self.epoch, worker, stage, limit, *packed)
        return [word.decode() for word in answer[1]], _names(answer[2])

    async def flow(self, stages: Sequence[str], flow: bytes, logs: Mapping[str, int] | None = None) -> list[str]:
        """Tell the shard of the stages of a program, each of which gets its stream; returns all that there are now.

        Args:
            flow: JSON: stage or output -> {"from": lines that feed it, "batch": items in one call, …} (flow.lua).
            logs: Retained logs by name: ms for which each keeps what is written to it.
        """
        told = [part for pair in (logs or {}).items() for part in pair]
        answer = await self._run("flow", self.epoch, _PACK(list(stages)), flow, _PACK(told))
        return [name for name in answer[1].decode().split(",") if name]

    async def items_left(self, stage: str) -> int:
        """Return how many items of a stage are neither done nor dead."""
        with mapped_errors():
            counts: Any = await self.client.hmget(self.keys.totals, [f"{stage}.streamed", f"{stage}.delayed"])
        return sum(int(count or 0) for count in counts)

    async def logs(self) -> frozenset[str]:
        """Return the names of the retained logs that the shard knows."""
        with mapped_errors():
            value: Any = await self.client.hget(self.keys.state, "logs")
        return frozenset(name.partition("=")[0] for name in _names(value or b""))

    async def trim_logs(self, *, is_full: bool = False) -> tuple[int, bool]:
        """Remove up to TRIMMED_PER_CALL entries of each retained log that it need not keep; with `is_full` any, the
        oldest first. Returns how many, and whether there may be more."""
        answer = await self._run("trim", self.epoch, TRIMMED_PER_CALL, "1" if is_full else "")
        return answer[1], answer[2] == 1

    async def drop_items(self, stage: str, upto: str, delayed: Sequence[bytes] = ()) -> tuple[int, bool]:
        """Drop up to DROPPED_PER_CALL items of a stage's stream, the oldest first and none behind the entry `upto`, and
        these members of `delayed`. Returns how many, and whether there are more.

        Raises:
            ConfigError: there is no such stage.
        """
        answer = await self._run("drop", self.epoch, stage, upto, DROPPED_PER_CALL, _PACK(_as_text(delayed)))
        if answer[0] == b"UNKNOWN":
            raise ConfigError(f"there is no stage {stage!r} in this crawl")
        return answer[1], answer[2] == 1

    async def plan_replay(self, replay_id: str, plan: bytes) -> tuple[str, str]:
        """Begin a replay (its plan as _replays.lua says): OK, BUSY with the id of another one, MANY, or UNKNOWN."""
        answer = await self._run("plan", self.epoch, "begin", replay_id, plan)
        return answer[0].decode(), answer[1].decode() if len(answer) > 1 else ""

    async def cancel_replay(self, replay_id: str) -> None:
        """End a replay where it is."""
        await self._run("plan", self.epoch, "cancel", replay_id, "")

    async def count_replay(self, plan: bytes, at: str = "") -> tuple[str, str, int, int]:
        """Count what a replay would send, one step from behind the entry `at` on.

        Returns:
            (END: that was the last step, MORE or UNKNOWN; up to which entry; entries looked at; found).
        """
        answer = await self._run("plan", self.epoch, "count", at, plan)
        if answer[0] == b"UNKNOWN":
            return "UNKNOWN", "", 0, 0
        _, at_now, looked, found, word = answer
        return word.decode(), at_now.decode(), looked, found

    async def copy_replay(self, replay_id: str) -> tuple[str, int]:
        """Do one step of a replay, and return how many entries were copied.

        Words: OK, FULL, HELD, OVER, ENDED, or GAP: ended, but the log had lost entries before they could be sent.
        """
        answer = await self._run("copy", self.epoch, replay_id)
        word = answer[0].decode()
        return "GAP" if word == "ENDED" and answer[2] else word, answer[1] if len(answer) > 1 else 0

    async def throttled(self) -> frozenset[str]:
        """Return the streams that are over their mark."""
        with mapped_errors():
            value: Any = await self.client.hget(self.keys.state, "throttled")
        return _names(value or b"")

    async def start(
        self, entry_id: str, host: str, *, wait_max_ms: int | Literal["late"], margin_ms: int
    ) -> tuple[str, int]:
        """Ask whether a fetch may begin: ("START", 0), ("WAIT", ms), ("BACK", ms) or ("LEASE_LOST", 0).

        `wait_max_ms` "late" says that the START was had before and its request goes out only now.
        """
        answer = await self._run("start", self.epoch, entry_id, host, wait_max_ms, margin_ms)
        return answer[0].decode(), answer[1] if len(answer) > 1 else 0

    async def begin_visit(
        self, host: str, *, wait_max_ms: int, took_max_ms: int, is_kin: bool = False
    ) -> tuple[str, int, int]:
        """Ask whether a host may be asked for something of which this worker holds no entry.

        Args:
            is_kin: It holds one of another host that counts as the same, and has left both alone for their delay.

        Returns:
            ("GO", ms to wait before, reservation for `end_visit`) | ("WAIT", ms after which to ask again, 0) |
            ("NO", 0, 0): it is blocked or given up. After a crash the host is left alone until the request must be
            over.
        """
        name = name_of(host, by_domain=self.by_domain)
        answer = await self._run("visit", self.epoch, name, "begin", wait_max_ms, took_max_ms, int(is_kin))
        word, ms, reservation, *_ = *answer, 0, 0
        return word.decode(), ms, reservation

    async def end_visit(self, host: str, reservation: int, *, since_end_ms: int) -> None:
        """Say that the request of a visit has ended: the host's delay counts from there."""
        name = name_of(host, by_domain=self.by_domain)
        await self._run("visit", self.epoch, name, "end", since_end_ms, reservation)

    async def hand_back(
        self,
        stream: str,
        entry_ids: Sequence[str],
        *,
        is_robots_stale: bool = False,
        is_begun: bool = False,
        wait: Wait | None = None,
    ) -> int:
        """Give entries back that will not be finished; returns how many were still ours.

        Args:
            is_robots_stale: There was no robots verdict for their host; its gate asks again.
            is_begun: A fetch of them was broken off, so the host's delay counts from now.
            wait: How long their hosts are left alone, and why.
        """
        extra = () if wait is None else (wait.ms, wait.reason)
        how = "broken" if is_begun else "unjudged" if is_robots_stale else "unbegun"
        back = 0
        # The last first, as in the script: each goes to the head of its queue.
        for start in reversed(range(0, len(entry_ids), TAKEN_PER_CALL)):
            chunk = _PACK(list(entry_ids[start : start + TAKEN_PER_CALL]))
            answer = await self._run("hand_back", self.epoch, stream, chunk, how, *extra)
            back += answer[1]
        return back

    async def put_back(self, stream: str, consumer: str, *, is_crash: bool) -> int:
        """Take back all that a dead consumer held ('' for all consumers) and remove it; returns how many entries."""
        back: int = 0
        while True:
            answer = await self._run("put_back", self.epoch, stream, consumer, "1" if is_crash else "0", TAKEN_PER_CALL)
            back += answer[1]
            if not answer[2]:
                return back

    async def reclaim(self, stream: str, *, lease_ms: int, limit: int = TAKEN_PER_CALL) -> tuple[str, int]:
        """Take back what was not renewed for a lease: ("OK", count) or ("HOLD", ms)."""
        answer = await self._run("reclaim", self.epoch, stream, lease_ms, limit)
        return answer[0].decode(), answer[1]

    async def beat(self, beats: Sequence[Beat], *, lease_ms: int) -> tuple[list[list[str]], int]:
        """Renew leases; returns for each beat the ids that are lost, and the live fetch slots of the crawl."""
        packed = [_PACK((b.consumer, b.stream, b.slots, b.info, list(b.entry_ids))) for b in beats]
        answer = await self._run("beat", self.epoch, lease_ms, *packed)
        return [[entry_id.decode() for entry_id in lost] for lost in answer[1]], answer[2]

    async def due(self, limit: int = 100) -> tuple[int, int]:
        """Move due tasks back to their queues; returns how many, and ms to the next (0: more now, -1: none)."""
        answer = await self._run("due", self.epoch, limit)
        return answer[1], answer[2]

    async def revisit(self, limit: int = 100) -> tuple[int, int]:
        """Make tasks of pages that are due to be visited again; returns how many, and ms to the next (0: more now, -1:
        none, or none may be made now)."""
        answer = await self._run("revisit", self.epoch, limit)
        return answer[1], answer[2]

    async def give_up(self, *, after_ms: int, idle_ms: int, limit: int = 500) -> tuple[int, int, int]:
        """Returns tasks buried, hosts given up now, hosts that still have tasks to bury."""
        answer = await self._run("give_up", self.epoch, after_ms, idle_ms, limit)
        return answer[1], answer[2], answer[3]

    async def finish(self) -> Rest:
        """Ask whether the shard has come to rest."""
        word, created, done, version, paused, stopped, replays = await self._run("finish", self.epoch)
        return Rest(word.decode(), created, done, Mind(version, paused.decode(), stopped.decode()), replays == 1)

    async def feed(
        self,
        feeder: str,
        what: Literal["begin", "alone", "sign", "done", "leave", "open", "close"],
        *,
        lease_ms: int = 0,
        cursor: str = "",
    ) -> tuple[int, str]:
        """Say what becomes of the seeds of `feeder`, in the first shard; a `cursor` is kept with it until it is done.

        Returns how many feeders are left (0: the crawl is closed), and the cursor of this one ('' for none).
        """
        _, left, kept = await self._run("feed", self.epoch, feeder, what, lease_ms, cursor)
        return left, kept.decode()

    async def tune(self, version: int, settings: bytes, values: Sequence[str]) -> tuple[str, int]:
        """Put settings in force as `version`: ("OK", version), or ("CONFLICT", stored version) when that is not new.

        Args:
            settings: JSON that describes them; empty for shards but the first.
            values: Flat, what scripts read: field, value, …; '' removes one.
        """
        answer = await self._run("tune", self.epoch, version, settings, _PACK(list(values)))
        return answer[0].decode(), answer[1]

    async def replay(self, letters: Sequence[tuple[str, str, str, bytes]]) -> list[str]:
        """Send at most LINKS_PER_CALL dead letters back: (id, host key, level, task as it is to be queued).

        Returns QUEUED, ASKED (its host asks for robots.txt by itself), GONE or INVALID for each.
        """
        flat = [part for letter in letters for part in letter]
        answer = await self._run("replay", self.epoch, _PACK(_as_text(flat)))
        return [word.decode() for word in answer[1]]

    async def forget(self, letter_ids: Sequence[str]) -> int:
        """Remove at most 500 dead letters for good; returns how many there were."""
        forgotten: int = (await self._run("forget", self.epoch, _PACK(list(letter_ids))))[1]
        return forgotten

    async def purge(self, host: str, level: str, count: int, tasks: Sequence[bytes] | None) -> tuple[int, int]:
        """Take `count` tasks (at most 500) from the head of a host's queue; remove `tasks` of them (None: all), and put
        the others back at the tail. Returns how many were removed, and how many put back."""
        which = "all" if tasks is None else _as_text(tasks)
        answer = await self._run("purge", self.epoch, host, level, count, _PACK(which))
        return answer[1], answer[2]

    async def set_host(self, host: str, **values: str | int) -> str:
        """Say something of one host: `delay` in ms, `cap`, `blocked` 1, `chance` 1; '' goes back to the crawl's own.
        Where politeness is by domain, `delay` and `cap` are said of the host's domain.

        Returns OK, or MANY when too many hosts are blocked already.
        """
        flat = [part for name, value in values.items() for part in (name, str(value))]
        name = name_of(host, by_domain=self.by_domain)
        return (await self._run("host", self.epoch, name, _PACK(flat)))[0].decode()  # type: ignore[no-any-return]

    async def grant(self, shard: int, allowance: Allowance, *, wanted: int, budget: int) -> tuple[int, int]:
        """Ask the first shard for pages: what `shard` is granted in all, and what is left for everybody."""
        known = (allowance.granted, allowance.returned, allowance.used)
        answer = await self._run("grant", self.epoch, shard, *known, wanted, budget)
        return answer[1], answer[2]

    async def allow(self, granted: int | None, *, back: int = 0) -> Allowance:
        """Take a grant in, or give up to `back` unused pages back; None: the crawl has no limit."""
        answer = await self._run("allow", self.epoch, "" if granted is None else granted, back)
        return Allowance(*answer[1:])

    async def control(self, **values: str | int) -> None:
        """Set fields of the state; '' removes one."""
        flat = [part for name, value in values.items() for part in (name, str(value))]
        await self._run("control", self.epoch, _PACK(flat))

    async def reconcile(self) -> int:
        """Recompute the counts of every host from the structures; returns how many were wrong."""
        walk, mended = Walk(self.client, self.keys.fetch_stream), 0
        await walk.walk()
        async for hosts in self._every_host(RECONCILED_PER_CALL, sorted(walk.hosts)):
            async for answer in walk.ask(partial(self._run, "reconcile", self.epoch), hosts):
                mended += answer[1]
        return mended

    async def _every_host(self, size: int, streamed: Sequence[str]) -> AsyncIterator[list[str]]:
        """Yield the host keys of the shard, and then those that only an entry or a list of hosts may still have."""
        async for hosts in self.host_chunks(size):
            yield hosts
        for start in range(0, len(streamed), size):
            yield list(streamed[start : start + size])
        for key in (self.keys.blocked, self.keys.given_up, self.keys.demoted):
            members: list[str] = []
            with mapped_errors():
                async for member, _ in self.client.zscan_iter(key, count=size):
                    members.append(member.decode())
            for start in range(0, len(members), size):
                yield members[start : start + size]

    def audit(self, walk: Walk, hosts: Sequence[str]) -> AsyncIterator[list[Any]]:
        """Yield raw answers of audit.lua for at most 200 hosts: one, or several where hosts have very many entries."""
        return walk.ask(partial(self._run, "audit", self.epoch), hosts)

    async def sink_open(self, sink: str, consumer: str, *, lease_ms: int) -> tuple[str, int, int, str]:
        """Become the writer of a sink: ("OK", writer epoch, offset, part), or ("BUSY", 0, 0, "") while one lives."""
        while True:
            answer = await self._run("sink_open", self.epoch, sink, consumer, lease_ms, 250)
            if answer[0] == b"BUSY":
                return "BUSY", 0, 0, ""
            if not answer[3]:
                return "OK", answer[1], answer[2], answer[4].decode()

    async def sink_commit(
        self,
        sink: str,
        *,
        writer: int,
        expected: int,
        offset: int,
        entry_ids: Sequence[str],
        part: str = "",
        size: int = 0,
        server: str = "",
    ) -> tuple[str, Any]:
        """("DONE", None), ("LEASE_LOST", [ids]), ("OFFSET_MISMATCH", stored offset), ("RESTARTED", None) or
        ("REPLACED", None); `server` is the run_id of the one that said the offsets, `size` that of the records."""
        ids = _PACK(list(entry_ids))
        answer = await self._run("sink_commit", self.epoch, sink, writer, expected, offset, ids, server, part, size)
        word = answer[0].decode()
        rest: Any = answer[1] if len(answer) > 1 else None
        if word == "LEASE_LOST":
            rest = [entry_id.decode() for entry_id in rest]
        return word, rest

    async def wait_durable(self, timeout_ms: int) -> bool:
        """Wait until all that was written before is on the server's disk; False when it is not after `timeout_ms`.

        Its replicas are given as long to get it. A server that keeps no append-only file has nothing to wait for. One
        that is older than WAITAOF (Redis 7.2) syncs every second, and is given two.
        """
        with mapped_errors():
            info: Any = await self.client.info("replication")
            pipe: Any = self.client.pipeline(transaction=False)
            # Both go by the last write of their own connection; each script writes the clock.
            pipe.execute_command("EVAL", source("control"), 1, self.keys.state, self.epoch, _PACK([]))
            pipe.execute_command("WAIT", info.get("connected_slaves", 0), timeout_ms)
            pipe.execute_command("WAITAOF", 1, 0, timeout_ms)
            answers = await pipe.execute(raise_on_error=False)
            synced = answers[-1]
            for answer in answers:
                if isinstance(answer, Exception) and (answer is not synced or not isinstance(answer, ResponseError)):
                    raise answer
            if not isinstance(synced, ResponseError):
                return bool(synced[0])
            persistence: Any = await self.client.info("persistence")
        if persistence.get("aof_enabled"):
            await asyncio.sleep(SYNCED_AFTER_S)
        return True

    async def cookies(self, jar: str, changes: Sequence[Any] = ()) -> list[Any]:
        """Change cookies of a jar (`host:<authority>`, `site:<domain>`), and return those that are in it.

        Args:
            changes: Flat: what names the cookie, flags, value, how long it lasts in ms (0: no end, -1: it goes), …

        Returns:
            The same, flat, without those that have expired.
        """
        answer = await self._run("cookies", self.epoch, jar, _PACK(list(changes)))
        return [part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in answer[1]]

    async def addresses(self, given: Sequence[str], wanted: Sequence[str], *, cap: int, ttl_ms: int) -> list[int]:
        """Give leases of IP addresses back (address, member, …), then take some (address, member, host key, …).

        Returns for each of the wanted 0, or the ms after which its host should ask again.
        """
        answer = await self._run("addresses", self.epoch, _PACK(list(given)), _PACK(list(wanted)), cap, ttl_ms)
        return list(answer[1])

    async def robots(self, origin: str) -> bytes | None:
        """Return the stored verdict of an origin; None when it was never fetched or has expired."""
        try:
            value: Any = await self.client.get(self.keys.robots(origin))
        except (RedisError, OSError) as error:
            raise map_error(error) from error
        return value  # type: ignore[no-any-return]

    async def pending_of(self, stream: str, consumer: str, limit: int = 1000) -> list[str]:
        """Return the ids of entries delivered to a consumer and not acknowledged, oldest first."""
        try:
            rows: Any = await self.client.xpending_range(self.keys.prefix + stream, GROUP, "-", "+", limit, consumer)
        except (RedisError, OSError) as error:
            raise map_error(error) from error
        return [row["message_id"].decode() for row in rows]

    async def host_chunks(self, size: int) -> AsyncIterator[list[str]]:
        """Yield the host keys of the shard in lists of at most `size`, by SCAN: each at least once while it exists."""
        start = len(self.keys.host(""))
        chunk: list[str] = []
        seen: set[str] = set()
        try:
            pattern = self.keys.pattern.removesuffix("*") + "host:*"
            async for key in self.client.scan_iter(match=pattern, count=1000, _type="hash"):
                host = key[start:].decode()
                if host in seen:
                    continue
                seen.add(host)
                chunk.append(host)
                if len(chunk) == size:
                    yield chunk
                    chunk = []
        except (RedisError, OSError) as error:
            raise map_error(error) from error
        if chunk:
            yield chunk


def _names(joined: bytes) -> frozenset[str]:
    return frozenset(name for name in joined.decode().split(",") if name)


def check_stage(line: str) -> None:
    """Raise ConfigError for the name of a stage, with its version, that cannot be."""
    if not _STAGE.match(line):
        raise ConfigError(
            f"stage name {line!r} will not do: use small letters, digits and underscores, and none of "
            f"{', '.join(sorted(_TAKEN))}"
        )


def script_values(settings: Settings) -> list[str]:
    """Return the tunable settings that scripts read, flat: field, value, …; '' for one that is not set.

    Bounds of the whole crawl are divided among its shards; the budget of pages is granted (work/budget.py).
    """
    flat: list[str] = []
    for name, setting in SCRIPT_SETTINGS:
        value = getattr(settings, setting)
        if setting in _DIVIDED and value is not None:
            value = -(-value // settings.shards)
        if setting == "pages_max" and settings.shards > 1:
            continue
        flat += (name, "" if value is None else str(int(value)))
    return flat


def other_schema(name: str, stored: bytes | None) -> StoreIncompatible:
    """Return the refusal of a crawl that another version wrote, with what mends it."""
    schema = int(stored or 0)
    if schema > SCHEMA:
        return StoreIncompatible(
            f"crawl {name!r} was written by a newer version of streamcrawl (schema {schema}, this one reads {SCHEMA}): "
            "install that version here too, or delete the crawl with --fresh"
        )
    return StoreIncompatible(
        f"crawl {name!r} was written by an older version of streamcrawl (schema {schema}, this one reads {SCHEMA}): "
        "`streamcrawl crawl --resume`, `worker` or `seed` upgrades it; until then only `status` and `audit` read it"
    )


def _unlike(stored: str, settings: Settings) -> str:
    """Return in which settings a crawl is another one: `politeness_by=domain (asked for is host)`."""
    plain, known = Settings(name=settings.name), msgspec.json.decode(stored, type=dict[str, Any])
    had = {
        field: show_value(field, known.get(field, getattr(plain, field))) for field in fields_of(SettingClass.IDENTITY)
    }
    asked = {field: show_value(field, getattr(settings, field)) for field in had}
    return ", ".join(
        f"{key_of(field)}={value} (asked for is {asked[field]})"
        for field, value in had.items()
        if value != asked[field]
    )


async def open_shard(
    client: Redis, settings: Settings, *, sinks: Sequence[str] = (), shard: int = 0, epoch: str = "", given: bytes = b""
) -> tuple[Frontier, bool]:
    """Create one shard of a crawl, or join it as it is.

    Args:
        epoch: Of the first shard, for the others; '' for the first.
        given: For a new first shard: JSON of what its settings were set to.

    Returns:
        The frontier, and whether the shard was created by this call.

    Raises:
        StoreIncompatible: another version of streamcrawl wrote it.
        ConfigError: an identity setting, or the set of sinks, differs from the stored one; a sink's name cannot be; or
            a deletion of the crawl did not come to its end.
    """
    for sink in sinks:
        if not _SINK.match(sink):
            raise ConfigError(f"output name {sink!r} will not do: use letters, digits, dots, dashes, underscores")
    keys = Keys(settings.name, shard)
    run = Scripts(client, keys.state).run
    identity = msgspec.json.encode(settings.identity()).decode()
    values = [*script_values(settings), "version", "1"]
    if shard == 0:
        values += ("settings", given.decode())
    else:
        # Whether seeds may come is known to the first shard only.
        values += ("closed", "1")
    if settings.shards > 1 and settings.pages_max is not None:
        values += ("pages_max", "0")  # until it is granted some
    by_domain = settings.politeness_by == "domain"
    if by_domain:
        values += ("by_domain", "1")
    answer = await run("open", epoch or secrets.token_hex(8), SCHEMA, identity, _PACK(list(sinks)), _PACK(values))
    word = answer[0].decode()
    stored = answer[1].decode()
    if word == "SCHEMA":
        raise other_schema(settings.name, answer[1])
    if word == "IDENTITY":
        raise ConfigError(
            f"crawl {settings.name!r} exists with {_unlike(stored, settings)}: these cannot change; give the stored "
            "values, another --name, or --fresh to delete it"
        )
    if word == "SINKS":
        raise ConfigError(
            f"crawl {settings.name!r} exists with other outputs ({stored or 'none'}); give the same -o, another "
            "--name, or --fresh to delete it"
        )
    if word == "LEFTOVER" or (epoch and stored != epoch):
        raise ConfigError(
            f"crawl {settings.name!r} is being deleted, or a deletion broke off; "
            "`streamcrawl delete` or --fresh ends it"
        )
    return Frontier(client, keys, stored, by_domain=by_domain), word == "OPENED"
