"""The manifests of deploy/kubernetes fit Kubernetes' published schemas, each other and the settings.

kubernetes-validate carries the schemas of Kubernetes itself. Those of KEDA that PyPI has are of 2.16, before the
behaviour of a fallback, so of its ScaledObject the fields and their types are checked against what its CRD says of
them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from streamcrawl.settings import CLASSES, Settings, variable_of

REPOSITORY: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = REPOSITORY / "deploy/kubernetes"
KUBERNETES: Final = ("1.30", "1.33")
"""Oldest (podFailurePolicy is stable since 1.31, there since 1.25) and a newer one."""
FOREIGN: Final = {"ScaledObject", "Kustomization"}


def manifests() -> list[dict[str, Any]]:
    return [
        document
        for path in sorted(FOLDER.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def named(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in manifests() if one["kind"] == kind}


def pod_templates() -> dict[str, dict[str, Any]]:
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["spec"]["template"]
        for one in manifests()
        if one["kind"] in {"Deployment", "StatefulSet", "Job"}
    }


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    "manifest",
    [one for one in manifests() if one["kind"] not in FOREIGN],
    ids=lambda one: f"{one['kind']}-{one['metadata']['name']}",
)
def test_manifests_fit_the_schemas_of_kubernetes(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_scaled_objects_fit_the_fields_of_kedas_crd_and_scale_what_is_there() -> None:
    types: dict[str, type] = {
        "scaleTargetRef": dict, "minReplicaCount": int, "maxReplicaCount": int, "pollingInterval": int,
        "cooldownPeriod": int, "fallback": dict, "advanced": dict, "triggers": list,
    }  # fmt: skip
    for name, scaled in named("ScaledObject").items():
        assert scaled["apiVersion"] == "keda.sh/v1alpha1"
        spec = scaled["spec"]
        assert {key: type(value) for key, value in spec.items()} == {key: types[key] for key in spec}
        assert spec["scaleTargetRef"]["name"] in named("Deployment")
        assert set(spec["fallback"]) <= {"failureThreshold", "replicas", "behavior"}
        assert spec["fallback"]["behavior"] in {
            "static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower",
        }  # fmt: skip
        (trigger,) = spec["triggers"]
        assert set(trigger) <= {"type", "metricType", "metadata", "name", "authenticationRef", "useCachedMetrics"}
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA wants strings"
        crawl = named("ConfigMap")["streamcrawl"]["data"]["CRAWL"]
        port = named("Service")["exporter"]["spec"]["ports"][0]["port"]
        address, _, _ = trigger["metadata"]["url"].partition("?")
        assert address == f"http://exporter.streamcrawl.svc:{port}/scale/{crawl}/{name}"
        # The behaviour is a HorizontalPodAutoscaler's: its schema is Kubernetes' own.
        autoscaler = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name},
            "spec": {
                "maxReplicas": spec["maxReplicaCount"],
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
            },
        }
        kubernetes_validate.validate(autoscaler, KUBERNETES[-1], strict=True)


def test_every_file_is_applied_and_the_image_is_this_version() -> None:
    (kustomization,) = (one for one in manifests() if one["kind"] == "Kustomization")
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert kustomization["images"] == [{"name": "streamcrawl", "newTag": version}]
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8"))
    assert compose["x-streamcrawl"]["image"].endswith(f"streamcrawl:{version}}}")


def test_selectors_find_pods_and_what_pods_name_is_there() -> None:
    labels = [template["metadata"]["labels"] for template in pod_templates().values()]
    for one in manifests():
        selector = one.get("spec", {}).get("selector") or one.get("spec", {}).get("podSelector")
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= found.items() for found in labels), one["metadata"]["name"]
    for template in pod_templates().values():
        for source in template["spec"]["containers"][0].get("envFrom", []):
            if "configMapRef" in source:
                assert source["configMapRef"]["name"] in named("ConfigMap")
            else:
                assert source["secretRef"]["name"] in named("Secret")


def test_every_pod_has_no_rights_and_time_to_stop_and_probes() -> None:
    grace_s = Settings(name="any").grace_ms / 1000
    for name, template in pod_templates().items():
        spec = template["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {"livenessProbe", "readinessProbe"} <= set(container), name
        assert container["resources"]["limits"]["memory"], name
        if container["args" if "args" in container else "command"][0] in {"worker", "crawl"}:
            assert spec["terminationGracePeriodSeconds"] > grace_s, name


def test_variables_are_settings() -> None:
    known = {variable_of(field) for field in CLASSES} | {
        "STREAMCRAWL_REDIS", "STREAMCRAWL_LOG_FORMAT", "STREAMCRAWL_EXPORTER_HOST", "CRAWL",
    }  # fmt: skip
    assert set(named("ConfigMap")["streamcrawl"]["data"]) <= known
    assert set(named("Secret")["redis-url"]["stringData"]) <= known


def test_compose_gives_workers_more_time_to_stop_than_they_take() -> None:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8"))
    grace_s = Settings(name="any").grace_ms / 1000
    for name in ("crawl", "fetch"):
        service = compose["services"][name]
        assert float(service["stop_grace_period"].removesuffix("s")) > grace_s, name
    for name, service in compose["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert ":" in service["image"].removesuffix("}"), f"{name}: an image without a version"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
