"""The decisions against those of kubelet v1.36.2's own eviction manager, recorded case by case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.eviction.build import pod_stats
from trio_kubelet.api import v1
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.eviction.decision import Reclaim, observed, over_their_limits, reclaims, victim
from trio_kubelet.eviction.pressure import Pressure, is_relieved, observe, to_act_on
from trio_kubelet.eviction.ranking import rank
from trio_kubelet.eviction.thresholds import (
    Layout,
    Signal,
    Threshold,
    for_filesystems,
    resource_of,
    thresholds_of,
)
from trio_kubelet.stats.summary_types import PodStats

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "eviction-cases.json").read_text())["cases"]


def configured(config: dict[str, Any]) -> KubeletConfiguration:
    return KubeletConfiguration(
        eviction_hard=config.get("hard", {}),
        eviction_soft=config.get("soft", {}),
        eviction_soft_grace_period=config.get("grace", {}),
        eviction_minimum_reclaim=config.get("minReclaim", {}),
        enforce_node_allocatable=config.get("enforce", []),
    )


def layout_of(config: dict[str, Any]) -> Layout:
    if config["split"]:
        return Layout.SPLIT
    return Layout.IMAGES_APART if config["imageFs"] else Layout.ONE


def signals_of(look: dict[str, Any], at: int) -> dict[str, Signal]:
    return {
        name: Signal(available, capacity, at + 1) for name, (available, capacity) in look["signals"].items()
    }


def decided(case: dict[str, Any]) -> list[dict[str, Any]]:
    """What this node does in each step of a case, as it was recorded."""
    config, layout = case["config"], layout_of(case["config"])
    thresholds = for_filesystems(thresholds_of(configured(config)), layout)
    pods = [msgspec.convert(pod, v1.Pod) for pod in case["pods"]]
    pressure, told, read_at = Pressure(), [], 0
    for step in case["steps"]:
        read_at = read_at if step.get("stale") else step["at"]
        signals = signals_of(step["look"], read_at)
        stats = {uid: pod_stats(uid, use) for uid, use in step["look"]["uses"].items()}
        before, pressure = pressure, observe(thresholds, signals, pressure, config["transition"], step["at"])
        said = act(config, thresholds, signals, to_act_on(pressure, before), layout, pods, stats, step)
        said["conditions"] = sorted(pressure.conditions)
        said["met"] = sorted(f"{each.signal} {'hard' if each.hard else 'soft'}" for each in pressure.met)
        told.append(said)
        gone = {each["uid"] for each in said["evicted"]}
        pods = [pod for pod in pods if pod.metadata.uid not in gone]
    return told


def act(
    config: dict[str, Any],
    thresholds: tuple[Threshold, ...],
    signals: dict[str, Signal],
    met: tuple[Threshold, ...],
    layout: Layout,
    pods: list[v1.Pod],
    stats: dict[str, PodStats],
    step: dict[str, Any],
) -> dict[str, Any]:
    said: dict[str, Any] = {"reclaimed": [], "attempt": "", "evicted": []}
    victims = over_their_limits(pods, stats, layout) if config["local"] else []
    if not victims and met:
        said["attempt"] = f"Attempting to reclaim {resource_of(met[0].signal)}"
        first = reclaims(met[0].signal, layout)
        said["reclaimed"] = ["containers" if each is Reclaim.CONTAINERS else "images" for each in first]
        after = signals_of(step.get("after") or step["look"], 0)
        if not (first and is_relieved(thresholds, after)):
            chosen = victim(met, signals, layout, pods, stats, config["maxGrace"])
            victims = [chosen] if chosen is not None else []
    for each in sorted(victims, key=lambda each: each.pod.metadata.uid):
        evicted = {
            "uid": each.pod.metadata.uid,
            "grace": each.grace,
            "message": each.message,
            "condition": each.disruption,
        }
        said["evicted"].append(evicted | ({"annotations": each.annotations} if each.annotations else {}))
    return said


@pytest.mark.parametrize("number", range(0, len(CASES), 20))
def test_decides_as_the_kubelet_does(number: int) -> None:
    for case in CASES[number : number + 20]:
        keys = ("conditions", "met", "reclaimed", "attempt", "evicted")
        expected = [{key: step[key] for key in keys} for step in case["steps"]]
        assert decided(case) == expected, json.dumps(case)


def test_the_cases_cover_what_can_happen() -> None:
    evictions = [each for case in CASES for step in case["steps"] for each in step["evicted"]]
    starts = {each["message"].split(":")[0].split('"')[0] for each in evictions}
    assert {"The node was low on resource", "Usage of EmptyDir volume "} < starts
    assert {case["config"]["split"] for case in CASES} == {True, False}
    assert any(each["grace"] > 1 for each in evictions)


def test_the_recorded_memory_eviction() -> None:
    """A node of 6 GB under 4500Mi: its ranking, the event's text and its annotations."""
    recorded = json.loads((GOLDEN / "eviction-memory.json").read_text())
    names = [text.split(" ")[0] for text in recorded["ranking"]]
    kinds: dict[str, dict[str, Any]] = {
        "stress": {"request": "32Mi", "mem": 685320 * 1024},
        "be1": {"request": "", "mem": 500_000},
        "low": {"request": "16Mi", "mem": 1_000_000, "priority": -10},
        "sw-bu": {"request": "64Mi", "mem": 1_000_000},
        "sw-nolimit": {"request": "64Mi", "mem": 900_000},
        "sw-crit": {"request": "32Mi", "mem": 1_000_000, "priority": 2_000_001_000},
    }
    pods = [
        v1.Pod(
            metadata=v1.ObjectMeta(name=name, namespace="default", uid=name),
            spec=v1.PodSpec(
                priority=kind.get("priority"),
                containers=[
                    v1.Container(
                        name="c",
                        resources=v1.ResourceRequirements(
                            requests={"memory": kind["request"]} if kind["request"] else None
                        ),
                    )
                ],
            ),
        )
        for name, kind in reversed(kinds.items())
    ]
    stats = {
        name: pod_stats(name, {"mem": kind["mem"], "c": [{"n": "c", "mem": kind["mem"]}]})
        for name, kind in kinds.items()
    }
    signals = {"memory.available": Signal(4512480 * 1024, 6073768 * 1024)}
    met = (Threshold("memory.available", "4500Mi", reclaim="10Mi"),)
    assert [each.pod.metadata.name for each in rank("memory.available", Layout.ONE, pods, stats)] == names
    chosen = victim(met, signals, Layout.ONE, pods, stats, 0)
    assert chosen is not None
    [told] = [each["body"] for each in recorded["api"] if each["body"].get("reason") == "Evicted"]
    assert chosen.message == told["message"]
    assert chosen.annotations == told["metadata"]["annotations"]
    assert "memory.available is 4512480Ki of 6073768Ki, less than 4500Mi" in chosen.why
    assert "number 1 of 6" in chosen.why


def test_the_story_names_the_page_cache() -> None:
    """Cache that is in use counts as used: an operator has to see that memory was full of nothing else."""
    signals = {"memory.available": Signal(50 << 20, 1 << 30, 0, 700 << 20, 100 << 20)}
    text = observed(Threshold("memory.available", "100Mi"), signals)
    expected = "memory.available is 50Mi of 1Gi, less than 100Mi"
    assert text == f"{expected} (page cache 700Mi, of which 100Mi does not count as used)"
