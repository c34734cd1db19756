"""A grown network is loaded into a fresh model of its class, from any file."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from tests.cases import CASES, Case
from tests.growing import mlp
from tests.promises import amount, outputs_of

GROWABLE = [case for case in CASES if case.growable]


def fresh(case: Case, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return case.make()


def grown(case: Case) -> nn.Module:
    """A model with other sizes than the class makes, and values that are not those of initialization."""
    model = fresh(case, seed=0)
    found = ng.widths(model, case.example, **case.options)
    for number, width in enumerate(found.growable):
        if number % 2 and width.size > 2:
            ng.shrink(model, width, [0])
        else:
            ng.grow(model, width, amount(width, 2 + number % 3))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.01 * torch.randn_like(parameter))
    return model


def same_outputs(first: nn.Module, second: nn.Module, example: Any) -> bool:
    pairs = zip(outputs_of(first, example, False), outputs_of(second, example, False), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("case", GROWABLE, ids=str)
def test_a_fresh_model_is_resized_to_the_state(case: Case) -> None:
    source, target = grown(case), fresh(case)
    held = list(target.parameters())
    if case.options:
        ng.widths(target, case.example, **case.options)
    sizes = ng.load_state_dict(target, source.state_dict(), example=case.example)
    assert {name: number for name, number in sizes.items() if name in case.growable}
    assert all(a is b for a, b in zip(held, target.parameters(), strict=True))
    assert same_outputs(source, target, case.example)


@pytest.mark.parametrize("case", GROWABLE, ids=str)
def test_a_saved_model_is_loaded_without_an_example(case: Case, tmp_path: Path) -> None:
    source, target = grown(case), fresh(case)
    ng.save(tmp_path / "run.pt", source)
    torch.load(tmp_path / "run.pt", weights_only=True)
    ng.load(tmp_path / "run.pt", target)
    assert same_outputs(source, target, case.example)
    sizes = {width.name: width.size for width in ng.widths(source, case.example, **case.options)}
    assert {width.name: width.size for width in ng.widths(target, case.example, **case.options)} == sizes


@pytest.mark.parametrize("case", GROWABLE, ids=str)
def test_known_widths_stay_current_when_a_file_is_loaded(case: Case) -> None:
    """They are resized by plans of their own; a model without known widths, by the sizes in the file."""
    source, target, file = grown(case), fresh(case), io.BytesIO()
    found = ng.widths(target, case.example, **case.options)
    ng.save(file, source)
    file.seek(0)
    ng.load(file, target)
    assert found.sizes == ng.snapshot(source).widths
    assert found.differs_from(target) is None
    assert same_outputs(source, target, case.example)


@pytest.mark.parametrize("case", GROWABLE, ids=str)
def test_resizing_there_and_back_keeps_what_the_model_computes(case: Case) -> None:
    model = fresh(case)
    before = outputs_of(model, case.example, False)
    growable = ng.widths(model, case.example, **case.options).growable
    sizes = {width.name: width.size for width in growable}
    plans = ng.resize(model, {width.name: width.size + amount(width) for width in growable})
    assert [plan.width for plan in plans] == list(sizes)
    ng.resize(model, sizes)
    after = outputs_of(model, case.example, False)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# --- files -----------------------------------------------------------------------------------------------

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


def source() -> nn.Module:
    model = mlp(6, 8, 7, 3)
    ng.grow(model, "0", 4, example=X)
    return model


def save_safetensors(model: nn.Module, path: Path) -> Path:
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file(model.state_dict(), path / "grown.safetensors")
    return path / "grown.safetensors"


def save_shards(model: nn.Module, path: Path) -> Path:
    import json

    save_file = pytest.importorskip("safetensors.torch").save_file
    state = model.state_dict()
    for number, name in enumerate(state):
        save_file({name: state[name]}, path / f"model-{number}.safetensors")
    index = {"weight_map": {name: f"model-{number}.safetensors" for number, name in enumerate(state)}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def save_torch(content: Callable[[dict[str, Any]], Any]) -> Callable[[nn.Module, Path], Path]:
    def save(model: nn.Module, path: Path) -> Path:
        torch.save(content(dict(model.state_dict())), path / "grown.pt")
        return path / "grown.pt"

    return save


def save_ours(model: nn.Module, path: Path) -> Path:
    ng.save(path / "grown.pt", model)
    return path / "grown.pt"


FILES: dict[str, Callable[[nn.Module, Path], Path]] = {
    "torch": save_torch(lambda state: state),
    "state_dict": save_torch(lambda state: {"state_dict": state, "epoch": 3}),
    "prefix": save_torch(lambda state: {f"module.net.{name}": value for name, value in state.items()} | {"a": X}),
    "safetensors": save_safetensors,
    "shards": save_shards,
    "ours": save_ours,
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_other_libraries_are_read(kind: str, tmp_path: Path) -> None:
    model, target = source(), mlp(6, 8, 7, 3)
    ng.load_state_dict(target, FILES[kind](model, tmp_path), example=None if kind == "ours" else X)
    assert torch.equal(target(X), model(X))


class Tied(nn.Module):
    """Two names of one weight, of which safetensors stores one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.hidden, self.back, self.head = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.back(self.hidden(self.embedding(x)).relu()))


