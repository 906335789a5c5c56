"""Shows a running crawl: a live line on a terminal, plain lines elsewhere, JSON lines for programs.

Reads a few bounded answers of each shard every two seconds, whatever the size of the crawl; if the store does not
answer, the last figures stay. Start at `Progress.run`; what is shown is decided by `Meter`, which is pure.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import StoreError
from streamcrawl.ops.status import counted, number
from streamcrawl.rules.task import Kind
from streamcrawl.store.connection import mapped_errors
from streamcrawl.work.loops import sleep_or_stop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from streamcrawl.store.shards import Shards

SAMPLE_S: Final = 2.0
LINE_S: Final = 10.0
"""Between two lines where nobody sits in front: a log of an hour has 360."""
WINDOW_S: Final = 30.0
"""Rates are over this long: shorter ones jump with every slow host."""
ENTRIES_MAX: Final = 1000
"""Entries of the fetch streams that are looked at for their hosts: what dispatch lets into them for eight processes."""


class Sample(msgspec.Struct, frozen=True):
    """Figures of one moment; counts are of pages."""

    at_s: float
    """Seconds of the monotonic clock."""
    done: int = 0
    queued: int = 0
    in_hand: int = 0
    """Dispatched and not ended."""
    delayed: int = 0
    errors: int = 0
    """Fetches that brought nothing and are tried again; those of robots.txt too, as no page comes before it."""
    dead: int = 0
    dropped: int = 0
    hosts: int = 0
    """Hosts with something to fetch, now or when their delay has passed, and those that are being fetched from."""
    failing: int = 0
    """Hosts of which the last fetch brought no answer."""
    failing_why: str = ""
    """Of a single such host, its name and the reason: a seed that was mistyped shows at once."""
    slots: int = 0
    note: str = ""
    """Why nothing is fetched at the moment; '' when all is well."""


class Meter:
    """Turns samples into rates and an estimate. Pure: time comes with the samples."""

    def __init__(self, pages_max: int | None = None) -> None:
        self._pages_max = pages_max
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[1].at_s >= WINDOW_S:
            self._samples.popleft()

    @property
    def last(self) -> Sample:
        return self._samples[-1]

    @property
    def rate(self) -> float:
        """Pages a second over the window; 0 before there are two samples."""
        first, last = self._samples[0], self._samples[-1]
        passed_s = last.at_s - first.at_s
        return (last.done - first.done) / passed_s if passed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds until the queue is empty at this rate; None while the frontier grows, or nothing is handed out."""
        first, last = self._samples[0], self._samples[-1]
        if self.rate <= 0 or last.note:
            return None  # while nothing is handed out, time does not tell
        left = last.queued + last.in_hand + last.delayed
        is_growing = left > first.queued + first.in_hand + first.delayed
        if self._pages_max is not None and self._pages_max - last.done <= left:
            return max(0, self._pages_max - last.done) / self.rate  # so many are known already, whatever comes
        return None if is_growing else left / self.rate


