"""`settings set KEY=VALUE`: what is understood, and what is refused with which reason."""

from __future__ import annotations

import pytest

from streamcrawl.cli.settings_run import parse_changes
from streamcrawl.errors import ConfigError
from streamcrawl.settings import Given


def test_names_and_values_as_people_write_them() -> None:
    assert parse_changes(["delay=2s", "--max-pages=500", "deny=/a b=c", "robots=no", "timeout="]) == {
        "delay_ms": Given(2000, "settings set"),
        "pages_max": Given(500, "settings set"),
        "deny": Given(("/a", "b=c"), "settings set"),
        "obey_robots": Given(False, "settings set"),
        "timeout_ms": None,
    }


def test_no_limit_is_a_value_and_not_the_default_of_some_day() -> None:
    assert parse_changes(["pages_max=none"]) == {"pages_max": Given(None, "settings set")}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("shards=4", "shards is fixed when the crawl is created ("),
        ("concurrency=4", "concurrency is not the crawl's but of each machine ("),
        ("dleay=4", "there is no setting 'dleay'; the nearest is 'delay'"),
        ("delay", "'delay' is not KEY=VALUE; delay= alone goes back to the default"),
        ("delay=fast", "delay: 'fast' is not a duration"),
        ("delay_ms=7", "delay is given twice"),
    ],
)
def test_what_is_no_change_is_refused_with_the_reason(change: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_changes(["timeout=1s", "delay=1s", change] if "twice" in why else ["timeout=1s", change])
    assert str(refused.value).startswith(why)
