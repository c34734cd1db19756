"""Growing against what one would do instead, on the same data, with the same epochs and the same optimizer.

    python -m benchmarks.against [--sets NAME ...] [--ways NAME ...] [--seeds N ...] [--out DIR] [--data DIR]

Networks have two hidden layers. The ways to find their sizes:

    grow     a network of 256-256 neurons, narrowed by `ng.narrow` and grown by a `Grower` without options
    guess    static networks: 64-64 neurons, the widths of the grown network, and 256-256 neurons; the last is then cut
             to the parameters of the grown network, by `ng.prune` and by the magnitudes of Torch-Pruning, and trained
             on for a quarter of the epochs
    search   Optuna (TPE) proposes both widths, from 4 to 512; a fifth of the training samples tells which are best, and
             these are trained again on all samples. After 5, 10 and 20 trials, and after as many as take no longer than
             growing, the last training included, but at least one
    gromo    TINY and GradMax of the library gromo, from 16-16 neurons to the widths of the grown network, which they
             have to be told, in eight parts over the first half of the epochs

Each finished network is a line of DIR/SET.jsonl, and what is there is not repeated. Times are processor times of all
training that was necessary, trials included; that of a prediction is the least of many, for 256 samples at once.
Needs the packages of the extra `against`.
"""

from __future__ import annotations

import argparse
import bisect
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import neurogenesis as ng
from benchmarks.newborn import found
from neurogenesis.experiments.data import Data, table
from neurogenesis.experiments.models import mlp
from neurogenesis.experiments.training import accuracy_and_loss, loss_of

GUESS, SMALL_GUESS = 256, 64
LEAST, MOST = 4, 512  # of the widths that a search proposes
TRIALS = (5, 10, 20)
HELD_OUT = 0.2  # of the training samples, to choose among trials
TUNED = 0.25  # of the epochs, after pruning
MEASURED = 4096  # training samples on which activations are measured for pruning
SHAPE = "static, grown widths"
_PREDICTED, _ROUNDS = 256, 50


@dataclass(frozen=True)
class Task:
    """How networks are trained on a data set."""

    epochs: int
    batch: int
    rate: float
    seeds: int = 10


TASKS = {
    "digits": Task(24, 64, 3e-3),
    "cancer": Task(40, 32, 3e-3),
    "wine": Task(100, 32, 3e-3),
    "friedman1": Task(30, 32, 3e-3),
    "mnist": Task(10, 512, 3e-3, seeds=3),
}


@dataclass(frozen=True)
class Outcome:
    """A network that one way has led to."""

    way: str
    seed: int
    accuracy: float
    """The part of the test samples that are classified correctly, or of the variance that is explained."""
    loss: float
    widths: tuple[int, ...]
    parameters: int
    flops: int
    predict_seconds: float
    """Processor time of a prediction for 256 samples."""
    train_seconds: float
    """Processor time of all training that was necessary."""
    trials: int = 0


@dataclass(frozen=True)
class Problem:
    """A data set, how to train on it, and the seed."""

    data: Data
    task: Task
    seed: int

    def network(self, *widths: int) -> nn.Sequential:
        """A fresh network."""
        torch.manual_seed(self.seed)
        return mlp(self.data.train[0].shape[1], *widths, self.data.classes)


