"""Does every fault of a web server end in one named outcome, and leave the other pages of its host alone?"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.integration.drive import crawling, records
from tests.site.faults import RAW_FAULTS
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

Ending = tuple[str, str | int]
"""("done", status), or ("dead", reason)."""
TITLE: Final = "Поезд из Перми"

ENDINGS: Final[dict[str, Ending]] = {
    # It does not answer, or breaks off: tried again, dead with the last attempt.
    "hang": ("dead", "timeout"),
    "hang_in_body": ("dead", "timeout"),
    "head_drip": ("dead", "timeout"),
    "slow_drip": ("dead", "body_too_slow"),
    "reset": ("dead", "disconnected"),
    "reset_mid": ("dead", "disconnected"),
    "truncated": ("dead", "disconnected"),
    "length_more": ("dead", "disconnected"),
    "chunk_no_end": ("dead", "disconnected"),
    "chunk_cut": ("dead", "disconnected"),
    "head_none": ("dead", "disconnected"),
    "head_cut": ("dead", "disconnected"),
    "informed_only": ("dead", "disconnected"),
    # It is not HTTP, or not what it says it is.
    **dict.fromkeys(
        (
            *("bad_status_line", "http_09", "http_2", "http_30", "tls", "noise"),
            *("status_two_digits", "status_word", "status_long_reason"),
            *("big_header", "headers_5000", "head_endless", "header_nul"),
            *("header_no_colon", "header_no_name", "header_space_name"),
            *("length_twice", "length_two", "length_negative", "length_word", "length_vast", "length_and_chunks"),
            *("bad_chunk", "chunk_negative", "chunk_vast", "chunk_longer", "trailers_endless", "extension_endless"),
            *("informed_often", "informed_endless", "switched_101"),
            *("bad_encoding", "bad_deflate", "bad_br", "bad_zstd", "gzip_checksum"),
            *("gzip_cut", "deflate_cut", "br_cut", "zstd_cut"),
            *("gzip_many_members", "zstd_many_frames", "codings_many", "zstd_window", "big_gzip"),
        ),
        ("dead", "protocol"),
    ),
    # It is too much: dead at once.
    "bomb": ("dead", "body_too_large"),
    "bomb_deflate": ("dead", "body_too_large"),
    "bomb_br": ("dead", "body_too_large"),
    "bomb_zstd": ("dead", "body_too_large"),
    "bomb_twice": ("dead", "body_too_large"),
    "big": ("dead", "body_too_large"),
    "length_beyond": ("dead", "body_too_large"),
    "bytes_200001": ("dead", "body_too_large"),
    "bytes_200000": ("done", 200),
    # Redirects.
    "redirect_loop": ("dead", "redirect_loop"),
    "redirect_many": ("dead", "too_many_redirects"),
    "redirect_none": ("dead", "bad_redirect"),
    "redirect_bad": ("dead", "bad_redirect"),
    "redirect_latin1": ("done", 200),
    "redirect_bomb": ("done", 200),
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
    "body_204": ("done", 204),
    "body_205": ("done", 205),
    "body_304": ("done", 304),
    "partial_206": ("done", 206),
    # Unusual and all right: what comes of them stands in WHOLE and READ.
    **dict.fromkeys(
        (
            *("no_length", "length_less", "transfer_unknown", "head_only", "http_10", "lines_lf", "status_no_reason"),
            *("gzip", "x_gzip", "deflate", "deflate_raw", "br", "zstd", "zstd_frames", "gzip_twice", "br_gzip"),
            *("gzip_members", "gzip_padded", "gzip_empty", "gzip_chunked", "coding_unknown"),
            *("chunked", "chunk_trailers", "chunk_extension", "chunk_extension_long", "informed_100", "informed_103"),
            *("header_30k", "headers_100", "headers_twice", "header_bytes", "header_folded", "cookies"),
            *("type_none", "type_empty", "type_none_binary", "type_wrong", "type_feed", "type_strange"),
            *("latin1", "charset_bom", "charset_meta", "charset_late", "charset_none", "charset_unknown"),
            *("charset_gb18030", "charset_lie", "refresh_self", "links_300"),
        ),
        ("done", 200),
    ),
}
WHOLE: Final = frozenset(
    {
        *("no_length", "transfer_unknown", "http_10", "lines_lf", "status_no_reason"),
        *("gzip", "x_gzip", "deflate", "deflate_raw", "br", "zstd", "zstd_frames", "gzip_twice", "br_gzip"),
        *("gzip_members", "gzip_padded", "gzip_chunked", "coding_unknown"),
        *("chunked", "chunk_trailers", "chunk_extension", "chunk_extension_long", "informed_100", "informed_103"),
        *("header_30k", "headers_100", "headers_twice", "header_bytes", "header_folded", "cookies"),
        *("type_none", "type_empty", "type_strange"),
    }
)
"""These are page 0 of their host, however it comes."""
READ: Final[dict[str, tuple[str | None, str | None, int]]] = {
    "latin1": ("windows-1252", "Café Größe", 0),
    "charset_bom": ("utf-16-le", TITLE, 0),
    "charset_meta": ("windows-1251", TITLE, 0),
    "charset_late": ("windows-1251", TITLE, 0),
    "charset_none": ("windows-1251", TITLE, 0),
    "charset_unknown": ("utf-8", TITLE, 0),
    "charset_gb18030": ("gbk", TITLE, 0),
    "refresh_self": ("utf-8", "Again", 0),
    "charset_lie": ("utf-8", TITLE.encode("cp1251").decode("utf-8", "replace"), 0),
    "type_none_binary": (None, None, 0),
    "type_wrong": (None, None, 0),
    "type_feed": ("utf-8", None, 0),
    "gzip_empty": (None, None, 0),
    "length_less": ("utf-8", None, 0),
    "links_300": ("utf-8", "300 links", 300),
}
"""Charset, title and number of links in the record."""
TRIED_ONCE: Final = frozenset({"body_too_large", "redirect_loop", "too_many_redirects", "bad_redirect"})
ATTEMPTS: Final = 2
PAGES: Final = 3
CEILING_BYTES: Final = 384 * 1024 * 1024
"""Of address space that a worker may take beyond what it has when it begins: a bomb of 512 MiB does not fit in. Without
one it takes up to 245 MB, mostly arenas that glibc reserves for threads; lexbor does not survive being refused."""


def limit_memory(pid: int) -> None:
    """Let a process take no more than CEILING_BYTES beyond what it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    ceiling = pages * resource.getpagesize() + CEILING_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (ceiling, ceiling))


