"""Mixed precision, averages, masks and wrapped optimizers in training, and what becomes of a grown model afterwards."""

from __future__ import annotations

import ast
import copy
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import neurogenesis as ng
from tests.growing import always

ROOT = Path(__file__).parents[2]
ONE_NEURON = ng.Strategy(always(1), "random")


def convnet() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def images(number: int = 0) -> Tensor:
    return torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(number))


def loss_of(model: nn.Module, number: int = 0) -> Tensor:
    return model(images(number)).float().sin().square().mean()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model: nn.Module, grower: ng.Grower, steps: int = 3, optimizer: Any = None) -> None:
    optimizer = optimizer or grower.optimizers[0]
    for number in range(steps):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()
        grower.step()


def grown(steps: int = 3) -> tuple[nn.Sequential, ng.Grower]:
    """A model that has grown while it was trained, and its grower."""
    model = convnet()
    grower = ng.Grower(model, adam(model), ONE_NEURON, buffer=16)
    train(model, grower, steps)
    assert grower.widths == {"0": 4 + steps, "4": 5 + steps, "7": 8 + steps}
    return model, grower


def outputs(model: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.no_grad():
        return model(images(9))


# --- training ----------------------------------------------------------------------------------------------


def test_autocast_trains_and_grows_in_reduced_precision() -> None:
    model = convnet()
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, "north-select", buffer=16, max_width=1.5)
    for number in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            assert model(images(number)).dtype == torch.bfloat16
            loss = loss_of(model, number)
        loss.backward()
        optimizer.step()
        grower.step()
    assert len(grower.history) > 0
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_step_that_a_gradient_scaler_skips_grows_nothing_and_changes_nothing() -> None:
    model = convnet()
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    grower = ng.Grower(model, optimizer, ONE_NEURON, buffer=16)

    def step(number: int, factor: float = 1.0) -> list[ng.Event]:
        optimizer.zero_grad()
        scaler.scale(loss_of(model, number) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        return grower.step()

    assert len(step(0)) == 3
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match="no optimizer step"):
        assert step(1, float("inf")) == []
    assert scaler.get_scale() == 2.0**9
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
    assert len(step(2)) == 3
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_an_average_grows_with_the_model() -> None:
    model = convnet()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, ONE_NEURON, buffer=16, ema=average)
    for number in range(4):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()
        grower.step()
        average.update_parameters(model)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in average.module.state_dict().items()} == shapes
    assert outputs(average.eval()).isfinite().all()
    assert not torch.equal(outputs(average), outputs(model.eval()))


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization: a step climbs to a neighbour of the weights and descends by its gradient."""

    def __init__(self, parameters: Any, base: type[torch.optim.Optimizer], rho: float = 0.05, **options: Any):
        super().__init__(parameters, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in every]).norm()
        for p in every:
            self.state[p]["old"] = p.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> None:  # type: ignore[override]
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


@pytest.mark.parametrize("with_closure", [True, False])
def test_both_passes_of_sam_are_one_gradient_step(with_closure: bool) -> None:
    model = convnet()
    optimizer = SAM(model.parameters(), torch.optim.Adam, lr=1e-2)
    grower = ng.Grower(model, optimizer, ONE_NEURON, buffer=16)
    assert grower.optimizers == [optimizer.base_optimizer, optimizer]
    for number in range(3):
        loss_of(model, number).backward()
        if with_closure:
            optimizer.step(lambda number=number: loss_of(model, number).backward())
        else:
            optimizer.first_step()
            loss_of(model, number).backward()
            optimizer.second_step()
        assert len(grower.step()) == 3
    assert grower.steps == 3
    for parameter in model.parameters():
        assert optimizer.base_optimizer.state[parameter]["exp_avg"].shape == parameter.shape
        assert optimizer.state[parameter]["old"].shape == parameter.shape


class Wrapper:
    """A wrapper without step hooks of its own, as in Accelerate."""

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer


def test_the_optimizer_inside_wrappers_is_found() -> None:
    model = convnet()
    optimizer = adam(model)
    assert ng.Grower(model, Wrapper(optimizer), ONE_NEURON).optimizers == [optimizer]  # type: ignore[arg-type]
    nested = Wrapper(Wrapper(optimizer))
    assert ng.Grower(model, [nested], ONE_NEURON).optimizers == [optimizer]  # type: ignore[list-item]


def test_a_replaced_optimizer_is_noticed_and_taken_over() -> None:
    model, grower = grown()
    old, new = grower.optimizers[0], torch.optim.AdamW(model.parameters(), lr=1e-2)
    with pytest.warns(UserWarning, match=r"if you have replaced the optimizer.*grower\.optimizers = optimizer"):
        train(model, grower, 1, new)
    sizes = grower.widths
    grower.optimizers = new
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, grower, 2, new)
    assert grower.widths == {name: size + 2 for name, size in sizes.items()}
    for parameter in model.parameters():
        assert new.state[parameter]["exp_avg"].shape == parameter.shape
    grower.detach()
    for optimizer in (old, new):
        assert not optimizer._optimizer_step_post_hooks and not optimizer._optimizer_load_state_dict_post_hooks


def test_young_weights_stay_young_in_a_replaced_optimizer_with_the_same_state() -> None:
    (model, grower), (other, other_grower) = grown(), grown()
    new = adam(model)
    new.load_state_dict(copy.deepcopy(grower.optimizers[0].state_dict()))
    grower.optimizers = new
    train(model, grower)
    train(other, other_grower)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_an_optimizer_of_another_model_is_refused_and_the_present_one_kept() -> None:
    model, grower = grown()
    present = grower.optimizers
    with pytest.raises(ValueError, match="none of the model's parameters"):
        grower.optimizers = adam(convnet())
    assert grower.optimizers is present
    train(model, grower, 1)
    assert grower.widths["0"] == 8


# --- pruning masks -----------------------------------------------------------------------------------------

PRUNED = (0, 4, 7, 9)


def pruned_at(mask: Tensor) -> Tensor:
    return (mask == 0).nonzero()


def test_a_pruned_model_grows_with_its_masks() -> None:
    model = convnet()
    for number in PRUNED:
        prune.l1_unstructured(model[number], "weight", 0.3)
    before = {number: pruned_at(model[number].weight_mask) for number in PRUNED if number != 7}
    grower = ng.Grower(model, adam(model), ONE_NEURON, buffer=16)
    train(model, grower)
    assert grower.widths == {"0": 7, "4": 8, "7": 11}
    for number in PRUNED:
        assert model[number].weight_mask.shape == model[number].weight_orig.shape
    for number, pruned in before.items():  # the same entries are pruned, and no new ones
        assert torch.equal(pruned_at(model[number].weight_mask), pruned)
    assert (model[7].weight_mask == 0).sum() == round(0.3 * 8 * 80)
    model.eval()
    expected = outputs(model)
    for number in PRUNED:
        prune.remove(model[number], "weight")
    torch.testing.assert_close(outputs(model), expected)


def test_a_strategy_that_measures_says_why_it_leaves_pruned_layers_alone() -> None:
    model = convnet()
    prune.l1_unstructured(model[4], "weight", 0.3)
    with pytest.warns(UserWarning, match=r"its consumer 4 has a mask of torch.nn.utils.prune: call prune\.remove"):
        grower = ng.Grower(model, adam(model), "north-select", example=images(), max_width=1.5)
    train(model, grower)
    assert list(grower.widths) == ["7"]


def test_pruning_under_a_grower_is_noticed_and_a_new_grower_goes_on() -> None:
    model, grower = grown()
    optimizer = grower.optimizers[0]
    for number in (4, 7):
        prune.l1_unstructured(model[number], "weight", 0.3)
    before = copy.deepcopy(model.state_dict())
    optimizer.zero_grad()
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"4\.weight_orig is new.*make a new Grower for the changed model"):
        optimizer.step(), grower.step()
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {
        name: tensor.shape for name, tensor in before.items()
    }
    grower.detach()
    train(model, ng.Grower(model, optimizer, ONE_NEURON, buffer=16))
    assert model[4].weight_mask.shape == model[4].weight_orig.shape == (11, 10, 3, 3)
    assert optimizer.state[model[4].weight_orig]["exp_avg"].shape == (11, 10, 3, 3)
    assert (model[4].weight_mask == 0).sum() == (before["4.weight_mask"] == 0).sum()


# --- afterwards --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_torch_export_gives_the_same_outputs(strict: bool, detached: bool) -> None:
    model, grower = grown()
    if detached:
        grower.detach()
    program = torch.export.export(model.eval(), (images(),), strict=strict)
    torch.testing.assert_close(outputs(program.module()), outputs(model))
    assert not any("neurogenesis" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("training", [True, False])
def test_export_and_trace_are_no_training_passes(training: bool) -> None:
    model, grower = grown()
    model.train(training)
    torch.export.export(model, (images(),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, images(), check_trace=False)
    model.eval()
    if not training:
        torch.testing.assert_close(outputs(traced), outputs(model))
    del traced
    model.train()
    train(model, grower, 1)
    assert grower.widths["0"] == 8
    assert grower.steps == 4


def test_script_wants_the_grower_detached_and_says_so() -> None:
    model, grower = grown()
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(AttributeError, match=r"watched by a Grower: call grower\.detach\(\) first"):
            torch.jit.script(model)
        grower.detach()
        torch.testing.assert_close(outputs(torch.jit.script(model)), outputs(model))


@pytest.mark.parametrize("dynamo", [True, False])
def test_onnx_runtime_computes_the_same_outputs(dynamo: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, grower = grown()
    grower.detach()
    path = str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (images(),), path, dynamo=dynamo, verbose=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: images(9).numpy()})
    torch.testing.assert_close(torch.from_numpy(result), outputs(model), rtol=1e-4, atol=1e-5)


def test_int8_weights_of_torchao_keep_the_outputs() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model, grower = grown()
    grower.detach()
    expected = outputs(model.eval())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    assert type(model[7].weight.data) is not Tensor
    error = (outputs(model) - expected).abs().max() / expected.abs().max()
    assert 0 < error < 0.05


def test_a_copy_trains_by_itself_and_the_original_grows_on() -> None:
    model, grower = grown()
    other = copy.deepcopy(model)
    torch.testing.assert_close(outputs(other.eval()), outputs(model.eval()))
    model.train(), other.train()
    optimizer = adam(other)
    loss_of(other).backward()
    optimizer.step()
    assert grower._recorder.since.forward == 0
    train(model, grower, 1)
    assert model[0].out_channels == other[0].out_channels + 1


WITHOUT_PACKAGE = """
import sys, torch
sys.modules["neurogenesis"] = None  # importing it raises ImportError
model, x, expected = torch.load(sys.argv[1], weights_only=False)
torch.testing.assert_close(model(x), expected)
print(sum(parameter.numel() for parameter in model.parameters()))
"""


def test_a_pickled_model_needs_no_neurogenesis_after_detach(tmp_path: Path) -> None:
    model, grower = grown()
    grower.detach()
    model.eval()
    torch.save((model, images(9), outputs(model)), tmp_path / "model.pt")
    command = [sys.executable, "-c", WITHOUT_PACKAGE, str(tmp_path / "model.pt")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(printed) == sum(parameter.numel() for parameter in model.parameters())


def test_the_example_writes_a_model_that_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(sys, "argv", ["export.py", str(tmp_path / "model.onnx")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(ROOT / "examples" / "export.py"))
    found = re.findall(r"^(?:widths|largest difference): (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert any(size > 8 for size in ast.literal_eval(found[0]).values())
    assert float(found[1]) < 1e-5
