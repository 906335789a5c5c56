"""Traces of a program, as a collector gets them: one of each page, over all processes that it passes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

import pytest

from streamcrawl.errors import ExitCode
from tests.e2e.command import REPOSITORY
from tests.otlp_server import OtlpServer
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.command import Command, Result
    from tests.otlp_server import Received

PAGES: Final = 6
SECRET: Final = "hunter2"


@pytest.fixture
def small_site() -> Iterator[SiteProcess]:
    with SiteProcess(SiteSpec(pages_per_host=PAGES)) as running:
        yield running


def run(command: Command, site: SiteProcess, *options: str, endpoint: str, **environment: Any) -> Result:
    return command.start(
        *("run", "tests.programs:traced", site.seed_url, *options),
        PYTHONPATH=str(REPOSITORY),
        TESTS_JOURNAL=str(command.folder / "journal"),
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        **environment,
    ).wait()


def test_one_trace_follows_a_page_through_all_stages_and_processes(command: Command, small_site: SiteProcess) -> None:
    with OtlpServer() as collector:
        done = run(command, small_site, "--traces", "1", endpoint=collector.url, OTEL_SERVICE_NAME="books")
        assert done.code == ExitCode.DONE, done
        spans = list(collector.spans)

    by_id = {(one.trace, one.span): one for one in spans}
    assert len(by_id) == len(spans)
    batches = [one for one in spans if one.name == "shelve batch"]
    roots = [one for one in spans if not one.parent and one not in batches]
    assert [one.name for one in roots] == ["page"] * len(roots)
    assert len(roots) >= PAGES
    assert {one.resource["service.name"] for one in spans} == {"books"}

    def of_trace(root: Received, name: str) -> list[Received]:
        return [one for one in spans if one.trace == root.trace and one.name == name]

    for root in roots:
        (fetch,), (request,), (stored,) = (of_trace(root, name) for name in ("fetch", "GET", "shelve"))
        tries = sorted(of_trace(root, "measure"), key=lambda one: int(one.attributes["streamcrawl.attempt"]))
        assert fetch.parent == root.span
        assert request.parent == fetch.span
        assert request.attributes["http.response.status_code"] == 200
        assert [one.parent for one in tries] == [fetch.span] * 2, "a try that failed and the next one"
        assert [one.attributes["streamcrawl.outcome"] for one in tries] == ["retry", "done"]
        assert stored.parent == tries[-1].span
        (scales,) = of_trace(root, "scales")
        assert by_id[root.trace, scales.parent].name == "handle", (
            "what a function traces lies under it, in a thread too"
        )
        assert len([batch for batch in batches if (root.trace, stored.span) in batch.links]) == 1
        assert len({fetch.process, tries[0].process, stored.process}) == 3
        for one in spans:
            if one.trace == root.trace:
                assert one is root or (one.trace, one.parent) in by_id
                assert one.began_ns <= one.ended_ns
        for one in (fetch, *tries, stored):
            parts = {part.name for part in spans if (part.trace, part.parent) == (one.trace, one.span)}
            assert {"wait", "commit"} <= parts
    failed = [one for one in spans if one.has_failed]
    assert {one.name for one in failed} == {"handle"}
    assert "ValueError: not yet" in failed[0].said
    assert SECRET not in repr(spans)
    assert any("token=REDACTED" in str(one.attributes.get("url.full")) for one in spans)


def test_a_collector_that_is_away_or_hangs_costs_spans_and_no_pages(command: Command, small_site: SiteProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        endpoint = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        done = run(command, small_site, "--traces", "1", endpoint=endpoint, OTEL_BSP_SCHEDULE_DELAY="50")
    assert done.code == ExitCode.DONE, done
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: streamcrawl sends traces by"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin: streamcrawl sends traces by otlp or none"),
    ],
)
def test_what_cannot_send_traces_says_so_in_one_line(command: Command, environment: dict[str, str], said: str) -> None:
    done = command.run("crawl", "http://127.0.0.1:1/", "--traces", "10", **environment)
    assert done.code == ExitCode.USAGE
    assert done.err.count("\n") == 1
    assert said in done.err


def test_without_opentelemetry_it_is_named_and_nothing_else_misses_it(
    command: Command, small_site: SiteProcess, tmp_path: Path
) -> None:
    (tmp_path / "lacking" / "opentelemetry").mkdir(parents=True)
    (tmp_path / "lacking" / "opentelemetry" / "__init__.py").write_text("")
    url, path = small_site.seed_url, str(tmp_path / "lacking")
    done = command.run("crawl", url, "--traces", "10", PYTHONPATH=path)
    assert (done.code, done.err) == (
        ExitCode.USAGE,
        "streamcrawl: --traces needs OpenTelemetry, which is not installed: pip install 'streamcrawl[otel]'\n",
    )
    assert command.run("crawl", url, PYTHONPATH=path).code == ExitCode.DONE
