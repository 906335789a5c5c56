"""The name of every key in Redis. No other module spells one (a script derives them from `prefix` by the same words).

All keys of a shard share the hash tag `{crawl:shard}`, so any script may touch any of them, in a cluster too.
`describe` is the closed list: a key it does not know is a fault, and `streamcrawl audit` reports it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

ROOT: Final = "streamcrawl"
GROUP: Final = "workers"
"""The one consumer group of every work stream."""
FETCH: Final = "fetch"
CRAWLS: Final = f"{ROOT}:crawls"
"""A set with the name of every crawl of the server: it belongs to no crawl, and no script touches it."""
QUEUES: Final = f"{ROOT}:queues"
"""The same for every TaskQueue."""


_SHARD: Final = re.compile(rf"^{ROOT}:\{{[^:{{}}]+:(\d+)\}}:")


class KeyKind(NamedTuple):
    """What a key is: its Redis type, and whether it stays until the crawl is deleted (else it carries a TTL)."""

    word: str
    type: str
    is_permanent: bool


_KINDS: Final[tuple[tuple[re.Pattern[str], KeyKind], ...]] = tuple(
    (re.compile(pattern), KeyKind(word, kind, is_permanent))
    for pattern, word, kind, is_permanent in (
        (r"^seen:\d+$", "seen", "set", True),
        (r"^queue:.+:[0-3]$", "queue", "list", True),
        (r"^host:.+$", "host", "hash", True),
        (r"^domain:.+$", "domain", "hash", True),
        (r"^turns:.+$", "turns", "zset", True),
        (r"^probes:.+$", "probes", "zset", True),
        (r"^schedule$", "schedule", "zset", True),
        (r"^delayed$", "delayed", "zset", True),
        (r"^revisits$", "revisits", "zset", True),
        (r"^failing$", "failing", "zset", True),
        (r"^giving_up$", "giving_up", "zset", True),
        (r"^given_up$", "given_up", "zset", True),
        (r"^demoted$", "demoted", "zset", True),
        (r"^blocked$", "blocked", "zset", True),
        (r"^stream:fetch$", "stream", "stream", True),
        (r"^stream:fetch:[A-Za-z0-9._-]+$", "stream", "stream", True),
        (r"^stream:[a-z][a-z0-9_]*(@[a-z0-9_]+)?$", "stream", "stream", True),
        (r"^log:[a-z][a-z0-9_.]*$", "log", "stream", True),
        (r"^replays$", "replays", "hash", True),
        (r"^replayed$", "replayed", "hash", True),
        (r"^dead$", "dead", "stream", True),
        (r"^totals$", "totals", "hash", True),
        (r"^state$", "state", "hash", True),
        (r"^workers$", "workers", "hash", True),
        (r"^offsets$", "offsets", "hash", True),
        (r"^feeders$", "feeders", "hash", True),
        (r"^grants$", "grants", "hash", True),
        (r"^robots:.+$", "robots", "string", False),
        (r"^cookies:.+$", "cookies", "hash", False),
        (r"^address:.+$", "address", "zset", False),
        (r"^awaiting:.+$", "awaiting", "zset", False),
    )
)


def crawl_pattern(crawl: str) -> str:
    """Return a glob for SCAN that matches the keys of all shards of a crawl, and of no other."""
    return _escaped(f"{ROOT}:{{{crawl}:") + "*"


def shard_in(key: str) -> int | None:
    """Return the number of the shard that a key belongs to; None when its name has none."""
    match = _SHARD.match(key)
    return int(match[1]) if match else None


def _escaped(prefix: str) -> str:
    return re.sub(r"([\[\]\\?*^])", r"\\\1", prefix)


class _Prefixed:
    """What all keys of one owner have in common: they begin alike, and there is a closed list of them."""

    def __init__(self, prefix: str, kinds: tuple[tuple[re.Pattern[str], KeyKind], ...]) -> None:
        self.prefix: Final = prefix
        self._kinds = kinds

    @property
    def pattern(self) -> str:
        """Glob for SCAN that matches every key of this owner and of no other."""
        return _escaped(self.prefix) + "*"

    def describe(self, key: str) -> KeyKind | None:
        """Return what a key of this owner is; None when no such key should exist."""
        if not key.startswith(self.prefix):
            return None
        name = key[len(self.prefix) :]
        return next((kind for pattern, kind in self._kinds if pattern.match(name)), None)


class Keys(_Prefixed):
    """The keys of one shard of one crawl."""

    def __init__(self, crawl: str, shard: int = 0) -> None:
        self.crawl: Final = crawl
        self.shard: Final = shard
        super().__init__(f"{ROOT}:{{{crawl}:{shard}}}:", _KINDS)
        self.state: Final = self.prefix + "state"
        """KEYS[1] of every script; the script takes the prefix from it."""
        self.totals: Final = self.prefix + "totals"
        self.schedule: Final = self.prefix + "schedule"
        self.delayed: Final = self.prefix + "delayed"
        self.revisits: Final = self.prefix + "revisits"
        """Pages that are to be visited again, by the wall clock."""
        self.failing: Final = self.prefix + "failing"
        self.giving_up: Final = self.prefix + "giving_up"
        self.given_up: Final = self.prefix + "given_up"
        self.demoted: Final = self.prefix + "demoted"
        """Hosts that yield nothing but near-identical pages, since when (wall clock)."""
        self.blocked: Final = self.prefix + "blocked"
        self.dead: Final = self.prefix + "dead"
        self.workers: Final = self.prefix + "workers"
        self.offsets: Final = self.prefix + "offsets"
        self.feeders: Final = self.prefix + "feeders"
        """Of the first shard only, which knows who offers seeds to the crawl."""
        self.grants: Final = self.prefix + "grants"
        """Of the first shard only: pages of `--max-pages` that each shard may fetch."""
        self.replays: Final = self.prefix + "replays"
        """Of retained logs into streams, under way."""
        self.replayed: Final = self.prefix + "replayed"
        self.fetch_stream: Final = self.prefix + "stream:fetch"

    def sink_stream(self, sink: str) -> str:
        return f"{self.prefix}stream:fetch:{sink}"

    def stage_stream(self, stage: str) -> str:
        return f"{self.prefix}stream:{stage}"

    def log(self, name: str) -> str:
        return f"{self.prefix}log:{name}"

    def host(self, host: str) -> str:
        return f"{self.prefix}host:{host}"

    def domain(self, domain: str) -> str:
        """Where politeness is by domain: what else would be in the hash of each of its hosts."""
        return f"{self.prefix}domain:{domain}"

    def turns(self, domain: str) -> str:
        """Hosts of a domain that are ready, by the time since which they wait; `probes` has those that fail."""
        return f"{self.prefix}turns:{domain}"

    def probes(self, domain: str) -> str:
        return f"{self.prefix}probes:{domain}"

    def queue(self, host: str, level: str) -> str:
        return f"{self.prefix}queue:{host}:{level}"

    def robots(self, origin: str) -> str:
        return f"{self.prefix}robots:{origin}"

    def seen(self, bucket: int) -> str:
        return f"{self.prefix}seen:{bucket}"


_QUEUE_KINDS: Final[tuple[tuple[re.Pattern[str], KeyKind], ...]] = tuple(
    (re.compile(pattern), KeyKind(word, kind, True))
    for pattern, word, kind in (
        (r"^stream:\d$", "stream", "stream"),
        (r"^delayed$", "delayed", "zset"),
        (r"^dead$", "dead", "stream"),
        (r"^totals$", "totals", "hash"),
        (r"^state$", "state", "hash"),
        (r"^members$", "members", "hash"),
        (r"^puts$", "puts", "hash"),
        (r"^settles$", "settles", "hash"),
        (r"^ids$", "ids", "zset"),
    )
)


class QueueKeys(_Prefixed):
    """The keys of one TaskQueue. Its hash tag is its name alone, and `queue:` before it keeps it apart from crawls."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        super().__init__(f"{ROOT}:queue:{{{name}}}:", _QUEUE_KINDS)
        self.state: Final = self.prefix + "state"
        """KEYS[1] of every script; the script takes the prefix from it."""
        self.totals: Final = self.prefix + "totals"
        self.delayed: Final = self.prefix + "delayed"
        self.dead: Final = self.prefix + "dead"
        self.members: Final = self.prefix + "members"
        """The TaskQueue objects that live, of all processes, each with the time of its last beat."""
        self.puts: Final = self.prefix + "puts"
        """For each member the number of its last accepted item: what makes a repeated put harmless."""
        self.settles: Final = self.prefix + "settles"
        """For each member its last answer about what it settled."""
        self.ids: Final = self.prefix + "ids"
        """Ids that callers gave to items, by the time of the put."""

    def stream(self, level: int) -> str:
        return f"{self.prefix}stream:{level}"
