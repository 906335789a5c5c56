"""Which links belong to a crawl."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.scope import SEEDS_KEPT_MAX, Scope
from streamcrawl.rules.urls import split_url
from streamcrawl.settings import make_settings

SEED = "https://docs.example.org/guide/index.html?from=/home/"
PAGE = "https://docs.example.org/guide/index.html"


def scope_of(*seeds: str, **values: Any) -> Scope:
    return Scope.from_settings(make_settings(name="t", **values), seeds or (SEED,))


def admits(scope: Scope, url: str, page: str = PAGE) -> bool:
    return scope.admits(url, page_host=split_url(page)[0])


@pytest.mark.parametrize(
    ("kind", "url", "expected"),
    [
        ("host", "https://docs.example.org/other", True),
        ("host", "http://docs.example.org/other", True),
        ("host", "https://docs.example.org:8443/other", False),
        ("host", "https://www.example.org/", False),
        ("host", "https://docs.example.org.evil.example/", False),
        ("domain", "https://www.example.org/", True),
        ("domain", "http://example.org:8080/", True),
        ("domain", "https://example.com/", False),
        ("domain", "https://badexample.org/", False),
        ("prefix", "https://docs.example.org/guide/next.html", True),
        ("prefix", "http://docs.example.org/guide/next.html", True),
        ("prefix", "https://docs.example.org/guide/", True),
        ("prefix", "https://docs.example.org/guide", False),
        ("prefix", "https://docs.example.org/guidebook/", False),
        ("prefix", "https://docs.example.org/", False),
        ("prefix", "https://docs.example.org:8443/guide/", False),
        ("any", "http://anything.example/", True),
    ],
)
def test_kind_of_scope_decides(kind: str, url: str, expected: bool) -> None:
    assert admits(scope_of(scope=kind), url) is expected


def test_link_to_another_seed_is_in_scope() -> None:
    scope = scope_of(SEED, "http://other.example:8080/")
    assert admits(scope, "https://other.example:8080/x")
    assert not admits(scope, "https://other.example/x")


def test_page_beyond_the_seeds_keeps_its_own_host_in_scope() -> None:
    assert admits(scope_of(), "http://elsewhere.example/b", page="http://elsewhere.example/a")
    assert not admits(scope_of(), "http://elsewhere.example/b")


def test_public_suffix_is_no_domain_in_common() -> None:
    scope = scope_of("https://me.github.io/", scope="domain")
    assert admits(scope, "https://www.me.github.io/")
    assert not admits(scope, "https://you.github.io/")


def test_deny_wins_over_allow_and_allow_over_nothing() -> None:
    scope = scope_of(allow=(r"\.html$", r"/api/"), deny=(r"/private/",))
    assert admits(scope, "https://docs.example.org/a.html")
    assert admits(scope, "https://docs.example.org/api/x")
    assert not admits(scope, "https://docs.example.org/a.pdf")
    assert not admits(scope, "https://docs.example.org/private/a.html")
    assert not admits(scope, "https://elsewhere.example/a.html")


def test_patterns_hold_for_any_scope_too() -> None:
    scope = scope_of(scope="any", deny=(r"[?&]session=",))
    assert admits(scope, "https://x.example/?a=1")
    assert not admits(scope, "https://x.example/?a=1&session=2")


def test_session_id_in_a_seed_is_no_part_of_its_prefix() -> None:
    seed = "https://docs.example.org/a;jsessionid=1F/b"
    assert admits(scope_of(seed, scope="prefix", drop_params=("sessions",)), "https://docs.example.org/a/c")
    assert not admits(scope_of(seed, scope="prefix"), "https://docs.example.org/a/c")


def test_several_prefixes_of_one_host_all_count() -> None:
    scope = scope_of("http://a.example/one/x", "http://a.example/two/", "http://b.example", scope="prefix")
    assert admits(scope, "http://a.example/one/y")
    assert admits(scope, "http://a.example/two/y")
    assert not admits(scope, "http://a.example/three")
    assert admits(scope, "http://b.example/anything")
    assert not admits(scope, "http://c.example/one/x")


@pytest.mark.parametrize("kind", ["host", "domain", "prefix", "any"])
def test_state_survives_json_and_gives_the_same_scope(kind: str) -> None:
    first = scope_of(SEED, "http://b.example:81/x/", scope=kind, deny=("no",))
    settings = make_settings(name="t", scope=kind, deny=("no",))
    second = Scope.from_state(settings, json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert second.kind == kind
    for url in (
        "https://docs.example.org/guide/a",
        "https://docs.example.org/no",
        "https://www.example.org/",
        "http://b.example:81/x/y",
        "http://b.example:81/y",
        "http://c.example/",
    ):
        assert admits(second, url) == admits(first, url)


def test_only_the_first_thousand_seeds_are_remembered() -> None:
    seeds = [f"http://h{number}.example/d/" for number in range(SEEDS_KEPT_MAX + 5)]
    scope = scope_of(*seeds, *seeds)
    assert len(scope.state()["hosts"]) == SEEDS_KEPT_MAX
    assert len(scope.state()["prefixes"]) == SEEDS_KEPT_MAX
    assert scope.seeds_cut == 10
    assert admits(scope, seeds[0])
    assert not admits(scope, seeds[-1])
    assert admits(scope, seeds[-1], page=seeds[-1])


def test_seed_that_is_no_url_is_passed_over() -> None:
    scope = scope_of("mailto:a@b.example", "", "http://a.example/")
    assert scope.state()["hosts"] == ["a.example"]
    assert scope.seeds_cut == 0


_URLS = st.sampled_from(
    [
        "https://docs.example.org/guide/a", "https://docs.example.org/no", "http://docs.example.org/guide/no.pdf",
        "https://www.example.org/", "http://b.example:81/x/y", "http://b.example/x/y", "http://c.example/x?page=1",
        "https://docs.example.org/" + "long" * 10,
    ]
)  # fmt: skip


@given(
    st.sampled_from(["host", "domain", "prefix", "any"]),
    st.sampled_from([(), ("no",), (r"\.pdf$", "page")]),
    st.sampled_from([(), ("guide",), ("x", "long")]),
    _URLS,
    _URLS,
)
def test_what_is_not_admitted_is_told_why(
    kind: str, deny: tuple[str, ...], allow: tuple[str, ...], url: str, page: str
) -> None:
    scope = scope_of(SEED, "http://b.example:81/x/", scope=kind, deny=deny, allow=allow)
    host = split_url(page)[0]
    assert (scope.why_not(url, page_host=host) == "") is scope.admits(url, page_host=host)
    # A page of a host that no seed has anything to do with changes nothing.
    nowhere = scope.admits(url, page_host="http://nowhere.test")
    assert (scope.why_not(url, page_host=None) == "") is nowhere


def test_reasons_of_the_scope_name_what_said_no() -> None:
    scope = scope_of(deny=("no",), allow=("guide",))
    assert scope.why_not("https://docs.example.org/guide/", page_host=None) == ""
    for url, words in (
        ("https://docs.example.org/guide/no", "--deny 'no' matches it"),
        ("https://docs.example.org/else", "no --allow pattern matches it"),
        ("https://www.example.org/guide/", "scope host: its host is no seed's"),
    ):
        assert scope.why_not(url, page_host=None).startswith(words)
    assert "lies under no seed" in scope_of(scope="prefix").why_not("https://docs.example.org/", page_host=None)
    assert "example.com is no seed's domain" in scope_of(scope="domain").why_not("https://example.com/", page_host=None)
