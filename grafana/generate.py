"""Makes the dashboards of `grafana/dashboards/`: `python grafana/generate.py`, after every change of this file.

They are made and not drawn, because a hundred panels agree on units, legends and colours only when a program says them,
and because the types of Grafana's foundation SDK refuse what Grafana would not load. Start at `overview`.

Metrics of the exporter are the same from every exporter, so their queries take one of them (`ONE`); those of workers
are added up. What each metric means stands in docs/metrics.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grafana_foundation_sdk.cog.builder import Builder

FOLDER: Final = Path(__file__).parent / "dashboards"
SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
ONE: Final = "max without (instance, job, pod)"
"""Of the same series from several exporters."""
IN_CRAWL: Final = 'crawl=~"$crawl"'
IN_STAGE: Final = 'crawl=~"$crawl", stage=~"$stage"'
IN_FETCH: Final = 'crawl=~"$crawl", stage="fetch"'
GREEN, ORANGE, RED = "green", "orange", "red"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and how its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What one panel asks, how it shows the answer, and what to do about it."""

    title: str
    about: str
    """What it shows, and what somebody does who sees it go wrong."""
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "lines"
    """`lines`, `stacked`, `number`, `states` or `table`."""
    width: int = 8
    limits: tuple[tuple[float, str], ...] = ()
    """From which value on which colour; below the first it is green."""
    words: Mapping[str, tuple[str, str]] | None = None
    """Text and colour for a value."""
    decimals: int | None = None
    empty: str = "no data"
    """What stands there when there is no series: of what shows troubles alone, that there were none."""


def some(expr: str) -> str:
    """Return a query without its zeros: a legend with a line for each reason there might be hides those there are."""
    return f"{expr} > 0"


def held(expr: str) -> str:
    """Return a query by crawl, stage and reason without what was not held back in the time that is shown."""
    ever = f"max by (crawl, stage, reason) (max_over_time(streamcrawl_throttled{{{IN_CRAWL}}}[$__range])) > 0"
    return f"{expr} and on (crawl, stage, reason) ({ever})"


def worker_sum(metric: str, by: str, where: str = IN_STAGE) -> str:
    """Return the rate of a counter of workers, added up."""
    return f"sum by ({by}) (rate(streamcrawl_{metric}{{{where}}}[$__rate_interval]))"


def truth_sum(metric: str, by: str, where: str = IN_CRAWL) -> str:
    """Return a gauge of the exporter, added up."""
    return f"sum by ({by}) ({ONE} (streamcrawl_{metric}{{{where}}}))"


def truth_rate(metric: str, by: str, where: str = IN_CRAWL) -> str:
    """Return the rate of a counter of the exporter, added up."""
    return f"sum by ({by}) ({ONE} (rate(streamcrawl_{metric}{{{where}}}[$__rate_interval])))"


def quantile(share: float, metric: str, by: str, where: str = IN_STAGE) -> str:
    """Return a quantile of a histogram of workers."""
    inner = f"sum by (le, {by}) (rate(streamcrawl_{metric}_bucket{{{where}}}[$__rate_interval]))"
    return f"histogram_quantile({share}, {inner})"


HEALTH: Final = (
    Panel(
        title="Redis",
        about="Whether the exporter reaches Redis. Down: workers wait and lose nothing, but nothing happens either; "
        "bring Redis back.",
        queries=(Query(f"min({ONE} (streamcrawl_redis_up))", "Redis"),),
        kind="number",
        width=3,
        words={"0": ("down", RED), "1": ("up", GREEN)},
    ),
    Panel(
        title="Alerts",
        about="Alerts that fire now. Each links its paragraph in docs/runbook.md.",
        queries=(Query('count(ALERTS{alertname=~"Streamcrawl.*", alertstate="firing"}) or vector(0)', "firing"),),
        kind="number",
        width=3,
        limits=((1, RED),),
        decimals=0,
    ),
    Panel(
        title="Audit",
        about="By how many tasks the counts differ from the structures, in all. Anything but 0 is a fault of "
        "streamcrawl or of its Redis: run `streamcrawl audit NAME`, which says where.",
        queries=(Query(f"sum({ONE} (abs(streamcrawl_audit_balance{{{IN_CRAWL}}})))", "difference"),),
        kind="number",
        width=3,
        limits=((1, RED),),
        decimals=0,
    ),
    Panel(
        title="Workers",
        about="Live worker processes of all stages, as Redis knows them. None: start `streamcrawl worker NAME`.",
        queries=(Query(truth_sum("consumers", "crawl"), "{{crawl}}"),),
        kind="number",
        width=3,
        limits=((0, RED), (1, GREEN)),
        decimals=0,
    ),
    Panel(
        title="Pages done",
        about="Pages that ended with a record. It only grows.",
        queries=(Query(truth_sum("tasks_done_total", "crawl", f'{IN_FETCH}, kind="page"'), "{{crawl}}"),),
        kind="number",
        width=3,
        decimals=0,
    ),
    Panel(
        title="Pages a second",
        about="Pages done a second, over all workers. Compare with what is due (below) to see whether workers or "
        "politeness limit it.",
        queries=(Query(truth_rate("tasks_done_total", "crawl", f'{IN_FETCH}, kind="page"'), "{{crawl}}"),),
        unit="reqps",
        kind="number",
        width=3,
        decimals=1,
    ),
    Panel(
        title="Still to do at this rate",
        about="All queued pages divided by the present rate, politeness included. Absent while nothing is fetched. "
        "It grows as long as more is discovered than fetched. `streamcrawl status NAME` names the hosts with "
        "the most.",
        queries=(Query(f"max by (crawl) (streamcrawl_queued_seconds{{{IN_CRAWL}}})", "{{crawl}}"),),
        unit="s",
        kind="number",
        width=3,
    ),
    Panel(
        title="Dead letters",
        about="Tasks that are parked for a person. See why: `streamcrawl dead ls NAME --by reason`; send them again: "
        "`streamcrawl dead replay NAME --where reason=…`.",
        queries=(Query(truth_sum("dead_letters", "crawl"), "{{crawl}}"),),
        kind="number",
        width=3,
        limits=((1, ORANGE), (1000, RED)),
        decimals=0,
    ),
)

