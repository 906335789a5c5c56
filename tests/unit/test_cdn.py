"""What counts as one address, and what is left out of that."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.rules.cdn import CLOUDFLARE, FASTLY, AddressGroups
from streamcrawl.settings import make_settings


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("104.16.1.1", None),
        ("::ffff:104.16.1.1", None),
        ("2606:4700::1", None),
        ("151.101.1.1", None),
        ("10.1.2.3", None),
        ("10.2.2.3", "10.2.2.3"),
    ],
)
def test_address_is_a_machine_unless_it_is_exempt(address: str, group: str | None) -> None:
    assert AddressGroups(["cdn", "10.1.0.0/16"]).of(address) == group


def test_without_exemptions_every_address_counts() -> None:
    assert AddressGroups([]).of("104.16.1.1") == "104.16.1.1"


def test_lists_are_networks_each_once() -> None:
    texts = [*CLOUDFLARE, *FASTLY]
    assert len(set(map(ip_network, texts))) == len(texts)
    assert all(ip_network(text).is_global for text in texts)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0", "akamai", "", "10.0.0.0/33", "cdn "])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no network; write"):
        make_settings("books", {"ip_exempt": (text,)})
