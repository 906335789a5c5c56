"""A program as workers know it: its page handlers, stages and sinks, what feeds what, and in which form items travel.

`streamcrawl.Crawl` (crawl.py) builds a `Program` from decorated functions; workers load it by `module:attribute`. Pure
but for the loading. The one rule of routing: an item goes to every stage whose source is where the item comes from and
whose parameter takes its type; what no stage takes is a result, and goes to the sinks without a source of their own and
to the outputs. A sink with a source gets what comes from there. A source is declared before, so there are no circles.
An output that is an archive gets no items: pages alone bring it what went over the wire (page_work.py).
Start at `Program.router`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import traceback
import types
import typing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import CodecError, ConfigError, StageError, StartError, Unfit
from streamcrawl.settings import SlotLimits
from streamcrawl.web.exchange import is_archive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from streamcrawl.settings import Given

PAGE: Final = "page"
"""The line of pages, as a source."""
_ANY: Final = "any"
FETCHED: Final = "fetched"
"""Of a page that was fetched and is parsed by a stage of its own, in place of the name of a type (fetched.py)."""


def _encode_other(value: Any) -> Any:
    """Return what msgspec can write of a value that it does not know: a pydantic model."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(
        f"{type(value).__qualname__} is no dict, list, plain value, dataclass, msgspec.Struct or pydantic model"
    )


def _decode_other(kind: type, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"{kind.__qualname__} cannot be read from JSON")


ENCODE: Final = msgspec.json.Encoder(enc_hook=_encode_other).encode
"""Write an item as JSON: what msgspec knows (dict, dataclass, Struct, attrs, plain values), and pydantic models."""


class _Stored(msgspec.Struct, array_like=True):
    """What a newer version adds behind these is passed over."""

    kind: str
    raw: msgspec.Raw
    depth: int
    trace: str = ""


_STORED: Final = msgspec.json.Decoder(_Stored)


class Item(msgspec.Struct, frozen=True):
    """One item in the hands of a stage."""

    kind: str
    """Name of the type by which the stage takes it."""
    raw: bytes
    """The item as JSON."""
    url: str
    """Of the page that it comes from, at first or in the end."""
    depth: int = 0
    """Of that page."""
    attempt: int = 1
    crashes: int = 0

    discovered_ms: int = 0
    """When it was emitted, or put back to be tried again; 0 where nobody says."""
    trace: str = ""
    """What it carries of the trace of its page (traces.py); '' for most."""

    @classmethod
    def read(cls, fields: Mapping[bytes, bytes], discovered_ms: int = 0) -> Item:
        """Return the item of a stage's entry.

        Raises:
            CodecError: it is none.
        """
        try:
            stored = _STORED.decode(fields[b"item"])
            attempt, crashes = int(fields.get(b"attempt", 1)), int(fields.get(b"crashes", 0))
            url = fields.get(b"url", b"").decode()
            return cls(stored.kind, bytes(stored.raw), url, stored.depth, attempt, crashes, discovered_ms, stored.trace)
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            raise CodecError(f"stored item cannot be read ({error}): {fields.get(b'item', b'')[:120]!r}") from error


@functools.lru_cache(maxsize=1000)
def kinds_of(kind: type) -> str:
    """Return the names of all types by which an item of this one may be taken, the nearest first."""
    return ";".join(one.__qualname__ for one in kind.__mro__[:-1])


def log_name(name: str) -> str:
    """Return what a retained log is called among the places where items go (_items.lua)."""
    return f"log:{name}"


def pages_log(stage: str) -> str:
    """Return the log of the pages that a stage parses."""
    return f"fetched.{stage}"


def stored_item(kind: str, raw: bytes, depth: int) -> bytes:
    """Return the form in which an item lies in the stream of a stage, before its trace is put at the end."""
    return b'["%b",%b,%d]' % (kind.encode(), raw, depth)


