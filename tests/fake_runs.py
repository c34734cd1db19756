"""Writes plausible records of runs without training: deterministic and fast."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

Settings = dict[str, Any]

NORTH = ("north-select", "north-pre", "north-opt", "north-random", "north-weight", "north-integrated")
GRADIENT = ("gradmax", "firefly", "nest")
STATIC = ("small", "medium", "big", "static")

_MLP: Settings = {
    "schedule": "dynamic", "seed": 1, "epochs": 6, "learning_rate": 0.003, "batch": 512, "decay": "none",
    "gamma": None, "metric": "effective_dimension", "scale": 0.5, "least": False, "buffer": 1568, "every": 1,
    "holdout": 0.0, "initial": 64, "medium": 256, "maximum": 784,
}  # fmt: skip
_CONVOLUTIONAL: Settings = {
    **_MLP, "learning_rate": 0.0003, "batch": 128, "decay": "cosine", "buffer": 128,
    "initial": 0.25, "medium": 1.0, "maximum": 2.0, "images": None,
}  # fmt: skip
_VGG = [64, 128, 256, 256, 512, 512, 512, 512, 4096, 4096]
_VGG_NAMES = [f"features.{index}" for index in (0, 3, 6, 8, 11, 13, 16, 18)] + ["classifier.0", "classifier.2"]
# How far a strategy grows from the initial size (0) to the maximum (1), and how much better it is than others.
_AMBITION = {
    "north-select": (0.28, 0.25), "north-pre": (0.35, 0.3), "north-opt": (0.3, 0.25),
    "north-random": (0.4, 0.15), "north-weight": (0.55, 0.1),
    "north-integrated": (0.1, 0.2), "need": (0.15, 0.2), "gradmax": (0.06, 0.0), "firefly": (0.12, -0.3),
    "nest": (0.2, -0.6),
}  # fmt: skip


def settings(preset: str = "mnist", strategy: str = "north-select", **changes: Any) -> Settings:
    """Settings of a run."""
    base = _CONVOLUTIONAL if preset.startswith(("vgg", "wrn")) else _MLP
    return {"preset": preset, "strategy": strategy, **base, **changes}


def combinations(**lists: Iterable[Any]) -> list[Settings]:
    """Settings of all combinations."""
    return [settings(**dict(zip(lists, values, strict=True))) for values in itertools.product(*lists.values())]


def run_name(chosen: Mapping[str, Any], varied: Iterable[str] = ()) -> str:
    return "-".join([str(chosen["strategy"]), *(f"{key}{chosen[key]}" for key in varied), f"seed{chosen['seed']}"])


def write_study(directory: Path, study: str, title: str, runs: Iterable[Settings], absent: Iterable[str] = ()) -> Path:
    """A sweep: study.json and its runs, except those that are to be absent."""
    runs = list(runs)
    varied = [key for key in runs[0] if key not in ("strategy", "seed") and len({str(run[key]) for run in runs}) > 1]
    named = {run_name(run, varied): run for run in runs}
    write_json(directory / study / "study.json", {"study": study, "title": title, "runs": named})
    for name, chosen in named.items():
        if name not in absent:
            write_run(directory / study / name, chosen)
    return directory / study


def write_run(directory: Path, chosen: Settings, *, state: str = "finished", steps_per_epoch: int = 30) -> Path:
    """A run: finished, unfinished or failed."""
    random = Random(json.dumps(chosen, sort_keys=True))
    write_json(directory / "settings.json", chosen)
    place = {"neurogenesis": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "device": "cpu", "threads": 1,
             "commit": "0123abc", "started": "2025-01-01T12:00:00"}  # fmt: skip
    write_json(directory / "environment.json", {**place, "earlier": [{**place, "threads": 2}]})
    initial, final, standard = _widths(chosen, random)
    epochs = chosen["epochs"] if state == "finished" else max(1, chosen["epochs"] // 2)
    total, seconds_per_step = chosen["epochs"] * steps_per_epoch, _seconds(final, chosen)
    steps, tested = [], []
    sizes, quality = dict(initial), _quality(chosen, final, standard, random)
    for step in range(1, epochs * steps_per_epoch + 1):
        metric, threshold = {}, {}
        progress, before = step / total, dict(sizes)
        for depth, name in enumerate(sizes):
            goal = _goal(chosen, initial[name], final[name], progress, depth)
            if chosen["strategy"] not in STATIC and step > 3 and sizes[name] < final[name]:
                threshold[name] = 0.95 if chosen["strategy"] in NORTH else 0.2 + 0.05 * random.random()
                grows = goal > sizes[name] and (chosen["schedule"] != "dynamic" or random.random() < 0.3)
                metric[name] = threshold[name] + 0.05 * random.uniform(0.1, 1.2 - progress) * (1 if grows else -1)
                sizes[name] = goal if grows else sizes[name]
        loss = 2.3 * math.exp(-6 * progress) + 0.03 + 0.02 * random.random()
        grown = 0.003 * sum(sizes[name] != before[name] for name in sizes)
        trigger = 0.0 if chosen["strategy"] in STATIC else seconds_per_step * 0.06 * (1 + random.random())
        steps.append(
            {"step": step, "epoch": 1 + (step - 1) // steps_per_epoch, "loss": loss, "parameters": _parameters(sizes),
             "widths": dict(sizes), "metric": metric, "threshold": threshold,
             "seconds": seconds_per_step * (1 + 0.1 * random.random()) + trigger + grown,
             "trigger_seconds": trigger, "initialization_seconds": grown}
        )  # fmt: skip
        if step % steps_per_epoch == 0:
            accuracy = quality - 0.4 * math.exp(-8 * progress) + 0.002 * random.random()
            tested.append(
                {"epoch": step // steps_per_epoch, "step": step, "loss": loss, "accuracy": accuracy,
                 "parameters": _parameters(sizes), "widths": dict(sizes),
                 "train_seconds": seconds_per_step * steps_per_epoch, "test_seconds": 0.1}
            )  # fmt: skip
    write_lines(directory / "steps.jsonl", steps)
    write_lines(directory / "epochs.jsonl", tested)
    (directory / "checkpoint.pt").write_bytes(b"\x80")
    if state == "failed":
        (directory / "failure.txt").write_text("Traceback (most recent call last):\nRuntimeError: out of memory\n")
    if state == "finished":
        write_json(
            directory / "result.json",
            {"accuracy": tested[-1]["accuracy"], "loss": tested[-1]["loss"], "parameters": _parameters(sizes),
             "widths": dict(sizes), "initial_widths": initial, "standard_widths": standard, "steps": len(steps),
             "train_seconds": sum(step["seconds"] for step in steps),
             "trigger_seconds": sum(step["trigger_seconds"] for step in steps),
             "initialization_seconds": sum(step["initialization_seconds"] for step in steps)},
        )  # fmt: skip
    return directory


def write_comparison(
    directory: Path, study: str, title: str, runs: Mapping[str, Settings], absent: Iterable[str] = ()
) -> Path:
    """A sweep of grown and static networks, in which runs of a grown shape come after those that grow it."""
    write_json(directory / study / "study.json", {"study": study, "title": title, "runs": runs})
    shapes: dict[str, str] = {}
    for name, chosen in runs.items():
        key = json.dumps([chosen[each] for each in ("preset", "learning_rate", "decay", "seed")])
        shaped = {**chosen, "shape": shapes[key]} if "shape_of" in chosen else chosen
        if name not in absent:
            write_run(directory / study / name, shaped, steps_per_epoch=10)
        if chosen["strategy"] == "need":
            result = json.loads((directory / study / name / "result.json").read_text())
            shapes[key] = "-".join(map(str, result["widths"].values()))
    return directory / study


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_lines(path: Path, records: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _widths(chosen: Settings, random: Random) -> tuple[dict[str, int], dict[str, int], dict[str, int] | None]:
    preset, strategy = chosen["preset"], chosen["strategy"]
    convolutional = preset.startswith(("vgg", "wrn"))
    if preset.startswith("vgg"):
        standard = dict(zip(_VGG_NAMES, _VGG, strict=True))
    elif preset.startswith("wrn"):
        standard = {"stem": 16, "group1": 16, "group2": 32, "group3": 64}
    else:
        standard = {f"hidden{index + 1}": 1 for index in range(chosen.get("hidden", 2))}

    def at(multiple: float) -> dict[str, int]:
        return {name: max(1, round(size * multiple)) for name, size in standard.items()}

    sized = {"small": "initial", "medium": "medium", "big": "maximum"}
    if strategy != "static":
        initial = at(chosen[sized.get(strategy, "initial")])
    elif "-" in chosen["shape"]:
        initial = dict(zip(standard, map(int, chosen["shape"].split("-")), strict=True))
    else:
        initial = at(float(chosen["shape"]))
    if strategy in STATIC:
        final = dict(initial)
    elif chosen["schedule"] != "dynamic":
        final = at(chosen["medium"])
    else:
        part, _ = _AMBITION.get(strategy, (0.2, 0.0))
        part *= 10 ** (4 * (0.97 - (chosen["gamma"] or 0.97))) * (chosen["learning_rate"] / 0.003) ** -0.1
        if "features" in chosen:
            part *= 0.2 + chosen["features"] / 40
        top = at(chosen["maximum"])
        final = {
            name: min(top[name], round(low + (top[name] - low) * part * random.uniform(0.8, 1.25) / (1 + 0.4 * depth)))
            for depth, (name, low) in enumerate(initial.items())
        }
    return initial, final, standard if convolutional else None


def _goal(chosen: Settings, low: int, high: int, progress: float, depth: int) -> int:
    if chosen["schedule"] == "linear":
        part = min(1.0, progress / 0.75)
    elif chosen["schedule"] == "batched":
        part = min(1.0, math.floor(8 * progress / 0.75) / 8)
    else:
        part = min(1.0, 1.2 * (1 - math.exp(-6 * progress / (1 + 0.3 * depth))))
    return min(high, low + math.floor((high - low) * part))


def _parameters(sizes: Mapping[str, int]) -> int:
    ends = [784 if len(sizes) < 4 else 27, *sizes.values(), 10]
    return sum((before + 1) * after for before, after in itertools.pairwise(ends))


def _seconds(sizes: Mapping[str, int], chosen: Settings) -> float:
    return 0.004 + 2e-8 * _parameters(sizes) * math.sqrt(chosen["batch"] / 512)


def _quality(chosen: Settings, final: Mapping[str, int], standard: object, random: Random) -> float:
    _, better = _AMBITION.get(chosen["strategy"], (0.0, 0.0))
    base = 0.955 if standard is None else 0.6
    return base + 0.004 * (math.log10(_parameters(final)) + better) + 0.0015 * random.random()
