"""Traces for OpenTelemetry: what one task went through, over all processes and stages that it passes.

A page is followed from its discovery to its end; the items that come of it carry its trace along, and so do theirs.
Which pages are followed is decided by the hash that is the id of their trace, so every worker decides alike, a page
that is tried again stays in its trace, and nothing has to be stored with it. Of one that is not followed nothing is
made. Spans are sent by a thread from a queue that drops what is too much: a collector that is away costs spans, never
pages.

    page                       discovered ... ended: made by whoever ends it
      fetch                    one try, from its dispatch; the name is that of its stage
        wait                   until a slot took it
        GET                    each request, robots.txt and redirects included
        handle                 the program's function, or the reading of the page
        commit                 links of other shards and the commit itself
      parse                    an item of a later stage, under the try that gave it: the same parts
    save batch                 one call of a sink, linked to the items in it

Without the extra `otel` nothing of it is imported. Start at `Traces`; `span` is what the work calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from streamcrawl.errors import ConfigError
from streamcrawl.response import Drop, Retry
from streamcrawl.rules.task import CrawlTask, Outcome
from streamcrawl.store.keys import FETCH
from streamcrawl.work.logs import FromLibraries
from streamcrawl.work.loops import sleep_or_stop
from streamcrawl.work.meters import LEASE_LOST

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from streamcrawl.store.frontier import Commit, Entry
    from streamcrawl.work.child import Child
    from streamcrawl.work.lag import ServerClock
    from streamcrawl.work.loops import Log
    from streamcrawl.work.program import Item

FLUSH_MAX_S: Final = 3.0
"""What is in the queue at the end of a process is sent within this time, or lost: a stop waits for no collector."""
SAID_AGAIN_S: Final = 60.0
"""A collector that is away has the SDK complain about every batch, in ever new words."""
URL_MAX_CHARS: Final = 2083
ERROR_MAX_CHARS: Final = 300
LINKS_MAX: Final = 128
"""Of one batch; more are dropped by the SDK without a word."""
_NEEDED: Final = ("sdk", "exporter.otlp.proto.http")
_CARRIED: Final = re.compile(r"([0-9a-f]{32})([0-9a-f]{16})")
_SECRET: Final = re.compile(
    r"(?i)([?&](?:[^=&]*(?:token|secret|password|passwd|signature|credential|api_?key|session|auth)[^=&]*"
    r"|sig|key|pwd|sid|jsessionid|phpsessid|awsaccesskeyid)=)[^&\s'\"]*"
)
"""Parameters by whose value somebody could pass for somebody else; it begins with the list of OpenTelemetry's semantic
conventions (url.query), and traces are read by more people than the crawl's output."""
_USER: Final = re.compile(r"(?<=://)[^/?#\s@]*@")
_FINAL: Final = frozenset({Outcome.DONE, Outcome.DEAD, Outcome.DROPPED, Outcome.REDIRECTED})


def check_traces() -> None:
    """Raise ConfigError when traces cannot be sent as this process is installed and its environment says."""
    try:
        is_installed = all(importlib.util.find_spec(f"opentelemetry.{name}") for name in _NEEDED)
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise ConfigError("--traces needs OpenTelemetry, which is not installed: pip install 'streamcrawl[otel]'")
    for name, known in (
        ("OTEL_TRACES_EXPORTER", ("otlp", "none")),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", ("http/protobuf",)),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", ("http/protobuf",)),
    ):
        value = os.environ.get(name, "").strip()
        if value and value not in known:
            raise ConfigError(f"{name}={value}: streamcrawl sends traces by {' or '.join(known)} only; leave it out")


def without_secrets(text: str) -> str:
    """Return a URL, or a text with URLs in it, without user, password, and values of parameters that are secrets."""
    return _SECRET.sub(r"\1REDACTED", _USER.sub("", text))


def _attribute(url: str) -> str:
    return without_secrets(url)[:URL_MAX_CHARS]