class Taken:
    """Which items a function takes, by the annotation of its parameter, and how they are read again."""

    def __init__(self, annotation: Any) -> None:
        """Read an annotation; none, `Any` and `object` take everything.

        Raises:
            ConfigError: it is of no type that an item may have.
        """
        self._members: dict[str, tuple[type, msgspec.json.Decoder[Any]]] = {}
        self._is_any = annotation in (inspect.Parameter.empty, Any, object)
        if self._is_any:
            return
        is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        for member in typing.get_args(annotation) if is_union else (annotation,):
            origin = typing.get_origin(member) or member
            kind = dict if typing.is_typeddict(origin) or getattr(origin, "__name__", "") == "Mapping" else origin
            if not isinstance(kind, type):
                raise ConfigError(f"a stage cannot take {member!r}: annotate its parameter with classes, or dict")
            try:
                decoder = msgspec.json.Decoder(member, dec_hook=_decode_other)
            except TypeError as error:
                raise ConfigError(f"a stage cannot take {member!r}: {error}") from error
            if isinstance(msgspec.inspect.type_info(member), msgspec.inspect.CustomType) and not hasattr(
                kind, "model_validate"
            ):
                raise ConfigError(
                    f"a stage cannot take {kind.__qualname__}, which cannot be read from JSON: make it a dataclass, a "
                    "msgspec.Struct or a pydantic model"
                )
            self._members[kind.__qualname__] = kind, decoder

    @property
    def names(self) -> list[str]:
        """Names of the types that are taken; none: every one."""
        return list(self._members)

    def __str__(self) -> str:
        return "everything" if self._is_any else " | ".join(self._members)

    def kind_of(self, item: Any) -> str | None:
        """Return the name of the type by which an item is taken; None when it is not."""
        if self._is_any:
            return _ANY
        for name, (kind, _) in self._members.items():
            if type(item) is kind:
                return name
        return next((name for name, (kind, _) in self._members.items() if isinstance(item, kind)), None)

    def decode(self, item: Item) -> Any:
        """Return the item as the function takes it.

        Raises:
            CodecError: it is of another type than this program takes, or lacks what the type has.
        """
        try:
            if self._is_any:
                return msgspec.json.decode(item.raw)
            return self._members[item.kind][1].decode(item.raw)
        except KeyError as error:
            known = ", ".join(self._members)
            raise CodecError(f"an item of type {item.kind} came, and the stage takes {known}") from error
        except (ValueError, msgspec.MsgspecError) as error:
            raise CodecError(f"an item of type {item.kind} cannot be read: {error}") from error


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage or sink of a program."""

    name: str
    function: Callable[..., Any]
    takes: Taken
    source: str | None
    """Name of what feeds it; None for a sink of results."""
    is_sink: bool = False
    is_page: bool = False
    """It gets fetched pages: what it gives counts as what pages give, by the source `page`."""
    label: str = ""
    """Of the pages that it gets."""
    concurrency: SlotLimits = SlotLimits(16, 16)
    """Calls at a time in each process."""
    batch: int = 0
    """Items in one call; 0: one at a time, not as a list."""
    linger_ms: int = 0
    timeout_ms: int | None = None
    """Longest time of one call; None leaves it to the crawl's `handler_timeout`."""
    attempts: int | None = None
    version: str = ""
    retain_ms: int = 0
    """How long what it gives is kept for replays; 0: not at all."""

    @property
    def gives(self) -> str:
        """The source of its items."""
        return PAGE if self.is_page else self.name

    @property
    def line(self) -> str:
        """What it is called in Redis and in counts: its name, with its version."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def slots(self) -> SlotLimits:
        """Entries that one process holds at a time: of a sink one batch is written while the next one gathers."""
        return SlotLimits(2 * self.batch, 2 * self.batch) if self.batch else self.concurrency


class Resource:
    """Something that a worker opens once, and closes at its end: what a function decorated with `on_start` yields."""

    def __init__(self, function: Callable[[], AsyncIterator[Any]], stages: Sequence[str]) -> None:
        self._function = function
        self._running: AsyncIterator[Any] | None = None
        self.name: Final = getattr(function, "__name__", "resource")
        self.stages: Final = tuple(stages)
        """Whose workers open it; all when empty."""
        self.is_open = False
        self.held: Any = None

    async def open(self) -> None:
        """Run the function to its yield.

        Raises:
            StartError: it failed, or yielded nothing.
            ConfigError: it is no async generator.
        """
        self._running = self._function()
        if not hasattr(self._running, "__anext__"):
            raise ConfigError(
                f"{self.name} gave a {type(self._running).__name__}: on_start takes an async def that yields what it "
                "opened"
            )
        try:
            self.held = await anext(self._running)
        except StopAsyncIteration as error:
            raise StartError(f"{self.name} yielded nothing: it has to yield what it opened", stage="start") from error
        except Exception as error:
            text = "".join(traceback.format_exception(error)).strip()
            raise StartError(f"{self.name} failed at the start of a worker:\n{text}", stage="start") from error
        self.is_open = True

    async def close(self) -> None:
        """Run the function to its end."""
        if self._running is not None and self.is_open:
            self.is_open = False
            await anext(self._running, None)


class Program(msgspec.Struct):
    """Everything a user declared."""

    name: str
    seeds: tuple[str, ...] = ()
    settings: dict[str, Given] = msgspec.field(default_factory=dict)
    pages: dict[str, Callable[..., Any]] = msgspec.field(default_factory=dict)
    """Handlers of pages by label; '' for those without one. None at all: pages are followed and recorded as by
    `streamcrawl crawl`."""
    retained_pages: dict[str, int] = msgspec.field(default_factory=dict)
    """Label -> how long what the handler in `pages` gives is kept, ms; without those of which nothing is."""
    stages: list[Stage] = msgspec.field(default_factory=list)
    """In the order of declaration; sinks too."""
    resources: list[Resource] = msgspec.field(default_factory=list)

    def stage(self, name: str) -> Stage:
        """Return a stage by its name.

        Raises:
            ConfigError: there is none.
        """
        for stage in self.stages:
            if name in (stage.name, stage.line):
                return stage
        known = ", ".join([PAGE, *(stage.name for stage in self.stages)])
        raise ConfigError(f"program {self.name!r} has no stage {name!r}: it has {known}")

    def flow(self, outputs: Sequence[str]) -> bytes:
        """Return JSON of what feeds each stage and output, as flow.lua takes it."""
        lines = [PAGE, *(stage.line for stage in self.stages if not stage.is_sink)]
        givers = [PAGE, *(stage.name for stage in self.stages if not stage.is_sink)]
        rows: dict[str, dict[str, Any]] = {
            name: {"from": [PAGE], "batch": 1}
            if is_archive(name)
            else {"from": lines, "batch": 1, "logs": givers, "is_results": True}
            for name in outputs
        }
        for stage in self.stages:
            feeds = lines if stage.source is None else self._lines_of(stage)
            row = rows[stage.line] = {"from": feeds, "batch": stage.batch or 1}
            if stage.is_page:
                row |= {"logs": [pages_log(stage.name)], "takes": [FETCHED]}
                continue
            row["logs"] = givers if stage.source is None else [line.partition("@")[0] for line in feeds]
            if stage.source is None:
                row["is_results"] = True
            if stage.takes.names:
                row["takes"] = stage.takes.names
        return msgspec.json.encode(rows)

    def logs(self) -> dict[str, int]:
        """Return the retained logs by name: for how many ms each keeps what is written to it; those of fetched pages go
        by the crawl's `keep_bodies`, and have 0."""
        found = {stage.name: stage.retain_ms for stage in self.stages if stage.retain_ms}
        if self.retained_pages:
            found[PAGE] = max(self.retained_pages.values())
        return found | {pages_log(stage.name): 0 for stage in self.stages if stage.is_page}

    def fed_by(self, stage: Stage, outputs: Sequence[str]) -> frozenset[str]:
        """Return the lines and outputs that get items of a stage."""
        if stage.is_sink:
            return frozenset()
        return frozenset(
            one.line
            for one in self.stages
            if (one.is_sink and one.source is None) or (one.source == stage.gives and not one.is_page)
        ) | frozenset(_for_items(outputs))

    def router(self, source: str, outputs: Sequence[str], *, log: str = "") -> Callable[[Any, int], list[str | bytes]]:
        """Return what says where an item that comes from `source` goes: flat, stage or output, record, ….

        It takes the item and the depth of its page. It raises StageError for one that cannot be written or that nothing
        takes, and Unfit where nothing takes any. `log` is the retained log that gets the item too.
        """
        stages = [stage for stage in self.stages if stage.source == source and not stage.is_page]
        sinks = [stage for stage in self.stages if stage.is_sink and stage.source is None]
        outputs = _for_items(outputs)

        def what(item: Any) -> str:
            return f"{source} gave an item of type {type(item).__qualname__}"

        def route(item: Any, depth: int) -> list[str | bytes]:
            try:
                raw = ENCODE(item)
            except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
                raise StageError(f"{what(item)}, which cannot be written as JSON: {error}", stage=source) from error
            flat: list[str | bytes] = []
            is_taken = False
            for stage in stages:
                kind = stage.takes.kind_of(item)
                if kind is not None:
                    flat += (stage.line, stored_item(kind, raw, depth))
                    is_taken = is_taken or not stage.is_sink
            if not is_taken:
                for stage in sinks:
                    kind = stage.takes.kind_of(item)
                    if kind is not None:
                        flat += (stage.line, stored_item(kind, raw, depth))
                for name in outputs:
                    flat += (name, raw)
            if not flat:
                # Said aloud: it would be lost, and nothing would count it.
                takers = [f"{stage.name} takes {stage.takes}" for stage in (*stages, *sinks)]
                if not takers:
                    # Every item, then: the pages of a whole crawl would die one by one.
                    raise Unfit(
                        f"{what(item)}, and nothing takes items (an archive takes pages): declare a sink, or begin "
                        "again with --fresh and -o FILE.jsonl too"
                    )
                raise StageError(f"{what(item)}, which nobody takes ({', '.join(takers)})", stage=source)
            if log:
                flat += (log_name(log), b"%d%b" % (not is_taken, stored_item(kinds_of(item.__class__), raw, depth)))
            return flat

        return route

    def _lines_of(self, stage: Stage) -> list[str]:
        """Return the lines that feed a stage with a source."""
        assert stage.source is not None
        if stage.source != PAGE:
            return [self.stage(stage.source).line]
        return [PAGE] if stage.is_page else [PAGE, *(one.line for one in self.stages if one.is_page)]


