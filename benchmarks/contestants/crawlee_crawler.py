"""Crawlee with its storage in memory, or in Redis: `crawlee_crawler.py ROOT_URL OUTPUT CONCURRENCY [REDIS_URL]`.

Of what its documentation says is fast: HttpCrawler with a parser of one's own (selectolax; its parsel and
BeautifulSoup crawlers cost more), its default client (impit, in Rust), uvloop, sessions, logging and robots.txt off,
the concurrency fixed so that its autoscaling does not lower it, and links given in one call for a page.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from urllib.parse import urljoin

import uvloop
from crawlee import ConcurrencySettings
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext
from crawlee.storage_clients import MemoryStorageClient, RedisStorageClient
from selectolax.lexbor import LexborHTMLParser

ROOT_URL, OUTPUT, CONCURRENCY, *REDIS_URL = sys.argv[1:]


async def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # that the storage in Redis is experimental
    concurrency = int(CONCURRENCY)
    crawler = HttpCrawler(
        storage_client=RedisStorageClient(connection_string=REDIS_URL[0]) if REDIS_URL else MemoryStorageClient(),
        concurrency_settings=ConcurrencySettings(
            min_concurrency=concurrency, desired_concurrency=concurrency, max_concurrency=concurrency
        ),
        configure_logging=False,
        use_session_pool=False,
        max_request_retries=0,
    )

    @crawler.router.default_handler
    async def handle(context: HttpCrawlingContext) -> None:
        url = context.request.url.partition("#")[0]
        page = LexborHTMLParser(await context.http_response.read())
        title = page.css_first("title")
        output.write(json.dumps({"url": url, "title": title.text() if title else None}) + "\n")
        await context.add_requests([urljoin(url, link.attributes["href"]) for link in page.css("a[href]")])

    await crawler.run([ROOT_URL])


with open(OUTPUT, "w", encoding="utf-8") as output:
    uvloop.run(main())
