"""A worker that stood still blames no host: what timed out meanwhile is fetched again, with no attempt counted."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

from tests.integration.drive import Talker, crawling, html, until

if TYPE_CHECKING:
    from aiohttp import web

    from tests.redis_server import RedisServer


async def test_paused_worker_counts_no_attempt_and_no_failure(redis_server: RedisServer, crawl_name: str) -> None:
    async def slow(asked: int) -> web.StreamResponse:
        await asyncio.sleep(0.5 if asked == 0 else 0)
        return await html()(asked)

    async with Talker({"/": html("/slow"), "/slow": slow}) as talker:
        values: dict[str, Any] = {"attempts_max": 1, "timeout_ms": 1500, "lease_ms": 20_000}
        async with crawling(redis_server.url, crawl_name, [talker.origin], **values) as run:
            asked = talker.asked
            await until(lambda: asked["/slow"] > 0, "the slow page to be asked for")
            [worker] = run.workers()
            os.kill(worker.pid, signal.SIGSTOP)
            try:
                # Long after its answer has come, and its time is over.
                await asyncio.sleep(2.5)
            finally:
                os.kill(worker.pid, signal.SIGCONT)
            assert await run.word() == "ENDED"
            assert await run.dead() == []
            totals = await run.totals()
            assert totals["page.done"] == 2
            assert "page.retried" not in totals
            assert "page.unanswered" not in totals
            assert "page.crashed" not in totals
            await run.check()
