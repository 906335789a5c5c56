"""Where a crawl is kept: the Redis of `--redis`, or an embedded one in `./.streamcrawl/<name>/`.

`crawl_store` is for the crawl itself and owns the folder; `existing_store` is for commands that look, beside a running
crawl or at one that rests.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from streamcrawl.errors import ConfigError, StoreIncompatible, StoreUnavailable
from streamcrawl.settings import check_name
from streamcrawl.store.connection import check_server, connect, mapped_errors
from streamcrawl.store.embedded import LOCK_WAIT_S, EmbeddedRedis
from streamcrawl.store.keys import CRAWLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from redis.asyncio import Redis

    from streamcrawl.store.connection import ServerInfo

FOLDER: Final = Path(".streamcrawl")
"""Of all embedded crawls, in the folder where the command is run."""
MEMORY_DEFAULT_BYTES: Final = 1_000_000_000
"""Of an embedded server without --memory-max: some ten million seen URLs, and room for the rest of a machine."""
LOADING_TOLD_S: Final = 2.0
"""A crawl that takes longer to load says so, and again after as long."""
_DATA: Final = "appendonlydir"


class Store(NamedTuple):
    """A store that answers, and has been found fit for a crawl."""

    url: str
    client: Redis
    embedded: EmbeddedRedis | None
    """The server, when this process runs it."""
    memory_max_bytes: int
    """Limit of the server itself; 0 when it has none, or it is only looked at."""


def start_command(name: str, redis_url: str | None, options: Sequence[str], app: str = "") -> str:
    """Return the command that starts workers of a crawl that is there; `options` say where it is kept, `app` of which
    program it is."""
    if app:  # without it nobody would know the stages, and the crawl is refused
        word = ["run", app, "--resume", "--name", name] if redis_url is None else ["worker", app, "--name", name]
    else:
        word = ["crawl", "--resume", "--name", name] if redis_url is None else ["worker", name]
    return shlex.join(["streamcrawl", *word, *options])


@asynccontextmanager
async def crawl_store(
    redis_url: str | None, name: str, *, memory_max_bytes: int | None, is_fresh: bool, log: Callable[[str], None]
) -> AsyncIterator[Store]:
    """Yield the store of a crawl that is about to run.

    Args:
        redis_url: None for an embedded server.
        memory_max_bytes: Limit of an embedded server; None for the default. One of `--redis` has its own.
        is_fresh: Data that Redis cannot read may be deleted, because the crawl is to begin afresh.

    Raises:
        ConfigError: the folder is in use by another crawl.
        StoreError: no server, or one that is not fit.
    """
    if redis_url is not None:
        async with _client(redis_url) as client:
            yield Store(redis_url, client, None, (await _reached(client)).maxmemory)
        return
    folder = FOLDER / name
    server = _embedded(folder, memory_max_bytes or MEMORY_DEFAULT_BYTES, log)
    try:
        await server.start()
    except StoreIncompatible as error:
        if not is_fresh:
            raise
        log(f"fresh: {error}")
        await asyncio.to_thread(shutil.rmtree, folder / _DATA, ignore_errors=True)
        await server.start()
    try:
        async with _client(server.url) as client:
            yield Store(server.url, client, server, (await check_server(client)).maxmemory)
    finally:
        await server.stop()


@asynccontextmanager
async def existing_store(redis_url: str | None, name: str) -> AsyncIterator[Store]:
    """Yield the store of a crawl that is there: of a running one, or of one at rest, whose server is started for it.

    Raises:
        ConfigError: there is no such crawl.
        StoreError: no server, or one that is not fit.
    """
    if redis_url is not None:
        async with _client(redis_url) as client:
            yield Store(redis_url, client, None, (await _reached(client)).maxmemory)
        return
    folder = embedded_folder(name)
    if not (folder / _DATA).is_dir():
        raise _no_crawl(name)
    # No limit: what lies there was within one, and looking adds nothing.
    server = EmbeddedRedis(folder, memory_max_bytes=0)
    async with running_store(name) as running:
        if running is not None:
            yield running
            return
    async with server, _client(server.url) as client:
        yield Store(server.url, client, server, 0)


@asynccontextmanager
async def looked_at(redis_url: str) -> AsyncIterator[Redis]:
    """Yield a client of a Redis that answers, fit for a crawl or not.

    Raises:
        StoreError: it does not.
    """
    async with _client(redis_url) as client:
        try:
            with mapped_errors():
                await client.echo("")  # a server whose disk is full refuses PING
        except StoreUnavailable as error:
            raise _not_there(error) from error
        yield client


def _not_there(error: StoreUnavailable) -> StoreUnavailable:
    return StoreUnavailable(f"{error}; try again when it does, or give another --redis URL")


async def _reached(client: Redis) -> ServerInfo:
    """Return what the Redis of `--redis` says of itself; it may never have been there."""
    try:
        return await check_server(client)
    except StoreUnavailable as error:
        raise _not_there(error) from error


@asynccontextmanager
async def running_store(name: str) -> AsyncIterator[Store | None]:
    """Yield the store of an embedded crawl that runs; None when it rests, or its server does not answer (`is_held`).

    Raises:
        ConfigError: no crawl can be called that.
    """
    server = EmbeddedRedis(embedded_folder(name), memory_max_bytes=0)
    async with _client(server.url) as client:
        try:
            with mapped_errors():
                # Not PING, which a server refuses whose disk is full, and no other may be started in its place.
                await client.exists(CRAWLS)
        except StoreUnavailable:
            is_running = False
        else:
            is_running = True
        yield Store(server.url, client, None, 0) if is_running else None


def is_held(name: str) -> bool:
    """Return whether the embedded crawl of this name has a server, which may not answer."""
    return EmbeddedRedis(embedded_folder(name), memory_max_bytes=0).is_held()


async def delete_embedded(name: str, *, wait_s: float = LOCK_WAIT_S) -> None:
    """Delete the folder of an embedded crawl, once nobody uses it; a deletion that broke off is ended.

    Raises:
        ConfigError: it is still in use after `wait_s`, or cannot be deleted.
    """
    await EmbeddedRedis(embedded_folder(name), memory_max_bytes=0, lock_wait_s=wait_s).delete()


def embedded_folder(name: str) -> Path:
    """Return where the embedded crawl of this name is, or would be.

    Raises:
        ConfigError: no crawl can be called that.
    """
    return FOLDER / check_name(name)


def has_data(name: str) -> bool:
    """Return whether there is an embedded crawl of this name; False when all that is left is its folder.

    Raises:
        ConfigError: there is nothing of this name.
    """
    folder = embedded_folder(name)
    if not folder.is_dir():
        raise _no_crawl(name)
    return (folder / _DATA).is_dir()


def _no_crawl(name: str) -> ConfigError:
    others = ", ".join(embedded_names()) or "none"
    return ConfigError(f"there is no crawl {name!r} in {FOLDER} (there: {others}); give --redis URL for one elsewhere")


def embedded_names() -> list[str]:
    """Return the names of the embedded crawls in this folder, sorted."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{_DATA}"))


def _embedded(folder: Path, memory_max_bytes: int, log: Callable[[str], None]) -> EmbeddedRedis:
    told_at = time.monotonic()

    def show_loading(percent: float) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > LOADING_TOLD_S:
            told_at = time.monotonic()
            log(f"loading the crawl from {folder}: {percent:.0f} %")

    return EmbeddedRedis(folder, memory_max_bytes=memory_max_bytes, on_loading=show_loading)


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Redis]:
    client = connect(url)
    try:
        yield client
    finally:
        await client.aclose()
