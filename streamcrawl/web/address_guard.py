"""May this address be connected to?

A page, a redirect, a robots.txt or a name server can name any address: this machine, its network, the metadata service
of its cloud. Nothing but public addresses is reached, and what the crawl was started on (rules/addresses.py). The
question is asked of the address that a socket is about to be connected to, after every lookup and for each connection:
`web/dns.py` filters what names resolve to, and `AddressGuard.make_socket` is called by aiohttp with the very address,
also where it stands in the URL. So neither a name that resolves anew, nor a spelling, nor a hop comes around it.

Start at `AddressGuard.check`.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from streamcrawl.errors import BlockedAddress
from streamcrawl.rules.addresses import Inside, Network, network_of

if TYPE_CHECKING:
    from aiohappyeyeballs import AddrInfoType

    from streamcrawl.settings import Settings


class AddressGuard:
    """The rule of one crawl; a change of `allow_private` holds from the next connection on."""

    def __init__(self, settings: Settings, inside: Inside) -> None:
        self._inside = inside
        self._allows_private = settings.allow_private

    def apply(self, settings: Settings) -> None:
        """Go by other settings from the next connection on."""
        self._allows_private = settings.allow_private

    def admits(self, address: str, port: int) -> bool:
        """Return whether the IP address may be connected to."""
        network = network_of(address)
        if network is Network.PUBLIC:
            return True
        # Credentials of the machine are no part of any site: whoever wants them crawled names them as a seed.
        return (self._allows_private and network is not Network.METADATA) or self._inside.admits(address, port)

    def check(self, address: str, port: int, host: str = "") -> None:
        """Raise BlockedAddress unless the IP address may be connected to; `host` is the name it was found by."""
        if self.admits(address, port):
            return
        network = network_of(address)
        where = address if host in ("", address) else f"{host} is at {address}"
        mend = "" if network is Network.METADATA else "; --allow-private would"
        raise BlockedAddress(f"{where}: a {network} address, which this crawl does not connect to{mend}")

    def make_socket(self, info: AddrInfoType) -> socket.socket:
        """Return a socket for an address that is about to be connected to; aiohttp calls it for each one.

        Raises:
            BlockedAddress: it must not be.
        """
        family, kind, protocol, _, address = info
        self.check(str(address[0]), int(address[1]))
        return socket.socket(family, kind, protocol)
