"""What kind of body it is, whatever the header says."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.sniff import SNIFFED_BYTES, BodyKind, body_kind

HTML, XML, TEXT, BINARY = BodyKind


@pytest.mark.parametrize(
    ("content_type", "head", "expected"),
    [
        ("text/html", b"", True),
        ("TEXT/HTML; charset=x", b"\x00", True),
        ("application/xhtml+xml", b"", True),
        ("text/plain", b"<html>", False),
        ("application/pdf", b"<html>", False),
        ("image/svg+xml", b"<html>", False),
        (None, b"<!DOCTYPE html>", True),
        ("", b"<!doctype HTML >", True),
        ("application/octet-stream", b"\n\t <HtMl>", True),
        ("unknown/unknown", b"<body >", True),
        ("nonsense", b"<p>", True),
        (None, b"<!-- x -->", True),
        (None, b"<!--", True),
        (None, b"\xef\xbb\xbf<html>", True),
        (None, b"<a href=x>", True),
        (None, b"<br>", True),
        (None, b"<h1>", True),
        (None, b"<h2>", False),
        (None, b"<html", False),
        (None, b"<html\n>", False),
        (None, b"<pre>", False),
        (None, b"<?xml version='1.0'?>", False),
        (None, b"%PDF-1.4 <html>", False),
        (None, b"text", False),
        (None, b"", False),
        (None, b" " * 1438 + b"<html>", True),
        (None, b" " * 1440 + b"<html>", False),
    ],
)
def test_html_is_recognised_by_type_or_signature(content_type: str | None, head: bytes, expected: bool) -> None:
    assert (body_kind(content_type, head) is BodyKind.HTML) is expected


@pytest.mark.parametrize(
    ("content_type", "head", "kind"),
    [
        # Nothing is said.
        (None, b"<?xml version='1.0'?><rss>", XML),
        (None, b"<?xml version='1.0'?>\n<!DOCTYPE html PUBLIC>", HTML),
        (None, b"<?xml version='1.0'?><!-- x --><html >", HTML),
        (None, b"<rss version='2.0'>", XML),
        (None, b"%PDF-1.7", BINARY),
        (None, b"\x89PNG\r\n\x1a\n", BINARY),
        (None, b"\x1f\x8b\x08\0", BINARY),
        (None, b"plain words\n", TEXT),
        (None, b"\xff\xfea\0", TEXT),
        (None, b"one\0two", BINARY),
        (None, b"", TEXT),
        # What is said is wrong.
        ("text/html", b"%PDF-1.7", BINARY),
        ("text/html", b"PK\x03\x04", BINARY),
        ("text/html", b"\0\0\0\x18ftypmp42", BINARY),
        ("text/html", b"<?xml version='1.0'?>\n<!-- x --><rss version='2.0'>", XML),
        ("text/html", b"<feed xmlns='http://www.w3.org/2005/Atom'>", XML),
        ("text/html", b"<rssx>", HTML),
        ("text/plain", b"\x7fELF\x02\0", BINARY),
        ("text/plain; charset=utf-8", b"\xef\xbb\xbf\0", TEXT),
        # What is said holds.
        ("text/html", b"PKwords", HTML),
        ("text/plain", b"<html>", TEXT),
        ("text/xml", b"<html>", XML),
        ("application/rss+xml", b"", XML),
        ("application/json", b"{}", TEXT),
        ("application/problem+json", b"{}", TEXT),
        ("text/css", b"", TEXT),
        ("image/png", b"<html>", BINARY),
        ("video/mp4", b"words", BINARY),
    ],
)
def test_the_header_decides_unless_the_bytes_show_it_wrong(
    content_type: str | None, head: bytes, kind: BodyKind
) -> None:
    assert body_kind(content_type, head) is kind


@given(
    st.none() | st.text(max_size=30) | st.sampled_from(["text/html", "text/plain"]),
    st.binary(max_size=100)
    | st.lists(st.sampled_from([b"<!--", b"-->", b"<?xml", b">", b" ", b"<rss", b"<html "])).map(b"".join),
)
def test_no_bytes_break_it(content_type: str | None, head: bytes) -> None:
    assert body_kind(content_type, head) in BodyKind


@pytest.mark.parametrize("piece", [b"<!--", b"<!---->", b"<?x>", b"<?xml>", b"\n", b"<!-- -- "])
def test_no_head_takes_long(piece: bytes) -> None:
    head = b"<?xml?>" + piece * (SNIFFED_BYTES // len(piece) + 1)
    started = time.process_time()
    for content_type in (None, "text/html"):
        body_kind(content_type, head)
    assert time.process_time() - started < 1.0
