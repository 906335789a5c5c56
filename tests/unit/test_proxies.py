"""Which proxies a list names, and which of them a host is asked by."""

from __future__ import annotations

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.rules.proxies import PROXIES_MAX, TRIED_MAX, Proxies, Proxy, parse_proxies, without_password


def test_proxies_are_read_from_urls() -> None:
    texts = [
        "http://10.0.0.1:8080",
        " SOCKS5://me:p%40ss@Proxy.example.org:1080/ ",
        "socks5h://me@[fd00::1]:1",
        "http://10.0.0.1:8080",  # twice is once
    ]
    assert set(parse_proxies(texts).order("example.org")) == {
        Proxy("http", "10.0.0.1", 8080),
        Proxy("socks5", "proxy.example.org", 1080, "me", "p@ss"),
        Proxy("socks5h", "fd00::1", 1, "me"),
    }
    assert not parse_proxies([])


@pytest.mark.parametrize(
    "text",
    [
        *("", "10.0.0.1:8080", "http://10.0.0.1", "http://:80", "ftp://hunter2@a:1", "https://u:hunter2@a:1"),
        *("http://u:hunter2@a:0", "http://u:hunter2@a:65536", "http://u:hunter2@a:1/path", "http://u:hunter2@a b:1"),
        *("http://u:hunter2%0d%0aX:%20y@a:1", "http://u:hunter2%C3%A9@a:1", f"http://u:{'hunter2' * 40}@a:1"),
    ],
)
def test_what_is_no_proxy_is_refused_by_its_place_and_never_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="proxy 2") as caught:
        parse_proxies(["http://a:1", text])
    assert "hunter2" not in str(caught.value)


def test_list_of_proxies_is_bounded() -> None:
    with pytest.raises(ConfigError, match="at most 1000"):
        parse_proxies([f"http://a:{port}" for port in range(1, PROXIES_MAX + 2)])
    assert len(parse_proxies([f"http://a:{port}" for port in range(1, PROXIES_MAX + 1)]).order("b")) == TRIED_MAX


def test_password_is_in_no_repr_and_not_in_what_is_shown() -> None:
    [proxy] = parse_proxies(["http://me:hunter2@a:1"]).order("b")
    assert "hunter2" not in repr(proxy) + proxy.shown
    assert proxy.shown == "http://a:1"
    assert without_password("http://me:hun@ter2@a:1") == "http://***@a:1"
    assert without_password("me:hunter2@a:1") == "***@a:1"
    assert without_password("http://a:1") == "http://a:1"


def test_host_keeps_its_proxy_when_others_come_and_go() -> None:
    proxies = [Proxy("http", "gate", 1, f"session-{n}") for n in range(5)]
    hosts = [f"host{n}.test" for n in range(500)]
    before = {host: Proxies(proxies).order(host)[0] for host in hosts}
    assert {host: Proxies(reversed(proxies)).order(host)[0] for host in hosts} == before
    counts = [list(before.values()).count(proxy) for proxy in proxies]
    assert min(counts) > 60, counts
    less = {host: Proxies(proxies[1:]).order(host)[0] for host in hosts}
    assert all(less[host] == before[host] for host in hosts if before[host] != proxies[0])
    # Whoever loses its proxy goes where its order said.
    assert all(less[host] == Proxies(proxies).order(host)[1] for host in hosts if before[host] == proxies[0])
