"""What workers count: cells in shared memory, closed sets of labels, and the names that docs/metrics.md promises."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import TlsError, fetch_error_kinds
from streamcrawl.ops.exporter import CrawlLook, Look, _Figures, desired
from streamcrawl.ops.metrics import WorkerMetrics
from streamcrawl.ops.status import Status
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Frontier
from streamcrawl.store.keys import Keys
from streamcrawl.store.scripts import script_names
from streamcrawl.store.shards import Shards
from streamcrawl.web.fetcher import _CERTIFICATE_FAULTS
from streamcrawl.work.board import Board
from streamcrawl.work.meters import (
    BATCH_SIZE,
    BODY_BYTES,
    CELLS,
    COMMANDS,
    CPU_SECONDS,
    FAMILIES,
    FETCH_ERRORS,
    FETCH_SECONDS,
    OTHER,
    REDIS_SECONDS,
    Meters,
    added,
)
from streamcrawl.work.supervisor import SinkSpec, Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_supervisor_reads_what_the_child_counts_and_keeps_it_when_the_child_is_gone() -> None:
    board = Board.create(3)
    child = Board(os.dup(board.fd), 3)
    child.hold("5-1")
    child.meters.add(BODY_BYTES, 2.0**53, "page")
    child.meters.observe(FETCH_SECONDS, 0.3, "page")
    child.close()
    assert [held.entry_id for held in board.held()] == ["5-1"]
    cells = board.meters.read()
    assert cells[BODY_BYTES.row(("page",))] == 2.0**53
    assert sum(cells) == pytest.approx(2.0**53 + 1.3)
    board.close()


@pytest.mark.parametrize(
    ("value", "bucket"), [(0.0, 0), (0.005, 0), (0.0051, 1), (60.0, 12), (61.0, 13), (float("inf"), 13)]
)
def test_value_counts_in_the_bucket_that_ends_at_or_above_it(value: float, bucket: int) -> None:
    meters = Meters()
    meters.observe(FETCH_SECONDS, value, "page")
    row = FETCH_SECONDS.row(("page",))
    counted = meters.read()[row : row + len(FETCH_SECONDS.bounds) + 1]
    assert counted == [float(n == bucket) for n in range(len(counted))]


def test_word_that_is_not_known_counts_as_other() -> None:
    meters = Meters()
    meters.add(FETCH_ERRORS, 1, "page", "made_up")
    meters.observe(REDIS_SECONDS, 0.1, "made_up")
    meters.add(FETCH_ERRORS, 1, "page", "dns")
    assert meters.read()[FETCH_ERRORS.row(("page", OTHER))] == 1
    assert sum(meters.read()) == pytest.approx(3.1)
    with pytest.raises(KeyError):
        meters.add(BODY_BYTES, 1, "made_up")


def test_cells_of_families_do_not_overlap() -> None:
    taken = [
        cell
        for family in FAMILIES
        for row in family.rows.values()
        for cell in range(row, row + (len(family.bounds) + 2 if family.bounds else 1))
    ]
    assert sorted(taken) == list(range(CELLS))


def test_blocks_are_added_cell_by_cell() -> None:
    first, second = Meters(), Meters()
    first.put(CPU_SECONDS, 1.5)
    second.put(CPU_SECONDS, 2.0)
    assert added(first.read(), (), second.read())[CPU_SECONDS.row(())] == 3.5
    assert added() == [0.0] * CELLS


def test_every_fetch_error_and_every_script_has_a_name_of_its_own() -> None:
    assert {fault.kind for fault in _CERTIFICATE_FAULTS.values()} == {*TlsError.CERTIFICATE_KINDS}
    assert {"dns", "timeout", "tls", "tls_expired", "body_too_slow"} <= {*fetch_error_kinds()}
    assert {command for own in COMMANDS.values() for command in own} - {OTHER} <= {*script_names()}


# -- names


async def worker_series() -> tuple[set[str], set[tuple[str, ...]]]:
    """Return the names of a supervisor with two outputs, and the labels of each."""
    crawl = Shards([Frontier(connect("redis://127.0.0.1:1/0"), Keys("unit"), "epoch")])
    sinks = [SinkSpec(name, f"/tmp/{name}") for name in ("out-1", "out-2")]
    supervisor = Supervisor(
        "redis://127.0.0.1:1/0", make_settings(name="unit"), crawl, scope={}, sinks=sinks, log=lambda _: None
    )
    supervisor.meters.observe(REDIS_SECONDS, 0.1, "made_up")
    supervisor.meters.observe(BATCH_SIZE, 3)
    families = list(WorkerMetrics("unit", lambda: supervisor, {"info": 1}).collect())
    samples = [sample for family in families for sample in family.samples]
    series = [(sample.name, *map(str, sorted(sample.labels.items()))) for sample in samples]
    assert len(series) == len({*series})
    await crawl.client.aclose()
    return {_documented(family.name, family.type) for family in families}, {*series}


def _documented(name: str, type_: str) -> str:
    return name.removeprefix("streamcrawl_") + ("_total" if type_ == "counter" else "")


def documented(section: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return name -> type and labels from a table of docs/metrics.md."""
    text = DOCS.read_text("utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ?([\w, ]*?) ?\|", text, re.MULTILINE)
    return {name: (type_, tuple(filter(None, labels.replace(" ", "").split(",")))) for name, type_, labels in rows}


async def test_every_metric_of_workers_is_documented_and_there() -> None:
    names, series = await worker_series()
    assert names == {*documented("From workers")}
    for name, (_, labels) in documented("From workers").items():
        shown = {row[1:] for row in series if row[0].startswith(f"streamcrawl_{name}") and "le" not in str(row[1:])}
        for row in shown:
            assert {part.split("'")[1] for part in row} == {*labels}, name


def test_every_metric_of_the_exporter_is_documented_and_there() -> None:
    server = {"used_memory": 1, "aof_enabled": 1}
    status = Status("unit")
    families = list(_Figures(Look(0.0, 0.1, "", server, [CrawlLook(status, {}, {}, {}, {}, {})], 1), 0).collect())
    names = documented("From the exporter")
    assert {_documented(family.name, family.type): family.type for family in families} == {
        name: type_ for name, (type_, _) in names.items()
    }
    for family in families:
        labels = names[_documented(family.name, family.type)][1]
        assert all(tuple(sample.labels) == labels for sample in family.samples), family.name


# -- scaling


@pytest.mark.parametrize(
    ("left", "pending", "backlog_s", "slots", "count"),
    [
        (0, 0, 0.0, [], 0),
        (0, 0, 0.0, [8, 8], 0),
        (500, 0, None, [], 1),
        (500, 0, None, [8, 8, 8], 3),
        (500, 3, 0.0, [8, 8, 8], 1),
        (500, 17, 0.0, [8, 8, 8], 3),
        (500, 24, 60.0, [8, 8, 8], 3),
        (500, 24, 90.0, [8, 8, 8], 5),
        (500, 24, 9000.0, [8, 8, 8], 6),
        (5, 5, 1.0, [0], 1),
    ],
)
def test_workers_that_a_stage_should_have(
    left: int, pending: int, backlog_s: float | None, slots: Sequence[int], count: int
) -> None:
    assert desired(left, pending, backlog_s, slots, 60.0) == count
