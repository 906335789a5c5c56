"""Are the pages of real sites taken for near-identical, and what does it cost to see?

Each folder under `--html` is read as one host: its pages in the order of their paths, which is how an index brings
them, and shuffled. As in a crawl one page in so many is sketched (rules/alike.py), and the share of near-identical ones
moves by the rule of store/lua/_alike.lua, which stands here once more. A folder whose share reaches the bound would be
demoted: then the exit code is 1. Costs are CPU µs of this process, the best of five.

    python -m benchmarks.alike --html /usr/share/doc/python3.11/html --html /usr/share/doc/sqlite3
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from streamcrawl.rules.alike import SAMPLED, is_sampled, sketch_of
from streamcrawl.rules.parse import parse_html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

KEPT: Final = 7
MANY: Final = 900
TIMED_MAX: Final = 200
"""Pages of a folder whose cost is measured."""


class Page(NamedTuple):
    path: str
    body: bytes


class Seen(NamedTuple):
    """What a crawl of a host would have made of its pages."""

    sampled: int
    near: int
    share_max: int
    """Thousandths."""


def look(sketches: Iterable[str]) -> Seen:
    """Fold the sketches of a host as _alike.lua does."""
    kept: list[str] = []
    sampled = near = share = share_max = 0
    for sketch in sketches:
        alike = [one for one in kept if sum(map(str.__ne__, one[1:], sketch[1:])) <= int(sketch[0])]
        kept = [sketch, *(one for one in kept if one not in alike)][:KEPT]
        share = share + (1000 - share) // 10 if alike else share * 9 // 10
        sampled, near, share_max = sampled + 1, near + bool(alike), max(share_max, share)
    return Seen(sampled, near, share_max)


def read_pages(folder: Path) -> list[Page]:
    """Return the pages of a folder by their paths; those that send on at once are none."""
    files = sorted(folder.rglob("*.html"))
    pages = (Page(f"/{file.relative_to(folder)}", file.read_bytes()) for file in files if file.is_file())
    return [page for page in pages if b'http-equiv="refresh"' not in page.body[:2000]]


def cost_us(act: Callable[[Page], object], pages: Sequence[Page]) -> int:
    took = []
    for _ in range(5):
        began = time.process_time()
        for page in pages:
            act(page)
        took.append(time.process_time() - began)
    return round(1e6 * min(took) / len(pages))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alike")
    parser.add_argument("--html", type=Path, action="append", required=True, help="folder of pages, may be repeated")
    found: dict[str, dict[str, object]] = {}
    share_max = 0
    for folder in parser.parse_args().html:
        pages = read_pages(folder)
        if not pages:
            parser.error(f"{folder} has no page")
        mixed = random.Random(1).sample(pages, len(pages))
        orders = {
            name: look(filter(None, (sketch_of(page.body, page.path) for page in order if is_sampled(page.path))))
            for name, order in (("in_order", pages), ("shuffled", mixed))
        }
        share_max = max(share_max, *(seen.share_max for seen in orders.values()))
        timed = mixed[:TIMED_MAX]
        found[str(folder)] = {
            "pages": len(pages),
            **{name: seen._asdict() for name, seen in orders.items()},
            "kb": round(sum(len(page.body) for page in timed) / len(timed) / 1000),
            "parse_us": cost_us(
                lambda page: parse_html(page.body, f"http://a.test{page.path}", charset="utf-8"), timed
            ),
            "sketch_us_of_a_page": round(cost_us(lambda page: sketch_of(page.body, page.path), timed) / SAMPLED, 1),
        }
    print(json.dumps({"benchmark": "alike", "sampled": SAMPLED, "bar": MANY, "hosts": found}))
    raise SystemExit(share_max >= MANY)


if __name__ == "__main__":
    main()
