"""A crawl as a program: functions that get pages, items and batches, each a stage that is scaled by itself.

```python
crawl = Crawl("books", seeds=["https://books.toscrape.com/"], scope="host")

@crawl.page
async def page(response: Response):
    for link in response.links():
        yield response.follow(link)          # a Request goes to the frontier
    yield Book(title=response.css("h1")[0].text())   # anything else is an item

@crawl.stage(concurrency=4)
async def priced(book: Book) -> PricedBook: ...

@crawl.sink(batch=100)
async def save(books: list[PricedBook]) -> None: ...
```

Run it with `streamcrawl run module:crawl`, add workers with `streamcrawl worker module:crawl --stage priced`. A stage
and a sink see an item again when a worker dies between their work and its commit: make them repeatable. The rule by
which items find their way is in work/program.py. Start at `Crawl`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from streamcrawl.errors import ConfigError
from streamcrawl.settings import SlotLimits, check_name, of_program, parse_duration_ms
from streamcrawl.store.frontier import check_stage
from streamcrawl.work.program import PAGE, Program, Stage, Taken, annotation_of, check_handler
from streamcrawl.work.program import Resource as HeldResource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")

BATCH_MAX: Final = 1000
"""More items in one call are lost to one error, and held by one process."""
CONCURRENCY_MAX: Final = 10_000
RETAIN_MAX_MS: Final = 365 * 86_400_000
"""What is kept for longer is an archive, and belongs in an output."""


class Resource(Generic[T]):
    """What an `on_start` function opened, in the worker that asks."""

    def __init__(self, held: HeldResource) -> None:
        self._held = held

    @property
    def value(self) -> T:
        """What the function yielded.

        Raises:
            RuntimeError: it is not open: no worker of a stage that it is for runs in this process.
        """
        if not self._held.is_open:
            raise RuntimeError(f"{self._held.name} is not open: it is opened at the start of a worker, not before")
        value: T = self._held.held
        return value


class Crawl:
    """A program: declare its handlers with the decorators, in the order in which items pass them."""

    def __init__(self, name: str, *, seeds: Iterable[str] = (), **settings: Any) -> None:
        """Begin a program.

        Args:
            name: Of the crawl, unless `--name` gives another.
            seeds: URLs to begin with.
            settings: As options of `streamcrawl crawl` are called in a settings file: `delay=0.5`, `scope="host"`;
                what the command is given goes over them.

        Raises:
            ConfigError: the name, or a setting, cannot be.
        """
        check_name(name)
        if isinstance(seeds, str):
            raise ConfigError(f"Crawl(…, seeds={seeds!r}): give a list of URLs")
        self.program: Final = Program(name, tuple(seeds), of_program(settings))

    @overload
    def page(self, function: F) -> F: ...
    @overload
    def page(
        self,
        *,
        label: str = "",
        own_stage: bool = False,
        concurrency: int | tuple[int, int] = 16,
        timeout_s: float | None = None,
        attempts: int | None = None,
        version: str | int = "",
        retain: str | float | None = None,
    ) -> Callable[[F], F]: ...
    def page(
        self,
        function: F | None = None,
        *,
        label: str = "",
        own_stage: bool = False,
        concurrency: int | tuple[int, int] = 16,
        timeout_s: float | None = None,
        attempts: int | None = None,
        version: str | int = "",
        retain: str | float | None = None,
    ) -> F | Callable[[F], F]:
        """Give a function the pages: those of requests with this label; without one, all that have no label.

        It takes a `Response` and gives `Request`s and items, by return or yield, sync (in a thread) or async.

        Args:
            label: Letters, digits and underscores, where it is a stage of its own.
            own_stage: Not with the fetch but as stage `parse`, or `parse_<label>`, scaled by itself: for a function
                that costs more than the fetch. Bodies wait in Redis, compressed, under the mark of that stage.
            concurrency, timeout_s, attempts, version: Of that stage, as for any other.
            retain: As for a stage.
        """

        retain_ms = _retain_ms(retain)

        def declare(function: F) -> F:
            check_handler(function, "the response")
            if label in self.program.pages or any(one.is_page and one.label == label for one in self.program.stages):
                raise ConfigError(f"two page handlers have the label {label!r}: give one of them another")
            if own_stage:
                self._add(
                    Stage(
                        name=f"parse_{label}" if label else "parse",
                        function=function,
                        takes=Taken(Any),
                        source=PAGE,
                        is_page=True,
                        label=label,
                        concurrency=_slots(concurrency),
                        timeout_ms=_timeout_ms(timeout_s),
                        attempts=_attempts(attempts),
                        version=str(version),
                        retain_ms=retain_ms,
                    )
                )
            else:
                self.program.pages[label] = function
                if retain_ms:
                    self.program.retained_pages[label] = retain_ms
            return function

        return declare if function is None else declare(function)

    @overload
    def stage(self, function: F) -> F: ...
    @overload
    def stage(
        self,
        *,
        name: str | None = None,
        source: str | None = None,
        concurrency: int | tuple[int, int] = 16,
        timeout_s: float | None = None,
        attempts: int | None = None,
        version: str | int = "",
        retain: str | float | None = None,
    ) -> Callable[[F], F]: ...
    def stage(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        source: str | None = None,
        concurrency: int | tuple[int, int] = 16,
        timeout_s: float | None = None,
        attempts: int | None = None,
        version: str | int = "",
        retain: str | float | None = None,
    ) -> F | Callable[[F], F]:
        """Give a function the items of its source, one at a time; what it returns or yields goes on.

        Args:
            name: Of its stream and in counts; by default that of the function.
            source: Name of the stage whose items it gets, `page` for those of pages; by default the stage before.
            concurrency: Calls at a time in each process. A number is what you know that they bear, and holds; of a
                pair, the least and the most, as many as this process, its memory and what follows bear, while no more
                of them fail than with fewer.
            timeout_s: Longest time of one call; by default `--handler-timeout` of the crawl.
            attempts: Calls until an item is a dead letter; by default those of the crawl.
            version: Another version has a stream of its own: workers of both run side by side during a deploy.
            retain: How long what it gives is kept beside the streams, `"24h"` or seconds: `streamcrawl replay` sends it
                again, or to a stage that was added later. Nothing waits for it; it is bounded by bytes too (`log_max`).
        """

        def declare(function: F) -> F:
            self._add(
                Stage(
                    name=name or str(getattr(function, "__name__", "")),
                    function=function,
                    takes=Taken(annotation_of(function, is_batch=False)),
                    source=self._source(source),
                    concurrency=_slots(concurrency),
                    timeout_ms=_timeout_ms(timeout_s),
                    attempts=_attempts(attempts),
                    version=str(version),
                    retain_ms=_retain_ms(retain),
                )
            )
            return function

        return declare if function is None else declare(function)

    @overload
    def sink(self, function: F) -> F: ...
    @overload
    def sink(
        self,
        *,
        name: str | None = None,
        source: str | None = None,
        batch: int = 100,
        linger_s: float = 1.0,
        timeout_s: float | None = None,
        attempts: int | None = None,
        version: str | int = "",
    ) -> Callable[[F], F]: ...
    def sink(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        source: str | None = None,
        batch: int = 100,
        linger_s: float = 1.0,
        timeout_s: float | None = None,
        attempts: int | None = None,
        version: str | int = "",
    ) -> F | Callable[[F], F]:
        """Give a function items in batches; they are acknowledged only when it has returned.

        A batch at which it fails is halved until the item is found that is to blame: that one alone is tried again,
        and at last a dead letter. So it may see an item more than once: write so that a repetition does no harm.

        Args:
            name, timeout_s, attempts, version: As for a stage.
            source: Name of the stage whose items it gets; by default it gets what no stage takes.
            batch: Items in one call at most.
            linger_s: How long a batch that is not full waits for more.
        """

        def declare(function: F) -> F:
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                # What it yields would be lost, and nobody would miss it.
                raise ConfigError(f"{function.__qualname__} yields, and nothing comes after a sink: make it a stage")
            self._add(
                Stage(
                    name=name or str(getattr(function, "__name__", "")),
                    function=function,
                    takes=Taken(annotation_of(function, is_batch=True)),
                    source=None if source is None else self._source(source),
                    is_sink=True,
                    batch=_within("batch", batch, BATCH_MAX),
                    linger_ms=int(max(0.0, linger_s) * 1000),
                    timeout_ms=_timeout_ms(timeout_s),
                    attempts=_attempts(attempts),
                    version=str(version),
                )
            )
            return function

        return declare if function is None else declare(function)

    @overload
    def on_start(self, function: Callable[[], AsyncIterator[T]]) -> Resource[T]: ...
    @overload
    def on_start(self, *, stages: Sequence[str] = ()) -> Callable[[Callable[[], AsyncIterator[T]]], Resource[T]]: ...
    def on_start(
        self, function: Callable[[], AsyncIterator[T]] | None = None, *, stages: Sequence[str] = ()
    ) -> Resource[T] | Callable[[Callable[[], AsyncIterator[T]]], Resource[T]]:
        """Open something once in each worker process: the function yields it, and goes on when the worker ends.

        Handlers find it in `value` of what this returns.

        Args:
            stages: Only in workers of these; `page` for those that fetch.
        """

        def declare(function: Callable[[], AsyncIterator[T]]) -> Resource[T]:
            if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
                raise ConfigError(f"{function.__qualname__} will not do for on_start: make it async def, and yield")
            held = HeldResource(function, stages)
            self.program.resources.append(held)
            return Resource(held)

        return declare if function is None else declare(function)

    def _source(self, source: str | None) -> str:
        """Return the name of a source that was declared before."""
        before = [stage.name for stage in self.program.stages if not (stage.is_sink or stage.is_page)]
        if source is None:
            return before[-1] if before else PAGE
        if source != PAGE and source not in before:
            raise ConfigError(
                f"source {source!r} is not declared before: there is {', '.join([PAGE, *before])} ({PAGE}: what any "
                "handler of pages gives); a stage gets items of an earlier one, so that they never go in a circle"
            )
        return source

    def _add(self, stage: Stage) -> None:
        check_stage(stage.line)
        if any(stage.name == other.name for other in self.program.stages):
            raise ConfigError(f"two stages are called {stage.name!r}: give one of them another name=")
        self.program.stages.append(stage)


def _within(what: str, value: int, most: int) -> int:
    if not 1 <= value <= most:
        raise ConfigError(f"{what} {value} will not do: 1 to {most}")
    return value


def _retain_ms(retain: str | float | None) -> int:
    if retain is None:
        return 0
    retain_ms = parse_duration_ms(str(retain))
    if not 1000 <= retain_ms <= RETAIN_MAX_MS:
        raise ConfigError(f"retain={retain!r} will not do: 1s to 365d")
    return retain_ms


def _slots(concurrency: int | tuple[int, int]) -> SlotLimits:
    least, most = concurrency if isinstance(concurrency, tuple) else (concurrency, concurrency)
    found = SlotLimits(_within("concurrency", least, CONCURRENCY_MAX), _within("concurrency", most, CONCURRENCY_MAX))
    if least > most:
        raise ConfigError(f"concurrency {concurrency} will not do: the least comes first")
    return found


def _attempts(attempts: int | None) -> int | None:
    return None if attempts is None else _within("attempts", attempts, 1000)


def _timeout_ms(timeout_s: float | None) -> int | None:
    if timeout_s is None:
        return None
    if not 0.001 <= timeout_s <= 86_400:
        raise ConfigError(f"timeout_s {timeout_s} will not do: 0.001 to 86,400 seconds")
    return int(timeout_s * 1000)