class NoSpan:
    """What stands in the place of a span of a task that is not followed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        pass

    def set(self, attributes: dict[str, Any]) -> None:
        """Say something about it."""

    def failed(self, kind: str, text: str = "") -> None:
        """Say that it failed, by a word of few, and perhaps how."""


_NO_SPAN: Final = NoSpan()
_CURRENT: ContextVar[TaskTrace | None] = ContextVar("streamcrawl trace", default=None)


def current() -> TaskTrace | None:
    """Return the trace of the task that this asyncio task works at; None when it is not followed."""
    return _CURRENT.get()


def span(name: str, **attributes: Any) -> NoSpan:
    """Return a block that is a part of the task in hand."""
    trace = _CURRENT.get()
    return _NO_SPAN if trace is None else trace.part(name, attributes)


def request_span(method: str, url: str) -> NoSpan:
    """Return a block that is one HTTP request."""
    trace = _CURRENT.get()
    return _NO_SPAN if trace is None else trace.request(method, url)


class _Part(NoSpan):
    """A span that runs while its block does; what a program's own code traces meanwhile lies under it."""

    def __init__(self, made: Span) -> None:
        self._span = made
        self._has_failed = False

    def __enter__(self) -> Self:
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        from opentelemetry import context

        context.detach(self._token)
        if isinstance(error, Retry | Drop):
            self.set({"streamcrawl.raised": type(error).__name__})
        elif kind is not None and not self._has_failed:
            self.failed(kind.__name__, str(error))
        self._span.end()

    def set(self, attributes: dict[str, Any]) -> None:
        self._span.set_attributes(attributes)

    def failed(self, kind: str, text: str = "") -> None:
        from opentelemetry.trace import Status, StatusCode

        self._has_failed = True
        self._span.set_attribute("error.type", kind)
        # Of a traceback the end, where the cause stands; what is no UTF-8 would cost the whole batch of spans.
        said = without_secrets(text.strip())[-ERROR_MAX_CHARS:].encode("utf-8", "replace").decode()
        self._span.set_status(Status(StatusCode.ERROR, said or None))


class TaskTrace:
    """One try of a task that is followed."""

    def __init__(self, traces: Traces, task: CrawlTask | Item, made: Span, root: tuple[int, int] | None) -> None:
        self._traces = traces
        self._task = task
        self._span = made
        self._root = root
        """Ids of the span of the whole page, which whoever ends it makes."""
        self._began_ns = made.start_time  # type: ignore[attr-defined]  # of the SDK's spans
        self._waits = True
        self._committing: Span | None = None
        self._ending = Outcome.DEAD
        """By its last commit."""
        self._outcome = "handed_back"
        ids = made.get_span_context()
        self.carried = f"{ids.trace_id:032x}{ids.span_id:016x}"
        """What its items take along."""

    def enter(self) -> None:
        """From here on the running asyncio task works at it."""
        from opentelemetry import context, trace

        _CURRENT.set(self)
        context.attach(trace.set_span_in_context(self._span))
        if self._waits:
            self._waits = False
            self._traces.start("wait", self._inside(), self._began_ns).end()

    def part(self, name: str, attributes: dict[str, Any]) -> _Part:
        return _Part(self._traces.start(name, self._inside(), attributes=attributes))

    def request(self, method: str, url: str) -> _Part:
        # By the stable semantic conventions for HTTP clients.
        attributes = {
            "http.request.method": method,
            "url.full": _attribute(url),
            "server.address": urlsplit(url).hostname or "",
        }
        return _Part(self._traces.start(method, self._inside(), attributes=attributes, is_client=True))

    def mark(self, items: Sequence[str | bytes]) -> list[str | bytes]:
        """Return items (flat: stage or output, record, …) of which those for stages carry this trace."""
        marked = list(items)
        end = b',"%b"]' % self.carried.encode()
        for n in range(1, len(marked), 2):
            record = marked[n]
            if marked[n - 1] in self._traces.stages and isinstance(record, bytes):
                marked[n] = record[:-1] + end
        return marked

    def worked(self, commit: Commit | None) -> None:
        """Its work is done: what comes of it carries the trace, and its end is on its way to the store."""
        if commit is not None:
            if commit.items:
                commit.items = self.mark(commit.items)
            self.submitted(commit)

    def submitted(self, commit: Commit) -> None:
        """It ends so, if the store agrees."""
        self._ending = commit.outcome
        if self._committing is None:
            self._committing = self._traces.start("commit", self._inside())

    def committed(self, word: str) -> None:
        """The store answered."""
        outcome = self._ending
        self._outcome = outcome.value if word == "DONE" else word.lower()
        if self._committing is not None:
            self._committing.end()
            self._committing = None
        if word == "DONE" and outcome in _FINAL and self._root is not None and isinstance(self._task, CrawlTask):
            self._traces.make_root(self._task, self._root, self._outcome)

    def lost(self) -> None:
        """It is another worker's now."""
        self._outcome = LEASE_LOST

    def end(self) -> None:
        """The slot is done with it."""
        self._span.set_attribute("streamcrawl.outcome", self._outcome)
        if self._committing is not None:
            self._committing.end()
        self._span.end()

    def batch(self, tries: Sequence[TaskTrace], size: int) -> NoSpan:
        """Return a block that is one call for a batch of so many items, of which these are followed."""
        return self._traces.batch(tries, size)

    def link_to(self) -> Any:
        """Return a link to this try, for the span of a batch that it is part of."""
        from opentelemetry.trace import Link

        return Link(self._span.get_span_context())

    def _inside(self) -> Context:
        from opentelemetry import trace
        from opentelemetry.context import Context

        return trace.set_span_in_context(self._span, Context())