def _for_items(outputs: Sequence[str]) -> list[str]:
    """Return the outputs that take items: at one among its exchanges the writer of an archive would end, for ever."""
    return [name for name in outputs if not is_archive(name)]


def check_handler(function: Callable[..., Any], given: str) -> None:
    """Raise ConfigError for a function that cannot be called with one argument, as all handlers are."""
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        name = getattr(function, "__qualname__", str(function))
        raise ConfigError(f"{name} is called with {given} alone, and cannot be: {error}") from error


def annotation_of(function: Callable[..., Any], *, is_batch: bool) -> Any:
    """Return the annotation of a function's first parameter; of a batch that of its elements.

    Raises:
        ConfigError: it cannot be called with one argument, or its annotation is a name that its module does not know.
    """
    name = getattr(function, "__qualname__", str(function))
    check_handler(function, "the list of items" if is_batch else "the item")
    annotation = next(iter(inspect.signature(function).parameters.values())).annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(function, "__globals__", {}))
        except Exception as error:
            raise ConfigError(
                f"{name}: what its parameter is annotated with, {annotation}, cannot be found ({error}): define it, or "
                "import it, at the top of its module"
            ) from error
    if not is_batch or annotation in (inspect.Parameter.empty, Any, object, list):
        return annotation if annotation is not list else Any
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if len(arguments) != 1 or not (isinstance(origin, type) and issubclass(list, origin)):
        shown = getattr(annotation, "__qualname__", annotation) if origin is None else annotation
        raise ConfigError(f"{name} gets a batch: annotate its parameter as list[{shown}], not as {shown}")
    return arguments[0]


