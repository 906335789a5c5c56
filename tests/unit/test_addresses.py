"""Which network is an address in, however it is written, and which of them do a crawl's seeds open?"""

from __future__ import annotations

import ipaddress
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.addresses import NAMES_MAX, Inside, Network, literal_of, network_of
from streamcrawl.rules.urls import canonical_url, hostname_of, split_url

NETWORKS: Final[dict[str, Network]] = {
    "1.1.1.1": Network.PUBLIC,
    "100.63.255.255": Network.PUBLIC,
    "100.128.0.0": Network.PUBLIC,
    "172.15.255.255": Network.PUBLIC,
    "172.32.0.0": Network.PUBLIC,
    "2606:4700::1111": Network.PUBLIC,
    "127.0.0.1": Network.LOOPBACK,
    "127.255.255.254": Network.LOOPBACK,
    "::1": Network.LOOPBACK,
    "0.0.0.0": Network.UNSPECIFIED,
    "0.1.2.3": Network.UNSPECIFIED,
    "::": Network.UNSPECIFIED,
    "10.0.0.0": Network.PRIVATE,
    "172.16.0.1": Network.PRIVATE,
    "172.31.255.255": Network.PRIVATE,
    "192.168.1.1": Network.PRIVATE,
    "fc00::1": Network.PRIVATE,
    "fdff::1": Network.PRIVATE,
    "fec0::1": Network.PRIVATE,
    "64:ff9b:1::101:101": Network.PRIVATE,
    "169.254.1.1": Network.LINK_LOCAL,
    "fe80::1": Network.LINK_LOCAL,
    "fe80::1%eth0": Network.LINK_LOCAL,
    "100.64.0.0": Network.SHARED,
    "100.127.255.255": Network.SHARED,
    "169.254.169.254": Network.METADATA,
    "100.100.100.200": Network.METADATA,
    "168.63.129.16": Network.METADATA,
    "fd00:ec2::254": Network.METADATA,
    "198.18.0.1": Network.BENCHMARKING,
    "198.19.255.255": Network.BENCHMARKING,
    "192.0.2.1": Network.DOCUMENTATION,
    "203.0.113.255": Network.DOCUMENTATION,
    "2001:db8::1": Network.DOCUMENTATION,
    "3fff::1": Network.DOCUMENTATION,
    "224.0.0.1": Network.MULTICAST,
    "ff02::1": Network.MULTICAST,
    "240.0.0.1": Network.RESERVED,
    "255.255.255.255": Network.RESERVED,
    "192.0.0.8": Network.RESERVED,
    "2001::1": Network.RESERVED,
    "4000::1": Network.RESERVED,
    "100::1": Network.RESERVED,
    # An IPv4 address within one of IPv6: packets end up at that.
    "::ffff:127.0.0.1": Network.LOOPBACK,
    "::ffff:8.8.8.8": Network.PUBLIC,
    "::ffff:169.254.169.254": Network.METADATA,
    "::ffff:0:10.0.0.1": Network.PRIVATE,
    "::127.0.0.1": Network.LOOPBACK,
    "64:ff9b::7f00:1": Network.LOOPBACK,
    "64:ff9b::808:808": Network.PUBLIC,
    "2002:7f00:1::1": Network.LOOPBACK,
    "2002:c0a8:101::": Network.PRIVATE,
    "2002:808:808::": Network.PUBLIC,
}


@pytest.mark.parametrize(("address", "network"), NETWORKS.items())
def test_address_is_in_a_network(address: str, network: Network) -> None:
    assert network_of(address) is network


@given(st.ip_addresses())
def test_what_python_knows_not_to_be_global_is_not_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if network_of(str(address)) is Network.PUBLIC and isinstance(address, ipaddress.IPv4Address):
        assert address.is_global
    elif network_of(str(address)) is Network.PUBLIC:
        # Translations of public addresses, which Python counts to their special prefixes.
        assert address.is_global or int(address) >> 96 in (0, 0x64FF9B) or int(address) >> 112 == 0x2002


