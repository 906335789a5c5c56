"""Passwords of Redis and proxies are nowhere to be read: not in what a crawl prints, not in the list of processes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest
import redis

from streamcrawl.errors import ExitCode
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.command import Command, Running
    from tests.site.server import SiteProcess

SECRET: Final = "n0t-t0-be-seen"


@pytest.fixture
def locked_url() -> Iterator[str]:
    """URL, with the password in it, of a server that lets nobody in without."""
    with RedisServer() as server:
        with redis.Redis(port=server.port) as client:
            client.config_set("maxmemory", "500mb")
            client.config_set("requirepass", SECRET)
        yield server.url.replace("://", f"://:{SECRET}@")


def shown_by_ps(running: Running) -> list[str]:
    """Return the command lines and names of the command and of all that it started."""
    top = psutil.Process(running.process.pid)
    folders = [Path(f"/proc/{process.pid}") for process in (top, *top.children(recursive=True))]
    return [
        (folder / name).read_bytes().replace(b"\0", b" ").decode() for folder in folders for name in ("cmdline", "comm")
    ]


@pytest.mark.parametrize("way", ["option", "option with =", "environment"])
def test_password_is_in_no_list_of_processes_and_in_no_output(
    command: Command, leisurely_site: SiteProcess, locked_url: str, way: str
) -> None:
    given = {"option": ["--redis", locked_url], "option with =": [f"--redis={locked_url}"], "environment": []}[way]
    environment: dict[str, Any] = {} if given else {"STREAMCRAWL_REDIS": locked_url}
    arguments = ["crawl", leisurely_site.seed_url, "--scope", "any", "-o", "out.jsonl", *given]
    with command.start(*arguments, **environment) as running:
        running.until(lambda: command.lines("out.jsonl") > 5, "the first records")
        shown = shown_by_ps(running)
        assert len(shown) >= 8, "the command, its nursery, a worker and a sink"
        assert SECRET not in "\n".join(shown)
        if given:
            assert locked_url.replace(SECRET, "***") in shown[0]
        running.interrupt()
        result = running.wait()
    assert result.code == ExitCode.STOPPED, result.err
    result_of_resume = command.run("crawl", "--resume", "--name", "127.0.0.1", *given, **environment)
    assert result_of_resume.code == ExitCode.DONE, result_of_resume.err
    assert command.pages("out.jsonl") == leisurely_site.expected_pages()
    for text in (result.out, result.err, result_of_resume.out, result_of_resume.err):
        assert SECRET not in text
    if given:
        assert "--redis" in result.out


def test_password_of_a_proxy_is_in_no_list_of_processes_and_in_no_output(command: Command) -> None:
    # Nothing listens there, so the crawl waits for as long as this test looks.
    with socket.socket() as closed, socket.socket() as other:
        for place in (closed, other):
            place.bind(("127.0.0.1", 0))
        proxies = [
            f"{scheme}://me:{SECRET}@127.0.0.1:{place.getsockname()[1]}"
            for scheme, place in (("http", closed), ("socks5h", other))
        ]
        given = ["--proxy", proxies[0], f"--proxy={proxies[1]}"]
        with command.start("crawl", "http://a.test/", "-o", "out.jsonl", *given) as running:
            running.until(lambda: running.err.count("does not work") == 2, "both proxies to be tried")
            shown = shown_by_ps(running)
            assert len(shown) >= 8, "the command, its nursery, a worker and a sink"
            assert SECRET not in "\n".join(shown)
            assert "--proxy http://***@127.0.0.1:" in shown[0]
            assert "--proxy=socks5h://***@127.0.0.1:" in shown[0]
            running.interrupt()
            result = running.wait()
    assert result.code == ExitCode.STOPPED, result.err
    assert SECRET not in result.out + result.err
    # Without the proxies, which are not kept, nothing goes out.
    direct = command.run("crawl", "--resume", "--name", "a.test")
    assert direct.code == ExitCode.USAGE
    assert "goes by proxies, which are not kept: give --proxy again" in direct.err
    wrong = command.run("crawl", "http://a.test/", "--proxy", f"http://me:{SECRET}@127.0.0.1")
    assert wrong.code == ExitCode.USAGE
    assert "proxy 1 will not do" in wrong.err
    assert SECRET not in wrong.err


def test_wrong_password_is_refused_and_not_repeated(command: Command, locked_url: str) -> None:
    wrong = locked_url.replace(SECRET, "s0mething-else")
    for arguments in (["crawl", "http://127.0.0.1:9/", "--debug"], ["status", "127.0.0.1"]):
        result = command.run(*arguments, "--redis", wrong)
        assert result.code == ExitCode.STORE_UNAVAILABLE, result.err
        assert "put both into the URL" in result.err
        assert "s0mething-else" not in result.out + result.err


def test_help_and_wrong_use_answer_as_without_a_password(command: Command, locked_url: str) -> None:
    assert command.run("crawl", "--redis", locked_url, "--help").code == ExitCode.DONE
    result = command.run("crawl", "--redis", locked_url, "--no-such-option")
    assert result.code == ExitCode.USAGE
    assert "--no-such-option" in result.err
    result = command.run("crawl", "http://127.0.0.1:9/", "--redis", f"{locked_url}#fragment")
    assert result.code == ExitCode.USAGE
    assert "%23" in result.err
    assert SECRET not in result.err
