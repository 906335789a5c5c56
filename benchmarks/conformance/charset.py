"""How many pages of html5lib's encoding tests are read in the right encoding, by streamcrawl and by others?

The data is the folder `encoding` of html5lib-tests (MIT licence), which is no part of this repository: `git clone
https://github.com/html5lib/html5lib-tests`, then `--data html5lib-tests/encoding`. A case is the bytes of a page and
the encoding it must be read as. The one below `scripted/` needs a page's script to be run, so a crawler cannot have it.

With `--others` each other library is installed into a virtual environment of its own, which is thrown away.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final, NamedTuple

from streamcrawl.rules.charset import charset_of, codec_of
from streamcrawl.rules.sniff import BodyKind

BAR: Final = 80
SHOWN_CHARS: Final = 80


class Case(NamedTuple):
    file: str
    body: bytes
    encoding: str


class Other(NamedTuple):
    """Another library, and a program in it: reads a JSON list of bodies in hexadecimal, writes one of names."""

    packages: tuple[str, ...]
    program: str


_PROGRAM: Final = """
import json, sys, warnings
warnings.simplefilter("ignore")
{setup}
print(json.dumps([found(bytes.fromhex(body)) for body in json.load(sys.stdin)]))
"""
OTHERS: Final[dict[str, Other]] = {
    # As Scrapy calls it, but that ASCII counts as what browsers take for it.
    "w3lib": Other(
        ("w3lib==2.5.0",),
        """
from w3lib.encoding import html_to_unicode
def guessed(body):
    for encoding in ("utf-8", "cp1252"):
        try:
            body.decode(encoding)
        except UnicodeDecodeError:
            continue
        return "cp1252" if body.isascii() else encoding
def found(body):
    return html_to_unicode(None, body, auto_detect_fun=guessed)[0]
""",
    ),
    # As crawlee's BeautifulSoupCrawler calls it; ASCII counts as above.
    "beautifulsoup4": Other(
        ("beautifulsoup4==4.15.0", "lxml==6.1.3"),
        """
from bs4 import BeautifulSoup
def found(body):
    soup = BeautifulSoup(body, features="lxml")
    return "cp1252" if body.isascii() and not soup.declared_html_encoding else soup.original_encoding
""",
    ),
    "resiliparse": Other(
        ("resiliparse==2.0.1",),
        """
from resiliparse.parse.encoding import detect_encoding
def found(body):
    return detect_encoding(body, from_html_meta=True)
""",
    ),
    "html5lib_prescan": Other(
        ("html5lib==1.1",),
        """
from io import BytesIO
from html5lib._inputstream import HTMLBinaryInputStream
def found(body):
    return HTMLBinaryInputStream(BytesIO(body), useChardet=False).charEncoding[0].name
""",
    ),
    # The whole page parsed, by which it meets a late <meta>.
    "html5lib": Other(
        ("html5lib==1.1",),
        """
import html5lib
def found(body):
    parser = html5lib.HTMLParser()
    parser.parse(body)
    return parser.documentEncoding
""",
    ),
}


def read_cases(data: Path) -> list[Case]:
    """Return all cases below a folder, in the order of their files."""
    cases = []
    for file in sorted(data.rglob("*.dat")):
        for part in file.read_bytes().split(b"#data\n")[1:]:
            body, _, encoding = part.partition(b"\n#encoding\n")
            cases.append(Case(str(file.relative_to(data)), body, encoding.split(b"\n")[0].decode("ascii").strip()))
    return cases


def is_right(case: Case, name: str | None) -> bool:
    """Return whether two names are labels of one encoding."""
    return name is not None and codec_of(name) == codec_of(case.encoding)


def names_of_other(other: Other, cases: list[Case]) -> list[str | None]:
    """Return what another library says of each case.

    Raises:
        subprocess.CalledProcessError: it could not be installed or run; its own message is on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="charset-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *other.packages]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        program = _PROGRAM.format(setup=other.program)
        bodies = json.dumps([case.body.hex() for case in cases])
        ran = subprocess.run([python, "-c", program], check=True, input=bodies, stdout=subprocess.PIPE, text=True)
        names: list[str | None] = json.loads(ran.stdout)
        return names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance.charset")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="html5lib-tests/encoding")
    parser.add_argument("--others", action="store_true", help="score other libraries as well (needs pip)")
    options = parser.parse_args()
    cases = read_cases(options.data)
    if not cases:
        parser.error(f"{options.data} has no .dat file: it should be the folder `encoding` of html5lib-tests")
    names = {"streamcrawl": [charset_of(None, case.body, BodyKind.HTML) for case in cases]}
    if options.others:
        names |= {name: names_of_other(other, cases) for name, other in OTHERS.items()}
    right = {
        name: sum(is_right(case, said) for case, said in zip(cases, of_one, strict=True))
        for name, of_one in names.items()
    }
    for case, said in zip(cases, names["streamcrawl"], strict=True):
        if not is_right(case, said):
            start = case.body[:SHOWN_CHARS].decode("latin-1")
            print(f"{case.file}: {said} instead of {case.encoding}: {start!r}", file=sys.stderr)
    facts = {f"{name}_right": score for name, score in right.items()}
    print(json.dumps({"benchmark": "conformance.charset", "cases": len(cases), "bar": BAR, **facts}))
    raise SystemExit(right["streamcrawl"] < BAR)


if __name__ == "__main__":
    main()