PACE: Final = (
    Panel(
        title="Done a second, by stage",
        about="What each stage ended with a result. A stage that lies under the one before it is falling behind: "
        "scale it by its backlog.",
        queries=(Query(truth_rate("tasks_done_total", "crawl, stage"), "{{crawl}} {{stage}}"),),
        unit="ops",
    ),
    Panel(
        title="Backlog, by stage",
        about="How long the workers that are there need for what could be done at once. Over a minute and growing: "
        "add workers of that stage (`docker compose up --scale`, or let KEDA do it by the same figure). More "
        "workers do not help while the backlog is small: then politeness limits.",
        queries=(Query(f"max by (crawl, stage) (streamcrawl_backlog_seconds{{{IN_CRAWL}}})", "{{crawl}} {{stage}}"),),
        unit="s",
        limits=((60, ORANGE), (600, RED)),
    ),
    Panel(
        title="Oldest entry, by stage",
        about="Age of the entry that waits longest for a worker, and since when the oldest one in hand was "
        "dispatched. Waiting long: too few workers. In hand long: a handler or a server hangs; `streamcrawl "
        "pending ls NAME --idle 1m`.",
        queries=(
            Query(
                f"max by (crawl, stage) (streamcrawl_stream_oldest_waiting_seconds{{{IN_CRAWL}}})",
                "{{crawl}} {{stage}} waiting",
            ),
            Query(
                f"max by (crawl, stage) (streamcrawl_stream_oldest_pending_seconds{{{IN_CRAWL}}})",
                "{{crawl}} {{stage}} in hand",
            ),
        ),
        unit="s",
        limits=((300, ORANGE), (900, RED)),
    ),
    Panel(
        title="Waiting against the mark",
        about="Entries that no worker has read yet, in parts of the mark at which whatever fills the stream stops. "
        "At 100 % the stages before it stand: scale this stage, or see why it hangs.",
        queries=(
            Query(
                f"max by (crawl, stage) (streamcrawl_stream_waiting{{{IN_CRAWL}}} / "
                f"streamcrawl_stream_high_watermark{{{IN_CRAWL}}})",
                "{{crawl}} {{stage}}",
            ),
        ),
        unit="percentunit",
        limits=((0.8, ORANGE), (1, RED)),
    ),
    Panel(
        title="Discovered and done",
        about="Pages found and pages done a second. While more are found than done the crawl grows; see --depth, "
        "--deny and --max-pages if it does so for ever.",
        queries=(
            Query(truth_rate("tasks_created_total", "crawl", f'{IN_CRAWL}, kind="page"'), "{{crawl}} found"),
            Query(truth_rate("tasks_done_total", "crawl", f'{IN_CRAWL}, kind="page"'), "{{crawl}} done"),
        ),
        unit="ops",
    ),
    Panel(
        title="Where the tasks are",
        about="Tasks in the frontier, in streams, and waiting for another try. All at 0: the crawl ends.",
        queries=(
            Query(truth_sum("queued_tasks", "crawl"), "{{crawl}} queued"),
            Query(truth_sum("stream_length", "crawl"), "{{crawl}} in streams"),
            Query(truth_sum("delayed_tasks", "crawl"), "{{crawl}} delayed"),
        ),
        kind="stacked",
    ),
)

