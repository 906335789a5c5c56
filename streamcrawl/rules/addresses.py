"""What kind of network is an IP address in, and which kinds may a crawl reach?

Pure: no name is resolved and nothing is connected to. Start at `network_of`, then `Inside`, the part of the world
beyond the public internet that a crawl was started on. Every table is written out here rather than taken from
`ipaddress.is_global`, whose answers change between versions of Python, and which knows no metadata service.

Sources: the IANA special-purpose registries for IPv4 and IPv6 (RFC 6890 and its updates, November 2026); RFC 4291
section 2.5.5 (IPv4 in IPv6), RFC 6052 and RFC 8215 (NAT64), RFC 3056 (6to4); the manuals of the cloud providers for the
addresses of their metadata services.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.rules.urls import hostname_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Network(StrEnum):
    """Where an address leads, as messages say it."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    UNSPECIFIED = "unspecified"
    """0.0.0.0 and ::, which Linux connects to this machine."""
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    SHARED = "shared"
    """Behind a provider's NAT (CGNAT)."""
    METADATA = "metadata"
    """Of a cloud: hands the credentials of the machine to whoever asks from it."""
    BENCHMARKING = "benchmarking"
    DOCUMENTATION = "documentation"
    MULTICAST = "multicast"
    RESERVED = "reserved"


_SPECIAL: Final = {
    Network.METADATA: (
        "169.254.169.254/32",  # AWS, Google, Azure, Oracle, DigitalOcean, OpenStack
        "169.254.170.2/32",  # AWS ECS
        "169.254.170.23/32",  # AWS EKS
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's host, though its address is public
        "192.0.0.192/32",  # Oracle, older
        "fd00:ec2::/32",  # AWS
        "fd20:ce::254/128",  # Google
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "fd00:42::42/128",  # Scaleway
    ),
    Network.LOOPBACK: ("127.0.0.0/8", "::1/128"),
    Network.UNSPECIFIED: ("0.0.0.0/8", "::/128"),
    Network.PRIVATE: (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
        "fec0::/10",
        "64:ff9b:1::/48",  # translated within one network, RFC 8215
    ),
    Network.LINK_LOCAL: ("169.254.0.0/16", "fe80::/10"),
    Network.SHARED: ("100.64.0.0/10",),
    Network.BENCHMARKING: ("198.18.0.0/15", "2001:2::/48"),
    Network.DOCUMENTATION: (
        "192.0.2.0/24",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "2001:db8::/32",
        "3fff::/20",
    ),
    Network.MULTICAST: ("224.0.0.0/4", "ff00::/8"),
    Network.RESERVED: ("192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "2001::/23"),
}
_RANGES: Final = {
    version: [
        (int(one.network_address), int(one.broadcast_address), network)
        for network, texts in _SPECIAL.items()
        for one in map(ip_network, texts)
        if one.version == version
    ]
    for version in (4, 6)
}
"""First and last address as numbers, the special before the general."""
_EMBEDDING: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (IPv6Network("::ffff:0:0:0/96"), 0),  # IPv4-translated
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("::/96"), 0),  # IPv4-compatible
    (IPv6Network("2002::/16"), 80),  # 6to4: the address follows the prefix
)
"""Prefixes with an IPv4 address inside, and how many bits come after that: it is where packets end up."""
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAMES_OF_THIS_MACHINE: Final = ("localhost", ".localhost")
NAMES_MAX: Final = 20
"""Of seeds: with more than that, those that are not addresses count as public."""
_PORTS: Final = (80, 443)
"""Of an authority without a port: http and https."""


@lru_cache(maxsize=16_384)
def network_of(address: str) -> Network:
    """Return which network an IP address is in; an IPv6 address may carry a zone (`fe80::1%eth0`), but no brackets.

    Raises:
        ValueError: it is no address.
    """
    found = ip_address(address.partition("%")[0])
    network = _special(found)
    if network is not Network.PUBLIC or isinstance(found, IPv4Address):
        return network
    for prefix, shift in _EMBEDDING:
        if found in prefix:
            return _special(IPv4Address(int(found) >> shift & 0xFFFFFFFF))
    return Network.PUBLIC if found in _GLOBAL_UNICAST else Network.RESERVED


