"""What do streamcrawl and others find in the same sitemaps, and what does a long one cost them?

The data are the test resources of crawler-commons (Apache-2.0), which are no part of this repository: `git clone
https://github.com/crawler-commons/crawler-commons`, then `--data crawler-commons/src/test/resources/sitemaps`; files
that are not in `LISTED` are passed over. What each of them lists was counted by eye. Beside them stand the cases of
`MADE`: faults and forms that sites have, and what is to be had from them. A case is right when exactly those URLs are
found that it lists, in any order.

With `--others` each other library is installed into a virtual environment of its own, which is thrown away.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

LISTED: Final[dict[str, int]] = {
    "atom.xml": 1,
    "do-not-visit.txt": 1,
    "extension/hebdenbridgetimes-articles-sitemap.xml": 74,
    "extension/pagemaps-sitemap.xml": 2,
    "extension/shinpaideshou-news-sitemap.xml": 3,
    "extension/sitemap-images.xml": 1,
    "extension/sitemap-links.xml": 3,
    "extension/sitemap-mobile.xml": 3,
    "extension/sitemap-news.xml": 2,
    "extension/sitemap-videos-tvshow.xml": 1,
    "extension/sitemap-videos.xml": 3,
    "rss/feed.rss": 4,
    "rss/xmlRss_pubDate.xml": 7,
    "sitemap-with-bom.txt": 2,
    "sitemap.badns.xml": 2,
    "sitemap.index.xml": 15,
    "sitemap.ns.xml": 2,
    "sitemap.txt": 2,
    "sitemap.txt.gz": 5,
    "xmlSitemap.gz": 5,
}
"""Entries of each file, sitemaps of an index among them."""
ORIGIN: Final = "https://www.example.com"
TWO: Final = f"<url><loc>{ORIGIN}/1</loc></url><url><loc>{ORIGIN}/2</loc></url>"
BOTH: Final = (f"{ORIGIN}/1", f"{ORIGIN}/2")
LAUGHS: Final = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(6))

MADE: Final[dict[str, tuple[bytes, tuple[str, ...]]]] = {
    "gzip_without_a_name.xml": (gzip.compress(f"<urlset>{TWO}</urlset>".encode()), BOTH),
    "inflated.xml.gz": (f"<urlset>{TWO}</urlset>".encode(), BOTH),
    "gzip_cut.xml.gz": (gzip.compress(f"<urlset>{TWO}</urlset>".encode())[:-6], BOTH),
    "utf16.xml": (f'<?xml version="1.0" encoding="UTF-16"?><urlset>{TWO}</urlset>'.encode("utf-16"), BOTH),
    "windows1251.xml": (
        f'<?xml version="1.0" encoding="windows-1251"?><urlset><url><loc>{ORIGIN}/я</loc></url></urlset>'.encode(
            "cp1251"
        ),
        (f"{ORIGIN}/%D1%8F",),
    ),
    "gbk.xml": (f'<?xml version="1.0" encoding="gbk"?><urlset><!-- 中文 -->{TWO}</urlset>'.encode("gbk"), BOTH),
    "not_utf8.xml": (f"<urlset><!-- caf\xe9 -->{TWO}</urlset>".encode("latin-1"), BOTH),
    "space_first.xml": (f'\n\n<?xml version="1.0"?><urlset>{TWO}</urlset>'.encode(), BOTH),
    "bom.xml": (f'\ufeff<?xml version="1.0"?><urlset>{TWO}</urlset>'.encode(), BOTH),
    "prefixes.xml": (
        f'<s:urlset xmlns:s="urn:x">{TWO.replace("<", "<s:").replace("<s:/", "</s:")}</s:urlset>'.encode(),
        BOTH,
    ),
    "cdata.xml": (
        f"<urlset><url><loc>\n<![CDATA[{ORIGIN}/?a=1&b=2]]>\n</loc></url></urlset>".encode(),
        (f"{ORIGIN}/?a=1&b=2",),
    ),
    "images.xml": (
        (
            f'<urlset xmlns:image="x">{TWO}<url><image:image><image:loc>{ORIGIN}/no</image:loc></image:image></url>'
            "</urlset>"
        ).encode(),
        BOTH,
    ),
    "ampersand.xml": (f"<urlset>{TWO}<url><loc>{ORIGIN}/?a&b</loc></url></urlset>".encode(), BOTH),
    "not_closed.xml": (f"<urlset>{TWO}".encode(), BOTH),
    "cut_in_an_entry.xml": (f"<urlset>{TWO}<url><loc>{ORIGIN}/3".encode(), BOTH),
    "laughs.xml": (f'<!DOCTYPE x [<!ENTITY a0 "ha">{LAUGHS}]><urlset><x>&a6;</x></urlset>'.encode(), ()),
    "crlf.txt": ("\r\n".join(("", *BOTH, "")).encode(), BOTH),
    "page.xml": (f'<!DOCTYPE html><html><a href="{ORIGIN}/1">x</a><p>{ORIGIN}/2'.encode(), ()),
    "prose.txt": (f"There is no sitemap.\nSee {ORIGIN}/\n".encode(), ()),
}
RESERVED: Final = "%/:?#[]@!$&'()*+,;=~"
LONG_ENTRIES: Final = 50_000
SHOWN: Final = 3


class Case(NamedTuple):
    name: str
    body: bytes
    entries: int
    urls: tuple[str, ...] | None
    """None where only the number is known."""


class Reader(NamedTuple):
    """A library, and a program in it that defines `found(url, body)`."""

    packages: tuple[str, ...]
    program: str


_PROGRAM: Final = """
import json, logging, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
{setup}
def peak_kb():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
given = json.load(sys.stdin)
answers = []
for name, body in given["cases"]:
    try:
        answers.append(list(found(given["origin"] + "/" + name, bytes.fromhex(body))))
    except Exception as error:
        answers.append("raised " + type(error).__name__)
