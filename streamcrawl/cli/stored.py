"""What a crawl was begun with, as the command that began it stored it: read by whoever goes on with it.

Apart from running.py, so that a command that only says how to go on does not import what runs workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from streamcrawl.errors import ConfigError
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio import Redis


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What a crawl was begun with, beside its settings: enough to go on without being told again."""

    scope: dict[str, Any]
    sinks: dict[str, str]
    """Name in Redis -> absolute path, or URL of a database without its password."""
    seeds: list[str] = []
    seeds_file: str | None = None
    app: str = ""
    """The program whose crawl it is, as it was named; '' for a plain crawl."""
    machine: str = ""
    """Where it was created, and an output is begun that nobody has written to yet."""


async def read_state(client: Redis, name: str) -> dict[str, str]:
    """Return the state of a crawl's first shard; empty when there is no crawl."""
    with mapped_errors():
        state: Any = await client.hgetall(Keys(name).state)
    return {field.decode(): value.decode("utf-8", "replace") for field, value in state.items()}


def read_stored(state: Mapping[str, str]) -> Stored | None:
    """Return what the command stored; None for no crawl, or one that a program began."""
    if "crawl" not in state:
        return None
    try:
        return msgspec.json.decode(state["crawl"], type=Stored)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"what this crawl was begun with cannot be read ({error}); begin again with --fresh"
        ) from error