THROTTLES: Final = (
    Panel(
        title="Held back, and why",
        about="When a stage was held back. paused: an operator; `streamcrawl resume NAME`. budget: --max-pages is "
        "reached. frontier_full, memory_full: Redis holds as much as it may; see runbook. full:STAGE: that "
        "stage does not keep up; scale it.",
        queries=(
            Query(
                held(f"max by (crawl, stage, reason) (streamcrawl_throttled{{{IN_CRAWL}}})"),
                "{{crawl}} {{stage}} {{reason}}",
            ),
        ),
        kind="states",
        empty="nothing was held back",
        width=12,
        words={"0": ("runs", GREEN), "1": ("held back", ORANGE)},
    ),
    Panel(
        title="Share of time held back",
        about="The same as a share of the last minutes. Short times are what marks are for; all of the time is a "
        "stage too few.",
        queries=(
            Query(
                # Of two looks at one moment, a second of delay between them would be more than all of the time.
                held(f"clamp_max({truth_rate('throttled_seconds_total', 'crawl, stage, reason')}, 1)"),
                "{{crawl}} {{stage}} {{reason}}",
            ),
        ),
        empty="nothing was held back",
        unit="percentunit",
        width=12,
        limits=((0.5, ORANGE), (0.95, RED)),
    ),
    Panel(
        title="Hosts",
        about="Hosts that may be fetched now (due) and hosts with something to fetch at all. Many due: more workers "
        "help. None due and many with work: politeness limits, and workers do not help.",
        queries=(
            Query(truth_sum("due_hosts", "crawl"), "{{crawl}} due"),
            Query(truth_sum("scheduled_hosts", "crawl"), "{{crawl}} with work"),
        ),
    ),
    Panel(
        title="Hosts in trouble",
        about="Hosts that do not answer and are backed off; given up, with their tasks dead; blocked by an operator; "
        "demoted, as their pages are near-identical. "
        "`streamcrawl host ls NAME` names them; `dead replay --host` tries one again.",
        queries=(
            Query(truth_sum("failing_hosts", "crawl"), "{{crawl}} failing"),
            Query(truth_sum("given_up_hosts", "crawl"), "{{crawl}} given up"),
            Query(truth_sum("blocked_hosts", "crawl"), "{{crawl}} blocked"),
            Query(truth_sum("demoted_hosts", "crawl"), "{{crawl}} demoted"),
        ),
    ),
    Panel(
        title="From dispatch to a worker",
        about="How long an entry waited in the stream before a worker read it. Seconds: workers are short, or do not "
        "read.",
        queries=(
            Query(quantile(0.5, "queue_wait_seconds", "crawl, stage", IN_CRAWL), "{{crawl}} {{stage}} half"),
            Query(quantile(0.95, "queue_wait_seconds", "crawl, stage", IN_CRAWL), "{{crawl}} {{stage}} 95 %"),
        ),
        unit="s",
    ),
)

FAILURES: Final = (
    Panel(
        title="Answers by class",
        about="Answers of web servers a second. Many 4xx: dead links, or the crawler is not wanted. 5xx and 429: too "
        "fast; `streamcrawl host set NAME HOST --delay 5s`.",
        queries=(Query(some(worker_sum("fetch_responses_total", "crawl, class", IN_CRAWL)), "{{crawl}} {{class}}"),),
        unit="reqps",
        kind="stacked",
    ),
    Panel(
        title="Requests without an answer",
        about="By reason, a second. dns or connect of everything: this network is broken, not theirs.",
        queries=(Query(some(worker_sum("fetch_errors_total", "crawl, reason", IN_CRAWL)), "{{crawl}} {{reason}}"),),
        empty="none",
        unit="reqps",
        kind="stacked",
    ),
    Panel(
        title="Tried again, put back, dead",
        about="Tasks a second that were tried again, that wait because their host does not answer, and that became "
        "dead letters.",
        queries=(
            Query(truth_rate("tasks_retried_total", "crawl, stage"), "{{crawl}} {{stage}} again"),
            Query(truth_rate("tasks_unanswered_total", "crawl, stage"), "{{crawl}} {{stage}} unanswered"),
            Query(truth_rate("tasks_dead_total", "crawl, stage"), "{{crawl}} {{stage}} dead"),
        ),
        unit="ops",
    ),
    Panel(
        title="Dead letters that lie there",
        about="By stage and reason. Read one: `streamcrawl dead show NAME ID`; mend the cause, then `dead replay`.",
        queries=(Query(truth_sum("dead_letters", "crawl, stage, reason"), ""),),
        kind="table",
        empty="none",
        decimals=0,
    ),
    Panel(
        title="Left out on purpose",
        about="Tasks that ended without a result for a named reason, a second: robots.txt, redirects to other hosts, "
        "limits.",
        queries=(
            Query(some(truth_rate("tasks_dropped_total", "crawl, stage, reason")), "{{crawl}} {{stage}} {{reason}}"),
        ),
        empty="none",
        unit="ops",
        kind="stacked",
    ),
    Panel(
        title="Links taken for traps",
        about="Links of pages that were not followed, a second. If they are real pages, raise the limit that the "
        "reason names: `streamcrawl settings show NAME`.",
        queries=(Query(some(truth_rate("links_left_out_total", "crawl, reason")), "{{crawl}} {{reason}}"),),
        empty="none",
        unit="ops",
        kind="stacked",
    ),
)

