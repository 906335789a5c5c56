"""What `streamcrawl settings show` and `settings set` do: a crawl's settings as Redis has them, with their sources.

A change is one version that comes into force as a whole (store/tuning.py); workers follow it by themselves. What may
change is decided by the classes of settings.py. Start at `set_settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.cli import interrupts
from streamcrawl.cli.options import write
from streamcrawl.cli.resting import refuse_while_at_work
from streamcrawl.cli.store import existing_store
from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.settings import (
    CLASSES,
    Given,
    SettingClass,
    field_of,
    fields_of,
    key_of,
    option_of,
    parse_setting,
    show_value,
)
from streamcrawl.store.shards import join_crawl
from streamcrawl.store.tuning import read_tuned, settings_of, tune

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.settings import Settings
    from streamcrawl.store.tuning import Tuned

SOURCE: Final = "settings set"
_DEFAULT: Final = "default"


def show_settings(name: str, redis_url: str | None, *, is_json: bool) -> ExitCode:
    """Print every setting of a crawl."""

    async def read() -> tuple[Tuned, Settings]:
        async with existing_store(redis_url, name) as store:
            crawl = await join_crawl(store.client, name)
            tuned = await read_tuned(crawl)
            return tuned, settings_of(crawl, name, tuned.given)

    tuned, settings = interrupts.run(read())
    fields = [field for field, (kind, _) in CLASSES.items() if kind is not SettingClass.LOCAL]
    if is_json:
        rows = {key_of(field): _as_json(field, tuned, settings) for field in fields}
        document = {"crawl": name, "version": tuned.version, "settings": rows}
        document["local"] = [key_of(field) for field in fields_of(SettingClass.LOCAL)]
        write(msgspec.json.encode(document).decode())
        return ExitCode.DONE
    cells = [(key_of(field), show_value(field, getattr(settings, field)), _source(field, tuned)) for field in fields]
    widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
    write(f"crawl {name}: settings, version {tuned.version}")
    for key, value, source in cells:
        # A regular expression may be longer than any column; it must not push all the others aside.
        write(f"  {key:<{widths[0]}}  {value:<{min(widths[1], 32)}}  {source}")
    local = ", ".join(f"{key_of(field)} ({option_of(field)})" for field in fields_of(SettingClass.LOCAL))
    write(f"of each machine and not of the crawl: {local}")
    return ExitCode.DONE


def _source(field: str, tuned: Tuned) -> str:
    kind = CLASSES[field][0]
    if kind is SettingClass.IDENTITY:
        return "fixed when the crawl was created"
    source = tuned.given[field].source if field in tuned.given else _DEFAULT
    return f"{source}; changes only while no worker is alive" if kind is SettingClass.RESTING else source


def _as_json(field: str, tuned: Tuned, settings: Settings) -> dict[str, Any]:
    kind, source = CLASSES[field][0], tuned.given[field].source if field in tuned.given else _DEFAULT
    value = getattr(settings, field)
    row = {"field": field, "value": value, "text": show_value(field, value), "class": kind.value}
    return row if kind is SettingClass.IDENTITY else {**row, "source": source}


def set_settings(name: str, redis_url: str | None, texts: Sequence[str], *, is_json: bool) -> ExitCode:
    """Change settings of a crawl, all of them or none.

    Raises:
        ConfigError: a setting that is unknown, or cannot be changed, or not now; or a value that will not do.
    """
    changes = parse_changes(texts)

    async def change() -> tuple[Tuned, Settings, Tuned, Settings]:
        async with existing_store(redis_url, name) as store:
            crawl = await join_crawl(store.client, name)
            before = await read_tuned(crawl)
            old = settings_of(crawl, name, before.given)
            await refuse_while_at_work(crawl, name, before, changes, key_of)
            return before, old, *await tune(crawl, name, changes)

    before, old, now, settings = interrupts.run(change())
    fields = [field for field in changes if getattr(old, field) != getattr(settings, field)]
    if is_json:
        rows = {key_of(field): [getattr(old, field), getattr(settings, field)] for field in fields}
        write(msgspec.json.encode({"crawl": name, "version": now.version, "changed": rows}).decode())
        return ExitCode.DONE
    for field in changes:
        old_text, new_text = (show_value(field, getattr(one, field)) for one in (old, settings))
        was = f"{old_text} ({_DEFAULT})" if field not in before.given and field in fields else old_text
        is_default = changes[field] is None and field in fields
        write(f"{key_of(field)}: {was} -> {new_text}{f' ({_DEFAULT})' * is_default}" if field in fields
              else f"{key_of(field)}: {new_text}, as before")  # fmt: skip
    force = "in force everywhere within a second" if now.version != before.version else "nothing changed"
    write(f"crawl {name}: settings version {now.version}, {force}")
    return ExitCode.DONE


def parse_changes(texts: Sequence[str]) -> dict[str, Given | None]:
    """Return what `KEY=VALUE …` asks for, by field; None for back to the default.

    Raises:
        ConfigError: one that is no KEY=VALUE, is said twice, or is no setting that a crawl may change.
    """
    changes: dict[str, Given | None] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{text!r} is not KEY=VALUE; {key}= alone goes back to the default")
        field = field_of(key)
        kind, reason = CLASSES[field]
        if kind is SettingClass.IDENTITY:
            raise ConfigError(
                f"{key_of(field)} is fixed when the crawl is created ({reason}): begin another crawl with another value"
            )
        if kind is SettingClass.LOCAL:
            raise ConfigError(
                f"{key_of(field)} is not the crawl's but of each machine ({reason}): give {option_of(field)} to the "
                "command that runs workers there"
            )
        if field in changes:
            raise ConfigError(f"{key_of(field)} is given twice")
        changes[field] = Given(parse_setting(key, value)[1], SOURCE) if value.strip() else None
    return changes
