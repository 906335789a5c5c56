"""The model of the test site: what every crawl is compared with has to be right itself."""

from __future__ import annotations

import re
import zlib

import msgspec
import pytest

from streamcrawl.rules.urls import canonical_url
from tests.site.faults import crc32_of_zeros, gzip_of_zeros
from tests.site.model import Site, SiteSpec, Way, address, redirect_target

PORT = 8080


def all_pages(site: Site) -> set[str]:
    return {site.url(host, f"/p/{page}") for host in site.spec.living_hosts for page in range(site.spec.pages_per_host)}


@pytest.mark.parametrize(
    "spec",
    [
        SiteSpec(),
        SiteSpec(hosts=1, pages_per_host=1, redirect_across=1.0),
        SiteSpec(hosts=2, pages_per_host=1),
        SiteSpec(hosts=5, pages_per_host=200, links=0),
        SiteSpec(hosts=50, pages_per_host=40, redirect_within=0.03, redirect_across=0.03, flaky=0.05),
        SiteSpec(hosts=50, pages_per_host=20, redirect_within=0.4, redirect_across=0.6, dead_hosts=(2, 3, 7)),
        SiteSpec(hosts=9, pages_per_host=30, refusing_hosts=(2,), dead_hosts=(9,), robots="disallow:/private/"),
    ],
)
def test_every_page_of_every_living_host_is_reachable(spec: SiteSpec) -> None:
    site = Site(spec, PORT)
    assert site.expected_pages() == all_pages(site)


def test_forbidden_pages_are_not_expected() -> None:
    site = Site(SiteSpec(pages_per_host=30, robots="disallow:/p/1"), PORT)
    expected = site.expected_pages()
    assert site.seed_url in expected
    assert not any("/p/1" in url for url in expected)
    assert any("/p/1" in path for page in range(30) for _, path in site.links(1, page))


def test_scope_host_stays_on_the_host_of_the_seed() -> None:
    site = Site(SiteSpec(hosts=4, pages_per_host=50), PORT)
    assert site.expected_pages(scope="host") == {site.url(1, f"/p/{page}") for page in range(50)}


def test_the_links_of_the_html_are_those_of_the_model() -> None:
    site = Site(SiteSpec(hosts=5, pages_per_host=50, redirect_within=0.2, redirect_across=0.2, dead_hosts=(4,)), PORT)
    for host in site.spec.living_hosts:
        for page in (0, 1, 49):
            here = site.url(host, f"/p/{page}")
            hrefs = re.findall(rb'href="([^"]+)"', site.page_html(host, page))
            found = [canonical_url(href.decode(), here) for href in hrefs]
            assert found == [site.url(*link) for link in site.links(host, page)]


def test_pages_have_their_links_and_their_size() -> None:
    site = Site(SiteSpec(hosts=3, pages_per_host=200, page_bytes=(3000, 9000)), PORT)
    sizes = [len(site.page_html(host, page)) for host in (1, 2, 3) for page in range(200)]
    assert min(sizes) >= 3000
    assert max(sizes) <= 9000
    assert len(set(sizes)) > 400
    assert all(len(site.links(host, page)) == 20 for host in (1, 2, 3) for page in range(200))


def test_a_page_may_be_greater_than_the_stock_of_filler() -> None:
    assert len(Site(SiteSpec(page_bytes=(300_000, 300_000)), PORT).page_html(1, 5)) == 300_000


def test_everything_follows_from_the_seed() -> None:
    one, same, other = (Site(SiteSpec(hosts=3, seed=seed), PORT) for seed in (1, 1, 2))
    assert one.page_html(2, 7) == same.page_html(2, 7)
    assert one.links(2, 7) != other.links(2, 7)


def test_fractions_are_kept() -> None:
    site = Site(SiteSpec(hosts=20, pages_per_host=500, flaky=0.05, redirect_within=0.1, redirect_across=0.2), PORT)
    pages = [(host, page) for host in range(1, 21) for page in range(500)]
    ways = [site.way(*page) for page in pages]
    assert sum(site.is_flaky(*page) for page in pages) / len(pages) == pytest.approx(0.05, abs=0.01)
    assert ways.count(Way.WITHIN) / len(pages) == pytest.approx(0.1, abs=0.01)
    assert ways.count(Way.ACROSS) / len(pages) == pytest.approx(0.2, abs=0.015)


def test_a_redirect_leads_to_its_page_and_starts_on_a_living_host() -> None:
    site = Site(SiteSpec(hosts=10, redirect_within=0.5, redirect_across=0.5, dead_hosts=(2, 5)), PORT)
    for host in site.spec.living_hosts:
        for page in range(100):
            entry_host, path = site.entry(host, page)
            assert entry_host in site.spec.living_hosts
            if site.way(host, page) is not Way.DIRECT:
                assert redirect_target(entry_host, path) == (host, f"/p/{page}")
            assert (entry_host != host) == (site.way(host, page) is Way.ACROSS)


def test_a_slow_host_is_slow_on_every_page() -> None:
    site = Site(SiteSpec(hosts=3, slow_hosts=(2,), slow_ms=700, latency_ms=5), PORT)
    assert {site.latency_ms(2, page) for page in range(100)} == {700}
    assert {site.latency_ms(3, page) for page in range(100)} == {5}


@pytest.mark.parametrize(
    ("robots", "status", "line"),
    [
        ("allow", 200, b"Disallow: \n"),
        ("disallow:/private/", 200, b"Disallow: /private/\n"),
        ("none", 404, b""),
        ("status:503", 503, b""),
    ],
)
def test_robots_txt_is_what_the_spec_says(robots: str, status: int, line: bytes) -> None:
    answer = Site(SiteSpec(robots=robots), PORT).robots_txt()
    assert answer[0] == status
    assert line in answer[1]


@pytest.mark.parametrize(
    "fields",
    [{"hosts": 0}, {"pages_per_host": 0}, {"robots": "maybe"}, {"dead_hosts": (1,)}, {"refusing_hosts": (1,)}],
)
def test_an_impossible_spec_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, SiteSpec)


def test_a_spec_survives_the_way_to_the_process() -> None:
    spec = SiteSpec(hosts=9, dead_hosts=(3, 4), page_bytes=(1, 2), robots="disallow:/x/")
    assert msgspec.json.decode(msgspec.json.encode(spec), type=SiteSpec) == spec


def test_hosts_are_loopback_addresses() -> None:
    assert [address(host) for host in (1, 2, 255, 256)] == ["127.0.0.1", "127.0.0.2", "127.0.0.255", "127.0.1.0"]


def test_the_bomb_is_valid_gzip() -> None:
    bomb = gzip_of_zeros(3)
    assert zlib.decompress(bomb, wbits=31) == bytes(3 * 1024 * 1024)
    assert len(bomb) < 10_000


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 1 << 20])
def test_the_checksum_of_zeros_is_that_of_zlib(count: int) -> None:
    assert crc32_of_zeros(count) == zlib.crc32(bytes(count))
