"""The .lua files as text: their headers are contracts, so they must be complete and say what the code does."""

from __future__ import annotations

import re
from typing import Final

import pytest

from streamcrawl.store import scripts
from streamcrawl.store.keys import Keys, QueueKeys
from streamcrawl.store.scripts import digest, script_names, source

FRAGMENTS: Final = (
    *("_now", "_state", "_hosts", "_pace", "_items", "_stream", "_seen", "_links", "_dispatch", "_recount", "_process"),
    *("_lease", "_common", "_queue", "_alike", "_reasons", "_logs", "_replays"),
)
SCRIPTS: Final = (*script_names(), *script_names(of_queues=True))


def header_of(text: str) -> list[str]:
    """Return the comment at the top of a script, without its dashes and without what the includes brought."""
    lines = text.splitlines()
    start = 1 if lines[0].startswith("#!") else 0
    end = next(n for n in range(start, len(lines)) if not lines[n].startswith("--"))
    head = [line[2:] for line in lines[start:end]]
    fragment = next((n for n, line in enumerate(head) if line.startswith(" fragment ")), len(head))
    return head[:fragment]


def words_of(text: str) -> set[str]:
    """Return the words that a header says a script can answer: `{'WORD', …}`, and a table of them under Returns."""
    header = header_of(text)
    start = next(n for n, line in enumerate(header) if line.startswith(" Returns "))
    returns = [header[start]]
    for line in header[start + 1 :]:
        if not line.startswith("  "):
            break
        returns.append(line)
    quoted = re.findall(r"\{'([A-Z_]+)'", "\n".join(returns))
    listed = [match[1] for line in returns if (match := re.match(r" {9,}([A-Z][A-Z_]+) {2,}\S", line))]
    return {*quoted, *listed}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_says_name_keys_arguments_answers_and_repeat(name: str) -> None:
    text = scripts._read(name)
    header = "\n".join(header_of(source(name)))
    shebang = r"#!lua( flags=(allow-oom|no-writes))?\n"
    assert re.match(shebang, text), "without the shebang a full server lets half a script through"
    assert header.startswith(f" {name}.lua: ")
    assert "\n KEYS[1] state" in header
    assert "Derives" in header
    assert "Repeat:" in header
    begins = re.search("^-- include (_now|_state|_queue)\n", text, re.MULTILINE)
    assert ("GONE" in words_of(source(name))) == bool(begins)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_lists_the_arguments_that_the_code_reads(name: str) -> None:
    header, body = "\n".join(header_of(source(name))), source(name)
    listed = {int(n) for n in re.findall(r"^ ARGV\[(\d+)(?:\.\.)?\]", header, re.MULTILINE)}
    read = {int(n) for n in re.findall(r"ARGV\[(\d+)\]", re.sub(r"(?m)^--.*$", "", body))}
    is_open = re.search(r"^ ARGV\[\d+\.\.\]", header, re.MULTILINE) is not None
    assert listed == set(range(1, max(listed) + 1))
    assert read <= listed
    assert (f"for n = {max(listed)}, #ARGV do" in body) == is_open


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_names_every_word_that_is_returned(name: str) -> None:
    code = re.sub(r"(?m)^\s*--.*$", "", source(name))
    returned = set(re.findall(r"return \{'([A-Z_]+)'", code))
    assert returned - words_of(source(name)) == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_text_has_each_fragment_once(name: str) -> None:
    text = source(name)
    assert "-- include " not in text
    for fragment in FRAGMENTS:
        assert text.count(f"-- fragment {fragment}.lua:") <= 1


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_fragment_says_what_it_is(fragment: str) -> None:
    assert scripts._read(fragment).startswith(f"-- fragment {fragment}.lua: ")


def test_the_list_of_fragments_is_complete() -> None:
    texts = [scripts._read(name) for name in (*SCRIPTS, *FRAGMENTS)]
    assert {name for text in texts for name in scripts._INCLUDE.findall(text)} == set(FRAGMENTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_key_that_a_script_builds_is_known(name: str) -> None:
    keys = QueueKeys("q") if name.startswith("queue_") else Keys("c")
    code = re.sub(r"(?m)^\s*--.*$", "", source(name))
    for built in set(re.findall(r"P \.\. '([^']+)'", code)):
        key = keys.prefix + built
        # A name that ends in a colon is completed by a bucket, a host key and a level, an origin or a sink.
        completed = [key] if not built.endswith(":") else [f"{key}1", f"{key}http://a.test:2", f"{key}sink"]
        assert any(keys.describe(one) for one in completed), built


def test_scripts_never_read_a_clock_but_through_the_fragment() -> None:
    for name in SCRIPTS:
        fragments = re.findall("^-- fragment (_now|_queue).lua", source(name), re.MULTILINE)
        assert source(name).count("'TIME'") == len(fragments) <= 1, name


def test_a_script_is_named_by_its_content() -> None:
    assert len({digest(name) for name in SCRIPTS}) == len(SCRIPTS)
    assert all(re.fullmatch(r"[0-9a-f]{40}", digest(name)) for name in SCRIPTS)
