"""The stored form of a task."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.errors import CodecError
from streamcrawl.rules.task import (
    CrawlTask,
    Kind,
    Level,
    decode_task,
    encode_rest,
    encode_task,
    front_code,
    front_decode,
)

HOST = "https://example.org"
# JSON is UTF-8: lone surrogates cannot be stored, and canonical URLs are ASCII anyway.
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
TASKS = st.builds(
    CrawlTask,
    host=st.just(HOST) | st.just("http://127.0.0.1:8000"),
    path=TEXT.map(lambda text: "/" + text),
    kind=st.sampled_from(Kind),
    level=st.sampled_from(Level),
    depth=st.integers(0, 1000),
    attempt=st.integers(1, 1000),
    crashes=st.integers(0, 100),
    discovered_ms=st.integers(0, 2**53),
    referrer=st.none() | TEXT.filter(bool) | TEXT.map(lambda text: f"{HOST}/{text}"),
    redirects=st.lists(TEXT, max_size=4).map(tuple),
    modified_s=st.integers(0, 2**33),
    nesting=st.integers(0, 9),
)


@given(TASKS)
def test_task_comes_back_as_it_was(task: CrawlTask) -> None:
    stored = encode_task(task)
    assert decode_task(task.host, task.level, stored) == task
    assert stored == b"[%d,%d," % (task.crashes, task.discovered_ms) + encode_rest(task)


@given(TASKS)
def test_stored_task_is_one_json_array(task: CrawlTask) -> None:
    fields = msgspec.json.decode(encode_task(task))
    assert fields[:5] == [task.crashes, task.discovered_ms, task.kind.value, task.path, task.depth]


def test_trailing_defaults_are_left_out() -> None:
    assert encode_rest(CrawlTask(host=HOST, path="/")) == b'"page","/",0]'
    assert encode_rest(CrawlTask(host=HOST, path="/a", depth=2)) == b'"page","/a",2]'
    assert encode_rest(CrawlTask(host=HOST, path="/a", attempt=2)) == b'"page","/a",0,2]'
    assert encode_rest(CrawlTask(host=HOST, path="/a/c", referrer=f"{HOST}/a/b")) == b'"page","/a/c",0,1,"22|b"]'
    assert (
        encode_rest(CrawlTask(host=HOST, path="/", kind=Kind.ROBOTS, redirects=("http://a/",)))
        == b'"robots","/",0,1,"",["http://a/"]]'
    )


def test_short_form_is_filled_up_with_the_defaults() -> None:
    task = decode_task(HOST, "2", b'[1,5,"page","/a",3]')
    assert task == CrawlTask(host=HOST, path="/a", depth=3, crashes=1, discovered_ms=5)
    assert task.url == "https://example.org/a"


def test_typical_queued_task_is_small() -> None:
    path = "/" + "x" * (80 - len(HOST) - 1)
    task = CrawlTask(host=HOST, path=path, depth=5, discovered_ms=1_700_000_000_000, referrer=HOST + path[:-4] + "yyyy")
    assert len(task.url) == 80
    assert len(encode_task(task)) < 120


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"x",
        b"\xff\xfe",
        b"{}",
        b"[]",
        b"[0]",
        b'[0,0,"page","/",0,1,"",[],9,0,1]',
        b'[0,0,"page","/",0,1,"",[],"9"]',
        b'[0,0,"visit","/",0]',
        b'["0",0,"page","/",0]',
        b'[0,0,"page",7,0]',
        b'[0,0,"page","/",0,1,7]',
        b'[0,0,"page","/",0,1,"no bar"]',
        b'[0,0,"page","/",0,1,"x|y"]',
        b'[0,0,"page","/",0,1,"",3]',
        b'[0,0,"page","/",0] ]',
        b"[0,0]",
        b'[0,0,"page","/"]',
        b'[0,"x","page","/",0]',
        b'[true,0,"page","/",0.5]',
        b'[0,0,"page","/",0,1,"","https://a.org/"]',
    ],
)
def test_foreign_bytes_are_a_codec_error(stored: bytes) -> None:
    with pytest.raises(CodecError, match=r"^(stored task cannot be read|front-coded text)"):
        decode_task(HOST, "2", stored)


def test_unknown_level_is_a_codec_error() -> None:
    with pytest.raises(CodecError, match="'9'"):
        decode_task(HOST, "9", b'[0,0,"page","/",0]')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=9),
    max_leaves=12,
)


@given(st.binary(max_size=60) | JSON.map(lambda value: msgspec.json.encode(value)))
def test_decoder_raises_nothing_but_codec_errors(stored: bytes) -> None:
    try:
        decode_task(HOST, "2", stored)
    except CodecError:
        return


@given(TEXT, TEXT)
def test_front_coding_is_reversible(text: str, base: str) -> None:
    assert front_decode(front_code(text, base), base) == text


def test_front_coding_names_the_longest_common_beginning() -> None:
    assert front_code("https://a/bc", "https://a/bd") == "11|c"
    assert front_code("x", "") == "0|x"
    assert front_code("a|b", "a|") == "2|b"
