"""Draws every panel of the dashboards, with the data of a Prometheus, for a person who judges them in review.

    python -m tests.render_dashboards FOLDER                         # a crawl of its own, with faults, for two minutes
    python -m tests.render_dashboards FOLDER --prometheus URL [--minutes 30] [--crawl NAME]

One picture for each dashboard, laid out as Grafana does. Needs matplotlib (`pip install --group render`), and is no
part of the product or of the test suite.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.e2e.test_watched import NAME, PROGRAM, SITE, Watched, use_a_queue
from tests.unit.test_dashboards import DASHBOARDS, RULES

OWN_S: Final = 120.0
COLUMNS: Final = 24
COLUMN_IN: Final = 0.9
ROW_IN: Final = 0.42
PALE: Final = "#8e8e8e"
COLOURS: Final = {"green": "#56a64b", "orange": "#ff9830", "red": "#e02f44"}
LEGEND_MAX: Final = 8


def ask(url: str, what: str, **query: Any) -> list[dict[str, Any]]:
    """Return the series that Prometheus answers with."""
    with urllib.request.urlopen(f"{url}/api/v1/{what}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
        return list(json.load(answer)["data"]["result"])


def as_text(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a value as Grafana would write it, roughly."""
    if math.isnan(value):
        return "NaN"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "Bps"):
        power = min(4, int(math.log(abs(value), 1024))) if abs(value) >= 1 else 0
        return f"{value / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}{'/s' if unit == 'Bps' else ''}"
    if unit == "s":
        for size, word in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (0.001, "ms")):
            if abs(value) >= size:
                return f"{value / size:.3g} {word}"
        return f"{value:.3g} s"
    power = min(3, int(math.log10(abs(value)) / 3)) if abs(value) >= 10_000 else 0
    number = f"{value:.{decimals}f}" if decimals is not None else f"{value / 1000**power:.4g}{' kMG'[power].strip()}"
    return number + {"reqps": " req/s", "ops": " ops/s", "cores": " cores"}.get(unit, "")


def legend_of(target: dict[str, Any], labels: dict[str, str]) -> str:
    """Return how a series is called."""
    form = target["legendFormat"] or ", ".join(f"{name}={value}" for name, value in labels.items())
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), form)


