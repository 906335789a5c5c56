"""The practical limit: what does the least that can be called a crawler cost per page?

aiohttp on uvloop, selectolax, canonical URLs by can_ada, a set of what was seen and a deque of what is to do: what a
good programmer writes in an afternoon and throws away. It keeps a title per page and nothing else: it forgets all when
it dies, and has no politeness, robots.txt, retries or limits, and output only when it is done. It reads the
whole body, decodes what it is told, takes off fragments and compares canonical URLs, because without these it would not
fetch the same pages.

    python -m benchmarks.bare_loop http://127.0.0.1:8000/

prints one JSON line. `cpu_s` is user and system time of the whole process from its start; `loop_cpu_s` leaves out the
start of the interpreter and the imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from pathlib import Path

import aiohttp
import can_ada
import uvloop
from selectolax.lexbor import LexborHTMLParser
from yarl import URL


async def crawl(root_url: str, *, concurrency: int, is_any_host: bool) -> dict[str, str | None]:
    """Return the title of every page that is reachable from the root, by URL, on its host or on any."""
    inside = "http" if is_any_host else can_ada.parse(root_url).origin + "/"
    seen, queue, titles = {root_url}, deque([root_url]), dict[str, str | None]()
    working = 0

    async def work() -> None:
        nonlocal working
        while queue:
            url = queue.popleft()
            async with session.get(URL(url, encoded=True), allow_redirects=False) as response:
                body = await response.read()
                if response.status != 200 or response.content_type != "text/html":
                    continue
            page = LexborHTMLParser(body)
            title = page.css_first("title")
            titles[url] = title.text(strip=True) if title else None
            base = can_ada.parse(url)
            for anchor in page.css("a[href]"):
                try:
                    link = (base + (anchor.attributes["href"] or "").partition("#")[0]).href
                except ValueError:
                    continue
                if link not in seen and link.startswith(inside):
                    seen.add(link)
                    queue.append(link)
            for _ in range(min(concurrency - working, len(queue) - 1)):
                working += 1
                workers.create_task(work())
        working -= 1

    connector = aiohttp.TCPConnector(limit=concurrency)
    async with (
        aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
        asyncio.TaskGroup() as workers,
    ):
        working += 1
        workers.create_task(work())
    return titles


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare_loop", description="Crawl with next to nothing.")
    parser.add_argument("root_url")
    parser.add_argument("--concurrency", type=int, default=64, metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE", help="at its end write URL and title of each page here")
    parser.add_argument("--any-host", action="store_true", help="follow links to other hosts too")
    options = parser.parse_args()
    began_s, cpu_began_s = time.monotonic(), time.process_time()
    titles = uvloop.run(crawl(options.root_url, concurrency=options.concurrency, is_any_host=options.any_host))
    if options.output is not None:
        with options.output.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"url": url, "title": title}) + "\n" for url, title in titles.items())
    cpu_s, wall_s = time.process_time(), time.monotonic() - began_s
    print(
        json.dumps(
            {
                "benchmark": "bare_loop",
                "pages": len(titles),
                "wall_s": round(wall_s, 3),
                "cpu_s": round(cpu_s, 3),
                "loop_cpu_s": round(cpu_s - cpu_began_s, 3),
                "cpu_s_per_1000_pages": round(cpu_s / len(titles) * 1000, 3) if titles else None,
            }
        )
    )


if __name__ == "__main__":
    main()
