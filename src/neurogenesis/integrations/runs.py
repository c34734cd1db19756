"""The state of a training run: one or more models with their growers and averages, optimizers and other objects.

It is checked completely before anything is changed, and all models are resized in one surgery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..growing.grower import Grower
from ..structure.axes import unwrapped
from ..structure.modes import ordinary_tensors
from ..surgery.checks import averaged_model
from ..surgery.optimizer_state import Optimizers, as_list
from ..surgery.plan import Surgery
from .checkpoints import KEY, check_names, fit_in, shapes_in, with_shared
from .plain import copied
from .saved_optimizers import check_optimizers, load_optimizer, optimizer_state
from .sizes import SavedSizes

FORMAT = 2  # of the content

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
Growers = Grower | Iterable[Grower] | Mapping[str, Grower] | None
Averages = nn.Module | Sequence[nn.Module | None] | Mapping[str, nn.Module] | None


@dataclass(frozen=True)
class Part:
    """A model of a run; `given` says whether its average was passed, rather than found in its grower."""

    name: str
    model: nn.Module
    grower: Grower | None
    average: nn.Module | None
    given: bool

    @property
    def label(self) -> str:
        return f"model {self.name!r}: " if self.name else ""


@dataclass(frozen=True)
class Run:
    """What is saved and loaded together."""

    parts: tuple[Part, ...]
    optimizers: tuple[Optimizer, ...]
    others: tuple[Any, ...]

    @staticmethod
    def of(model: Models, optimizer: Optimizers, grower: Growers, ema: Averages, others: Any) -> Run:
        """Sort the arguments of `save`, `load`, `snapshot` and `restore`; raises an error if they do not match."""
        models = {name: unwrapped(each) for name, each in _named_models(model).items()}
        growers = _listed(grower)
        averages = _named_averages(ema, models)
        for each in growers:
            if not isinstance(each, Grower):
                raise TypeError(f"grower: expected a Grower, or a list of them, not {each!r}")
            if not any(each.model is own for own in models.values()):
                raise ValueError("grower: it grows another model")
        parts = []
        for name, own in models.items():
            its = next((each for each in growers if each.model is own), None)
            average = averages.get(name)
            if average is not None:
                _check_average(own, average)
            found = None if its is None else its.ema
            parts.append(Part(name, own, its, found if average is None else average, average is not None))
        optimizers = as_list(optimizer.values() if isinstance(optimizer, Mapping) else optimizer)
        return Run(tuple(parts), tuple(optimizers), tuple(_checked_others(others)))

    @property
    def names(self) -> dict[int, str]:
        """Names of all parameters, by id."""
        return {
            id(parameter): f"{part.name}.{name}" if part.name else name
            for part in self.parts
            for name, parameter in part.model.named_parameters()
        }

    def state(self, extra: Mapping[str, Any] | None, *, buffers: bool = False) -> dict[str, Any]:
        """The state of everything, which shares tensors with it.

        Args:
            extra: other values.
            buffers: whether to include buffers that are not part of the state of their module.
        """
        names = self.names
        return {
            KEY: FORMAT,
            "models": {part.name: _state_of(part, buffers) for part in self.parts},
            "optimizers": [optimizer_state(each, names) for each in self.optimizers],
            "others": [{"kind": type(each).__name__, "state": each.state_dict()} for each in self.others],
            "extra": dict(extra or {}),
        }

    def check(self, content: Mapping[str, Any], where: str) -> None:
        """Raise an error unless a state can be loaded."""
        models = content["models"]
        _check_models([part.name for part in self.parts], list(models), where)
        left_out = [f"{name}." for name in models if name not in {part.name for part in self.parts}]
        kinds, saved = [type(each).__name__ for each in self.others], [each["kind"] for each in content["others"]]
        if self.others and kinds != saved:
            raise ValueError(f"others: {where} has the state of {_listing(saved)}, not of {_listing(kinds)}")
        for part in self.parts:
            if part.grower is not None and models[part.name]["grower"] is not None:
                part.grower.check_examples(models[part.name]["grower"])
            _check_part(part, models[part.name], where)
        check_optimizers(self.optimizers, content["optimizers"], self.names, left_out, where)
        for part in self.parts:  # finds the widths, if this has not been done
            if part.grower is not None:
                part.grower.check_state(models[part.name]["grower"])

    def load(self, content: Mapping[str, Any], *, aliased: bool) -> None:
        """Load a state that was checked; it is copied if it is `aliased`, to be loaded again."""
        own = copied if aliased else _same
        with ordinary_tensors(), torch.no_grad():
            with ExitStack() as surgeries:
                for part in self.parts:
                    self._resize(part, content["models"][part.name], surgeries)
            for part in self.parts:
                saved = content["models"][part.name]
                if part.grower is not None:
                    part.grower.load_state_dict(own(saved["grower"]))
                buffers, of_average = saved.get("buffers", ({}, {}))
                _load_module(part.model, saved["state"], buffers, own)
                if part.average is not None and saved["average"] is not None:
                    _load_module(part.average, saved["average"], of_average, own)
            names = self.names
            for optimizer, state in zip(self.optimizers, content["optimizers"], strict=False):
                load_optimizer(optimizer, own(state), names)
            for other, state in zip(self.others, content["others"], strict=False):
                other.load_state_dict(own(state["state"]))

    def _resize(self, part: Part, saved: Mapping[str, Any], surgeries: ExitStack) -> None:
        optimizers = dict.fromkeys(self.optimizers)
        optimizers.update(dict.fromkeys(part.grower.optimizers if part.grower is not None else ()))
        holding = [each for each in optimizers if _trains(each, part.model)]
        state = with_shared(part.model, saved["state"])
        sizes = SavedSizes.from_state(saved["sizes"])
        if not sizes.widths:  # not known when the state was saved
            sizes = SavedSizes.of(part.model, shapes_in(part.model, state))
        surgery = surgeries.enter_context(Surgery(part.model, holding or None, ages=False))
        if part.grower is not None:
            part.grower.resize_to(saved["grower"], surgery)
        fit_in(surgery, state, sizes)
        if part.average is not None:
            average = averaged_model(part.average)
            fit_in(surgeries.enter_context(Surgery(average, ages=False)), state, sizes)


def _same(value: Any) -> Any:
    return value


def _trains(optimizer: Optimizer, model: nn.Module) -> bool:
    own = {id(parameter) for parameter in model.parameters()}
    return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])


# --- arguments -------------------------------------------------------------------------------------------


def _named_models(model: Models) -> dict[str, nn.Module]:
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, Mapping):
        named = {str(name): each for name, each in model.items()}
    elif isinstance(model, Sequence) and not isinstance(model, str):
        named = {str(number): each for number, each in enumerate(model)}
    else:
        named = {}
    if not named or not all(name and isinstance(each, nn.Module) for name, each in named.items()):
        raise TypeError(f"model: expected a module, or several as a list or as a dict by name, not {model!r}")
    if len(set(map(id, named.values()))) < len(named):
        raise ValueError("model: a module is passed twice")
    return named


def _named_averages(ema: Averages, models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Averages by the name of their model."""
    if ema is None:
        return {}
    if isinstance(ema, nn.Module):
        if len(models) > 1:
            raise TypeError("ema: there are several models: pass the averages in the same way, as a dict or list")
        return {next(iter(models)): ema}
    named = dict(ema) if isinstance(ema, Mapping) else dict(zip(models, ema, strict=False))
    if unknown := [name for name in named if name not in models]:
        raise ValueError(f"ema: there is no model {unknown[0]!r}")
    if not isinstance(ema, Mapping) and len(ema) != len(models):
        raise ValueError(f"ema: expected one for each of {len(models)} models, or None, not {len(ema)}")
    return {name: each for name, each in named.items() if each is not None}


