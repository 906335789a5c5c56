"""Settings that change only while no worker is alive: says no to whoever would change one earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamcrawl.errors import ConfigError
from streamcrawl.ops.status import counted, read_status
from streamcrawl.settings import CLASSES, SettingClass, fields_of, make_settings, show_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from streamcrawl.settings import Given
    from streamcrawl.store.shards import Shards
    from streamcrawl.store.tuning import Tuned


async def refuse_while_at_work(
    crawl: Shards, name: str, before: Tuned, changes: Mapping[str, Given | None], said: Callable[[str], str]
) -> None:
    """Return when no worker is alive, or none of the settings would have another value than it has.

    Args:
        changes: By field; None for back to the default.
        said: Where the change of a field was asked for, in the words of who asked.

    Raises:
        ConfigError: a worker is alive that goes by the value of before.
    """
    default = make_settings(name, {})

    def value(field: str, given: Given | None) -> Any:
        return getattr(default, field) if given is None else given.value

    for field in fields_of(SettingClass.RESTING):
        if field not in changes:
            continue
        asked, now = value(field, changes[field]), value(field, before.given.get(field))
        if asked == now:
            continue
        status = await read_status(crawl.client, name)
        alive = sum(map(status.lives, status.workers))
        if alive:
            raise ConfigError(
                f"{said(field)} {show_value(field, asked)}: crawl {name!r} is at work with {show_value(field, now)}, "
                f"and {CLASSES[field][1]}; stop {counted(alive, 'worker')} first, or leave it out"
            )
