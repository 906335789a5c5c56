"""A proxy for crawls of the tests: HTTP (CONNECT, and whole URLs) and SOCKS5 on one port, told apart by the first byte.

It resolves no names but those it is given, so a test sees who resolved one. Runs in the event loop of the test.
"""

from __future__ import annotations

import asyncio
import re
import socket
from base64 import b64decode
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, NamedTuple, Self

_HEAD_MAX: Final = 65_536


class Asked(NamedTuple):
    """One request to connect somewhere."""

    way: str
    """`connect`, `get` or `socks`."""
    host: str
    """As it was written: a name, or an address that the client had resolved."""
    port: int


class WebProxy:
    """Listens on a free port of 127.0.0.1 while the block runs."""

    def __init__(self, *, user: str = "", password: str = "", names: dict[str, str] | None = None) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self.answer = 0
        """The status of CONNECT, or the reply of SOCKS5, that every request gets; 0 for what is true."""
        self.ends = ""
        """`early`: each connection ends before its first answer; `late`: where the answer about the host would come."""
        self._user = user
        self._password = password
        self._names = names or {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Bound and never listening: it keeps the port from everybody else while the proxy is closed.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]

    def url(self, scheme: str = "http") -> str:
        """Return the setting by which a crawl goes through it."""
        secret = f"{self._user}:{self._password}@" if self._user else ""
        return f"{scheme}://{secret}127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        self._place.close()

    async def open(self) -> None:
        """Listen, again on the same port after `close`."""
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", self.port, reuse_address=True)

    async def close(self) -> None:
        """Take no connection any more, and end those that there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            first = await reader.readexactly(1)
            if self.ends == "early":
                return
            await (self._socks(reader, writer) if first == b"\x05" else self._http(first, reader, writer))
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    # -- HTTP

    async def _http(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = first + await reader.readuntil(b"\r\n\r\n")
            first = b""
            method, target, _ = head.split(b" ", 2)
            said = re.search(rb"(?im)^proxy-authorization: basic (\S+)\r$", head)
            if self._user and (said is None or b64decode(said[1]).decode() != f"{self._user}:{self._password}"):
                writer.write(b"HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
                continue
            is_tunnel = method == b"CONNECT"
            where = target if is_tunnel else target.split(b"/", 3)[2]
            name, _, port = where.decode().rpartition(":") if b":" in where else (where.decode(), "", "80")
            self.asked.append(Asked("connect" if is_tunnel else "get", name, int(port)))
            if self.ends == "late":
                return
            if self.answer:
                writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self.answer)
                continue
            try:
                there, to_there = await self._reach(name, int(port))
            except OSError:
                writer.write(b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n")
                continue
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                await _pass_both(reader, writer, there, to_there)
                return
            # One request to a connection, so the answer ends with it.
            path = b"/" + target.split(b"/", 3)[3]
            kept = re.sub(rb"(?im)^(proxy-authorization|connection): .*\r\n", b"", head.split(b"\r\n", 1)[1])
            to_there.write(b"GET %b HTTP/1.1\r\nConnection: close\r\n%b" % (path, kept))
            await _pass(there, writer)
            to_there.close()
            return

    # -- SOCKS5

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        methods = await reader.readexactly((await reader.readexactly(1))[0])
        wanted = 2 if self._user else 0
        if wanted not in methods:
            writer.write(b"\x05\xff")
            return
        writer.write(bytes((5, wanted)))
        if wanted:
            await reader.readexactly(1)
            user = await reader.readexactly((await reader.readexactly(1))[0])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            is_known = (user.decode(), password.decode()) == (self._user, self._password)
            writer.write(b"\x01\x00" if is_known else b"\x01\x01")
            if not is_known:
                return
        _, _, _, kind = await reader.readexactly(4)
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = str(ip_address(await reader.readexactly(4 if kind == 1 else 16)))
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append(Asked("socks", host, port))
        if self.ends == "late":
            return
        reply, there, to_there = self.answer, None, None
        if not reply:
            try:
                there, to_there = await self._reach(host, port)
            except OSError:
                reply = 5
        # The bound address is a name here, of all kinds the one whose length is not fixed.
        writer.write(bytes((5, reply, 0)) + (b"\x03\x02me\x00\x00" if not reply else b"\x01\0\0\0\0\0\0"))
        if there is not None and to_there is not None:
            await _pass_both(reader, writer, there, to_there)

    async def _reach(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            address = str(ip_address(host.strip("[]")))
        except ValueError:
            if host not in self._names:
                raise OSError("no such name") from None
            address = self._names[host]
        return await asyncio.open_connection(address, port)


async def _pass_both(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    ways = [asyncio.ensure_future(_pass(reader, to)), asyncio.ensure_future(_pass(there, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to.close()


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(_HEAD_MAX):
            sink.write(data)
            await sink.drain()
