"""Are URLs read as browsers read them, next to the libraries that other crawlers use? And are real links no traps?

`--data DIR` holds `urltestdata.json` (web-platform-tests, BSD-3) and `weird_to_normalized.csv` (crawler-commons,
Apache-2.0), from https://github.com/web-platform-tests/wpt/tree/master/url/resources and
https://github.com/crawler-commons/crawler-commons/tree/master/src/test/resources/normalizer; neither lies here.
`--html DIR` counts the links of a tree of pages that the default limits would take for traps. README.md says how to
read the figures. Exit code 1 when a URL of ours is not as expected and no entry here says why, or a link is a trap.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes, urldefrag, urljoin

import yarl

from streamcrawl.rules.parse import parse_html
from streamcrawl.rules.traps import Traps
from streamcrawl.rules.urls import Canonicalizer, canonical_url, split_url
from streamcrawl.settings import make_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Reader = Callable[[str, str | None], str | None]

SHOWN_MAX: Final = 10
_UNRESERVED: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
_CUT: Final = re.compile("%(?![0-9A-Fa-f]{2})")


# -- web-platform-tests


def is_http(url: Any) -> bool:
    return isinstance(url, str) and url.strip().lower().startswith(("http:", "https:"))


def expected_url(case: dict[str, Any]) -> str | None:
    """Return what a crawler is to make of a case: the URL without user, fragment and empty query; None for no http."""
    if case.get("failure") or not is_http(case["href"]):
        return None
    return f"{case['protocol']}//{case['host']}{case['pathname']}{case['search']}"


def comparable(url: str | None) -> str | None:
    """Return a URL of another library without what is not compared: user, fragment and empty query."""
    if url is None or not is_http(url):
        return None
    url = re.sub(r"^([a-zA-Z]+://)[^/?#]*@", r"\1", url.partition("#")[0])
    return url[:-1] if url.endswith("?") and url.count("?") == 1 else url


def by_yarl(text: str, base: str | None) -> str | None:
    return str(yarl.URL(text) if base is None else yarl.URL(base).join(yarl.URL(text)))


def by_urllib(text: str, base: str | None) -> str | None:
    return urldefrag(text if base is None else urljoin(base, text)).url


def readers() -> dict[str, Reader]:
    """Return who reads, by name; w3lib only where it is installed."""
    found: dict[str, Reader] = {"streamcrawl": canonical_url, "yarl": by_yarl, "urllib": by_urllib}
    try:
        w3lib: Any = importlib.import_module("w3lib.url")
    except ImportError:
        print("w3lib is not installed and left out: pip install w3lib, in an environment of its own", file=sys.stderr)
        return found
    joined: Callable[[str, str | None], str] = lambda text, base: text if base is None else urljoin(base, text)  # noqa: E731
    found["w3lib.canonicalize_url"] = lambda text, base: str(w3lib.canonicalize_url(joined(text, base)))
    found["w3lib.safe_url_string"] = lambda text, base: str(w3lib.safe_url_string(joined(text, base)))
    return found


def read(reader: Reader, case: dict[str, Any]) -> str | None:
    try:
        return comparable(reader(case["input"], case["base"]))
    except Exception:
        return None  # whatever a library says of a text that it takes for no URL


def scoreboard(cases: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the right answers of each reader by kind of case, and where ours are wrong."""
    kinds = {
        "http_urls": [case for case in cases if expected_url(case)],
        "refused": [case for case in cases if not expected_url(case)],
        "of_which_with_http_base": [case for case in cases if is_http(case["base"])],
    }
    scores: dict[str, Any] = {kind: {"cases": len(its)} for kind, its in kinds.items()}
    for name, reader in readers().items():
        for kind, its in kinds.items():
            scores[kind][name] = sum(read(reader, case) == expected_url(case) for case in its)
    wrong = [
        f"{case['input']!r} on {case['base']}: {read(canonical_url, case)}, expected {expected_url(case)}"
        for case in cases
        if read(canonical_url, case) != expected_url(case)
    ]
    return scores, wrong


# -- crawler-commons


def _decode_unreserved(url: str) -> str:
    def decoded(match: re.Match[str]) -> str:
        byte = unquote_to_bytes(match[0])
        return byte.decode() if byte[0] in _UNRESERVED else match[0].upper()

    return _ESCAPE.sub(decoded, url)


def _sort_query(url: str) -> str:
    return Canonicalizer(is_sorted=True)(url)


def _one_slash(url: str) -> str:
    host, path = split_url(url)
    path, mark, query = path.partition("?")
    return host + re.sub("/{2,}", "/", path) + mark + query


