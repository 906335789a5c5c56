"""Programs of a user's own, run by the command: every ending of an item, scaling, throttles, stops, requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis
from aiohttp import web

from streamcrawl.errors import ExitCode
from streamcrawl.store.embedded import EmbeddedRedis
from tests.e2e.programs import once
from tests.e2e.test_metrics import port_of
from tests.programs import POISON, noted
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.programs import Programs
    from tests.redis_server import RedisServer


RESIDENT_MAX_BYTES = 200_000_000
"""Of one process: Python with everything that it imports, and the few pages in hand."""


@pytest.fixture(scope="module")
def host() -> Iterator[SiteProcess]:
    """One host of 30 pages, without a state of its own."""
    with SiteProcess(SiteSpec(hosts=1, pages_per_host=30)) as running:
        yield running


@pytest.fixture(scope="module")
def pair() -> Iterator[SiteProcess]:
    """Two hosts of 40 pages."""
    with SiteProcess(SiteSpec(hosts=2, pages_per_host=40)) as running:
        yield running


@pytest.fixture(scope="module")
def wide() -> Iterator[SiteProcess]:
    """Eight hosts of 25 pages."""
    with SiteProcess(SiteSpec(hosts=8, pages_per_host=25)) as running:
        yield running


def test_three_stages_bring_every_item_once_to_file_and_sink(programs: Programs, site: SiteProcess) -> None:
    outputs = ("-o", "out.jsonl", "-o", "out.warc.gz")
    out = programs.run("pipeline", *programs.seeds(site.seed_url), "--scope", "any", *outputs, "--shards", "2")
    assert "pipeline: complete" in out
    expected = site.expected_pages()
    records = programs.command.records("out.jsonl")
    assert once([record["url"] for record in records]) == expected == once(programs.noted("weighed"))
    archive = gzip.decompress((programs.command.folder / "out.warc.gz").read_bytes())
    archived = re.findall(rb"WARC-Type: (?:response|revisit)\r\n.*?WARC-Target-URI: (.*?)\r\n", archive, re.DOTALL)
    assert expected <= once([url.decode() for url in archived]), "an archive gets pages and no items"
    with closing(sqlite3.connect(programs.command.folder / "kept.db")) as kept:
        rows = {(row[0], row[1], row[2]) for row in kept.execute("select url, weight, label from kept")}
    assert rows == {(record["url"], record["weight"], record["label"]) for record in records}
    assert {record["label"] for record in records} == {"even", "odd"}
    assert len(programs.noted("closed")) == 1, "the database is closed by the one worker that opened it"
    totals = programs.audit("pipeline")
    count = len(expected)
    assert [totals[f"{line}.{state}"] for line in ("weigh", "label", "keep") for state in ("created", "done")] == (
        [count] * 6
    )
    # The same command again finds nothing left; without the program nobody may go on.
    assert "complete" in programs.run("pipeline", *programs.seeds(site.seed_url), "--resume")
    refused = programs.command.run("crawl", "--resume", "--name", "pipeline")
    assert refused.code == ExitCode.USAGE
    assert "streamcrawl run tests.programs:pipeline" in refused.err


def test_every_ending_of_an_item_is_counted_and_poison_alone_is_a_dead_letter(
    programs: Programs, host: SiteProcess
) -> None:
    programs.run("choosy", *programs.seeds(host.seed_url), code=ExitCode.WITH_DEAD_LETTERS)
    urls = {int(url.rpartition("/")[2]): url for url in host.expected_pages(scope="host")}
    assert once(programs.noted("saved")) == {
        url for number, url in urls.items() if number % 10 and number not in (5, 7, 13)
    }
    assert Counter(programs.noted("judged"))[urls[7]] == 2, "its attempts"
    totals = programs.audit("choosy")
    assert {name: count for name, count in totals.items() if name.startswith("judge.d") and name.count(".") == 2} == {
        "judge.dead.handler": 1, "judge.dead.retry": 1, "judge.dropped.tenth": 3,
    }  # fmt: skip
    assert {name: totals[f"save.{name}"] for name in ("created", "done", "dead.handler")} == {
        "created": 25, "done": 24, "dead.handler": 1,
    }  # fmt: skip
    listed = programs.command.run("dead", "ls", "choosy", "--json").out
    letters = {letter["url"]: letter for letter in map(json.loads, listed.splitlines())}
    assert {url: (letter["stage"], letter["attempts"]) for url, letter in letters.items()} == {
        urls[5]: ("judge", 2),
        urls[7]: ("judge", 2),
        f"{urls[13]}": ("save", 1),
    }
    assert urls[13].endswith(POISON)
    assert "seven is too much" in letters[urls[7]]["error"]
    assert "in judge" in letters[urls[7]]["error"], "the traceback"
    assert urls[7] in letters[urls[7]]["error"]
    assert max(line["size"] for line in noted(programs.journal, "batch")) == 8


def most_at_a_time(programs: Programs, begin: str) -> int:
    """Return how many items were being weighed at a time, at most, by the order of the journal."""
    most = running = 0
    for line in programs.journal.read_text().splitlines():
        one = json.loads(line)
        if one["url"].startswith(begin):
            running += {"weighing": 1, "weighed": -1}.get(one["what"], 0)
            most = max(most, running)
    return most


def test_second_worker_of_a_stage_takes_a_share(
    programs: Programs, redis_server: RedisServer, crawl_name: str, pair: SiteProcess
) -> None:
    place = ("--redis", redis_server.url, "--name", crawl_name)
    # Most pages come once both are there: the seeds are not at their end before.
    running = programs.start(
        *("run", "pipeline", *place, "--memory-max", "500MB", "--seeds", "-", "-o", "out.jsonl"),
        nap_s=0.05,
        keeps_stdin_open=True,
    )
    stdin = running.process.stdin
    assert stdin is not None
    stdin.write(f"{pair.url(1, '/p/0')}\n".encode())
    stdin.flush()
    running.until(lambda: programs.noted("weighed"), "the first item")
    helper = programs.start("worker", "pipeline", "--stage", "weigh", *place, nap_s=0.05)

    def weighers() -> int:
        status = programs.ask("status", crawl_name, "--redis", redis_server.url, "--json")
        return sum(worker["stage"] == "weigh" for worker in status["workers"])

    helper.until(lambda: weighers() == 2, "two workers that weigh")
    stdin.write(f"{pair.url(2, '/p/0')}\n".encode())
    stdin.close()
    assert (running.wait().code, helper.wait().code) == (ExitCode.DONE, ExitCode.DONE)
    weighed = noted(programs.journal, "weighed")
    shares = Counter(line["pid"] for line in weighed if line["url"].startswith(pair.url(2, "/")))
    assert len(shares) == 2, "each holds two items at most, for 50 ms"
    assert min(shares.values()) > sum(shares.values()) // 8
    assert most_at_a_time(programs, pair.url(2, "/")) > 2, "which one of them alone never has"
    assert once([line["url"] for line in weighed]) == pair.expected_pages()
    assert once([record["url"] for record in programs.command.records("out.jsonl")]) == pair.expected_pages()
    programs.audit(crawl_name, "--redis", redis_server.url)


def test_stalled_sink_stops_the_fetch_within_its_marks_and_goes_on(programs: Programs, wide: SiteProcess) -> None:
    before = len(wide.requests())
    arguments = (*programs.seeds(wide.seed_url), "--scope", "any", "--concurrency", "4", "--metrics-port", "0")
    running = programs.start("run", "stalled", *arguments)
    workers = port_of(running)

    def stages() -> dict[str, Any]:
        return {stage["stage"]: stage for stage in programs.status("stalled").get("stages", ())}

    def held() -> bool:
        found = stages()
        return bool(found and found["fetch"]["held_by"] and found["swallow"]["is_over"] and found["forward"]["held_by"])

    def fetches() -> int:
        return len(wide.requests()) - before

    running.until(held, "the fetch held back by the sink that stands still", within_s=40)
    store = EmbeddedRedis(programs.command.folder / ".streamcrawl" / "stalled", memory_max_bytes=0).url
    look = programs.command.start("exporter", "--redis", store, "--port", "0")
    programs.running.append(look)
    exporter = port_of(look)

    def throttles() -> dict[tuple[str, str], float]:
        found = exporter.scrape().all("throttled")
        return {(dict(own)["stage"], dict(own)["reason"]): value for own, value in found.items()}

    def held_for() -> float:
        return exporter.scrape().total("throttled_seconds_total", stage="fetch", reason="full:swallow")

    def resident() -> dict[int, int]:
        found = [psutil.Process(running.process.pid), *psutil.Process(running.process.pid).children(recursive=True)]
        return {one.pid: one.memory_info().rss for one in found if one.is_running()}

    running.until(held_for, "the exporter to say since when")
    first_s, resident_first, fetched = held_for(), resident(), fetches()
    running.until(lambda: held_for() > first_s + 2, "the sink to stand still for some time")
    # Everything that waits, waits: no process and no store grows, and nobody is asked for a page.
    for pid, size in resident().items():
        assert size < min(RESIDENT_MAX_BYTES, resident_first[pid] + 5_000_000)
    with redis.Redis.from_url(store) as client:
        assert client.info("memory")["used_memory_peak"] < 8_000_000
    assert fetches() == fetched
    # Its state is there for whoever looks.
    text = programs.ask("status", "stalled")
    assert "too many items wait for stage swallow" in text
    assert "held back by" in text
    seen = throttles()
    assert seen["fetch", "full:swallow"] == seen["forward", "full:swallow"] == 1
    assert (seen["fetch", "paused"], seen["fetch", "budget"]) == (0, 0)
    found = stages()
    # A mark of 10, of the sink two rounds of its 10 slots; and what was under way when it was passed: a page of each of
    # the 8 hosts, the 2 items in hand.
    assert found["forward"]["waiting"] <= 10 + 8
    assert found["swallow"]["waiting"] <= 20 + 2
    assert found["swallow"]["pending"] <= 10
    assert fetched <= 8 + (10 + 8) + 2 + (20 + 2) + 10 + 8, "robots.txt of 8 hosts, and what is in there"
    assert workers.scrape().total("slots_busy", stage="fetch") == 0
    assert programs.noted("swallowed") == []
    programs.gate.touch()
    assert running.wait(within_s=60).code == ExitCode.DONE
    assert once(programs.noted("swallowed")) == wide.expected_pages()
    programs.audit("stalled")


def test_slots_of_a_stage_grow_while_all_are_busy_and_fall_while_its_loop_is_held(
    programs: Programs, host: SiteProcess
) -> None:
    running = programs.start(
        *(
            "run",
            "roomy",
            *programs.seeds(host.seed_url),
            "--scope",
            "any",
            "--concurrency",
            "4",
            "--metrics-port",
            "0",
        ),
        nap_s=0.1,
    )
    port = port_of(running)

    def slots() -> dict[str, float]:
        return {stage: sum(port.scrape().all("slots", stage=stage).values()) for stage in ("idle", "burn")}

    running.until(lambda: slots()["idle"] > 16 > slots()["burn"] >= 2, "16 slots to become more, and others fewer")
    assert len(once(programs.noted("idle"))) > 0
    running.until(lambda: len(programs.noted("idle")) > 16, "calls in the new slots")
    assert port.scrape().by("reason", "slot_changes_total", stage="burn")["lag"] > 0
    asked = {one["stage"]: one["slots"] for one in json.loads(port.get("/debug/tasks")[1]) if "slots" in one}
    assert (asked["idle"]["least"], asked["idle"]["most"]) == (2, 64)

    def published() -> int:
        workers = programs.ask("status", "roomy", "--json")["workers"]
        return int(next(worker["slots"] for worker in workers if worker["stage"] == "idle"))

    running.until(lambda: published() > 16, "what the others go by to follow")
    programs.gate.touch()
    assert running.wait().code == ExitCode.DONE
    assert once(programs.noted("idle")) == once(programs.noted("burnt")) == host.expected_pages(scope="host")
    programs.audit("roomy")


async def test_request_says_method_body_headers_label_and_meta(programs: Programs) -> None:
    seen: list[tuple[str, str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.text()
        seen.append((request.method, body, request.headers.get("X-Token")))
        return web.Response(text='<a href="/item">item</a><p>' + f"{request.method} {body}", content_type="text/html")

    server = web.Application()
    server.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(server)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        await asyncio.to_thread(programs.run, "asking", *programs.seeds(url), "-o", "out.jsonl")
    finally:
        await runner.cleanup()
    records = programs.command.records("out.jsonl")
    assert sorted((record["meta"]["n"], record["label"], record["heard"]) for record in records) == [
        (1, "detail", ["GET "]),
        (2, "detail", ["POST q=1"]),
        (3, "detail", ["POST q=2"]),
    ]
    assert {record["url"] for record in records} == {url + "item"}
    # High priority goes first; the others in the order in which they were given.
    assert seen == [("GET", "", None), ("POST", "q=2", None), ("GET", "", "abc"), ("POST", "q=1", None)]


def test_worker_by_name_alone_and_unknown_stages_are_refused(programs: Programs, host: SiteProcess) -> None:
    result = programs.start("worker", "pipeline", "--stage", "nowhere", "--redis", "redis://127.0.0.1:1").wait()
    assert (result.code, result.err) == (
        ExitCode.USAGE,
        "streamcrawl: program 'pipeline' has no stage 'nowhere': it has page, weigh, label, keep\n",
    )
    result = programs.start("run", "nothing", *programs.seeds(host.seed_url)).wait()
    assert result.code == ExitCode.USAGE
    assert "program 'tests.programs:nothing' cannot be loaded" in result.err


def test_two_versions_of_a_stage_run_side_by_side_and_a_stage_with_items_is_not_dropped(
    programs: Programs, redis_server: RedisServer, crawl_name: str, pair: SiteProcess
) -> None:
    place = ("--redis", redis_server.url, "--name", crawl_name)
    more = (*place, "--memory-max", "500MB", "-o", "out.jsonl")

    def stages() -> dict[str, Any]:
        status = programs.ask("status", crawl_name, "--redis", redis_server.url, "--json")
        return {stage["stage"]: stage for stage in status["stages"]}

    running = programs.start("run", "first", *programs.seeds(pair.url(1, "/p/0")), *more, STREAMCRAWL_GRACE="0")
    running.until(lambda: (programs.command.folder / "out.jsonl").exists(), "the crawl")
    running.until(lambda: stages()["work@1"]["waiting"] > 10, "items for the first version")
    running.process.send_signal(signal.SIGINT)
    assert running.wait().code == ExitCode.STOPPED

    refused = programs.start("run", "lacking", "--resume", *more).wait()
    assert refused.code == ExitCode.USAGE
    assert "items are left for stage 'work@1', which this program does not have" in refused.err

    running = programs.start("run", "second", *programs.seeds(pair.url(2, "/p/0")), *more)
    running.until(lambda: stages().get("work@2", {}).get("done", 0) > 10, "items of the second version")
    assert "NOBODY READS IT" in programs.ask("status", crawl_name, "--redis", redis_server.url)
    programs.gate.touch()
    helper = programs.start("worker", "first", "--stage", "work", *place)
    assert (running.wait().code, helper.wait().code) == (ExitCode.DONE, ExitCode.DONE)
    records = programs.command.records("out.jsonl")
    assert once([record["url"] for record in records]) == pair.expected_pages()
    assert {record["version"] for record in records} == {1, 2}


def test_worker_that_cannot_open_what_it_needs_tries_again(programs: Programs, host: SiteProcess) -> None:
    running = programs.start("run", "unlucky", *programs.seeds(host.seed_url), "-o", "out.jsonl")
    result = running.wait()
    assert result.code == ExitCode.DONE, result
    assert result.err.count("OSError: the door is shut") == 2
    assert [record["door"] for record in programs.command.records("out.jsonl")] == ["open"]


def test_what_a_handler_needs_and_is_not_installed_ends_the_run_in_a_line_and_costs_no_page(
    programs: Programs, host: SiteProcess
) -> None:
    arguments = ("lean", *programs.seeds(host.seed_url), "-o", "out.jsonl")
    result = programs.start("run", *arguments).wait()
    assert result.code == ExitCode.USAGE
    assert result.err.splitlines()[-1] == (
        "streamcrawl: response.xpath needs lxml, which is not installed here: pip install 'streamcrawl[xpath]', or use "
        "response.css"
    )
    assert "Traceback" not in result.err
    programs.gate.touch()
    programs.run(*arguments)
    assert host.seed_url in once([record["url"] for record in programs.command.records("out.jsonl")])
    assert programs.audit("lean").get("page.crashed", 0) == 0


def test_pages_are_parsed_by_a_stage_of_their_own_and_again_without_a_fetch(
    programs: Programs, host: SiteProcess
) -> None:
    arguments = ("parsed", *programs.seeds(host.seed_url), "-o", "out.jsonl")
    programs.run(*arguments, code=ExitCode.WITH_DEAD_LETTERS)
    expected = host.expected_pages(scope="host")
    dead = host.url(1, POISON)
    assert once([record["url"] for record in programs.command.records("out.jsonl")]) == expected - {dead}
    fetched = len(host.requests())
    programs.gate.touch()
    assert "1" in programs.ask("dead", "replay", "parsed", "--stage", "parse")
    programs.run(*arguments)
    assert once([record["url"] for record in programs.command.records("out.jsonl")]) == expected
    assert len(host.requests()) == fetched, "the dead letter has its page"
    totals = programs.audit("parsed")
    assert [totals[f"{line}.done"] for line in ("page", "parse", "forth")] == [30] * 3
