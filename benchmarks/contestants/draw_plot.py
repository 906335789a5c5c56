"""Draw the rows of benchmarks/peers.py, given as JSON on standard input: `draw_plot.py TARGET.png`."""

from __future__ import annotations

import json
import sys

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

rows = json.load(sys.stdin)
all_links = list(dict.fromkeys(row["links_per_page"] for row in rows))
counts = [sum(row["links_per_page"] == links for row in rows) for links in all_links]
figure, axes = pyplot.subplots(
    len(all_links), 1, squeeze=False, figsize=(9, 1 + 0.4 * sum(counts) + 0.6 * len(counts)), layout="constrained",
    gridspec_kw={"height_ratios": counts},
)  # fmt: skip
for axis, links in zip(axes[:, 0], all_links, strict=True):
    here = [row for row in rows if row["links_per_page"] == links][::-1]
    labels = [row["label"] for row in here]
    whole = [row["cpu_s_per_1000_pages"] for row in here]
    redis = [row.get("redis_cpu_s_per_1000_pages", 0.0) for row in here]
    alone = [both - part for both, part in zip(whole, redis, strict=True)]
    colors = ["#c0392b" if row["contestant"].startswith("streamcrawl") else "#5d7a94" for row in here]
    axis.barh(labels, alone, color=colors, label="crawler")
    axis.barh(labels, redis, left=alone, color="#d9b44a", label="Redis")
    for position, (row, value) in enumerate(zip(here, whole, strict=True)):
        times = f"  ({row['times_streamcrawl']:g} × streamcrawl)" if "times_streamcrawl" in row else ""
        axis.text(value, position, f" {value:.2f}{times}", va="center", fontsize=8)
    axis.set_xlim(0, max(whole) * 1.3)
    axis.set_title(f"{links} links per page", fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
axes[-1, 0].set_xlabel("CPU seconds per 1,000 pages, all processes (yellow: of it Redis)")
figure.savefig(sys.argv[1], dpi=120)
