"""What `streamcrawl pause`, `resume`, `drain`, `close` and `delete` do: words to a whole crawl, whoever works at it.

Each changes fields of the crawl's state, which the next script call of every worker sees; none talks to a worker. Each
may be repeated: what an earlier one began and did not end is ended. Start at `pause`, or at `delete`, which alone
destroys something.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import click
import msgspec
from rich.console import Console

from streamcrawl.cli import interrupts
from streamcrawl.cli.options import write
from streamcrawl.cli.store import (
    delete_embedded,
    embedded_folder,
    existing_store,
    has_data,
    running_store,
    start_command,
)
from streamcrawl.cli.stored import read_state, read_stored
from streamcrawl.errors import ConfigError, CrawlGone, ExitCode, StoreError, StoreUnavailable
from streamcrawl.ops.progress import clock
from streamcrawl.ops.status import counted, feeder_text, number, read_status, stored_sinks
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.embedded import LOCK_WAIT_S
from streamcrawl.store.keys import CRAWLS, Keys
from streamcrawl.store.shards import delete_crawl, join_crawl
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from streamcrawl.ops.status import Status
    from streamcrawl.store.shards import Shards

LINE_S: Final = 10.0
"""Between two lines of a long command where nobody sits in front."""
LOOK_S: Final = 0.25
END_WAIT_S: Final = 60.0
"""For the workers of an embedded crawl that was deleted: they learn of it within seconds and stop their server last."""


class _Place(NamedTuple):
    """A crawl that is there, and how it is reached by the next command."""

    crawl: Shards
    name: str
    redis_url: str | None
    """None for an embedded one."""
    is_at_rest: bool
    """It is an embedded one whose server was started for this command: no worker is alive, and none can come."""
    options: tuple[str, ...]
    """Of the command line, that say where it is kept."""

    def command(self, word: str) -> str:
        return shlex.join(["streamcrawl", word, self.name, *self.options])

    async def start(self) -> str:
        """Return the command that starts workers."""
        stored = read_stored(await read_state(self.crawl.client, self.name))
        return start_command(self.name, self.redis_url, self.options, stored.app if stored else "")


@asynccontextmanager
async def _place(name: str, redis_url: str | None, options: tuple[str, ...] = ()) -> AsyncIterator[_Place]:
    async with existing_store(redis_url, name) as store:
        crawl = await join_crawl(store.client, name)
        yield _Place(crawl, name, redis_url, store.embedded is not None, options)


def pause(name: str, redis_url: str | None, *, is_json: bool, place: tuple[str, ...]) -> ExitCode:
    """Set the flag that keeps every dispatch from handing anything out."""

    async def run() -> None:
        async with _place(name, redis_url, place) as at:
            await at.crawl.control(paused="1")
            status = await read_status(at.crawl.client, name)
            if is_json:
                _write_json(name, paused=True, in_stream=status.streamed)
                return
            far = f"{counted(status.streamed, 'page')} handed out before will still be fetched; " * bool(
                status.streamed
            )
            write(f"crawl {name}: paused; {far}go on: {at.command('resume')}")

    interrupts.run(run())
    return ExitCode.DONE


def resume(name: str, redis_url: str | None, *, is_json: bool, place: tuple[str, ...]) -> ExitCode:
    """Take back what keeps dispatch from handing out: a pause, and a stop at a bound."""

    async def run() -> None:
        async with _place(name, redis_url, place) as at:
            before = await read_status(at.crawl.client, name)
            await at.crawl.control(paused="", stopped="")
            is_alive = await _is_anyone_alive(at, before)
            if is_json:
                was = {"was_paused": before.is_paused, "was_stopped": before.stopped}
                _write_json(name, paused=False, **was, is_alive=is_alive)
                return
            was_text = "was not paused"
            if before.is_paused or before.stopped:
                was_text = "goes on" + f" (it had stopped: {before.stopped})" * bool(before.stopped)
            none = "" if is_alive else f"; no worker is alive, start some: {await at.start()}"
            write(f"crawl {name}: {was_text}{none}")

    interrupts.run(run())
    return ExitCode.DONE


def drain(name: str, redis_url: str | None, *, timeout_ms: int, is_json: bool, place: tuple[str, ...]) -> ExitCode:
    """Pause, and wait until every stream of every shard is empty."""
    try:
        return interrupts.run(_drain(name, redis_url, timeout_ms, is_json=is_json, options=place))
    except KeyboardInterrupt:
        click.echo(f"streamcrawl: interrupted; crawl {name} stays paused until `streamcrawl resume`", err=True)
        return ExitCode.STOPPED


async def _drain(
    name: str, redis_url: str | None, timeout_ms: int, *, is_json: bool, options: tuple[str, ...]
) -> ExitCode:
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(timeout_ms / 1000, is_over.set)
    async with _place(name, redis_url, options) as at:
        with Showing(is_quiet=is_json) as showing:
            patience = Patience("drain", showing.say)
            await until_answered(lambda: at.crawl.control(paused="1"), patience, is_over)
            is_warned = False
            while True:
                left = await until_answered(lambda: _in_streams(at.crawl, name), patience, is_over)
                if left is None:
                    word = "RESUMED"
                    break
                if at.is_at_rest or not any(left.values()):
                    word = "DRAINED"
                    break
                if is_over.is_set():
                    word = "TIMEOUT"
                    break
                if not is_warned and not await until_answered(lambda: _is_anyone_alive(at), patience, is_over):
                    is_warned = True
                    showing.say(f"no worker is alive: nobody takes what waits; start some: {await at.start()}")
                showing.show(f"draining {name}: {_in_words(left)}")
                await sleep_or_stop(is_over, LOOK_S)
        status = await read_status(at.crawl.client, name)
    code = ExitCode.DONE if word == "DRAINED" else ExitCode.STOPPED
    waiting = status.page("queued") + status.page("delayed")
    if is_json:
        _write_json(name, ending=word, exit_code=int(code), queued=waiting, left=left or {})
    elif word == "DRAINED":
        # What was handed out and has not been taken yet is nobody's; the next run takes it.
        waiting += (left or {}).get("fetch", 0)
        how = "at rest, nothing is in any hand" if at.is_at_rest else "drained"
        stop = "" if at.is_at_rest else "; workers may be stopped now"
        write(f"crawl {name}: {how}, {counted(waiting, 'page')} still to fetch{stop}; go on: {at.command('resume')}")
    elif word == "RESUMED":
        write(f"crawl {name}: resumed by someone else before it was drained; drain it again")
    else:
        write(
            f"crawl {name}: not drained within {clock(timeout_ms / 1000)}, {_in_words(left or {})}; it stays paused; "
            f"wait longer: {at.command('drain')} --timeout 2h; go on: {at.command('resume')}"
        )
    return code


async def _in_streams(crawl: Shards, name: str) -> dict[str, int] | None:
    """Return how many entries there are of each stage, `fetch` and the outputs by name; None: it is not paused.

    Raises:
        CrawlGone: it was deleted, or begun afresh.
    """
    with mapped_errors():
        names: Any = await crawl.client.hget(crawl.first.keys.state, "sinks")
    sinks = [sink.decode() for sink in (names or b"").split(b",") if sink]
    async with crawl.client.pipeline(transaction=False) as pipe:
        # Fetching first: a paused crawl in which nothing is being fetched gives its outputs nothing more.
        for frontier in crawl:
            pipe.xlen(frontier.keys.fetch_stream)
        for sink in sinks:
            for frontier in crawl:
                pipe.xlen(frontier.keys.sink_stream(sink))
        for frontier in crawl:
            pipe.hmget(frontier.keys.state, ["epoch", "paused"])
        with mapped_errors():
            answers: list[Any] = await pipe.execute()
    lengths, states = answers[: -len(crawl)], answers[-len(crawl) :]
    if any(epoch != crawl.epoch.encode() for epoch, _ in states):
        raise CrawlGone(f"crawl {name!r} was deleted or begun afresh by someone else meanwhile")
    if any(paused != b"1" for _, paused in states):
        return None
    return {stage: sum(lengths[place * len(crawl) :][: len(crawl)]) for place, stage in enumerate(["fetch", *sinks])}


def _in_words(left: dict[str, int]) -> str:
    words = [f"{counted(left['fetch'], 'page')} under way"] if left.get("fetch") else []
    records = sum(count for stage, count in left.items() if stage != "fetch")
    return ", ".join(words + ([f"{counted(records, 'record')} to write"] if records else []))


async def _is_anyone_alive(at: _Place, status: Status | None = None) -> bool:
    status = status or await read_status(at.crawl.client, at.name)
    return any(map(status.lives, status.workers))


def close(name: str, redis_url: str | None, *, is_json: bool) -> ExitCode:
    """Say that no more seeds are to be waited for but those of feeders that live."""

    async def run() -> None:
        async with _place(name, redis_url) as at:
            await at.crawl.first.feed("", "close")
            feeders = (await read_status(at.crawl.client, name)).feeders
            if is_json:
                _write_json(name, closed=not feeders, feeders=feeders)
            elif feeders:
                who = f"{counted(len(feeders), 'command')} still {'offers' if len(feeders) == 1 else 'offer'} seeds"
                write(f"crawl {name}: {who}; it closes when the last is done, or dead for a lease")
                for feeder in feeders:
                    write(f"  {feeder_text(feeder)}")
            else:
                write(f"crawl {name}: closed; it ends once nothing is left to do")

    interrupts.run(run())
    return ExitCode.DONE


# -- delete


class _Doomed(NamedTuple):
    """What is to be deleted, as it is told before."""

    lines: list[str]
    files: list[str]
    """Outputs, which stay."""


def delete(name: str, redis_url: str | None, *, is_sure: bool, is_json: bool) -> ExitCode:
    """Say what is deleted, ask, and delete it.

    Raises:
        ConfigError: there is no such crawl, nobody can be asked, or its folder is in use.
    """
    doomed = interrupts.run(_look(name, redis_url))
    if not is_json:
        for line in doomed.lines:
            click.echo(line, err=True)
    if not is_sure:
        if is_json or not sys.stdin.isatty():
            raise ConfigError(f"nothing is deleted without a word: give --yes to delete crawl {name!r}")
        # Between the two runs of the event loop, whose own Ctrl-C would not reach a prompt.
        click.confirm(f"delete crawl {name}?", abort=True, err=True)
    keys = interrupts.run(_delete(name, redis_url, is_json=is_json))
    if is_json:
        _write_json(name, deleted=True, keys=keys, kept=doomed.files)
        return ExitCode.DONE
    kept = f"; kept: {', '.join(doomed.files)}" if doomed.files else ""
    count = f", {counted(keys, 'key')}" if keys else ""
    write(f"crawl {name}: deleted{count}{kept}")
    return ExitCode.DONE


async def _look(name: str, redis_url: str | None) -> _Doomed:
    if redis_url is not None:
        async with existing_store(redis_url, name) as store:
            return await _look_in(store.client, name)
    folder = embedded_folder(name)
    if not has_data(name):
        return _Doomed([f"crawl {name}: what a deletion that broke off has left in {folder}"], [])
    try:
        async with existing_store(None, name) as store:
            return await _look_in(store.client, name)
    except (StoreError, ConfigError) as error:
        # Damaged data, or a full disk: a reason more to delete it, and the lock of the folder tells whether one may.
        return _Doomed([f"crawl {name} in {folder}: what it holds cannot be told ({error})"], [])


async def _look_in(client: Redis, name: str) -> _Doomed:
    keys = Keys(name)
    async with client.pipeline(transaction=False) as pipe:
        pipe.hgetall(keys.state)
        pipe.sismember(CRAWLS, name)
        with mapped_errors():
            state, is_listed = await pipe.execute()
    if b"epoch" not in state:
        if not state and not is_listed:
            raise ConfigError(f"there is no crawl {name!r} in this store; `streamcrawl status` lists those that are")
        return _Doomed([f"crawl {name}: what a deletion that broke off has left"], [])
    status = await read_status(client, name)
    files = [path for path in stored_sinks({"crawl": state.get(b"crawl", b"{}").decode()}).values() if path]
    lines = [
        f"crawl {name}: {counted(status.page('done'), 'page')} done, {number(status.page('queued'))} queued, "
        f"{counted(status.dead_letters, 'dead letter')}, {counted(status.seen, 'URL')} seen"
    ]
    if status.workers:
        lines.append(f"  {counted(len(status.workers), 'worker')} of it may be alive and will end by themselves")
    lines += [f"  kept: {path}" for path in files]
    return _Doomed(lines, files)


async def _delete(name: str, redis_url: str | None, *, is_json: bool) -> int:
    """Delete it in the store, and an embedded one's folder; returns how many keys."""
    keys = 0
    with Showing(is_quiet=is_json) as showing:

        async def delete_in(client: Redis) -> None:
            nonlocal keys
            try:
                keys = await delete_crawl(
                    client, name, on_deleted=lambda count: showing.show(f"deleting {name}: {counted(count, 'key')}")
                )
            except StoreUnavailable as error:
                raise StoreUnavailable(f"{error}; the same command deletes what is left") from error

        if redis_url is not None:
            async with existing_store(redis_url, name) as store:
                await delete_in(store.client)
            return keys
        async with running_store(name) as running:
            if running is not None:
                # Its workers learn by this that it is over. They stop the server, and only then the folder is free.
                await delete_in(running.client)
                showing.say(f"waiting until the workers of {name} have ended")
        await delete_embedded(name, wait_s=LOCK_WAIT_S if running is None else END_WAIT_S)
    return keys


# -- what a long command shows


class Showing:
    """One line that changes, on a terminal; elsewhere a line now and then. All of it on standard error."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._is_quiet = is_quiet
        self._stack = ExitStack()
        self._live: Any = None
        self._shown_at = time.monotonic() - LINE_S + 1.0
        """The first line comes after a second: what is over by then needs none."""

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._is_quiet:
            from rich.live import Live

            self._live = self._stack.enter_context(Live(console=self._console, auto_refresh=False, transient=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if not self._is_quiet:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, text: str) -> None:
        """Say how far it is."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif time.monotonic() - self._shown_at >= LINE_S:
            self._shown_at = time.monotonic()
            self.say(text)


def _write_json(name: str, **fields: Any) -> None:
    write(msgspec.json.encode({"crawl": name, **fields}).decode())
