"""Dashboards, alert rules and the runbook agree with each other and with the metrics that are documented."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DASHBOARDS: Final = sorted((REPOSITORY / "grafana/dashboards").glob("*.json"))
RULES: Final = sorted((REPOSITORY / "prometheus/rules").glob("*.yml"))
PROMTOOL_TESTS: Final = sorted((REPOSITORY / "prometheus/tests").glob("*.yml"))
LABELS_OF_PROMETHEUS: Final = {"instance", "job", "pod", "le"}


@cache
def documented() -> dict[str, set[str]]:
    """Labels of each metric, by its name with prefix, from the tables of docs/metrics.md."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) ?\|", (REPOSITORY / "docs/metrics.md").read_text(encoding="utf-8"), re.M
    )
    found: dict[str, set[str]] = {}
    for name, kind, labels in rows:
        for suffix in ("_bucket", "_count", "_sum") if kind == "histogram" else ("",):
            found[f"streamcrawl_{name}{suffix}"] = {label.strip() for label in labels.split(",")} - {""}
    return found


@cache
def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


def panels_of(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(path.read_text(encoding="utf-8"))["panels"] if panel["type"] != "row"]


def expressions() -> list[tuple[str, str]]:
    """Where each expression stands, and the expression: of panels, annotations and rules."""
    found = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
    for path in DASHBOARDS:
        found += [
            (f"{path.stem}: {panel['title']}", target["expr"])
            for panel in panels_of(path)
            for target in panel["targets"]
        ]
        annotations = json.loads(path.read_text(encoding="utf-8"))["annotations"].get("list", [])
        found += [(f"{path.stem}: {one['name']}", one["expr"]) for one in annotations]
    return found


def test_the_dashboards_are_what_the_generator_makes(tmp_path: Path) -> None:
    (tmp_path / "generate.py").write_bytes((REPOSITORY / "grafana/generate.py").read_bytes())
    subprocess.run([sys.executable, str(tmp_path / "generate.py")], check=True, timeout=60)
    made = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "dashboards").iterdir()}
    assert made == {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS}


@pytest.mark.parametrize(("where", "expr"), expressions(), ids=lambda value: value[:60])
def test_queries_name_only_metrics_and_labels_that_are_documented(where: str, expr: str) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    names = set(re.findall(r"\b[a-z_]+:streamcrawl[\w:]*", expr))
    assert names <= recorded, where
    metrics = set(re.findall(r"(?<![:\w])streamcrawl_\w+", expr))
    assert metrics <= set(documented()), where
    allowed = LABELS_OF_PROMETHEUS | {"reason", "stage", "crawl"}.union(*(documented()[name] for name in metrics))
    for labels in re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expr):
        assert {label.strip() for label in labels.split(",")} <= allowed, where
    for name, selector in re.findall(r"(streamcrawl_\w+)\{([^}]*)\}", expr):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= documented()[name], where


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_each_panel_says_what_to_do_and_has_a_unit_and_named_series(path: Path) -> None:
    for panel in panels_of(path):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["type"] == "table" or all(target["legendFormat"] for target in panel["targets"]), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_each_alert_has_its_paragraph_and_links_it() -> None:
    headings = re.findall(r"^## (\w+)$", (REPOSITORY / "docs/runbook.md").read_text(encoding="utf-8"), re.M)
    alerts = [rule for rule in rules() if "alert" in rule]
    assert headings == [rule["alert"] for rule in alerts]
    for rule in alerts:
        assert rule["annotations"]["runbook_url"].endswith(f"/runbook.html#{rule['alert'].lower()}")
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_each_rule_is_tested_and_each_alert_both_ways() -> None:
    cases = [test for path in PROMTOOL_TESTS for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]]
    recorded = {case["expr"] for test in cases for case in test.get("promql_expr_test", [])}
    assert recorded == {rule["record"] for rule in rules() if "record" in rule}
    tried = {(c["alertname"], bool(c["exp_alerts"])) for test in cases for c in test.get("alert_rule_test", [])}
    assert tried == {(rule["alert"], fires) for rule in rules() if "alert" in rule for fires in (True, False)}


def test_promtool_accepts_the_configuration_and_passes_its_tests() -> None:
    for arguments in (
        ["check", "config", str(REPOSITORY / "prometheus/prometheus.yml")],
        ["test", "rules", *map(str, PROMTOOL_TESTS)],
    ):
        done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
