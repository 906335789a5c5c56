"""The record of a page, field by field: it is what every program behind a crawl reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from streamcrawl.rules.urls import fingerprint, fingerprint_hex
from tests.integration.drive import Talker, crawling, html, plain, records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

FIELDS: Final = [
    "url", "final_url", "status", "depth", "referrer", "fetched_at", "elapsed_ms", "content_type", "charset", "bytes",
    "title", "links", "attempts", "redirects", "fingerprint",
]  # fmt: skip
PAGE: Final = (
    "<title> A  page\nwith ümlauts </title><a href=/moved></a><a href=/moved#x></a><a href=/text></a>"
    "<a href=http://far.invalid/>"
).encode("latin-1")


async def test_record_of_a_page_has_every_field(redis_server: RedisServer, crawl_name: str, tmp_path: Path) -> None:
    async def second_time(count: int) -> web.StreamResponse:
        if not count:
            return web.Response(status=500)
        return web.Response(body=PAGE, headers={"Content-Type": "text/html; charset=ISO-8859-1"})

    output = tmp_path / "pages.jsonl"
    answers = {
        "/?q=1": second_time,
        "/moved": html(status=302, Location="/gone"),
        "/gone": html(status=404),
        "/text": plain("no page"),
    }
    async with Talker(answers) as talker:
        origin = talker.origin
        began = datetime.now(UTC)
        async with crawling(redis_server.url, crawl_name, [f"{origin}/?q=1#top"], output=output, scope="host") as run:
            assert await run.word() == "ENDED"
        ended = datetime.now(UTC)
    found: dict[str, dict[str, Any]] = {record["url"]: record for record in records(output)}
    assert set(found) == {f"{origin}/?q=1", f"{origin}/moved", f"{origin}/text"}
    assert len(records(output)) == 3
    for url, record in found.items():
        assert list(record) == FIELDS
        assert record.pop("fingerprint") == fingerprint_hex(fingerprint(url))
        assert 0 <= record.pop("elapsed_ms") <= (ended - began) / timedelta(milliseconds=1)
        at = record.pop("fetched_at")
        assert at.endswith("Z")
        # It is cut to whole milliseconds.
        assert began - timedelta(milliseconds=1) <= datetime.fromisoformat(at) <= ended
    seed, moved, text = (found[origin + path] for path in ("/?q=1", "/moved", "/text"))
    assert seed == {
        "url": f"{origin}/?q=1", "final_url": f"{origin}/?q=1", "status": 200, "depth": 0, "referrer": None,
        "content_type": "text/html", "charset": "windows-1252", "bytes": len(PAGE), "title": "A page with ümlauts",
        "links": 3, "attempts": 2, "redirects": [],
    }  # fmt: skip
    assert (moved["final_url"], moved["status"], moved["redirects"]) == (f"{origin}/gone", 404, [f"{origin}/moved"])
    assert (moved["depth"], moved["referrer"], moved["attempts"]) == (1, f"{origin}/?q=1", 1)
    assert (text["content_type"], text["bytes"], text["title"], text["links"]) == ("text/plain", 7, None, 0)