def test_what_is_no_address_is_an_error() -> None:
    with pytest.raises(ValueError, match="example"):
        network_of("example.org")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1/", "127.0.0.1"),
        ("http://2130706433/", "127.0.0.1"),
        ("http://0x7f000001/", "127.0.0.1"),
        ("http://017700000001/", "127.0.0.1"),
        ("http://0177.0.0.1/", "127.0.0.1"),
        ("http://0x7f.1/", "127.0.0.1"),
        ("http://127.1/", "127.0.0.1"),
        ("http://127.0.0.1./", "127.0.0.1"),
        ("http://127%2e0%2e0%2e1/", "127.0.0.1"),
        ("http://１２７。0。0。1/", "127.0.0.1"),
        ("http://①②⑦.0.0.1/", "127.0.0.1"),
        ("http://user@127.0.0.1:80/", "127.0.0.1"),
        ("http:/\\127.0.0.1/", "127.0.0.1"),
        ("http://2852039166/", "169.254.169.254"),
        ("http://[::1]:8000/", "::1"),
        ("http://[0:0:0:0:0:0:0:1]/", "::1"),
        ("http://[::ffff:127.0.0.1]/", "::ffff:7f00:1"),
        ("http://[::ffff:7f00:1]/", "::ffff:7f00:1"),
    ],
)
def test_each_spelling_of_an_address_is_seen_as_it(url: str, address: str) -> None:
    canonical = canonical_url(url)
    assert canonical is not None
    found = literal_of(hostname_of(split_url(canonical)[0]))
    assert [ipaddress.ip_address(one) for one in found] == [ipaddress.ip_address(address)]
    assert network_of(found[0]) in (Network.LOOPBACK, Network.METADATA)


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "a.b.localhost."])
def test_localhost_is_this_machine_whatever_name_servers_say(name: str) -> None:
    assert literal_of(name) == ("127.0.0.1", "::1")


@pytest.mark.parametrize("name", ["example.org", "localhost.example.org", "notlocalhost", "", "1.2.3", "a..b"])
def test_other_names_are_no_addresses(name: str) -> None:
    assert literal_of(name) == ()


def test_seeds_inside_open_their_networks_and_no_other() -> None:
    inside = Inside.of_seeds(["127.0.0.1:8000", "10.1.2.3", "[::1]"], {})
    assert inside.networks == {Network.LOOPBACK, Network.PRIVATE}
    assert all(inside.admits(address, 1) for address in ("127.9.9.9", "::1", "192.168.0.1", "::ffff:127.0.0.1"))
    assert not any(
        inside.admits(address, 80) for address in ("169.254.169.254", "169.254.1.1", "100.64.0.1", "0.0.0.0")
    )


def test_one_public_seed_closes_all_but_the_places_of_the_others() -> None:
    inside = Inside.of_seeds(["127.0.0.1:8000", "localhost", "[::1]:9000", "example.org", "10.1.2.3:8443"], {})
    assert inside.networks == frozenset()
    assert inside.admits("127.0.0.1", 8000)
    assert inside.admits("127.0.0.1", 80)
    assert inside.admits("127.0.0.1", 443)
    assert inside.admits("::1", 9000)
    assert inside.admits("10.1.2.3", 8443)
    assert not inside.admits("127.0.0.1", 6379)
    assert not inside.admits("127.0.0.2", 8000)
    assert not inside.admits("10.1.2.3", 80)


def test_names_count_by_what_they_were_when_the_crawl_began() -> None:
    assert Inside.of_seeds(["wiki.corp"], {"wiki.corp": ["10.0.0.1"]}).networks == {Network.PRIVATE}
    assert Inside.of_seeds(["wiki.corp:8080"], {"wiki.corp": ["10.0.0.1"]}).networks == {Network.PRIVATE}
    assert Inside.of_seeds(["wiki.corp"], {"wiki.corp": ["10.0.0.1", "1.1.1.1"]}) == Inside()
    assert Inside.of_seeds(["wiki.corp", "example.org"], {"wiki.corp": ["10.0.0.1"]}) == Inside()
    assert Inside.of_seeds(["wiki.corp"], {}) == Inside()


def test_no_seeds_open_nothing() -> None:
    assert Inside.of_seeds([], {}) == Inside()
    assert Inside.of_state({}) == Inside()
    assert Inside.of_state({"hosts": ["127.0.0.1"], "prefixes": []}).networks == {Network.LOOPBACK}


def test_names_are_looked_up_only_where_they_can_open_something() -> None:
    assert Inside.names_of(["wiki.corp:80", "wiki.corp:81", "127.0.0.1", "localhost"]) == ["wiki.corp"]
    assert Inside.names_of(["wiki.corp", "1.1.1.1"]) == []
    assert Inside.names_of(f"h{n}.corp" for n in range(NAMES_MAX)) != []
    assert Inside.names_of(f"h{n}.corp" for n in range(NAMES_MAX + 1)) == []