def test_every_fault_of_the_site_has_its_line_in_the_table() -> None:
    assert set(RAW_FAULTS) <= ENDINGS.keys()
    assert len(ENDINGS) >= 60


async def test_every_fault_has_one_named_outcome(redis_server: RedisServer, crawl_name: str, tmp_path: Path) -> None:
    output = tmp_path / "pages.jsonl"
    spec = SiteSpec(hosts=len(ENDINGS), pages_per_host=PAGES)
    values: dict[str, Any] = {
        "scope": "prefix",  # nothing but what is offered here
        "depth_max": 0,
        "processes": 2,
        "concurrency": 32,
        "attempts_max": ATTEMPTS,
        "timeout_ms": 2000,
        "read_timeout_ms": 1500,
        "body_max_bytes": 200_000,
        "redirects_max": 5,
    }
    with SiteProcess(spec) as site:
        faults = {site.url(host, f"/fault/{name}"): name for host, name in enumerate(ENDINGS, start=1)}
        pages = [site.url(host, f"/p/{page}") for host in range(1, len(ENDINGS) + 1) for page in range(PAGES)]
        async with crawling(redis_server.url, crawl_name, [*faults, *pages], output=output, **values) as run:
            await run.all_ready()
            for worker in run.workers():
                limit_memory(worker.pid)
            assert await run.word(within_s=100) == "ENDED"
            await run.check()
            totals = await run.totals()
            dead = await run.dead()
        assert not [line for line in run.log if "in hand" in line or "exit code" in line], "no worker died of it"
        asked = [(f"http://{request.host}:{site.port}", request.path) for request in site.requests()]

    found = {record["url"]: record for record in records(output)}
    ends: list[tuple[str, Ending]] = [(record["url"], ("done", record["status"])) for record in records(output)]
    ends += [(letter.url, ("dead", letter.reason)) for letter in dead]
    assert len(ends) == len(dict(ends)) == totals["page.created"], "one end for each task"
    assert {name: dict(ends)[url] for url, name in faults.items()} == ENDINGS
    # The host's other pages: all there, each fetched once (page 0 is the target of some redirects, too).
    assert {url: dict(ends)[url] for url in pages} == dict.fromkeys(pages, ("done", 200))
    for host in range(1, len(ENDINGS) + 1):
        assert [asked.count((site.url(host, ""), f"/p/{page}")) for page in range(1, PAGES)] == [1] * (PAGES - 1)
    # What came of the odd ones.
    for host, name in enumerate(ENDINGS, start=1):
        if name in WHOLE:
            record, page = found[site.url(host, f"/fault/{name}")], found[site.url(host, "/p/0")]
            assert (name, record["bytes"], record["title"]) == (name, page["bytes"], page["title"])
        if name in READ:
            record = found[site.url(host, f"/fault/{name}")]
            assert (name, record["charset"], record["title"], record["links"]) == (name, *READ[name])
    # A last status is known where there was an answer; an error says what happened; retries happened where they help.
    for letter in dead:
        assert letter.last_status == (letter.reason.removeprefix("http_") if letter.reason.startswith("http_") else "")
        assert letter.error
        origin, _, name = letter.url.partition("/fault/")
        tries = [path for asked_of, path in asked if (asked_of, path.partition("?")[0]) == (origin, f"/fault/{name}")]
        if name in ("reset", "head_none"):
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
