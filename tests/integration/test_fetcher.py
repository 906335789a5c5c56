"""The fetcher against real sockets: the site of the tests, and a raw server where the exact bytes matter."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.errors import (
    BadRedirect,
    BodyTooLarge,
    BodyTooSlow,
    ConnectError,
    Disconnected,
    DnsError,
    FetchError,
    FetchTimeout,
    ProtocolError,
    TlsError,
)
from streamcrawl.rules.urls import canonical_url, split_url
from streamcrawl.settings import Settings, make_settings
from streamcrawl.web.fetcher import READ_BUFFER_BYTES, Fetcher
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

DEAD, REFUSING = 2, 3
BODY_MAX = 1_000_000
MEBIBYTE = 1024 * 1024


def settings(**changes: Any) -> Settings:
    values = {
        "name": "fetcher",
        "allow_private": True,
        "timeout_ms": 5000,
        "connect_timeout_ms": 1000,
        "read_timeout_ms": 500,
        "body_max_bytes": BODY_MAX,
        "user_agent": "streamcrawl-tests/1.0",
    }
    return make_settings(**values | changes)


@pytest.fixture(scope="module")
def site() -> Iterator[SiteProcess]:
    spec = SiteSpec(hosts=4, pages_per_host=30, dead_hosts=(DEAD,), refusing_hosts=(REFUSING,), flaky=0.2)
    with SiteProcess(spec) as running:
        yield running


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    async with Fetcher(settings()) as running:
        yield running


class RawServer:
    """Answers each request with the bytes that `answer` returns; None resets the connection instead of answering."""

    def __init__(self, answer: Callable[[RawServer, int], bytes | None]) -> None:
        self.heads: list[bytes] = []
        """Of every request, in order."""
        self.connections = 0
        self.origin = ""
        self._answer = answer
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        on_this_connection = 0
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                on_this_connection += 1
                answer = self._answer(self, on_this_connection)
                if answer is None:
                    writer.transport.abort()
                    return
                writer.write(answer)
                if b"Connection: close" in answer:
                    writer.close()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def raw_server(answer: Callable[[RawServer, int], bytes | None]) -> AsyncIterator[RawServer]:
    server = RawServer(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.origin = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server
        for writer in server._writers:
            writer.close()


def ok(body: bytes = b"hello", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), headers, body)


async def failure(fetching: Awaitable[Any]) -> FetchError:
    """Return the FetchError that a fetch ends with."""
    with pytest.raises(FetchError) as caught:
        await fetching
    return caught.value


# -- what goes out


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/a//b",
        "/a%2Fb%2fc",
        "/%7Euser/~user",
        "/caf%C3%A9?q=%E9",
        "/a?q=1+2%20|{}^`&'x'[0]=$,;:@!*()",
        "/a;v=1,2:3@4!$&'()*+=-._~",
        "/?",
        "/?a=b?c=/d",
        "/%",
        "/%zz?%zz",
        "/a?b=http://x/../y",
    ],
)
async def test_the_url_goes_on_the_wire_byte_for_byte(fetcher: Fetcher, target: str) -> None:
    async with raw_server(lambda *_: ok()) as server:
        await fetcher.fetch(server.origin + target)
        expected = "/" if target == "/?" else target  # canonical URLs have no empty query
        assert server.heads[0].startswith(f"GET {expected} HTTP/1.1\r\n".encode())


ODD = st.sampled_from(
    ["%", "%2", "%2f", "%2F", "%zz", "%25", "%00", "%0d%0a", "+", " ", "\t", "é", "€", "😀", "\ud800", "\x7f", "\x00",
     '"', "<", ">", "\\", "^", "`", "{", "|", "}", "[", "]", "'", "~", "/", "//", ".", "..", "%2e", "%2E%2e", ";", "=",
     "&", ":", "@", ",", "$", "!", "*", "(", ")", "?", "#"]
)  # fmt: skip
ODD_TEXT = st.lists(ODD | st.text(max_size=3), max_size=12).map("".join)


@given(st.lists(st.tuples(ODD_TEXT, ODD_TEXT), min_size=20, max_size=40))
@hypothesis.settings(max_examples=15, deadline=None)
def test_any_canonical_url_goes_on_the_wire_byte_for_byte(pairs: list[tuple[str, str]]) -> None:
    async def fetch_all() -> None:
        async with raw_server(lambda *_: ok()) as server, Fetcher(settings()) as fetcher:
            for path, query in pairs:
                url = canonical_url(f"{server.origin}/{path}?{query}")
                assert url is not None
                server.heads.clear()
                await fetcher.fetch(url)
                [head] = server.heads
                assert head.startswith(b"GET " + split_url(url)[1].encode("ascii") + b" HTTP/1.1\r\n")
                assert head.count(b"\r\nHost: %b\r\n" % server.origin.removeprefix("http://").encode()) == 1

    asyncio.run(fetch_all())


async def test_headers_say_who_we_are_and_what_we_can_decode(fetcher: Fetcher) -> None:
    async with raw_server(lambda *_: ok(headers=b"Set-Cookie: tracked=1; Path=/\r\n")) as server:
        for _ in range(2):
            await fetcher.fetch(server.origin + "/", headers={"X-Extra": "1"})
        names = [line.partition(b":")[0].lower() for line in server.heads[1].splitlines()[1:] if line]
        assert sorted(names) == [b"accept", b"accept-encoding", b"host", b"user-agent", b"x-extra"]
        assert b"User-Agent: streamcrawl-tests/1.0\r\n" in server.heads[1]
        assert b"Accept-Encoding: gzip, deflate, br, zstd\r\n" in server.heads[1]


async def test_contact_is_sent_behind_the_user_agent_from_the_next_request_on() -> None:
    async with raw_server(lambda *_: ok()) as server, Fetcher(settings(contact="me@a.test")) as fetcher:
        await fetcher.fetch(server.origin + "/")
        fetcher.apply(settings(contact="https://a.test/bot"))
        await fetcher.fetch(server.origin + "/")
        assert b"User-Agent: streamcrawl-tests/1.0 (+me@a.test)\r\n" in server.heads[0]
        assert b"User-Agent: streamcrawl-tests/1.0 (+https://a.test/bot)\r\n" in server.heads[1]


async def test_referrer_is_sent_but_never_from_https_to_http(fetcher: Fetcher) -> None:
    async with raw_server(lambda *_: ok()) as server:
        await fetcher.fetch(server.origin + "/", referrer="http://example.org/from")
        await fetcher.fetch(server.origin + "/", referrer="https://example.org/secret")
        assert b"Referer: http://example.org/from\r\n" in server.heads[0]
        assert b"Referer" not in server.heads[1]


async def test_credentials_in_a_url_are_never_sent(fetcher: Fetcher) -> None:
    async with raw_server(lambda *_: ok()) as server:
        await fetcher.fetch(server.origin.replace("//", "//user:secret@") + "/a@b")
        assert b"Authorization" not in server.heads[0]
        assert server.heads[0].startswith(b"GET /a@b HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "url", ["", "x", "/a", "ws://127.0.0.1/", "ftp://127.0.0.1/", "http://", "http://[::1", "tcp:x"]
)
async def test_what_is_no_http_url_is_refused_and_not_retried(fetcher: Fetcher, url: str) -> None:
    error = await failure(fetcher.fetch(url))
    assert isinstance(error, ProtocolError)
    assert not error.is_retryable


async def test_headers_of_a_host_go_to_it_and_to_no_other() -> None:
    async with raw_server(lambda *_: ok()) as here, raw_server(lambda *_: ok()) as there:
        place = here.origin.removeprefix("http://")
        given = settings(
            headers=(f"{place}: X-Key: hunter2", f"{place}: accept: text/plain"), auth=(f"{here.origin}: me:p",)
        )
        async with Fetcher(given) as fetcher:
            for server in (here, there):
                await fetcher.fetch(server.origin + "/", headers={"X-Extra": "1", "Accept": "*/*"})
            fetcher.apply(settings())
            await fetcher.fetch(here.origin + "/")
        assert b"X-Key: hunter2\r\n" in here.heads[0]
        assert b"Authorization: Basic bWU6cA==\r\n" in here.heads[0]
        assert b"accept: text/plain\r\n" in here.heads[0]
        assert here.heads[0].lower().count(b"\r\naccept:") == 1
        assert b"X-Extra: 1\r\n" in here.heads[0]
        for head in (there.heads[0], here.heads[1]):
            assert b"X-Key" not in head
            assert b"Authorization" not in head


# -- what comes back


async def test_an_answer_has_all_its_parts(fetcher: Fetcher, site: SiteProcess) -> None:
    page = next(page for page in range(30) if not site.site.is_flaky(1, page))
    url = site.url(1, f"/p/{page}")
    before = time.monotonic()
    answer = await fetcher.fetch(url)
    after = time.monotonic()
    assert (answer.url, answer.status, answer.location, answer.retry_after) == (url, 200, None, None)
    assert (answer.content_type, answer.charset_header) == ("text/html", "utf-8")
    assert answer.body == site.site.page_html(1, page)
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert before <= answer.ended_at <= after
    assert 0 <= answer.elapsed_ms <= (after - before) * 1000 + 1


@pytest.mark.parametrize("fault", ["gzip", "deflate", "br", "chunked", "no_length"])
async def test_bodies_are_decoded(fetcher: Fetcher, site: SiteProcess, fault: str) -> None:
    answer = await fetcher.fetch(site.url(1, f"/fault/{fault}"))
    assert answer.body == site.site.page_html(1, 0)


async def test_a_great_compressed_body_is_whole_though_the_host_closes_at_once(fetcher: Fetcher) -> None:
    body = bytes(MEBIBYTE * 4)
    packed = gzip.compress(body)
    for length in (b"", b"Content-Length: %d\r\n" % len(packed)):
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n" + length
        async with raw_server(lambda *_, head=head: head + b"\r\n" + packed) as server:
            answer = await fetcher.fetch(server.origin + "/", body_max_bytes=len(body))
            assert answer.body == body


async def test_a_coding_nobody_asked_for_is_left_as_it_came(fetcher: Fetcher) -> None:
    async with raw_server(lambda *_: ok(b"opaque", b"Content-Encoding: x-own\r\n")) as server:
        assert (await fetcher.fetch(server.origin + "/")).body == b"opaque"


@pytest.mark.parametrize("status", [204, 304, 404, 410, 500, 503, 599, 999])
async def test_every_status_is_an_answer(fetcher: Fetcher, site: SiteProcess, status: int) -> None:
    answer = await fetcher.fetch(site.url(1, f"/fault/status_{status}"))
    assert (answer.status, answer.body, answer.location) == (status, b"", None)


async def test_retry_after_comes_along(fetcher: Fetcher, site: SiteProcess) -> None:
    answer = await fetcher.fetch(site.url(1, "/fault/retry_after_120_429"))
    assert (answer.status, answer.retry_after) == (429, "120")


async def test_header_bytes_that_are_no_utf8_do_no_harm(fetcher: Fetcher) -> None:
    async with raw_server(lambda *_: ok(headers=b"Content-Type: text/caf\xe9\r\nX-Own: \xe9\xff\r\n")) as server:
        answer = await fetcher.fetch(server.origin + "/")
        assert (answer.body, answer.content_type) == (b"hello", None)


# -- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_one_hop(fetcher: Fetcher, site: SiteProcess, status: int) -> None:
    answer = await fetcher.fetch(site.url(4, f"/fault/redirect_{status}"))
    assert (answer.status, answer.location) == (status, site.url(4, "/p/0"))


async def test_a_location_is_made_canonical(fetcher: Fetcher) -> None:
    locations = {
        b"b?": "/x/b",
        b"../up#fragment": "/up",
        b"//other.EXAMPLE:80/%7e": "http://other.example/%7e",
        b"HTTPS://\xc3\xa9.example/\xc3\xa9": "https://xn--9ca.example/%C3%A9",
        b"/caf\xe9?\xff": "/caf%E9?%FF",
        b" /blanks ": "/x/../blanks",
    }
    for location, expected in locations.items():
        head = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % location
        async with raw_server(lambda *_, head=head: head) as server:
            answer = await fetcher.fetch(server.origin + "/x/a")
            wanted = expected if expected.startswith("http") else server.origin + expected.replace("/x/..", "")
            assert answer.location == wanted


@pytest.mark.parametrize("status", [300, 304, 305])
async def test_other_3xx_are_no_redirects(fetcher: Fetcher, status: int) -> None:
    head = b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nLocation: /b\r\n\r\n" % status
    async with raw_server(lambda *_: head) as server:
        answer = await fetcher.fetch(server.origin + "/")
        assert (answer.status, answer.location) == (status, None)


@pytest.mark.parametrize("location", [b"", b"http://[", b"mailto:a@b", b"javascript:alert(1)", b"http:///"])
async def test_a_redirect_to_no_web_page_is_a_bad_one(fetcher: Fetcher, location: bytes) -> None:
    head = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % location
    async with raw_server(lambda *_: head) as server:
        assert isinstance(await failure(fetcher.fetch(server.origin + "/")), BadRedirect)


async def test_the_body_of_a_redirect_cannot_spoil_it(fetcher: Fetcher) -> None:
    bodies = {
        b"Content-Length: 99999\r\nConnection: close\r\n\r\ntruncated": b"",
        b"Content-Length: 2000000\r\n\r\n" + b"x" * 2_000_000: b"",
        b"Content-Length: 3\r\nContent-Encoding: gzip\r\n\r\nnot": b"",
        b"Content-Length: 5\r\n\r\nmoved": b"moved",
    }
    for rest, body in bodies.items():
        head = b"HTTP/1.1 301 Moved\r\nLocation: /b\r\n" + rest
        async with raw_server(lambda *_, head=head: head) as server:
            answer = await fetcher.fetch(server.origin + "/")
            assert (answer.location, answer.body) == (server.origin + "/b", body)


# -- what goes wrong


@pytest.mark.parametrize(
    ("fault", "expected", "is_unanswered"),
    [
        ("hang", FetchTimeout, True),
        ("reset", Disconnected, True),
        ("reset_mid", Disconnected, False),
        ("truncated", Disconnected, False),
        ("bomb", BodyTooLarge, False),
        ("big", BodyTooLarge, False),
        ("redirect_none", BadRedirect, False),
        ("redirect_bad", BadRedirect, False),
        ("bad_status_line", ProtocolError, False),
        ("bad_encoding", ProtocolError, False),
        ("bad_chunk", ProtocolError, False),
        ("big_header", ProtocolError, False),
    ],
)
async def test_a_fault_is_named(
    fetcher: Fetcher, site: SiteProcess, fault: str, expected: type[FetchError], is_unanswered: bool
) -> None:
    url = site.url(1, f"/fault/{fault}")
    error = await failure(fetcher.fetch(url))
    assert type(error) is expected
    assert (error.url, error.is_unanswered) == (url, is_unanswered)
    assert error.__cause__ is not None or expected in (BodyTooLarge, BadRedirect)
    assert "\n" not in str(error)


async def test_a_dead_host_and_a_refusing_one_are_unanswered(fetcher: Fetcher, site: SiteProcess) -> None:
    dead = await failure(fetcher.fetch(site.url(DEAD, "/p/0")))
    refusing = await failure(fetcher.fetch(site.url(REFUSING, "/p/0")))
    assert (type(dead), dead.is_unanswered) == (FetchTimeout, True)
    assert (type(refusing), refusing.is_unanswered) == (ConnectError, True)


async def test_a_name_that_does_not_exist_is_a_dns_error(fetcher: Fetcher) -> None:
    # RFC 7686: resolvers answer .onion themselves; the second name is too long for any query. Neither needs a network.
    for name in ("nobody.onion", "a" * 64 + ".example"):
        error = await failure(fetcher.fetch(f"http://{name}/"))
        assert (type(error), error.is_unanswered) == (DnsError, True)


async def test_a_port_that_does_not_speak_tls_is_a_tls_error(fetcher: Fetcher) -> None:
    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 no TLS here\r\n")
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        error = await failure(fetcher.fetch(f"https://127.0.0.1:{port}/"))
    assert (type(error), error.is_unanswered) == (TlsError, True)


async def test_the_total_limit_ends_a_body_that_drips(site: SiteProcess) -> None:
    async with Fetcher(settings(timeout_ms=700, rate_min_bytes=0)) as fetcher:
        error = await failure(fetcher.fetch(site.url(1, "/fault/slow_drip")))
    assert (type(error), error.is_unanswered) == (FetchTimeout, False)
    assert str(error) == "not finished within the time limit"


async def test_a_timeout_within_the_head_counts_as_answered(fetcher: Fetcher) -> None:
    async with raw_server(lambda *_: b"HTTP/1.1 200 OK\r\nContent-") as server:
        error = await failure(fetcher.fetch(server.origin + "/"))
    assert (type(error), error.is_unanswered) == (FetchTimeout, False)


async def test_a_bad_chunk_in_a_later_packet_ends_the_fetch(fetcher: Fetcher) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        await has_begun.wait()
        writer.write(b"no size\r\n")
        writer.close()

    has_begun = asyncio.Event()
    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        asyncio.get_running_loop().call_later(0.05, has_begun.set)
        started = time.monotonic()
        error = await failure(fetcher.fetch(url))
        assert not error.is_unanswered
        assert time.monotonic() - started < 2.0


# -- the cap


async def test_the_cap_is_exact(fetcher: Fetcher, site: SiteProcess) -> None:
    for path, size in (("/fault/bytes_1000", 1000), ("/fault/bytes_600000", 600_000)):
        url = site.url(1, path)
        assert len((await fetcher.fetch(url, body_max_bytes=size)).body) == size
        assert isinstance(await failure(fetcher.fetch(url, body_max_bytes=size - 1)), BodyTooLarge)
    page = site.site.page_html(1, 0)
    for fault in ("gzip", "br", "chunked", "no_length"):
        url = site.url(1, f"/fault/{fault}")
        assert (await fetcher.fetch(url, body_max_bytes=len(page))).body == page
        error = await failure(fetcher.fetch(url, body_max_bytes=len(page) - 1))
        assert isinstance(error, BodyTooLarge)
        assert not error.is_retryable


async def test_a_bomb_is_not_inflated_beyond_the_cap(fetcher: Fetcher, site: SiteProcess) -> None:
    tracemalloc.start()
    try:
        error = await failure(fetcher.fetch(site.url(1, "/fault/bomb")))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, BodyTooLarge)
    # Three buffers beyond the cap, and the copies that aiohttp makes of a buffer on its way.
    assert peak < BODY_MAX + 12 * READ_BUFFER_BYTES


# -- slowness


async def test_a_body_that_drips_is_given_up_after_a_third_of_the_limit(site: SiteProcess) -> None:
    async with Fetcher(settings(timeout_ms=6000, rate_min_bytes=1000)) as fetcher:
        error = await failure(fetcher.fetch(site.url(1, "/fault/slow_drip")))
        assert (type(error), error.kind, error.is_unanswered) == (BodyTooSlow, "body_too_slow", False)
        fetcher.apply(settings(timeout_ms=600, rate_min_bytes=1))
        assert type(await failure(fetcher.fetch(site.url(1, "/fault/slow_drip")))) is FetchTimeout


# -- more than the answer

POISON = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"


@pytest.mark.parametrize(
    ("start", "status", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 54\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", 304, b""),
        (ok(b"hello"), 200, b"hello"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + ok(b"hello"), 200, b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, b"hello"),
    ],
)
@pytest.mark.parametrize("surplus", [b"words", POISON, b"\r\n\r\n"])
async def test_bytes_beyond_an_answer_are_no_answer(
    fetcher: Fetcher, start: bytes, status: int, body: bytes, surplus: bytes
) -> None:
    async with raw_server(lambda server, _: start + surplus if len(server.heads) % 2 else ok(b"right")) as server:
        for _ in range(3):
            answer = await fetcher.fetch(server.origin + "/")
            assert (answer.status, answer.body) == (status, body)
            assert (await fetcher.fetch(server.origin + "/")).body == b"right"


async def test_bytes_that_come_later_than_their_answer_are_no_answer_either(fetcher: Fetcher) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ok(b"right"))
        await was_read.wait()
        writer.write(POISON)
        assert await reader.read() == b""  # the client closes
        is_closed.set()
        writer.close()

    was_read, is_closed = asyncio.Event(), asyncio.Event()
    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        assert (await fetcher.fetch(url)).body == b"right"
        was_read.set()
        async with asyncio.timeout(10):
            await is_closed.wait()
        assert (await fetcher.fetch(url)).body == b"right"


@pytest.mark.parametrize("count", [1, 100, 101])
async def test_answers_of_1xx_are_counted(fetcher: Fetcher, count: int) -> None:
    async with raw_server(lambda *_: b"HTTP/1.1 102 Processing\r\n\r\n" * count + ok()) as server:
        for _ in range(2):
            if count <= 100:
                assert (await fetcher.fetch(server.origin + "/")).body == b"hello"
            else:
                error = await failure(fetcher.fetch(server.origin + "/"))
                assert (type(error), error.is_unanswered) == (ProtocolError, False)


@pytest.mark.parametrize(
    "name", ["extension_endless", "informed_endless", "trailers_endless", "head_endless", "big_gzip"]
)
async def test_what_never_ends_is_cut_off_by_its_size(site: SiteProcess, name: str) -> None:
    async with Fetcher(settings(timeout_ms=60_000, read_timeout_ms=60_000)) as fetcher:
        error = await failure(fetcher.fetch(site.url(1, f"/fault/{name}")))
        assert (type(error), error.is_unanswered) == (ProtocolError, False)


async def test_a_head_in_pieces_is_a_head(fetcher: Fetcher) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for byte in b"HTTP/1.1 103 Hints\r\n\r\n" + ok(b"hello"):
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        answer = await fetcher.fetch(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/")
        assert answer.body == b"hello"


# -- connections


async def test_a_connection_is_used_again_also_after_a_redirect(fetcher: Fetcher) -> None:
    moved = b"HTTP/1.1 302 Found\r\nContent-Length: 5\r\nLocation: /b\r\n\r\nmoved"
    async with raw_server(lambda _, count: moved if count == 2 else ok()) as server:
        for _ in range(4):
            await fetcher.fetch(server.origin + "/")
        assert server.connections == 1


async def test_a_kept_connection_that_the_host_closed_is_replaced_once(fetcher: Fetcher) -> None:
    async with raw_server(lambda _, count: ok() if count == 1 else None) as server:
        for _ in range(3):
            assert (await fetcher.fetch(server.origin + "/")).body == b"hello"
        # Every fetch but the first met a connection that broke at the request, and came again on a new one.
        assert (len(server.heads), server.connections) == (5, 3)


async def test_a_fresh_connection_that_breaks_is_not_tried_again(fetcher: Fetcher) -> None:
    async with raw_server(lambda *_: None) as server:
        error = await failure(fetcher.fetch(server.origin + "/"))
        assert (type(error), error.is_unanswered) == (Disconnected, True)
        assert len(server.heads) == 1


async def test_a_kept_connection_that_breaks_within_the_answer_is_not_tried_again(fetcher: Fetcher) -> None:
    broken = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-"
    async with raw_server(lambda _, count: ok() if count == 1 else broken) as server:
        await fetcher.fetch(server.origin + "/")
        error = await failure(fetcher.fetch(server.origin + "/"))
        assert (type(error), error.is_unanswered) == (Disconnected, False)
        assert len(server.heads) == 2


async def test_a_kept_connection_and_its_replacement_both_broken_is_one_failure(fetcher: Fetcher) -> None:
    async with raw_server(lambda server, _: ok() if len(server.heads) == 1 else None) as server:
        await fetcher.fetch(server.origin + "/")
        error = await failure(fetcher.fetch(server.origin + "/"))
        assert (type(error), error.is_unanswered) == (Disconnected, True)
        assert len(server.heads) == 3


async def test_faults_and_cancels_leave_no_connection_taken(site: SiteProcess) -> None:
    async with Fetcher(settings(concurrency=1)) as fetcher:
        # Far more than the pool holds, one after the other and at once.
        for fault in ("reset", "reset_mid", "truncated", "big", "bad_encoding", "redirect_none", "big_header") * 3:
            await failure(fetcher.fetch(site.url(1, f"/fault/{fault}")))
        for fault in ("hang", "slow_drip") * 10:
            fetching = asyncio.create_task(fetcher.fetch(site.url(1, f"/fault/{fault}")))
            _, unfinished = await asyncio.wait([fetching], timeout=0.05)
            assert unfinished
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
        answers = await asyncio.gather(*(fetcher.fetch(site.url(4, "/robots.txt")) for _ in range(40)))
        assert {answer.status for answer in answers} == {200}


async def test_a_fetcher_is_used_inside_its_context_only(site: SiteProcess) -> None:
    fetcher = Fetcher(settings())
    with pytest.raises(RuntimeError):
        await fetcher.fetch(site.seed_url)
    async with fetcher:
        pass
    with pytest.raises(RuntimeError):
        await fetcher.fetch(site.seed_url)


# -- the site itself


async def test_the_whole_site_is_what_its_model_says(fetcher: Fetcher) -> None:
    spec = SiteSpec(hosts=6, pages_per_host=25, redirect_within=0.2, redirect_across=0.2, flaky=0.2, dead_hosts=(5,))
    with SiteProcess(spec) as site:
        pages: set[str] = set()
        seen = {site.seed_url}
        waiting = [site.seed_url]
        statuses: list[int] = []

        async def visit(url: str) -> list[str]:
            answer = await fetcher.fetch(url)
            statuses.append(answer.status)
            if answer.status == 503:
                return await visit(url)
            if answer.location is not None:
                return [answer.location]
            assert answer.status == 200
            pages.add(url)
            host, page = int(url.split(".")[3].split(":")[0]), int(url.rpartition("/")[2])
            assert answer.body == site.site.page_html(host, page)
            return [site.url(*link) for link in site.site.links(host, page)]

        while waiting:
            # Nothing of the dead host: that is another test.
            found = await asyncio.gather(*(visit(url) for url in waiting if "127.0.0.5:" not in url))
            waiting = sorted({url for urls in found for url in urls} - seen)
            seen.update(waiting)
        assert pages == site.expected_pages()
        requests = site.requests()
        assert sorted(request.status for request in requests) == sorted(statuses)
        assert statuses.count(503) == 2 * sum(
            site.site.is_flaky(host, page) for host in spec.living_hosts for page in range(25)
        )
        assert all(request.start_ms <= request.end_ms for request in requests)


async def test_the_log_shows_requests_whose_client_went_away(fetcher: Fetcher) -> None:
    with SiteProcess(SiteSpec(hosts=2, dead_hosts=(2,), latency_ms=30_000)) as site:
        for url in (site.url(2, "/p/1"), site.url(1, "/fault/hang"), site.url(1, "/p/2")):
            await failure(fetcher.fetch(url))
        async with asyncio.timeout(10):
            while len(site.requests()) < 3:  # noqa: ASYNC110  (the log of another process has no event)
                await asyncio.sleep(0.01)
        logged = {(request.host, request.path): request for request in site.requests()}
        assert logged.keys() == {("127.0.0.2", "/p/1"), ("127.0.0.1", "/fault/hang"), ("127.0.0.1", "/p/2")}
        now_ms = time.monotonic() * 1000
        for request in logged.values():
            assert request.status == 0
            assert 400 < request.end_ms - request.start_ms < now_ms - request.start_ms


# -- bodies that are handed on


class Taken:
    """Takes pieces until it has `enough` bytes."""

    def __init__(self, enough: int = BODY_MAX) -> None:
        self.pieces: list[bytes] = []
        self._enough = enough

    async def __call__(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        return sum(map(len, self.pieces)) >= self._enough


@pytest.mark.parametrize("coding", ["", "gzip"])
async def test_body_of_an_answer_is_handed_on_and_nothing_of_it_kept(coding: str) -> None:
    body = b"0123456789" * 50_000
    sent = gzip.compress(body) if coding else body
    answer_bytes = ok(sent, f"Content-Encoding: {coding}\r\n".encode() if coding else b"")
    async with raw_server(lambda *_: answer_bytes) as server, Fetcher(settings()) as running:
        taken = Taken()
        answer = await running.fetch(f"{server.origin}/a", into=taken)
        assert (answer.status, answer.body) == (200, b"")
        assert b"".join(taken.pieces) == body
        assert max(map(len, taken.pieces)) <= 4 * READ_BUFFER_BYTES
        await running.fetch(f"{server.origin}/b", into=Taken())
        assert server.connections == 1
        # Enough is enough: what is still to come must not be taken for the next answer.
        taken = Taken(1)
        await running.fetch(f"{server.origin}/c", into=taken)
        assert len(taken.pieces) == 1
        assert (await running.fetch(f"{server.origin}/d")).body == body
        assert server.connections == (1 if coding else 2)  # compressed it had come whole

        async def refuse(_: bytes) -> bool:
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            await running.fetch(f"{server.origin}/e", into=refuse)
        assert (await running.fetch(f"{server.origin}/f")).body == body
        with pytest.raises(BodyTooLarge):
            await running.fetch(f"{server.origin}/g", body_max_bytes=len(body) // 2, into=Taken())


async def test_other_answers_are_not_handed_on(site: SiteProcess, fetcher: Fetcher) -> None:
    taken = Taken()
    answer = await fetcher.fetch(site.url(1, "/nowhere"), into=taken)
    assert (answer.status, taken.pieces) == (404, [])
    answer = await fetcher.fetch(site.url(1, "/fault/redirect_301"), into=taken)
    assert (answer.location, taken.pieces) == (site.url(1, "/p/0"), [])
