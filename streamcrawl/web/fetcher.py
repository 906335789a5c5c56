"""Fetch one URL: one hop, one answer or one `FetchError`.

What becomes of the body stands in bodies.py. Never follows a redirect (each hop has to wait for its host's delay, so
the caller follows `Answer.location`), never retries a host on its own account, never reads a body beyond its cap, never
sends the credentials of a URL, never connects to an address that its guard refuses. By which proxy a request goes, and
whose fault it is when that fails, stands in proxies.py. Start at `Fetcher.fetch`.

aiohttp by itself repeats a GET whose connection broke, also on a fresh connection and also after part of an answer:
that would hit a host twice without its delay. Here requests are written to its connections directly, the errors of a
started one are mapped in `_Handler.answer`, and one repetition is left: a kept-alive connection that turns out to be
closed before a single byte of the answer came has not asked the host anything.

The canonical URL goes on the wire byte for byte. Connections, their pool, TLS and the parser are aiohttp's.

Sources: RFC 9110 sections 10.1.3 (Referer) and 15.4 (redirects); RFC 9112 section 9.3.1
(repeating requests on a closed connection).
"""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import msgspec
from aiohttp import ClientRequest, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, client_exceptions
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import EMPTY_BODY_METHODS
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict
from yarl import URL

from streamcrawl.errors import (
    BadRedirect,
    BlockedAddress,
    BodyTooLarge,
    ConnectError,
    ConnectTimeout,
    Disconnected,
    DnsError,
    FetchError,
    FetchTimeout,
    ProtocolError,
    ProxyError,
    TlsError,
    TooManyRedirects,
)
from streamcrawl.rules.addresses import Inside, literal_of
from streamcrawl.rules.host_headers import HostHeaders, basic_auth
from streamcrawl.rules.proxies import parse_proxies
from streamcrawl.rules.urls import canonical_url, hostname_of, split_url, without_credentials
from streamcrawl.web.address_guard import AddressGuard
from streamcrawl.web.bodies import ACCEPT_ENCODING, codings_of, read_body
from streamcrawl.web.dns import Resolver
from streamcrawl.web.exchange import Exchange
from streamcrawl.web.proxies import ProxyConnector, Routes, check_target, routed, tunnel_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from aiohttp import StreamReader
    from aiohttp.connector import Connection
    from aiohttp.http_parser import RawResponseMessage
    from multidict import CIMultiDictProxy

    from streamcrawl.rules.cookies import Jar
    from streamcrawl.rules.proxies import Proxy
    from streamcrawl.settings import Settings

ACCEPT: Final = "text/html,application/xhtml+xml,*/*;q=0.8"
READ_BUFFER_BYTES: Final = 65_536
"""aiohttp stops reading from the host at twice as much that waits to be read, before it is inflated."""
READ_BUFFER_MIN_BYTES: Final = 4096
REDIRECT_BODY_MAX_BYTES: Final = 65_536
"""The body of a redirect is read only to keep its connection; beyond this a new connection is cheaper."""
HEADER_MAX_BYTES: Final = 32_768
"""One header line: policies of real sites pass aiohttp's 8 KiB; with at most 128 headers a head stays under 4 MiB."""
INTERIMS_MAX: Final = 100
"""Answers of 1xx before the one that counts: a host that sends nothing else kept a core busy up to the total limit."""
BARREN_MAX_BYTES: Final = 1_048_576
"""The same with an extension of a chunk that never ends."""
MESSAGE_MAX: Final = 300
DOORS_MAX: Final = 1024
"""Hosts of which is kept how a connection to them is asked for; some 3 MB."""
CONNECTIONS_SPARE: Final = 8
"""Connections over the work slots, for robots.txt: waiting for one would count as a slow host."""
UNPROXIED_WAIT_MS: Final = 5000
"""Until another worker, which may have one, is handed the page that this one may not fetch."""
KEEP_ALIVE_SPARE_S: Final = 5.0
KEEP_ALIVE_MAX_S: Final = 15.0
"""An idle connection is kept for the host's delay and a little more: it is of no use after that, and a crawl of
thousands of hosts would run out of file descriptors."""

