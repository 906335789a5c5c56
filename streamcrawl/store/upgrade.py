"""Brings a crawl that an older version of streamcrawl began to the schema of this one, while its workers run.

Schema 1 (version 0.1) kept what a crawl was given only for `--resume`, beside its seeds; it had no versions of
settings, one shard, and its feeders among the fields of the state. Hosts, queues, tasks, streams, fingerprints and
counts are the same, so the upgrade is one call (lua/upgrade.lua) whatever the size of the crawl. Seeds that were
offered before are not counted as seeds, because schema 1 did not: whoever offers more waits for new ones only.

Start at `upgrade_crawl`. It changes nothing of a crawl of this schema, and refuses one of a newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import ConfigError, CrawlGone, StoreIncompatible
from streamcrawl.settings import CLASSES, SCHEMA, Given, SettingClass, make_settings
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.frontier import SCRIPT_SETTINGS, other_schema, script_values
from streamcrawl.store.keys import CRAWLS, Keys
from streamcrawl.store.scripts import Scripts
from streamcrawl.store.tuning import encode_given

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from redis.asyncio import Redis

BEGUN: Final = "when it was begun"
"""Source of the settings that an older version kept without one."""
_NOT_IN_1: Final = frozenset({"seeds_max", "delay_factor", "delay_max_ms", "demotion_max", "revisit_ms", "one_round"})
"""Fields of the state that scripts of schema 1 did not read."""
_TRIES_MAX: Final = 20
"""Against commands of the older version that start meanwhile; each writes twice."""


async def upgrade_crawl(
    client: Redis, name: str, *, is_alone: bool = False, log: Callable[[str], None] | None = None
) -> bool:
    """Bring a crawl to this version's schema, in one step; returns whether that was needed. No crawl needs nothing.

    Args:
        is_alone: Nobody else can be at work at it (an embedded server whose folder is locked).
        log: Told in one line when it was upgraded.

    Raises:
        StoreIncompatible: it is of a newer schema, or cannot be read.
        ConfigError: a command of the older version is offering seeds to it.
        StoreError: as every call of the store; then it is upgraded or it is not, nothing in between.
    """
    keys = Keys(name)
    for _ in range(_TRIES_MAX):
        with mapped_errors():
            row: Any = await client.hmget(keys.state, ["epoch", "schema"])
        epoch, schema = row
        if epoch is None or schema == str(SCHEMA).encode():
            return False
        if schema != b"1":
            raise other_schema(name, schema)
        # First: listed and not upgraded it loses nothing, upgraded and not listed nobody would find it.
        with mapped_errors():
            await client.sadd(CRAWLS, name)
        try:
            if await _upgrade(client, name, epoch.decode(), is_alone=is_alone):
                if log is not None:
                    log(
                        f"crawl {name}: upgraded from schema 1 to {SCHEMA}; workers of the older version may run on, "
                        "its commands are refused from now on"
                    )
                return True
        except CrawlGone:
            continue  # deleted, or begun afresh, since it was looked at
    raise ConfigError(f"crawl {name!r} is being changed by an older version all the time; try again")


async def _upgrade(client: Redis, name: str, epoch: str, *, is_alone: bool) -> bool:
    """Make the step; False when the crawl has changed meanwhile."""
    keys = Keys(name)
    with mapped_errors():
        raw: Any = await client.hgetall(keys.state)
    state = {field.decode(): value.decode("utf-8", "replace") for field, value in raw.items()}
    crawl, given = _read_schema_1(name, state)
    try:
        settings = make_settings(name, given)
    except ConfigError as error:
        raise StoreIncompatible(
            f"crawl {name!r} was begun by an older version with what this one refuses ({error}): end it with "
            "that version"
        ) from error
    values = [*script_values(settings), "version", "1", "settings", encode_given(given).decode()]
    values += ["crawl", crawl, "identity", msgspec.json.encode(settings.identity()).decode()]
    read = [part for field in ("crawl", *_IN_FORCE) for part in (field, state.get(field, ""))]
    pack = msgspec.msgpack.encode
    lease_ms = 0 if is_alone else settings.lease_ms
    word, *rest = await Scripts(client, keys.state).run("upgrade", epoch, pack(read), pack(values), lease_ms)
    if word == b"FEEDING":
        raise ConfigError(
            f"crawl {name!r} was begun by an older version, and a command of that is offering seeds to it "
            f"(feeder {rest[0].decode()}): let it offer them all, or stop it, then try again"
        )
    return bool(word == b"UPGRADED")


_IN_FORCE: Final = {field: setting for field, setting in SCRIPT_SETTINGS if field not in _NOT_IN_1}


def _read_schema_1(name: str, state: Mapping[str, str]) -> tuple[str, dict[str, Given]]:
    """Return what the state's field `crawl` is to say ('' for a crawl without), and what the settings were set to."""
    given: dict[str, Any] = {}
    crawl = ""
    if "crawl" in state:
        try:
            stored = msgspec.json.decode(state["crawl"], type=dict[str, Any])
            given = dict(stored.pop("settings", {}))
            given["scope"] = stored["scope"].pop("kind", "host")
        except (msgspec.DecodeError, KeyError, AttributeError, TypeError, ValueError) as error:
            raise StoreIncompatible(
                f"what crawl {name!r} was begun with cannot be read ({error}): end it with the version that began it"
            ) from error
        crawl = msgspec.json.encode(stored).decode()
    # What scripts go by is in force, whatever else was kept: a command that was killed while it started kept less.
    for field, setting in _IN_FORCE.items():
        text = state.get(field, "")
        if text:
            given[setting] = text == "1" if setting == "obey_robots" else int(text)
        else:
            given.pop(setting, None)
    default = make_settings("any", {})
    kept = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in given.items()
        if field in CLASSES and CLASSES[field][0] in (SettingClass.TUNABLE, SettingClass.RESTING)
    }
    return crawl, {field: Given(value, BEGUN) for field, value in kept.items() if value != getattr(default, field)}
