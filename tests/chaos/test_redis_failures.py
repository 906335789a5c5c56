"""Redis refuses or forgets something in the middle of a crawl, and somebody mends it.

What passes is waited out: the same processes go on, with a line or two in the log. What a person must mend ends the
crawl in order, with the sentence that says how; the next run goes on where it stopped. Either way each page is in the
output once and the accounts hold. Start at `FAILURES`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import psutil
import pytest
from redis.exceptions import ResponseError

from streamcrawl.errors import ExitCode
from streamcrawl.store.connection import connect
from streamcrawl.store.keys import GROUP, Keys
from streamcrawl.store.shards import join_crawl
from tests.chaos.crawl_process import CrawlProcess, assert_complete
from tests.integration.snapshot import wait_until
from tests.redis_server import FAST, RedisServer
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Act = Callable[["Scene"], Awaitable[None]]

pytestmark = pytest.mark.chaos

SECRET: Final = "in-the-url"
RECORDS_BEFORE: Final = 15
FEEDER_MS: Final = 600_000
END_S: Final = 60.0
LINES_MAX: Final = 18
"""Of one run: a line for the failure and one for its end from each of four processes, and what every crawl says."""
SERVER: Final = FAST | {
    "save": "3600 1000000",  # never by itself; but a save that fails stops writes, as it does where saves are usual
    "busy-reply-threshold": "50",
    "enable-debug-command": "yes",
    "loading-process-events-interval-bytes": "1024",  # clients are heard while it loads, however little that is
}


@dataclass(frozen=True)
class Scene:
    """A crawl at work, its Redis, and a client that may do everything."""

    crawl: CrawlProcess
    server: RedisServer
    admin: Any

    async def feed(self, what: Literal["begin", "done"]) -> None:
        """Say that seeds may come, or that they have: only then does the crawl end."""
        crawl = await join_crawl(self.admin, self.crawl.name)
        await crawl.first.feed("the test", what, lease_ms=FEEDER_MS)

    async def until_logged(self, text: str) -> None:
        await self.crawl.until(lambda: text in self.crawl.log, f"{text!r} in the log")

    def lines(self) -> int:
        """Return how many lines the crawl has printed, but for its progress, which is one every ten seconds."""
        return sum(" pages · " not in line for line in self.crawl.log.splitlines())


async def nothing(scene: Scene) -> None:
    pass


def acl(*rules: str) -> Act:
    """Return the act that changes what the crawl's user may do."""

    async def act(scene: Scene) -> None:
        await scene.admin.execute_command("ACL", "SETUSER", "crawler", *rules)

    return act


async def shut_user_out(scene: Scene) -> None:
    await scene.admin.execute_command("ACL", "SETUSER", "crawler", "off")
    await scene.admin.execute_command("CLIENT", "KILL", "USER", "crawler")


def config(**values: str) -> Act:
    async def act(scene: Scene) -> None:
        for name, value in values.items():
            await scene.admin.config_set(name.replace("_", "-"), value)

    return act


async def flush_scripts(scene: Scene) -> None:
    await scene.admin.script_flush("SYNC")


async def cut_all_connections(scene: Scene) -> None:
    await scene.admin.client_kill_filter(_type="normal", skipme=True)


async def keep_busy(scene: Scene) -> None:
    other: Any = connect(scene.server.url)
    try:
        endless = asyncio.ensure_future(other.eval("while true do end", 0))
        await scene.until_logged("busy with a script")
        # The server hears nothing else until then.
        await scene.admin.script_kill()
        with pytest.raises(ResponseError, match="killed"):
            await endless
    finally:
        await other.aclose()


async def fail_to_save(scene: Scene) -> None:
    await scene.admin.config_set("rdb-key-save-delay", "10000000")
    await scene.admin.bgsave()
    for child in psutil.Process(scene.server.pid).children():
        child.kill()
    await scene.until_logged("cannot write to its disk")


async def save(scene: Scene) -> None:
    async def is_saved() -> bool:
        return bool((await scene.admin.info("persistence"))["rdb_last_bgsave_status"] == "ok")

    await scene.admin.config_set("rdb-key-save-delay", "0")
    await scene.admin.bgsave()
    await wait_until(is_saved, "the save that makes good for the one that failed")


async def make_replica(scene: Scene) -> None:
    await scene.admin.replicaof("127.0.0.1", "1")
    await scene.until_logged("a replica now")


async def make_master(scene: Scene) -> None:
    await scene.admin.replicaof("NO", "ONE")


async def reload(scene: Scene) -> None:
    """Load the data again while the crawl asks for more: it hears LOADING."""
    await scene.admin.config_set("key-load-delay", "10000")  # μs for each key
    await scene.admin.execute_command("DEBUG", "RELOAD")
    await scene.until_logged("loading its data")