WORKERS: Final = (
    Panel(
        title="Oldest heartbeat",
        about="Since the last heartbeat of each worker. Beyond half a lease it starts no fetch, beyond a lease its "
        "entries are taken back: the machine hangs, or does not reach Redis.",
        queries=(
            Query(
                f"max by (crawl, stage, consumer) (streamcrawl_consumer_heartbeat_age_seconds{{{IN_CRAWL}}})",
                "{{consumer}}",
            ),
        ),
        unit="s",
        limits=((15, ORANGE), (30, RED)),
    ),
    Panel(
        title="Slots in use",
        about="Entries in hand, in parts of what a worker can hold. All at 100 %: scale, or raise --concurrency. One "
        "alone far from the others: look at its log.",
        queries=(
            Query(
                f"max by (crawl, stage, consumer) (streamcrawl_consumer_busy{{{IN_CRAWL}}}) / "
                f"(max by (crawl, stage, consumer) (streamcrawl_consumer_slots{{{IN_CRAWL}}}) > 0)",
                "{{consumer}}",
            ),
        ),
        unit="percentunit",
    ),
    Panel(
        title="Replaced, crashed, taken back, too late",
        about="Worker processes that were replaced, and tasks whose worker died, whose lease ran out, whose commit "
        "came too late. Nothing is lost by any of them, but work is done twice. Often: memory is short, or a "
        "handler crashes.",
        queries=(
            Query(worker_sum("worker_restarts_total", "crawl, stage", IN_CRAWL), "{{crawl}} {{stage}} replaced"),
            Query(truth_rate("tasks_crashed_total", "crawl, stage"), "{{crawl}} {{stage}} crashed"),
            Query(truth_rate("tasks_reclaimed_total", "crawl, stage"), "{{crawl}} {{stage}} taken back"),
            Query(truth_rate("tasks_lease_lost_total", "crawl, stage"), "{{crawl}} {{stage}} too late"),
        ),
        unit="ops",
    ),
    Panel(
        title="Lag of the event loop",
        about="How late timers fire, 99 of 100. Over 0.1 s something computes on the loop: a handler that should be "
        "a sync function, or a machine with too few cores.",
        queries=(
            Query(quantile(0.99, "loop_lag_seconds", "crawl, stage, instance", IN_CRAWL), "{{instance}} {{stage}}"),
        ),
        unit="s",
        limits=((0.1, ORANGE), (1, RED)),
    ),
    Panel(
        title="CPU",
        about="Cores in use by the processes of each stage. One for each process is the most there is: more "
        "--processes.",
        queries=(
            Query(worker_sum("worker_cpu_seconds_total", "crawl, stage, instance", IN_CRAWL), "{{instance}} {{stage}}"),
        ),
        unit="cores",
    ),
    Panel(
        title="Memory",
        about="Resident memory of the processes of each stage. Growing without end: see /debug/memory of that worker.",
        queries=(
            Query(
                f"sum by (crawl, stage, instance) (streamcrawl_worker_memory_bytes{{{IN_CRAWL}}})",
                "{{instance}} {{stage}}",
            ),
        ),
        unit="bytes",
    ),
    Panel(
        title="Messages",
        about="What workers logged, a second, by level. Warnings that do not end: read the log of that worker.",
        queries=(Query(worker_sum("log_messages_total", "crawl, level", IN_CRAWL), "{{crawl}} {{level}}"),),
        unit="ops",
        kind="stacked",
        width=24,
    ),
)

