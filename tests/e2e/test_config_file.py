"""One file that describes a deployment, given to every command of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.store.connection import connect
from tests.redis_server import FAST, RedisServer

if TYPE_CHECKING:
    from tests.e2e.command import Command
    from tests.site.server import SiteProcess

pytestmark = pytest.mark.e2e

SECRET = "correct-horse-battery"


async def test_file_alone_says_what_is_crawled_where_and_how(command: Command, site: SiteProcess) -> None:
    with RedisServer(options={**FAST, "maxmemory": "200mb"}) as server:
        client = connect(server.url)
        await client.config_set("requirepass", SECRET)
        await client.aclose()
        address = server.url.removeprefix("redis://")
        (command.folder / "seeds.txt").write_text(site.seed_url + "\n")
        (command.folder / "shop.toml").write_text(
            f'redis = "redis://:{SECRET}@{address}"\nname = "shop"\nseeds = "seeds.txt"\noutput = "pages.jsonl"\n'
            "pages_max = 2\nprocesses = 1\nuser_agent = 'shop/1'\nlease = '5s'\n"
        )
        first = command.run("crawl", "--config", "shop.toml")
        assert first.code == ExitCode.STOPPED, first.err
        assert command.lines("pages.jsonl") == 2
        assert "streamcrawl crawl --resume --name shop --config shop.toml" in first.out
        second = command.run("crawl", "--resume", "--max-pages", "3", STREAMCRAWL_CONFIG="shop.toml")
        assert second.code == ExitCode.STOPPED, second.err
        assert command.lines("pages.jsonl") == 3
        listed = command.run("status", "--config", "shop.toml")
        assert listed.out.startswith("shop: ")
        audited = command.run("audit", "shop", STREAMCRAWL_CONFIG="shop.toml")
        assert audited.code == ExitCode.DONE, audited.out
        for result in (first, second, listed, audited):
            assert SECRET not in result.out + result.err
