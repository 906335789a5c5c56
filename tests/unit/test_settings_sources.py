"""Where settings come from: flags over environment over file over defaults, and what each of them refuses."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.settings import (
    CLASSES,
    CONFIG_MAX_BYTES,
    SLOTS_AUTO,
    Given,
    Settings,
    SlotLimits,
    gather,
    key_of,
    make_settings,
    option_of,
    read_config,
    show_value,
    variable_of,
)

DEFAULTS = Settings(name="books")
OTHERS: dict[str, tuple[Any, Any, Any]] = {
    "scope": ("domain", "prefix", "any"),
    "allow": (("a",), ("b", "c"), ("d",)),
    "deny": (("a",), ("b", "c"), ("d",)),
    "obey_robots": (False, True, False),
    "allow_private": (True, False, True),
    "proxied": (True, False, True),
    "insecure": (True, False, False),
    "headers": (("a.test: X: 1",), ("a.test: X: 1 2", "b.test: Y: 3"), ("*: X: 1",)),
    "auth": (("a.test: me:1",), ("a.test: me:1 2", "b.test: me:3"), ("*: me:1",)),
    "nameservers": (("9.9.9.9",), ("10.0.0.1:5353", "::1"), ("[::1]:53",)),
    "proxies": (("http://a.test:1",), ("socks5://b.test:2", "http://a.test:1"), ("socks5h://c.test:3",)),
    "ip_exempt": (("192.0.2.0/24",), ("10.0.0.0/8", "cdn"), ("2001:db8::/32",)),
    "cookies": ("host", "crawl", "off"),
    "drop_params": (("a",), ("ref", "utm_*"), ("tracking",)),
    "sort_query": (False, True, False),
    "politeness_by": ("domain", "host", "domain"),
    "sitemaps": (False, True, False),
    "one_round": (False, True, False),
    "unchanged_records": (False, True, False),
    "user_agent": ("a/1", "b/1", "c/1"),
    "contact": ("a@a.test", "https://b.test/", "c@c.test"),
    "handler": ("a:page", "b:page", "c:page"),
    "processes": (None, 3, 4),
    "concurrency": (SlotLimits(5, 5), SlotLimits(3, 70), SLOTS_AUTO),
    "metrics_host": ("127.0.0.2", "0.0.0.0", "::"),
    "memory_max_bytes": (10_000_000, 20_000_000, 1 << 30),
    "sink_max_bytes": (10_000_000, 20_000_000, 1 << 30),
    "rotate_size_bytes": (10_000, 20_000, 1 << 30),
}
"""Three values of a setting that is no plain number, none of them the default where there are so many."""
SECRET = "hunter2"


def three_values(field: str) -> tuple[Any, Any, Any]:
    """Return a value for the file, the environment and the flag each."""
    return OTHERS.get(field, (1001, 1002, 1003) if field.endswith("_ms") else (101, 102, 103))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "crawl.toml"


def toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("sources", [*itertools.product([True, False], repeat=3)])
@pytest.mark.parametrize("field", CLASSES)
def test_every_setting_is_given_in_each_way_and_the_stronger_wins(
    config: Path, field: str, sources: tuple[bool, bool, bool]
) -> None:
    in_file, in_environment, in_flags = three_values(field)
    config.write_text(f"{key_of(field)} = {toml(show_value(field, in_file))}" if sources[0] else "")
    environment = {variable_of(field): show_value(field, in_environment)} if sources[1] else {}
    flags = {field: in_flags} if sources[2] else {}
    found = gather(flags, config=config, environment=environment)
    if sources[2]:
        off = {
            "obey_robots": "--no-robots",
            "insecure": "--no-insecure",
            "sort_query": "--no-sort-query",
            "sitemaps": "--no-sitemaps",
            "one_round": "--no-one-round",
            "unchanged_records": "--no-unchanged-records",
        }
        name = off.get(field, option_of(field))
        assert found == {field: Given(in_flags, name)}
    elif sources[1]:
        assert found == {field: Given(in_environment, variable_of(field))}
    elif sources[0]:
        assert found == {field: Given(in_file, str(config))}
    else:
        assert found == {}
    expected = found[field].value if found else getattr(DEFAULTS, field)
    assert getattr(make_settings("books", found), field) == expected


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ('delay = "0.5s"', "delay_ms", 500),
        ("delay = 1", "delay_ms", 1000),
        ("delay = 0.25", "delay_ms", 250),
        ('delay = "2"', "delay_ms", 2000),
        ('body_max = "2MB"', "body_max_bytes", 2_000_000),
        ("body_max = 4096", "body_max_bytes", 4096),
        ("body_max = 1.5e9", "body_max_bytes", 1_500_000_000),
        ("pages_max = 100", "pages_max", 100),
        ('pages_max = "100"', "pages_max", 100),
        ('pages_max = "none"', "pages_max", None),
        ('memory_max = "none"', "memory_max_bytes", None),
        ('allow = ["a b", "c"]', "allow", ("a b", "c")),
        ('drop_params = ["b", "a", "b"]', "drop_params", ("a", "b")),
        ('drop_params = "b, a,utm_*"', "drop_params", ("a", "b", "utm_*")),
        ('calendar_back_max = "none"', "calendar_back_max", None),
        ("deny = []", "deny", ()),
        (r"allow = '\.html$ /api/'", "allow", (r"\.html$", "/api/")),
        ("obey_robots = false", "obey_robots", False),
        ('obey_robots = "yes"', "obey_robots", True),
        ("obey_robots = 0", "obey_robots", False),
        ('scope = "prefix"', "scope", "prefix"),
        ('user_agent = "me/1 (+https://example.org)"', "user_agent", "me/1 (+https://example.org)"),
        ('handler = "shop:page"', "handler", "shop:page"),
    ],
)
def test_file_holds_values_as_toml_or_as_people_write_them(config: Path, line: str, field: str, value: Any) -> None:
    config.write_text(f"# a deployment\n{line}\n", encoding="utf-8")
    assert read_config(config).settings == {field: Given(value, str(config))}


def test_file_says_what_is_no_setting_too(config: Path) -> None:
    config.write_text(
        'redis = "redis://127.0.0.1/1"\nname = "shop"\noutput = "shop.jsonl"\nseeds = "seeds.txt"\njson = true\n'
        'quiet = false\ndebug = true\ndelay = "2s"\nhandler = ""\n'
    )
    found = read_config(config)
    assert found.path == str(config)
    assert found.settings == {"delay_ms": Given(2000, str(config))}
    assert found.options == {
        "redis": "redis://127.0.0.1/1", "name": "shop", "output": "shop.jsonl", "seeds": "seeds.txt",
        "json": True, "quiet": False, "debug": True,
    }  # fmt: skip
    assert gather({}, config=found, environment={}) == found.settings


@pytest.mark.parametrize("content", ["", "# nothing\n", 'delay = ""\nredis = ""\n'])
def test_empty_file_gives_nothing(config: Path, content: str) -> None:
    config.write_text(content)
    found = read_config(config)
    assert (found.settings, found.options) == ({}, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dely = 1", "'dely': there is no such setting; the nearest is 'delay'"),
        ("max_pages = 1", "'max_pages': there is no such setting; the nearest is 'pages_max'"),
        ("delay_ms = 1", "'delay_ms': there is no such setting; the nearest is 'delay'"),
        ("no-robots = true", "'no-robots': there is no such setting; the nearest is 'obey_robots'"),
        ("rediss = 'x'", "'rediss': there is no such setting; the nearest is 'redis'"),
        ('"a\\nb" = 1', "'a\\nb': there is no such setting"),
        ("[politeness]\ndelay = 1", "'politeness': there are no tables in a settings file; write its settings at the"),
        ("delay.min = 1", "delay: write a number, or text in quotes"),
        ("delay = 'soon'", "delay: 'soon' is not a duration; write seconds (0.5) or a unit"),
        ("delay = -1", "delay: '-1' is not a duration"),
        ("delay = inf", "delay: 'inf' is not a duration"),
        ("delay = true", "delay: 'True' is not a duration"),
        ("delay = [1]", "delay: write a number, or text in quotes"),
        ("delay = 2020-01-01", "delay: write a number, or text in quotes"),
        ("pages_max = 1.0", "pages_max: '1.0' is not a whole number"),
        ("pages_max = 'many'", "pages_max: 'many' is not a whole number"),
        ("obey_robots = 'maybe'", "obey_robots: 'maybe' is neither yes nor no"),
        ("obey_robots = 2", "obey_robots: '2' is neither yes nor no"),
        ("scope = 'planet'", "scope: 'planet' is not one of host, domain, prefix, any"),
        ("scope = 1", "scope: write text in quotes"),
        ("user_agent = 1", "user_agent: write text in quotes"),
        ("handler = ['a:b']", "handler: write text in quotes"),
        ("allow = 1", 'allow: write a list of texts: ["…", "…"]'),
        ("drop_params = 1", 'drop_params: write a list of texts: ["…", "…"]'),
        ("allow = ['a', 1]", 'allow: write a list of texts: ["…", "…"]'),
        ("name = 1", "name: write text in quotes"),
        ("json = 'yes'", "json: write true or false"),
        ("delay = 1\npages_max = 0.5s\n", "(at line 2, column 16); write a line as delay ="),
        ("delay = 1\ndelay = 2\n", "Cannot overwrite a value (at line 2, column 10)"),
        ("delay", "(at end of document)"),
        ("delay = " + "[" * 20_000, "nested too deeply"),
    ],
)
def test_wrong_file_is_refused_in_one_line_that_names_it(config: Path, content: str, message: str) -> None:
    config.write_text(content)
    with pytest.raises(ConfigError) as caught:
        gather({}, config=config, environment={})
    assert str(caught.value).startswith(f"{config}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


def test_file_that_is_no_text_is_refused_with_the_line(config: Path) -> None:
    config.write_bytes(b"# one\n# \xff\n")
    with pytest.raises(ConfigError, match=r": not UTF-8 text \(at line 2\)$"):
        read_config(config)


def test_file_that_is_not_there_or_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config .*none.toml cannot be read: No such file or directory$"):
        gather({}, config=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory$"):
        gather({}, config=tmp_path)


def test_file_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--config /dev/zero is larger than 1 MB: that is no settings file$"):
        read_config(Path("/dev/zero"))
    assert CONFIG_MAX_BYTES == 1_000_000


@pytest.mark.parametrize(
    "line",
    [
        f"redis = ['redis://:{SECRET}@127.0.0.1']",
        f"redis.password = '{SECRET}'",
        f"redis_url = 'redis://:{SECRET}@127.0.0.1'",
        f"redis = redis://:{SECRET}@127.0.0.1",
        f"redis = 'redis://:{SECRET}@127.0.0.1",
        f"json = '{SECRET}'",
    ],
)
def test_no_message_repeats_a_password(config: Path, line: str) -> None:
    config.write_text(line)
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    assert SECRET not in str(caught.value)


def test_environment_is_read_by_field() -> None:
    found = gather(
        {},
        environment={
            "STREAMCRAWL_DELAY": "0.5",
            "STREAMCRAWL_BODY_MAX": "2MB",
            "STREAMCRAWL_ALLOW": r"\.html$ /api/",
            "STREAMCRAWL_OBEY_ROBOTS": "No",
            "STREAMCRAWL_SCOPE": "domain",
            "STREAMCRAWL_PROCESSES": "4",
            "STREAMCRAWL_PAGES_MAX": "none",
            "STREAMCRAWL_LEASE": " ",
            "STREAMCRAWL_NAME": "not a setting",
            "STREAMCRAWL_UNKNOWN": "x",
            "DELAY": "9",
        },
    )
    assert {field: given.value for field, given in found.items()} == {
        "delay_ms": 500,
        "body_max_bytes": 2_000_000,
        "allow": (r"\.html$", "/api/"),
        "obey_robots": False,
        "scope": "domain",
        "processes": 4,
        "pages_max": None,
    }


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("yes", True), ("ON", True), ("0", False), ("FALSE", False), ("off ", False)]
)
def test_robots_switch_in_the_environment(text: str, expected: bool) -> None:
    environment = {"STREAMCRAWL_OBEY_ROBOTS": text}
    assert gather({}, environment=environment)["obey_robots"].value is expected


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("STREAMCRAWL_TIMEOUT", "soon", "STREAMCRAWL_TIMEOUT: 'soon' is not a duration"),
        ("STREAMCRAWL_PROCESSES", "many", "STREAMCRAWL_PROCESSES: 'many' is not a whole number, or auto"),
        (
            "STREAMCRAWL_CONCURRENCY",
            "8-",
            "STREAMCRAWL_CONCURRENCY: '8-' is not a number of slots; write 64, the least",
        ),
        ("STREAMCRAWL_OBEY_ROBOTS", "flase", "STREAMCRAWL_OBEY_ROBOTS: 'flase' is neither yes nor no"),
    ],
)
def test_wrong_value_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError) as caught:
        make_settings(name="books")
    assert str(caught.value).startswith(message)


def test_flags_keep_the_source_they_come_with() -> None:
    assert gather({"delay_ms": Given(5, "settings set")}, environment={}) == {"delay_ms": Given(5, "settings set")}
    assert gather({"obey_robots": True}, environment={}) == {"obey_robots": Given(True, "--robots")}
    assert gather({"allow": ["a"]}, environment={}) == {"allow": Given(("a",), "--allow")}


def test_flag_that_is_not_given_hides_nothing_and_one_without_limit_does(config: Path) -> None:
    config.write_text("pages_max = 9")
    in_file = {"pages_max": Given(9, str(config))}
    assert gather({"pages_max": None, "allow": ()}, config=config, environment={}) == in_file
    unlimited = gather({"pages_max": Given(None, "--max-pages")}, config=config, environment={})
    assert make_settings("books", unlimited).pages_max is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"dely": 1}, "there is no setting 'dely'; the nearest is 'delay'"),
        ({"name": "x"}, "there is no setting 'name'; the nearest is"),
        ({"delay_ms": "soon"}, "--delay 'soon' will not do: expected `int`, got `str`"),
        ({"delay_ms": Given("soon", "")}, "delay_ms='soon' will not do: expected `int`, got `str`"),
    ],
)
def test_wrong_flag_is_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gather(flags, environment={})
    assert str(caught.value).startswith(message)


def test_environment_is_read_only_when_nothing_was_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in CLASSES:
        monkeypatch.delenv(variable_of(field), raising=False)
    monkeypatch.setenv("STREAMCRAWL_DELAY", "250ms")
    monkeypatch.setenv("STREAMCRAWL_CONCURRENCY", "7")
    settings = make_settings(name="books", concurrency=9)
    assert (settings.delay_ms, settings.concurrency) == (250, SlotLimits(9, 9))
    assert make_settings("books", {}) == DEFAULTS
    assert make_settings("books", {"delay_ms": Given(3, "--delay"), "pages_max": 4}, pages_max=5) == Settings(
        name="books", delay_ms=3, pages_max=5
    )
    assert gather({}).keys() == {"delay_ms", "concurrency"}
    assert os.environ["STREAMCRAWL_DELAY"] == "250ms"
