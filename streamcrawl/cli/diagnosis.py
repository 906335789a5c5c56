"""What `streamcrawl why` and `streamcrawl doctor` do. They change nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from streamcrawl.cli import interrupts
from streamcrawl.cli.options import write
from streamcrawl.cli.store import (
    FOLDER,
    embedded_folder,
    embedded_names,
    existing_store,
    is_held,
    looked_at,
    running_store,
    start_command,
)
from streamcrawl.cli.stored import read_state, read_stored
from streamcrawl.errors import ConfigError, CrawlGone, ExitCode, StoreIncompatible, StoreUnavailable
from streamcrawl.ops.checkup import (
    DISK_WORDS,
    Area,
    Finding,
    ServerLook,
    Severity,
    machine_findings,
    read_server,
    runs_here,
    server_findings,
)
from streamcrawl.ops.doctor import as_json, crawl_findings, exit_code, finding_lines, gone, in_order
from streamcrawl.ops.status import counted
from streamcrawl.ops.why import Typed, look_before, read_why, why_lines
from streamcrawl.store.shards import crawl_names, join_crawl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from streamcrawl.cli.groups import Place
    from streamcrawl.ops.why import Why

CRAWLS_MAX: Final = 200
"""Of a Redis that `doctor` looks at."""


async def _typed(client: Redis, name: str, redis_url: str | None, options: tuple[str, ...]) -> Typed:
    stored = read_stored(await read_state(client, name))
    return Typed(options, start_command(name, redis_url, options, stored.app if stored else ""))


def show_why(place: Place, *, top: int, sample_ms: int) -> ExitCode:
    """Print what limits a crawl."""

    async def read() -> Why:
        async with existing_store(place.redis_url, place.name) as store:
            crawl = await join_crawl(store.client, place.name, is_only_read=True)
            typed = await _typed(store.client, place.name, place.redis_url, place.options)
            before = None
            if sample_ms:
                before = await look_before(crawl, place.name)
                await asyncio.sleep(sample_ms / 1000)
            return await read_why(crawl, place.name, top=top, before=before, typed=typed)

    why = interrupts.run(read())
    write(msgspec.json.encode(why.as_json()).decode() if place.is_json else "\n".join(why_lines(why)))
    return ExitCode.DONE


class _Patient(NamedTuple):
    """A Redis to look at, with crawls of it."""

    client: Redis
    redis_url: str | None
    folder: Path | None
    """Of an embedded one."""
    name: str | None
    """The one crawl that is looked at; None for all."""
    is_asked_for: bool = True
    """Whether somebody typed that name: then it is refused when it is none."""


def run_doctor(
    name: str | None, redis_url: str | None, *, is_quick: bool, is_json: bool, options: tuple[str, ...]
) -> ExitCode:
    """Print what is wrong."""

    async def look() -> tuple[list[Finding], list[str]]:
        found: list[Finding] = []
        looked: list[str] = []
        if redis_url is None and name is None:
            found += await _look_at_folder(looked, options)
        else:
            async with _patient(name, redis_url) as patient:
                is_audited = name is not None and not is_quick
                found += await _look_at(patient, looked, options, is_audited=is_audited, told=set())
        return in_order(dict.fromkeys(found)), looked

    found, looked = interrupts.run(look())
    code = exit_code(found)
    counts = {severity: sum(one.severity is severity for one in found) for severity in Severity}
    if is_json:
        document: dict[str, Any] = {"crawls": looked, "exit_code": int(code)}
        document |= {f"{severity}s": count for severity, count in counts.items()}
        document["findings"] = [as_json(one) for one in found]
        write(msgspec.json.encode(document).decode())
        return code
    for line in finding_lines(found):
        write(line)
    said = ", ".join(counted(count, severity.value) for severity, count in counts.items() if count)
    write(f"doctor: looked at {counted(len(looked), 'crawl')}: {said or 'nothing is wrong'}")
    return code


@asynccontextmanager
async def _patient(name: str | None, redis_url: str | None) -> AsyncIterator[_Patient]:
    if redis_url is not None:
        # Not `existing_store`: a server that is not fit for a crawl is what this is for.
        async with looked_at(redis_url) as client:
            yield _Patient(client, redis_url, None, name)
        return
    assert name is not None
    async with existing_store(None, name) as store:
        yield _Patient(store.client, None, embedded_folder(name), name)


async def _look_at(
    patient: _Patient, looked: list[str], options: tuple[str, ...], *, is_audited: bool, told: set[int]
) -> list[Finding]:
    """Look at one server, its crawls, and this machine; `told` are the file systems that something was said of."""
    server = await read_server(patient.client)
    found = list(server_findings(server, is_embedded=patient.folder is not None))
    machine = machine_findings(patient.folder, server, is_local=patient.folder is not None or runs_here(server))
    found += _once_a_disk(machine, patient.folder, told)
    if _has_no_crawls(server):
        return found
    names = [patient.name] if patient.name is not None else await crawl_names(patient.client)
    if len(names) > CRAWLS_MAX:
        text = f"{len(names)} crawls, of which the first {CRAWLS_MAX} are looked at"
        found.append(Finding(Severity.NOTE, Area.REDIS, "many_crawls", text, "streamcrawl doctor NAME"))
    for name in names[:CRAWLS_MAX]:
        try:
            crawl = await join_crawl(patient.client, name, is_only_read=True)
            typed = await _typed(patient.client, name, patient.redis_url, options)
            found += await crawl_findings(crawl, name, typed, is_audited=is_audited)
        except ConfigError as error:
            if patient.name is not None and patient.is_asked_for:
                raise
            found.append(gone(name, error))  # half made or half deleted
        except (CrawlGone, StoreIncompatible) as error:
            found.append(gone(name, error))
        looked.append(name)
    return found


def _has_no_crawls(server: ServerLook) -> bool:
    """Return whether it is no server on which a crawl can be: a Sentinel, or a node of a cluster."""
    return str(server.info.get("redis_mode") or server.info.get("server_mode") or "") in ("sentinel", "cluster")


def _once_a_disk(findings: Iterable[Finding], folder: Path | None, told: set[int]) -> Iterator[Finding]:
    """Leave out what was said before of the file system of `folder`."""
    for one in findings:
        if folder is not None and one.word in DISK_WORDS:
            device = folder.stat().st_dev
            if device in told:
                continue
            told.add(device)
        yield one


async def _look_at_folder(looked: list[str], options: tuple[str, ...]) -> list[Finding]:
    """Look at the embedded crawls of this folder that run; the servers of the others are left alone, as in `status`."""
    names = embedded_names()
    told: set[int] = set()
    folder = FOLDER if names else None
    found = list(_once_a_disk(machine_findings(folder, None, is_local=False), folder, told))
    if not names:
        text = f"no crawls in {FOLDER}"
        found.append(Finding(Severity.NOTE, Area.MACHINE, "no_crawls", text, "give --redis URL for those elsewhere"))
    for name in names:
        said = ""
        try:
            async with running_store(name) as store:
                if store is not None:
                    patient = _Patient(store.client, None, embedded_folder(name), name, is_asked_for=False)
                    found += await _look_at(patient, looked, options, is_audited=False, told=told)
                    continue
        except ConfigError as error:
            found.append(gone(name, error))  # a folder whose name is none of a crawl
            continue
        except StoreUnavailable as error:
            said = f" ({error})"
        if is_held(name):
            log = embedded_folder(name) / "redis.log"
            text = f"its Redis is there and does not answer{said}: it starts or ends, is busy, or hangs"
            do = f"again in a minute; then see {log}"
            found.append(Finding(Severity.FAULT, Area.REDIS, "no_answer", text, do, "StreamcrawlRedisDown", name))
            continue
        text = "it is not running, so it was not looked at"
        do = Typed(options)("doctor", name)
        found.append(Finding(Severity.NOTE, Area.CRAWL, "at_rest", text, do, crawl=name))
    return found