def _check_average(model: nn.Module, average: Any) -> None:
    if not isinstance(average, nn.Module):
        raise TypeError(f"ema: expected a module, such as torch.optim.swa_utils.AveragedModel, not {average!r}")
    if [name for name, _ in model.named_parameters()] != [
        name for name, _ in averaged_model(average).named_parameters()
    ]:
        raise ValueError("ema: it is no average of this model, as it has other parameters")


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [each for each in given.values() if each is not None]
    return [each for each in given if each is not None] if isinstance(given, Iterable) else [given]


def _checked_others(others: Any) -> list[Any]:
    found = [others] if hasattr(others, "state_dict") else _listed(others)
    for each in found:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise TypeError(
                f"others: expected objects with state_dict() and load_state_dict(), such as a learning rate scheduler, "
                f"not {each!r}: pass plain values as extra="
            )
        if isinstance(each, (nn.Module, Optimizer, Grower)):
            kind = "ema" if isinstance(each, nn.Module) else "optimizer" if isinstance(each, Optimizer) else "grower"
            raise TypeError(
                f"others: a {type(each).__name__} must be resized with the model: pass it as model= or {kind}="
            )
    return found


# --- models ----------------------------------------------------------------------------------------------


def _state_of(part: Part, buffers: bool) -> dict[str, Any]:
    others = {"buffers": (_other_buffers(part.model), _other_buffers(part.average))} if buffers else {}
    return {
        **others,
        "state": part.model.state_dict(),
        "sizes": SavedSizes.of(part.model).state(),
        "grower": None if part.grower is None else part.grower.state_dict(),
        "average": None if part.average is None else part.average.state_dict(),
    }