def _escape_more(url: str) -> str:
    host, path = split_url(url)
    return host + re.sub(r"[\[\]^`|{}]", lambda match: f"%{ord(match[0]):02X}", path)


def _escape_cut(url: str) -> str:
    return _CUT.sub("%25", url)


def _no_empty_parameters(url: str) -> str:
    path, _, query = url.partition("?")
    pieces = [piece.removesuffix("=") for piece in query.split("&") if piece and not piece.startswith("=")]
    return f"{path}?{'&'.join(pieces)}" if pieces else path


def _no_final_dot(url: str) -> str:
    host, path = split_url(url)
    return host.removesuffix(".") + path


STEPS: Final[dict[str, Callable[[str], str]]] = {
    "escapes": _decode_unreserved,
    "cut_escapes": _escape_cut,
    "more_escapes": _escape_more,
    "slashes": _one_slash,
    "sorting": _sort_query,
    "empty_parameters": _no_empty_parameters,
    "final_dot": _no_final_dot,
}
"""What crawler-commons does and we leave alone, each decided and explained in README.md under its name."""


def explained(text: str, wanted: str) -> str | None:
    """Return why ours is not the URL that is `wanted`, '' when it is; None when nothing explains it."""
    url = canonical_url(text)
    if url == wanted:
        return ""
    if not is_http(wanted):
        return "other_schemes" if url is None else None
    if url is None:
        if "//" not in text:
            return "no_scheme"
        return "no_host" if not text.partition(":")[2].strip("/") else None
    for steps in (*([name] for name in STEPS), *([a, b] for a in STEPS for b in STEPS if a != b)):
        changed = url
        for name in steps:
            changed = STEPS[name](changed)
        if changed == wanted:
            return "+".join(steps)
    return None


def rows_of(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if line.strip() and not line.startswith("#"))
        for row in csv.reader(lines, skipinitialspace=True):
            if len(row) == 2:
                yield row[0], row[1].strip()


def normal_forms(path: Path) -> tuple[dict[str, int], list[str]]:
    """Return how many pairs are as wanted, by which decision others are not, and those that nothing explains."""
    why: Counter[str] = Counter()
    unexplained = []
    for text, wanted in rows_of(path):
        reason = explained(text, wanted)
        why["unexplained" if reason is None else reason or "same"] += 1
        if reason is None:
            unexplained.append(f"{text!r}: {canonical_url(text)}, wanted {wanted}")
    return dict(why.most_common()), unexplained


# -- traps


def trapped(root: Path) -> tuple[dict[str, int], list[str]]:
    """Return how many links of the pages under `root` the default limits leave out by reason, and the first of them."""
    traps = Traps(make_settings("any", {}), time.gmtime().tm_year)
    counts: Counter[str] = Counter()
    shown = []
    for path in sorted(root.rglob("*.html")):
        page = canonical_url(f"http://site.example/{path.relative_to(root).as_posix()}")
        if page is None:
            continue
        counts["pages"] += 1
        for link in parse_html(path.read_bytes(), page, charset=None).links:
            counts["links"] += 1
            reason = traps.reason(link, depth=1, referrer=page)
            if reason is not None:
                counts[reason] += 1
                shown.append(f"{reason}: {link}")
    return dict(counts), shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance.urls", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of urltestdata.json and weird_to_normalized.csv")
    parser.add_argument("--html", type=Path, action="append", default=[], help="tree of pages, may be repeated")
    options = parser.parse_args()
    if options.data is None and not options.html:
        parser.error("say what to read: --data DIR, --html DIR, or both")
    figures: dict[str, Any] = {"benchmark": "conformance.urls"}
    faults: list[str] = []
    if options.data is not None:
        files = [options.data / name for name in ("urltestdata.json", "weird_to_normalized.csv")]
        missing = [str(path) for path in files if not path.is_file()]
        if missing:
            parser.error(f"{' and '.join(missing)} is missing; --help says where the data comes from")
        cases = [case for case in json.loads(files[0].read_bytes()) if isinstance(case, dict)]
        figures["web_platform_tests"], wrong = scoreboard(cases)
        figures["crawler_commons"], unexplained = normal_forms(files[1])
        faults += wrong + unexplained
    for root in options.html:
        figures.setdefault("traps", {})[str(root)], left_out = trapped(root)
        faults += left_out
    print(json.dumps(figures))
    for fault in faults[:SHOWN_MAX]:
        print(fault.encode("ascii", "backslashreplace").decode(), file=sys.stderr)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
