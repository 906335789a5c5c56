"""What the port of a worker shows: its metrics, whether it lives and can work, and what its processes are busy with.

`worker_pages` names them all. `/healthz` says that the event loop of the supervisor turns, and asks nobody; `/readyz`
asks Redis. `/debug/…` shows URLs of the crawl, so only this machine gets to see it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector

from streamcrawl.errors import StoreError
from streamcrawl.ops.metrics import WorkerMetrics
from streamcrawl.ops.serving import Reply, exposition, only_local
from streamcrawl.store.connection import mapped_errors
from streamcrawl.work.board import monotonic_ms
from streamcrawl.work.inspection import SAMPLE_MAX_S, describe_tasks, sample_memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiohttp import web
    from redis.asyncio import Redis

    from streamcrawl.ops.serving import Page
    from streamcrawl.work.supervisor import ChildProcess, Supervisor

PING_MAX_S: Final = 2.0
ANSWER_MAX_S: Final = 3.0
"""For a child whose loop turns; one that holds the GIL is told of by what it has in hand."""
SAMPLE_S: Final = 5.0


def worker_pages(
    crawl: str, supervisor: Callable[[], Supervisor | None], messages: Mapping[str, int]
) -> dict[str, Page]:
    """Return the pages of a process that runs workers, by path.

    Args:
        crawl: Its name.
        supervisor: Returns that of the workers; None while there is none yet: the crawl is waited for, or its store
            started.
        messages: How many were logged, by level.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(WorkerMetrics(crawl, supervisor, messages))

    async def metrics(request: web.BaseRequest) -> Reply:
        return exposition(registry, request)

    async def ready(_: web.BaseRequest) -> Reply:
        running = supervisor()
        reason = "it has not joined its crawl yet"
        if running is not None:
            reason = running.unready() or await unanswered(running.client)
        return Reply(f"not ready: {reason}\n", 503) if reason else Reply("ready\n")

    async def tasks(_: web.BaseRequest) -> Reply:
        found = [{"process": "supervisor", **describe_tasks()}]
        return Reply.json(found + await _of_children(supervisor(), lambda child: _tasks_of(child)))

    async def memory(request: web.BaseRequest) -> Reply:
        try:
            seconds = float(request.query.get("seconds", SAMPLE_S))
            if not 0 <= seconds <= SAMPLE_MAX_S:
                raise ValueError
        except ValueError:
            return Reply(f"seconds must be a number from 0 to {SAMPLE_MAX_S:g}\n", 400)
        own, others = await asyncio.gather(
            sample_memory(seconds), _of_children(supervisor(), lambda child: _memory_of(child, seconds))
        )
        return Reply.json([{"process": "supervisor", **own}, *others])

    return {
        "/metrics": metrics,
        "/healthz": healthy,
        "/readyz": ready,
        "/debug/tasks": only_local(tasks),
        "/debug/memory": only_local(memory),
    }


async def healthy(_: web.BaseRequest) -> Reply:
    """Whoever gets this answer knows that the process lives."""
    return Reply("ok\n")


async def unanswered(client: Redis) -> str:
    """Return why Redis does not answer; '' when it does."""
    try:
        async with asyncio.timeout(PING_MAX_S):
            with mapped_errors():
                await client.ping()
    except TimeoutError:
        return f"Redis does not answer within {PING_MAX_S:g} s"
    except StoreError as error:
        return str(error)
    return ""


async def _of_children(
    supervisor: Supervisor | None, ask: Callable[[ChildProcess], Awaitable[Any]]
) -> list[dict[str, Any]]:
    children = [child for child in supervisor.children if child.is_alive] if supervisor is not None else []
    answers = await asyncio.gather(*(ask(child) for child in children))
    return [
        {"process": child.consumer, "pid": child.pid, "stage": child.stage, **answer}
        for child, answer in zip(children, answers, strict=True)
    ]


async def _tasks_of(child: ChildProcess) -> dict[str, Any]:
    try:
        return dict(await child.ask("tasks", within_s=ANSWER_MAX_S))
    except TimeoutError:
        now_ms = monotonic_ms()
        in_hand = [] if not child.is_alive else child.board.held()
        return {
            "error": f"no answer within {ANSWER_MAX_S:g} s: a handler holds its event loop, or it has ended",
            "in_hand": [
                {"entry": held.entry_id, "age_s": (now_ms - held.begun_ms) / 1000 if held.begun_ms > 0 else None}
                for held in sorted(in_hand, key=lambda held: (held.begun_ms <= 0, held.begun_ms))
            ],
        }


async def _memory_of(child: ChildProcess, seconds: float) -> dict[str, Any]:
    try:
        return dict(await child.ask("memory", str(seconds), within_s=seconds + ANSWER_MAX_S))
    except TimeoutError:
        return {"error": "no answer: a handler holds its event loop, or it has ended"}
