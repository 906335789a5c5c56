"""By which way does a connection go: straight, or through a proxy that works?

`Routes` chooses a proxy for each request and remembers which of them failed; `ProxyConnector` makes the connections.
HTTP proxies are aiohttp's own affair (CONNECT for https, the whole URL for http). SOCKS5 is spoken here, before TLS:
who is to blame for a failure, the proxy or the host behind it, shows only by the step at which it comes, and libraries
give one error and one time limit for all of them.

What only the proxy can be blamed for is a `ProxyError`: it takes no connection, wants another password, is no proxy.
Then it rests, for twice as long each time, and its hosts go to the next one. All else that a proxy says is an answer
about the host: it does not resolve, refuses, times out. A connection that the proxy ends without a word counts as the
host's doing too, as OpenSSH does it: counted as the proxy's, a host that is down would be tried for ever.

The guard of addresses (address_guard.py) is asked about targets wherever their address is known here: always for
addresses in URLs, and for names with `socks5://`. What a proxy resolves nobody here can know. The proxy itself is where
the operator says, a private network included.

Sources: RFC 1928, RFC 1929 (SOCKS5); RFC 9110 sections 9.3.6 (CONNECT), 15.5.8 (407) and 15.6 (502, 504).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import contextmanager
from contextvars import ContextVar
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientConnectorError, ClientProxyConnectionError, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from streamcrawl.errors import ConnectError, ConnectTimeout, Disconnected, FetchError, ProxyError, ProxyRefused
from streamcrawl.rules.addresses import literal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohappyeyeballs import AddrInfoType
    from aiohttp import ClientRequest, ClientTimeout
    from aiohttp.client_proto import ResponseHandler

    from streamcrawl.rules.proxies import Proxies, Proxy
    from streamcrawl.web.address_guard import AddressGuard
    from streamcrawl.web.dns import Resolver

REST_MIN_S: Final = 1.0
REST_MAX_S: Final = 60.0
"""A proxy that came back is found within a minute; asked more often, one that is down would cost a connection for
every host that waits."""

_ROUTE: ContextVar[Proxy | None] = ContextVar("route", default=None)
"""The proxy of the request that this task makes: aiohttp hands no word of ours to the code that connects."""


class _Health:
    """What a worker knows of one proxy."""

    failures = 0
    rests_until = 0.0
    """time.monotonic()."""
    has_worked = False


class Routes:
    """The proxies of one worker and their health."""

    def __init__(self, proxies: Proxies, log: Callable[[str], None]) -> None:
        self._proxies = proxies
        self._log = log
        self._health: dict[Proxy, _Health] = {}

    def choose(self, hostname: str, url: str) -> Proxy | None:
        """Return the proxy by which a host is asked now; None where there are no proxies at all.

        Raises:
            ProxyError: all of them rest.
        """
        if not self._proxies:
            return None
        now, wait_s = monotonic(), REST_MAX_S
        for proxy in self._proxies.order(hostname):
            health = self._health.get(proxy)
            if health is None or health.rests_until <= now:
                return proxy
            wait_s = min(wait_s, health.rests_until - now)
        raise ProxyError("no proxy works at the moment", url, wait_ms=int(1000 * wait_s) + 1)

    def note_answer(self, proxy: Proxy) -> None:
        """Remember that a host was reached through the proxy, or that it said why not."""
        health = self._health.setdefault(proxy, _Health())
        if health.failures:
            self._log(f"proxy {proxy.shown} works again")
            health.failures = 0
        health.has_worked = True

    def note_failure(self, proxy: Proxy, error: ProxyError) -> None:
        """Let the proxy rest; the error is told how long its page has to wait."""
        health, now = self._health.setdefault(proxy, _Health()), monotonic()
        # Of many requests under way at once each fails: that is one failure.
        if health.rests_until <= now:
            rest_s = min(REST_MAX_S, REST_MIN_S * 2.0 ** min(health.failures, 10))
            health.rests_until = now + rest_s
            if not health.failures:
                self._log(f"proxy {proxy.shown} does not work ({error}); its hosts wait, or go by another one")
            health.failures += 1
        # Another proxy may take its host at once.
        error.wait_ms = 0

    def has_worked(self, proxy: Proxy) -> bool:
        """Return whether any host was reached through it."""
        health = self._health.get(proxy)
        return health is not None and health.has_worked


@contextmanager
def routed(proxy: Proxy | None) -> Iterator[None]:
    """Let connections that are made inside go through the proxy."""
    token = _ROUTE.set(proxy)
    try:
        yield
    finally:
        _ROUTE.reset(token)


def check_target(guard: AddressGuard, hostname: str, port: int) -> None:
    """Raise BlockedAddress for a host that is an address which must not be connected to, through a proxy either."""
    for address in literal_of(hostname):
        guard.check(address, port, hostname)


def tunnel_error(status: int, url: str) -> FetchError:
    """Return what the answer of an HTTP proxy to CONNECT means, if it is not 2xx."""
    if status == 407:
        return ProxyError("it wants a user and a password, or others: answered CONNECT with 407", url)
    if status == 429:
        return ProxyError("it has had too many requests: answered CONNECT with 429", url)
    if 400 <= status <= 499:
        return ProxyRefused(f"the proxy refuses to connect there: answered CONNECT with {status}", url)
    return ConnectError(f"the proxy could not connect there: answered CONNECT with {status}", url)


class RoutedResolver(AbstractResolver):
    """What aiohttp asks for names: those of targets from `Resolver`, unless their proxy resolves them."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        proxy = _ROUTE.get()
        if proxy is None or not proxy.resolves_names:
            return await self._resolver.resolve(host, port, family)
        # Of an HTTP proxy aiohttp asks for the proxy's own name, which no guard is asked about.
        found = (host,) if proxy.is_socks else await self._resolver.lookup(host)
        return [_result(host, address, port) for address in found]

    async def close(self) -> None:
        """Nothing of its own is open."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


class ProxyConnector(TCPConnector):
    """aiohttp's connections, made through the proxy of `routed`."""

    def __init__(self, *, guard: AddressGuard, names: Resolver, **options: Any) -> None:
        super().__init__(resolver=RoutedResolver(names), socket_factory=self._make_socket, **options)
        self._guard = guard
        self._names = names

    def _make_socket(self, info: AddrInfoType) -> socket.socket:
        if _ROUTE.get() is None:
            return self._guard.make_socket(info)
        family, kind, protocol, _, _ = info
        return socket.socket(family, kind, protocol)

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: list[AddrInfoType],
        req: ClientRequest,
        timeout: ClientTimeout,
        client_error: type[Exception] = ClientConnectorError,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        proxy = _ROUTE.get()
        if proxy is None or not proxy.is_socks:
            try:
                return await super()._wrap_create_connection(
                    *args, addr_infos=addr_infos, req=req, timeout=timeout, client_error=client_error, **kwargs
                )
            except TimeoutError as error:
                if client_error is not ClientProxyConnectionError:
                    raise
                # As it comes, it could not be told from a host behind the proxy that does not take its connection.
                late = OSError(errno.ETIMEDOUT, "no connection within the time limit")
                raise ClientProxyConnectionError(req.connection_key, late) from error
        host, port = str(addr_infos[0][4][0]), int(addr_infos[0][4][1])
        if not proxy.resolves_names:
            self._guard.check(host, port, req.host)
        connected = await _connect(await self._addresses_of(proxy), proxy.port, timeout.sock_connect)
        try:
            await _greet(connected, proxy, timeout.sock_connect)
            await _ask(connected, host, port, timeout.sock_connect)
        except BaseException:
            connected.close()
            raise
        return await self._wrap_existing_connection(
            *args, sock=connected, req=req, timeout=timeout, client_error=client_error, **kwargs
        )

    async def _addresses_of(self, proxy: Proxy) -> tuple[str, ...]:
        try:
            return (str(ip_address(proxy.hostname)),)
        except ValueError:
            pass
        try:
            return await self._names.lookup(proxy.hostname)
        except OSError as error:
            raise ProxyError(f"its name cannot be resolved: {error.strerror}") from error


