"""The metrics of worker processes, as Prometheus reads them.

`WorkerMetrics` turns what a supervisor and its children have counted (work/meters.py) into metric families;
docs/metrics.md lists them. Which series there are depends on the stages of the crawl alone, never on what is crawled.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from streamcrawl.work.meters import FAMILIES, SUPERVISOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from streamcrawl.work.meters import Family
    from streamcrawl.work.supervisor import Reading, Supervisor

PREFIX: Final = "streamcrawl_"


class WorkerMetrics(Collector):
    """All figures of one supervisor, its children included, at the moment of the scrape."""

    def __init__(self, crawl: str, supervisor: Callable[[], Supervisor | None], messages: Mapping[str, int]) -> None:
        """Prepare the collector.

        Args:
            crawl: Its name.
            supervisor: Returns the supervisor; None while there is none yet.
            messages: How many were logged, by level.
        """
        self._crawl = crawl
        self._supervisor = supervisor
        self._messages = messages

    def collect(self) -> Iterator[Metric]:
        build = gauge("build_info", "The version that runs", ["version"])
        build.add_metric([version("streamcrawl")], 1)
        yield build
        messages = counter("log_messages", "Messages that were logged, suppressed repeats included", ["crawl", "level"])
        for level, count in self._messages.items():
            messages.add_metric([self._crawl, level], count)
        yield messages
        supervisor = self._supervisor()
        if supervisor is None:
            return
        readings = supervisor.readings()
        for family in FAMILIES:
            yield _counted(self._crawl, family, readings)
        yield from self._gauges(supervisor, readings)
        restarts = counter("worker_restarts", "Processes that ended unasked and were replaced", ["crawl", "stage"])
        for reading in readings:
            if reading.role != SUPERVISOR:
                restarts.add_metric([self._crawl, reading.stage], reading.restarts)
        yield restarts

    def _gauges(self, supervisor: Supervisor, readings: Sequence[Reading]) -> Iterator[Metric]:
        labels = ["crawl", "stage"]
        slots = gauge("slots", "Entries that can be worked at in parallel", labels)
        busy = gauge("slots_busy", "Entries in hand", labels)
        processes = gauge("worker_processes", "Live processes", labels)
        memory = gauge("worker_memory_bytes", "Resident memory of the live processes", labels)
        for reading in readings:
            where = [self._crawl, reading.stage]
            processes.add_metric(where, len(reading.pids))
            resident = [_resident_bytes(pid) for pid in reading.pids]
            # A sum without one of them would be too low, and on systems without /proc none is known.
            if None not in resident:
                memory.add_metric(where, sum(filter(None, resident)))
            if reading.role != SUPERVISOR:
                slots.add_metric(where, reading.slots)
                busy.add_metric(where, reading.busy)
        yield from (slots, busy, processes, memory)
        age = gauge("heartbeat_age_seconds", "Since the last confirmed heartbeat", ["crawl"])
        age_ms = supervisor.heartbeat_age_ms()
        if age_ms is not None:
            age.add_metric([self._crawl], age_ms / 1000)
        yield age


def gauge(name: str, help_: str, labels: Iterable[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, help_, labels=tuple(labels))


def counter(name: str, help_: str, labels: Iterable[str] = ()) -> CounterMetricFamily:
    """Return a counter, whose name gets `_total`."""
    return CounterMetricFamily(PREFIX + name, help_, labels=tuple(labels))


def _counted(crawl: str, family: Family, readings: Iterable[Reading]) -> Metric:
    names = ("crawl", "stage", *family.labels)
    own = [reading for reading in readings if reading.role in family.roles]
    if family.type == "counter":
        counted = counter(family.name, family.help, names)
        for reading in own:
            for values in family.values_for(reading.role):
                counted.add_metric([crawl, reading.stage, *values], reading.cells[family.row(values)])
        return counted
    observed = HistogramMetricFamily(PREFIX + family.name, family.help, labels=names)
    bounds = [*map(str, family.bounds), "+Inf"]
    for reading in own:
        for values in family.values_for(reading.role):
            first = family.row(values)
            within = accumulate(reading.cells[first : first + len(bounds)])
            buckets = list(zip(bounds, within, strict=True))
            observed.add_metric([crawl, reading.stage, *values], buckets, reading.cells[first + len(bounds)])
    return observed


def _resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process; None where the system has no /proc, or the process has just ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
