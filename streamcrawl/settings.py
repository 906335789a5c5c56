"""Every setting of a crawl, in one frozen object: defaults < environment < flags.

Two classes. *Identity* settings say what the crawl is; a worker whose identity differs from the stored one is refused.
*Tunable* settings may differ from one run to the next. Durations are int milliseconds and sizes int bytes in here;
seconds and units exist only at the edges (`parse_duration_ms`, `parse_size_bytes`).
Every bound names its reason.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from streamcrawl.errors import ConfigError

SCHEMA: Final = 2
"""Version of everything stored in Redis; a crawl of another schema is refused."""

ENVIRONMENT_PREFIX: Final = "STREAMCRAWL_"
IDENTITY: Final = ("shards",)

ScopeKind = Literal["host", "domain", "prefix", "any"]

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?\s*$")
_DURATION_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT])?(i?)[bB]?\s*$")
_SIZE_POWER: Final[dict[str, int]] = {"k": 1, "m": 2, "g": 3, "t": 4}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one crawl. Build it with `make_settings`, which checks the values."""

    name: str
    # -- identity
    shards: int = 1

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
    url_max_bytes: int = 2083
    """Longer URLs are dropped; the length the oldest browsers in use accept, and what real links stay under."""

    # -- politeness
    delay_ms: int = 1000
    """Between the end of one fetch of a host and the start of the next."""
    host_concurrency: int = 1
    obey_robots: bool = True
    user_agent: str = "streamcrawl/0.1"
    crawl_delay_max_ms: int = 30_000
    """A larger Crawl-delay in robots.txt counts as this: one file must not park a host for days."""
    retry_after_max_ms: int = 3_600_000
    """A larger Retry-After counts as this."""
    robots_ttl_ms: int = 86_400_000
    """RFC 9309 section 2.4: a cached robots.txt should not be used for more than 24 hours."""

    # -- fetching
    timeout_ms: int = 30_000
    """The whole fetch, redirects within the host included each by itself."""
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 20_000
    """Between two reads of a body."""
    body_max_bytes: int = 10_000_000
    """Of the decompressed body."""
    redirects_max: int = 10
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

    # -- workers
    processes: int = 1
    concurrency: int = 64
    """Work slots per process."""
    lease_ms: int = 30_000
    grace_ms: int = 30_000
    """From the first SIGTERM until what still runs is handed back."""
    handler: str | None = None
    """`module:function` called with each page; None keeps the page record itself."""

    # -- bounds of the store
    frontier_max: int = 20_000_000
    seeds_waiting_max: int = 2_000_000
    """Seeds that are not ended yet, beyond which whoever feeds more waits: some 400 MB of Redis."""
    memory_max_bytes: int | None = None
    sink_waiting_max: int = 10_000
    """Records waiting in a sink's stream above 80 % of which fetching stops, until under 20 %."""

    def identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for every worker of a crawl."""
        return {field: getattr(self, field) for field in IDENTITY}


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


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody set, and where: a phrase for people, `--delay`, `STREAMCRAWL_DELAY`, `crawl.toml`."""

    value: Any
    source: str


_AT_LEAST: Final[dict[str, int]] = {
    "shards": 1, "depth_max": 0, "pages_max": 1, "pages_per_host_max": 1, "url_max_bytes": 16,
    "delay_ms": 0, "host_concurrency": 1, "crawl_delay_max_ms": 0, "retry_after_max_ms": 0, "robots_ttl_ms": 1000,
    "timeout_ms": 1, "connect_timeout_ms": 1, "read_timeout_ms": 1, "body_max_bytes": 1, "redirects_max": 0,
    "links_max": 1, "attempts_max": 1, "retry_base_ms": 0, "retry_max_ms": 0, "host_backoff_base_ms": 1,
    "host_backoff_max_ms": 1, "host_give_up_ms": 0, "host_give_up_idle_ms": 0, "crashes_max": 1,
    "handler_timeout_ms": 1, "processes": 1, "concurrency": 1, "lease_ms": 1000, "grace_ms": 0,
    "frontier_max": 1, "seeds_waiting_max": 1, "memory_max_bytes": 8_000_000, "sink_waiting_max": 100,
}  # fmt: skip


_AT_MOST: Final[dict[str, int]] = {"processes": 1024, "concurrency": 10_000, "host_concurrency": 10_000}
"""Beyond these one machine only runs out of descriptors and memory."""


def make_settings(**values: Any) -> Settings:
    """Return checked Settings: the given values over the environment (`STREAMCRAWL_<FIELD>`) over the defaults.

    A given None means "not given". Durations and sizes in the environment may carry units.

    Raises:
        ConfigError: a value that cannot be, naming the setting, the value and what would do.
    """
    given = {key: value for key, value in values.items() if value is not None}
    merged = from_environment(os.environ) | given
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings: {error}") from error
    check_name(settings.name)
    for field, least in _AT_LEAST.items():
        value = getattr(settings, field)
        if value is not None and value < least:
            raise ConfigError(f"{field}={value} will not do: the least is {least}")
    for field, most in _AT_MOST.items():
        if getattr(settings, field) > most:
            raise ConfigError(f"{field}={getattr(settings, field)} will not do: the most is {most}")
    if settings.shards > 1:
        raise ConfigError(
            f"shards={settings.shards} will not do: this version keeps a crawl in one shard; leave it out"
        )
    for field in ("allow", "deny"):
        for pattern in getattr(settings, field):
            compile_pattern(field, pattern)
    if "\n" in settings.user_agent or "\r" in settings.user_agent or not settings.user_agent.strip():
        raise ConfigError("user_agent must be one line that is not empty")
    return settings


def compile_pattern(option: str, pattern: str) -> re.Pattern[str]:
    """Compile a regular expression given by a user, or raise ConfigError that shows where it breaks."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--{option} {pattern!r} is not a regular expression: {error}") from error


def from_environment(environment: os._Environ[str] | dict[str, str]) -> dict[str, Any]:
    """Return the settings that the environment gives, by field name; variables of other names are left alone."""
    found: dict[str, Any] = {}
    for field in Settings.__struct_fields__:
        text = environment.get(ENVIRONMENT_PREFIX + field.removesuffix("_ms").removesuffix("_bytes").upper())
        if text is None or field == "name":
            continue
        if field.endswith("_ms"):
            found[field] = parse_duration_ms(text)
        elif field.endswith("_bytes"):
            found[field] = parse_size_bytes(text)
        elif field in ("allow", "deny"):
            found[field] = tuple(text.split())
        elif field == "obey_robots":
            found[field] = text.strip().lower() not in ("0", "false", "no", "off")
        else:
            found[field] = text
    return found
