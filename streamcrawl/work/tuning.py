"""The tuning loop: brings settings that were changed live to this supervisor and its children, within a second.

Scripts go by the new values from the call that stored them; workers need to be told. It also keeps the shards of one
mind: whoever changes several may die between two of them, so a shard whose settings, pause or stop differ from the
others' for half a second is brought in line. If it dies, this machine goes by old settings where scripts do not decide.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import ConfigError, CrawlGone
from streamcrawl.settings import key_of, show_value
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.frontier import Mind
from streamcrawl.store.tuning import put_in_force, read_tuned, settings_of
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamcrawl.settings import Settings
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log

PACE_S: Final = 0.9
"""Without news from elsewhere: a change is in force within a second."""
DIFFER_S: Final = 0.5
"""Whoever changes all shards needs a few ms; news from elsewhere may come twice in them, and show the same half."""


class TuningLoop:
    def __init__(
        self,
        crawl: Shards,
        settings: Settings,
        *,
        version: int,
        local: Mapping[str, Any],
        on_settings: Callable[[Settings], None],
        log: Log,
    ) -> None:
        """Prepare the loop.

        Args:
            settings: What this supervisor was started with, of this `version`.
            local: Settings of this machine, which no change touches.
            on_settings: Called with other settings as they come into force.
        """
        self._crawl = crawl
        self._settings = settings
        self._version = version
        self._local = local
        self._on_settings = on_settings
        self._log = log
        self._stop = asyncio.Event()
        self._patience = Patience("tuning", log)
        self._minds: list[Mind] = []
        self._minds_since = 0.0
        """Loop time since when the shards are of these minds."""
        self._heard: list[Mind] = []
        self._wake = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def hear(self, minds: list[Mind]) -> None:
        """Learn from an answer that somebody had anyway; an idle supervisor then need not ask."""
        self._heard = minds
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            self._wake.clear()
            minds, self._heard = self._heard, []
            minds = minds or await until_answered(self._look, self._patience, self._stop)
            # Not only a later one: a store that was restarted may have lost the last change.
            if minds[0].version != self._version:
                await until_answered(self._follow, self._patience, self._stop)
            if minds != self._minds:
                self._minds, self._minds_since = minds, loop.time()
            if len(set(minds)) > 1 and loop.time() - self._minds_since >= DIFFER_S:
                await until_answered(lambda minds=minds: self._align(minds), self._patience, self._stop)  # type: ignore[misc]
            await sleep_or_stop(self._wake, PACE_S)

    async def _look(self) -> list[Mind]:
        async with self._crawl.client.pipeline(transaction=False) as pipe:
            for frontier in self._crawl:
                pipe.hmget(frontier.keys.state, ["version", "paused", "stopped", "epoch"])
            with mapped_errors():
                rows: list[Any] = await pipe.execute()
        if any(epoch != self._crawl.epoch.encode() for *_, epoch in rows):
            # Where nothing is stored any more, the defaults would look like a change.
            raise CrawlGone("this crawl was deleted or begun afresh by someone else; this worker ends")
        return [
            Mind(int(version or 0), (paused or b"").decode(), (why or b"").decode()) for version, paused, why, _ in rows
        ]

    async def _follow(self) -> None:
        tuned = await read_tuned(self._crawl)
        if not tuned.version:
            return  # deleted since; the next look says so
        try:
            settings = settings_of(self._crawl, self._settings.name, tuned.given, **self._local)
        except ConfigError as error:
            # Set by a newer version of streamcrawl, say. What scripts read is in force all the same.
            self._log(Said.error(f"settings of version {tuned.version} cannot be followed here: {error}"))
        else:
            changed = [
                f"{key_of(field)} {show_value(field, getattr(settings, field))}"
                for field in settings.__struct_fields__
                if getattr(settings, field) != getattr(self._settings, field)
            ]
            self._log(
                f"settings of version {tuned.version} are in force: {', '.join(changed) or 'nothing changed here'}"
            )
            self._settings = settings
            self._on_settings(settings)
        self._version = tuned.version

    async def _align(self, minds: list[Mind]) -> None:
        if await self._look() != minds:
            return  # heard before, or the store was away: somebody may have paused or resumed since
        first = minds[0]
        if any(mind.version < first.version for mind in minds):
            tuned = await read_tuned(self._crawl)
            await put_in_force(self._crawl, settings_of(self._crawl, self._settings.name, tuned.given), tuned)
        if any(mind.paused != first.paused for mind in minds):
            await self._crawl.control(paused=first.paused)
        # A shard that was stopped by itself, because its frontier is full, stops all: links of the others come to it.
        stops = {mind.stopped for mind in minds}
        if len(stops) > 1:
            await self._crawl.control(stopped=max(stops))