async def destroy_group(scene: Scene) -> None:
    await scene.admin.xgroup_destroy(Keys(scene.crawl.name).fetch_stream, GROUP)


@dataclass(frozen=True)
class Failure:
    """One way to fail, how it is mended, and what somebody reads of it ('' for nothing)."""

    name: str
    cause: Act
    mend: Act
    says: str
    code: ExitCode | None = None
    """With which the crawl ends, to be resumed once it is mended; None when it goes on by itself."""


FAILURES: Final = (
    Failure("scripts-forgotten", flush_scripts, nothing, ""),
    Failure("connections-cut", cut_all_connections, nothing, "does not answer now"),
    Failure("busy", keep_busy, nothing, "busy with a script"),
    Failure("save-failed", fail_to_save, save, "cannot write to its disk: make room there"),
    Failure("replica", make_replica, make_master, "a replica now"),
    Failure("loading", reload, nothing, "loading its data"),
    Failure("group-destroyed", destroy_group, nothing, "work stream is gone"),
    Failure("full", config(maxmemory="1"), config(maxmemory="0"), "over the mark of 80 %", ExitCode.STOPPED),
    Failure("no-scripts", acl("-evalsha", "-eval"), acl("+@all"), "ACL SETUSER USER", ExitCode.STORE_UNAVAILABLE),
    Failure("no-reads", acl("-xreadgroup"), acl("+@all"), "ACL SETUSER USER", ExitCode.STORE_UNAVAILABLE),
    Failure("no-keys", acl("resetkeys", "~other:*"), acl("~*"), "ACL SETUSER USER", ExitCode.STORE_UNAVAILABLE),
    Failure("user-off", shut_user_out, acl("on"), "redis://USER:PASSWORD@", ExitCode.STORE_UNAVAILABLE),
)


@asynccontextmanager
async def crawl_at_work(tmp_path: Path, name: str) -> AsyncIterator[tuple[Scene, SiteProcess]]:
    """Yield a crawl in its middle, by a user of its own."""
    spec = SiteSpec(hosts=4, pages_per_host=14, latency_ms=20)
    settings = {"processes": 2, "lease": "2s", "delay": "50ms", "grace": "1s", "retry_base": "200ms"}
    with RedisServer(options=SERVER) as server, SiteProcess(spec) as site:
        admin: Any = connect(server.url)
        try:
            await admin.execute_command("ACL", "SETUSER", "crawler", "on", f">{SECRET}", "~*", "&*", "+@all")
            url = server.url.replace("://", f"://crawler:{SECRET}@")
            with CrawlProcess(
                name, tmp_path, [site.seed_url], redis_url=url, look_url=server.url, settings=settings
            ) as crawl:
                crawl.start()
                await crawl.until(crawl.count_records, "the first record")
                scene = Scene(crawl, server, admin)
                # However slow this test is, the crawl has not ended before its failure: more seeds might come.
                await scene.feed("begin")
                await crawl.until(lambda: crawl.count_records() >= RECORDS_BEFORE, "the records before the failure")
                yield scene, site
        finally:
            await admin.aclose()


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
async def test_crawl_is_complete_after(failure: Failure, tmp_path: Path, crawl_name: str) -> None:
    async with crawl_at_work(tmp_path, crawl_name) as (scene, site):
        crawl = scene.crawl
        await failure.cause(scene)
        if failure.code is not None:
            assert await crawl.wait(END_S) == failure.code, crawl.log
            await failure.mend(scene)
            await scene.feed("done")
            crawl.start(is_resume=True)
        else:
            await failure.mend(scene)
            # Not before it was noticed: an idle crawl asks Redis all the time too.
            await scene.until_logged(failure.says)
            await scene.feed("done")
        assert await crawl.wait(END_S) == ExitCode.DONE, crawl.log
        assert failure.says in crawl.log
        assert SECRET not in crawl.log
        assert scene.lines() <= LINES_MAX * (1 if failure.code is None else 2), crawl.log
        await assert_complete(crawl, site)


async def test_crawl_that_was_flushed_ends_and_comes_not_back(tmp_path: Path, crawl_name: str) -> None:
    async with crawl_at_work(tmp_path, crawl_name) as (scene, _):
        await scene.admin.flushall()
        assert await scene.crawl.wait(END_S) == ExitCode.STORE_UNAVAILABLE, scene.crawl.log
        assert "the crawl was deleted or begun afresh" in scene.crawl.log
        assert scene.lines() <= LINES_MAX, scene.crawl.log
        assert await scene.admin.keys("*") == []