async def _connect(addresses: tuple[str, ...], port: int, limit_s: float | None) -> socket.socket:
    """Return a connection to a proxy.

    Raises:
        ProxyError: it takes none.
    """
    loop = asyncio.get_running_loop()
    why = ""
    try:
        async with asyncio.timeout(limit_s):
            for address in addresses:
                connected = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
                try:
                    connected.setblocking(False)
                    await loop.sock_connect(connected, (address, port))
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except OSError as error:
                    connected.close()
                    why = error.strerror or str(error)
                except BaseException:
                    connected.close()
                    raise
                else:
                    return connected
    except TimeoutError:
        why = "no connection within the time limit"
    raise ProxyError(f"it takes no connection: {why}")


# -- SOCKS5

_VERSION: Final = 5
_NO_PASSWORD: Final = 0
_PASSWORD: Final = 2
_REPLIES: Final[dict[int, tuple[type[FetchError], str]]] = {
    1: (ConnectError, "general failure"),
    2: (ProxyRefused, "not allowed by its rules"),
    3: (ConnectError, "network unreachable"),
    4: (ConnectError, "host unreachable"),
    5: (ConnectError, "connection refused"),
    6: (ConnectError, "TTL expired"),
    7: (ProxyError, "it does not know CONNECT"),
    8: (ConnectError, "it does not know this kind of address"),
}
"""RFC 1928 section 6."""


