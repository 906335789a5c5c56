"""How operators write moments, durations and hosts, and how they are shown to them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from streamcrawl.errors import ConfigError
from streamcrawl.rules.urls import canonical_url, hostname_of, split_url
from streamcrawl.settings import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable

_SPANS: Final = ((172_800_000, 86_400_000, "d"), (7_200_000, 3_600_000, "h"), (120_000, 60_000, "min"))
"""From how many ms on a span is shown in whole units of how many ms, and their name."""
_GLOB: Final = re.compile(r"([\[\]\\?*^])")
_PORT: Final = re.compile(r":\d+$")


def span(ms: int) -> str:
    """Return a duration for people: `250 ms`, `12.5 s`, `5 min`, `3 h`, `4 d`."""
    for least, unit, name in _SPANS:
        if ms >= least:
            return f"{ms // unit} {name}"
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{max(0, ms)} ms"


def glob_of(text: str) -> str:
    """Return the pattern by which Redis finds this text alone."""
    return _GLOB.sub(r"\\\1", text)


def moment(ms: int) -> str:
    """Return a moment, ms since the epoch, as ISO 8601 in UTC: `2026-11-30T22:06:30Z`; '' when there is none."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if ms else ""
    except (OverflowError, ValueError, OSError):
        return ""


def parse_moment_ms(option: str, text: str, now_ms: int) -> int:
    """Return the moment of an option, ms since the epoch: `1h` (that long ago) or ISO 8601 (UTC unless it says).

    Raises:
        ConfigError: it is neither.
    """
    try:
        return now_ms - parse_duration_ms(text)
    except ConfigError:
        pass
    try:
        when = datetime.fromisoformat(text.strip())
        return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{option} {text!r} is no moment; write how long ago (30m, 2h, 7d) or a time: 2026-11-30T14:00:00Z"
        ) from error


def host_keys(text: str) -> list[str]:
    """Return the host keys that a person may mean by a URL, `host:port` or a name: one with a scheme, else both.

    Raises:
        ConfigError: it cannot be the name of a host.
    """
    schemes = [""] if "//" in text else ["https://", "http://"]
    urls = [canonical_url(f"{scheme}{text.strip()}") for scheme in schemes]
    keys = [split_url(url)[0] for url in urls if url is not None]
    if not keys:
        raise ConfigError(f"{text!r} is no host; write its key (https://example.org), host:port, or a URL of it")
    return list(dict.fromkeys(keys))


def host_test(text: str) -> Callable[[str], bool]:
    """Return a test of host keys: for a URL or a key that host alone, for `host:port` both schemes of it, and for a
    name the hosts of that name and all under it, whatever their port.

    Raises:
        ConfigError: it cannot be the name of a host.
    """
    keys = frozenset(host_keys(text))
    if "//" in text or _PORT.search(text.partition("/")[0]):
        return keys.__contains__
    name = hostname_of(next(iter(keys)))

    def is_under(key: str) -> bool:
        found = hostname_of(key)
        return found == name or found.endswith(f".{name}")

    return is_under