def widths_of(model: nn.Module) -> tuple[int, ...]:
    """The numbers of neurons of the hidden layers."""
    return tuple(each.out_features for each in model.modules() if isinstance(each, nn.Linear))[:-1]


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def train(
    model: nn.Module,
    problem: Problem,
    epochs: int | None = None,
    grows: bool = False,
    after: Callable[[int], bool] = lambda epoch: False,
) -> float:
    """Train, and return the processor time.

    Args:
        model: the model.
        problem: data, settings and the seed, which decides the order of samples.
        epochs: the number of epochs; by default that of the task.
        grows: whether a `Grower` watches.
        after: called after each epoch; if it returns true, the parameters are others than before.
    """
    inputs, targets = problem.data.train
    generator = torch.Generator().manual_seed(problem.seed)
    started = time.process_time()
    optimizer = torch.optim.Adam(model.parameters(), lr=problem.task.rate)
    grower = ng.Grower(model, optimizer) if grows else None
    model.train()
    for epoch in range(problem.task.epochs if epochs is None else epochs):
        for chosen in torch.randperm(len(inputs), generator=generator).split(problem.task.batch):  # type: ignore[no-untyped-call]
            loss = loss_of(model(inputs[chosen]), targets[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if grower is not None:
                grower.step()
        if after(epoch):
            optimizer = torch.optim.Adam(model.parameters(), lr=problem.task.rate)
            model.train()
    if grower is not None:
        grower.detach()
    return time.process_time() - started


@torch.no_grad()
def predict_seconds(model: nn.Module, inputs: Tensor) -> float:
    """The least processor time of a prediction for 256 samples."""
    model.eval()
    batch, times = inputs[torch.arange(_PREDICTED) % len(inputs)], []
    for _ in range(_ROUNDS):
        started = time.process_time()
        model(batch)
        times.append(time.process_time() - started)
    return min(times)


def outcome(way: str, model: nn.Module, problem: Problem, seconds: float, trials: int = 0) -> Outcome:
    """Test a trained network."""
    accuracy, loss = accuracy_and_loss(model, problem.data.test)
    inputs = problem.data.test[0]
    return Outcome(
        way, problem.seed, accuracy, loss, widths_of(model), parameters_of(model), ng.flops(model, inputs[:1]),
        predict_seconds(model, inputs), seconds, trials,
    )  # fmt: skip


def grow(problem: Problem, known: Sequence[Outcome]) -> Iterator[Outcome]:
    """The default, from a narrowed network."""
    model = problem.network(GUESS, GUESS)
    ng.narrow(model, problem.data.train[0][:2])
    seconds = train(model, problem, grows=True)
    yield outcome("grown", model, problem, seconds)


def guess(problem: Problem, known: Sequence[Outcome]) -> Iterator[Outcome]:
    """Static networks, and what pruning makes of the largest."""
    final = grown(known, problem.seed)
    for way, widths in ((f"static {SMALL_GUESS}-{SMALL_GUESS}", (SMALL_GUESS,) * 2), (SHAPE, final.widths)):
        small = problem.network(*widths)
        yield outcome(way, small, problem, train(small, problem))
    model = problem.network(GUESS, GUESS)
    seconds = train(model, problem)
    yield outcome(f"static {GUESS}-{GUESS}", model, problem, seconds)
    for way, cut in (("ng.prune", prune), ("Torch-Pruning", prune_by_magnitude)):
        own = copy.deepcopy(model)
        own.zero_grad(set_to_none=True)
        started = time.process_time()
        try:
            own = cut(own, problem.data.train[0][:MEASURED], final.parameters)
        except ValueError as error:  # too few samples to tell which neurons the others explain
            print(f"{way}: {error}", file=sys.stderr)
            continue
        cutting = time.process_time() - started
        tuning = train(own, problem, epochs=max(1, round(TUNED * problem.task.epochs)))
        yield outcome(f"pruned by {way}", own, problem, seconds + cutting + tuning)


def grown(known: Sequence[Outcome], seed: int) -> Outcome:
    """The grown network of a seed."""
    for each in known:
        if (each.way, each.seed) == ("grown", seed):
            return each
    raise SystemExit(f"there is no grown network of seed {seed} yet: add grow to --ways")


def prune(model: nn.Sequential, inputs: Tensor, most: int) -> nn.Sequential:
    """Prune a model to so many parameters."""
    if parameters_of(model) > most:
        ng.prune(model, list(inputs.split(256)), max_parameters=most)  # type: ignore[no-untyped-call]
    return model


def prune_by_magnitude(model: nn.Sequential, inputs: Tensor, most: int) -> nn.Sequential:
    """The same by Torch-Pruning, with the smallest part of every layer that leaves no more parameters."""
    import torch_pruning as tp  # type: ignore[import-untyped]

    def without(neurons: int) -> nn.Sequential:
        own = copy.deepcopy(model)
        importance, ratio = tp.importance.MagnitudeImportance(p=2), neurons / GUESS
        tp.pruner.BasePruner(own, inputs[:2], importance, pruning_ratio=ratio, ignored_layers=[own.output]).step()
        return own

    if parameters_of(model) <= most:
        return model
    counts = range(1, GUESS)
    first = bisect.bisect_left(counts, True, key=lambda count: parameters_of(without(count)) <= most)
    return without(counts[first])


def search(problem: Problem, known: Sequence[Outcome]) -> Iterator[Outcome]:
    """Optuna over both widths."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    inside = replace(problem, data=problem.data.holding_out(HELD_OUT, problem.seed))
    real = problem.data.train[1].is_floating_point()
    study = optuna.create_study(
        direction="minimize" if real else "maximize", sampler=optuna.samplers.TPESampler(seed=problem.seed)
    )
    spent: list[float] = []
    chosen: list[tuple[int, int]] = []  # the best widths after each trial
    for _ in range(max(TRIALS)):
        trial = study.ask()
        widths = tuple(trial.suggest_int(f"hidden{layer}", LEAST, MOST, log=True) for layer in (1, 2))
        model = problem.network(*widths)
        spent.append(train(model, inside))
        accuracy, loss = accuracy_and_loss(model, inside.data.test)
        study.tell(trial, loss if real else accuracy)
        chosen.append((study.best_params["hidden1"], study.best_params["hidden2"]))
    finals: dict[tuple[int, int], Outcome] = {}

    def after(trials: int) -> Outcome:
        """The network that one has after so many trials."""
        best = chosen[trials - 1]
        if best not in finals:
            model = problem.network(*best)
            finals[best] = outcome("", model, problem, train(model, problem))
        final = finals[best]
        return replace(final, train_seconds=sum(spent[:trials]) + final.train_seconds, trials=trials)

    for trials in TRIALS:
        yield replace(after(trials), way=f"Optuna, {trials} trials")
    limit = grown(known, problem.seed).train_seconds
    possible = [count for count in range(1, max(TRIALS) + 1) if sum(spent[:count]) < limit]
    within = next((each for each in map(after, reversed(possible)) if each.train_seconds <= limit), after(1))
    yield replace(within, way="Optuna, as long as growing")


def gromo(problem: Problem, known: Sequence[Outcome]) -> Iterator[Outcome]:
    """The methods of gromo, which have to be told when and how far to grow."""
    from benchmarks.against_gromo import METHODS, grow_by_gromo

    widths = grown(known, problem.seed).widths
    for method in METHODS:
        model, seconds = grow_by_gromo(problem, widths, method)
        yield outcome(f"gromo, {method}", model, problem, seconds)


def warm_up() -> None:
    """Train a little, as the first steps of a process take longer than all others."""
    problem = Problem(table("random", 1), Task(epochs=2, batch=32, rate=1e-3), seed=1)
    for grows in (False, True):
        train(problem.network(16, 16), problem, grows=grows)


WAYS: dict[str, Callable[[Problem, Sequence[Outcome]], Iterator[Outcome]]] = {
    "grow": grow, "guess": guess, "search": search, "gromo": gromo,
}  # fmt: skip
LAST = {
    "grow": "grown",
    "guess": "pruned by Torch-Pruning",
    "search": "Optuna, as long as growing",
    "gromo": "gromo, GradMax",
}
"""The last outcome of each way, which tells that it is finished."""


def read(path: Path) -> list[Outcome]:
    """The outcomes in a file; the last one of a way and a seed counts."""
    if not path.is_file():
        return []
    every = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    outcomes = [Outcome(**{**each, "widths": tuple(each["widths"])}) for each in every]
    return list({(each.way, each.seed): each for each in outcomes}.values())


def load_set(name: str, seed: int, root: Path | None) -> Data | str:
    """A data set, or why it is skipped. Tables are divided by the seed."""
    return table(name, seed) if name not in ("digits", "mnist") else found(name, root)


def run(name: str, seed: int, way: str, out: Path, root: Path | None, epochs: int | None = None) -> None:
    """Go one way with one seed, and write down where it leads, unless that has been done."""
    path = out / f"{name}.jsonl"
    known = read(path)
    if any((each.way, each.seed) == (LAST[way], seed) for each in known):
        return
    data = load_set(name, seed, root)
    if isinstance(data, str):
        print(data, file=sys.stderr)
        return
    task = TASKS[name] if epochs is None else replace(TASKS[name], epochs=epochs)
    out.mkdir(parents=True, exist_ok=True)
    for each in WAYS[way](Problem(data, task, seed), known):
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(each)) + "\n")
        widths = "-".join(map(str, each.widths))
        print(
            f"{name:10} {each.way:28} seed {seed}  accuracy {each.accuracy:.4f}  loss {each.loss:.4f}  {widths:9}"
            f"{each.parameters:8,} parameters  {each.train_seconds:7.1f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="+", choices=list(TASKS), default=list(TASKS), help="data sets")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="ways to find sizes")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds; by default 1 to 10, for MNIST 1 to 3")
    parser.add_argument("--out", type=Path, default=Path("results/against"), help="directory of the outcomes")
    parser.add_argument("--data", type=Path, help="directory of the data sets; by default $NEUROGENESIS_DATA")
    parser.add_argument("--epochs", type=int, help="epochs of every training, for a first look")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    for name in arguments.sets:
        for seed in arguments.seeds or range(1, TASKS[name].seeds + 1):
            for way in arguments.ways:
                run(name, seed, way, arguments.out, arguments.data, arguments.epochs)


if __name__ == "__main__":
    main()
