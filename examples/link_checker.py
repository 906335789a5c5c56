"""A link checker for CI: each link of a site that leads nowhere, with the pages that it stands on.

    python -m examples.link_checker https://docs.example.org/              # exit code 1 when a link is broken
    python -m examples.link_checker http://localhost:8000/ --delay 0 --external
    python -m examples.link_checker                                        # checks a manual of its own, which has some

Broken is what answers 400 or more, or nothing after two tries, behind redirects too. With --external what the site
links to elsewhere is asked once, and not searched. A link that robots.txt forbids is not checked, and counted. Settings
come by the environment: STREAMCRAWL_CONTACT, STREAMCRAWL_MAX_PAGES and so on. Exit codes: 0 all is well, 1 links are
broken, 2 there was nothing to check, 3 the check was interrupted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from examples.running import streamcrawl
from examples.sites import Manual
from streamcrawl import Crawl, Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterator

ELSE_WELL = {"body_too_large", "body_too_slow"}
"""Why a page may be dead while the links to it are well: there is more of it than a checker wants."""

# A check is no crawl that has all night: what does not answer is given up within a minute.
crawl = Crawl("link-checker", attempts_max=2, retry_base="1s", host_give_up="30s")


@dataclass
class Page:
    """What came of a page that answered."""

    url: str
    status: int
    redirects: list[str]
    """That led to it: links to them are as good as it is."""
    links: list[str]


class Letter(msgspec.Struct):
    """What `streamcrawl dead ls --json` says of a page that did not."""

    url: str
    reason: str


@crawl.page
def inside(response: Response) -> Iterator[Request | Page]:
    """Check a page of the site, and search it for links; with `--scope host` those that lead elsewhere stay out."""
    host = urlsplit(response.final_url).netloc
    # A page that redirects to another site is no page of this one; but the first one may say where the site lives.
    is_ours = response.depth == 0 or all(urlsplit(url).netloc == host for url in response.redirects)
    links = list(response.links()) if is_ours else []
    yield Page(response.url, response.status, list(response.redirects), links)
    for link in links:
        yield response.follow(link, label="" if urlsplit(link).netloc == host else "outside")


@crawl.page(label="outside")
def outside(response: Response) -> Page:
    """Check a page of another site."""
    return Page(response.url, response.status, list(response.redirects), [])


@dataclass
class Report:
    """What was found out; URLs are canonical."""

    broken: dict[str, str] = field(default_factory=dict)
    """Link -> why: a status, or the reason of a dead letter."""
    known: set[str] = field(default_factory=set)
    """What was checked."""
    ends: set[str] = field(default_factory=set)
    """Where redirects led; links name what came before it."""
    found_on: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Link -> the pages that it stands on."""

    def add_page(self, page: Page) -> None:
        leads_here = [page.url, *page.redirects]
        self.known.update(leads_here)
        if page.redirects and page.url not in page.redirects:
            self.ends.add(page.url)
        if page.status >= 400:
            self.broken.update(dict.fromkeys(leads_here, str(page.status)))
        for link in page.links:
            self.found_on[link].append(page.url)

    def add_letter(self, letter: Letter) -> None:
        self.known.add(letter.url)
        if letter.reason not in ELSE_WELL:
            self.broken[letter.url] = letter.reason

    def lines(self) -> Iterator[str]:
        """Yield the broken links, each with where it stands."""
        for link, why in sorted(self.broken.items()):
            pages = self.found_on.get(link, [])
            if pages or link not in self.ends:
                yield f"{link}  {why}"
                yield from (f"    on {page}" for page in sorted(pages))


def check(url: str, delay: str, scope: str) -> int:
    """Check a site; print the report, and return the exit code."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="link-checker-") as folder:
        run = ("run", "examples.link_checker:crawl", url, "--scope", scope, "--delay", delay)
        # Here, whatever the environment says: in a Redis that is kept, a second check would find the first one done.
        streamcrawl(*run, "-o", "pages.jsonl", "-q", folder=folder, STREAMCRAWL_REDIS="")
        with Path(folder, "pages.jsonl").open("rb") as pages:
            for line in pages:
                report.add_page(msgspec.json.decode(line, type=Page))
        listing = ("dead", "ls", crawl.program.name, "--json", "--where", "kind=page", "--limit", "100000")
        letters = streamcrawl(*listing, folder=folder, STREAMCRAWL_REDIS="")
        for text in letters.splitlines():
            report.add_letter(msgspec.json.decode(text, type=Letter))
    if not report.known:
        print(f"nothing was checked: robots.txt forbids {url}, or it leads to another site", file=sys.stderr)
        return 2
    lines = list(report.lines())
    print("\n".join(lines), end="\n" if lines else "")
    broken = sum(not line.startswith(" ") for line in lines)
    hosts = {urlsplit(page).netloc for pages in report.found_on.values() for page in pages}
    unknown = sum(urlsplit(link).netloc in hosts and link not in report.known for link in report.found_on)
    print(f"{len(report.known)} addresses checked, {broken} links are broken, {unknown} not checked", file=sys.stderr)
    return 1 if broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.link_checker", description="Find links that are broken.")
    parser.add_argument("url", nargs="?", help="where the site begins; without it a manual of our own is checked")
    parser.add_argument("--external", action="store_true", help="also ask what the site links to elsewhere")
    parser.add_argument("--delay", default="0.1", metavar="SECONDS", help="between two requests to a host (0.1)")
    options = parser.parse_args()
    scope = "any" if options.external else "host"
    if options.url is not None:
        return check(options.url, options.delay, scope)
    with Manual() as manual:
        return check(manual.url, "0", scope)


if __name__ == "__main__":
    sys.exit(main())