async def _greet(connected: socket.socket, proxy: Proxy, limit_s: float | None) -> None:
    """Agree with a SOCKS5 proxy on who we are.

    Raises:
        ProxyError: it is none, or does not take our password.
    """
    loop = asyncio.get_running_loop()
    methods = bytes((_NO_PASSWORD, _PASSWORD)) if proxy.user else bytes((_NO_PASSWORD,))
    try:
        async with asyncio.timeout(limit_s):
            await loop.sock_sendall(connected, bytes((_VERSION, len(methods))) + methods)
            version, method = await _read(connected, 2)
            if version != _VERSION:
                raise ProxyError("it does not speak SOCKS5")
            if method == _PASSWORD and proxy.user:
                user, password = proxy.user.encode("ascii"), proxy.password.encode("ascii")
                await loop.sock_sendall(connected, b"\x01%c%b%c%b" % (len(user), user, len(password), password))
                _, status = await _read(connected, 2)
                if status != 0:
                    raise ProxyError("it does not take the user and the password")
            elif method != _NO_PASSWORD:
                raise ProxyError("it wants a user and a password, or another way to say who we are")
    except TimeoutError as error:
        raise ProxyError("it does not answer within the time limit") from error
    except (OSError, EOFError) as error:
        raise ProxyError(f"it ended the connection: {_why(error)}") from error


async def _ask(connected: socket.socket, host: str, port: int, limit_s: float | None) -> None:
    """Have a SOCKS5 proxy connect to a host.

    Raises:
        ProxyRefused, ConnectError, ConnectTimeout, Disconnected: it says so of the host.
        ProxyError: it cannot connect anywhere.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limit_s):
            await loop.sock_sendall(connected, bytes((_VERSION, 1, 0)) + _address(host) + port.to_bytes(2, "big"))
            _, reply, _, kind = await _read(connected, 4)
            if reply != 0:
                error_class, said = _REPLIES.get(reply, (ConnectError, f"reply {reply}"))
                raise error_class(f"the proxy could not connect to {host}:{port}: {said}")
            # Where the proxy's own end is: of no use to anybody, but it comes before the host's first byte.
            length = {1: 4, 4: 16}.get(kind)
            if length is None:
                [length] = await _read(connected, 1)
            await _read(connected, length + 2)
    except TimeoutError as error:
        raise ConnectTimeout("the proxy did not connect there within the time limit") from error
    except (OSError, EOFError) as error:
        raise Disconnected(f"the proxy ended the connection: {_why(error)}", is_unanswered=True) from error


def _why(error: OSError | EOFError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "closed"


def _address(host: str) -> bytes:
    try:
        packed = ip_address(host).packed
    except ValueError:
        name = host.encode("ascii")
        if len(name) > 255:  # its length is one byte
            raise UnicodeError("that cannot be the name of a host") from None
        return bytes((3, len(name))) + name
    return bytes((1 if len(packed) == 4 else 4,)) + packed


async def _read(connected: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < count:
        more = await loop.sock_recv(connected, count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
