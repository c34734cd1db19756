"""What becomes of the neurons that each initialization adds: twins, dead neurons, norms, and how fast they learn.

    python -m benchmarks.inside [--task NAME ...] [--only NAME ...] [--ways NAME ...] [--seeds N] [--out DIR]

Networks on digits, on MNIST and on a part of CIFAR-10 (a narrow VGG-11) grow in eight equal parts over the first 40 %
of training, each by one initialization: as by default (`both`), without ages (`margin`), without a margin (`ages`), and
with neither, as in the paper (`paper`). As in the experiments, without a margin Firefly and GradMax are those of the
paper, too: equal halves of splits, and fan-ins of zero. The trigger is a schedule, so that all networks of a task end
with the same sizes. For comparison, static networks of the initial and of the final sizes. Printed are, half-way from
the end of growth to the end of training and at the end, as means over seeds:

- acc, loss: accuracy and loss on the test samples;
- twins: the share of neurons that have another one with a cosine of fan-ins above 0.99, in %;
- dead: the share of new neurons that fire on no test sample, or whose fan-in gets no gradient there, in %;
- in, out: the mean norms of the new neurons' fan-ins and fan-outs, relative to the old neurons';
- rate: how far a step moves the fan-ins and fan-outs of new neurons, in % of their norms, and the same of old ones.

Each training is written to a file of the directory `--out` when it ends, and is not repeated if the file is there.
CIFAR-10 and MNIST are read from $NEUROGENESIS_DATA, and skipped if they are not there: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.experiments.building import build_data, build_network, widths_of
from neurogenesis.experiments.data import Data, DataError
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.settings import Settings
from neurogenesis.experiments.training import accuracy_and_loss, sample_order
from neurogenesis.initializations import Initialization

PART = 0.4
"""The part of the training in which networks grow."""
ALIKE = 0.99
"""The cosine above which two neurons are twins."""
WAYS: dict[str, Mapping[str, bool]] = {
    "both": {},
    "ages": {"margin": False},
    "margin": {"ages": False},
    "paper": {"ages": False, "margin": False},
}
STATIC = ("small", "static")
WINDOW = 5  # steps over which the rate is measured


@dataclass(frozen=True)
class Task:
    """A preset, and what differs from it."""

    preset: str
    options: Mapping[str, Any]
    candidates: int  # of initializations that evaluate the loss for each
    norms: bool = False  # whether there is a batch norm in front of each activation function

    def settings(self, seed: int) -> Settings:
        return PRESETS[self.preset](seed=seed, **self.options)


TASKS = {
    "digits": Task("digits", {"initial": 16, "medium": 64, "maximum": 64, "learning_rate": 3e-3}, 100),
    "digits-norms": Task(
        "digits", {"initial": 16, "medium": 64, "maximum": 64, "learning_rate": 3e-3}, 100, norms=True
    ),
    "mnist": Task("mnist", {"learning_rate": 1e-3, "epochs": 10}, 100),
    "vgg": Task("vgg11-cifar10-small", {"images": 4000, "epochs": 5, "batch": 32}, 4),
}


def initializations(task: Task, way: str) -> dict[str, Initialization]:
    """The initializations by the name of the strategy that they belong to; without margin as in the paper."""
    how, margin = ng.initializations, WAYS[way].get("margin", True)
    return {
        "random": how.Random(),
        "need": how.Twins(),
        "north-select": how.Select(),
        "nest": how.NeST(candidates=task.candidates),
        "gradmax": how.GradMax(pairs=margin),
        "firefly": how.Firefly(apart=float(margin)),
    }


@dataclass(frozen=True)
class Look:
    """What is seen of the new neurons of a network; shares and rates are fractions."""

    accuracy: float
    loss: float
    twins: float
    dead: float
    fan_in: float
    fan_out: float
    rate_in: float
    rate_in_old: float
    rate_out: float
    rate_out_old: float


@dataclass
class Run:
    """A training: the model, and the size that each width had at the start."""

    settings: Settings
    data: Data
    model: nn.Module
    initial: Mapping[str, int]
    optimizer: torch.optim.Optimizer
    decay: torch.optim.lr_scheduler.LRScheduler | None
    grower: ng.Grower | None

    def gradient_step(self, samples: Tensor) -> None:
        x, y = self.data.train[0][samples], self.data.train[1][samples]

        def loss() -> Tensor:
            found: Tensor = nn.functional.cross_entropy(self.model(x), y)
            return found

        self.optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.decay is not None:
            self.decay.step()
        if self.grower is not None:
            self.grower.step(loss)


def with_norms(model: nn.Module) -> nn.Sequential:
    """The network with a batch norm in front of each activation function."""
    result = nn.Sequential()
    for name, module in model.named_children():
        result.add_module(name, module)
        if isinstance(module, nn.Conv2d):
            result.add_module(f"norm_{name}", nn.BatchNorm2d(module.out_channels))
        elif isinstance(module, nn.Linear) and name != "output":
            result.add_module(f"norm_{name}", nn.BatchNorm1d(module.out_features))
    return result


def start(
    task: Task, settings: Settings, data: Data, how: Initialization | None, way: str, steps: int, final: bool
) -> Run:
    """A training at its start; static without an initialization, at the initial or the final size."""
    sizes = settings.sizes
    if how is None and final:
        settings = type(settings)(**{**asdict(settings), "initial": sizes["medium"]})
    model = build_network(settings, data)
    model = with_norms(model) if task.norms else model
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if settings.decay == "cosine" else None
    example = data.train[0][:2]
    initial = {width.name: width.size for width in ng.widths(model, example).growable}
    grower = None
    if how is not None:
        schedule = ng.triggers.Batched(steps, widths_of(settings, sizes["medium"]), PART)
        strategy = ng.Strategy(schedule, how)
        grower = ng.Grower(model, optimizer, strategy, example=example, seed=settings.seed, **WAYS[way])
    return Run(settings, data, model, initial, optimizer, decay, grower)


def looks(task: Task, settings: Settings, data: Data, how: Initialization | None, way: str, final: bool) -> list[Look]:
    """Train a network, and look at it twice."""
    batches = settings.epoch_steps(len(data.train[0]))
    steps = settings.epochs * batches
    run, found, done = start(task, settings, data, how, way, steps, final), [], 0
    moments = {round(steps * (1 + PART) / 2), steps}
    before: dict[str, Tensor] = {}
    for epoch in range(1, settings.epochs + 1):
        for samples in sample_order(len(data.train[0]), settings.seed, epoch).split(settings.batch):  # type: ignore[no-untyped-call]
            if done + WINDOW in moments:
                before = {name: own.detach().clone() for name, own in run.model.named_parameters()}
            run.gradient_step(samples)
            done += 1
            if done in moments:
                found.append(look(run, before))
    return found


def look(run: Run, before: Mapping[str, Tensor]) -> Look:
    """Look at a network whose parameters were `before` some steps ago."""
    widths = ng.widths(run.model, run.data.train[0][:2])
    silent = silent_neurons(run)
    rows: dict[str, list[Tensor]] = {each.name: [] for each in fields(Look)[2:]}
    parameters = dict(run.model.named_parameters())
    for name, first in run.initial.items():
        width = widths[name]
        new = torch.arange(width.size) >= first
        fan_in = next(axis for axis in width.producers if parameters[axis.tensor].ndim > 1)
        fan_out = width.consumers[0]
        vectors = width.neurons(fan_in, parameters[fan_in.tensor]).detach().flatten(1)
        unit = nn.functional.normalize(vectors)
        rows["twins"].append((unit @ unit.T).fill_diagonal_(-1).amax(1) > ALIKE)
        rows["dead"].append(silent[name][new])
        for key, axis in (("in", fan_in), ("out", fan_out)):
            norms = width.norms(axis, parameters[axis.tensor].detach())
            rows[f"fan_{key}"].append(norms[new] / norms[~new].mean())
            moved = width.norms(axis, parameters[axis.tensor].detach() - before[axis.tensor])
            rates = moved / norms.clamp_min(1e-12) / WINDOW
            rows[f"rate_{key}"].append(rates[new])
            rows[f"rate_{key}_old"].append(rates[~new])
    values = {name: float(torch.cat(own).double().nanmean()) for name, own in rows.items()}
    accuracy, loss = accuracy_and_loss(run.model, run.data.test)
    return Look(accuracy=accuracy, loss=loss, **values)


def silent_neurons(run: Run) -> dict[str, Tensor]:
    """For each width, the neurons that fire on no test sample, or whose fan-in gets no gradient from them."""
    fired: dict[str, Tensor] = {}
    handles = []
    widths = ng.widths(run.model, run.data.train[0][:2])
    activations = [each for each in run.model.modules() if isinstance(each, ng.nn.ReLU)]
    for name, module in zip(run.initial, activations, strict=True):

        def note(module: nn.Module, inputs: Any, output: Tensor, name: str = name) -> None:
            own = (output > 0).transpose(0, 1).flatten(1).any(1)
            fired[name] = own | fired[name] if name in fired else own

        handles.append(module.register_forward_hook(note))
    run.model.eval()
    run.optimizer.zero_grad()
    for x, y in zip(*(part[:1000].split(250) for part in run.data.test), strict=True):
        nn.functional.cross_entropy(run.model(x), y).backward()  # type: ignore[no-untyped-call]
    for handle in handles:
        handle.remove()
    parameters = dict(run.model.named_parameters())
    result = {}
    for name in run.initial:
        axis = next(axis for axis in widths[name].producers if parameters[axis.tensor].ndim > 1)
        gradient = parameters[axis.tensor].grad
        assert gradient is not None
        result[name] = ~fired[name] | (widths[name].norms(axis, gradient) == 0)
    run.optimizer.zero_grad()
    run.model.train()
    return result


def runs_of(task: Task, only: Sequence[str], ways: Sequence[str]) -> Iterator[tuple[str, Initialization | None, str]]:
    """The trainings of a task: name, initialization and way."""
    for name in STATIC:
        if not only or name in only:
            yield name, None, "-"
    names = [name for name in initializations(task, ways[0]) if not only or name in only]
    for name, way in product(names, ways):
        yield name, initializations(task, way)[name], way


def trained(name: str, task_name: str, how: Initialization | None, way: str, seed: int, out: Path | None) -> list[Look]:
    """The looks at a training, from its file if there is one."""
    file = None if out is None else out / f"{task_name}-{name}-{way}-{seed}.json"
    if file is not None and file.is_file():
        return [Look(**each) for each in json.loads(file.read_text())]
    settings = TASKS[task_name].settings(seed)
    root = os.environ.get("NEUROGENESIS_DATA")
    data = build_data(settings, None if root is None else Path(root))
    found = looks(TASKS[task_name], settings, data, how, way, final=name == "static")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return found


def mean(seen: Sequence[Look]) -> Look:
    return Look(**{each.name: statistics.fmean(getattr(one, each.name) for one in seen) for each in fields(Look)})


def line(look: Look) -> str:
    """The columns of `TITLES`."""
    numbers = f"{100 * look.accuracy:9.2f}{look.loss:8.3f}{100 * look.twins:7.1f}{100 * look.dead:7.1f}"
    rates = (look.rate_in, look.rate_in_old, look.rate_out, look.rate_out_old)
    return f"{numbers}{look.fan_in:7.2f}{look.fan_out:7.2f}" + "".join(f"{100 * rate:9.3f}" for rate in rates)


TITLES = "   acc, %    loss  twins   dead     in    out  rate in      old rate out      old"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS), help="what to train")
    parser.add_argument("--only", nargs="+", default=(), help="strategies, or small and static; by default all")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="with or without ages and margin")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--out", type=Path, help="directory of results, which are not computed again")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # fastest for such small networks
    for task_name in arguments.task:
        print(f"{task_name:16}{'way':8}{'look':8}{TITLES}")
        for name, how, way in runs_of(TASKS[task_name], arguments.only, arguments.ways):
            seeds = range(1, arguments.seeds + 1)
            try:
                each = [trained(name, task_name, how, way, seed, arguments.out) for seed in seeds]
            except DataError as error:
                print(f"{task_name} is skipped: {error}", file=sys.stderr)
                break
            for label, seen in zip(("then", "end"), zip(*each, strict=True), strict=True):
                print(f"{name:16}{way:8}{label:8}{line(mean(seen))}", flush=True)


if __name__ == "__main__":
    main()