_UNDONE: Final = {b"transfer-encoding": b"X-Crawl-Transfer-Encoding"}
"""What an archive calls a header whose coding the connection has undone: its payload has none any more."""
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[\t ]*+([0-9]{1,18})[\t ]*+\r\n", re.IGNORECASE)
_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*["']?([^\s;"']+)""", re.IGNORECASE)


class Answer(msgspec.Struct):
    """What a host answered to one request."""

    url: str
    """As it was asked for."""
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    """Decoded from gzip, deflate, br and zstd; a coding nobody asked for is left as it came, as browsers do.
    Empty for most redirects: see `location`."""
    content_type: str | None
    """The MIME type alone, in lower case; None when there is none."""
    charset_header: str | None
    """The charset parameter of Content-Type, as it was written."""
    location: str | None
    """The canonical target of a 301, 302, 303, 307 or 308; None for every other status."""
    elapsed_ms: int
    """From the start, connecting included, to the last byte."""
    ended_at: float
    """`time.monotonic()` when the last byte had come: the host's delay counts from here."""
    retry_after: str | None
    """The header as it came; rules/politeness.py reads it."""
    exchange: Exchange | None = None
    """What went over the wire, where an archive wants it."""


class ContentType(NamedTuple):
    mime: str | None
    charset: str | None


class _StaleConnection(Exception):
    """A kept-alive connection was closed by the host before our request reached it; `__cause__` says how."""


class Fetching(Protocol):
    """What a worker asks of whatever fetches for it: `Fetcher`, or what a supervisor was given instead."""

    def __init__(
        self,
        settings: Settings,
        *,
        inside: Inside | None = None,
        is_archiving: bool = False,
        log: Callable[[str], None] = ...,
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def apply(self, settings: Settings) -> None: ...
    async def fetch(
        self,
        url: str,
        *,
        referrer: str | None = None,
        body_max_bytes: int | None = None,
        is_cut: bool = False,
        headers: Mapping[str, str] | None = None,
        jar: Jar | None = None,
        on_sent: Callable[[], None] | None = None,
        into: Callable[[bytes], Awaitable[bool]] | None = None,
        method: str = "GET",
        data: str = "",
    ) -> Answer: ...
    async def address_of(self, host_key: str) -> str | None: ...


class Fetcher:
    """One connection pool of one worker. Use it as an async context manager; `fetch` may run many times at once."""

    def __init__(
        self,
        settings: Settings,
        *,
        inside: Inside | None = None,
        is_archiving: bool = False,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare; `inside` is what may be reached beyond the public internet (None: what the settings allow).

        With `is_archiving` answers come with their `exchange`; bodies are in memory twice then. `log` is told when a
        proxy fails and when it works again.
        """
        self._is_archiving = is_archiving
        self._settings = settings
        self._routes = Routes(parse_proxies(settings.proxies), log)
        self._always = _headers_of(settings)
        self._headers = HostHeaders(settings.headers, settings.auth)
        self._guard = AddressGuard(settings, inside or Inside())
        self._resolver: Resolver | None = None
        self._session: ClientSession | None = None
        self._doors: dict[str, ClientRequest] = {}
        """How a connection is asked for, by host key: made anew each time it is a tenth of what a request costs."""

    def apply(self, settings: Settings) -> None:
        """Fetch by other settings from the next request on; the pool keeps its size."""
        self._settings = settings
        self._always = _headers_of(settings)
        self._guard.apply(settings)
        self._headers = HostHeaders(settings.headers, settings.auth)
        self._doors.clear()

    async def __aenter__(self) -> Self:
        self._resolver = Resolver(self._guard, self._settings.nameservers)
        connector = _make_connector(self._settings, self._guard, self._resolver)
        self._session = ClientSession(connector=connector, cookie_jar=DummyCookieJar(), trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        self._doors.clear()
        if session is not None:
            await session.close()
        if self._resolver is not None:
            await self._resolver.close()

    async def fetch(
        self,
        url: str,
        *,
        referrer: str | None = None,
        body_max_bytes: int | None = None,
        is_cut: bool = False,
        headers: Mapping[str, str] | None = None,
        jar: Jar | None = None,
        on_sent: Callable[[], None] | None = None,
        into: Callable[[bytes], Awaitable[bool]] | None = None,
        method: str = "GET",
        data: str = "",
    ) -> Answer:
        """Ask for a canonical http(s) URL and return the answer, of whatever status, with its whole body.

        Args:
            url: Goes on the wire byte for byte. Credentials in it are left out.
            referrer: Sent as Referer, except from https to http.
            body_max_bytes: Most bytes of the decoded body; None for the setting.
            is_cut: Of a longer body the beginning is the answer; its connection is closed.
            headers: Sent with this request, over the ones sent always; those of the settings for its host go over both.
            jar: Cookies that go with it, those for this URL; what the answer sets is left to the caller.
            on_sent: Called when the request goes out, after DNS and connecting.
            into: Takes the decoded body of an answer of 200 piece by piece, which `Answer.body` then lacks; True from
                it closes the connection. What it raises passes. Of another answer the body is as always.
            method, data: What else than a GET is asked, and its body.

        Raises:
            BlockedAddress: the host is where this crawl must not connect to.
            BadRedirect: a redirect whose Location is missing or leads to no http(s) URL.
            BodyTooLarge: the body passes the cap; its connection is closed.
            BodyTooSlow: it comes at less than the least rate; its connection is closed.
            ProxyError: the proxy failed, or all that there are rest; nothing is wrong with the page or its host.
            ProxyRefused: the proxy does not let us through to this host.
            FetchError: every other class that `fetch_error` can return.
        """
        session, resolver = self._session, self._resolver
        if session is None or resolver is None:
            raise RuntimeError("the fetcher is used outside of its `async with`")
        host_key, path = _target(url)
        door = self._doors.get(host_key) or self._open_door(session, host_key)
        body_max = self._settings.body_max_bytes if body_max_bytes is None else body_max_bytes
        sent = door.headers.copy()
        if referrer is not None and not (referrer.startswith("https:") and url.startswith("http:")):
            sent["Referer"] = referrer
        if headers is not None:
            sent.update(headers)
        if self._headers:
            sent.update(self._headers.of(host_key))
        if jar is not None:
            cookies = jar.header(url, sent.get("Cookie"))
            if cookies is not None:
                sent["Cookie"] = cookies
        content = _with_content(sent, method, data) if data or method not in ClientRequest.GET_METHODS else b""
        if self._settings.proxied and not self._settings.proxies:
            # It was started before somebody said so.
            raise ProxyError("this worker has no proxy, and its crawl goes by some", url, wait_ms=UNPROXIED_WAIT_MS)
        proxy = self._routes.choose(door.host, url) if self._settings.proxies else None
        if proxy is not None:
            door, path = self._by_proxy(session, proxy, door, host_key, path, url, sent)
        began_at = datetime.now(UTC) if self._is_archiving else None
        started = monotonic()
        is_repeated = False
        while True:
            try:
                request = _serialize_headers(f"{method} {path} HTTP/1.1", sent) + content
                with routed(proxy) if proxy is not None else nullcontext():
                    response = await self._ask(
                        session, door, method, request, min(body_max, READ_BUFFER_BYTES), on_sent
                    )
                break
            except _StaleConnection as stale:
                if is_repeated:
                    raise Disconnected(str(stale), url, is_unanswered=True) from stale.__cause__
                is_repeated = True
            except FetchError as error:
                error.url = url
                self._note_error(proxy, error)
                raise
            except (client_exceptions.ClientError, OSError, UnicodeError) as error:
                # What fails after the request was sent comes as a FetchError from `_Handler.answer`.
                mapped = _error_of_proxy(proxy, error, url) or fetch_error(error, url, is_unanswered=True)
                self._note_error(proxy, mapped)
                if isinstance(mapped, (ConnectError, ConnectTimeout, TlsError)):
                    # It may have moved: the next try must not go by the addresses of this one.
                    resolver.forget(door.host)
                raise mapped from error
        tap = None
        if self._is_archiving and into is None:
            tap = response.tap()
        try:
            status = response.status
            if proxy is not None:
                self._note_status(proxy, status, url)
            if status == 101:
                raise ProtocolError("switches protocols (101) without having been asked", url)
            if status in _REDIRECTS:
                location = _location(response, url)
                body = await self._read_redirect_body(response, url)
            else:
                location = None
                taker = into if status == 200 else None
                body = await self._read_body(response, url, body_max, is_cut=is_cut, into=taker)
        except BaseException:
            # Closed, not released: unread bytes of this answer would be taken for the next one.
            response.close()
            raise
        ended = monotonic()
        answer_headers = response.headers
        content_type = split_content_type(answer_headers.get("Content-Type"))
        return Answer(
            url=url,
            status=status,
            headers=answer_headers,
            body=body,
            content_type=content_type.mime,
            charset_header=content_type.charset,
            location=location,
            elapsed_ms=round((ended - started) * 1000),
            ended_at=ended,
            retry_after=answer_headers.get("Retry-After"),
            exchange=None
            if tap is None or began_at is None
            else Exchange(
                url=url,
                began_at=began_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                # Of the host; who is connected to a proxy does not know it.
                address="" if proxy is not None else response.address,
                request=self._shown(method, split_url(url)[1], sent, host_key),
                head=response.head(),
                # Of the body of a redirect that was not read to its end nothing is kept: half of one says nothing.
                body=b"".join(tap.blocks) if tap.is_whole() else b"",
                status=status,
            ),
        )

    def _shown(self, method: str, path: str, sent: CIMultiDict[str], host_key: str) -> bytes:
        """Return the head of a request but for what nobody may see."""
        secrets = {name.lower() for name in self._headers.of(host_key)} | {"proxy-authorization"}
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in sent.items() if name.lower() not in secrets]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")

    def _open_door(self, session: ClientSession, host_key: str, **by_proxy: Any) -> ClientRequest:
        """Return what connections to a host are asked for by; its headers are those of every request to it.

        Raises:
            ProtocolError: there is no host in it.
        """
        try:
            door = ClientRequest(
                method="GET",
                url=URL(host_key + "/", encoded=True),
                headers=self._always,
                loop=asyncio.get_running_loop(),
                session=session,
                ssl=not self._settings.insecure,
                **by_proxy,
            )
        except ValueError as error:
            raise _not_http(host_key) from error
        if not by_proxy:
            if len(self._doors) >= DOORS_MAX:
                self._doors.clear()  # those in use are there again within a page
            self._doors[host_key] = door
        return door

    async def _ask(
        self,
        session: ClientSession,
        door: ClientRequest,
        method: str,
        request: bytes,
        read_buffer: int,
        on_sent: Callable[[], None] | None,
    ) -> _Response:
        """Send one request and return its answer once the head has come.

        It is what aiohttp's `ClientSession.request` comes to without redirects, cookies and middlewares (78 us with
        them, 63 without), and without a request, a response and timers of aiohttp for each page (114 us with them on a
        busy machine, 66 without; both 2026-12-01).

        Raises:
            _StaleConnection: a kept-alive connection turned out to be closed.
            ClientError, OSError: as aiohttp raises them.
        """
        loop, settings, connector = asyncio.get_running_loop(), self._settings, session.connector
        assert connector is not None
        due = loop.time() + settings.timeout_ms / 1000
        limits = ClientTimeout(connect=settings.timeout_ms / 1000, sock_connect=settings.connect_timeout_ms / 1000)
        try:
            connection = await connector.connect(door, traces=[], timeout=limits)
        except TimeoutError as error:
            if loop.time() >= due:
                raise  # all the time that a fetch may take
            raise client_exceptions.ConnectionTimeoutError(f"Connection timeout to host {door.url}") from error
        try:
            handler = connection.protocol
            assert isinstance(handler, _Handler)
            handler.set_response_params(
                skip_payload=method in EMPTY_BODY_METHODS,
                auto_decompress=False,
                read_until_eof=True,
                read_timeout=settings.read_timeout_ms / 1000,
                read_bufsize=max(READ_BUFFER_MIN_BYTES, read_buffer),
                max_line_size=HEADER_MAX_BYTES,
                max_field_size=HEADER_MAX_BYTES,
            )
            handler.send(request, due)
            if on_sent is not None:
                on_sent()
            peer = (
                connection.transport.get_extra_info("peername") if self._is_archiving and connection.transport else None
            )
            response = _Response(*await handler.answer(), connection, handler)
            if isinstance(peer, tuple):
                response.address = peer[0]
            return response
        except BaseException:
            connection.close()
            raise

    async def address_of(self, host_key: str) -> str | None:
        """Return the address that a host is asked at first; None when it is not known here: it has none, or a proxy
        looks it up."""
        if self._resolver is None or self._settings.proxies:
            return None
        hostname = hostname_of(host_key)
        literal = literal_of(hostname)
        if literal:
            return literal[0]
        try:
            return (await self._resolver.lookup(hostname))[0]
        except OSError:
            return None

    def _by_proxy(
        self,
        session: ClientSession,
        proxy: Proxy,
        door: ClientRequest,
        host_key: str,
        path: str,
        url: str,
        headers: CIMultiDict[str],
    ) -> tuple[ClientRequest, str]:
        """Return the door and the target of a request that goes by a proxy; what the proxy asks for joins its headers.

        Raises:
            BlockedAddress: the target must not be connected to, as far as is known here.
        """
        if proxy.resolves_names:
            try:
                check_target(self._guard, door.host, door.port or 0)
            except BlockedAddress as refused:
                refused.url = url
                raise
        if proxy.is_socks:
            return door, path
        of_tunnel = CIMultiDict(self._always)
        if proxy.user:
            asking = of_tunnel if door.is_ssl() else headers
            asking["Proxy-Authorization"] = basic_auth(f"{proxy.user}:{proxy.password}")
        # Anew each time: aiohttp finds connections by these headers, and adds to them.
        by_proxy = self._open_door(session, host_key, proxy=URL(proxy.shown), proxy_headers=of_tunnel)
        return by_proxy, path if door.is_ssl() else host_key + path

    def _note_error(self, proxy: Proxy | None, error: FetchError) -> None:
        if proxy is None:
            return
        if isinstance(error, ProxyError):
            self._routes.note_failure(proxy, error)
        elif error.kind in ("proxy_refused", "connect"):
            self._routes.note_answer(proxy)

    def _note_status(self, proxy: Proxy, status: int, url: str) -> None:
        """Remember that a proxy works; raise ProxyError where the answer is its own and says that it does not."""
        # A host may answer 407 as well: once any other was reached, it is not believed to speak for the proxy.
        is_plain = url.startswith("http:") and not proxy.is_socks
        if status == 407 and is_plain and not self._routes.has_worked(proxy):
            error = ProxyError("it wants a user and a password, or others: answered 407", url)
            self._routes.note_failure(proxy, error)
            raise error
        self._routes.note_answer(proxy)

    async def _read_body(
        self,
        response: _Response,
        url: str,
        body_max: int,
        *,
        is_cut: bool,
        into: Callable[[bytes], Awaitable[bool]] | None,
    ) -> bytes:
        """Return the whole decoded body, or of a longer one the beginning, where that will do.

        Raises:
            FetchError: those of `read_body`, or it did not come whole.
        """
        codings = _codings(response)
        if into is not None:
            return await self._hand_on(response, codings, body_max, url, into)
        length = response.length
        if length is not None and length > body_max and not codings and not is_cut:
            raise BodyTooLarge(f"the body has {length} bytes, the limit is {body_max}", url)
        try:
            if not is_cut:
                return await self._read(response, codings, body_max, url)
            body = await self._read(response, codings, 2 * body_max, url, enough=body_max)
            if len(body) == body_max:
                response.close()
            return body
        except (client_exceptions.ClientError, HttpProcessingError, OSError) as error:
            raise fetch_error(error, url, is_unanswered=False) from error

    async def _hand_on(
        self,
        response: _Response,
        codings: tuple[str, ...],
        body_max: int,
        url: str,
        into: Callable[[bytes], Awaitable[bool]],
    ) -> bytes:
        try:
            body = await self._read(response, codings, body_max, url, into=into)
        except (client_exceptions.ClientError, HttpProcessingError, OSError) as error:
            raise fetch_error(error, url, is_unanswered=False) from error
        if not response.content.is_eof():
            response.close()
        return body

    async def _read_redirect_body(self, response: _Response, url: str) -> bytes:
        """Return the body of a redirect, or nothing and close: what comes after the head must not spoil it."""
        try:
            return await self._read(response, _codings(response), REDIRECT_BODY_MAX_BYTES, url)
        except (FetchError, client_exceptions.ClientError, HttpProcessingError, OSError):
            response.close()
            return b""

    async def _read(
        self,
        response: _Response,
        codings: tuple[str, ...],
        size_max: int,
        url: str,
        *,
        enough: int | None = None,
        into: Callable[[bytes], Awaitable[bool]] | None = None,
    ) -> bytes:
        settings = self._settings
        return await read_body(
            response.content,
            codings,
            size_max,
            url,
            enough=enough,
            rate_min=settings.rate_min_bytes,
            patience_s=settings.timeout_ms / 3000,
            into=into,
        )


@lru_cache(maxsize=256)
def split_content_type(value: str | None) -> ContentType:
    """Return the MIME type in lower case and the charset parameter of a Content-Type header; None for what is missing.

    A header that is not ASCII counts as none: its bytes have no agreed meaning.
    """
    if value is None or not value.isascii():
        return ContentType(None, None)
    charset = _CHARSET.search(value)
    return ContentType(value.partition(";")[0].strip().lower() or None, charset and charset[1])


def fetch_error(error: BaseException, url: str, *, is_unanswered: bool) -> FetchError:
    """Return what an error of aiohttp or of the operating system means to a crawl; raise it `from` the error.

    Args:
        error: Caught around a request.
        url: The URL of the request.
        is_unanswered: No byte of an answer had come; used where the class of the error does not say so.
    """
    kind = next((_ERRORS[cls] for cls in type(error).__mro__ if cls in _ERRORS), ProtocolError)
    message = _one_line(error)
    if issubclass(kind, (Disconnected, FetchTimeout)):
        return kind(message, url, is_unanswered=is_unanswered)
    if isinstance(error, client_exceptions.ClientConnectorCertificateError):
        code = getattr(error.certificate_error, "verify_code", 0)
        return TlsError(message, url, kind=_CERTIFICATE_FAULTS.get(code, _UNKNOWN_FAULT).kind)
    mapped = kind(message, url)
    if isinstance(error, _WRONG_FROM_OUR_SIDE):
        mapped.is_retryable = False
    return mapped


def _error_of_proxy(proxy: Proxy | None, error: BaseException, url: str) -> FetchError | None:
    """Return what an error means that came from an HTTP proxy rather than through it; None for every other."""
    match error:
        case _ if proxy is None or proxy.is_socks:
            return None
        case client_exceptions.ClientHttpProxyError():
            return tunnel_error(error.status, url)
        case client_exceptions.ClientConnectorDNSError():
            # Names of hosts are the proxy's business: this is its own.
            return ProxyError(f"its name cannot be resolved: {error.os_error.strerror}", url)
        case client_exceptions.ClientProxyConnectionError():
            return ProxyError(f"it takes no connection: {error.os_error.strerror or error.os_error}", url)
    return None


_ERRORS: Final[dict[type[BaseException], type[FetchError]]] = {
    client_exceptions.ClientConnectorDNSError: DnsError,
    UnicodeError: DnsError,  # the idna codec inside of getaddrinfo, on a label that is too long
    client_exceptions.ClientConnectorError: ConnectError,
    client_exceptions.ClientProxyConnectionError: ConnectError,
    client_exceptions.UnixClientConnectorError: ConnectError,
    client_exceptions.ClientSSLError: TlsError,
    client_exceptions.ClientConnectorSSLError: TlsError,
    client_exceptions.ClientConnectorCertificateError: TlsError,
    client_exceptions.ServerFingerprintMismatch: TlsError,
    client_exceptions.ConnectionTimeoutError: ConnectTimeout,
    client_exceptions.SocketTimeoutError: FetchTimeout,
    client_exceptions.ServerTimeoutError: FetchTimeout,
    TimeoutError: FetchTimeout,
    client_exceptions.ClientConnectionError: Disconnected,
    client_exceptions.ClientConnectionResetError: Disconnected,
    client_exceptions.ClientOSError: Disconnected,
    client_exceptions.ServerConnectionError: Disconnected,
    client_exceptions.ServerDisconnectedError: Disconnected,
    client_exceptions.ClientPayloadError: Disconnected,
    OSError: Disconnected,
    client_exceptions.ClientResponseError: ProtocolError,
    HttpProcessingError: ProtocolError,
    client_exceptions.ClientHttpProxyError: ProtocolError,
    client_exceptions.ContentTypeError: ProtocolError,
    client_exceptions.TooManyRedirects: TooManyRedirects,
    client_exceptions.InvalidURL: ProtocolError,
    client_exceptions.InvalidUrlClientError: ProtocolError,
    client_exceptions.InvalidUrlRedirectClientError: ProtocolError,
    client_exceptions.NonHttpUrlClientError: ProtocolError,
    client_exceptions.NonHttpUrlRedirectClientError: ProtocolError,
    client_exceptions.RedirectClientError: ProtocolError,
    client_exceptions.ClientError: ProtocolError,
}
"""The first class of the error's MRO that is in here decides. A test fails when aiohttp has one that is not."""


class _CertificateFault(NamedTuple):
    kind: str
    text: str


_UNKNOWN_FAULT: Final = _CertificateFault("tls", "its certificate cannot be verified")
_CERTIFICATE_FAULTS: Final = {
    9: _CertificateFault("tls_not_yet_valid", "its certificate is not valid yet"),
    10: _CertificateFault("tls_expired", "its certificate has expired"),
    18: _CertificateFault("tls_self_signed", "its certificate is self-signed"),
    19: _CertificateFault("tls_unknown_authority", "its certificate was issued by an authority that is not trusted"),
    20: _CertificateFault("tls_unknown_authority", "its certificate was issued by an authority that is not known"),
    21: _CertificateFault("tls_unknown_authority", "its certificate was issued by an authority that is not known"),
    62: _CertificateFault("tls_wrong_host", "its certificate is for another host"),
    64: _CertificateFault("tls_wrong_host", "its certificate is for another address"),
}
"""By OpenSSL's X509_V_ERR_ codes (x509_vfy.h), as `ssl.SSLCertVerificationError.verify_code` has them."""
_WRONG_FROM_OUR_SIDE: Final = (
    client_exceptions.InvalidURL,
    client_exceptions.NonHttpUrlClientError,
    client_exceptions.RedirectClientError,
)


def _one_line(error: BaseException) -> str:
    """Return what happened, on one line of bounded length: it becomes the text of a dead letter."""
    match error:
        case client_exceptions.ClientConnectorCertificateError():
            fault = error.certificate_error
            said = _CERTIFICATE_FAULTS.get(getattr(fault, "verify_code", 0), _UNKNOWN_FAULT).text
            detail = getattr(fault, "verify_message", "") or str(fault)
            text = f"no secure connection to {error.host}:{error.port}: {said} ({detail})"
        case client_exceptions.ClientConnectorError():
            # aiohttp's own text says "None" where asyncio made the error without an errno.
            verb = "resolve" if isinstance(error, client_exceptions.ClientConnectorDNSError) else "connect to"
            reason = error.os_error.strerror or str(error.os_error) or type(error.os_error).__name__
            text = f"cannot {verb} {error.host}:{error.port}: {reason}"
        case client_exceptions.ClientResponseError() | HttpProcessingError():
            text = f"not an HTTP answer: {error.message}"
        case client_exceptions.ServerDisconnectedError() if not isinstance(error.message, str):
            text = "the host closed the connection in the middle of the head"
        case _ if type(error) is TimeoutError:
            text = "not finished within the time limit"
        case _:
            text = str(error) or type(error).__name__
    return " ".join(text.split())[:MESSAGE_MAX]


class _Handler(ResponseHandler):
    """aiohttp's protocol of one connection, which also knows whether this answer has begun.

    Its limits, of the next read and of the whole fetch, are one timer that is looked at when it fires. aiohttp's own
    for reading is cancelled and made anew three times a fetch, which was 2 to 8 % of its CPU time (2026-11-30, a bare
    loop with and without `sock_read`); that for the whole is a timer and two context managers for each.
    """

    has_answered = False
    """A request before this one was answered: the connection was kept alive."""
    is_answering = False
    """Some of this answer came."""
    _body: StreamReader | None = None
    """Of the answer that is awaited; None until its head has come, which those of 1xx are not."""
    _interims = 0
    _barren_bytes = 0
    """How much came in a row that brought nothing of the body."""
    _read_due: float | None = None
    """Loop time at which the read limit passes; None while nothing is awaited."""
    _due: float | None = None
    """Loop time at which the fetch must be over; None when it is."""
    _watch: asyncio.TimerHandle | None = None

    def send(self, request: bytes, due: float) -> None:
        """Write a request whose answer must have come by the loop time `due`.

        Raises:
            _StaleConnection: the connection is closed already.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            raise _StaleConnection("the host closed the connection before it was used again")
        self.is_answering = False
        self._due = due
        self.start_timeout()
        transport.write(request)

    async def answer(self) -> tuple[RawResponseMessage, StreamReader]:
        """Return the head of the answer that counts, and its body.

        Raises:
            _StaleConnection: a kept-alive connection was closed instead.
            FetchError: there is none.
        """
        try:
            while True:
                message, content = await self.read()
                if not 100 <= message.code <= 199 or message.code == 101:
                    break
        except (client_exceptions.ClientError, HttpProcessingError, OSError) as error:
            mapped = fetch_error(error, "", is_unanswered=not self.is_answering)
            if isinstance(mapped, Disconnected) and mapped.is_unanswered and self.has_answered:
                raise _StaleConnection(str(mapped)) from error
            raise mapped from error
        self.has_answered = True
        return message, content

    def end_limits(self) -> None:
        """The answer is over."""
        self._read_due = self._due = None

    def resume_reading(self, resume_parser: bool = True) -> None:
        # At the end of each body, and nearly none was paused.
        if resume_parser or self._reading_paused:
            super().resume_reading(resume_parser)

    def set_response_params(self, **params: Any) -> None:
        self._body = None
        self._interims = self._barren_bytes = 0
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp goes on with what it held back
            super().data_received(data)
            return
        self.is_answering = True
        # Head by head and apart from the body: aiohttp's parser drops the answers of a packet in which it finds a fault
        # later on, so whether a 204 with a body is an answer would depend on how its bytes were packed.
        while self._body is None:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4 or end >= len(data) or _is_within_length(data, end):
                break
            self._feed(data[:end])
            if self._exception is not None:
                return
            data = data[end:]
        if self._body is not None and self._body.is_eof():
            # More than the answer has: the rest must not be taken for the next one.
            self._should_close = True
            if self.transport is not None:
                self.transport.close()
            return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        body = self._body
        had = 0 if body is None else body.total_bytes
        super().data_received(data)
        if self._exception is not None:
            self._tell_body()
        elif body is not None and not body.is_eof():
            self._barren_bytes = self._barren_bytes + len(data) if body.total_bytes == had else 0
            if self._barren_bytes > BARREN_MAX_BYTES:
                self._fail(f"more than {BARREN_MAX_BYTES} bytes between two of the body")

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        message, body = data
        if 100 <= message.code <= 199 and message.code != 101:
            self._interims += 1
            if self._interims > INTERIMS_MAX:
                self._fail(f"more than {INTERIMS_MAX} answers of 1xx")
                return
        else:
            self._body = body
        super().feed_data(data, size)

    def _fail(self, message: str) -> None:
        if self.transport is not None:
            self.transport.close()
        self.set_exception(HttpProcessingError(message=message))
        self._tell_body()

    def _tell_body(self) -> None:
        """Tell who reads the body: aiohttp tells a broken chunk only to whoever waits for a head, so who waits for the
        body would wait for the total limit (seen with 3.14.5)."""
        if self._exception is not None and self._body is not None and not self._body.is_eof():
            self._body.set_exception(self._exception)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _reschedule_timeout(self) -> None:
        if self._read_timeout:
            self._read_due = self._loop.time() + self._read_timeout
            if self._watch is None:
                self._look_again()

    def _drop_timeout(self) -> None:
        self._read_due = None

    def _look_again(self) -> None:
        dues = [due for due in (self._read_due, self._due) if due is not None]
        self._watch = self._loop.call_at(min(dues), self._look_at_limits) if dues else None

    def _look_at_limits(self) -> None:
        now = self._loop.time()
        if self._due is not None and self._due <= now:
            self.end_limits()
            self.set_exception(TimeoutError())
            self._tell_body()
        elif self._read_due is not None and self._read_due <= now:
            self._read_due = None
            self._on_read_timeout()
        self._look_again()


def _is_within_length(data: bytes, end: int) -> bool:
    """Return whether what stands in a packet behind the head of an answer certainly is of its body."""
    # To feed head and body apart costs 10 us, a fiftieth of a page; so most come together after all.
    length = _LENGTH.search(data, 0, end)
    return length is not None and int(length[1]) >= len(data) - end and data[9:12] == b"200"


class _Tap:
    """The body of an answer as read_body takes it, which also keeps what came, before it is inflated.

    As bounded as that: who reads stops at the cap.
    """

    def __init__(self, content: StreamReader) -> None:
        self._content = content
        self.blocks: list[bytes] = []

    async def readany(self) -> bytes:
        block = await self._content.readany()
        self.blocks.append(block)
        return block

    def read_nowait(self) -> bytes:
        block = self._content.read_nowait()
        self.blocks.append(block)
        return block

    def is_eof(self) -> bool:
        return self._content.is_eof()

    def is_whole(self) -> bool:
        """Return whether all of it was read."""
        return self._content.at_eof()


class _Response:
    """The answer to one request: its head, and its body as it is read. Its connection goes back with the last byte."""

    def __init__(
        self, message: RawResponseMessage, content: StreamReader, connection: Connection, handler: _Handler
    ) -> None:
        self.status = message.code
        self.headers = message.headers
        self.content: StreamReader | _Tap = content
        self.address = ""
        """Of the server; the connection is another's as soon as the body has come."""
        self._message = message
        self._connection: Connection | None = connection
        self._handler = handler
        content.on_eof(self._release)

    def tap(self) -> _Tap:
        """Have what is read from now on kept as well."""
        assert not isinstance(self.content, _Tap)
        self.content = tap = _Tap(self.content)
        return tap

    @property
    def length(self) -> int | None:
        """What the head says of the length of the body."""
        said = self.headers.get("Content-Length", "")
        return int(said) if said.isascii() and said.isdigit() else None

    def head(self) -> bytes:
        """Return the head as it came."""
        version = self._message.version
        line = f"HTTP/{version.major}.{version.minor} {self.status} {self._message.reason or ''}"
        lines = [line.encode("utf-8", "surrogateescape")]
        lines += [b"%b: %b" % (_UNDONE.get(name.lower(), name), value) for name, value in self._message.raw_headers]
        return b"\r\n".join([*lines, b"", b""])

    def close(self) -> None:
        """Close the connection, unless it has gone back already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._handler.end_limits()
            connection.close()

    def _release(self) -> None:
        connection = self._connection
        if connection is not None and not self._handler.upgraded:
            self._connection = None
            self._handler.end_limits()
            connection.release()


def _headers_of(settings: Settings) -> CIMultiDict[str]:
    """Return what is sent with every request."""
    return CIMultiDict({"User-Agent": settings.agent_header, "Accept": ACCEPT, "Accept-Encoding": ACCEPT_ENCODING})


def _make_handler(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _Handler(loop)


def _make_connector(settings: Settings, guard: AddressGuard, resolver: Resolver) -> TCPConnector:
    """Return the connection pool, which asks the guard for each socket."""
    options: dict[str, Any] = {
        "limit": settings.concurrency.most + CONNECTIONS_SPARE,
        "limit_per_host": 0,  # dispatch counts what is in flight per host, over all processes
        "use_dns_cache": False,  # it would keep what a name server said beyond what the guard says now
        "keepalive_timeout": min(KEEP_ALIVE_MAX_S, settings.delay_ms / 1000 + KEEP_ALIVE_SPARE_S),
    }
    if settings.proxies:
        connector: TCPConnector = ProxyConnector(guard=guard, names=resolver, **options)
    else:
        connector = TCPConnector(resolver=resolver, socket_factory=guard.make_socket, **options)
    # aiohttp has no parameter for the class of a connection's protocol, and nothing else can tell whether a byte of an
    # answer came. This, `_Handler` and `Fetcher._ask` are all that touches its inside; `_ask` fails when it no longer
    # works.
    connector._factory = partial(_make_handler, connector._loop)
    return connector


def _target(url: str) -> tuple[str, str]:
    """Return the host key and the path of a URL as they are asked for, without credentials.

    Raises:
        ProtocolError: not an http(s) URL; not retryable.
    """
    # A canonical URL has no space, no control character and nothing beyond ASCII: a line break would end the request's
    # line, and what follows it would be headers.
    if not url.startswith(("http://", "https://")) or not (url.isascii() and url.isprintable()) or " " in url:
        raise _not_http(url)
    host_key, path = split_url(url)
    if path[:1] == "/" and path[-1] != "?" and "@" not in host_key and "?" not in host_key and "#" not in url:
        return host_key, path
    try:
        target = URL(url, encoded=True)
        return str(target.origin()), target.raw_path_qs
    except ValueError as error:
        raise _not_http(url) from error


def _with_content(headers: CIMultiDict[str], method: str, data: str) -> bytes:
    """Return the body of a request, and add what says of it what a server has to know."""
    content = data.encode()
    headers.setdefault("Content-Length", str(len(content)))
    if content or method in ("POST", "PUT", "PATCH"):
        headers.setdefault("Content-Type", "application/octet-stream")
    return content


def _not_http(url: str) -> ProtocolError:
    error = ProtocolError(f"not an http or https URL: {without_credentials(url)[:200]!r}", url)
    error.is_retryable = False
    return error


def _location(response: _Response, url: str) -> str:
    """Return the canonical target of a redirect.

    Raises:
        BadRedirect: there is none.
    """
    text = response.headers.get("Location")
    if not text:
        raise BadRedirect(f"status {response.status} without a Location", url)
    if not text.isascii():
        # Bytes that are no UTF-8 come as surrogates; on the wire they have to be the bytes they were.
        raw = text.encode("utf-8", "surrogateescape")
        text = "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in raw)
    target = canonical_url(text, url)
    if target is None:
        raise BadRedirect(
            f"status {response.status} leads to no http or https URL: {without_credentials(text)[:200]!r}", url
        )
    return target


def _codings(response: _Response) -> tuple[str, ...]:
    headers = response.headers
    return codings_of(",".join(headers.getall("Content-Encoding"))) if "Content-Encoding" in headers else ()