def _check_models(given: list[str], saved: list[str], where: str) -> None:
    if missing := [name for name in given if name not in saved]:
        if saved == [""]:
            raise ValueError(f"{where} has one model, which was passed alone: pass it alone")
        listed = ", ".join(map(repr, saved))
        if missing == [""]:
            raise ValueError(
                f"{where} has the models {listed}: pass them, or some of them, by name, as in "
                f"model={{{saved[0]!r}: model}}"
            )
        raise ValueError(f"{where} has no model {missing[0]!r}, but {listed}")


def _check_part(part: Part, saved: Mapping[str, Any], where: str) -> None:
    """Raise ValueError unless the state of one model can be loaded."""
    if part.grower is not None and saved["grower"] is None:
        raise ValueError(f"{part.label}{where} has no state of a grower: pass none")
    if part.given and saved["average"] is None:
        raise ValueError(f"{part.label}{where} has no state of an average: pass no ema=")
    state, sizes = with_shared(part.model, saved["state"]), SavedSizes.from_state(saved["sizes"])
    try:
        check_names(part.model, state)
        if sizes.widths:
            sizes.plan(part.model, shapes_in(part.model, state))
        if part.average is not None and saved["average"] is not None:
            check_names(part.average, with_shared(part.average, saved["average"]))
    except ValueError as error:
        raise ValueError(f"{part.label}{error}") from None


def _load_module(module: nn.Module, saved: Mapping[str, Any], buffers: Mapping[str, Tensor], own: Any) -> None:
    """Load the state of a module, and the buffers that are not part of it."""
    state = with_shared(module, saved)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            state[name] = own(value)
    module.load_state_dict(state)
    for name, value in buffers.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        present = owner._buffers.get(leaf)
        if present is not None and present.shape == value.shape:
            present.copy_(value)
        else:
            owner._buffers[leaf] = value.clone()


def _other_buffers(module: nn.Module | None) -> dict[str, Tensor]:
    """The buffers that are not part of a module's state."""
    if module is None:
        return {}
    kept = module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in module.named_buffers() if name not in kept}


def _listing(kinds: Sequence[str]) -> str:
    return ", ".join(kinds) or "no others"
