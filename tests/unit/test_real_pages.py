"""How benchmarks/real_pages.py closes a folder: what is reachable by plain links stays, and nothing leads out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.real_pages import RealPages

if TYPE_CHECKING:
    from pathlib import Path

PAGES = {
    "index.html": "<title>Start</title><a class=\"x\" href='a/one.html#part'>1</a>"
    ' <a href="/two.htm" rel="nofollow">2</a><A HREF=missing.html>no</A> <a href="https://example.org/">out</a>'
    ' <a href="a/one.html?q=1">query</a>'
    '<link rel="next" href="unlinked.html"><meta name="robots" content="nofollow">',
    "a/one.html": '<a href="../index.html">back</a> <a href="../a b.html">space</a>'
    ' <iframe src="../unlinked.html"></iframe>',
    "two.htm": '<!-- <a href="unlinked.html"> --> <a name="x">no link</a> <a href="a/">folder</a>',
    "unlinked.html": "nobody leads here",
    "a b.html": "a name that is written in two ways",
    "based.html": "",
}


def write(folder: Path, pages: dict[str, str]) -> Path:
    for name, text in pages.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_only_links_between_reachable_pages_are_left(tmp_path: Path) -> None:
    real = RealPages.read(write(tmp_path, PAGES))
    assert real.paths == ("/", "/a/one.html", "/two.htm", "/index.html")
    texts = dict(zip(real.paths, (text.decode() for text in real.bodies(80)), strict=True))
    assert texts["/"] == texts["/index.html"]
    assert texts["/"] == (
        '<title>Start</title><a class="x" href=\'a/one.html#part\'>1</a> <a href="/two.htm" data-rel="nofollow">2</a>'
        '<A data-HREF=missing.html>no</A> <a data-href="https://example.org/">out</a>'
        ' <a data-href="a/one.html?q=1">query</a>'
        '<link rel="next" data-href="unlinked.html"><meta data-name="robots" content="nofollow">'
    )
    assert texts["/a/one.html"] == (
        '<a href="../index.html">back</a> <a data-href="../a b.html">space</a>'
        ' <iframe data-src="../unlinked.html"></iframe>'
    )
    assert (real.pages, real.url(1, 8000)) == (4, "http://127.0.0.1:8000/a/one.html")


def test_links_of_a_page_with_a_base_are_all_left_out(tmp_path: Path) -> None:
    pages = PAGES | {"two.htm": '<base href="/a/"><a href="one.html">1</a><a href="/based.html">2</a>'}
    real = RealPages.read(write(tmp_path, pages))
    assert "/based.html" not in real.paths
    assert b"data-href" in real.contents[2]
    assert b" href=" not in real.contents[2].replace(b"<base href", b"<base")


@pytest.mark.parametrize("pages", [{}, {"index.html": "no link at all"}])
def test_a_folder_that_is_no_site_is_refused(tmp_path: Path, pages: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"index\.html"):
        RealPages.read(write(tmp_path, pages))