REDIS: Final = (
    Panel(
        title="Memory against the mark",
        about="Above the mark nothing is dispatched until what is under way has drained. Near it: raise maxmemory, "
        "lower --frontier-max, or wait for the outputs.",
        queries=(
            Query(f"max({ONE} (streamcrawl_redis_memory_bytes))", "used"),
            Query(f"max by (crawl) (streamcrawl_redis_memory_mark_bytes{{{IN_CRAWL}}})", "{{crawl}} mark"),
            Query(f"max by (crawl) (streamcrawl_redis_memory_limit_bytes{{{IN_CRAWL}}})", "{{crawl}} limit"),
        ),
        unit="bytes",
    ),
    Panel(
        title="Time of scripts",
        about="99 of 100 calls of each script, as workers see them. All slow: Redis is busy (SLOWLOG, a fork, its "
        "disk), or the network is. One slow: say so to its authors.",
        queries=(Query(quantile(0.99, "redis_command_seconds", "command", IN_CRAWL), "{{command}}"),),
        unit="s",
        limits=((0.05, ORANGE), (0.5, RED)),
    ),
    Panel(
        title="Calls of scripts",
        about="A second. Redis does one at a time: with 5,000 commits a second and more, shards on several servers "
        "help.",
        queries=(Query(worker_sum("redis_command_seconds_count", "command", IN_CRAWL), "{{command}}"),),
        unit="ops",
        kind="stacked",
    ),
    Panel(
        title="Known URLs",
        about="URLs ever discovered, some 10 bytes of Redis each.",
        queries=(Query(truth_sum("seen_fingerprints", "crawl"), "{{crawl}}"),),
    ),
    Panel(
        title="Append-only file",
        about="Off: a restart of Redis loses the crawl. Failed: the disk is full or broken; Redis refuses writes "
        "until it is mended. Both: see runbook.",
        queries=(
            Query("min(streamcrawl_redis_aof_enabled)", "on"),
            Query("min(streamcrawl_redis_aof_write_ok)", "last write good"),
        ),
        kind="states",
        words={"0": ("no", RED), "1": ("yes", GREEN)},
    ),
    Panel(
        title="Scrape of the exporter",
        about="How long reading Redis took. Its cost does not grow with the crawl; slow means that Redis is.",
        queries=(Query("max by (instance) (streamcrawl_exporter_scrape_seconds)", "{{instance}}"),),
        unit="s",
    ),
    Panel(
        title="Retained logs",
        about="What `retain=` and --keep-bodies keep for `streamcrawl replay`. All logs together have a quarter of the "
        "memory up to the mark, or each what log_max_bytes says: beyond it their oldest entries go.",
        queries=(Query(truth_sum("log_bytes", "crawl, log"), "{{crawl}} {{log}}"),),
        kind="stacked",
        unit="bytes",
        width=6,
    ),
    Panel(
        title="Entries of retained logs",
        about="How many items a replay of all of a log would send.",
        queries=(Query(truth_sum("log_entries", "crawl, log"), "{{crawl}} {{log}}"),),
        width=6,
    ),
    Panel(
        title="How far back logs reach",
        about="Age of the oldest entry: it grows up to what `retain=` says. Where it stays below, entries go before "
        "their time.",
        queries=(Query(f"max by (crawl, log) (streamcrawl_log_oldest_seconds{{{IN_CRAWL}}})", "{{crawl}} {{log}}"),),
        unit="s",
        width=6,
    ),
    Panel(
        title="Gone from logs before their time",
        about="Entries a second, for bytes or because Redis was at its mark: a replay cannot send them any more. Raise "
        "log_max_bytes or maxmemory, or retain for less long.",
        queries=(Query(truth_rate("log_trimmed_total", "crawl, log"), "{{crawl}} {{log}}"),),
        unit="ops",
        width=6,
    ),
)

FETCH: Final = (
    Panel(
        title="Requests a second",
        about="Answers of web servers, redirects and robots.txt included, by class.",
        queries=(Query(some(worker_sum("fetch_responses_total", "class", IN_FETCH)), "{{class}}"),),
        unit="reqps",
        kind="stacked",
    ),
    Panel(
        title="Time of a request",
        about="From its start to the last byte, connecting included. It is the servers' time, not ours: politeness "
        "makes the delay grow with it.",
        queries=tuple(
            Query(quantile(share, "fetch_seconds", "kind", f'{IN_FETCH}, kind="page"'), name)
            for share, name in ((0.5, "half"), (0.95, "95 %"), (0.99, "99 %"))
        ),
        unit="s",
    ),
    Panel(
        title="Share of requests without an answer",
        about="Over 10 %: see the reasons. All of one reason, of all hosts: look at this network and its name "
        "servers first.",
        queries=(
            Query(
                f"{worker_sum('fetch_errors_total', 'crawl', IN_FETCH)} / "
                f"{worker_sum('fetch_seconds_count', 'crawl', IN_FETCH)}",
                "{{crawl}}",
            ),
        ),
        unit="percentunit",
        limits=((0.1, ORANGE), (0.5, RED)),
    ),
    Panel(
        title="Reasons",
        about="Requests that brought no usable answer, a second.",
        queries=(Query(some(worker_sum("fetch_errors_total", "reason", IN_FETCH)), "{{reason}}"),),
        empty="none",
        unit="reqps",
        kind="stacked",
    ),
    Panel(
        title="Bytes of bodies",
        about="Decoded, a second. Far above what pages should have: `--deny` downloads, lower `--max-body`.",
        queries=(Query(worker_sum("body_bytes_total", "kind", IN_FETCH), "{{kind}}"),),
        unit="Bps",
        kind="stacked",
    ),
    Panel(
        title="Kinds of tasks done",
        about="Pages, robots.txt and whatever else is fetched, a second.",
        queries=(Query(truth_rate("tasks_done_total", "kind", IN_FETCH), "{{kind}}"),),
        unit="ops",
        kind="stacked",
    ),
)