def _special(address: IPv4Address | IPv6Address) -> Network:
    number = int(address)
    return next(
        (network for first, last, network in _RANGES[address.version] if first <= number <= last), Network.PUBLIC
    )


def literal_of(hostname: str) -> tuple[str, ...]:
    """Return the addresses that a host name of a canonical URL is by itself; () for a name that has to be resolved.

    Canonical URLs write every IPv4 address in dotted form, however it was spelled. `localhost` and what ends in
    `.localhost` are this machine (RFC 6761 section 6.3).
    """
    name = hostname.rstrip(".").lower()
    if name == _NAMES_OF_THIS_MACHINE[0] or name.endswith(_NAMES_OF_THIS_MACHINE[1]):
        return ("127.0.0.1", "::1")
    plain = name.removeprefix("[").removesuffix("]")
    try:
        return (str(ip_address(plain)),)
    except ValueError:
        return ()


class Inside(msgspec.Struct, frozen=True):
    """What a crawl may reach beyond the public internet, because it was started there.

    A seed that is such an address itself, or `localhost`, may always be reached: this address with this port. When no
    seed is public, the crawl was started inside, and all addresses of the networks of its seeds may be reached: a crawl
    of `http://10.1.2.3/` follows links to `10.9.9.9`, but to no other network. A single public seed ends that: its
    pages are written by strangers.
    """

    networks: frozenset[Network] = frozenset()
    endpoints: frozenset[tuple[str, int]] = frozenset()
    """(address, port)."""

    @classmethod
    def of_seeds(cls, authorities: Iterable[str], resolved: Mapping[str, Iterable[str]]) -> Inside:
        """Return what seeds allow.

        Args:
            authorities: Host and port of each seed's canonical URL, without the scheme.
            resolved: Addresses of the names among them, by host name, as they were found when the crawl was started. A
                name that is missing counts as public.
        """
        networks: set[Network] = set()
        endpoints: set[tuple[str, int]] = set()
        for authority in authorities:
            hostname = hostname_of(authority)
            literal = literal_of(hostname)
            found = {network_of(address) for address in literal or resolved.get(hostname, ())}
            networks |= found or {Network.PUBLIC}
            port = authority.removeprefix(hostname).removeprefix(":")
            ports = (int(port),) if port else _PORTS
            if Network.PUBLIC not in found:
                endpoints |= {(address, port) for address in literal for port in ports}
        return cls(frozenset() if Network.PUBLIC in networks else frozenset(networks), frozenset(endpoints))

    @staticmethod
    def names_of(authorities: Iterable[str]) -> list[str]:
        """Return the host names whose addresses `of_seeds` needs; none when these cannot make a difference.

        One public address among the seeds decides already, and so do many names: a crawl of a network of one's own
        has few, and each costs a lookup before anything begins.
        """
        names: dict[str, None] = {}
        for authority in authorities:
            hostname = hostname_of(authority)
            literal = literal_of(hostname)
            if not literal:
                names[hostname] = None
            if any(network_of(address) is Network.PUBLIC for address in literal) or len(names) > NAMES_MAX:
                return []
        return list(names)

    @classmethod
    def of_state(cls, scope: Mapping[str, Any]) -> Inside:
        """Return what the seeds of a stored scope allow; nothing for a crawl that was begun without one."""
        return cls.of_seeds(scope.get("hosts", ()), scope.get("resolved", {}))

    def admits(self, address: str, port: int) -> bool:
        """Return whether an address that is not public may be connected to."""
        return (
            network_of(address) in self.networks or (str(ip_address(address.partition("%")[0])), port) in self.endpoints
        )
