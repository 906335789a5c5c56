"""What `streamcrawl status` and `streamcrawl audit` do. They change nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from streamcrawl.cli import interrupts
from streamcrawl.cli.options import write
from streamcrawl.cli.store import FOLDER, embedded_names, existing_store
from streamcrawl.errors import ConfigError, ExitCode, StoreUnavailable
from streamcrawl.ops.audit import audit
from streamcrawl.ops.status import condition, counted, number, read_status, status_lines
from streamcrawl.store.connection import check_server, connect
from streamcrawl.store.embedded import EmbeddedRedis
from streamcrawl.store.shards import crawl_names, join_crawl

if TYPE_CHECKING:
    from streamcrawl.ops.audit import AuditReport
    from streamcrawl.ops.status import Status


def show_status(name: str, redis_url: str | None, *, is_json: bool) -> ExitCode:
    """Print the status of one crawl."""

    async def read() -> Status:
        async with existing_store(redis_url, name) as store:
            return await read_status(store.client, name)

    status = interrupts.run(read())
    if is_json:
        write(msgspec.json.encode(status.as_json()).decode())
    else:
        write("\n".join(status_lines(status)))
    return ExitCode.DONE


def list_crawls(redis_url: str | None, *, is_json: bool) -> ExitCode:
    """Print the crawls of a Redis, or those in this folder; of the latter, figures only of those that run."""
    rows = interrupts.run(_list(redis_url))
    if is_json:
        write(msgspec.json.encode({"crawls": rows}).decode())
    elif not rows:
        write(f"no crawls in {'this Redis' if redis_url else FOLDER}")
    for row in () if is_json else rows:
        figures = f", {counted(row['done'], 'page')} done, {number(row['queued'])} queued" if "done" in row else ""
        write(f"{row['name']}: {row['condition']}{figures}")
    if not is_json and any("done" not in row for row in rows):
        write("`streamcrawl status NAME` says how far a crawl came that is not running")
    return ExitCode.DONE


async def _list(redis_url: str | None) -> list[dict[str, Any]]:
    if redis_url is not None:
        client = connect(redis_url)
        try:
            await check_server(client)
            rows = []
            for name in await crawl_names(client):
                with suppress(ConfigError):  # deleted since
                    rows.append(_row(await read_status(client, name)))
            return rows
        finally:
            await client.aclose()
    rows = []
    for name in embedded_names():
        # Servers of crawls that rest are left alone: starting each would take long, and `status NAME` does it.
        client = connect(EmbeddedRedis(FOLDER / name, memory_max_bytes=0).url)
        try:
            rows.append(_row(await read_status(client, name)))
        except StoreUnavailable:
            rows.append({"name": name, "condition": "not running"})
        finally:
            await client.aclose()
    return rows


def _row(status: Status) -> dict[str, Any]:
    return {
        "name": status.name,
        "condition": condition(status),
        "done": status.page("done"),
        "queued": status.page("queued"),
    }


def run_audit(name: str, redis_url: str | None, *, is_json: bool) -> ExitCode:
    """Print the audit of one crawl."""

    async def read() -> AuditReport:
        async with existing_store(redis_url, name) as store:
            return await audit(await join_crawl(store.client, name, is_only_read=True))

    report = interrupts.run(read())
    if is_json:
        write(msgspec.json.encode(report.as_json()).decode())
    else:
        for line in report.faults:
            write(line)
        for line in report.notes:
            write(f"note: {line}")
        size = ((report.hosts, "host"), (report.keys, "key"), (len(report.lines), "line"))
        what = ", ".join(counted(count, noun) for count, noun in size) + " of counts"
        if report.shards > 1:
            what = f"{counted(report.shards, 'shard')}, {what}"
        found = "every figure fits" if report.is_sound else counted(len(report.faults), "fault")
        write(f"audit {name}: {what}: {found}")
    return ExitCode.DONE if report.is_sound else ExitCode.AUDIT_FAILED
