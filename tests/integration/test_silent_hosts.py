"""A host that does not answer is backed off as a host: its tasks pay nothing, and are all there when it comes back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.integration.drive import crawling, html, records
from tests.redis_server import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

PAGES = 30
REFUSALS = 5


async def test_host_that_comes_back_has_lost_no_attempt_and_no_page(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output, port, asked = tmp_path / "pages.jsonl", free_port(), Counter[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked[request.path] += 1
        return await html()(0)

    seeds = [f"http://127.0.0.1:{port}/{page}" for page in range(PAGES)]
    # One attempt: a failure that a task paid for would be its death.
    values: dict[str, Any] = {"attempts_max": 1, "host_backoff_base_ms": 20, "host_backoff_max_ms": 50}
    async with crawling(redis_server.url, crawl_name, seeds, output=output, host_concurrency=4, **values) as run:
        while (await run.totals()).get("page.unanswered", 0) < REFUSALS:
            assert run.is_running
            await run.end_or(0.01)
        app = web.Application()
        app.router.add_get("/{page}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            assert await run.word() == "ENDED"
        finally:
            await runner.cleanup()
        await run.check()
        assert await run.dead() == []
    assert {record["url"]: (record["status"], record["attempts"]) for record in records(output)} == dict.fromkeys(
        seeds, (200, 1)
    )
    assert set(asked.values()) == {1}
