"""Which extra headers does a request to a host carry?

Pure. Start at `HostHeaders.parse`. A header belongs to hosts by a pattern and is sent to no other: each hop of a
redirect is asked anew. The values may be passwords, so no message of this module repeats one.

Sources: RFC 9110 sections 5.1 and 5.5 (names and values of fields), RFC 7617 (Basic).
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from streamcrawl.errors import ConfigError
from streamcrawl.rules.urls import hostname_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HEADERS_MAX: Final = 100
HEADER_MAX_BYTES: Final = 8192
"""What servers take; a longer one would be refused by most."""
_PATTERN: Final = re.compile(r"(?:(https?)://)?(\*|(?:\*\.)?[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_OURS: Final = frozenset(
    (
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "range"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
        *("referer", "user-agent"),
    )
)
"""They say how the messages are read, and with others the fetcher would not understand the answer; or they have a
source of their own, and robots.txt is obeyed by that User-Agent."""
_HOSTS_KEPT: Final = 4096


def basic_auth(pair: str) -> str:
    """Return what Basic makes of `user:password` (RFC 7617)."""
    return f"Basic {b64encode(pair.encode()).decode()}"


class _Rule:
    """One line of a user: `https://*.example.org:8443` and what is sent there."""

    def __init__(self, said: str, pattern: str) -> None:
        match = _PATTERN.fullmatch(pattern.strip().lower())
        if match is None:
            raise ConfigError(
                f"{said}: {pattern.strip()[:80]!r} is no pattern of hosts; write example.org, *.example.org, "
                "https://example.org:8443 or *"
            )
        self._scheme, self._name, self._port = match[1], match[2], match[3]

    def matches(self, host_key: str) -> bool:
        scheme, _, authority = host_key.partition("://")
        name = hostname_of(authority)
        port = authority[len(name) :].removeprefix(":") or {"http": "80", "https": "443"}[scheme]
        is_name = name == self._name or self._name == "*" or (self._name[:2] == "*." and name.endswith(self._name[1:]))
        return is_name and self._scheme in (None, scheme) and self._port in (None, port)


class HostHeaders:
    """The headers of a crawl, by host; later lines win over earlier ones."""

    def __init__(self, headers: Iterable[str], auth: Iterable[str]) -> None:
        """Read the lines of the settings `headers` and `auth`; costs little, but is not for every request.

        Args:
            headers: `PATTERN: Name: value`.
            auth: `PATTERN: user:password`, sent as Basic, and to https only unless the pattern says `http://`.

        Raises:
            ConfigError: a line is none of these; the message has its place and no value.
        """
        self._rules: list[tuple[_Rule, str, str]] = []
        for place, line in enumerate(headers, 1):
            said = f"header {place}"
            pattern, _, rest = line.partition(": ")
            name, colon, value = rest.partition(":")
            name, value = name.strip(), value.strip()
            if not colon:
                raise ConfigError(f'{said} will not do: write "example.org: Name: value"')
            if not _NAME.fullmatch(name) or name.lower() in _OURS:
                raise ConfigError(f"{said}: {name[:80]!r} is no name of a header that can be given")
            if not _VALUE.fullmatch(value) or len(line) > HEADER_MAX_BYTES:
                raise ConfigError(f"{said}: the value of {name} must be one line of at most {HEADER_MAX_BYTES} bytes")
            self._rules.append((_Rule(said, pattern), name, value))
        for place, line in enumerate(auth, 1):
            said = f"auth {place}"
            pattern, _, pair = line.partition(": ")
            if ":" not in pair or len(line) > HEADER_MAX_BYTES or not pair.isprintable():
                raise ConfigError(f'{said} will not do: write "example.org: user:password"')
            # A password in plain text over the network is sent only where somebody said so.
            is_plain = pattern.strip().lower().startswith(("http://", "https://"))
            rule = _Rule(said, pattern if is_plain else f"https://{pattern.strip()}")
            self._rules.append((rule, "Authorization", basic_auth(pair)))
        if len(self._rules) > HEADERS_MAX:
            raise ConfigError(f"at most {HEADERS_MAX} headers can be given, not {len(self._rules)}")
        self._of = lru_cache(maxsize=_HOSTS_KEPT)(self._find)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def of(self, host_key: str) -> Mapping[str, str]:
        """Return what a request to a host carries besides the rest; not to be changed."""
        return self._of(host_key)

    def _find(self, host_key: str) -> Mapping[str, str]:
        found: dict[str, tuple[str, str]] = {}
        for rule, name, value in self._rules:
            if rule.matches(host_key):
                found[name.lower()] = (name, value)
        return dict(found.values())
