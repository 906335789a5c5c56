"""A receiver of OTLP over HTTP, as a collector has one: keeps the spans that it was sent."""

from __future__ import annotations

import asyncio
import gzip
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Received:
    """One span."""

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    """Empty for the first of its trace."""
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    links: list[tuple[bytes, bytes]]
    """Traces and spans."""
    has_failed: bool
    said: str
    resource: dict[str, Any]

    @property
    def process(self) -> str:
        return str(self.resource["service.instance.id"])


class OtlpServer:
    """Runs in a thread of this process, on a free port, while its block does."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> str:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        self.spans += [
            Received(
                name=one.name,
                trace=one.trace_id,
                span=one.span_id,
                parent=one.parent_span_id,
                began_ns=one.start_time_unix_nano,
                ended_ns=one.end_time_unix_nano,
                attributes=_plain(one.attributes),
                links=[(link.trace_id, link.span_id) for link in one.links],
                has_failed=one.status.code == one.status.STATUS_CODE_ERROR,
                said=one.status.message,
                resource=_plain(of_resource.resource.attributes),
            )
            for of_resource in sent.resource_spans
            for of_scope in of_resource.scope_spans
            for one in of_scope.spans
        ]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")


def _plain(attributes: Iterable[Any]) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in attributes}
