"""Settings: units, environment, and refusals of one clear line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.settings import (
    IDENTITY,
    Settings,
    check_name,
    compile_pattern,
    from_environment,
    make_settings,
    parse_duration_ms,
    parse_size_bytes,
)


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.__struct_fields__:
        monkeypatch.delenv("STREAMCRAWL_" + field.removesuffix("_ms").removesuffix("_bytes").upper(), raising=False)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0", 0), ("0.5", 500), ("2", 2000), ("500ms", 500), ("2s", 2000), (" 1.5 m ", 90_000), ("1h", 3_600_000),
        ("7d", 604_800_000), ("1w", 604_800_000), ("0.0004", 0),
    ],
)  # fmt: skip
def test_duration_is_in_seconds_or_carries_a_unit(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "fast", "-1", "1y", "1 s s", "1,5", ".5", "1e3", "nan", "5S"])
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


@pytest.mark.parametrize("text", ["", "big", "-1", "1XB", "1MBB", "10 M B", "1e6"])
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
    assert set(IDENTITY) <= set(Settings.__struct_fields__)


def test_settings_cannot_be_changed() -> None:
    settings = make_settings(name="books")
    with pytest.raises(AttributeError):
        settings.shards = 2  # type: ignore[misc]


def test_none_means_not_given() -> None:
    assert make_settings(name="books", depth_max=None, attempts_max=None) == Settings(name="books")


def test_given_values_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMCRAWL_DELAY", "250ms")
    monkeypatch.setenv("STREAMCRAWL_CONCURRENCY", "7")
    settings = make_settings(name="books", concurrency=9)
    assert (settings.delay_ms, settings.concurrency) == (250, 9)


def test_environment_is_read_by_field() -> None:
    found = from_environment(
        {
            "STREAMCRAWL_DELAY": "0.5",
            "STREAMCRAWL_BODY_MAX": "2MB",
            "STREAMCRAWL_ALLOW": r"\.html$ /api/",
            "STREAMCRAWL_OBEY_ROBOTS": "No",
            "STREAMCRAWL_SCOPE": "domain",
            "STREAMCRAWL_PROCESSES": "4",
            "STREAMCRAWL_NAME": "not taken from here",
            "STREAMCRAWL_UNKNOWN": "x",
            "DELAY": "9",
        }
    )
    assert found == {
        "delay_ms": 500,
        "body_max_bytes": 2_000_000,
        "allow": (r"\.html$", "/api/"),
        "obey_robots": False,
        "scope": "domain",
        "processes": "4",
    }
    assert make_settings(name="books", **found).processes == 4


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("yes", True), ("0", False), ("FALSE", False), ("off ", False)]
)
def test_robots_switch_in_the_environment(text: str, expected: bool) -> None:
    assert from_environment({"STREAMCRAWL_OBEY_ROBOTS": text}) == {"obey_robots": expected}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shards": 0}, "shards=0 will not do: the least is 1"),
        ({"shards": 2}, "shards=2 will not do: this version keeps a crawl in one shard; leave it out"),
        ({"concurrency": 99_999}, "concurrency=99999 will not do: the most is 10000"),
        ({"depth_max": -1}, "depth_max=-1 will not do: the least is 0"),
        ({"pages_max": 0}, "pages_max=0 will not do: the least is 1"),
        ({"lease_ms": 10}, "lease_ms=10 will not do: the least is 1000"),
        ({"scope": "planet"}, "scope"),
        ({"concurrency": "many"}, "concurrency"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"allow": ("(",)}, "--allow '(' is not a regular expression"),
        ({"deny": ("ok", "*")}, "--deny '*' is not a regular expression"),
        ({"user_agent": "two\nlines"}, "user_agent must be one line"),
        ({"user_agent": "  "}, "user_agent must be one line that is not empty"),
        ({"name": "no spaces"}, "crawl name 'no spaces' will not do"),
    ],
)
def test_wrong_value_is_refused_in_one_line_that_names_it(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_settings(**{"name": "books", **values})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


def test_wrong_value_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMCRAWL_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="'soon' is not a duration"):
        make_settings(name="books")


@pytest.mark.parametrize("name", ["a", "Books-2.1_x", "0", "x" * 64])
def test_name_can_be_part_of_a_key_and_a_folder(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "a b", "a/b", "a{b}", "ä", "a\n", "x" * 65])
def test_name_that_cannot_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="will not do"):
        check_name(name)


def test_pattern_is_compiled_once_and_searches() -> None:
    assert compile_pattern("allow", "b+").search("abbc")


def test_settings_survive_json() -> None:
    settings = make_settings(name="books", allow=("a", "b"), memory_max_bytes=10**9)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_every_number_has_a_least_value() -> None:
    refused = []
    for field in msgspec.structs.fields(Settings):
        if field.name in ("name", "obey_robots", "scope", "user_agent", "handler", "allow", "deny"):
            continue
        try:
            make_settings(**{"name": "books", field.name: -1})
        except ConfigError:
            refused.append(field.name)
        else:
            pytest.fail(f"{field.name}=-1 was accepted")
    assert len(refused) > 30
