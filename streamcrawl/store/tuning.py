"""The tunable settings of a crawl as Redis has them: versioned, with where each value comes from, changed live.

The first shard keeps them as JSON beside their version; every shard keeps the version and the few values that scripts
read. A change goes to the first shard, by its version, so that of two changes at once the second sees the first; then
to the others, and whoever finds one of them behind (work/tuning.py) brings it forward. Start at `read_tuned` and
`tune`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from streamcrawl.errors import ConfigError, StoreIncompatible
from streamcrawl.settings import Given, Settings, key_of, make_settings, show_value
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.frontier import script_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamcrawl.store.shards import Shards

_TRIES_MAX: Final = 20
"""Of a change against others that come between; each takes a millisecond."""


class Tuned(NamedTuple):
    """What a crawl's settings are set to, and since which version."""

    version: int
    given: dict[str, Given]
    """Only what somebody set; the rest has its default."""


def encode_given(given: Mapping[str, Given]) -> bytes:
    """Return what is kept of the settings in Redis: `{"delay_ms":[200,"--delay"]}`."""
    return msgspec.json.encode({field: (one.value, one.source) for field, one in sorted(given.items())})


def decode_given(stored: bytes) -> dict[str, Given]:
    """Undo `encode_given`.

    Raises:
        StoreIncompatible: it cannot be read.
    """
    try:
        rows = msgspec.json.decode(stored or b"{}", type=dict[str, tuple[Any, str]])
    except msgspec.DecodeError as error:
        raise StoreIncompatible(f"the settings of this crawl cannot be read ({error})") from error
    return {
        field: Given(tuple(value) if isinstance(value, list) else value, source)
        for field, (value, source) in rows.items()
    }


async def read_tuned(crawl: Shards) -> Tuned:
    """Return the settings in force."""
    version: Any
    stored: Any
    with mapped_errors():
        row: Any = await crawl.client.hmget(crawl.first.keys.state, ["version", "settings"])
    version, stored = row
    return Tuned(int(version or 0), decode_given(stored or b""))


async def versions(crawl: Shards) -> list[int]:
    """Return the version of the settings in each shard, in one round trip."""
    async with crawl.client.pipeline(transaction=False) as pipe:
        for frontier in crawl:
            pipe.hget(frontier.keys.state, "version")
        with mapped_errors():
            found: list[Any] = await pipe.execute()
    return [int(version or 0) for version in found]


async def tune(crawl: Shards, name: str, changes: Mapping[str, Given | None]) -> tuple[Tuned, Settings]:
    """Change settings for everybody; None goes back to the default. Without a difference nothing is written.

    Returns:
        What is in force now, and the settings that result.

    Raises:
        ConfigError: the settings would not do, or others changed them all the time.
        StoreError: as every call of the store; then it may be in force, in some shards or all.
    """
    for _ in range(_TRIES_MAX):
        tuned = await read_tuned(crawl)
        given = {field: one for field, one in (tuned.given | dict(changes)).items() if one is not None}
        settings = settings_of(crawl, name, given)
        if {field: one.value for field, one in given.items()} == {
            field: one.value for field, one in tuned.given.items()
        }:
            return tuned, settings
        now = Tuned(tuned.version + 1, given)
        if await put_in_force(crawl, settings, now):
            return now, settings
    raise ConfigError(f"the settings of crawl {name!r} are being changed by others all the time; try again")


async def put_in_force(crawl: Shards, settings: Settings, tuned: Tuned) -> bool:
    """Write a version to every shard that is behind; False when somebody else wrote this version, or a later one."""
    values = script_values(settings)
    word, _ = await crawl.first.tune(tuned.version, encode_given(tuned.given), values)
    if word == "CONFLICT":
        stored = await read_tuned(crawl)
        # An answer may have been lost: what is stored then is our own.
        if stored != tuned:
            return False
    for frontier in crawl.frontiers[1:]:
        await frontier.tune(tuned.version, b"", values)
    return True


def settings_of(crawl: Shards, name: str, given: Mapping[str, Given], **local: Any) -> Settings:
    """Return the settings of a crawl, with what is `local` to a machine; neither file nor environment is asked."""
    return make_settings(name, {**given, **local, **crawl.identity})


def differences(before: Tuned, after: Tuned) -> str:
    """Return what changed between two versions, for people: `delay 1s -> 200ms`."""
    default = make_settings("any", {})

    def shown(tuned: Tuned, field: str) -> str:
        return show_value(field, tuned.given[field].value if field in tuned.given else getattr(default, field))

    pairs = ((key_of(field), shown(before, field), shown(after, field)) for field in before.given | after.given)
    return ", ".join(f"{key} {old} -> {new}" for key, old, new in pairs if old != new)
