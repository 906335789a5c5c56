"""What `streamcrawl worker` does: waits for a crawl, joins it as it is, and works at it until it ends.

It changes nothing of the crawl: no setting, no pause, no stop, and it offers no seeds. Start at `work`.
"""

from __future__ import annotations

import asyncio
import shlex
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.cli.opening import check_program, tell_flow
from streamcrawl.cli.running import Job, Running
from streamcrawl.cli.store import Store, existing_store
from streamcrawl.cli.stored import Stored, read_state, read_stored
from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.ops.status import counted, number, read_status
from streamcrawl.rules.host_headers import HostHeaders
from streamcrawl.rules.proxies import check_proxied, parse_proxies
from streamcrawl.settings import CLASSES, Given, SettingClass, check_name, key_of, make_settings, show_value
from streamcrawl.store.shards import join_crawl
from streamcrawl.store.tuning import read_tuned, settings_of
from streamcrawl.store.upgrade import upgrade_crawl
from streamcrawl.work.loops import Patience, until_answered
from streamcrawl.work.nursery import early_nursery
from streamcrawl.work.program import PAGE, load_program
from streamcrawl.work.supervisor import SinkSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from streamcrawl.settings import Settings
    from streamcrawl.work.program import Program

LOOK_S: Final = 0.5
"""Between two looks for a crawl that is not there yet."""


def work(
    name: str,
    redis_url: str | None,
    *,
    given: Mapping[str, Given],
    place: tuple[str, ...],
    stages: tuple[str, ...] = (),
    crawl_name: str | None = None,
    is_json: bool,
    is_quiet: bool,
    log_format: str,
    log_level: str,
) -> ExitCode:
    """Run the command; return its exit code.

    Args:
        given: Settings from options, environment and file. Those of this machine are used; the crawl has the others.
        place: Options that say where the crawl is kept, for the command that goes on.
        stages: Of a program: those to work for; empty for all.
        crawl_name: Of a program's crawl, where it is not the program's own.

    Raises:
        StreamcrawlError: one line for the person who typed it, with the exit code.
    """
    make = partial(_Worker, given=given, place=place, is_json=is_json, is_quiet=is_quiet)
    make = partial(make, log_format=log_format, log_level=log_level)
    if ":" not in name:
        if stages or crawl_name:
            raise ConfigError("--stage and --name are for programs: streamcrawl worker MODULE:ATTRIBUTE --stage S")
        return _work(make(_local(name, redis_url, given)), redis_url, early_nursery())
    # Before the program is imported: a fork would copy the locks and connections that its modules may hold.
    with early_nursery():
        program = load_program(name)
        only = tuple(PAGE if stage == PAGE else program.stage(stage).name for stage in stages)
        worker = make(_local(crawl_name or program.name, redis_url, given), app=name, program=program, only=only)
        return _work(worker, redis_url, nullcontext())


def _local(name: str, redis_url: str | None, given: Mapping[str, Given]) -> Settings:
    """Return what was given for this machine; a setting that cannot be must not be found out when the crawl comes."""
    check_name(name)
    if redis_url is None:
        raise ConfigError(
            "say where the crawl is: --redis URL; one in ./.streamcrawl has workers of its own: "
            f"streamcrawl crawl --resume --name {name}"
        )
    local = {field: one for field, one in given.items() if CLASSES[field][0] is SettingClass.LOCAL}
    settings = make_settings(name, local)
    HostHeaders(settings.headers, settings.auth)
    parse_proxies(settings.proxies)
    return settings


def _work(worker: _Worker, redis_url: str | None, nursery: AbstractContextManager[None]) -> ExitCode:
    try:
        with nursery:
            return asyncio.run(worker.run(redis_url or ""))
    except asyncio.CancelledError:
        worker.log("streamcrawl: interrupted")
        return ExitCode.STOPPED