class Traces:
    """Makes and sends the spans of one worker process. None of it for a process that was not asked to."""

    def __init__(
        self,
        *,
        every: int,
        crawl: str,
        epoch: str,
        stage: str,
        consumer: str,
        stages: Collection[str],
        clock: ServerClock,
        log: Log,
    ) -> None:
        """Begin to send; only within a running loop.

        Args:
            every: One page of so many is followed.
            crawl, epoch: Whose pages they are: the ids of their traces are made of it.
            stage: What this process works at.
            consumer: Its name in Redis.
            stages: Lines of all stages, whose items carry traces.
            clock: The server's, by which entries and tasks are stamped.
            log: Takes what the SDK has to say, from this loop.
        """
        from importlib.metadata import version

        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

        self._limit = 2**64 // every
        self._crawl, self._epoch, self._stage = crawl, epoch, stage
        self.stages = frozenset(stages)
        self._clock = clock
        loop = asyncio.get_running_loop()
        said_at = -SAID_AGAIN_S

        def say(text: str) -> None:
            nonlocal said_at
            if time.monotonic() - said_at > SAID_AGAIN_S:
                said_at = time.monotonic()
                # From the SDK's thread; a loop that has ended has nobody left to tell.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(log, text)

        self._handler = FromLibraries(say)
        self._handler.setFormatter(logging.Formatter("traces: %(message)s"))
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._handler)
        logger.propagate = False
        described: dict[str, Any] = {"service.version": version("streamcrawl"), "service.instance.id": consumer}
        if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        ):
            described["service.name"] = "streamcrawl"
        resource = Resource.create(described)
        self._ids = _ids()
        sending = BatchSpanProcessor(OTLPSpanExporter())
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(sending)
        self._tracer = self._provider.get_tracer("streamcrawl", version("streamcrawl"))
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            # For what a program's own code traces: under the tasks that are followed, and nothing beside them.
            theirs = TracerProvider(sampler=ParentBased(ALWAYS_OFF), resource=resource, shutdown_on_exit=False)
            theirs.add_span_processor(sending)
            trace.set_tracer_provider(theirs)

    def begin(self, entry: Entry, task: CrawlTask | Item) -> TaskTrace | None:
        """Return the trace of a try that was just read; None when its task is not followed."""
        root = None
        if isinstance(task, CrawlTask):
            trace_id, span_id = root = self._root_of(task)
            if trace_id & (2**64 - 1) >= self._limit:
                return None
        else:
            found = _CARRIED.fullmatch(task.trace)
            if found is None:
                return None
            trace_id, span_id = int(found[1], 16), int(found[2], 16)
        attributes: dict[str, Any] = {
            "streamcrawl.crawl": self._crawl,
            "streamcrawl.stage": self._stage,
            "streamcrawl.entry": entry.id,
            "streamcrawl.attempt": task.attempt,
            "url.full": _attribute(task.url),
        }
        if task.crashes:
            attributes["streamcrawl.crashes"] = task.crashes
        parent = _remote(trace_id, span_id)
        dispatched_ns = self._since_ns(int(entry.id.partition("-")[0]))
        made = self.start(self._stage, parent, dispatched_ns, attributes=attributes)
        return TaskTrace(self, task, made, root)

    def batch(self, tries: Sequence[TaskTrace], size: int) -> NoSpan:
        """Return a block that is one call for a batch of so many items, some of which are followed."""
        from opentelemetry.context import Context

        made = self._tracer.start_span(
            f"{self._stage} batch",
            context=Context(),
            attributes={"streamcrawl.crawl": self._crawl, "streamcrawl.stage": self._stage, "streamcrawl.items": size},
            links=[one.link_to() for one in tries[:LINKS_MAX]],
        )
        return _Part(made)

    def start(
        self,
        name: str,
        inside: Context,
        start_ns: int | None = None,
        *,
        attributes: dict[str, Any] | None = None,
        is_client: bool = False,
    ) -> Span:
        from opentelemetry.trace import SpanKind

        kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
        return self._tracer.start_span(name, context=inside, kind=kind, attributes=attributes, start_time=start_ns)

    def make_root(self, task: CrawlTask, ids: tuple[int, int], outcome: str) -> None:
        """Make the span of a whole page, which began with its discovery and ends now."""
        from opentelemetry.context import Context

        self._ids.next_ids = ids
        attributes = {
            "streamcrawl.crawl": self._crawl,
            "streamcrawl.depth": task.depth,
            "streamcrawl.attempt": task.attempt,
            "streamcrawl.outcome": outcome,
            "url.full": _attribute(task.url),
        }
        self.start(task.kind.value, Context(), self._since_ns(task.discovered_ms), attributes=attributes).end()

    async def close(self) -> None:
        """Send what is left, as far as that is soon done."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def shut() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        # A daemon: a collector that hangs keeps no process from ending, as a thread of the loop's executor would.
        threading.Thread(target=shut, name="last spans", daemon=True).start()
        await sleep_or_stop(done, FLUSH_MAX_S)
        logging.getLogger("opentelemetry").removeHandler(self._handler)

    def _root_of(self, task: CrawlTask) -> tuple[int, int]:
        """Return the ids of a page's trace and of its first span: the same for every try of this discovery."""
        known = f"{self._crawl}\n{self._epoch}\n{task.kind.value}\n{task.discovered_ms}\n{task.known_as}"
        digest = hashlib.blake2b(known.encode("utf-8", "surrogatepass"), digest_size=24).digest()
        return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")

    def _since_ns(self, then_ms: int) -> int | None:
        """Return a time of the server by the clock of this machine; None while the server's is not known."""
        ago_s = self._clock.since_s(then_ms) if then_ms else None
        return None if ago_s is None else time.time_ns() - int(ago_s * 1e9)


def _remote(trace_id: int, span_id: int) -> Context:
    from opentelemetry import trace
    from opentelemetry.context import Context

    ids = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
    return trace.set_span_in_context(trace.NonRecordingSpan(ids), Context())


def open_traces(child: Child, stages: Collection[str]) -> Traces | None:
    """Return what makes the spans of a worker; None where none were asked for, or the environment switches them off."""
    every = child.settings.traces
    if every is None or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return None
    spec = child.spec
    return Traces(
        every=every,
        crawl=child.settings.name,
        epoch=spec.epoch,
        stage=spec.stage or FETCH,
        consumer=spec.consumer,
        stages=stages,
        clock=child.clock,
        log=child.log,
    )


def _ids() -> Any:
    """Return a generator of ids that takes the next ones from whoever knows them."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        next_ids: tuple[int, int] | None = None

        def generate_trace_id(self) -> int:
            return super().generate_trace_id() if self.next_ids is None else self.next_ids[0]

        def generate_span_id(self) -> int:
            if self.next_ids is None:
                return super().generate_span_id()
            (_, span_id), self.next_ids = self.next_ids, None
            return span_id

    return Ids()
