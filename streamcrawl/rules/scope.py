"""Does a link belong to this crawl?

Pure, but for a cache of its own answers. Start at `Scope.admits`. It never looks at depth, traps, budgets or
robots.txt: those are asked elsewhere, of links that are already in scope. A link that is out is not marked as seen, so
a crawl that is resumed with a wider scope finds it again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.rules.urls import (
    Canonicalizer,
    canonical_url,
    domain_of,
    fingerprint,
    split_url,
    without_scheme,
)
from streamcrawl.settings import ScopeKind, Settings, compile_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from streamcrawl.rules.task import CrawlTask

SEEDS_KEPT_MAX: Final = 1000
"""Hosts, and prefixes, of seeds that a scope remembers: every worker holds them and every link may be compared."""
_PAIRS_MAX: Final = 8192
"""Remembered answers for (link's host, page's host); a page of a broad crawl brings a few dozen new pairs."""


class Scope:
    """Decides which links are followed; the same in every process that was built from the same settings and state.

    By `kind`:
      host    the link's host name and port are those of its page, or of a seed; http and https are the same host
      domain  the same by registrable domain, whatever the port
      prefix  the link starts with a seed's URL up to the last slash of its path; http and https are the same
      any     every link
    `deny` and `allow` of the settings hold in addition to each of them.

    Only the first 1000 distinct hosts and prefixes of the seeds are kept. Seeds beyond them are still fetched, and
    their links are followed within the host or domain of their own page; with `prefix` their links are out.
    `seeds_cut` says how many seeds that concerns.
    """

    def __init__(self, settings: Settings, kind: ScopeKind, hosts: Iterable[str], prefixes: Iterable[str]) -> None:
        self.kind: Final = kind
        self.seeds_cut = 0
        self._hosts = dict.fromkeys(hosts)
        self._prefixes = dict.fromkeys(prefixes)
        self._patterns = {
            "deny": tuple(compile_pattern("--deny", pattern) for pattern in settings.deny),
            "allow": tuple(compile_pattern("--allow", pattern) for pattern in settings.allow),
        }
        self._deny, self._allow = (tuple(one.search for one in self._patterns[part]) for part in ("deny", "allow"))
        self._prefixes_of: dict[str, tuple[str, ...]] = {}
        """By authority, so that a link is compared with its own host's prefixes and not with a thousand."""
        for prefix in self._prefixes:
            authority = prefix.partition("/")[0]
            self._prefixes_of[authority] = (*self._prefixes_of.get(authority, ()), prefix)
        self._domains = frozenset(map(domain_of, self._hosts)) if kind == "domain" else frozenset()
        self._is_related = lru_cache(maxsize=_PAIRS_MAX)(self._compare_hosts)

    @classmethod
    def from_settings(cls, settings: Settings, seeds: Iterable[str]) -> Scope:
        """Return the scope of a new crawl. Seeds that are no http(s) URLs are passed over."""
        hosts: dict[str, None] = {}
        prefixes: dict[str, None] = {}
        seeds_cut = 0
        form = Canonicalizer.from_settings(settings)
        for seed in seeds:
            url = canonical_url(seed)
            if url is None:
                continue
            url = form(url)
            host = without_scheme(split_url(url)[0])
            prefix = without_scheme(url.partition("?")[0].rpartition("/")[0]) + "/"
            is_host_kept = host in hosts or len(hosts) < SEEDS_KEPT_MAX
            is_prefix_kept = prefix in prefixes or len(prefixes) < SEEDS_KEPT_MAX
            if is_host_kept:
                hosts[host] = None
            if is_prefix_kept:
                prefixes[prefix] = None
            seeds_cut += not (is_prefix_kept if settings.scope == "prefix" else is_host_kept)
        scope = cls(settings, settings.scope, hosts, prefixes)
        scope.seeds_cut = seeds_cut
        return scope

    @classmethod
    def from_state(cls, settings: Settings, state: Mapping[str, Any]) -> Scope:
        """Return the scope whose `state()` this is. Hosts and prefixes stay; the rest is as `settings` say."""
        return cls(settings, settings.scope, state["hosts"], state["prefixes"])

    def state(self) -> dict[str, Any]:
        """Return what `from_state` needs, as JSON can hold it."""
        return {"hosts": list(self._hosts), "prefixes": list(self._prefixes)}

    def admits(self, url: str, *, page_host: str) -> bool:
        """Return whether the link `url` (canonical), found on a page of the host key `page_host`, is in scope."""
        if self.kind == "prefix":
            link = without_scheme(url)
            if not link.startswith(self._prefixes_of.get(link.partition("/")[0], ())):
                return False
        elif self.kind != "any" and not self._is_related(split_url(url)[0], page_host):
            return False
        for matches in self._deny:
            if matches(url):
                return False
        return not self._allow or any(matches(url) for matches in self._allow)

    def why_not(self, url: str, *, page_host: str | None) -> str:
        """Return in words why `admits` says no; '' when it says yes. Not for the way of every link: it takes its time.

        Args:
            page_host: None for a link that is found nowhere yet: then only the seeds count.
        """
        host = split_url(url)[0]
        if self.kind == "prefix":
            if not without_scheme(url).startswith(self._prefixes_of.get(without_scheme(host), ())):
                return "scope prefix: it lies under no seed"
        elif self.kind == "host":
            own = without_scheme(host)
            if own not in self._hosts and (page_host is None or own != without_scheme(page_host)):
                return "scope host: its host is no seed's, and only links on pages of that host itself lead to it"
        elif self.kind == "domain":
            domain = domain_of(host)
            if domain not in self._domains and (page_host is None or domain != domain_of(page_host)):
                return f"scope domain: {domain} is no seed's domain, and only links on pages of it lead to it"
        for pattern in self._patterns["deny"]:
            if pattern.search(url):
                return f"--deny {pattern.pattern!r} matches it"
        if self._patterns["allow"] and not any(pattern.search(url) for pattern in self._patterns["allow"]):
            return "no --allow pattern matches it"
        return ""

    def _compare_hosts(self, link_host: str, page_host: str) -> bool:
        link, page = without_scheme(link_host), without_scheme(page_host)
        if self.kind == "host":
            return link == page or link in self._hosts
        domain = domain_of(link_host)
        return domain == domain_of(page_host) or domain in self._domains


def kin_of(kind: ScopeKind, host: str) -> str:
    """Return what a scope of this kind looks at of a page's host: hosts with the same may link to the same."""
    if kind == "host":
        return without_scheme(host)
    return domain_of(host) if kind == "domain" else ""


def sitemap_fingerprint(task: CrawlTask, owner: str, kind: ScopeKind) -> int:
    """Return the hash by which a sitemap is known as seen. It is not that of the page at its URL, nor that of the same
    sitemap as another host names it where other pages of it would be in scope then.

    Args:
        owner: Host key whose sitemap it is.
        kind: Of the crawl's scope.
    """
    return fingerprint(f"{task.kind} {kin_of(kind, owner)} {task.url}")