class Progress:
    """The display of one running crawl. A crash of it hides figures and changes nothing."""

    def __init__(
        self,
        crawl: Shards,
        console: Console | None,
        *,
        mode: str,
        pages_max: int | None,
        workers: Callable[[], tuple[int, int]],
        write: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        """Prepare the display.

        Args:
            crawl: All shards of it.
            console: Of standard error, for `live`; None for the others.
            mode: `live`, `lines`, `json` (on standard output) or `none`.
            pages_max: The budget, for the estimate; None without one.
            workers: Returns fetch processes and busy slots of this machine.
            write: Writes one line to standard output.
            say: Gets the `lines`.
        """
        self._crawl = crawl
        self._console = console
        self._mode = mode
        self._workers = workers
        self._write = write
        self._say = say
        self._meter = Meter(pages_max)
        self._started_s = time.monotonic()

    async def run(self, stop: asyncio.Event) -> None:
        """Show figures until `stop` is set."""
        if self._mode == "none":
            return
        if self._console is not None:
            from rich.live import Live
            from rich.text import Text

            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                while not stop.is_set():
                    if await self._sample():
                        line = self.line(self._console.width)
                        live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
                    await sleep_or_stop(stop, SAMPLE_S)
            return
        await self._sample()  # the first line, ten seconds from here, then has a rate
        while not await sleep_or_stop(stop, LINE_S):
            if await self._sample():
                if self._mode == "json":
                    self._write(msgspec.json.encode(self.figures()).decode())
                else:
                    self._say(self.line())

    async def _sample(self) -> bool:
        entries_max = max(1, ENTRIES_MAX // len(self._crawl))
        try:
            async with self._crawl.client.pipeline(transaction=False) as pipe:
                for frontier in self._crawl:
                    keys = frontier.keys
                    pipe.hgetall(keys.totals)
                    pipe.hmget(keys.state, ["slots", "stopped", "throttled", "paused"])
                    pipe.zcard(keys.schedule)
                    pipe.zcard(keys.failing)
                    pipe.xrange(keys.fetch_stream, count=entries_max)
                with mapped_errors():
                    answers = await pipe.execute()
            shards = [answers[n : n + 5] for n in range(0, len(answers), 5)]
            at_cap = await self._hosts_at_cap([row[4] for row in shards])
            failing_why = await self._why_failing([row[3] for row in shards])
        except StoreError:
            return False  # the loops say so; the last figures stay
        totals: Counter[str] = Counter()
        for row in shards:
            totals.update({name.decode(): int(count) for name, count in row[0].items()})
        hosts, failing = (sum(row[place] for row in shards) for place in (2, 3))
        self._meter.add(_sample(totals, [row[1] for row in shards], hosts + at_cap, failing, failing_why))
        return True

    async def _why_failing(self, failing: Sequence[int]) -> str:
        """Return name and reason of the one failing host, given their number by shard; '' when it is not one."""
        if sum(failing) != 1:
            return ""
        frontier = self._crawl.frontiers[failing.index(1)]
        with mapped_errors():
            hosts: Any = await frontier.client.zrange(frontier.keys.failing, 0, 0)
            host = hosts[0].decode() if hosts else ""
            reason: Any = await frontier.client.hget(frontier.keys.host(host), "failing") if hosts else None
        return f"{host}: {reason.decode()}" if reason else ""  # it may have answered in between

    async def _hosts_at_cap(self, streams: Sequence[Sequence[Any]]) -> int:
        """Return how many hosts (or domains) of these entries, which are given by shard, are not in the schedule."""
        async with self._crawl.client.pipeline(transaction=False) as pipe:
            for frontier, entries in zip(self._crawl, streams, strict=True):
                hosts = {
                    fields[b"host"].decode("utf-8", "replace") for _, fields in entries if b"host" in (fields or ())
                }
                if busy := list({frontier.scheduled_as(host) for host in hosts}):
                    pipe.zmscore(frontier.keys.schedule, busy)
            with mapped_errors():
                scores = await pipe.execute()
        return sum(row.count(None) for row in scores)

    def figures(self) -> dict[str, Any]:
        """Return the figures for programs."""
        figures: dict[str, Any] = msgspec.to_builtins(self._meter.last)
        del figures["at_s"]
        processes, busy = self._workers()
        eta_s = self._meter.eta_s
        return {
            "event": "progress",
            "elapsed_s": round(time.monotonic() - self._started_s, 1),
            **figures,
            "pages_per_s": round(self._meter.rate, 2),
            "eta_s": None if eta_s is None else round(eta_s),
            "processes": processes,
            "busy": busy,
        }

    def line(self, width: int | None = None) -> str:
        """Return the figures for people, in at most `width` columns: what matters least is left out first."""
        return fitted(self._parts(), width)

    def _parts(self) -> list[tuple[int, str]]:
        """Return the figures with how soon each is left out: 0 is never."""
        last, eta_s = self._meter.last, self._meter.eta_s
        processes, busy = self._workers()
        parts = [
            (0, counted(last.done, "page")),
            (0, f"{self._meter.rate:.1f}/s"),
            (0, f"{number(last.queued)} queued"),
            (3, counted(last.hosts, "host")),
            (1, counted(last.errors, "error")),
            (2, f"{number(last.dead)} dead"),
            (4, f"{counted(processes, 'worker')} ({busy} busy)"),
            (0, clock(time.monotonic() - self._started_s)),
        ]
        if eta_s is not None:
            parts.append((1, f"{clock(eta_s)} left"))
        if last.failing:
            parts.append((0, f"{counted(last.failing, 'host')} not answering"))
        if last.failing_why:
            parts.append((1, last.failing_why))
        if last.note:
            parts.append((0, last.note))
        return parts


def fitted(parts: list[tuple[int, str]], width: int | None) -> str:
    """Return the texts in one line of at most `width` columns, without those of the greatest ranks if need be."""
    for rank_most in range(max(rank for rank, _ in parts), -1, -1):
        line = " · ".join(text for rank, text in parts if rank <= rank_most)
        if width is None or len(line) <= width:
            break
    return line


def _sample(
    totals: Mapping[str, int], states: Sequence[Sequence[bytes | None]], hosts: int, failing: int, failing_why: str
) -> Sample:
    def total(name: str) -> int:
        return totals.get(name, 0)

    def page(name: str) -> int:
        return total(f"page.{name}")

    # Paused is the crawl in all shards; it may have stopped in one of them only.
    slots, stopped, throttled, paused = (
        [(value or b"").decode() for value in row] for row in zip(*states, strict=True)
    )
    note = ""
    if "1" in paused:
        note = "paused"
    elif any(stopped):
        note = f"stopped: {max(stopped)}"
    elif any(throttled):
        note = "waiting for the output to be written"
    return Sample(
        at_s=time.monotonic(),
        done=page("done"),
        queued=page("queued"),
        in_hand=page("streamed"),
        delayed=page("delayed"),
        errors=sum(total(f"{kind}.{end}") for kind in Kind for end in ("retried", "unanswered")),
        dead=page("dead"),
        dropped=page("dropped"),
        hosts=hosts,
        failing=failing,
        failing_why=failing_why,
        slots=sum(int(count or 0) for count in slots),
        note=note,
    )


def clock(seconds: float) -> str:
    """Return a duration as `0:01:23`, or `2d 3:04:05`."""
    days, rest = divmod(int(seconds), 86_400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {text}" if days else text
