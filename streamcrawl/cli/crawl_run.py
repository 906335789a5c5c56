"""What `streamcrawl crawl` does: opens or resumes a crawl, runs its workers, and says how it ended.

The life of one run: check what was typed, open the store, create or join the crawl, feed the seeds and run the
supervisor side by side, show progress, sum up. It may die at any line: what it was told is in Redis (the state's field
`crawl`) before the first seed is, and the next run puts back what this one had in hand. Start at `crawl`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from streamcrawl.cli import contact
from streamcrawl.cli.opening import (
    SEEDS_FOR_SCOPE_MAX,
    check_databases,
    check_keep_bodies,
    check_memory,
    check_outputs,
    check_program,
    merged_scope,
    new_sinks,
    seeds_state,
    settings_of_new_crawl,
    tell_flow,
)
from streamcrawl.cli.options import given_settings, place_of
from streamcrawl.cli.resting import refuse_while_at_work
from streamcrawl.cli.running import Job, Running
from streamcrawl.cli.store import FOLDER, Store, crawl_store, embedded_names
from streamcrawl.cli.stored import Stored, read_state, read_stored
from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.ops.status import counted, number, read_status
from streamcrawl.rules.host_headers import HostHeaders
from streamcrawl.rules.proxies import check_proxied, parse_proxies
from streamcrawl.rules.revisit import check_rounds
from streamcrawl.rules.urls import hostname_of, split_url, without_credentials
from streamcrawl.settings import CLASSES, Given, SettingClass, Settings, make_settings
from streamcrawl.sinks.targets import DEFAULT_ENDING, delete_files, read_target
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.frontier import FETCH_STREAM, sink_stream, stage_stream
from streamcrawl.store.shards import Shards, delete_crawl, identity_in, open_crawl
from streamcrawl.store.tuning import differences, encode_given, read_tuned, settings_of, tune
from streamcrawl.work.nursery import early_nursery
from streamcrawl.work.program import load_program
from streamcrawl.work.seeds import (
    COMPLAINTS_MAX,
    STDIN,
    SeedLine,
    SeedLines,
    SeedLoop,
    canonical_seed,
    complaint,
    feeder_name,
    seed_url,
    sitemap_seed,
)
from streamcrawl.work.supervisor import SinkSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import click
    from redis.asyncio import Redis

    from streamcrawl.work.program import Program


_SEEDS_STORED_MAX: Final = 1000
"""URL arguments kept for --resume: more than fit on a command line come by --seeds."""
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_PROGRAM: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class CrawlOptions(msgspec.Struct, frozen=True):
    """What was typed."""

    urls: tuple[str, ...] = ()
    """Seeds, sitemaps among them in the form of a line of a file (`sitemap_seed`)."""
    app: str = ""
    """`module:attribute` of a program; '' for a plain crawl."""
    seeds: str | None = None
    outputs: tuple[str, ...] = ()
    name: str | None = None
    redis_url: str | None = None
    is_fresh: bool = False
    is_resume: bool = False
    is_json: bool = False
    is_quiet: bool = False
    log_format: str = "console"
    log_level: str = "info"
    settings: dict[str, Given] = msgspec.field(default_factory=dict)
    """What was given by option, environment or file."""
    place: tuple[str, ...] = ()
    """The options that say where the crawl is kept, as they must be typed to resume it; passwords are left out."""

    @classmethod
    def from_click(cls, context: click.Context) -> CrawlOptions:
        options = context.params
        own: dict[str, Any] = {
            name: options[name] for name in ("seeds", "outputs", "name", "redis_url", "is_json", "is_quiet")
        }
        own |= {name: options[name] for name in ("log_format", "log_level")}
        return cls(
            **own,
            urls=(*options.get("urls", ()), *map(sitemap_seed, options["given_sitemaps"])),
            app=options.get("app", ""),
            is_fresh=options["fresh"],
            is_resume=options["resume"],
            settings=given_settings(context),
            place=place_of(context),
        )


def crawl(options: CrawlOptions) -> ExitCode:
    """Run the command; return its exit code.

    Raises:
        StreamcrawlError: one line for the person who typed it, with the exit code.
    """
    if not options.app:
        return _crawl(options, None, early_nursery())
    # Before the program is imported: a fork would copy the locks and connections that its modules may hold.
    with early_nursery():
        program = load_program(options.app)
        return _crawl(_of_program(options, program), program, nullcontext())


def _crawl(options: CrawlOptions, program: Program | None, nursery: AbstractContextManager[None]) -> ExitCode:
    _check(options)
    check_keep_bodies(options.settings, program)
    run = _Crawl(options, program)
    try:
        with nursery:
            return asyncio.run(run.run())
    except asyncio.CancelledError:
        run.log("streamcrawl: interrupted")
        return ExitCode.STOPPED


def _of_program(options: CrawlOptions, program: Program) -> CrawlOptions:
    """Return what was typed, completed by what the program says."""
    settings = program.settings | options.settings
    if settings.get("handler", Given(None, "")).value is not None:
        raise ConfigError(f"{settings['handler'].source} names a handler, and a program has its own: leave it out")
    return replace(
        options,
        # What is given here instead, so that a program can be tried on other seeds.
        urls=options.urls if options.urls or options.seeds or options.is_resume else program.seeds,
        name=options.name if options.name is not None else program.name,
        settings=settings,
    )


def _check(options: CrawlOptions) -> None:
    """Raise ConfigError for what is wrong already without a store."""
    if options.is_fresh and options.is_resume:
        raise ConfigError("--fresh deletes the crawl and --resume goes on with it: give one of the two")
    for url in options.urls:
        read, is_completed = seed_url(url)
        if read is None:
            run = f"; a program is run by: streamcrawl run {url}" if _PROGRAM.fullmatch(url) else ""
            raise ConfigError(f"{without_credentials(url)!r} is not an http(s) URL{run}")
        # shop.py and urls.txt could be names of hosts, and would be asked for until they are given up.
        if is_completed and os.path.isfile(url):
            raise ConfigError(
                f"{url!r} is a file here: give its URLs with --seeds {url}, run a program with streamcrawl run "
                f"MODULE:ATTRIBUTE, or write {read} for the site of that name"
            )
    if options.seeds is not None and options.seeds != STDIN:
        try:
            with open(options.seeds, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"--seeds {options.seeds} cannot be read: {error.strerror}") from error
    if not (options.urls or options.seeds or options.is_resume):
        raise ConfigError(
            f"program {options.app!r} has no seeds: Crawl(…, seeds=[…]), or give URLs or --seeds FILE; "
            "--resume goes on with a crawl that had some"
            if options.app
            else "say what to crawl: streamcrawl crawl https://example.org/ (or --seeds FILE, --sitemap URL, or "
            "--resume to go on)"
        )
    check_outputs(options.outputs)


class _Crawl(Running):
    """One run of the command."""

    def __init__(self, options: CrawlOptions, program: Program | None = None) -> None:
        super().__init__(
            is_quiet=options.is_quiet,
            is_json=options.is_json,
            log_format=options.log_format,
            log_level=options.log_level,
        )
        self._options = options
        self._program = program
        self._name = ""

    async def run(self) -> ExitCode:
        """Run the command; cancelled by a signal that comes before anything runs, or by a third one."""
        options = self._options
        self.listen()
        lines = SeedLines(options.urls, options.seeds)
        head = await lines.peek(SEEDS_FOR_SCOPE_MAX)
        if options.seeds is not None and len(head) < SEEDS_FOR_SCOPE_MAX:
            self._refuse_useless(head)
        self._name = options.name if options.name is not None else self._default_name(head)
        # Before anything is started: a setting that cannot be must not cost the start of a server.
        settings = make_settings(self._name, options.settings)
        HostHeaders(settings.headers, settings.auth)
        parse_proxies(settings.proxies)
        if options.redis_url is None and self._name not in embedded_names():
            # Known without a server: what is refused below must not leave an empty crawl behind.
            if options.is_resume:
                raise self._nothing_to_resume()
            check_rounds(settings)
            if not options.is_fresh:
                await check_databases(self._sinks(None, settings, is_new=True))
        async with (
            self.watched(settings),
            crawl_store(
                options.redis_url,
                self._name,
                memory_max_bytes=settings.memory_max_bytes,
                is_fresh=options.is_fresh,
                log=self.tell,
            ) as store,
        ):
            return await self._run_in(store, head, lines, settings)

    async def _run_in(self, store: Store, head: list[SeedLine], lines: SeedLines, given: Settings) -> ExitCode:
        options, client = self._options, store.client
        state = await read_state(client, self._name)
        stored = read_stored(state)
        if options.is_fresh:
            await self._delete(client, state, stored, given)
            state, stored = {}, None
        is_new = "epoch" not in state
        if options.is_resume:
            if is_new:
                raise self._nothing_to_resume()
            if stored is None:
                # Killed between its opening and the storing of its seeds: without them it would end as complete.
                raise ConfigError(f"crawl {self._name!r} has no seeds yet: give them again, without --resume")
        if stored is not None:
            check_program(self._name, stored, is_program=self._program is not None)
        sinks = self._sinks(stored, given, is_new=is_new)
        if is_new:
            await check_databases(sinks)
        crawl, settings, version = await self._open(store, state, sinks)
        if self._program is not None:
            await tell_flow(crawl, self._program, [sink.name for sink in sinks])
        if not head and stored is not None and state.get("closed") != "1":
            lines = self._stored_seeds(stored)
            head = await lines.peek(SEEDS_FOR_SCOPE_MAX)
        scope = merged_scope(settings, head, stored)
        if scope.seeds_cut:
            self.tell(
                f"scope: {number(scope.seeds_cut)} seeds are beyond the hosts that a crawl remembers; see --scope"
            )
        pages_before = 0
        if is_new:
            places = [sink.path for sink in sinks]
            if self._program is not None:
                places += [stage.name for stage in self._program.stages if stage.is_sink]
            self.tell(f"crawling into {', '.join(places)}")
        else:
            pages_before = await self._join(store, crawl, sinks, settings)
        now_stored = self._as_stored(await seeds_state(scope, settings, stored), sinks, stored)
        if is_new and contact.is_missing(settings, now_stored.scope):
            settings, version = await self._with_contact(crawl, settings, version)
        feeder = feeder_name(now_stored.seeds, now_stored.seeds_file)
        seeds = SeedLoop(crawl, lines, settings, self.log, feeder=feeder)
        # From here on seeds may come, whoever closed the crawl before; the last that offers some closes it again.
        await seeds.begin(is_alone=store.embedded is not None)
        await crawl.first.control(crawl=msgspec.json.encode(now_stored).decode())

        def again() -> SeedLoop | None:
            repeated = lines.again()
            # Quietly: what is wrong with the lines was said the first time.
            return SeedLoop(crawl, repeated, settings, lambda _: None, feeder=feeder) if repeated is not None else None

        return await self.run_crawl(
            Job(
                name=self._name,
                store=store,
                crawl=crawl,
                settings=settings,
                version=version,
                scope=now_stored.scope,
                sinks=sinks,
                pages_before=pages_before,
                resume=self._resume_command(),
                more=f"{self._resume_command()} --max-pages N",
                app=options.app,
                program=self._program,
                feeding=(self._feed(seeds, again),),
            )
        )

    async def _open(
        self, store: Store, state: Mapping[str, str], sinks: Sequence[SinkSpec]
    ) -> tuple[Shards, Settings, int]:
        """Create the crawl, or join it and change what was given otherwise than it is set; for all of its workers."""
        given, client, name = self._options.settings, store.client, self._name
        names = [sink.name for sink in sinks]
        if "epoch" not in state:
            own = settings_of_new_crawl(given)
            settings = make_settings(name, {**given, **own})
            check_memory(store, settings)
            check_rounds(settings)
            crawl, _ = await open_crawl(client, settings, sinks=names, given=encode_given(own))
            return crawl, settings, 1
        asked = {**identity_in(state.get("identity")), **given}
        crawl, _ = await open_crawl(
            client, make_settings(name, asked), sinks=names, is_alone=store.embedded is not None, log=self.log
        )
        classes = (SettingClass.TUNABLE, SettingClass.RESTING)
        changes = {field: one for field, one in given.items() if CLASSES[field][0] in classes}
        local = {field: one.value for field, one in given.items() if CLASSES[field][0] is SettingClass.LOCAL}
        before = await read_tuned(crawl)
        after = settings_of(crawl, name, {**before.given, **changes}, **local)
        check_proxied(after)
        if "one_round" in changes:
            check_rounds(after)
        await refuse_while_at_work(crawl, name, before, changes, lambda field: changes[field].source)
        tuned, _ = await tune(crawl, name, changes)
        settings = settings_of(crawl, name, tuned.given, **local)
        check_memory(store, settings)
        await _set_memory(store, settings)
        if tuned.version != before.version:
            self.tell(f"settings changed, for every worker of the crawl: {differences(before, tuned)}")
        return crawl, settings, tuned.version

    async def _with_contact(self, crawl: Shards, settings: Settings, version: int) -> tuple[Settings, int]:
        """Ask whom owners of sites can write to, where somebody can be asked, and say what is missing elsewhere."""
        if self._options.is_quiet or self._options.is_json or not contact.can_ask():
            self.log(contact.MISSING)
            return settings, version
        named = await contact.ask(self.log)
        if named is None:
            return settings, version
        tuned, _ = await tune(crawl, self._name, {"contact": Given(named, "the answer at its beginning")})
        return msgspec.structs.replace(settings, contact=named), tuned.version

    async def _feed(self, seeds: SeedLoop, again: Callable[[], SeedLoop | None]) -> None:
        await seeds.run(self.stop_feeding)
        if seeds.refused and not seeds.read:
            raise ConfigError("none of the seeds is an http(s) URL: there is nothing to crawl")
        # A restarted store may have lost the seeds, or that they are all. Those it knows cost nothing but the asking.
        while await seeds.until_restart(self.stop_feeding):
            repeated = again()
            if repeated is None:
                self.log("seeds: those from standard input cannot be offered again; some may be lost")
                return
            seeds = repeated
            await seeds.run(self.stop_feeding)

    # -- before

    def _refuse_useless(self, seeds: list[SeedLine]) -> None:
        """Raise ConfigError, with the lines named, when none of the seeds is a URL: nothing has been touched yet."""
        if any(seed_url(line.text)[0] is not None for line in seeds):
            return
        for line in seeds[:COMPLAINTS_MAX]:
            self.log(complaint(line))
        raise ConfigError(f"--seeds {self._options.seeds}: there is no http(s) URL in it")

    def _stored_seeds(self, stored: Stored) -> SeedLines:
        """Return the seeds of an earlier run that was stopped before it had offered all of them."""
        path = stored.seeds_file
        if path == STDIN:
            self.log("the seeds from standard input were not all read; give the rest with --seeds -")
            path = None
        return SeedLines(stored.seeds, path)

    def _default_name(self, head: list[SeedLine]) -> str:
        for line in head:
            url, _ = seed_url(line.text)
            if url is not None:
                return _NOT_A_NAME.sub("-", hostname_of(split_url(url)[0])).strip("-._")[:64] or "crawl"
        if self._options.seeds is not None:
            raise ConfigError(f"--seeds {self._options.seeds}: no http(s) URL at its beginning; give --name NAME")
        if self._options.redis_url is not None:
            raise ConfigError("say which crawl to resume: --name NAME (`streamcrawl status --redis URL` lists them)")
        names = embedded_names()
        if len(names) == 1:
            return names[0]
        raise ConfigError(f"say which crawl to resume: --name NAME (in {FOLDER}: {', '.join(names) or 'none'})")

    def _nothing_to_resume(self) -> ConfigError:
        there = f" (there: {', '.join(embedded_names()) or 'none'})" if self._options.redis_url is None else ""
        return ConfigError(f"there is no crawl {self._name!r} to resume here{there}; leave --resume out to begin it")

    def _resume_command(self) -> str:
        if self._program is not None:
            name = () if self._name == self._program.name else ("--name", self._name)
            return shlex.join(["streamcrawl", "run", self._options.app, "--resume", *name, *self._options.place])
        return shlex.join(["streamcrawl", "crawl", "--resume", "--name", self._name, *self._options.place])

    def _sinks(self, stored: Stored | None, settings: Settings, *, is_new: bool) -> list[SinkSpec]:
        """Return where the records go: what is given, else what the crawl has, else NAME.jsonl."""
        given = self._options.outputs
        if stored is None or is_new:
            if not given and self._has_sinks:
                return []
            return new_sinks(given, self._name, settings, is_new=is_new)
        places = list(stored.sinks.values())
        targets = [read_target(one) for one in given or places]
        if {target.place for target in targets} != set(places):
            raise ConfigError(
                f"crawl {self._name!r} writes to {', '.join(places) or 'no file'}: give the same -o or none, another "
                "--name, or --fresh to delete it and begin again"
            )
        urls = {target.place: target.url for target in targets}
        return [SinkSpec(sink, place, urls[place]) for sink, place in stored.sinks.items()]

    @property
    def _has_sinks(self) -> bool:
        """Whether a program has sinks of its own, so that no file is written unless one is named."""
        return self._program is not None and any(stage.is_sink for stage in self._program.stages)

    async def _delete(self, client: Redis, state: Mapping[str, str], stored: Stored | None, settings: Settings) -> None:
        """Delete a crawl and its output files, and say what that was."""
        places = [*(stored.sinks.values() if stored is not None else ())]
        places += self._options.outputs or ([] if self._has_sinks else [self._name + DEFAULT_ENDING])
        if "epoch" in state:
            status = await read_status(client, self._name)
            self.tell(
                f"fresh: deleting crawl {self._name}: {counted(status.page('done'), 'page')} done, "
                f"{number(status.page('queued'))} queued, {counted(status.dead_letters, 'dead letter')}"
            )
            # The crawl first: workers of it that are still alive elsewhere then stop and let their file go.
            await delete_crawl(client, self._name)
        # As the deleted crawl called its files, and as the new one will.
        its_own = make_settings(self._name, identity_in(state.get("identity")))
        for place in dict.fromkeys(read_target(one).place for one in places):
            for how in (its_own, settings):
                for path, size in await asyncio.to_thread(delete_files, read_target(place), how):
                    self.tell(f"fresh: deleting {path} ({counted(size, 'byte')})")

    async def _join(self, store: Store, crawl: Shards, sinks: Sequence[SinkSpec], settings: Settings) -> int:
        """Take a crawl over that is there already: alone on an embedded server, beside others elsewhere.

        Returns the pages that are done.
        """
        status = await read_status(store.client, self._name)
        done = status.page("done")
        far = f"{counted(done, 'page')} done, {number(status.page('queued'))} queued"
        is_alive = any(worker.beat_age_ms < settings.lease_ms for worker in status.workers)
        if is_alive and store.embedded is None:
            self.tell(f"joining crawl {status.name}: {far}, {number(status.slots)} slots at work elsewhere")
            return done
        self.tell(f"resuming crawl {status.name}: {far}")
        if store.embedded is not None:
            # The lock of the folder is ours, so no worker can be alive: what is in their hands was left by a crash.
            # Not counted as crashes: the whole crawl ended, not the worker of one task.
            back = 0
            for frontier in crawl:
                back += await frontier.put_back(FETCH_STREAM, "", is_crash=False)
                for sink in sinks:
                    await frontier.put_back(sink_stream(sink.name), "", is_crash=False)
                for stage in self._program.stages if self._program is not None else ():
                    await frontier.put_back(stage_stream(stage.line), "", is_crash=False)
            if back:
                self.log(f"the last run did not end in order: {number(back)} pages that it had in hand are put back")
        mended = await crawl.reconcile()
        if mended:
            self.log(f"counts were wrong and have been mended: {counted(mended, 'host')}")
        return done

    def _as_stored(self, scope: dict[str, Any], sinks: list[SinkSpec], stored: Stored | None) -> Stored:
        options = self._options
        before = stored or Stored(scope={}, sinks={})
        has_seeds = bool(options.urls or options.seeds)
        seeds_file = options.seeds if options.seeds in (None, STDIN) else _absolute(options.seeds)
        return Stored(
            scope=scope,
            sinks={sink.name: sink.path for sink in sinks},
            # Canonical: what was typed may carry a password.
            seeds=[canonical_seed(url) for url in options.urls[:_SEEDS_STORED_MAX]] if has_seeds else before.seeds,
            seeds_file=seeds_file if has_seeds else before.seeds_file,
            app=options.app or before.app,
            machine=before.machine or socket.gethostname(),
        )


# -- parts without a state of their own


async def _set_memory(store: Store, settings: Settings) -> None:
    """Give the embedded server the limit of the resumed crawl: it was started before that could be read."""
    if store.embedded is not None and settings.memory_max_bytes is not None:
        with mapped_errors():
            await store.client.config_set("maxmemory", settings.memory_max_bytes)


def _absolute(path: str) -> str:
    return os.path.abspath(path)
