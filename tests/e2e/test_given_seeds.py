"""Seeds as people give them: files with bad lines, standard input, no scheme, letters of other alphabets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode

if TYPE_CHECKING:
    from tests.e2e.command import Command
    from tests.site.server import SiteProcess


def lines_of(site: SiteProcess) -> str:
    good = [site.url(1, "/p/1"), site.url(2, "/p/2")]
    return "\n".join([good[0], "", "# a comment", "no url", good[1], "mailto:a@example.org", good[0]])


@pytest.mark.parametrize("origin", ["seeds.txt", "stdin"])
def test_bad_lines_are_named_and_the_rest_is_crawled(command: Command, site: SiteProcess, origin: str) -> None:
    is_file = origin != "stdin"
    if is_file:
        (command.folder / origin).write_text(lines_of(site))
    result = command.run(
        "crawl", "--seeds", origin if is_file else "-", "--depth", "0", "--name", "s",
        stdin=None if is_file else lines_of(site),
    )  # fmt: skip
    assert result.code == ExitCode.DONE
    assert f"{origin}:4: 'no url' is not an http(s) URL\n{origin}:6: 'mailto:a@example.org' is not an" in result.err
    assert command.pages("s.jsonl") == {site.url(1, "/p/1"), site.url(2, "/p/2")}


@pytest.mark.parametrize(
    ("text", "complaints"), [("", ""), ("first\nsecond\n", "stdin:1: 'first' is not an http(s) URL\nstdin:2: 'second'")]
)
def test_nothing_to_crawl_is_wrong_use_and_leaves_nothing(command: Command, text: str, complaints: str) -> None:
    result = command.run("crawl", "--seeds", "-", "--name", "s", stdin=text)
    assert result.code == ExitCode.USAGE
    assert result.err.startswith(complaints)
    assert result.err.endswith("streamcrawl: --seeds -: there is no http(s) URL in it\n")
    assert list(command.folder.iterdir()) == []


def test_address_without_scheme_is_taken_as_http_and_said(command: Command, site: SiteProcess) -> None:
    result = command.run("crawl", f"127.0.0.1:{site.port}/p/3", "--depth", "0")
    assert result.code == ExitCode.DONE
    assert f"127.0.0.1:{site.port}/p/3: taken as {site.url(1, '/p/3')}\n" in result.err
    assert command.pages() == {site.url(1, "/p/3")}


def test_other_alphabets_in_path_and_file_name(command: Command, site: SiteProcess) -> None:
    output = "strange ☃\n name.jsonl"
    result = command.run("crawl", site.url(1, "/tür zu?q=ä&r=1"), "--depth", "0", "-o", output)
    assert result.code == ExitCode.DONE
    assert [record["url"] for record in command.records(output)] == [site.url(1, "/t%C3%BCr%20zu?q=%C3%A4&r=1")]


def test_sitemap_is_where_a_crawl_begins(command: Command, site: SiteProcess) -> None:
    refused = command.run("crawl", "--sitemap", "nowhere", "--name", "s")
    assert refused.code == ExitCode.USAGE
    assert "'Sitemap: nowhere' is not an http(s) URL" in refused.err
    (command.folder / "seeds.txt").write_text(f"Sitemap: {site.url(2, '/sitemap/text')}\n")
    given = ["--sitemap", site.url(1, "/sitemap/index"), "--seeds", "seeds.txt"]
    first = command.run("crawl", *given, "--depth", "1", "--name", "s", "--delay", "0")
    assert first.code == ExitCode.DONE, first.err
    assert command.pages("s.jsonl") == {site.url(host, f"/p/{page}") for host in (1, 2) for page in (1, 2)}
    shown = command.run("status", "s")
    assert re.search("^ +sitemaps +4 read$", shown.out, re.MULTILINE)


def test_form_of_urls_is_fixed_with_the_crawl(command: Command, site: SiteProcess) -> None:
    seed, other = site.url(1, "/p/1?utm_source=a&b=2&a=1"), site.url(1, "/p/1?a=1&b=2&gclid=3")
    first = command.run("crawl", seed, "--depth", "0", "--name", "s", "--drop-params", "tracking,ref", "--sort-query")
    assert first.code == ExitCode.DONE, first.err
    refused = command.run("crawl", seed, "--name", "s", "--drop-params", "ref")
    assert refused.code == ExitCode.USAGE
    assert "exists with drop_params=ref,tracking (asked for is ref): these cannot change; " in refused.err
    assert "give the stored values, another --name, or --fresh" in refused.err
    # Not given again it stays as it was, and in another order it is the same: the second seed is known.
    for arguments in ((), ("--drop-params", "ref,tracking")):
        again = command.run("crawl", other, "--depth", "0", "--name", "s", *arguments)
        assert again.code == ExitCode.DONE, again.err
    assert [record["url"] for record in command.records("s.jsonl")] == [site.url(1, "/p/1?a=1&b=2")]
    fresh = command.run("crawl", other, "--depth", "0", "--name", "s", "--drop-params", "none", "--fresh")
    assert fresh.code == ExitCode.DONE, fresh.err
    assert [record["url"] for record in command.records("s.jsonl")] == [other]
