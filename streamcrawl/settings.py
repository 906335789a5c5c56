"""Every setting of a crawl, in one frozen object: defaults < TOML file < environment < flags.

`gather` reads what was given and remembers where (`Given`), `make_settings` merges that over the defaults and checks
the values; start at those two. `CLASSES` says of each setting whether and how it may change once its crawl exists.
Durations are int milliseconds and sizes int bytes in here; seconds and units exist only at the edges (`read_value`
and its inverse `show_value`). Never reads or writes Redis. Every bound names its reason.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, overload

import msgspec

from streamcrawl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA: Final = 2
"""Version of everything stored in Redis; a crawl of another schema is refused."""

ENVIRONMENT_PREFIX: Final = "STREAMCRAWL_"
CONFIG_MAX_BYTES: Final = 1_000_000
"""Of a settings file: a log or a device that was named by mistake must not fill the memory."""

ScopeKind = Literal["host", "domain", "prefix", "any"]
CookieKind = Literal["off", "host", "crawl"]
PolitenessKind = Literal["host", "domain"]

# Fifteen digits: more overflow a float, and no crawl lasts 30,000 years.
_DURATION = re.compile(r"^\s*(\d{1,15}(?:\.\d{1,15})?)\s*(ms|s|m|h|d|w)?\s*$")
_DURATION_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = re.compile(r"^\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kKmMgGtT])?(i?)[bB]?\s*$")
_SIZE_POWER: Final[dict[str, int]] = {"k": 1, "m": 2, "g": 3, "t": 4}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NAMESERVER = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)|[0-9a-fA-F:.]+)(?::([0-9]{1,5}))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PARAMETER: Final = re.compile(r"[^\s&=#?,*]{0,99}(?:[^\s&=#?,*]|\*)")
_CONTACT: Final = re.compile(r"(?:[!-'*-?A-~]{1,100}@|https?://)[!-'*-?A-~]{1,200}")
"""Of ASCII without blanks, brackets and a second @: it stands in a comment of a header."""
_SWITCH: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_NONE: Final = ("none", "no limit")
_AUTO: Final = "auto"
_SLOTS: Final = re.compile(r"([+-]?[0-9]{1,18})(?:\s*-\s*([0-9]{1,18}))?")


class SlotLimits(msgspec.Struct, frozen=True):
    """How many work slots a process has: from `least` to `most`, by what it can bear (rules/concurrency.py)."""

    least: int
    most: int

    @property
    def is_fixed(self) -> bool:
        return self.least == self.most


SLOTS_AUTO: Final = SlotLimits(16, 256)
"""16 keep a process busy whose pages come within its own time for one, as from the next room; with 256 it is busy while
they take a quarter of a second."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one crawl. Build it with `make_settings`, which checks the values."""

    name: str
    # -- identity
    shards: int = 1
    drop_params: tuple[str, ...] = ()
    """Names of query parameters to take out of every URL, `ref` or `utm_*`; the words `tracking` and `sessions` stand
    for the lists in rules/urls.py, the second also for session ids in the path."""
    sort_query: bool = False
    """Query parameters in the order of their names: for sites that write the same ones in different orders."""
    politeness_by: PolitenessKind = "host"
    """What `delay`, `host_concurrency`, Retry-After and back-off are of: each host key by itself, or all hosts of a
    registrable domain together, whatever their schemes and ports."""

    # -- what belongs to the crawl
    scope: ScopeKind = "host"
    allow: tuple[str, ...] = ()
    """Regular expressions (re.search on the canonical URL); when any is given, a link must match one."""
    deny: tuple[str, ...] = ()
    """A link that matches one is out, whatever `allow` says."""
    depth_max: int | None = None
    """Links further than this many steps from a seed are not followed; 0 fetches the seeds only."""
    pages_max: int | None = None
    pages_per_host_max: int | None = None
    sitemaps: bool = False
    """Read the sitemaps of every host that a page is fetched from: those of its robots.txt, else /sitemap.xml."""
    revisit_ms: int | None = None
    """A page is fetched again after this time, and from then on sooner or later as it changes (rules/revisit.py)."""
    revisit_min_ms: int | None = None
    """The shortest that becomes; None: an eighth of `revisit`."""
    revisit_max_ms: int | None = None
    """The longest; None: eight times `revisit`."""
    one_round: bool = False
    """The crawl ends when no page is due; without, it goes on for as long as any page is to be fetched again."""
    unchanged_records: bool = False
    """A record, with status 304, also for a page that its host says is unchanged; in a program a call of its handler,
    whose response has that status and no body."""
    url_max_bytes: int = 2083
    """Longer URLs are dropped; the length the oldest browsers in use accept, and what real links stay under."""

    # -- traps (rules/traps.py): links that are not followed, counted by reason; None leaves a rule out
    path_depth_max: int | None = 20
    """Folders and the file. Heritrix draws the line at 20 too; the documentation of Python, SQLite and PostgreSQL stays
    under 10, and a file of the Linux source in a repository viewer under 16."""
    repeats_max: int | None = 2
    """How often a run of path segments may stand in a row; a single one may stand anywhere twice as often, and so may
    a parameter with its value. A relative link that lacks its slash makes /a/b/a/b/a/b, and never ends."""
    query_params_max: int | None = 50
    """The search forms with the most fields that are linked to have some forty."""
    query_growth_max_bytes: int | None = 1000
    """A longer query that only adds to that of the page it was found on is not followed: filters on filters."""
    calendar_ahead_max: int | None = 5
    """Years: sites announce events that far ahead; a calendar has a next month for ever."""
    calendar_back_max: int | None = 100
    """Years that the previous month of a calendar is followed: archives of newspapers go back further, and raise it."""

    # -- politeness
    delay_ms: int = 1000
    """Between the end of one fetch of a host and the start of the next: the least there is."""
    delay_factor: int = 2
    """Times as long as its answers take a host is left alone, if that is more than `delay`: with 2 and one fetch at a
    time it is busy with us a third of the time at most. 0: its answers may take as long as they want."""
    delay_max_ms: int = 60_000
    """Slow answers and refusals make no delay longer than this; 0, or no more than `delay`: they change nothing."""
    demotion_max: int = 16
    """Times its delay a host is left alone at most, while others wait, of which nine in ten pages are near-identical
    (_alike.lua); within `delay_max`. 0 or 1: none is. A host that is wrongly taken for one comes later, and is done."""
    host_concurrency: int = 1
    ip_concurrency: int = 0
    """Fetches at a time of one IP address (of IPv6 one /64), as far as can be told; 0 for any number. Off by default:
    thousands of sites share the addresses of a CDN whose ranges nobody listed, and each worker asks for each fetch."""
    ip_exempt: tuple[str, ...] = ("cdn",)
    """Networks (`203.0.113.0/24`) that `ip_concurrency` leaves alone; `cdn` stands for the list in rules/cdn.py."""
    obey_robots: bool = True
    user_agent: str = "streamcrawl/0.1"
    contact: str | None = None
    """An e-mail address or a page, sent behind the User-Agent: whom owners of sites can write to."""
    crawl_delay_max_ms: int = 30_000
    """A larger Crawl-delay in robots.txt counts as this: one file must not park a host for days."""
    retry_after_max_ms: int = 3_600_000
    """A larger Retry-After counts as this."""
    robots_ttl_ms: int = 86_400_000
    """RFC 9309 section 2.4: a cached robots.txt should not be used for more than 24 hours. Its Cache-Control may
    ask for less."""
    robots_ttl_min_ms: int = 3_600_000
    """A shorter Cache-Control counts as this, no-cache too: robots.txt must not be asked for between any two pages."""

    # -- fetching
    timeout_ms: int = 30_000
    """The whole fetch, redirects within the host included each by itself."""
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 20_000
    """Between two reads of a body."""
    rate_min_bytes: int = 100
    """Least bytes a second of a body on the wire, asked for once a third of `timeout` has passed since its head: a drip
    of one byte now and then passes every other limit but the last, and holds a slot. 0 for none."""
    body_max_bytes: int = 10_000_000
    """Of the decompressed body."""
    allow_private: bool = False
    """Connect to addresses that are not public although no seed is there; never to a cloud's metadata service."""
    insecure: bool = False
    """Take any TLS certificate."""
    proxied: bool = False
    """A worker without `proxies` fetches nothing: set when a crawl is created with some, because they are not kept, and
    one that is started without would go out by an address that nobody meant."""
    cookies: CookieKind = "off"
    """`host`: a cookie goes back to the host and port that set it, and nowhere else. `crawl`: where browsers send it,
    other hosts of its domain included. One jar for all workers, in Redis (rules/cookies.py)."""
    redirects_max: int = 10
    refresh_max_ms: int | None = 1000
    """A page that sends its visitors on within this time (meta refresh) is a redirect; one that lets them read first is
    a page with a link, and so are all with None. People see nothing of a page that stays for less."""
    links_max: int = 50_000
    """Links taken from one page; the rest is ignored and counted."""

    # -- retries and giving up
    attempts_max: int = 3
    retry_base_ms: int = 1000
    retry_max_ms: int = 300_000
    host_backoff_base_ms: int = 1000
    host_backoff_max_ms: int = 120_000
    host_give_up_ms: int = 3_600_000
    host_give_up_idle_ms: int = 300_000
    """The same once nothing else is left to do."""
    crashes_max: int = 3
    """Crashes of a worker with the task in hand and no other, after which the task is dead."""
    handler_timeout_ms: int = 600_000
    keep_bodies_ms: int | None = None
    """Of a program whose page handler is a stage of its own: how long fetched pages are kept, with their bodies, to be
    parsed again by `replay` without a fetch."""

    # -- workers
    processes: int | None = 1
    """Of the fetch, of each stage of a program too; None for as many in all as there are cores (work/machine.py)."""
    concurrency: SlotLimits = SLOTS_AUTO
    """Work slots of each process that fetches; 64 to begin with, where that is within the limits."""
    lease_ms: int = 30_000
    headers: tuple[str, ...] = ()
    """`PATTERN: Name: value`, sent to hosts that match (rules/host_headers.py)."""
    auth: tuple[str, ...] = ()
    """`PATTERN: user:password`. Neither leaves the machine but to its hosts: they are not kept in Redis."""
    proxies: tuple[str, ...] = ()
    """`http://`, `socks5://` or `socks5h://` URLs (rules/proxies.py), by which hosts are asked; each host keeps one.
    Not kept in Redis either."""
    nameservers: tuple[str, ...] = ()
    """`ADDRESS` or `ADDRESS:PORT` ([ADDRESS]:PORT for IPv6), asked instead of those of the operating system."""
    grace_ms: int = 30_000
    """From the first SIGTERM until what still runs is handed back."""
    metrics_port: int | None = None
    """Where this machine's workers show their metrics; 0 for any that is free, None for not at all."""
    metrics_host: str = "127.0.0.1"
    traces: int | None = None
    """One page of so many is followed by OpenTelemetry (work/traces.py): each costs six spans or more and 0.3 ms."""
    handler: str | None = None
    """`module:function` called with each page; None keeps the page record itself."""

    # -- bounds of the store
    frontier_max: int = 20_000_000
    seeds_waiting_max: int = 2_000_000
    """Seeds that are not ended yet, beyond which whoever feeds more waits: some 400 MB of Redis."""
    memory_max_bytes: int | None = None
    sink_waiting_max: int = 10_000
    """Records waiting in a sink's stream above 80 % of which fetching stops, until under 20 %."""
    sink_max_bytes: int = 64_000_000
    """The same of their bytes: those of an archive hold whole bodies, compressed."""

    # -- outputs
    rotate_size_bytes: int | None = None
    """Files of an output are finished when they have so many bytes, and another one is begun."""
    rotate_every_ms: int | None = None
    """The same when the first record of one is that old."""
    stage_waiting_max: int = 1000
    """Items waiting in the stream of a program's stage above 80 % of which what feeds it stops, until under 20 %. Never
    less than two batches, or two rounds of its live slots."""
    stage_max_bytes: int = 64_000_000
    """The same by the length of all items in the stream."""
    log_max_bytes: int | None = None
    """Of each retained log: beyond it the oldest entries go before their time. None: all logs together have a quarter
    of the memory that the crawl may use."""

    @property
    def agent_header(self) -> str:
        """The User-Agent as it is sent."""
        return self.user_agent if self.contact is None else f"{self.user_agent} (+{self.contact})"

    def identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for every worker of a crawl, as JSON can hold them.

        One that has its default is left out, so that a crawl which is older than the setting stays the same crawl; but
        for `shards`, which whoever opens it has to know.
        """
        found: dict[str, Any] = {}
        for field in fields_of(SettingClass.IDENTITY):
            value = getattr(self, field)
            if field == "shards" or value != _FIELDS[field].default:
                found[field] = list(value) if isinstance(value, tuple) else value
        return found


class SettingClass(StrEnum):
    """How a setting may change once its crawl exists."""

    IDENTITY = "identity"
    """Says what the crawl is: fixed when it is created, and a worker that comes with another value is refused."""
    TUNABLE = "tunable"
    """Belongs to the crawl and is kept in Redis: changed live, in force everywhere within a second."""
    RESTING = "resting"
    """Belongs to the crawl too, but may change only while no worker of it is alive."""
    LOCAL = "local"
    """Of one machine: each command that runs workers has its own."""


_IDENTITY, _TUNABLE, _RESTING, _LOCAL = SettingClass

CLASSES: Final[dict[str, tuple[SettingClass, str]]] = {
    "shards": (_IDENTITY, "it decides in which shard each host's tasks and fingerprints lie"),
    "drop_params": (_IDENTITY, "seen URLs are known by the form it leaves: with another, pages would be fetched again"),
    "sort_query": (_IDENTITY, "seen URLs are known by the form it leaves: with another, pages would be fetched again"),
    "politeness_by": (
        _IDENTITY,
        "delays, caps and what is under way are kept for each host or each domain, and cannot move at one moment",
    ),
    "scope": (
        _TUNABLE,
        "tested when a link is found; a link that was out is not marked seen, so a wider scope finds it",
    ),
    "allow": (_TUNABLE, "tested when a link is found"),
    "deny": (_TUNABLE, "tested when a link is found"),
    "depth_max": (_TUNABLE, "tested when a link is found"),
    "pages_max": (_TUNABLE, "read at every dispatch"),
    "pages_per_host_max": (
        _TUNABLE,
        "read whenever a host is looked at; raised, it brings nothing back that was left out",
    ),
    "sitemaps": (_TUNABLE, "asked when a page was answered: the next one of each host brings its sitemaps in"),
    "revisit_ms": (_TUNABLE, "asked when a page was answered; none: what was fetched stays as it is"),
    "revisit_min_ms": (_TUNABLE, "asked when a page was answered"),
    "revisit_max_ms": (_TUNABLE, "asked when a page was answered"),
    "one_round": (_TUNABLE, "asked whenever the crawl may have ended"),
    "unchanged_records": (_TUNABLE, "asked when a page was answered"),
    "url_max_bytes": (_TUNABLE, "tested when a link is found"),
    "path_depth_max": (_TUNABLE, "tested when a link is found; one that was left out is not marked seen"),
    "repeats_max": (_TUNABLE, "tested when a link is found; one that was left out is not marked seen"),
    "query_params_max": (_TUNABLE, "tested when a link is found; one that was left out is not marked seen"),
    "query_growth_max_bytes": (_TUNABLE, "tested when a link is found; one that was left out is not marked seen"),
    "calendar_ahead_max": (_TUNABLE, "tested when a link is found; one that was left out is not marked seen"),
    "calendar_back_max": (_TUNABLE, "tested when a link is found; one that was left out is not marked seen"),
    "delay_ms": (_TUNABLE, "the next due time of a host is reckoned with it at each commit"),
    "delay_factor": (_TUNABLE, "applied to the next answer"),
    "delay_max_ms": (_TUNABLE, "the next due time of a host is reckoned with it at each commit"),
    "demotion_max": (_TUNABLE, "the next due time of a host is reckoned with it at each commit"),
    "host_concurrency": (_TUNABLE, "read at every dispatch, which hands it out with the task"),
    "ip_concurrency": (_TUNABLE, "asked before the next fetch"),
    "ip_exempt": (_TUNABLE, "asked before the next fetch"),
    "obey_robots": (_TUNABLE, "read at every dispatch and before every fetch"),
    "user_agent": (_TUNABLE, "sent with the next request; the rules of a robots.txt are looked up by it again"),
    "contact": (_TUNABLE, "sent with the next request"),
    "crawl_delay_max_ms": (_TUNABLE, "applied when a robots.txt is read"),
    "retry_after_max_ms": (_TUNABLE, "applied to the next answer"),
    "robots_ttl_ms": (_TUNABLE, "applied when a robots.txt is stored"),
    "robots_ttl_min_ms": (_TUNABLE, "applied when a robots.txt is stored"),
    "timeout_ms": (_TUNABLE, "applied to the next fetch"),
    "connect_timeout_ms": (_TUNABLE, "applied to the next fetch"),
    "read_timeout_ms": (_TUNABLE, "applied to the next fetch"),
    "rate_min_bytes": (_TUNABLE, "applied to the next fetch"),
    "body_max_bytes": (_TUNABLE, "applied to the next fetch"),
    "allow_private": (_TUNABLE, "asked before the next connection"),
    "insecure": (_TUNABLE, "applied to the next connection"),
    "proxied": (_TUNABLE, "asked before the next fetch"),
    "cookies": (_TUNABLE, "asked before the next fetch; those of the other kind stay where they are"),
    "redirects_max": (_TUNABLE, "applied to the next redirect"),
    "refresh_max_ms": (_TUNABLE, "applied to the next page"),
    "links_max": (_TUNABLE, "applied to the next page"),
    "attempts_max": (_TUNABLE, "asked when a try has failed"),
    "retry_base_ms": (_TUNABLE, "asked when a try has failed"),
    "retry_max_ms": (_TUNABLE, "asked when a try has failed"),
    "host_backoff_base_ms": (_TUNABLE, "asked when a host has not answered"),
    "host_backoff_max_ms": (_TUNABLE, "asked when a host has not answered"),
    "host_give_up_ms": (_TUNABLE, "every search for hosts to give up brings it along"),
    "host_give_up_idle_ms": (_TUNABLE, "every search for hosts to give up brings it along"),
    "crashes_max": (_TUNABLE, "read whenever an entry is taken back"),
    "handler_timeout_ms": (_TUNABLE, "applied to the next page"),
    "keep_bodies_ms": (_TUNABLE, "asked at every commit; shorter or none, what is too old then is removed"),
    "processes": (_LOCAL, "as many as this machine has cores for"),
    "concurrency": (_LOCAL, "as many as this machine has memory and descriptors for"),
    "lease_ms": (_RESTING, "workers of different leases would take entries from each other that are not abandoned"),
    "headers": (_LOCAL, "they may be secrets, which are not kept in Redis"),
    "auth": (_LOCAL, "passwords are not kept in Redis"),
    "proxies": (_LOCAL, "each machine has those of its network, and their passwords are not kept in Redis"),
    "nameservers": (_LOCAL, "each machine has those of its network"),
    "grace_ms": (_LOCAL, "what stops this machine's processes may be less patient than elsewhere"),
    "metrics_port": (_LOCAL, "a port of this machine"),
    "metrics_host": (_LOCAL, "an address of this machine"),
    "traces": (_LOCAL, "each machine has the collector of its network"),
    "handler": (_RESTING, "it is loaded once, when a worker starts: part of the pages would go to the old one"),
    "frontier_max": (_TUNABLE, "compared whenever URLs are offered"),
    "seeds_waiting_max": (_TUNABLE, "compared whenever seeds are offered"),
    "memory_max_bytes": (_TUNABLE, "compared at every look at the memory"),
    "sink_waiting_max": (_TUNABLE, "compared at every commit"),
    "sink_max_bytes": (_TUNABLE, "compared at every commit"),
    "rotate_size_bytes": (
        _IDENTITY,
        "the names of the files are made by it, and how far they are written is counted by them",
    ),
    "rotate_every_ms": (_IDENTITY, "as the size is: the two together decide what the files are called"),
    "stage_waiting_max": (_TUNABLE, "compared at every commit"),
    "stage_max_bytes": (_TUNABLE, "compared at every commit"),
    "log_max_bytes": (_TUNABLE, "compared at every commit"),
}
"""The class of every setting, and why: what it would break, or where a new value takes hold. `name` has none."""


def fields_of(kind: SettingClass) -> tuple[str, ...]:
    """Return the settings of a class, in the order of declaration."""
    return tuple(field for field, (its, _) in CLASSES.items() if its is kind)


# -- names

_OPTION_OF: Final = {
    "depth_max": "--depth",
    "pages_max": "--max-pages",
    "pages_per_host_max": "--max-pages-per-host",
    "rate_min_bytes": "--min-rate",
    "body_max_bytes": "--max-body",
    "obey_robots": "--robots",
    "headers": "--header",
    "proxies": "--proxy",
    "nameservers": "--nameserver",
}
"""Options that are not called like the environment variable."""
_OTHER_KEYS: Final[dict[str, type]] = {
    "redis": str, "name": str, "output": str, "seeds": str, "json": bool, "quiet": bool, "debug": bool,
    "log_format": str, "log_level": str, "exporter_port": str, "exporter_host": str,
}  # fmt: skip
"""What a settings file may say besides settings: options of commands that have an environment variable too."""


def key_of(field: str) -> str:
    """Return what a setting is called in a settings file, and in upper case in the environment: `delay`."""
    return field.removesuffix("_ms").removesuffix("_bytes")


def variable_of(field: str) -> str:
    """Return the environment variable of a setting: STREAMCRAWL_DELAY for `delay_ms`."""
    return ENVIRONMENT_PREFIX + key_of(field).upper()


def option_of(field: str) -> str:
    """Return the command-line option of a setting: `--delay` for `delay_ms`."""
    return _OPTION_OF.get(field, "--" + key_of(field).replace("_", "-"))


def typed_as(field: str, value: Any) -> str:
    """Return the option as it was typed to give a setting this value: `--no-robots` for a switch that is off."""
    option = option_of(field)
    return f"--no-{option.removeprefix('--')}" if value is False else option


def field_of(name: str) -> str:
    """Return the field of a setting by any of its names: `delay`, `--delay`, `STREAMCRAWL_DELAY` or `delay_ms`.

    Raises:
        ConfigError: there is none of this name; the message has the nearest.
    """
    plain = _plain(name)
    if plain not in _FIELD_BY_NAME:
        raise ConfigError(f"there is no setting {name[:80]!r}; the nearest is {_nearest(plain, _KEYS)!r}")
    return _FIELD_BY_NAME[plain]


def _plain(name: str) -> str:
    return name.strip().lower().removeprefix("--").removeprefix(ENVIRONMENT_PREFIX.lower()).replace("-", "_")


_KEYS: Final = tuple(map(key_of, CLASSES))
_FIELD_BY_NAME: Final = {name: field for field in CLASSES for name in (field, key_of(field), _plain(option_of(field)))}


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`, or of which an option is."""
    if _plain(name) in _FIELD_BY_NAME:
        return key_of(_FIELD_BY_NAME[_plain(name)])
    from difflib import get_close_matches  # only for a mistake

    found = get_close_matches(_plain(name)[:80], [*known, *_FIELD_BY_NAME], n=1, cutoff=0.0)[0]
    return key_of(_FIELD_BY_NAME[found]) if found in _FIELD_BY_NAME else found


