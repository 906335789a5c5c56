"""Which fetches go to the same machine, as far as an address can tell?

Pure. Start at `AddressGroups.of`. An IPv4 address is a machine, of IPv6 one /64, which providers give to one customer.
That holds until thousands of sites share the addresses of a CDN, whose machines are many behind each address and bear
more than any crawl sends: those networks are left out. Only CDNs are listed here that publish all their networks as
one short list; whoever wants another (CloudFront's and Google's lists are hundreds of cloud networks, Akamai has none)
gives it in `ip_exempt`.

Sources: https://www.cloudflare.com/ips/ and https://api.fastly.com/public-ip-list, as of autumn 2026; RFC 6177 (/64).
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

CDN: Final = "cdn"
"""What stands for the lists below in the setting `ip_exempt`."""
CLOUDFLARE: Final = (
    *("173.245.48.0/20", "103.21.244.0/22", "103.22.200.0/22", "103.31.4.0/22", "141.101.64.0/18"),
    *("108.162.192.0/18", "190.93.240.0/20", "188.114.96.0/20", "197.234.240.0/22", "198.41.128.0/17"),
    *("162.158.0.0/15", "104.16.0.0/13", "104.24.0.0/14", "172.64.0.0/13", "131.0.72.0/22"),
    *("2400:cb00::/32", "2606:4700::/32", "2803:f800::/32", "2405:b500::/32", "2405:8100::/32"),
    *("2a06:98c0::/29", "2c0f:f248::/32"),
)
FASTLY: Final = (
    *("23.235.32.0/20", "43.249.72.0/22", "103.244.50.0/24", "103.245.222.0/23", "103.245.224.0/24"),
    *("104.156.80.0/20", "140.248.64.0/18", "140.248.128.0/17", "146.75.0.0/17", "151.101.0.0/16"),
    *("157.52.64.0/18", "167.82.0.0/17", "167.82.128.0/20", "167.82.160.0/20", "167.82.224.0/20"),
    *("172.111.64.0/18", "185.31.16.0/22", "199.27.72.0/21", "199.232.0.0/16"),
    *("2a04:4e40::/32", "2a04:4e42::/32"),
)
_CUSTOMER_BITS: Final = 64


class AddressGroups:
    """What counts as one address, but for exempt networks."""

    def __init__(self, exempt: Iterable[str]) -> None:
        """Read the setting `ip_exempt`, which was checked."""
        texts = [text for one in exempt for text in ((*CLOUDFLARE, *FASTLY) if one == CDN else (one,))]
        networks: list[IPv4Network | IPv6Network] = [ip_network(text) for text in texts]
        self._exempt = {version: [one for one in networks if one.version == version] for version in (4, 6)}
        self.of = lru_cache(maxsize=16_384)(self._of)

    def _of(self, address: str) -> str | None:
        """Return what counts as one address with this one; None for what is exempt.

        Args:
            address: IPv4 or IPv6, without brackets; a zone is left out.
        """
        found = ip_address(address.partition("%")[0])
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found in network for network in self._exempt[found.version]):
            return None
        if isinstance(found, IPv6Address):
            return str(IPv6Network((found, _CUSTOMER_BITS), strict=False))
        return str(found)