def load_object(path: str, what: str) -> Any:
    """Return what `module:attribute` names.

    Raises:
        ConfigError: there is no such module or attribute, or the module itself fails.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{what} {path!r} must be written module:attribute, as shop:crawl for `crawl` in shop.py")
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise ConfigError(f"{what} {path!r} names a file: write its module, {dotted}:{name}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ConfigError:
        raise
    except Exception as error:  # the module is somebody's code: a traceback through ours would hide its line
        raise ConfigError(f"{what} {path!r} cannot be loaded: {_why(error)}") from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ConfigError(f"{what} {path!r} cannot be loaded: {error}") from error


def _why(error: Exception) -> str:
    """Return in one line why a module could not be imported, and where in it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # which names file and line by itself
    inside = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<")
    ]
    if not inside:
        return f"{error} (looked for in this folder and where Python finds modules)"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({inside[-1].filename}, line {inside[-1].lineno})"


def load_program(path: str) -> Program:
    """Return the program whose `Crawl` is at `module:attribute`.

    Raises:
        ConfigError: there is none, or it names a stage that it does not have.
    """
    program = getattr(load_object(path, "program"), "program", None)
    if not isinstance(program, Program):
        raise ConfigError(f"program {path!r} is no streamcrawl.Crawl")
    known = [PAGE, *(stage.name for stage in program.stages)]
    for resource in program.resources:
        # Opened nowhere, it would be missed only by the first item.
        if unknown := next((stage for stage in resource.stages if stage not in known), None):
            raise ConfigError(
                f"program {program.name!r} has no stage {unknown!r}, for which {resource.name} is: "
                f"it has {', '.join(known)}"
            )
    return program