class _Worker(Running):
    """One run of the command."""

    def __init__(
        self,
        local: Settings,
        *,
        given: Mapping[str, Given],
        place: tuple[str, ...],
        is_json: bool,
        is_quiet: bool,
        log_format: str,
        log_level: str,
        app: str = "",
        program: Program | None = None,
        only: tuple[str, ...] = (),
    ) -> None:
        super().__init__(is_json=is_json, is_quiet=is_quiet, log_format=log_format, log_level=log_level)
        self._name = local.name
        self._local = local
        """What was given for this machine; the crawl has the rest."""
        self._given = given
        self._place = place
        self._app = app
        self._program = program
        self._only = only
        """Stages of the program that this one works for; empty for all."""

    async def run(self, redis_url: str) -> ExitCode:
        self.listen()
        async with self.watched(self._local), existing_store(redis_url, self._name) as store:
            stored = await self._wait_for_crawl(store)
            check_program(self._name, stored, is_program=self._program is not None)
            await upgrade_crawl(store.client, self._name, log=self.log)
            crawl = await join_crawl(store.client, self._name)
            if self._program is not None:
                await tell_flow(crawl, self._program, list(stored.sinks))
            tuned = await read_tuned(crawl)
            local = {field: one.value for field, one in self._given.items() if CLASSES[field][0] is SettingClass.LOCAL}
            settings = settings_of(crawl, self._name, tuned.given, **local)
            check_proxied(settings)
            compare_given(self._name, self._given, settings, place=self._place, log=self.log)
            status = await read_status(store.client, self._name)
            self.tell(
                f"joining crawl {self._name}: {counted(status.page('done'), 'page')} done, "
                f"{number(status.page('queued'))} queued, {number(status.slots)} slots at work elsewhere"
                + "; it is paused"
                * status.is_paused
            )
            again = shlex.join(self._command())
            place = "".join(f" {shlex.quote(part)}" for part in self._place)
            tune = f"streamcrawl settings set {self._name} {{}}{place}"
            return await self.run_crawl(
                Job(
                    name=self._name,
                    store=store,
                    crawl=crawl,
                    settings=settings,
                    version=tuned.version,
                    scope=stored.scope,
                    # Who works for some stages leaves the files to others.
                    sinks=[SinkSpec(sink, "" if self._only else path) for sink, path in stored.sinks.items()],
                    pages_before=status.page("done"),
                    resume=again,
                    more=f"{tune.format('max-pages=N')}, then {again}",
                    tune=f"{tune}, then streamcrawl resume {self._name}{place}",
                    app=self._app,
                    program=self._program,
                    only=self._only,
                    home=stored.machine,
                    stays_for=("UNFED",),
                )
            )

    def _command(self) -> list[str]:
        """Return the command that does this again."""
        if self._program is None:
            return ["streamcrawl", "worker", self._name, *self._place]
        name = () if self._name == self._program.name else ("--name", self._name)
        stages = [part for stage in self._only for part in ("--stage", stage)]
        return ["streamcrawl", "worker", self._app, *stages, *name, *self._place]

    async def _wait_for_crawl(self, store: Store) -> Stored:
        """Return what the crawl was begun with, once it is there as a whole: who creates it stores that last."""
        patience = Patience("waiting", self.log)
        is_told = False
        while True:
            state = await until_answered(lambda: read_state(store.client, self._name), patience)
            if "epoch" in state and (stored := read_stored(state)) is not None:
                return stored
            if not is_told:
                is_told = True
                self.log(f"waiting for crawl {self._name}: it is not there yet")
            await asyncio.sleep(LOOK_S)


def compare_given(
    name: str, given: Mapping[str, Given], settings: Settings, *, place: Sequence[str], log: Callable[[str], None]
) -> None:
    """Say which settings that were given here do not count, because the crawl has others, and how it gets them.

    Args:
        place: Options that say where the crawl is kept.

    Raises:
        ConfigError: one of them says what the crawl is.
    """
    ignored: list[str] = []
    changes: list[str] = []
    for field, one in given.items():
        kind, reason = CLASSES[field]
        has: Any = getattr(settings, field)
        if kind is SettingClass.LOCAL or one.value == has:
            continue
        asked = f"{key_of(field)} {show_value(field, one.value)} ({one.source})"
        if kind is SettingClass.IDENTITY:
            raise ConfigError(
                f"crawl {name!r} has {key_of(field)} {show_value(field, has)} and not {asked}, which cannot "
                f"change ({reason}): leave it out"
            )
        ignored.append(f"{asked}, it has {show_value(field, has)}")
        changes.append(f"{key_of(field)}={show_value(field, one.value)}")
    if ignored:
        log(
            f"not followed here, because it is the crawl's: {'; '.join(ignored)}; change it for everybody: "
            + shlex.join(["streamcrawl", "settings", "set", name, *changes, *place])
        )
