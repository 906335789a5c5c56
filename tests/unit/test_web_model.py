"""The web of the simulated fleet: the same for every process, and its own answer to what a crawl had to find."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.simulated import jain
from benchmarks.web_model import Web, WebSpec, sizes_of, url_of
from streamcrawl.rules.urls import canonical_url

SPEC = WebSpec(
    hosts=40, pages=900, seeds=3, redirects=0.1, latency_ms=200, latency_max_ms=5000,
    dead_hosts=0.1, missing=0.1, hanging=0.05, failing=0.1, outages=0.2,
)  # fmt: skip


def all_pages(web: Web) -> list[str]:
    return [url_of(host, page) for host, size in enumerate(web.sizes) for page in range(size)]


def test_two_processes_see_the_same_web() -> None:
    one, other = Web(SPEC), Web(msgspec.json.decode(msgspec.json.encode(SPEC), type=WebSpec))
    for url in [*all_pages(one), "http://h3.example/robots.txt", "http://h3.example/r/1", "http://h3.example/x/5/2"]:
        for at_s in (0.2, 30.7):
            assert one.reply(url, at_s) == other.reply(url, at_s)


def test_what_is_drawn_stays_what_it_was() -> None:
    # Figures of another day are of the same web.
    web = Web(WebSpec(hosts=10, pages=100, seeds=2, links=4, latency_ms=100))
    assert web.sizes == [35, 17, 11, 8, 7, 5, 5, 4, 3, 3]
    reply = web.reply("http://h1.example/p/1", 0)
    assert (round(reply.latency_ms), reply.status, len(reply.links)) == (114, 200, 4)


def test_another_seed_makes_another_web() -> None:
    other = Web(msgspec.structs.replace(SPEC, seed=2))
    assert any(Web(SPEC).reply(url, 0) != other.reply(url, 0) for url in all_pages(other)[:50])


def test_sizes_fall_by_the_power_law_and_add_up() -> None:
    spec = WebSpec(hosts=1000, pages=20_000, host_pages_max=500)
    sizes = sizes_of(spec)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 500
    assert sizes[-1] >= 1
    assert abs(sum(sizes) - spec.pages) <= spec.hosts


def test_every_link_is_canonical_and_answered() -> None:
    web = Web(SPEC)
    for url in all_pages(web):
        for link in web.reply(url, 100).links:
            assert canonical_url(link) == link
            location = web.reply(link, 100).location
            assert location is None or web.reply(location, 100).location is None


def test_fates_come_as_often_as_was_asked() -> None:
    web = Web(SPEC)
    replies = [web.reply(url, 100) for url in all_pages(web)]
    for share, count in [
        (SPEC.hanging, sum(reply.fate == "silence" for reply in replies)),
        (SPEC.missing, sum(reply.status == 404 for reply in replies)),
        (SPEC.failing, sum(reply.fate == "cut off" or reply.status == 500 for reply in replies)),
    ]:
        assert share / 2 < count / len(replies) < share * 2
    assert all(0 < reply.latency_ms <= SPEC.latency_max_ms for reply in replies)


def test_a_page_that_failed_by_chance_comes_in_another_second() -> None:
    web = Web(msgspec.structs.replace(SPEC, dead_hosts=0, outages=0, hanging=0, missing=0))
    for url in all_pages(web):
        assert any(web.reply(url, second).status == 200 for second in range(10))


def test_a_url_of_another_web_is_refused() -> None:
    with pytest.raises(ValueError, match="not of this web"):
        Web(SPEC).reply("http://example.com/p/1", 0)


def test_everything_is_reached_where_nothing_fails() -> None:
    web = Web(WebSpec(hosts=60, pages=500, seeds=2))
    reached = web.reachable(lambda url: True, lambda url: False)
    assert set(all_pages(web)) <= reached.known
    assert reached.missing == []


def test_a_page_that_died_has_shown_no_links_and_one_that_did_not_end_is_missing() -> None:
    web = Web(WebSpec(hosts=1, pages=50, seeds=1, links=0))
    everything = set(all_pages(web))
    below = set(web.links(0, 1)) | {url_of(0, 1)}
    reached = web.reachable(lambda url: True, lambda url: url == url_of(0, 1))
    assert everything - reached.known >= below - {url_of(0, 1)}
    assert web.reachable(lambda url: url != url_of(0, 2), lambda url: False).missing == [url_of(0, 2)]


def test_the_index_of_fairness() -> None:
    assert jain([3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
