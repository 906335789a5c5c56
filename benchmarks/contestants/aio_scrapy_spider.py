"""aio-scrapy with its queue in memory, or in Redis: `aio_scrapy_spider.py ROOT_URL OUTPUT CONCURRENCY [REDIS_URL]`.

Of what its documentation offers: one session of aiohttp for all requests (by default each has its own), uvloop (taken
when it is there), nothing logged, no retries, statistics and extensions, a list as its queue in Redis.
"""

from __future__ import annotations

import json
import sys
from urllib.parse import urljoin

from aioscrapy import Request, Spider
from aioscrapy.crawler import CrawlerProcess

ROOT_URL, OUTPUT, CONCURRENCY, *REDIS_URL = sys.argv[1:]

SETTINGS = {
    "LOG_ENABLED": False,
    "LOG_LEVEL": "ERROR",
    "CONCURRENT_REQUESTS": int(CONCURRENCY),
    "CONCURRENT_REQUESTS_PER_DOMAIN": int(CONCURRENCY),
    "CONCURRENT_PARSER": int(CONCURRENCY),
    "RANDOMIZE_DOWNLOAD_DELAY": False,
    "USE_SESSION": True,
    "RETRY_ENABLED": False,
    "REFERER_ENABLED": False,
    "DOWNLOADER_STATS": False,
    "STATS_DUMP": False,
    "EXTENSIONS": {
        f"aioscrapy.libs.extensions.{name}": None
        for name in ("corestats.CoreStats", "logstats.LogStats", "closespider.CloseSpider")
    },
    "DUPEFILTER_CLASS": "aioscrapy.dupefilters.disk.RFPDupeFilter",
}
if REDIS_URL:
    SETTINGS |= {
        "REDIS_ARGS": {"queue": {"url": REDIS_URL[0]}},
        "SCHEDULER_QUEUE_CLASS": "aioscrapy.queue.redis.SpiderQueue",
        "DUPEFILTER_CLASS": "aioscrapy.dupefilters.redis.RFPDupeFilter",
    }


class Site(Spider):
    name = "site"
    start_urls = (ROOT_URL,)

    async def parse(self, response):
        url = response.url.partition("#")[0]
        record = {"url": url, "title": response.xpath("//title/text()").get()}
        output.write(json.dumps(record) + "\n")
        for href in response.xpath("//a/@href").getall():
            yield Request(urljoin(url, href))


with open(OUTPUT, "w", encoding="utf-8") as output:
    process = CrawlerProcess(SETTINGS)
    process.crawl(Site)
    process.start()
