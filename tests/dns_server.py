"""A name server of the tests: a UDP socket on 127.0.0.1 that answers A and AAAA as it is told, and logs what was asked.

Sources: RFC 1035 section 4 (the message), RFC 3596 (AAAA).
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

A: Final = 1
AAAA: Final = 28
NXDOMAIN: Final = 3
SERVFAIL: Final = 2
_IN: Final = 1
_QR_RD_RA: Final = 0x8180


@dataclass(frozen=True)
class Records:
    """What is answered to one question for a name: its addresses, or an error."""

    addresses: tuple[str, ...] = ()
    ttl_s: int = 60
    code: int = 0
    is_silent: bool = False


def records(*addresses: str, ttl_s: int = 60) -> Records:
    return Records(addresses, ttl_s)


class DnsServer(asyncio.DatagramProtocol):
    """Knows `names`: for each the answers in order, the last of them again and again; NXDOMAIN for any other name."""

    def __init__(self, names: dict[str, Sequence[Records]] | None = None) -> None:
        self.names: dict[str, Sequence[Records]] = dict(names or {})
        self.asked: list[tuple[str, int]] = []
        """Each question: the name and its type."""
        self.address = ""
        """As `--nameserver` takes it."""
        self._transport: asyncio.DatagramTransport

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        host, port = self._transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()

    def asked_for(self, name: str, kind: int = A) -> int:
        """Return how often a name was asked for."""
        return self.asked.count((name, kind))

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, place = [], 12
        while length := data[place]:
            labels.append(data[place + 1 : place + 1 + length].decode())
            place += 1 + length
        question = data[12 : place + 5]
        name, kind = ".".join(labels).lower(), struct.unpack("!H", data[place + 1 : place + 3])[0]
        answers = self.names.get(name, (Records(code=NXDOMAIN),))
        answer = answers[min(self.asked_for(name, kind), len(answers) - 1)]
        self.asked.append((name, kind))
        if answer.is_silent:
            return
        rows = b""
        count = 0
        for text in answer.addresses:
            address = ipaddress.ip_address(text)
            if kind == (A if address.version == 4 else AAAA):
                count += 1
                rows += b"\xc0\x0c" + struct.pack("!HHIH", kind, _IN, answer.ttl_s, len(address.packed))
                rows += address.packed
        head = data[:2] + struct.pack("!HHHHH", _QR_RD_RA | answer.code, 1, count, 0, 0)
        self._transport.sendto(head + question + rows, addr)
