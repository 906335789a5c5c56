"""A news archive: every page of a site as it went over the wire, and a list of its articles.

The archive (WARC) has the requests and the answers, bytes and headers as they were; `warcio index`, pywb and
ReplayWeb.page read it. What the program adds is which pages to fetch, and what an article is: one line of
`articles.jsonl` for each, with the address that it is found by in the archive. One command archives a site of its own:

    python -m examples.news_archive [URL]

For one that publishes on, with a file for each day, and parts of 1 GB:

    streamcrawl run examples.news_archive:crawl https://news.example.org/ --fresh \\
        -o news-$(date +%F).warc.gz -o articles-$(date +%F).jsonl --rotate-size 1GB

An archive of all that is there needs no program: `streamcrawl crawl https://news.example.org/ -o news.warc.gz`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from examples.running import streamcrawl
from examples.sites import News
from streamcrawl import Crawl, Drop, Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterator

crawl = Crawl("news-archive", scope="host", delay=0.5)


@dataclass
class Article:
    """What is listed of an article; the rest is in the archive."""

    url: str
    title: str
    published: str
    words: int


@crawl.page
def front(response: Response) -> Iterator[Request]:
    """Follow the articles first, then the front pages of earlier days; nothing else is archived."""
    for link in response.css("a.story"):
        yield response.follow(link.attributes["href"] or "", label="story", priority="high")
    for link in response.css("a.older"):
        yield response.follow(link.attributes["href"] or "")


@crawl.page(label="story")
def story(response: Response) -> Iterator[Request | Article]:
    """List an article, and follow those that it names."""
    article, when = response.css_first("article"), response.css_first("time")
    if article is None or when is None:
        raise Drop("no_article")
    published = when.attributes["datetime"] or ""
    yield Article(response.final_url, response.page.title or "", published, len(article.text().split()))
    for link in response.css("a.story"):
        yield response.follow(link.attributes["href"] or "", label="story")


def archive(url: str, *words: str) -> None:
    """Archive a site into news.warc.gz and articles.jsonl, and say what is there."""
    outputs = ("-o", "news.warc.gz", "-o", "articles.jsonl")
    streamcrawl("run", "examples.news_archive:crawl", url, *outputs, "--fresh", "-q", *words)
    days: dict[str, int] = {}
    with open("articles.jsonl", "rb") as lines:
        for line in lines:
            day = msgspec.json.decode(line, type=Article).published[:10]
            days[day] = days.get(day, 0) + 1
    for day, count in sorted(days.items()):
        print(f"{day}: {count} articles")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        archive(sys.argv[1])
    else:
        with News() as news:
            archive(news.url, "--delay", "0")
