"""A small HTTP server for machines and operators: metrics, probes, and what a process is busy with.

It lies beside the work, in the same event loop: an answer is short, connections are few, and what is wrong with one of
them costs that connection. Pages are functions from a request to a `Reply`; start at `Serving`.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from streamcrawl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from prometheus_client.registry import CollectorRegistry

    Page = Callable[[web.BaseRequest], Awaitable["Reply"]]

CONNECTIONS_MAX: Final = 64
"""Scrapers, probes and a person or two; more are refused, so that nobody takes the descriptors of the work."""
IDLE_MAX_S: Final = 75.0
"""A connection on which nothing was asked for so long is closed: Prometheus asks every 15 to 60 s."""


class Reply(msgspec.Struct, frozen=True):
    """An answer, text unless it says otherwise."""

    text: str | bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def json(cls, document: Any, status: int = 200) -> Reply:
        return cls(msgspec.json.encode(document) + b"\n", status, "application/json")


class Serving:
    """Serves pages by their path while its block runs; a path that ends in a slash has what follows it, too."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], *, option: str) -> None:
        """Prepare the server; nothing is bound yet.

        Args:
            host: The address to listen on.
            port: 0 for any that is free.
            option: What a message calls the port: the option that gave it.
        """
        self._host = host
        self._port = port
        self._pages = pages
        self._option = option
        self._web = web.Server(self._answer, access_log=None, keepalive_timeout=IDLE_MAX_S)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(self._connect, self._host, self._port)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{self._option} {self._port}: nothing can listen there on {self._host} ({reason}); give another "
                "port, or 0 for one that is free"
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._web.shutdown(timeout=1.0)
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Where it listens: http://127.0.0.1:9100."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _connect(self) -> asyncio.BaseProtocol:
        return self._web() if len(self._web.connections) < CONNECTIONS_MAX else _Refusal()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        folder = request.path[: request.path.find("/", 1) + 1]
        page = self._pages.get(request.path) or self._pages.get(folder)
        if request.method not in ("GET", "HEAD"):
            reply = Reply("only GET\n", 405, headers={"Allow": "GET, HEAD"})
        elif page is None:
            known = ", ".join(sorted(self._pages))
            reply = Reply(f"there is nothing at {request.path[:200]}; there is: {known}\n", 404)
        else:
            reply = await page(request)
        body = reply.text.encode() if isinstance(reply.text, str) else reply.text
        headers = {"Content-Type": reply.content_type, "Cache-Control": "no-store", **reply.headers}
        return web.Response(body=body, status=reply.status, headers=headers)


class _Refusal(asyncio.Protocol):
    """Closes a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def exposition(registry: CollectorRegistry, request: web.BaseRequest) -> Reply:
    """Return all metrics of a registry, in the text format or in OpenMetrics, as the request prefers."""
    try:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    except (TypeError, ValueError):  # a version that is none
        encode, content_type = choose_encoder("")
    return Reply(encode(registry), content_type=content_type)


_PROXIED: Final = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


def is_local(request: web.BaseRequest) -> bool:
    """Return whether a request comes from a process of this machine, for itself: not through a proxy of it, and not for
    a page of somebody else in a browser here, whose name may lead to this address (DNS rebinding) or which needs no
    answer to do harm."""
    if not _is_loopback(request.remote or "") or any(name in request.headers for name in _PROXIED):
        return False
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return False
    try:
        asked = urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        return False
    return asked == "localhost" or _is_loopback(asked)


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def only_local(page: Page) -> Page:
    """Refuse a page to whoever is not on this machine: it shows what is crawled."""

    async def checked(request: web.BaseRequest) -> Reply:
        if not is_local(request):
            return Reply("only from this machine: ask 127.0.0.1\n", 403)
        return await page(request)

    return checked
