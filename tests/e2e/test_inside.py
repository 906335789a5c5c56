"""Crawls of a network of one's own by name: what opens it, and what does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from streamcrawl.errors import ExitCode
from tests.dns_server import DnsServer, records
from tests.integration.drive import Talker, html

if TYPE_CHECKING:
    from tests.e2e.command import Command, Result


async def crawl(command: Command, dns: DnsServer, *arguments: str) -> Result:
    """Run `streamcrawl crawl` with the name server of the test, beside which this loop goes on answering."""
    given: dict[str, Any] = {"STREAMCRAWL_HOST_GIVE_UP_IDLE": "100ms", "STREAMCRAWL_NAMESERVERS": dns.address}
    return await asyncio.to_thread(command.run, "crawl", *arguments, **given)


async def test_seed_whose_name_is_inside_opens_its_network_and_no_other(command: Command) -> None:
    async with DnsServer() as dns, Talker({}) as talker:
        port = talker.origin.rpartition(":")[2]
        dns.names["wiki.test"] = dns.names["docs.test"] = [records("127.0.0.1")]
        dns.names["files.test"] = [records("10.0.0.1")]
        seed, docs = f"http://wiki.test:{port}/", f"http://docs.test:{port}/d"
        talker.answers = {"/": html(docs, f"http://files.test:{port}/f"), "/d": html()}
        result = await crawl(command, dns, seed, "--scope", "any", "--name", "w", "--no-robots")
        assert result.code == ExitCode.DONE, result.err
        assert "blocked_address" in result.out
    assert command.pages("w.jsonl") == {seed, docs}


async def test_name_that_was_not_inside_when_it_was_given_opens_nothing_later(command: Command) -> None:
    async with DnsServer() as dns, Talker({"/": html(), "/x": html()}) as talker:
        first = await crawl(command, dns, "http://wiki.test:1/", "--name", "w", "--no-robots")
        assert first.code == ExitCode.WITH_DEAD_LETTERS
        dns.names["wiki.test"] = [records("127.0.0.1")]
        place = f"http://wiki.test:{talker.origin.rpartition(':')[2]}/"
        second = await crawl(command, dns, place, "--name", "w", "--no-robots")
        assert "blocked_address" in second.out, second.out + second.err
        assert talker.requests == []
        await crawl(command, dns, f"{place}x", "--name", "w", "--no-robots", "--allow-private")
        assert [request.path for request in talker.requests] == ["/x"]
