"""Which pages are nearly the same (rules/alike.py): tables of pages, as sketches are compared by _alike.lua."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from streamcrawl.rules.alike import BODY_MAX_BYTES, LENGTH, SAMPLED, is_sampled, sketch_of

if TYPE_CHECKING:
    from collections.abc import Callable

MENU: Final = """
    home about contact imprint privacy terms newsletter help basket account offers brands stores jobs press search
    shirts trousers jackets shoes socks hats gloves scarves belts bags watches rings necklaces earrings sale new
    women men children babies sports outdoor swimming running cycling hiking winter summer spring autumn shipping
    returns payment credit card transfer invoice gift vouchers size guide care instructions materials sustainability
    follow us facebook instagram youtube copyright all rights reserved prices include taxes country language"""
TEXT: Final = "clear quick brown fox jumps over lazy dog while heavy rain falls on quiet hills beside narrow rivers"
WORDS: Final = TEXT.split(" ")
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
DAYS: Final = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"


def page(text: str) -> bytes:
    return f"<!DOCTYPE html><title>shop</title><nav>{MENU}</nav><main>{text}</main>".encode()


def is_near(one: str, other: str) -> bool:
    """As `is_near` in _alike.lua."""
    return sum(a != b for a, b in zip(one[1:], other[1:], strict=True)) <= int(other[0])


def calendar(n: int) -> tuple[str, bytes]:
    month = MONTHS[n % 12]
    days = " ".join(f"<td>{day}</td>" for day in range(1, 29))
    return f"/cal?m={n}", page(f"<h1>{month} {2000 + n // 12}</h1>{DAYS}{days} <a href='?m={n + 1}'>next</a>")


def session(n: int) -> tuple[str, bytes]:
    token = f"{random.Random(n).getrandbits(64):016x}"
    return f"/list?sid={token}", page(f"<a href='/list?sid={token}x'>all of it</a><script>var s='{token}'</script>")


def soft_404(n: int) -> tuple[str, bytes]:
    path = f"/{WORDS[n % 18]}/{WORDS[n * 7 % 18]}-{WORDS[n * 5 % 18]}"
    return path, page(f"Sorry, nothing was found at {path}. Try the search, or one of the pages above.")


def listing(n: int) -> tuple[str, bytes]:
    rows = "".join(f"<p>Article {n * 10 + i}: {n * i + 3}.99 EUR, no. AB{n}X{i}" for i in range(10))
    return f"/list?page={n}", page(rows)


def wording(n: int) -> tuple[str, bytes]:
    return f"/w/{n}", page(f"The word of this page is {WORDS[n % 18]}.")


@pytest.mark.parametrize("trap", [calendar, session, soft_404, listing, wording], ids=lambda one: one.__name__)
def test_pages_of_a_trap_are_near_the_one_before(trap: Callable[[int], tuple[str, bytes]]) -> None:
    sketches = [sketch_of(body, path) for path, body in map(trap, range(60))]
    assert all(len(sketch) == LENGTH for sketch in sketches)
    assert sum(is_near(*pair) for pair in pairwise(sketches)) >= 57


def article(n: int) -> tuple[str, bytes]:
    # Under a menu of a hundred words, six of its own: the share that two pages have in common is 0.9.
    own = random.Random(n)
    words = " ".join("".join(own.choices("abcdefghij", k=7)) for _ in range(6))
    return f"/p/{n}", page(f"<h1>{words}</h1> {n}.99 EUR, in stock")


def short(n: int) -> tuple[str, bytes]:
    return f"/s/{n}", f"<title>x</title><p>{WORDS[n % 18]} {n}".encode()


def thread(n: int) -> tuple[str, bytes]:
    own = random.Random(n)
    posts = "".join(f"<p>{' '.join(own.choices(WORDS, k=8))} {own.choice(MONTHS)}" for _ in range(3))
    return f"/t/{n}", page(posts)


@pytest.mark.parametrize("site", [article, short, thread], ids=lambda one: one.__name__)
def test_pages_that_differ_in_some_words_are_not(site: Callable[[int], tuple[str, bytes]]) -> None:
    sketches = [sketch_of(body, path) for path, body in map(site, range(17))]
    assert sum(is_near(one, other) for one in sketches for other in sketches if one is not other) <= 17 * 16 * 0.05


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"<p>a cat sat here", b"<P>here A cat\n sat"),  # neither order nor case nor space
        (b"<p>some 12 words <b>4th</b>", b"<p>some 7 words <b>3rd</b>"),
        (b"<p>a<script>b()</script> word", b"<p>a<script src=x>c(d)</script> word"),
        (b"<p>a <a href='/x'>word</a>", b"<p class=k>a <a href='/y' title='no text'>word</a>"),
        ("<p>große Stra\u00dfe 1".encode(), "<p>große Stra\u00dfe 2".encode()),
    ],
)
def test_what_is_no_word_does_not_count(one: bytes, other: bytes) -> None:
    assert sketch_of(one, "/") == sketch_of(other, "/") != ""


def test_words_of_its_own_path_do_not_count() -> None:
    body = b"<p>There is no /some/thing?here=now"
    assert sketch_of(body, "/some/thing?here=now") == sketch_of(b"<p>There is no /other", "/other?x=1")
    assert sketch_of(body, "/") != sketch_of(b"<p>There is no /other", "/")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<p>",
        b"no tag at all",
        b"<p>17 / 2024",
        b"<p>" + b"word " * BODY_MAX_BYTES,
        "<p>two bytes".encode("utf-16"),
    ],
    ids=["empty", "no text", "no markup", "digits", "long", "utf-16"],
)
def test_of_some_pages_nothing_is_said(body: bytes) -> None:
    assert sketch_of(body, "/") == ""


@pytest.mark.parametrize(("count", "tolerance"), [(1, "0"), (15, "0"), (16, "1"), (63, "1"), (64, "2"), (5000, "2")])
def test_more_words_may_differ_in_a_longer_text(count: int, tolerance: str) -> None:
    own = random.Random(1)
    words = {"".join(own.choices("abcdefghijklmnop", k=8)) for _ in range(count)}
    sketch = sketch_of(f"<p>{' '.join(words)}".encode(), "/")
    assert sketch[0] == tolerance
    exchanged = f"<p>{' '.join(sorted(words)[1:])} another".encode()
    assert tolerance == "1" or is_near(sketch_of(exchanged, "/"), sketch) == (tolerance == "2")


def test_one_page_in_so_many_is_sampled_always_the_same() -> None:
    paths = [f"/p/{n}" for n in range(16_000)]
    sampled = [path for path in paths if is_sampled(path)]
    assert len(sampled) == pytest.approx(16_000 / SAMPLED, rel=0.15)
    assert sampled == [path for path in paths if is_sampled(path)]