body = Path(given["long"]).read_bytes()
before, began = peak_kb(), time.process_time()
count = len(list(found(given["origin"] + "/long.xml", body)))
took = time.process_time() - began
print(json.dumps({{"answers": answers, "long_found": count, "cpu_s": took, "more_kb": peak_kb() - before}}))
"""
STREAMCRAWL: Final = Reader(
    (),
    """
from streamcrawl.rules.sitemaps import SitemapReader
from streamcrawl.web.bodies import Decoder
def found(url, body):
    reader, gunzip = SitemapReader(url), Decoder(("gzip",), 1 << 26, url)
    for start in range(0, len(body), 65536):
        piece = body[start : start + 65536]
        for part in gunzip.pieces(piece) if body.startswith(b"\\x1f\\x8b") else (piece,):
            yield from (entry.url for entry in reader.feed(part))
    yield from (entry.url for entry in reader.close())
""",
)
OTHERS: Final[dict[str, Reader]] = {
    "ultimate_sitemap_parser": Reader(
        ("ultimate-sitemap-parser==1.8.1",),
        """
from usp.fetch_parse import SitemapFetcher
from usp.web_client import abstract_client as client
class Answer(client.AbstractWebClientSuccessResponse):
    def __init__(self, url, body):
        self._url, self._body = url, body
    def status_code(self):
        return 200
    def status_message(self):
        return "OK"
    def header(self, name):
        return None
    def raw_data(self):
        return self._body
    def url(self):
        return self._url
class Client(client.AbstractWebClient):
    def __init__(self, url, body):
        self.answer, self.listed = Answer(url, body), []
    def set_max_response_data_length(self, length):
        pass
    def get(self, url):
        if url == self.answer.url():
            return self.answer
        self.listed.append(url)
        return client.WebClientErrorResponse("none", False)
client.WebClientErrorResponse.__abstractmethods__ = frozenset()
def found(url, body):
    asking = Client(url, body)
    sitemap = SitemapFetcher(url=url, recursion_level=0, web_client=asking).sitemap()
    return [page.url for page in sitemap.all_pages()] + asking.listed
""",
    ),
    # As its SitemapRequestLoader calls it, but without its filter of hosts.
    "crawlee": Reader(
        ("crawlee[httpx]==1.11.0",),
        """
import asyncio
from contextlib import asynccontextmanager
from crawlee._utils.sitemap import parse_sitemap
class Answer:
    headers = {}
    def __init__(self, status_code, body):
        self.status_code, self._body = status_code, body
    async def read_stream(self):
        for start in range(0, len(self._body), 65536):
            yield self._body[start : start + 65536]
class Client:
    def __init__(self, url, body):
        self._url, self._body = url, body
    @asynccontextmanager
    async def stream(self, url, **_):
        yield Answer(200, self._body) if url == self._url else Answer(404, b"")
async def read(url, body):
    how = {"emit_nested_sitemaps": True, "enqueue_strategy": "all"}
    return [one.loc async for one in parse_sitemap([{"type": "url", "url": url}], Client(url, body), options=how)]
def found(url, body):
    return asyncio.run(read(url, body))
""",
    ),
    # As its SitemapSpider does it.
    "scrapy": Reader(
        ("scrapy==2.19.0",),
        """
