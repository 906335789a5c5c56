"""Does a robots.txt mean to us what it means to Google's parser, on real files?

Each file is asked about URLs made of its own patterns, and of some that are in none, for crawlers that real files name
and for one that they do not. The oracle is Google's parser (`jwm.robotstxt`); next to ours stand protego, which Scrapy
uses, and the standard library's `urllib.robotparser`, which most others use. Where ours differs, the difference is
checked: Google's parser must agree once escapes are written in one way (RFC 9309 section 2.2.2), which it does not do
itself; else it is a fault, and the exit code is 1.

The files are those of protego's source distribution (BSD-3-Clause, Scrapy project); they do not belong to this package,
and neither do the other parsers. In any folder outside of the checkout:

    python -m pip download --no-binary :all: --no-deps protego==0.7.0 && tar xzf protego-0.7.0.tar.gz
    python -m pip install --target others jwm.robotstxt protego==0.7.0
    export PYTHONPATH=others:<checkout>
    <checkout>/.venv/bin/python -m benchmarks.conformance.robots --data protego-0.7.0/tests/test_data
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.robotparser import RobotFileParser

from streamcrawl.rules.robots_rules import RobotsRules, normal_form, whole_lines
from streamcrawl.rules.urls import canonical_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SITE: Final = "https://example.org"
AGENTS: Final = ("streamcrawl", "Googlebot", "Bingbot", "GPTBot", "AhrefsBot")
PATTERNS_MAX: Final = 12
"""Patterns of one file that URLs are made of, spread over the file."""
FAULTS_SHOWN: Final = 10

_PATTERN: Final = re.compile(r"(?im)^\s*(?:dis)?allow\s*:\s*([/*][^\s#]*)")
_RULE: Final = re.compile(rb"(?im)^(\s*(?:dis)?allow\s*:[ \t]*)([^#\r\n]*)")


class Question(NamedTuple):
    name: str
    body: bytes
    agent: str
    url: str


def urls_of(text: str) -> list[str]:
    """Return the canonical URLs that a file is asked about.

    Not its own: that is always allowed (RFC 9309 section 2.2.2), which Google's parser leaves to the crawler.
    """
    patterns = list(dict.fromkeys(_PATTERN.findall(text)))
    step = max(1, len(patterns) // PATTERNS_MAX)
    paths = ["/", "/index.html", "/a/b?c=d"]
    for pattern in patterns[::step][:PATTERNS_MAX]:
        path = "/" + pattern.rstrip("$").replace("*", "x").lstrip("/")
        paths += [path, f"{path}z?q=1", path.removesuffix("/")]
    urls = (canonical_url(SITE + path) for path in paths)
    return list(dict.fromkeys(url for url in urls if url is not None and "/robots.txt" not in url))


def urllib_allows(body: bytes, agent: str) -> Callable[[str], bool]:
    rules = RobotFileParser()
    rules.parse(body.decode("utf-8", "replace").splitlines())
    return lambda url: rules.can_fetch(agent, url)


def ours(body: bytes, agent: str) -> Callable[[str], bool]:
    return RobotsRules.parse(body, agent).allows


def in_normal_form(question: Question) -> tuple[bytes, str, str]:
    """Return a question with its patterns and its URL in the one form in which we compare them."""
    body = _RULE.sub(lambda rule: rule[1] + normal_form(rule[2].strip()), question.body)
    return body, question.agent, normal_form(question.url.encode()).decode()


def files_of(data: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(data.rglob("*")):
        if path.is_file():
            # Google's crawler cuts longer ones as we do; its parser leaves that to the crawler.
            yield path.name, whole_lines(path.read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conformance.robots", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="tests/test_data of protego's source distribution")
    parser.add_argument("--every", type=int, default=1, help="take each so-manieth file only")
    options = parser.parse_args()
    files = list(files_of(options.data))[:: options.every] if options.data.is_dir() else []
    if not files:
        sys.exit(f"{options.data}: no files; python -m pip download --no-binary :all: --no-deps protego==0.7.0")
    try:
        google: Any = import_module("jwm.robotstxt.googlebot").RobotsMatcher()
        protego: Any = import_module("protego").Protego
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing: python -m pip install --target DIR jwm.robotstxt protego==0.7.0")

    def protego_allows(body: bytes, agent: str) -> Callable[[str], bool]:
        rules = protego.parse(body.decode("utf-8", "replace"))
        return lambda url: bool(rules.can_fetch(url, agent))

    parsers = {"streamcrawl": ours, "protego": protego_allows, "urllib": urllib_allows}
    asked, wrong = 0, Counter[str]()
    wrong_by_agent: dict[str, Counter[str]] = defaultdict(Counter)
    files_wrong: dict[str, set[str]] = defaultdict(set)
    faults, cpu_s = list[Question](), dict.fromkeys(parsers, 0.0)
    for name, body in files:
        urls = urls_of(body.decode("utf-8", "replace"))
        for agent in AGENTS:
            expected = [google.OneAgentAllowedByRobots(body, agent, url) for url in urls]
            asked += len(urls)
            for parser_name, make in parsers.items():
                began = time.process_time()
                allows = make(body, agent)
                said = [allows(url) for url in urls]
                cpu_s[parser_name] += time.process_time() - began
                for url, is_allowed, should in zip(urls, said, expected, strict=True):
                    if is_allowed is should:
                        continue
                    wrong[parser_name] += 1
                    wrong_by_agent[parser_name][agent] += 1
                    files_wrong[parser_name].add(name)
                    if parser_name == "streamcrawl":
                        # Google's parser leaves escapes as they are written: it must agree once they are the same.
                        question = Question(name, body, agent, url)
                        if google.OneAgentAllowedByRobots(*in_normal_form(question)) is not is_allowed:
                            faults.append(question)
    for fault in faults[:FAULTS_SHOWN]:
        print(f"fault: {fault.name} {fault.agent} {fault.url}", file=sys.stderr)
    figures = {
        "benchmark": "conformance.robots",
        "files": len(files),
        "questions": asked,
        "agents": list(AGENTS),
        "agreement_percent": {name: round(100 * (1 - wrong[name] / asked), 3) for name in parsers},
        "different": {name: wrong[name] for name in parsers},
        "different_by_agent": {name: dict(wrong_by_agent[name]) for name in parsers},
        "files_different": {name: len(files_wrong[name]) for name in parsers},
        "streamcrawl_only_by_escapes": wrong["streamcrawl"] - len(faults),
        "streamcrawl_faults": len(faults),
        "cpu_us_per_file_and_agent": {name: round(cpu_s[name] / len(files) / len(AGENTS) * 1e6) for name in parsers},
    }
    print(json.dumps(figures))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