STAGE: Final = (
    Panel(
        title="Done a second",
        about="Ended with a result; for an output, records written.",
        queries=(Query(truth_rate("tasks_done_total", "crawl, stage", IN_STAGE), "{{crawl}} {{stage}}"),),
        unit="ops",
    ),
    Panel(
        title="Waiting and in hand",
        about="Entries that no worker has read yet, and entries in hand. Waiting grows: scale the stage.",
        queries=(
            Query(truth_sum("stream_waiting", "crawl, stage", IN_STAGE), "{{crawl}} {{stage}} waiting"),
            Query(truth_sum("stream_pending", "crawl, stage", IN_STAGE), "{{crawl}} {{stage}} in hand"),
        ),
        kind="stacked",
    ),
    Panel(
        title="Backlog",
        about="How long the present workers need for what could be done at once; the figure that autoscaling goes by.",
        queries=(Query(f"max by (crawl, stage) (streamcrawl_backlog_seconds{{{IN_STAGE}}})", "{{crawl}} {{stage}}"),),
        unit="s",
        limits=((60, ORANGE), (600, RED)),
    ),
    Panel(
        title="Slots",
        about="Entries that can be worked at in parallel, and that are. Full all the time: more workers or "
        "--concurrency.",
        queries=(
            Query(f"sum by (crawl, stage) (streamcrawl_slots{{{IN_STAGE}}})", "{{crawl}} {{stage}} there"),
            Query(f"sum by (crawl, stage) (streamcrawl_slots_busy{{{IN_STAGE}}})", "{{crawl}} {{stage}} in use"),
        ),
    ),
    Panel(
        title="Slots changed, and why",
        about="Times a second that a process took more slots (busy: all were in use and nothing suffered) or fewer. "
        "lag: more --processes, or a handler that holds the loop; memory: more of it, or a lower most; failures: the "
        "network or the name server bears no more; downstream: scale the stage that this one feeds.",
        queries=(
            Query(some(worker_sum("slot_changes_total", "crawl, stage, reason")), "{{crawl}} {{stage}} {{reason}}"),
        ),
        empty="none",
        unit="ops",
        kind="stacked",
    ),
    Panel(
        title="Time of the handler",
        about="One call, or one batch of an output. What is slow here is your code, its database or its disk.",
        queries=tuple(
            Query(quantile(share, "handler_seconds", "crawl, stage"), f"{{{{crawl}}}} {{{{stage}}}} {name}")
            for share, name in ((0.5, "half"), (0.95, "95 %"))
        ),
        unit="s",
    ),
    Panel(
        title="From discovery to done",
        about="Age of a task when it was done; for an output, of a record when it was written.",
        queries=tuple(
            Query(quantile(share, "task_latency_seconds", "crawl, stage"), f"{{{{crawl}}}} {{{{stage}}}} {name}")
            for share, name in ((0.5, "half"), (0.95, "95 %"))
        ),
        unit="s",
    ),
    Panel(
        title="How entries ended",
        about="A second. retry and unanswered come again; dead needs a person; lease_lost was done twice.",
        queries=(
            Query(some(worker_sum("worker_commits_total", "crawl, stage, outcome")), "{{crawl}} {{stage}} {{outcome}}"),
        ),
        unit="ops",
        kind="stacked",
    ),
    Panel(
        title="Entries in one commit",
        about="The middle and the largest batches. 1 all the time is a stage with little to do, not a fault.",
        queries=tuple(
            Query(quantile(share, "commit_batch_size", "crawl, stage"), f"{{{{crawl}}}} {{{{stage}}}} {name}")
            for share, name in ((0.5, "half"), (0.99, "99 %"))
        ),
    ),
    Panel(
        title="Worker processes",
        about="Live processes of the stage, as Redis knows them and as the supervisors say. They differ for longer "
        "than a lease: a machine is cut off.",
        queries=(
            Query(truth_sum("consumers", "crawl, stage", IN_STAGE), "{{crawl}} {{stage}} in Redis"),
            Query(f"sum by (crawl, stage) (streamcrawl_worker_processes{{{IN_STAGE}}})", "{{crawl}} {{stage}} alive"),
        ),
    ),
    Panel(
        title="Dead letters by reason",
        about="`streamcrawl dead ls NAME --stage STAGE --by reason`, then mend the cause and replay them.",
        queries=(Query(truth_sum("dead_letters", "crawl, stage, reason", IN_STAGE), ""),),
        kind="table",
        empty="none",
        decimals=0,
    ),
    Panel(
        title="Output written",
        about="Length of the output's file that is committed; after a crash the file is cut back to it.",
        queries=(Query(f"max by (crawl, stage) (streamcrawl_output_bytes{{{IN_CRAWL}}})", "{{crawl}} {{stage}}"),),
        unit="bytes",
    ),
)


IN_QUEUE: Final = 'queue=~"$queue"'

QUEUE_HEALTH: Final = (
    Panel(
        title="Waiting",
        about="Items that no consumer has yet. It grows: start consumers. At the queue's `maxsize` its producers wait.",
        queries=(Query(truth_sum("queue_waiting", "queue", IN_QUEUE), "{{queue}}"),),
        kind="number",
        width=6,
        decimals=0,
    ),
    Panel(
        title="Done a second",
        about="Items that consumers settled well.",
        queries=(Query(truth_rate("queue_items_done_total", "queue", IN_QUEUE), "{{queue}}"),),
        unit="ops",
        kind="number",
        width=6,
        decimals=1,
    ),
    Panel(
        title="Dead letters",
        about="Items that failed too often. `TaskQueue.dead_letters` shows them with their errors, `replay` sends them "
        "again.",
        queries=(Query(truth_sum("queue_dead_letters", "queue", IN_QUEUE), "{{queue}}"),),
        kind="number",
        width=6,
        limits=((1, ORANGE), (1000, RED)),
        decimals=0,
    ),
    Panel(
        title="Balance",
        about="By how many items the counts differ from the structures. Anything but 0 is a fault of streamcrawl or of "
        "its Redis.",
        queries=(Query(truth_sum("queue_balance", "queue", IN_QUEUE), "{{queue}}"),),
        kind="number",
        width=6,
        limits=((1, RED),),
        decimals=0,
    ),
)

