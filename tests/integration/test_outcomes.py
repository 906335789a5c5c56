"""Does every fault of a web server end in one named outcome, and leave the other pages of its host alone?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.integration.drive import crawling, records
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

Ending = tuple[str, str | int]
"""("done", status), or ("dead", reason)."""

ENDINGS: Final[dict[str, Ending]] = {
    # It does not answer, or breaks off: tried again, dead with the last attempt.
    "hang": ("dead", "timeout"),
    "reset": ("dead", "disconnected"),
    "reset_mid": ("dead", "disconnected"),
    "truncated": ("dead", "disconnected"),
    "slow_drip": ("dead", "timeout"),
    # It is not HTTP, or not what it says it is.
    "bad_status_line": ("dead", "protocol"),
    "bad_encoding": ("dead", "protocol"),
    "bad_chunk": ("dead", "protocol"),
    "big_header": ("dead", "protocol"),
    # It is too much: dead at once.
    "bomb": ("dead", "body_too_large"),
    "big": ("dead", "body_too_large"),
    "bytes_200001": ("dead", "body_too_large"),
    "bytes_200000": ("done", 200),
    # Redirects.
    "redirect_loop": ("dead", "redirect_loop"),
    "redirect_many": ("dead", "too_many_redirects"),
    "redirect_none": ("dead", "bad_redirect"),
    "redirect_bad": ("dead", "bad_redirect"),
    "redirect_latin1": ("done", 200),
    "redirect_301": ("done", 200),
    "redirect_303": ("done", 200),
    "redirect_307": ("done", 200),
    "redirect_308": ("done", 200),
    "redirect_300": ("done", 300),
    # Answers are answers, but for those that ask to come again.
    "status_204": ("done", 204),
    "status_404": ("done", 404),
    "status_410": ("done", 410),
    "status_501": ("done", 501),
    "status_408": ("dead", "http_408"),
    "status_425": ("dead", "http_425"),
    "status_429": ("dead", "http_429"),
    "status_500": ("dead", "http_500"),
    "status_503": ("dead", "http_503"),
    "retry_after_0_403": ("done", 403),
    # Unusual and all right.
    "no_length": ("done", 200),
    "gzip": ("done", 200),
    "deflate": ("done", 200),
    "br": ("done", 200),
    "chunked": ("done", 200),
    "latin1": ("done", 200),
    "links_300": ("done", 200),
}
TRIED_ONCE: Final = frozenset({"body_too_large", "redirect_loop", "too_many_redirects", "bad_redirect"})
ATTEMPTS: Final = 2
PAGES: Final = 4


async def test_every_fault_has_one_named_outcome(redis_server: RedisServer, crawl_name: str, tmp_path: Path) -> None:
    output = tmp_path / "pages.jsonl"
    spec = SiteSpec(hosts=len(ENDINGS), pages_per_host=PAGES)
    values: dict[str, Any] = {
        "scope": "prefix",  # nothing but what is offered here
        "depth_max": 0,
        "processes": 2,
        "concurrency": 32,
        "attempts_max": ATTEMPTS,
        "timeout_ms": 1500,
        "body_max_bytes": 200_000,
        "redirects_max": 5,
    }
    with SiteProcess(spec) as site:
        faults = {site.url(host, f"/fault/{name}"): name for host, name in enumerate(ENDINGS, start=1)}
        pages = [site.url(host, f"/p/{page}") for host in range(1, len(ENDINGS) + 1) for page in range(PAGES)]
        async with crawling(redis_server.url, crawl_name, [*faults, *pages], output=output, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
            dead = await run.dead()
        asked = [(f"http://{request.host}:{site.port}", request.path) for request in site.requests()]

    ends: list[tuple[str, Ending]] = [(record["url"], ("done", record["status"])) for record in records(output)]
    ends += [(letter.url, ("dead", letter.reason)) for letter in dead]
    assert len(ends) == len(dict(ends)) == totals["page.created"], "one end for each task"
    assert {name: dict(ends)[url] for url, name in faults.items()} == ENDINGS
    # The host's other pages: all there, each fetched once (page 0 is the target of some redirects, too).
    assert {url: dict(ends)[url] for url in pages} == dict.fromkeys(pages, ("done", 200))
    for host in range(1, len(ENDINGS) + 1):
        assert [asked.count((site.url(host, ""), f"/p/{page}")) for page in range(1, PAGES)] == [1] * (PAGES - 1)
    # A last status is known where there was an answer; an error says what happened; retries happened where they help.
    for letter in dead:
        assert letter.last_status == (letter.reason.removeprefix("http_") if letter.reason.startswith("http_") else "")
        assert letter.error
        origin, _, name = letter.url.partition("/fault/")
        tries = [path for asked_of, path in asked if (asked_of, path.partition("?")[0]) == (origin, f"/fault/{name}")]
        if name == "reset":
            # A kept-alive connection that is closed without an answer may not have asked: the fetcher repeats it once.
            assert ATTEMPTS <= len(tries) <= 2 * ATTEMPTS
        elif letter.reason not in TRIED_ONCE:
            assert len(tries) == ATTEMPTS, letter
        elif not name.startswith("redirect"):
            assert len(tries) == 1, letter


async def test_pages_that_always_hang_do_not_take_their_host_with_them(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """Four in a row look like a host that is down; what waits behind them must be asked all the same."""
    with SiteProcess(SiteSpec(pages_per_host=10)) as site:
        seeds = [site.url(1, f"/fault/hang?{n}") for n in range(4)] + [site.url(1, f"/p/{n}") for n in range(10)]
        values: dict[str, Any] = {"depth_max": 0, "timeout_ms": 300, "attempts_max": 2, "host_give_up_idle_ms": 3000}
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            assert (await run.totals())["page.done"] == 10
            assert {letter.url for letter in await run.dead()} == set(seeds[:4])