# -- values as people write them


def parse_duration_ms(text: str) -> int:
    """Return a duration in ms from `0.5` (seconds), `500ms`, `2s`, `5m`, `1h`, `7d` or `1w`.

    Raises:
        ConfigError: the text is none of these.
    """
    match = _DURATION.match(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a duration; write seconds (0.5) or a unit: 500ms, 2s, 5m, 1h, 7d")
    return round(float(match[1]) * _DURATION_MS[match[2] or "s"])


def parse_size_bytes(text: str) -> int:
    """Return a size in bytes from `1000`, `10kB`, `10MB`, `2GB` (powers of 1000) or `64MiB` (powers of 1024).

    Raises:
        ConfigError: the text is none of these.
    """
    match = _SIZE.match(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write bytes (1000) or a unit: 500kB, 10MB, 2GB, 64MiB")
    base = 1024 if match[3] else 1000
    power = _SIZE_POWER.get((match[2] or "").lower(), 0)
    return round(float(match[1]) * float(base**power))


def check_name(name: str) -> str:
    """Return `name`, or raise ConfigError when it cannot be part of a key and of a folder."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"crawl name {name!r} will not do: use 1 to 64 letters, digits, dots, dashes or underscores, "
            "starting with a letter or digit"
        )
    return name


_Kind = Literal[
    "duration", "size", "number", "processes", "slots", "switch", "list", "lines", "names", "choice", "text"
]
_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(Settings) if field.name != "name"}
_SIZE_UNITS: Final = [
    (base**power, f"{letter}B")
    for power, letters in ((4, ("Ti", "T")), (3, ("Gi", "G")), (2, ("Mi", "M")), (1, ("Ki", "k")))
    for base, letter in zip((1024, 1000), letters, strict=True)
]


def _kind(field: str) -> _Kind:
    """Return how people write a setting."""
    if field.endswith("_ms"):
        return "duration"
    if field.endswith("_bytes"):
        return "size"
    if field in ("drop_params", "ip_exempt"):
        return "names"
    if field == "processes":
        return "processes"
    held = _FIELDS[field].type
    kinds: dict[Any, _Kind] = {
        int: "number",
        int | None: "number",
        SlotLimits: "slots",
        bool: "switch",
        ScopeKind: "choice",
        CookieKind: "choice",
        PolitenessKind: "choice",
    }
    if held == tuple[str, ...]:
        return "lines" if field in ("headers", "auth") else "list"
    return kinds.get(held, "text")


def read_value(field: str, text: str) -> Any:
    """Return the value of a setting as its field holds it, from the way people write it.

    Durations and sizes may carry units; without one they are seconds and bytes. What need not be set takes `none`, and
    so does a list, whose members stand between spaces; names may stand between commas, headers on lines of their own.

    Raises:
        ConfigError: the text is no such value; the message does not name the setting.
    """
    text, kind = text.strip(), _kind(field)
    if kind == "processes":
        return None if text.lower() == _AUTO else _read_number(text, f"a whole number, or {_AUTO}")
    if kind == "slots":
        return _read_slots(text)
    if text.lower() in _NONE and type(None) in get_args(_FIELDS[field].type):
        return None
    if kind == "duration":
        return parse_duration_ms(text)
    if kind == "size":
        return parse_size_bytes(text)
    if kind == "number":
        return _read_number(text)
    if kind == "switch":
        return _read_switch(text)
    if kind == "list":
        return () if text.lower() == "none" else tuple(text.split())
    if kind == "lines":
        return () if text.lower() == "none" else tuple(filter(None, map(str.strip, text.splitlines())))
    if kind == "names":
        return () if text.lower() == "none" else _names(text.replace(",", " ").split())
    if kind == "choice" and text not in (words := get_args(_FIELDS[field].type)):
        raise ConfigError(f"{text!r} is not one of {', '.join(words)}")
    return text


def _names(found: Iterable[str]) -> tuple[str, ...]:
    """Return names in one order and each once: `a,b` and `b,a` are the same crawl."""
    return tuple(sorted(set(found)))


def show_value(field: str, value: Any) -> str:
    """Return a value as people write it, `1s`, `10MB`, `no limit`; `read_value` reads it back."""
    kind = _kind(field)
    if kind == "processes":
        return _AUTO if value is None else str(value)
    if kind == "slots":
        limits: SlotLimits = value
        if limits == SLOTS_AUTO:
            return _AUTO
        return str(limits.most) if limits.is_fixed else f"{limits.least}-{limits.most}"
    if value is None:
        return "no limit" if field.endswith("_max") else "none"
    if kind == "duration":
        # Weeks are left out: 7d says more.
        for unit in ("d", "h", "m", "s"):
            if value and value % _DURATION_MS[unit] == 0:
                return f"{value // _DURATION_MS[unit]}{unit}"
        return f"{value}ms" if value else "0s"
    if kind == "size":
        return next(
            (f"{value // size}{unit}" for size, unit in _SIZE_UNITS if value and value % size == 0), f"{value}B"
        )
    if kind == "switch":
        return "yes" if value else "no"
    if kind == "list":
        return " ".join(value) or "none"
    if kind == "lines":
        return "\n".join(value) or "none"
    if kind == "names":
        return ",".join(value) or "none"
    return str(value)


def parse_setting(name: str, text: str) -> tuple[str, Any]:
    """Return the field and the value of one `NAME=VALUE`, the name as `field_of` takes it.

    The value is written as in a settings file; a number without a unit counts as milliseconds when the name ends in
    `_ms`. An empty one means the default. Whether the value will do is asked by `make_settings`.

    Raises:
        ConfigError: there is no such setting, or the text is no value of it.
    """
    field = field_of(name)
    text = text.strip()
    if not text:
        return field, _FIELDS[field].default
    if _plain(name).endswith("_ms") and _WHOLE.fullmatch(text):
        text += "ms"
    try:
        return field, read_value(field, text)
    except ConfigError as error:
        raise ConfigError(f"{key_of(field)}: {error}") from error


def _read_number(text: str, wanted: str = "a whole number") -> int:
    if not _WHOLE.fullmatch(text):
        raise ConfigError(f"{text!r} is not {wanted}")
    return int(text)


def _read_slots(text: str) -> SlotLimits:
    if text.lower() == _AUTO:
        return SLOTS_AUTO
    if (match := _SLOTS.fullmatch(text)) is None:
        raise ConfigError(f"{text!r} is not a number of slots; write 64, the least and the most (8-128), or {_AUTO}")
    return SlotLimits(int(match[1]), int(match[2] or match[1]))


def _read_switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ConfigError(f"{text!r} is neither yes nor no")
    return _SWITCH[text.lower()]


def compile_pattern(said: str, pattern: str) -> re.Pattern[str]:
    """Compile a regular expression given by a user as `said`, or raise ConfigError that shows where it breaks."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{said} {pattern!r} is not a regular expression: {error}") from error


# -- where values come from


class Given(msgspec.Struct, frozen=True):
    """A value and who gave it, as a phrase for people: `--delay`, `STREAMCRAWL_DELAY`, `crawl.toml`, `settings set`."""

    value: Any
    source: str


class ConfigFile(msgspec.Struct, frozen=True):
    """What a TOML file says, checked for spelling and type."""

    path: str
    settings: dict[str, Given]
    """By field."""
    options: dict[str, str | bool]
    """What is no setting (redis, name, output, seeds, json, quiet, debug), by key."""


def gather(
    flags: Mapping[str, Any],
    *,
    config: Path | ConfigFile | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Given]:
    """Return the settings that were given, by field, each from the strongest source: flags > environment > file.

    Their spelling and types are right; whether each value will do is asked by `make_settings`. What is not given
    anywhere is absent. Empty text in the file or the environment counts as not given, and variables of other names are
    left alone.

    Args:
        flags: By field, durations and sizes as ints of the field's unit; None and () mean "not given". A `Given` is
            taken with its own source, and its None counts: no limit.
        config: A TOML file, or one that has been read.

    Raises:
        ConfigError: a name that is no setting (not in the environment), text that is no value, an unreadable file.
    """
    found: dict[str, Given] = {}
    if config is not None:
        found |= (config if isinstance(config, ConfigFile) else read_config(config)).settings
    for field in CLASSES:
        text = environment.get(variable_of(field), "")
        if text.strip():
            try:
                found[field] = Given(read_value(field, text), variable_of(field))
            except ConfigError as error:
                raise ConfigError(f"{variable_of(field)}: {error}") from error
    for field, value in flags.items():
        if isinstance(value, Given):
            found[field] = _typed(field, value)
        elif value not in (None, ()):
            found[field] = _typed(field, Given(value, typed_as(field, value)))
    return found


def read_config(path: Path) -> ConfigFile:
    """Read a TOML file: the names of the environment in lower case, values as there or as TOML has them.

    Numbers are seconds and bytes, `allow` and `deny` are lists. No message repeats a value of what is no setting: it
    may be a URL with a password.

    Raises:
        ConfigError: the file cannot be read, is no TOML (the line is named), or says something unknown or impossible.
    """
    import tomllib  # 5 ms that only a file needs

    try:
        with open(path, "rb") as file:
            data = file.read(CONFIG_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
    if len(data) > CONFIG_MAX_BYTES:
        raise ConfigError(f"--config {path} is larger than 1 MB: that is no settings file")
    try:
        table = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not UTF-8 text (at line {line})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f'{path}: {error}; write a line as delay = "0.5s", with quotes around text') from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    settings: dict[str, Given] = {}
    options: dict[str, str | bool] = {}
    for key, value in table.items():
        if value == "":
            continue
        try:
            if key in _OTHER_KEYS:
                options[key] = _read_other(key, value)
            elif key in _KEYS:
                field = _FIELD_BY_NAME[key]
                settings[field] = Given(_read_toml(field, value), str(path))
            elif isinstance(value, dict):
                raise ConfigError("there are no tables in a settings file; write its settings at the top")
            else:
                raise ConfigError(f"there is no such setting; the nearest is {_nearest(key, (*_KEYS, *_OTHER_KEYS))!r}")
        except ConfigError as error:
            shown = key if key in _KEYS or key in _OTHER_KEYS else repr(key[:80])
            raise ConfigError(f"{path}: {shown}: {error}") from error
    return ConfigFile(str(path), settings, options)


def _read_toml(field: str, value: Any) -> Any:
    kind = _kind(field)
    if isinstance(value, list) and kind in ("list", "lines", "names") and all(isinstance(item, str) for item in value):
        return _names(value) if kind == "names" else tuple(value)
    if isinstance(value, str):
        return read_value(field, value)
    if kind in ("text", "choice", "list", "lines", "names") or not isinstance(value, int | float):
        a_list = 'a list of texts: ["…", "…"]'
        wanted = dict.fromkeys(("list", "lines", "names"), a_list) | dict.fromkeys(("text", "choice"), "text in quotes")
        raise ConfigError(f"write {wanted.get(kind, 'a number, or text in quotes')}")
    return read_value(field, str(value))


def of_program(said: Mapping[str, Any]) -> dict[str, Given]:
    """Return the settings that a program says of its crawl, by field: names and values as in a settings file.

    Raises:
        ConfigError: one of them is no setting, or its value cannot be read.
    """
    found = {}
    for name, value in said.items():
        if name not in _KEYS:
            raise ConfigError(f"Crawl(…, {name}=…): there is no such setting; the nearest is {_nearest(name, _KEYS)!r}")
        field = _FIELD_BY_NAME[name]
        try:
            found[field] = Given(_read_toml(field, list(value) if isinstance(value, tuple) else value), "the program")
        except ConfigError as error:
            raise ConfigError(f"Crawl(…, {name}={value!r}): {error}") from error
    return found


def _read_other(key: str, value: Any) -> str | bool:
    if _OTHER_KEYS[key] is str:
        if not isinstance(value, str):
            raise ConfigError("write text in quotes")
        return value
    if isinstance(value, bool):
        return value
    raise ConfigError("write true or false")


def _typed(field: str, one: Given) -> Given:
    """Return the same with the value in its field's own type; text is taken only where it is one number or word.

    Raises:
        ConfigError: there is no such setting, or its type cannot be had.
    """
    if field not in _FIELDS:
        raise ConfigError(f"there is no setting {field!r}; the nearest is {_nearest(field, _KEYS)!r}")
    try:
        if _kind(field) == "slots" and isinstance(one.value, int | str):
            return Given(read_value(field, str(one.value)), one.source)
        value = msgspec.convert(one.value, _FIELDS[field].type, strict=False)
        return Given(_names(value) if _kind(field) == "names" else value, one.source)
    except ConfigError as error:
        raise ConfigError(f"{_where(field, one)}: {error}") from error
    except msgspec.ValidationError as error:
        shown = f"{one.source} {one.value!r}" if one.source else f"{field}={one.value!r}"
        raise ConfigError(f"{shown} will not do: {str(error)[:1].lower()}{str(error)[1:]}") from error


# -- values that will do


_AT_LEAST: Final[dict[str, int]] = {
    "shards": 1, "depth_max": 0, "pages_max": 1, "pages_per_host_max": 1, "url_max_bytes": 16,
    "revisit_ms": 1, "revisit_min_ms": 1, "revisit_max_ms": 1,
    "path_depth_max": 1, "repeats_max": 1, "query_params_max": 0, "query_growth_max_bytes": 0,
    "calendar_ahead_max": 0, "calendar_back_max": 0,
    "delay_ms": 0, "delay_factor": 0, "delay_max_ms": 0, "demotion_max": 0,
    "host_concurrency": 1, "ip_concurrency": 0,
    "crawl_delay_max_ms": 0, "retry_after_max_ms": 0, "robots_ttl_ms": 1000, "robots_ttl_min_ms": 1000,
    "timeout_ms": 1, "connect_timeout_ms": 1, "read_timeout_ms": 1, "rate_min_bytes": 0, "body_max_bytes": 1,
    "redirects_max": 0, "refresh_max_ms": 0, "links_max": 1, "attempts_max": 1, "retry_base_ms": 0, "retry_max_ms": 0,
    "host_backoff_base_ms": 1, "host_backoff_max_ms": 1, "host_give_up_ms": 0, "host_give_up_idle_ms": 0,
    "crashes_max": 1, "handler_timeout_ms": 1, "metrics_port": 0, "traces": 1,
    "processes": 1, "concurrency": 1, "lease_ms": 1000, "grace_ms": 0,
    "frontier_max": 1, "seeds_waiting_max": 1, "memory_max_bytes": 8_000_000, "sink_waiting_max": 100,
    "sink_max_bytes": 1_000_000, "rotate_size_bytes": 1000, "rotate_every_ms": 1000,
    "stage_waiting_max": 1, "stage_max_bytes": 1, "log_max_bytes": 1, "keep_bodies_ms": 1000,
}  # fmt: skip


_AT_MOST: Final[dict[str, int]] = {
    "processes": 1024,
    "concurrency": 10_000,
    "host_concurrency": 10_000,
    "demotion_max": 10_000,
    "metrics_port": 65_535,
    "ip_concurrency": 10_000,
    # Every worker reads every shard, and each audit, count and end asks all of them.
    "shards": 256,
}
"""Beyond these one machine only runs out of descriptors and memory."""
_NUMBER_MAX: Final = 2**53 - 1
"""Of any other number: Lua keeps them as doubles."""


@overload
def make_settings(name: str, given: Mapping[str, Any], **values: Any) -> Settings: ...


@overload
def make_settings(**values: Any) -> Settings: ...


def make_settings(name: str = "", given: Mapping[str, Any] | None = None, **values: Any) -> Settings:
    """Return checked Settings: `values` over `given` over the defaults.

    Args:
        name: Of the crawl.
        given: What `gather` returned, or plain values, by field; then the environment is not read. Without it, what the
            environment gives. A plain None means "not given".
        values: The same, plain: durations in ms, sizes in bytes.

    Raises:
        ConfigError: a value that cannot be, naming where it was given, the value and what would do.
    """
    merged = {
        **(gather({}) if given is None else given),
        **{key: one for key, one in values.items() if one is not None},
    }
    found = {
        field: _typed(field, one if isinstance(one, Given) else Given(one, ""))
        for field, one in merged.items()
        if one is not None
    }
    check_name(name)
    for field, one in found.items():
        _check(field, one)
    return Settings(name=name, **{field: one.value for field, one in found.items()})


def _check(field: str, one: Given) -> None:
    value = one.value
    if isinstance(value, SlotLimits):
        _check_number(field, one, value.least)
        _check_number(field, one, value.most)
        if value.least > value.most:
            raise ConfigError(f"{_said(field, one)} will not do: the least comes first, as in 8-128")
    elif isinstance(value, int) and field in _AT_LEAST:
        _check_number(field, one, value)
    elif field == "nameservers":
        for text in value:
            _check_nameserver(_where(field, one), text)
    elif field in ("allow", "deny"):
        for pattern in value:
            compile_pattern(_where(field, one), pattern)
    elif field == "ip_exempt":
        for text in value:
            _check_network(_where(field, one), text)
    elif field == "drop_params":
        for name in value:
            if not _PARAMETER.fullmatch(name):
                raise ConfigError(
                    f"{_where(field, one)} {name!r} is no name of a parameter; write names as they stand in a URL, "
                    "with a * at the end for all that begin so: utm_*,fbclid"
                )
    elif field == "user_agent" and ("\n" in value or "\r" in value or not value.strip()):
        raise ConfigError(f"{_where(field, one)} must be one line that is not empty")
    elif field == "contact" and value is not None and not _CONTACT.fullmatch(value):
        raise ConfigError(
            f"{_where(field, one)} {value!r} is nothing to write to; give an e-mail address (you@example.org) or the "
            "address of a page (https://example.org/crawl)"
        )


def _check_number(field: str, one: Given, number: int) -> None:
    least, most = _AT_LEAST[field], _AT_MOST.get(field, _NUMBER_MAX)
    if not least <= number <= most:
        limit, word = (least, "least") if number < least else (most, "most")
        shown = show_value(field, limit) if one.source and isinstance(one.value, int) else limit
        raise ConfigError(f"{_said(field, one)} will not do: the {word} is {shown}")


def _check_nameserver(said: str, text: str) -> None:
    from ipaddress import ip_address  # only where somebody gives one

    match = _NAMESERVER.fullmatch(text)
    try:
        if match is None or not 0 < int(match[3] or 53) < 65_536:
            raise ValueError
        ip_address(match[1] or match[2] or text)
    except ValueError:
        raise ConfigError(
            f"{said} {text!r} is not the address of a name server; write 9.9.9.9 or 10.0.0.1:5353"
        ) from None


def _check_network(said: str, text: str) -> None:
    from ipaddress import ip_network  # only where somebody gives one

    try:
        if text != "cdn":
            ip_network(text)
    except ValueError:
        raise ConfigError(
            f"{said} {text!r} is no network; write 203.0.113.0/24, an address, or cdn for the list of known ones"
        ) from None


def _where(field: str, one: Given) -> str:
    """Return what a message calls the setting: as it was written where it was given."""
    if not one.source:
        return field
    is_name = one.source.startswith(("--", ENVIRONMENT_PREFIX))
    return one.source if is_name else f"{one.source}: {key_of(field)}"


def _said(field: str, one: Given) -> str:
    between = " " if one.source.startswith("--") else "="
    is_shown = one.source or isinstance(one.value, SlotLimits)
    return f"{_where(field, one)}{between}{show_value(field, one.value) if is_shown else one.value}"