QUEUE_PACE: Final = (
    Panel(
        title="Accepted and done",
        about="Items a second. Done lies under accepted for long: more consumers, or its producers will wait.",
        queries=(
            Query(truth_rate("queue_items_created_total", "queue", IN_QUEUE), "{{queue}} accepted"),
            Query(truth_rate("queue_items_done_total", "queue", IN_QUEUE), "{{queue}} done"),
        ),
        unit="ops",
    ),
    Panel(
        title="Where the items are",
        about="Waiting, out (in the hands of consumers), and delayed. Out all the time with nothing done: consumers "
        "hang or never call task_done.",
        queries=(
            Query(truth_sum("queue_waiting", "queue", IN_QUEUE), "{{queue}} waiting"),
            Query(truth_sum("queue_out", "queue", IN_QUEUE), "{{queue}} out"),
            Query(truth_sum("queue_delayed", "queue", IN_QUEUE), "{{queue}} delayed"),
        ),
        kind="stacked",
    ),
    Panel(
        title="Oldest item, by level",
        about="Since the oldest item that waits or is out was put. A low level that grows old while a high one is "
        "served has the share that its priority gives it: start more consumers.",
        queries=(
            Query(
                f"max by (queue, level) (streamcrawl_queue_oldest_seconds{{{IN_QUEUE}}})", "{{queue}} level {{level}}"
            ),
        ),
        unit="s",
        limits=((300, ORANGE), (3600, RED)),
    ),
    Panel(
        title="Tried again, crashed, too late",
        about="Items a second that were given back, whose consumer died, and whose ending came after their lease was "
        "over: these were done twice. Too late often: a longer lease_s, or less at a time.",
        queries=(
            Query(truth_rate("queue_items_retried_total", "queue", IN_QUEUE), "{{queue}} again"),
            Query(truth_rate("queue_items_crashed_total", "queue", IN_QUEUE), "{{queue}} crashed"),
            Query(truth_rate("queue_items_lease_lost_total", "queue", IN_QUEUE), "{{queue}} too late"),
        ),
        unit="ops",
    ),
    Panel(
        title="Members",
        about="Live TaskQueue objects, those that only put included. Fewer than you started: look at their logs.",
        queries=(Query(truth_sum("queue_members", "queue", IN_QUEUE), "{{queue}}"),),
        decimals=0,
    ),
    Panel(
        title="Filled",
        about="Waiting and delayed items in parts of `maxsize`, at which puts wait. Without a maxsize it is not shown.",
        queries=(
            Query(
                f"({truth_sum('queue_waiting', 'queue', IN_QUEUE)} + "
                f"{truth_sum('queue_delayed', 'queue', IN_QUEUE)}) / {truth_sum('queue_maxsize', 'queue', IN_QUEUE)}",
                "{{queue}}",
            ),
        ),
        unit="percentunit",
        limits=((0.8, ORANGE), (1, RED)),
    ),
)


def overview() -> model.Dashboard:
    """From top to bottom: is it healthy, does it keep up, what holds it back, what fails, who is sick, the cost."""
    made = _dashboard("streamcrawl", "overview", "Is it healthy, does it keep up, and if not: why.")
    for title, panels in (
        ("Is it healthy?", HEALTH),
        ("Does it keep up, stage by stage?", PACE),
        ("What is held back, and why?", THROTTLES),
        ("What fails, and where?", FAILURES),
        ("Which worker is sick?", WORKERS),
        ("What does Redis cost?", REDIS),
    ):
        _add_row(made, title, panels)
    return made.build()


def fetch() -> model.Dashboard:
    """The stage that every crawl has."""
    made = _dashboard("streamcrawl: fetch", "fetch", "What web servers answer, and how fast.")
    _add_row(made, "Requests", FETCH)
    return made.build()


def stage() -> model.Dashboard:
    """Any stage, by its name: fetch, the stages of a program, and outputs."""
    made = _dashboard("streamcrawl: one stage", "stage", "One stage or output, chosen above.")
    made.with_variable(_choice("stage", "Stage", 'label_values(streamcrawl_stream_length{crawl=~"$crawl"}, stage)'))
    _add_row(made, "$stage", STAGE)
    return made.build()