from scrapy import Request
from scrapy.http import Response, XmlResponse
from scrapy.spiders import SitemapSpider
from scrapy.utils.sitemap import Sitemap
spider = SitemapSpider.__new__(SitemapSpider)
class Settings(dict):
    getint = dict.get
class Crawler:
    settings = Settings(DOWNLOAD_MAXSIZE=1 << 30, DOWNLOAD_WARNSIZE=1 << 30)
spider.crawler, spider.name, spider._max_size, spider._warn_size = Crawler(), "s", 1 << 30, 1 << 30
def found(url, body):
    made = XmlResponse if url.endswith(".xml") else Response
    text = spider._get_sitemap_body(made(url, body=body, request=Request(url)))
    return [] if text is None else [entry["loc"] for entry in Sitemap(text)]
""",
    ),
}


def read_cases(data: Path) -> list[Case]:
    """Return all cases, those of the folder first."""
    cases = [
        Case(name, (data / name).read_bytes(), count, None) for name, count in LISTED.items() if (data / name).is_file()
    ]
    return cases + [Case(name, body, len(urls), urls) for name, (body, urls) in MADE.items()]


def long_sitemap() -> bytes:
    entries = (
        f"<url><loc>{ORIGIN}/shelf/{n % 97}/book-{n}</loc><lastmod>2026-11-{n % 28 + 1:02}</lastmod>"
        "<changefreq>daily</changefreq><priority>0.5</priority></url>\n"
        for n in range(LONG_ENTRIES)
    )
    return f'<?xml version="1.0"?>\n<urlset>\n{"".join(entries)}</urlset>\n'.encode()


def is_right(case: Case, answer: list[str] | str) -> bool:
    """Return whether a library found what it should; how it escapes a letter is left to it."""
    if isinstance(answer, str):
        return False
    urls = sorted(quote(url, safe=RESERVED) for url in answer)
    return urls == sorted(case.urls) if case.urls is not None else len(answer) == case.entries


class Answers(NamedTuple):
    of_cases: list[list[str] | str]
    long_found: int
    cpu_ms: int
    more_mb: float


def ask(reader: Reader, cases: list[Case]) -> Answers:
    """Return what a library says of each case and of a long sitemap, in a process of its own.

    Raises:
        subprocess.CalledProcessError: it could not be installed or run; its own message is on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="sitemaps-") as folder:
        python, long = sys.executable, Path(folder, "long.xml")
        if reader.packages:
            venv.create(folder, with_pip=True)
            python = str(Path(folder, "bin", "python"))
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *reader.packages]
            subprocess.run(pip, check=True, stdout=sys.stderr)
        long.write_bytes(long_sitemap())
        given = {"origin": ORIGIN, "cases": [(case.name, case.body.hex()) for case in cases]}
        ran = subprocess.run(
            [python, "-c", _PROGRAM.format(setup=reader.program)],
            check=True,
            input=json.dumps(given | {"long": str(long)}),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": "" if reader.packages else os.pathsep.join(filter(None, sys.path))},
        )
    said = json.loads(ran.stdout)
    return Answers(said["answers"], said["long_found"], round(1000 * said["cpu_s"]), round(said["more_kb"] / 1024, 1))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance.sitemaps")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="sitemaps of crawler-commons' tests")
    parser.add_argument("--others", action="store_true", help="score other libraries as well (needs pip)")
    options = parser.parse_args()
    cases = read_cases(options.data)
    files = len(cases) - len(MADE)
    if not files:
        parser.error(f"{options.data} has none of the files: it should be crawler-commons' test resources, `sitemaps`")
    facts: dict[str, int | float] = {}
    is_sound = True
    for name, reader in {"streamcrawl": STREAMCRAWL, **(OTHERS if options.others else {})}.items():
        said = ask(reader, cases)
        right = [is_right(case, answer) for case, answer in zip(cases, said.of_cases, strict=True)]
        facts[f"{name}_files_right"] = sum(right[:files])
        facts[f"{name}_made_right"] = sum(right[files:])
        facts[f"{name}_long_found"] = said.long_found
        facts[f"{name}_long_cpu_ms"] = said.cpu_ms
        facts[f"{name}_long_more_mb"] = said.more_mb
        is_sound = is_sound and (name != "streamcrawl" or all(right))
        for case, answer, is_it in zip(cases, said.of_cases, right, strict=True):
            if not is_it:
                shown = answer if isinstance(answer, str) else f"{len(answer)} of {case.entries}, {answer[:SHOWN]}"
                print(f"{name}: {case.name}: {shown}", file=sys.stderr)
    print(json.dumps({"benchmark": "conformance.sitemaps", "files": files, "made": len(MADE), **facts}))
    raise SystemExit(not is_sound)


if __name__ == "__main__":
    main()
