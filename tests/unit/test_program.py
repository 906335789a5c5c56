"""What feeds what in a program: which items a function takes, where each goes, and what is refused at its start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest
from pydantic import BaseModel

from streamcrawl import Crawl
from streamcrawl.errors import CodecError, ConfigError, StageError, Unfit
from streamcrawl.work.program import ENCODE, PAGE, Item, Program, Resource, Taken, annotation_of, load_program

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Book:
    title: str
    price: float = 0.0


@dataclass
class SpecialBook(Book):
    """Taken as a Book too."""


@dataclass
class Novel(Book):
    author: str = ""


class Page(msgspec.Struct):
    number: int


class Row(TypedDict):
    number: int


class Model(BaseModel):
    number: int
    when: datetime = datetime(2026, 12, 1, tzinfo=UTC)


@dataclass
class Holder:
    model: Model


def through(taken: Taken, thing: Any) -> Any:
    """Send an item on its way and read it at the other end."""
    kind = taken.kind_of(thing)
    assert kind is not None
    return taken.decode(Item(kind, ENCODE(thing), "http://a.test/"))


@pytest.mark.parametrize(
    ("annotation", "thing"),
    [
        (Book, Book("a", 1.5)),
        (Page, Page(3)),
        (Model, Model(number=4)),
        (Holder, Holder(Model(number=5))),
        (dict, {"a": [1, None]}),
        (dict[str, int], {"a": 1}),
        (Row, {"number": 1}),
        (Book | Page, Page(5)),
        (Book | Page | None, None),
        (str, "text"),
        (Any, {"a": 1}),
        (object, [1, 2]),
    ],
)
def test_item_comes_out_as_it_went_in(annotation: Any, thing: Any) -> None:
    if thing is None:
        assert Taken(annotation).kind_of(thing) is not None
        return
    assert through(Taken(annotation), thing) == thing


def test_type_decides_who_takes_an_item() -> None:
    assert Taken(Book).kind_of(Page(1)) is None
    assert Taken(dict).kind_of(Book("a")) is None
    assert Taken(Book).kind_of(Novel("a", author="b")) == "Book", "of a subclass what the base has is taken"
    assert Taken(Novel | Book).kind_of(Book("a")) == "Book"
    assert Taken(Book | Novel).kind_of(Novel("a")) == "Novel"


@pytest.mark.parametrize("item", [Item("Page", b'{"number":1}', ""), Item("Book", b'{"title":1}', "")])
def test_item_of_another_version_is_refused_with_its_reason(item: Item) -> None:
    with pytest.raises(CodecError, match=r"type (Page|Book)"):
        Taken(Book).decode(item)


@pytest.mark.parametrize("stored", [b"", b"{}", b'["Book",{}]', b'["Book",{},"x"]'])
def test_entry_that_holds_no_item_is_refused(stored: bytes) -> None:
    with pytest.raises(CodecError, match="stored item cannot be read"):
        Item.read({b"item": stored})


def test_an_item_carries_a_trace_and_what_a_newer_version_adds_is_passed_over() -> None:
    assert Item.read({b"item": b'["Book",{},2]'}).trace == ""
    newer = Item.read({b"item": b'["Book",{"title":"a"},2,"0af7","more",[]]'})
    assert (newer.trace, newer.depth, newer.raw) == ("0af7", 2, b'{"title":"a"}')


class Plain:
    pass


def yielding(items: Any = None) -> Any:
    yield items


def taking(annotation: Any) -> Any:
    def function(item: Any) -> None: ...

    function.__annotations__["item"] = annotation
    return function


def test_batch_is_annotated_as_a_list() -> None:
    assert annotation_of(taking(list[Book]), is_batch=True) is Book
    assert annotation_of(taking("list[Book]"), is_batch=True) is Book
    assert annotation_of(taking(list), is_batch=True) is Any
    for wrong in (Book, dict[str, int], "Unknown"):
        with pytest.raises(ConfigError, match=r"annotate|cannot be found"):
            annotation_of(taking(wrong), is_batch=True)
    with pytest.raises(ConfigError, match=r"annotate its parameter as list\[Book\], not as Book"):
        annotation_of(taking(Book), is_batch=True)


@pytest.mark.parametrize("function", [lambda: None, lambda item, more: None, lambda *, item: None])
def test_function_that_cannot_be_called_with_one_thing_is_refused(function: Any) -> None:
    for declare in (Crawl("shop").page, Crawl("shop").stage(name="x"), Crawl("shop").sink(name="x")):
        with pytest.raises(ConfigError, match=r"<lambda> is called with the .* alone, and cannot be: "):
            declare(function)


# -- routing


def shop() -> tuple[Crawl, Program]:
    crawl = Crawl("shop")

    @crawl.stage
    async def price(book: Book) -> Book:
        return book

    @crawl.stage(source=PAGE)
    async def count(page: Page) -> None: ...

    @crawl.stage(source="price", version=2)
    async def index(book: Book) -> None: ...

    @crawl.sink
    async def save(rows: list[dict[str, Any] | Page]) -> None: ...

    @crawl.sink(source="price", batch=7)
    async def watch(books: list[Book]) -> None: ...

    return crawl, crawl.program


def test_item_goes_to_who_takes_it_and_a_result_to_sinks_and_outputs() -> None:
    _, program = shop()
    of_page, of_price, of_index = (program.router(source, ["warc-out", "out"]) for source in (PAGE, "price", "index"))
    book = b'{"title":"a","price":0.0}'
    assert of_page(Book("a"), 3) == ["price", b'["Book",%b,3]' % book]
    assert of_page(Page(1), 0) == ["count", b'["Page",{"number":1},0]']
    assert of_page({"a": 1}, 0) == ["save", b'["dict",{"a":1},0]', "out", b'{"a":1}']
    assert of_price(Book("a"), 0) == ["index@2", b'["Book",%b,0]' % book, "watch", b'["Book",%b,0]' % book]
    assert of_index(Book("a"), 0) == ["out", book], "an output takes every result"
    with pytest.raises(StageError, match=r"index gave an item of type Book, which nobody takes \("):
        program.router("index", [])(Book("a"), 0)
    with pytest.raises(StageError, match="type complex, which cannot be written as JSON: complex is no dict"):
        of_index(1j, 0)


def test_item_that_nothing_could_ever_take_is_the_fault_of_the_run() -> None:
    crawl = Crawl("shop")
    crawl.page(taking(Any))
    with pytest.raises(Unfit, match=r"type Book, and nothing takes items \(an archive takes pages\): declare a sink"):
        crawl.program.router(PAGE, ["warc-out"])(Book("a"), 0)


def test_flow_names_what_is_held_back_by_a_full_stream() -> None:
    _, program = shop()
    flow = msgspec.json.decode(program.flow(["out", "warc-out"]))
    lines = ["page", "price", "count", "index@2"]
    logs = ["page", "price", "count", "index"]
    assert flow == {
        "warc-out": {"from": ["page"], "batch": 1},
        "out": {"from": lines, "batch": 1, "logs": logs, "is_results": True},
        "price": {"from": ["page"], "batch": 1, "logs": ["page"], "takes": ["Book"]},
        "count": {"from": ["page"], "batch": 1, "logs": ["page"], "takes": ["Page"]},
        "index@2": {"from": ["price"], "batch": 1, "logs": ["price"], "takes": ["Book"]},
        "save": {"from": lines, "batch": 100, "logs": logs, "takes": ["dict", "Page"], "is_results": True},
        "watch": {"from": ["price"], "batch": 7, "logs": ["price"], "takes": ["Book"]},
    }
    for stage in program.stages:
        fed = program.fed_by(stage, ["out", "warc-out"])
        assert fed == {name for name, row in flow.items() if stage.line in row["from"]}, stage.name


def test_pages_parsed_elsewhere_feed_what_pages_feed() -> None:
    crawl = Crawl("shop")
    crawl.page(own_stage=True)(taking(Any))
    crawl.page(own_stage=True, label="item")(taking(Any))

    @crawl.stage
    async def price(book: Book) -> Book:
        return book

    program = crawl.program
    assert [stage.name for stage in program.stages] == ["parse", "parse_item", "price"]
    flow = msgspec.json.decode(program.flow(["out"]))
    assert flow["parse"]["from"] == flow["parse_item"]["from"] == ["page"]
    assert flow["price"]["from"] == ["page", "parse", "parse_item"]
    assert program.fed_by(program.stage("parse"), ["out"]) == {"price", "out"}
    assert program.router(program.stage("parse_item").gives, ["out"])(Book("a"), 1)[0] == "price"
    with pytest.raises(ConfigError, match="two page handlers have the label 'item'"):
        crawl.page(label="item")(taking(Any))


def test_retained_item_goes_to_its_log_with_all_types_by_which_it_may_be_taken() -> None:
    crawl = Crawl("shop")
    crawl.page(label="plain")(taking(Any))
    crawl.page(retain="2h")(taking(Any))
    crawl.page(label="long", retain=7201)(taking(Any))
    crawl.page(label="elsewhere", own_stage=True, retain="1d")(taking(Any))

    @crawl.stage(retain="30m", version=3)
    async def price(book: Book) -> None: ...

    program = crawl.program
    assert program.logs() == {
        "page": 7_201_000, "parse_elsewhere": 86_400_000, "price": 1_800_000, "fetched.parse_elsewhere": 0,
    }  # fmt: skip
    assert set(program.retained_pages) == {"", "long"}
    route = program.router("price", ["out"], log="price")
    raw = b'{"title":"a","price":0.0}'
    assert route(SpecialBook("a"), 1) == ["out", raw, "log:price", b'1["SpecialBook;Book",%b,1]' % raw]
    of_page = program.router(PAGE, ["out"], log=PAGE)
    assert of_page(Book("a"), 0)[-2:] == ["log:page", b'0["Book",%b,0]' % raw]
    for wrong in ("0.5s", "366d", "soon"):
        with pytest.raises(ConfigError):
            crawl.stage(name="later", retain=wrong)(taking(Any))


# -- what is refused when the program is read


def test_source_must_be_declared_before_so_no_item_goes_in_a_circle() -> None:
    crawl, _ = shop()
    for source in ("later", "save"):
        with pytest.raises(ConfigError, match=f"source '{source}' is not declared before: there is page, price, count"):
            crawl.stage(source=source)(taking(Book))


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda crawl: crawl.stage(name="page")(taking(Any)), "stage name 'page' will not do"),
        # Its counts would pass for refusals of hosts.
        (lambda crawl: crawl.stage(name="throttled")(taking(Any)), "stage name 'throttled' will not do"),
        (lambda crawl: crawl.stage(name="a:b")(taking(Any)), "stage name 'a:b' will not do"),
        (lambda crawl: crawl.stage(name="price")(taking(Any)), "two stages are called 'price'"),
        (lambda crawl: crawl.stage(name="x", concurrency=0)(taking(Any)), "concurrency 0 will not do"),
        (lambda crawl: crawl.sink(name="x", batch=1001)(taking(Any)), "batch 1001 will not do"),
        (lambda crawl: crawl.stage(name="x", timeout_s=0)(taking(Any)), "timeout_s 0 will not do"),
        (lambda crawl: crawl.stage(name="x")(taking(3)), "a stage cannot take 3"),
        (
            lambda crawl: crawl.stage(name="x")(taking(Plain)),
            "a stage cannot take Plain, which cannot be read from JSON",
        ),
        (lambda crawl: crawl.sink(name="x")(yielding), "yielding yields, and nothing comes after a sink"),
        (lambda crawl: crawl.on_start(yielding), "yielding will not do for on_start: make it async def, and yield"),
        (lambda crawl: Crawl("x", seeds="http://a.test/"), "seeds='http://a.test/'.: give a list"),
        (lambda crawl: (crawl.page(taking(Any)), crawl.page(taking(Any))), "two page handlers have the label ''"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(declare: Any, words: str) -> None:
    crawl, _ = shop()
    with pytest.raises(ConfigError, match=words) as caught:
        declare(crawl)
    assert "\n" not in str(caught.value)


def test_settings_of_a_program_are_spelled_as_in_a_settings_file() -> None:
    crawl = Crawl("shop", delay=0.5, scope="domain", obey_robots=False, allow=["/a", "/b"], pages_max=7)
    given = {field: one.value for field, one in crawl.program.settings.items()}
    assert given == {
        "delay_ms": 500, "scope": "domain", "obey_robots": False, "allow": ("/a", "/b"), "pages_max": 7,
    }  # fmt: skip
    for wrong, words in (({"delay_ms": 5}, "nearest is 'delay'"), ({"delay": "soon"}, "delay='soon'")):
        with pytest.raises(ConfigError, match=words):
            Crawl("shop", **wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:", r"SyntaxError: invalid syntax \(\w+\.py, line 2\)$"),
        ("crawl = {}['x']", r"KeyError: 'x' \(.+\.py, line 2\)$"),
        ("import no_such_thing", r"ModuleNotFoundError: No module named 'no_such_thing' \(.+\.py, line 2\)$"),
        ("crawl = Crawl('a b')", "crawl name 'a b' will not do"),
        ("shop = Crawl('a')", "has no attribute 'crawl'$"),
        ("crawl = 3", "is no streamcrawl.Crawl$"),
        ("crawl = Crawl('a', seeds='http://a.test/')", "give a list of URLs$"),
        (
            "crawl = Crawl('a')\n@crawl.on_start(stages=['save'])\nasync def database(): yield 1",
            "program 'a' has no stage 'save', for which database is: it has page$",
        ),
    ],
)
def test_module_that_cannot_be_loaded_is_one_line_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"program_{abs(hash(text))}"  # Python remembers a module by its name
    (tmp_path / f"{name}.py").write_text(f"from streamcrawl import Crawl\n{text}\n")
    with pytest.raises(ConfigError, match=words) as caught:
        load_program(f"{name}:crawl")
    assert "\n" not in str(caught.value)


def test_file_in_place_of_a_module_is_said_so() -> None:
    with pytest.raises(ConfigError, match=r"'shops/a\.py:crawl' names a file: write its module, shops\.a:crawl$"):
        load_program("shops/a.py:crawl")


async def test_resource_that_is_no_generator_is_said_so() -> None:
    with pytest.raises(ConfigError, match="<lambda> gave a int: on_start takes an async def that yields"):
        await Resource(lambda: 5, ()).open()  # type: ignore[arg-type, return-value]


def test_resource_is_open_in_workers_only() -> None:
    crawl = Crawl("shop")

    @crawl.on_start
    async def client() -> Any:
        yield 5

    with pytest.raises(RuntimeError, match="client is not open"):
        _ = client.value
