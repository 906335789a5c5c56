"""A whole crawl of several shards, moved by hand: what tests of operators' commands begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from streamcrawl.ops.audit import audit
from streamcrawl.rules.task import Outcome
from streamcrawl.settings import Given, make_settings
from streamcrawl.store.shards import Shards, open_crawl
from streamcrawl.store.tuning import encode_given
from tests.integration.snapshot import Held, Lab, fast, page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis.asyncio import Redis

SHARDS: Final = (1, 3)


class Operated:
    """A crawl, and a `Lab` for each of its shards."""

    def __init__(self, name: str, crawl: Shards) -> None:
        self.name = name
        self.crawl = crawl
        self.labs = [Lab(frontier) for frontier in crawl]

    @classmethod
    async def opened(
        cls, client: Redis, name: str, *, shards: int = 1, sinks: Sequence[str] = (), **values: Any
    ) -> Operated:
        asked = fast(name, shards=shards, **values)
        given = {field: Given(value, "test") for field, value in asked.items() if field not in ("name", "shards")}
        crawl, _ = await open_crawl(client, make_settings(**asked), sinks=sinks, given=encode_given(given))
        await crawl.control(slots=1000)
        return cls(name, crawl)

    def lab_of(self, host: str) -> Lab:
        return self.labs[self.crawl.index_of(host)]

    async def offer(self, urls: Iterable[str], **values: Any) -> None:
        by_lab: dict[int, list[str]] = {}
        for url in urls:
            by_lab.setdefault(self.crawl.index_of(page(url).host), []).append(url)
        for shard, own in by_lab.items():
            await self.labs[shard].offer(*own, **values)

    async def take(self, consumer: str = "w1") -> list[tuple[Lab, Held]]:
        """Dispatch and read in every shard."""
        return [(lab, held) for lab in self.labs for held in await lab.take(consumer)]

    async def kill(
        self, urls: Iterable[str], *, reason: str = "timeout", status: str = "", error: str = "late"
    ) -> None:
        """Make dead letters of new URLs."""
        wanted = list(urls)
        await self.offer(wanted)
        left = set(wanted)
        while left:
            taken = await self.take()
            assert taken, f"never dispatched: {sorted(left)[:3]}"
            for lab, held in taken:
                if held.task.url in left:
                    detail = (held.task.level.value, held.stored, reason, error, status)
                    assert await lab.end(held, Outcome.DEAD, detail=detail) == "DONE"
                    left.discard(held.task.url)
                else:
                    await lab.end(held)

    async def total(self, name: str) -> int:
        return sum([(await lab.totals()).get(name, 0) for lab in self.labs])

    async def check(self) -> None:
        """Check that every figure of every shard fits, by the tests' own count and by audit."""
        for lab in self.labs:
            await lab.check()
        report = await audit(self.crawl)
        assert report.is_sound, "\n".join(report.faults)