class Drawing:
    """Draws one dashboard."""

    def __init__(self, url: str, since: float, until: float, crawl: str) -> None:
        self._url = url
        self._since, self._until = since, until
        self._step = max(1.0, (until - since) / 300)
        window = f"{max(4, int(4 * self._step))}s"
        self._values = {
            "$__rate_interval": window,
            "$__range": f"{int(until - since)}s",
            "$crawl": crawl,
            "$stage": ".*",
            "$queue": ".*",
        }

    def draw(self, path: Path, into: Path) -> None:
        from matplotlib import pyplot

        panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
        rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
        figure = pyplot.figure(figsize=(COLUMNS * COLUMN_IN, rows * ROW_IN))
        for panel in panels:
            at = panel["gridPos"]
            x, y = at["x"] / COLUMNS, 1 - (at["y"] + at["h"]) / rows
            width, height = at["w"] / COLUMNS, at["h"] / rows
            title = panel["title"].replace("$stage", "all stages")
            if panel["type"] == "row":
                figure.text(x + 0.005, y + height / 2, f"v  {title}", fontsize=13, weight="bold", va="center")
                continue
            figure.text(x + 0.008, y + height - 0.5 / rows, title, fontsize=10, weight="bold", va="top")
            inside = (x + 0.035, y + 1.3 / rows, width - 0.045, height - 2.9 / rows)
            self._panel(figure.add_axes(inside if panel["type"] != "stat" else (x, y, width, height)), panel)
        figure.savefig(into, dpi=70)
        pyplot.close(figure)

    def _panel(self, axes: Any, panel: dict[str, Any]) -> None:
        draw = {"timeseries": self._lines, "stat": self._number, "state-timeline": self._states, "table": self._table}
        defaults = panel["fieldConfig"]["defaults"]
        if not draw[panel["type"]](axes, panel, defaults):
            axes.set_axis_off()
            axes.text(0.5, 0.45, defaults.get("noValue", "no data"), ha="center", color=PALE, fontsize=12)

    def _filled(self, expr: str) -> str:
        return re.sub(r"\$\w+", lambda found: self._values[found.group()], expr)

    def _ranges(self, panel: dict[str, Any]) -> list[tuple[str, list[float], list[float]]]:
        found = []
        for target in panel["targets"]:
            expr = self._filled(target["expr"])
            for one in ask(self._url, "query_range", query=expr, start=self._since, end=self._until, step=self._step):
                times = [float(at) - self._since for at, _ in one["values"]]
                found.append((legend_of(target, one["metric"]), times, [float(value) for _, value in one["values"]]))
        return found

    def _instants(self, panel: dict[str, Any]) -> list[tuple[str, dict[str, str], float]]:
        return [
            (legend_of(target, one["metric"]), one["metric"], float(one["value"][1]))
            for target in panel["targets"]
            for one in ask(self._url, "query", query=self._filled(target["expr"]), time=self._until)
        ]

    def _lines(self, axes: Any, panel: dict[str, Any], defaults: dict[str, Any]) -> bool:
        from matplotlib.ticker import FuncFormatter

        unit, custom = defaults["unit"], defaults["custom"]
        series = self._ranges(panel)
        if custom.get("stacking", {}).get("mode") == "normal" and series:
            times = sorted({at for _, own, _ in series for at in own})
            tables = [dict(zip(own, values, strict=True)) for _, own, values in series]
            stacks = [[0.0 if math.isnan(v := table.get(at, 0.0)) else v for at in times] for table in tables]
            axes.stackplot(times, stacks, alpha=0.6)
        else:
            for _, times, values in series:
                axes.plot(times, values, linewidth=1)
        axes.set_prop_cycle(None)
        shown = sorted(series, key=lambda one: -max((v for v in one[2] if not math.isnan(v)), default=0))
        colours = {id(one): f"C{n % 10}" for n, one in enumerate(series)}
        for one in shown[:LEGEND_MAX]:
            label = f"{one[0]}   {as_text(one[2][-1], unit)}  (max {as_text(max(one[2]), unit)})"
            axes.plot([], [], color=colours[id(one)], label=label)
        if len(shown) > LEGEND_MAX:
            axes.plot([], [], color="none", label=f"and {len(shown) - LEGEND_MAX} more")
        for step in defaults["thresholds"]["steps"][1:]:
            highest = max((v for one in series for v in one[2] if not math.isnan(v)), default=0)
            if step["value"] <= 1.3 * highest:
                axes.axhline(step["value"], color=COLOURS[step["color"]], linestyle="--", linewidth=1)
        lowest = min((v for one in series for v in one[2] if not math.isnan(v)), default=0)
        axes.set_ylim(bottom=min(0, lowest))
        axes.set_xlim(0, self._until - self._since)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: as_text(value, unit)))
        axes.tick_params(labelsize=7)
        axes.grid(visible=True, alpha=0.25)
        if series:
            axes.legend(fontsize=6.5, loc="upper left", framealpha=0.7)
        return bool(series)

    def _number(self, axes: Any, panel: dict[str, Any], defaults: dict[str, Any]) -> bool:
        axes.set_axis_off()
        found = self._instants(panel)
        words = {
            value: (one["text"], one["color"])
            for mapping in defaults.get("mappings", [])
            for value, one in mapping["options"].items()
        }
        for n, (legend, _, value) in enumerate(found[:3]):
            text, colour = words.get(
                f"{value:g}", (as_text(value, defaults["unit"], defaults.get("decimals")), "green")
            )
            if f"{value:g}" not in words:
                for step in defaults["thresholds"]["steps"][1:]:
                    colour = step["color"] if value >= step["value"] else colour
            height = 0.42 - 0.3 * (n - (min(3, len(found)) - 1) / 2)
            axes.text(
                0.5, height, f"{text}", fontsize=18, color=COLOURS[colour], ha="center", va="center", weight="bold"
            )
            axes.text(0.97, height - 0.12, legend, fontsize=7, color=PALE, ha="right", va="center")
        return bool(found)

    def _states(self, axes: Any, panel: dict[str, Any], defaults: dict[str, Any]) -> bool:
        series = self._ranges(panel)
        colours = {
            value: COLOURS[one["color"]]
            for mapping in defaults.get("mappings", [])
            for value, one in mapping["options"].items()
        }
        for n, (_, times, values) in enumerate(series):
            for at, value in zip(times, values, strict=True):
                axes.barh(n, self._step, left=at, height=0.7, color=colours.get(f"{value:g}", PALE), linewidth=0)
        axes.set_yticks(range(len(series)), [legend for legend, _, _ in series], fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
        axes.invert_yaxis()
        axes.set_xlim(0, self._until - self._since)
        box = axes.get_position()
        axes.set_position([box.x0 + 0.09, box.y0, box.width - 0.09, box.height])
        return bool(series)

    def _table(self, axes: Any, panel: dict[str, Any], defaults: dict[str, Any]) -> bool:
        axes.set_axis_off()
        found = sorted(self._instants(panel), key=lambda one: -one[2])
        for n, (_, labels, value) in enumerate(found[:10]):
            line = "   ".join(f"{part:<14}" for part in labels.values())
            axes.text(0, 0.95 - n * 0.1, f"{line} {value:g}", fontsize=8, family="monospace", va="top")
        return bool(found)


def draw_all(url: str, folder: Path, *, since: float, until: float, crawl: str = ".*") -> None:
    """Write a picture of each dashboard."""
    drawing = Drawing(url, since, until, crawl)
    for path in DASHBOARDS:
        into = folder / f"{path.stem}.png"
        drawing.draw(path, into)
        print(into)


def draw_own(folder: Path) -> None:
    """Run a program with faults: a pause, a killed worker, hosts where nobody listens, stages and a queue; draw it."""
    with TemporaryDirectory() as scratch:
        watched = Watched(Path(scratch), RULES, SITE, program=PROGRAM)
        with watched.at_work():
            asyncio.run(use_a_queue(watched.redis.url))
            began = time.time()

            def until(share: float) -> None:
                time.sleep(max(0.0, began + share * OWN_S - time.time()))

            until(0.25)
            watched.fetching_child(watched.crawl).kill()
            until(0.4)
            watched.say("pause", NAME)
            until(0.5)
            watched.say("resume", NAME)
            until(1.0)
            draw_all(watched.prometheus.url, folder, since=began, until=time.time())


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Draw the dashboards.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prometheus", metavar="URL", help="one that runs; without it a crawl is made up")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--crawl", default=".*", help="a regular expression")
    options = parser.parse_args()
    try:
        import matplotlib as library
    except ImportError:
        sys.exit("render_dashboards: needs matplotlib: pip install --group render")
    library.use("agg")
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.prometheus is None:
        draw_own(options.folder)
    else:
        now = time.time()
        draw_all(options.prometheus, options.folder, since=now - 60 * options.minutes, until=now, crawl=options.crawl)


if __name__ == "__main__":
    main()
