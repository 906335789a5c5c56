"""The simulated fleet: the product's own workers over a web that is not there, and what a run of it is judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.simulated import Plan, Ran, faults_of, simulate
from benchmarks.simulated_fetcher import Request, read_requests
from benchmarks.web_model import Web, WebSpec, url_of
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

WEB = WebSpec(hosts=12, pages=80, host_pages_max=20, seeds=2, redirects=0.05, missing=0.05, latency_ms=5)


@pytest.mark.parametrize(("shards", "cap", "delay_ms"), [(1, 1, 20), (3, 4, 0)])
def test_a_fleet_finds_all_of_the_web_and_asks_each_host_in_turn(
    tmp_path: Path, shards: int, cap: int, delay_ms: int
) -> None:
    plan = Plan(
        web=WEB, workers=2, slots=20, supervisors=2, shards=shards, host_concurrency=cap, delay_ms=delay_ms, idle_s=0
    )
    with RedisServer() as server:
        figures, faults, ran = simulate(plan, server, tmp_path)
    assert faults == [], ran.log
    pages = {url_of(host, page) for host, size in enumerate(Web(WEB).sizes) for page in range(size)}
    assert pages <= ran.statuses.keys()
    assert set(ran.statuses.values()) == {200, 404}
    asked = [request.path for request in read_requests(tmp_path)]
    assert asked.count("/robots.txt") == WEB.hosts
    assert figures["requests"] == len(asked)
    assert figures["commit_wait_ms_p99"] > 0


def request(start_ms: float, end_ms: float, page: int = 0) -> Request:
    return Request("1", url_of(0, page), "h0.example", f"/p/{page}", start_ms, end_ms, 200)


def test_what_is_wrong_with_a_run_is_said() -> None:
    plan = Plan(web=WebSpec(hosts=1, pages=3, seeds=1, links=0), delay_ms=100)
    done = {url_of(0, page): 200 for page in range(3)}
    good = Ran("ENDED", {}, done, 3, set(), 3, [])
    polite = [request(0, 10), request(110, 120, 1), request(220, 230, 2)]
    assert list(faults_of(plan, good, polite)) == []
    rude = [request(0, 10), request(109, 120, 1), request(115, 230, 2)]
    assert len(list(faults_of(plan, good, rude))) == 3
    [lost] = faults_of(plan, good._replace(statuses={url_of(0, 0): 200, url_of(0, 1): 200}, records=2), polite)
    assert lost == f"{url_of(0, 2)} is missing"
    [twice] = faults_of(plan, good._replace(records=4), polite)
    assert "twice" in twice
    [strange] = faults_of(plan, good._replace(dead={url_of(7, 7)}), polite)
    assert "came from nowhere" in strange
    [more] = faults_of(plan, good._replace(created=4), polite)
    assert "counts 4 pages" in more
