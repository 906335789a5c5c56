"""The commands for operators as a person types them, run in this process: what they print, change and end with."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from streamcrawl.cli import main
from streamcrawl.errors import ExitCode
from streamcrawl.rules.scope import Scope
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect
from tests.integration.operated import Operated
from tests.integration.snapshot import urls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.redis_server import RedisServer

    Act = Callable[[Operated], Awaitable[Any]]

SUBCOMMANDS = {
    "dead": ["ls", "purge", "replay", "show"],
    "pending": ["ls", "replay", "show"],
    "queue": ["ls", "purge"],
    "host": ["block", "ls", "set", "show", "unblock"],
}


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Typed:
    """Runs commands about the crawls of one server."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def run(self, *arguments: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, out, err)

    def made(self, name: str, act: Act, **values: Any) -> None:
        """Open a crawl of two shards and move it by hand."""

        async def make() -> None:
            client = connect(self.url)
            try:
                operated = await Operated.opened(client, name, shards=2, **values)
                await act(operated)
                await operated.check()
            finally:
                await client.aclose()

        asyncio.run(make())


@pytest.fixture
def command(redis_server: RedisServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    monkeypatch.setenv("STREAMCRAWL_REDIS", redis_server.url)
    return Typed(redis_server.url, capsys)


def documents(result: Result) -> list[dict[str, Any]]:
    assert result.code == ExitCode.DONE, result.err
    return [json.loads(line) for line in result.out.splitlines()]


@pytest.mark.parametrize("group", SUBCOMMANDS)
def test_groups_say_what_they_can_do(command: Typed, group: str) -> None:
    result = command.run(group)
    assert result.code == ExitCode.USAGE
    for name in SUBCOMMANDS[group]:
        assert re.search(rf"^  {name} ", result.out, re.M)
        shown = command.run(group, name, "--help")
        assert shown.code == ExitCode.DONE
        assert {"--redis", "--json", "--config"} <= set(re.findall(r"--[a-z]+", shown.out))
    assert command.run(group, "nonsense", "x").err == (
        f"streamcrawl: No such command 'nonsense' (see streamcrawl {group} --help)\n"
    )


def test_pending_entries_are_listed_and_taken_back(command: Typed, crawl_name: str) -> None:
    async def held(operated: Operated) -> None:
        await operated.offer([f"http://h{n}.test/a" for n in range(4)])
        assert len(await operated.take("gone")) == 4

    command.made(crawl_name, held)
    rows = documents(command.run("pending", "ls", crawl_name, "--json"))
    assert {row["url"] for row in rows} == {f"http://h{n}.test/a" for n in range(4)}
    assert {row["worker_alive"] for row in rows} == {False}
    assert command.run("pending", "ls", crawl_name, "--limit", "1").err == "the first 1; --limit N shows more\n"
    assert "worker         gone\n" in command.run("pending", "show", crawl_name, rows[0]["id"]).out
    none = command.run("pending", "ls", crawl_name, "--idle", "1h")
    assert none.out == "nothing is in the hands of workers of this kind\n"
    assert command.run("pending", "replay", crawl_name).code == ExitCode.USAGE
    one = command.run("pending", "replay", crawl_name, "--id", rows[0]["id"])
    assert one.out == "1 taken back, at the head of their queues\n"
    assert command.run("pending", "replay", crawl_name, "--all").out == "3 taken back, at the head of their queues\n"
    assert command.run("pending", "ls", crawl_name).out == "nothing is in the hands of workers\n"
    missing = command.run("pending", "show", crawl_name, rows[0]["id"])
    assert missing.err.startswith(f"streamcrawl: no worker has an entry {rows[0]['id']} in hand")


def test_queues_are_listed_and_purged(command: Typed, crawl_name: str) -> None:
    async def queued(operated: Operated) -> None:
        await operated.offer([*urls("a.test", 30), *(f"http://a.test/calendar?day={n}" for n in range(1200))])
        await operated.offer(urls("b.test", 3))

    command.made(crawl_name, queued)
    largest = command.run("queue", "ls", crawl_name)
    assert largest.out == (
        "       1,230  http://a.test\n           3  http://b.test\nthe largest of 2 hosts looked at; 2 are scheduled\n"
    )
    tasks = documents(command.run("queue", "ls", crawl_name, "--host", "a.test", "--limit", "2", "--json"))
    assert [(task["url"], task["place"]) for task in tasks] == [("http://a.test/0", 0), ("http://a.test/1", 1)]
    found = command.run("queue", "ls", crawl_name, "--host", "a.test", "--match", "day=117$")
    assert found.out.split() == ["147", "normal", "depth", "0", "attempt", "1", "http://a.test/calendar?day=117"]
    assert command.run("queue", "purge", crawl_name).err.startswith("streamcrawl: say which: --host, --match or ")
    dry = command.run("queue", "purge", crawl_name, "--match", "/calendar\\?", "--dry-run")
    assert dry.out == "1,200 would be removed\n"
    purged = documents(command.run("queue", "purge", crawl_name, "--match", "/calendar\\?", "--json"))
    assert (purged[0]["purged"], purged[0]["stopped"]) == (1200, False)
    none = command.run("queue", "purge", crawl_name, "--match", "calendar")
    assert none.out == "no queued task to do it to (33 looked at)\n"
    assert command.run("queue", "purge", crawl_name, "--match", "(").err.startswith(
        "streamcrawl: Invalid value for '--match': '(' is not a regular expression: missing )"
    )
    assert command.run("queue", "purge", crawl_name, "--host", "c.test", "--match", "x").code == ExitCode.USAGE
    assert command.run("audit", crawl_name).code == ExitCode.DONE


def test_hosts_are_set_blocked_and_unblocked(command: Typed, crawl_name: str) -> None:
    command.made(crawl_name, lambda operated: operated.offer(["http://a.test/", "https://a.test/"]))
    for arguments, words in (
        (
            ("set", crawl_name, "http://a.test", "--delay", "5s", "--cap", "3"),
            "http://a.test: delay 5 s, 3 at a time; due",
        ),
        (("set", crawl_name, "http://a.test", "--delay", "default"), "http://a.test: delay 0 s, 3 at a time; due"),
        (("set", crawl_name, "http://a.test", "--cap", "default", "--retry"), "http://a.test: delay 0 s, 1 at a time;"),
        (("block", crawl_name, "http://a.test/x"), "http://a.test: delay 0 s, 1 at a time; blocked by an operator"),
        (("show", crawl_name, "http://a.test"), "http://a.test\n  standing      blocked by an operator since"),
        (("unblock", crawl_name, "a.test"), "https://a.test: delay 0 s, 1 at a time; due since"),
        (("block", crawl_name, "new.test"), "https://new.test: delay 0 s, 1 at a time; blocked by an operator since"),
        (("ls", crawl_name), "blocked (2):\n  http"),
    ):
        result = command.run("host", *arguments)
        assert result.code == ExitCode.DONE, result.err
        assert result.out.startswith(words)
    wrong: tuple[tuple[tuple[str, ...], str], ...] = (
        (("set", crawl_name, "a.test"), "say what to set: --delay TIME, --cap N or --retry"),
        (("set", crawl_name, "a.test", "--cap", "0"), "--cap '0' will not do: write a number from 1 to 10,000, or"),
        (("set", crawl_name, "a.test", "--delay", "soon"), "'soon' is not a duration"),
        (("set", crawl_name, "b.test", "--retry"), "this crawl knows no host https://b.test or http://b.test"),
        (("show", crawl_name, "b.test"), "this crawl knows no host"),
        (("set", crawl_name, "a.test", "--delay", "8d"), "--delay '8d' will not do: the most is 7d"),
        (("ls", "no-such-crawl"), "there is no crawl 'no-such-crawl'"),
    )
    for given, words in wrong:
        result = command.run("host", *given)
        assert result.code == ExitCode.USAGE
        assert result.err.startswith(f"streamcrawl: {words}")
    assert documents(command.run("host", "ls", crawl_name, "--json"))[0]["blocked_count"] == 2
    assert command.run("audit", crawl_name).code == ExitCode.DONE


def test_dead_letters_are_listed_sent_again_and_removed(command: Typed, crawl_name: str) -> None:
    async def dead(operated: Operated) -> None:
        await operated.kill([f"http://h{n}.test/{m}" for n in range(3) for m in range(20)], error="first\nsecond")
        await operated.kill(["http://a.test/x"], reason="http_503", status="503")

    command.made(crawl_name, dead)
    listed = command.run("dead", "ls", crawl_name, "--limit", "2").out.splitlines()
    assert re.fullmatch(r"id +died at +reason +tries +status +url", listed[0])
    assert re.fullmatch(r"[01]/\d+-\d +20\S+Z +http_503 +1 +503  http://a.test/x", listed[1])
    assert len(listed) == 3
    assert len(command.run("dead", "ls", crawl_name).out.splitlines()) == 51
    assert command.run("dead", "ls", crawl_name).err == (
        "the newest 50; --limit N shows more, --by reason counts all\n"
    )
    letters = documents(command.run("dead", "ls", crawl_name, "--json", "--where", "reason=timeout", "--limit", "99"))
    assert len({letter["id"] for letter in letters}) == 60
    shown = command.run("dead", "show", crawl_name, letters[0]["id"]).out
    assert "error          first\n               second\n" in shown
    assert documents(command.run("dead", "show", crawl_name, letters[0]["id"], "--json")) == letters[:1]
    for by, counted in (("reason", "all"), ("status", "all"), ("host", "all"), ("kind", "all")):
        found = documents(command.run("dead", "ls", crawl_name, "--by", by, "--json"))[0]
        assert (sum(found["counts"].values()), found["counted"]) == (61, counted)
    newest = command.run("dead", "ls", crawl_name, "--by", "reason", "--limit", "1").out
    assert newest == "           1  http_503\n           1  dead letters: the newest 1\n"
    one = command.run("dead", "ls", crawl_name, "--by", "reason", "--host", "a.test").out
    assert one.endswith("dead letters: all of this kind\n")

    chosen = ("--where", "reason=timeout", "--host", "h1.test")
    assert command.run("dead", "replay", crawl_name, *chosen, "--dry-run").out == "20 would be sent again\n"
    said = documents(command.run("dead", "replay", crawl_name, *chosen, "--limit", "5", "--json"))[0]
    assert (said["queued"], said["asked"], said["gone"], said["invalid"], said["stopped"]) == (5, 0, 0, 0, False)
    replayed = command.run("dead", "replay", crawl_name, *chosen, "--attempts", "keep")
    assert replayed.out == "15 queued again\n"
    assert replayed.err.startswith("no worker is alive; to have it done: streamcrawl worker ")
    assert command.run("dead", "replay", crawl_name, *chosen).out == "no dead letter to do it to (41 looked at)\n"
    assert command.run("dead", "purge", crawl_name, "--id", letters[-1]["id"]).out == "1 removed for good\n"
    assert command.run("dead", "purge", crawl_name, "--all").out == "40 removed for good\n"
    assert command.run("dead", "ls", crawl_name).out == "no dead letters\n"
    assert command.run("dead", "ls", crawl_name, "--match", "x").out == "no dead letters of this kind\n"
    for arguments, words in (
        (("replay", crawl_name), "say which: --where, --host, --stage, --since, --until, --match or --id; or --all"),
        (("purge", crawl_name, "--all", "--host", "x"), "--all means every one of them, and others are chosen too"),
        (("show", crawl_name, "1-1"), "there is no dead letter 1-1"),
        (("ls", crawl_name, "--since", "soon"), "--since 'soon' is no moment"),
        (("ls", crawl_name, "--where", "x=y"), "--where 'x=y' will not do"),
    ):
        result = command.run("dead", *arguments)
        assert (result.code, result.err.startswith(f"streamcrawl: {words}")) == (ExitCode.USAGE, True), result.err
    assert command.run("audit", crawl_name).code == ExitCode.DONE


def test_explain_says_where_a_url_is(command: Typed, crawl_name: str) -> None:
    async def one(operated: Operated) -> None:
        await operated.offer(urls("a.test", 2))
        scope = Scope.from_settings(make_settings(name="x"), ["http://a.test/"])
        await operated.crawl.first.control(crawl=msgspec.json.encode({"scope": scope.state()}).decode())

    command.made(crawl_name, one)
    found = command.run("explain", crawl_name, "http://a.test/1")
    assert found.out.startswith(
        "http://a.test/1\n  now         queued, level normal, with 1 tasks of its host before it\n  seen        yes\n"
    )
    unknown = documents(command.run("explain", crawl_name, "http://elsewhere.test/", "--json"))[0]
    assert (unknown["seen"], unknown["in_scope"], unknown["place"]) == (False, False, "")
    assert command.run("explain", crawl_name, "nothing").code == ExitCode.USAGE


def test_long_work_shows_how_far_it_is(command: Typed, crawl_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command.made(crawl_name, lambda operated: operated.offer(urls("a.test", 1200)))
    monkeypatch.setattr("streamcrawl.cli.bar.LINE_S", 0)
    said = command.run("queue", "purge", crawl_name, "--match", "/1")
    assert said.out == "311 removed for good\n"
    assert said.err.splitlines()[0] == "purge: 500 of 1,200 looked at, purged 111"
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as far as rich is concerned
    shown = command.run("queue", "purge", crawl_name, "--all")
    assert shown.out == "889 removed for good\n"
    assert "purge" in shown.err
    assert "889/889" in shown.err