def test_shared_weights_may_be_stored_once() -> None:
    model, target, tokens = Tied(), Tied(), torch.tensor([[1, 2]])
    ng.grow(model, "hidden", 2, example=tokens)
    state = model.state_dict()
    del state["head.weight"]
    ng.load_state_dict(target, state, example=tokens)
    assert target.head.weight is target.embedding.weight
    assert torch.equal(target(tokens), model(tokens))


class Joined(nn.Module):
    """The head has the sum of two widths on one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 4), nn.Linear(6, 5), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.cat([self.left(x), self.right(x)], 1))


def test_saved_sizes_decide_where_the_shapes_leave_a_choice(tmp_path: Path) -> None:
    model = Joined()
    ng.grow(model, "left", 2, example=X)
    ng.shrink(model, "right", [0])
    ng.save(tmp_path / "run.pt", model)
    content = torch.load(tmp_path / "run.pt", weights_only=True)
    part = content["models"][""]
    head = {name: value for name, value in part["state"].items() if name.startswith("head.")}
    unknown = Joined()
    with pytest.raises(ValueError, match=r"head.weight should have 10 on axis 1.*more than one of these sizes"):
        ng.load_state_dict(unknown, head, example=X, strict=False)
    torch.save({**content, "models": {"": {**part, "state": head}}}, tmp_path / "head.pt")
    target = Joined()
    assert ng.load_state_dict(target, tmp_path / "head.pt", example=X, strict=False) == {"left": 6, "right": 4}
    assert target(X).shape == (3, 3)


def test_a_file_without_the_names_of_the_model_leaves_it_as_it_is(tmp_path: Path) -> None:
    path, model = save_ours(source(), tmp_path), nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 7)))
    assert ng.load_state_dict(model, path, strict=False) == {}
    assert model[0][0].out_features == 8 and model(X).shape == (3, 7)


# --- training goes on ------------------------------------------------------------------------------------


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, grower: ng.Grower, numbers: range) -> list[float]:
    losses = []
    for number in numbers:
        x = torch.randn(64, 6, generator=torch.Generator().manual_seed(number))
        loss = (model(x) - x[:, :3].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        grower.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("strategy", ["need", "north-select", "gradmax"])
@pytest.mark.parametrize("cut", [3, 12, 25])
def test_training_goes_on_as_if_it_had_not_stopped(strategy: str, cut: int, tmp_path: Path) -> None:
    def start() -> tuple[nn.Module, torch.optim.Optimizer, ng.Grower]:
        model = mlp(6, 4, 4, 3)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        return model, optimizer, ng.Grower(model, optimizer, strategy, buffer=128, max_width=20)

    whole = start()
    expected = steps(*whole, range(40))
    first = start()
    steps(*first, range(cut))
    ng.save(tmp_path / "run.pt", *first, extra={"step": cut})
    second = start()
    assert ng.load(tmp_path / "run.pt", *second) == {"step": cut}
    assert steps(*second, range(cut, 40)) == expected[cut:]
    assert second[2].widths == whole[2].widths != start()[2].widths
    assert len(second[2].history.events) == len(whole[2].history.events) > 0


def test_young_weights_stay_young_without_a_grower(tmp_path: Path) -> None:
    """The optimizer goes on with the bias corrections of new weights."""
    torch.manual_seed(0)
    model = mlp(6, 4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(20):
        if number == 10:
            ng.grow(model, "0", 3, optimizer=optimizer, example=X)
        model(X).square().mean().backward()
        optimizer.step()
    ng.save(tmp_path / "run.pt", model, optimizer)
    again = mlp(6, 4, 3)
    other = torch.optim.Adam(again.parameters())
    ng.load(tmp_path / "run.pt", again, other)
    for each, its in ((model, optimizer), (again, other)):
        each.zero_grad()
        each(X).square().mean().backward()
        its.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


# --- what does not fit -----------------------------------------------------------------------------------


def unchanged(model: nn.Module, action: Callable[[], Any], error: type[Exception], match: str) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=match):
        action()
    after = model.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: mlp(5, 8, 7, 3), r"width 'input of 0' does not fit: 0.weight should have 5 on axis 1, not 6"),
        (lambda: mlp(6, 8, 7, 4), r"width '4' does not fit: 4.weight should have 4 on axis 0, not 3"),
        (lambda: mlp(6, 8, 3), r"another architecture: it has no 4.weight"),
        (lambda: mlp(6, 8, 7, 7, 3), r"another architecture: the model has no 6.weight"),
        (lambda: nn.Sequential(nn.Conv1d(6, 8, 1), *mlp(6, 8, 7, 3)[1:]), r"0.weight should have shape \(8, 6, 1\)"),
    ],
    ids=["inputs", "outputs", "fewer layers", "more layers", "kind"],
)
def test_a_state_of_another_architecture_is_refused(other: Callable[[], nn.Module], message: str) -> None:
    model = mlp(6, 8, 7, 3)
    unchanged(model, lambda: ng.load_state_dict(model, other().state_dict(), example=X), ValueError, message)


def test_a_file_of_another_architecture_is_refused_before_the_grower_resizes(tmp_path: Path) -> None:
    saved = mlp(6, 4, 4, 3)
    optimizer = torch.optim.Adam(saved.parameters(), 1e-2)
    grower = ng.Grower(saved, optimizer, "north-select", buffer=128, max_width=20)
    steps(saved, optimizer, grower, range(20))
    assert grower.history.events
    ng.save(tmp_path / "run.pt", saved, optimizer, grower)
    target = mlp(6, 4, 4, 5)
    own = torch.optim.Adam(target.parameters(), 1e-2)
    fresh_grower = ng.Grower(target, own, "north-select", buffer=128, max_width=20)
    unchanged(
        target, lambda: ng.load(tmp_path / "run.pt", target, own, fresh_grower), ValueError, "another architecture"
    )


def test_shapes_that_contradict_each_other_are_refused() -> None:
    model, state = mlp(6, 8, 7, 3), source().state_dict()
    state["2.weight"] = torch.zeros(7, 9)
    message = "width '0' does not fit: 2.weight should have 9 on axis 1, but 0.weight gives it 12 neurons"
    unchanged(model, lambda: ng.load_state_dict(model, state, example=X), ValueError, message)


def test_without_example_or_sizes_the_first_tensor_that_differs_is_named() -> None:
    model = mlp(6, 8, 7, 3)
    message = r"0.weight has shape \(12, 6\) in the state, but \(8, 6\) in the model, and .* not saved .* pass an input"
    unchanged(model, lambda: ng.load_state_dict(model, source().state_dict()), ValueError, message)


def test_without_strict_other_names_are_left_out() -> None:
    model, state = mlp(6, 8, 7, 3), source().state_dict()
    del state["4.bias"]
    bias = model[4].bias.detach().clone()
    assert ng.load_state_dict(model, {**state, "more": X}, example=X, strict=False) == {"0": 12}
    assert torch.equal(model[4].bias, bias)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    for name in ("run.pt", "run.safetensors"):
        path, model = tmp_path / name, mlp(6, 8, 7, 3)
        whole = save_ours(source(), tmp_path) if name == "run.pt" else save_safetensors(source(), tmp_path)
        path.write_bytes(whole.read_bytes()[:-200])
        unchanged(model, lambda: ng.load_state_dict(model, path, example=X), ValueError, "is not a complete")  # noqa: B023


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


def test_a_file_that_could_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model = tmp_path / "run.pt", mlp(6, 8, 7, 3)
    torch.save({"state_dict": source().state_dict(), "evil": Evil()}, path)
    unchanged(model, lambda: ng.load_state_dict(model, path, example=X), ValueError, "more than tensors")
    unchanged(model, lambda: ng.load(path, model), ValueError, "more than tensors")
    path.write_bytes(pickle.dumps(Evil(), protocol=2))
    unchanged(model, lambda: ng.load(path, model), ValueError, "run.pt")
    assert capsys.readouterr().out == ""


def test_tampered_sizes_are_refused(tmp_path: Path) -> None:
    path = save_ours(source(), tmp_path)
    content = torch.load(path, weights_only=True)
    for change, message in (
        ({"axes": {}}, "0.weight has shape .* axis 0 does not belong to a width"),
        ({"attributes": [("0", "no_such", 3)]}, "0 has no attribute no_such"),
        ({"widths": 3}, "cannot be read"),
    ):
        part = content["models"][""]
        changed = {**part, "sizes": {**part["sizes"], **change}}
        torch.save({**content, "models": {"": changed}}, path)
        model = mlp(6, 8, 7, 3)
        unchanged(model, lambda: ng.load(path, model), ValueError, message)  # noqa: B023


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    path, model = tmp_path / "run.pt", mlp(6, 8, 7, 3)
    torch.save({"loss": 3.0}, path)
    unchanged(model, lambda: ng.load_state_dict(model, path), ValueError, "no state of a model; it has loss")
    unchanged(model, lambda: ng.load(path, model), ValueError, "was not written by neurogenesis.save")
    unchanged(model, lambda: ng.load(tmp_path / "none.pt", model), FileNotFoundError, "none.pt does not exist")
    unchanged(model, lambda: ng.load_state_dict(model, tmp_path), ValueError, "contains none of model.safetensors")
    (tmp_path / "neurogenesis.json").write_text("{")
    unchanged(model, lambda: ng.load_state_dict(model, tmp_path), ValueError, "neurogenesis.json is damaged")


def test_an_optimizer_in_another_order_is_refused(tmp_path: Path) -> None:
    model = source()
    ng.save(tmp_path / "run.pt", model, torch.optim.Adam(model.parameters()))
    target = mlp(6, 8, 7, 3)
    parts = [torch.optim.Adam(part.parameters()) for part in (target[:2], target[2:])]
    for optimizer, message in (
        (torch.optim.Adam([*target.parameters()][::-1]), "parameter '4.bias' where the saved one has '0.weight'"),
        (torch.optim.Adam([*target.parameters()][1:]), r"groups of \[5\] parameters, and the saved one of \[6\]"),
        (parts, "the state of 1 optimizers, not of 2"),
    ):
        unchanged(target, lambda: ng.load(tmp_path / "run.pt", target, optimizer), ValueError, message)  # noqa: B023


def test_saving_refuses_what_could_not_be_loaded_and_keeps_the_old_file(tmp_path: Path) -> None:
    path, model = tmp_path / "run.pt", source()
    ng.save(path, model, extra={"epoch": 1})
    with pytest.raises(TypeError, match=r"cannot save extra.scheduler\[0\], a function"):
        ng.save(path, model, extra={"scheduler": [lambda epoch: 1.0]})
    with pytest.raises(FileNotFoundError, match="create it first"):
        ng.save(tmp_path / "none" / "run.pt", model)
    assert ng.load(path, mlp(6, 8, 7, 3)) == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_resizing_to_impossible_sizes_changes_nothing() -> None:
    model = mlp(6, 8, 7, 3)
    for sizes, error, message in (
        ({"0": 9, "4": 4}, ValueError, "4 has 3 neurons and cannot be resized to 4: a size of the model's output"),
        ({"0": 9, "2": 0}, ValueError, "2: expected a positive number of neurons, not 0"),
        ({"0": 9, "1": 3}, KeyError, "no width is called '1'"),
        ([9, 3], TypeError, "expected sizes by names"),
    ):
        unchanged(model, lambda: ng.resize(model, sizes, X), error, message)  # type: ignore[arg-type]  # noqa: B023


def test_an_optimizer_with_state_is_resized_too() -> None:
    model = mlp(6, 8, 7, 3)
    optimizer = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.5)
    model(X).sum().backward()
    optimizer.step()
    before = optimizer.state[model[0].weight]["sum"].clone()
    ng.load_state_dict(model, source().state_dict(), example=X, optimizer=optimizer)
    sums = {parameter: state["sum"] for parameter, state in optimizer.state.items()}
    assert all(sums[parameter].shape == parameter.shape for parameter in model.parameters())
    assert torch.equal(sums[model[0].weight][:8], before) and torch.all(sums[model[0].weight][8:] == 0.5)
    model.zero_grad()
    model(X).sum().backward()
    optimizer.step()
    assert torch.any(sums[model[2].weight][:, 8:] > 0.5)
