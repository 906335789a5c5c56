"""Settings: units, classes, and refusals of one clear line. Where values come from is in test_settings_sources.py."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.settings import (
    CLASSES,
    SLOTS_AUTO,
    Given,
    SettingClass,
    Settings,
    SlotLimits,
    check_name,
    compile_pattern,
    field_of,
    fields_of,
    key_of,
    make_settings,
    option_of,
    parse_duration_ms,
    parse_setting,
    parse_size_bytes,
    read_value,
    show_value,
    variable_of,
)

SOME: dict[str, list[Any]] = {
    "scope": ["domain", "any"],
    "allow": [(), ("a",), (r"\.html$", "/api/")],
    "deny": [("b",)],
    "obey_robots": [True, False],
    "allow_private": [True, False],
    "proxied": [True, False],
    "insecure": [True, False],
    "one_round": [True, False],
    "unchanged_records": [True, False],
    "headers": [(), ("a.test: X: y z", "*: Y: 1")],
    "auth": [(), ("a.test: me:pass word",)],
    "nameservers": [(), ("9.9.9.9", "[::1]:53")],
    "proxies": [(), ("http://10.0.0.1:8080", "socks5h://me:1@[::1]:1080")],
    "ip_exempt": [(), ("192.0.2.0/24", "2001:db8::/32", "cdn")],
    "cookies": ["off", "host", "crawl"],
    "drop_params": [(), ("ref", "utm_*"), ("tracking",)],
    "sort_query": [True, False],
    "politeness_by": ["host", "domain"],
    "sitemaps": [True, False],
    "user_agent": ["books/1.0 (+https://example.org/bot)"],
    "contact": [None, "books@example.org", "https://example.org/bot"],
    "handler": [None, "shop:page"],
    "processes": [None, 1, 7],
    "concurrency": [SLOTS_AUTO, SlotLimits(9, 9), SlotLimits(1, 500)],
    "metrics_host": ["127.0.0.1", "::"],
}
"""Values to try where a number will not do."""
NUMBERS = [1, 60, 999, 1000, 1500, 60_000, 90_000, 86_400_000, 1 << 20, 10_000_000, 1_500_000_000]


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in CLASSES:
        monkeypatch.delenv(variable_of(field), raising=False)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0", 0), ("0.5", 500), ("2", 2000), ("500ms", 500), ("2s", 2000), (" 1.5 m ", 90_000), ("1h", 3_600_000),
        ("7d", 604_800_000), ("1w", 604_800_000), ("0.0004", 0),
    ],
)  # fmt: skip
def test_duration_is_in_seconds_or_carries_a_unit(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "fast", "-1", "1y", "1 s s", "1,5", ".5", "1e3", "nan", "5S", "9" * 400])
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration; write seconds") as caught:
        parse_duration_ms(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("1000", 1000), ("10kB", 10_000), ("10MB", 10_000_000), ("1.5g", 1_500_000_000), ("1T", 10**12),
        ("64MiB", 67_108_864), ("1 KiB", 1024), ("7B", 7),
    ],
)  # fmt: skip
def test_size_is_in_bytes_or_carries_a_unit(text: str, expected: int) -> None:
    assert parse_size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "big", "-1", "1XB", "1MBB", "10 M B", "1e6", "9" * 400 + "TB"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size; write bytes"):
        parse_size_bytes(text)


@given(st.text(max_size=12))
def test_no_text_breaks_the_units(text: str) -> None:
    for parse in (parse_duration_ms, parse_size_bytes):
        try:
            assert parse(text) >= 0
        except ConfigError as error:
            assert "\n" not in str(error)  # noqa: PT017 - both ends are right, and the second is looked at


def test_defaults_are_valid() -> None:
    settings = make_settings(name="books")
    assert settings == Settings(name="books")
    assert settings.identity() == {"shards": 1}


def test_identity_is_what_was_set_in_one_order() -> None:
    # A crawl that was begun before a setting came has to stay the same crawl: what has its default is not said.
    given = make_settings(name="books", shards=3, drop_params=("ref", "a", "ref"), sort_query=True)
    assert given.identity() == {"shards": 3, "drop_params": ["a", "ref"], "sort_query": True}
    assert make_settings(name="books", drop_params=(), sort_query=False).identity() == {"shards": 1}


@pytest.mark.parametrize("name", ["", "a&b", "a=1", "a b", "*a", "a*b", "a**", "#", "?", "a,b"])
def test_what_is_no_name_of_a_parameter_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a parameter; write names as they stand in a URL"):
        make_settings(name="books", drop_params=(name,))


@pytest.mark.parametrize("name", ["a", "*", "utm_*", "a[b]", "tracking", "%C3%BC", "ü"])
def test_names_of_parameters_are_taken(name: str) -> None:
    assert make_settings(name="books", drop_params=(name,)).drop_params == (name,)


def test_settings_cannot_be_changed() -> None:
    settings = make_settings(name="books")
    with pytest.raises(AttributeError):
        settings.shards = 2  # type: ignore[misc]


def test_none_means_not_given() -> None:
    assert make_settings(name="books", depth_max=None, attempts_max=None) == Settings(name="books")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shards": 0}, "shards=0 will not do: the least is 1"),
        ({"shards": 257}, "shards=257 will not do: the most is 256"),
        ({"frontier_max": 1 << 53}, "frontier_max=9007199254740992 will not do: the most is 9007199254740991"),
        ({"concurrency": 99_999}, "concurrency=99999 will not do: the most is 10000"),
        ({"concurrency": SlotLimits(0, 9)}, "concurrency=0-9 will not do: the least is 1"),
        ({"concurrency": SlotLimits(9, 8)}, "concurrency=9-8 will not do: the least comes first, as in 8-128"),
        ({"processes": 0}, "processes=0 will not do: the least is 1"),
        ({"depth_max": -1}, "depth_max=-1 will not do: the least is 0"),
        ({"pages_max": 0}, "pages_max=0 will not do: the least is 1"),
        ({"lease_ms": 10}, "lease_ms=10 will not do: the least is 1000"),
        ({"scope": "planet"}, "scope"),
        ({"concurrency": "many"}, "concurrency: 'many' is not a number of slots"),
        ({"no_such_setting": 1}, "there is no setting 'no_such_setting'; the nearest is"),
        ({"max_pages": 1}, "there is no setting 'max_pages'; the nearest is 'pages_max'"),
        ({"allow": ("(",)}, "allow '(' is not a regular expression"),
        ({"allow": ("a{99999999999999}",)}, "allow 'a{99999999999999}' is not a regular expression"),
        ({"deny": ("ok", "*")}, "deny '*' is not a regular expression"),
        ({"user_agent": "two\nlines"}, "user_agent must be one line"),
        ({"user_agent": "  "}, "user_agent must be one line that is not empty"),
        ({"contact": "two words@a.test"}, "contact 'two words@a.test' is nothing to write to"),
        ({"contact": "me@a.test\r\nX: 1"}, "is nothing to write to; give an e-mail address"),
        ({"contact": "somebody"}, "contact 'somebody' is nothing to write to"),
        ({"name": "no spaces"}, "crawl name 'no spaces' will not do"),
    ],
)
def test_wrong_value_is_refused_in_one_line_that_names_it(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_settings(**{"name": "books", **values})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("field", "value", "source", "message"),
    [
        ("lease_ms", 10, "--lease", "--lease 10ms will not do: the least is 1s"),
        ("lease_ms", 10, "STREAMCRAWL_LEASE", "STREAMCRAWL_LEASE=10ms will not do: the least is 1s"),
        ("lease_ms", 10, "crawl.toml", "crawl.toml: lease=10ms will not do: the least is 1s"),
        ("shards", 500, "settings set", "settings set: shards=500 will not do: the most is 256"),
        ("memory_max_bytes", 1000, "--memory-max", "--memory-max 1kB will not do: the least is 8MB"),
        ("deny", ("*",), "crawl.toml", "crawl.toml: deny '*' is not a regular expression: nothing to repeat"),
        ("allow", ("(",), "--allow", "--allow '(' is not a regular expression: missing )"),
        ("user_agent", " ", "STREAMCRAWL_USER_AGENT", "STREAMCRAWL_USER_AGENT must be one line that is not empty"),
        ("concurrency", "many", "--concurrency", "--concurrency: 'many' is not a number of slots; write 64, the least"),
    ],
)
def test_wrong_value_is_called_as_it_was_written(field: str, value: Any, source: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_settings("books", {field: Given(value, source)})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["a", "Books-2.1_x", "0", "x" * 64])
def test_name_can_be_part_of_a_key_and_a_folder(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "a b", "a/b", "a{b}", "ä", "a\n", "x" * 65])
def test_name_that_cannot_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="will not do"):
        check_name(name)


def test_pattern_is_compiled_once_and_searches() -> None:
    assert compile_pattern("allow", "b+").search("abbc")


@pytest.mark.parametrize(("pattern", "said"), [("(", "missing )"), ("a{9999999999999}", "too large")])
def test_pattern_that_is_none_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"^--deny '.*' is not a regular expression: .*" + re.escape(said)):
        compile_pattern("--deny", pattern)


@pytest.mark.parametrize("text", ["9.9.9.9", "9.9.9.9:5353", "::1", "[::1]", "[2620:fe::fe]:53"])
def test_name_server_is_an_address_with_or_without_a_port(text: str) -> None:
    assert make_settings("books", {"nameservers": (text,)}).nameservers == (text,)


@pytest.mark.parametrize(
    "text", ["dns.test", "9.9.9.9:0", "9.9.9.9:99999", "9.9.9", "[::1", "[9.9.9.9", "::1:", "9.9.9.9:", "", "[]:53"]
)
def test_name_server_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a name server; write"):
        make_settings("books", {"nameservers": (text,)})


def test_settings_survive_json() -> None:
    settings = make_settings(name="books", allow=("a", "b"), memory_max_bytes=10**9)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_every_number_has_a_least_value() -> None:
    refused = []
    for field in msgspec.structs.fields(Settings):
        if field.name in ("name", *SOME):
            continue
        try:
            make_settings("books", {field.name: -1})
        except ConfigError:
            refused.append(field.name)
        else:
            pytest.fail(f"{field.name}=-1 was accepted")
    assert len(refused) > 30


# -- classes and names


def test_every_setting_is_in_one_class_with_a_reason() -> None:
    assert list(CLASSES) == [field for field in Settings.__struct_fields__ if field != "name"]
    assert sorted(field for kind in SettingClass for field in fields_of(kind)) == sorted(CLASSES)
    assert all(reason and reason[0].islower() and not reason.endswith(".") for _, reason in CLASSES.values())


def test_classes_that_others_rely_on() -> None:
    assert fields_of(SettingClass.IDENTITY) == (
        "shards",
        "drop_params",
        "sort_query",
        "politeness_by",
        "rotate_size_bytes",
        "rotate_every_ms",
    )
    assert fields_of(SettingClass.LOCAL) == (
        *("processes", "concurrency", "headers", "auth", "proxies", "nameservers", "grace_ms"),
        *("metrics_port", "metrics_host", "traces"),
    )
    assert {"delay_ms", "deny", "pages_max", "sink_waiting_max"} <= {*fields_of(SettingClass.TUNABLE)}
    assert {"lease_ms", "handler"} <= {*fields_of(SettingClass.RESTING)}


@pytest.mark.parametrize("field", CLASSES)
def test_setting_is_found_by_each_of_its_names(field: str) -> None:
    names = {field, key_of(field), variable_of(field), option_of(field), option_of(field).removeprefix("--")}
    assert {field_of(name) for name in names} == {field}


def test_no_two_settings_share_a_name() -> None:
    names = [{field, key_of(field), option_of(field).removeprefix("--").replace("-", "_")} for field in CLASSES]
    assert sum(map(len, names)) == len(set().union(*names))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("dely", "delay"), ("--max-page", "pages_max"), ("no-robots", "obey_robots"), ("leese_ms", "lease"), ("", "")],
)
def test_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"^there is no setting '{name}'; the nearest is '{nearest}") as caught:
        field_of(name)
    assert str(caught.value).split("'")[-2] in map(key_of, CLASSES)


# -- values as people write them


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("delay_ms", 0, "0s"),
        ("delay_ms", 1, "1ms"),
        ("delay_ms", 1500, "1500ms"),
        ("delay_ms", 1000, "1s"),
        ("delay_ms", 90_000, "90s"),
        ("host_give_up_ms", 3_600_000, "1h"),
        ("robots_ttl_ms", 604_800_000, "7d"),
        ("body_max_bytes", 0, "0B"),
        ("body_max_bytes", 10_000_000, "10MB"),
        ("body_max_bytes", 1 << 26, "64MiB"),
        ("body_max_bytes", 1 << 10, "1KiB"),
        ("body_max_bytes", 1_500_000, "1500kB"),
        ("url_max_bytes", 2083, "2083B"),
        ("memory_max_bytes", 2_000_000_000, "2GB"),
        ("memory_max_bytes", None, "none"),
        ("pages_max", None, "no limit"),
        ("pages_max", 100_000, "100000"),
        ("depth_max", 0, "0"),
        ("handler", None, "none"),
        ("handler", "shop:page", "shop:page"),
        ("obey_robots", True, "yes"),
        ("obey_robots", False, "no"),
        ("allow", (), "none"),
        ("allow", ("a", "b+"), "a b+"),
        ("scope", "prefix", "prefix"),
        ("drop_params", (), "none"),
        ("drop_params", ("ref", "utm_*"), "ref,utm_*"),
        ("query_growth_max_bytes", None, "none"),
        ("calendar_ahead_max", None, "no limit"),
    ],
)
def test_value_is_shown_as_people_write_it(field: str, value: Any, text: str) -> None:
    assert show_value(field, value) == text
    assert read_value(field, text) == value


@pytest.mark.parametrize("field", CLASSES)
def test_what_is_shown_is_read_back(field: str) -> None:
    values = [*SOME.get(field, NUMBERS), getattr(Settings(name="books"), field)]
    assert [read_value(field, show_value(field, value)) for value in values] == values


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("delay", "0.5", ("delay_ms", 500)),
        ("delay", "500ms", ("delay_ms", 500)),
        ("--delay", "2s", ("delay_ms", 2000)),
        ("delay_ms", "500", ("delay_ms", 500)),
        ("delay_ms", "2s", ("delay_ms", 2000)),
        ("STREAMCRAWL_DELAY", "2", ("delay_ms", 2000)),
        ("max-pages", "7", ("pages_max", 7)),
        ("pages_max", "none", ("pages_max", None)),
        ("pages_max", "No limit", ("pages_max", None)),
        ("pages_max", "", ("pages_max", None)),
        ("delay", " ", ("delay_ms", 1000)),
        ("user-agent", "", ("user_agent", Settings(name="x").user_agent)),
        ("user-agent", " me/1 ", ("user_agent", "me/1")),
        ("max-body", "1MiB", ("body_max_bytes", 1 << 20)),
        ("body_max_bytes", "1000", ("body_max_bytes", 1000)),
        ("deny", "a b", ("deny", ("a", "b"))),
        ("deny", "", ("deny", ())),
        ("robots", "off", ("obey_robots", False)),
        ("obey_robots", "YES", ("obey_robots", True)),
        ("scope", "any", ("scope", "any")),
        ("handler", "none", ("handler", None)),
    ],
)
def test_setting_is_read_from_a_name_and_a_text(name: str, text: str, expected: tuple[str, Any]) -> None:
    assert parse_setting(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("dely", "1", "there is no setting 'dely'; the nearest is 'delay'"),
        ("delay", "soon", "delay: 'soon' is not a duration; write seconds"),
        ("delay", "none", "delay: 'none' is not a duration"),
        ("max-body", "big", "body_max: 'big' is not a size; write bytes"),
        ("pages_max", "1e6", "pages_max: '1e6' is not a whole number"),
        ("pages_max", "9" * 5000, "is not a whole number"),
        ("pages_max", "٣", "pages_max: '٣' is not a whole number"),
        ("robots", "maybe", "obey_robots: 'maybe' is neither yes nor no"),
        ("scope", "planet", "scope: 'planet' is not one of host, domain, prefix, any"),
    ],
)
def test_text_that_is_no_value_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_setting(name, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.sampled_from([*CLASSES]), st.text(max_size=20))
def test_any_text_is_a_value_that_can_be_shown_or_refused(field: str, text: str) -> None:
    try:
        _, value = parse_setting(field, text)
        make_settings("books", {field: value})
    except ConfigError as error:
        assert str(error).strip()  # noqa: PT017 - both ends are right, and the second is looked at
    else:
        assert read_value(field, show_value(field, value)) == value