def queues() -> model.Dashboard:
    """The TaskQueues of a Redis, which belong to no crawl."""
    made = _empty("streamcrawl: queues", "queues", "TaskQueues: who waits, what is done, what fails.")
    made.with_variable(_choice("queue", "Queue", "label_values(streamcrawl_queue_closed, queue)"))
    _add_row(made, "Are they well?", QUEUE_HEALTH)
    _add_row(made, "Do they keep up?", QUEUE_PACE)
    return made.build()


def _choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a variable of which one, several or all are chosen."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(model.VariableOption(text="All", value="$__all"))
    )


def _empty(title: str, name: str, about: str) -> dashboard.Dashboard:
    """Return a dashboard with what all of them have."""
    return (
        dashboard.Dashboard(title)
        .uid(f"streamcrawl-{name}")
        .description(about)
        .tags(["streamcrawl"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("streamcrawl")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["streamcrawl"])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )


def _dashboard(title: str, name: str, about: str) -> dashboard.Dashboard:
    """Return a dashboard of crawls: the choice of one, and marks for what happened."""
    made = _empty(title, name, about)
    made.with_variable(_choice("crawl", "Crawl", "label_values(streamcrawl_crawl_complete, crawl)"))
    for name_, colour, expr in (
        ("Pauses", "blue", f'max by (crawl) (streamcrawl_throttled{{{IN_CRAWL}, reason="paused"}}) == 1'),
        (
            "Workers replaced",
            RED,
            f"sum by (crawl, stage) (increase(streamcrawl_worker_restarts_total{{{IN_CRAWL}}}[1m])) > 0",
        ),
        (
            "Deploys",
            "purple",
            "count by (version) (streamcrawl_build_info) unless count by (version) (streamcrawl_build_info offset 1m)",
        ),
    ):
        made.annotation(
            dashboard.AnnotationQuery().name(name_).datasource(SOURCE).enable(True).icon_color(colour).expr(expr)
        )
    return made


def _add_row(made: dashboard.Dashboard, title: str, panels: Sequence[Panel]) -> None:
    made.with_row(dashboard.Row(title))
    for panel in panels:
        made.with_panel(_BUILDERS[panel.kind](panel))


_Built = TypeVar("_Built", timeseries.Panel, stat.Panel, statetimeline.Panel, table.Panel)


def _filled(built: _Built, panel: Panel, height: int) -> _Built:
    """Return `built` with what all kinds of panels have."""
    built.title(panel.title).description(panel.about).datasource(SOURCE).unit(panel.unit)
    built.height(height).span(panel.width).no_value(panel.empty)
    steps = [model.Threshold(value=None, color=GREEN), *(model.Threshold(value=v, color=c) for v, c in panel.limits)]
    built.thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.decimals is not None:
        built.decimals(panel.decimals)
    if panel.words is not None:
        words = {
            value: model.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(panel.words.items())
        }
        built.mappings([model.ValueMap(options=words)])
    for ref, query in zip("ABCDEF", panel.queries, strict=False):
        built.with_target(_target(query, panel).ref_id(ref))
    return built


def _target(query: Query, panel: Panel) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
    if panel.kind == "table":
        return target.instant().format(PromQueryFormat.TABLE)
    return target.instant() if panel.kind == "number" else target.range()


def _lines(panel: Panel) -> timeseries.Panel:
    built = _filled(timeseries.Panel(), panel, 8)
    built.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_model.LegendDisplayMode.TABLE)
        .placement(common_model.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
    )
    built.tooltip(
        common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI).sort(common_model.SortOrder.DESCENDING)
    )
    built.line_width(1).fill_opacity(8).show_points(common_model.VisibilityMode.NEVER).axis_soft_min(0)
    if panel.limits:
        built.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_model.GraphTresholdsStyleMode.DASHED))
    return built


def _stacked(panel: Panel) -> timeseries.Panel:
    return _lines(panel).fill_opacity(40).stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL))


def _number(panel: Panel) -> stat.Panel:
    built = _filled(stat.Panel(), panel, 4)
    built.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return built.graph_mode(common_model.BigValueGraphMode.NONE).color_mode(common_model.BigValueColorMode.VALUE)


def _states(panel: Panel) -> statetimeline.Panel:
    built = _filled(statetimeline.Panel(), panel, 8)
    built.legend(common.VizLegendOptions().show_legend(False))
    return built.merge_values(True).show_value(common_model.VisibilityMode.NEVER).fill_opacity(80)


def _table(panel: Panel) -> table.Panel:
    built = _filled(table.Panel(), panel, 8)
    built.with_transformation(
        model.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}, "renameByName": {}})
    )
    return built.sort_by([common.TableSortByFieldState().display_name("Value").desc(True)])


_BUILDERS: Final[Mapping[str, Callable[[Panel], Builder[model.Panel]]]] = {
    "lines": _lines,
    "stacked": _stacked,
    "number": _number,
    "states": _states,
    "table": _table,
}


def made() -> dict[str, str]:
    """Return the text of each dashboard, by the name of its file."""
    return {
        f"{name}.json": json.dumps(build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, build in (("overview", overview), ("fetch", fetch), ("stage", stage), ("queues", queues))
    }


def main() -> None:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in made().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
