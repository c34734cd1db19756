"""The state of a training run: one or more models with their growers and averages, optimizers and other objects.

A state is checked before anything is changed, and if one of the models cannot be resized, none is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..depth.loading import match_depth
from ..growing.grower import Grower
from ..structure.axes import unwrapped
from ..structure.finding import last_widths
from ..structure.modes import ordinary_tensors
from ..structure.saved_sizes import SavedSizes
from ..structure.solving import shapes_in
from ..surgery.checks import averaged_model
from ..surgery.optimizer_state import Optimizers, as_list
from ..surgery.plan import Surgery
from ..surgery.resizing import plan_of_shapes, resize_to_saved
from .checkpoints import KEY, check_names, with_shared
from .growers import growth_of, optimizers_of
from .plain import copied
from .saved_optimizers import check_optimizers, load_optimizer, optimizer_state

FORMAT = 3  # of the content

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
Growers = Grower | Iterable[Grower] | Mapping[str, Grower] | None
Averages = nn.Module | Sequence[nn.Module | None] | Mapping[str, nn.Module] | None


@dataclass(frozen=True)
class Member:
    """A model of a run, with its grower and its average.

    Args:
        name: what it is called among several models; empty if there is only one.
        model: the model.
        grower: its grower.
        average: its average: the one that was passed or, by default, the one of the grower.
        average_given: whether an average was passed.
    """

    name: str
    model: nn.Module
    grower: Grower | None
    average: nn.Module | None
    average_given: bool

    @property
    def label(self) -> str:
        return f"model {self.name!r}: " if self.name else ""


@dataclass(frozen=True)
class Run:
    """What is saved and loaded together."""

    members: tuple[Member, ...]
    optimizers: tuple[Optimizer, ...]
    others: tuple[Any, ...]

    @staticmethod
    def of(model: Models, optimizer: Optimizers, grower: Growers, ema: Averages, others: Any) -> Run:
        """Match the arguments of `save`, `load`, `snapshot` and `restore`; raises an error if they do not agree."""
        models = {name: unwrapped(each) for name, each in _named_models(model).items()}
        growers = _listed(grower)
        averages = _named_averages(ema, models)
        for each in growers:
            if not isinstance(each, Grower):
                raise TypeError(f"grower: expected a Grower, or a list of them, not {each!r}")
            if not any(each.model is own for own in models.values()):
                raise ValueError("grower: it grows another model")
        members = []
        for name, own in models.items():
            its = next((each for each in growers if each.model is own), None)
            average = averages.get(name)
            if average is not None:
                _check_average(own, average)
            found = None if its is None else its.ema
            members.append(Member(name, own, its, found if average is None else average, average is not None))
        optimizers = as_list(optimizer.values() if isinstance(optimizer, Mapping) else optimizer)
        return Run(tuple(members), tuple(optimizers), tuple(_checked_others(others)))

    @property
    def names(self) -> dict[int, str]:
        """Names of all parameters, by id."""
        return {
            id(parameter): f"{member.name}.{name}" if member.name else name
            for member in self.members
            for name, parameter in member.model.named_parameters()
        }

    def state(self, extra: Mapping[str, Any] | None, *, buffers: bool = False) -> dict[str, Any]:
        """The state of everything; tensors are shared, not copied.

        Args:
            extra: other values.
            buffers: whether to include all buffers that are not persistent, and not only those of widths.
        """
        names = self.names
        return {
            KEY: FORMAT,
            "models": {member.name: _state_of(member, buffers) for member in self.members},
            "optimizers": [optimizer_state(each, names) for each in self.optimizers],
            "others": [{"kind": type(each).__name__, "state": each.state_dict()} for each in self.others],
            "extra": dict(extra or {}),
        }

    def load(self, content: Mapping[str, Any], where: str, *, aliased: bool) -> None:
        """Load a state; raises an error, and changes nothing, if it does not fit.

        Args:
            content: the state.
            where: the name of the file or snapshot in messages.
            aliased: whether tensors are copied, so that the state can be loaded again.
        """
        _check_models([member.name for member in self.members], list(content["models"]), where)
        own = copied if aliased else _same
        with ordinary_tensors(), torch.no_grad():
            with ExitStack() as surgeries:
                for member in self.members:
                    self._match_depth(member, content["models"][member.name], surgeries)
                self._check(content, where)
                for member in self.members:
                    self._resize(member, content["models"][member.name], surgeries)
            for member in self.members:
                saved = content["models"][member.name]
                if member.grower is not None:
                    member.grower.load_state_dict(own(saved["grower"]))
                buffers, of_average = saved.get("buffers", ({}, {}))
                _load_module(member.model, saved["state"], own)
                _load_buffers(member.model, buffers)
                if member.average is not None and saved["average"] is not None:
                    _load_module(member.average, saved["average"], own)
                    _load_buffers(averaged_model(member.average), of_average)
            names = self.names
            for optimizer, state in zip(self.optimizers, content["optimizers"], strict=False):
                load_optimizer(optimizer, own(state), names)
            for other, state in zip(self.others, content["others"], strict=False):
                other.load_state_dict(own(state["state"]))

    def _check(self, content: Mapping[str, Any], where: str) -> None:
        """Raise an error unless a state can be loaded; only resizing may still fail."""
        models = content["models"]
        left_out = [f"{name}." for name in models if name not in {member.name for member in self.members}]
        kinds, saved = [type(each).__name__ for each in self.others], [each["kind"] for each in content["others"]]
        if self.others and kinds != saved:
            raise ValueError(f"others: {where} has the state of {_listing(saved)}, not of {_listing(kinds)}")
        for member in self.members:
            _check_member(member, models[member.name], where)
        check_optimizers(self.optimizers, content["optimizers"], self.names, left_out, where)
        for member in self.members:  # finds the widths, if this has not been done
            if member.grower is not None:
                member.grower.check_state(models[member.name]["grower"])

    def _optimizers(self, member: Member) -> list[Optimizer]:
        of_grower = () if member.grower is None else member.grower.optimizers
        return optimizers_of(member.model, dict.fromkeys([*self.optimizers, *of_grower]))

    def _match_depth(self, member: Member, saved: Mapping[str, Any], surgeries: ExitStack) -> None:
        stacks, names = SavedSizes.from_state(saved["sizes"]).stacks, list(with_shared(member.model, saved["state"]))
        surgery = surgeries.enter_context(Surgery(member.model, self._optimizers(member), ages=False))
        match_depth(surgery, names, stacks)
        if member.average is not None:
            average = averaged_model(member.average)
            match_depth(surgeries.enter_context(Surgery(average, ages=False)), names, stacks)

    def _resize(self, member: Member, saved: Mapping[str, Any], surgeries: ExitStack) -> None:
        optimizers = self._optimizers(member)
        state = with_shared(member.model, saved["state"])
        sizes = SavedSizes.from_state(saved["sizes"]) or SavedSizes.of(member.model, state)  # if not known when saved
        buffers, _ = saved.get("buffers", ({}, {}))
        state.update({name: value for name, value in buffers.items() if name in sizes.axes})
        surgery = surgeries.enter_context(Surgery(member.model, optimizers, ages=False))
        resize_to_saved(surgery, state, sizes)
        if member.average is not None:
            surgery = surgeries.enter_context(Surgery(averaged_model(member.average), ages=False))
            resize_to_saved(surgery, state, sizes)


def _same(value: Any) -> Any:
    return value


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
    """Averages by name of the model."""
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


def _state_of(member: Member, buffers: bool) -> dict[str, Any]:
    sizes, average = SavedSizes.of(member.model), member.average
    names = None if buffers else sizes.axes
    return {
        "state": member.model.state_dict(),
        "buffers": (
            _transient_buffers(member.model, names),
            {} if average is None else _transient_buffers(averaged_model(average), names),
        ),
        "sizes": sizes.state(),
        "grower": None if member.grower is None else growth_of(member.grower),
        "average": None if average is None else average.state_dict(),
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


def _check_member(member: Member, saved: Mapping[str, Any], where: str) -> None:
    """Raise ValueError unless the state of one model can be loaded."""
    if member.grower is not None and saved["grower"] is None:
        raise ValueError(f"{member.label}{where} has no state of a grower: pass none")
    if member.average_given and saved["average"] is None:
        raise ValueError(f"{member.label}{where} has no state of an average: pass no ema=")
    state, sizes = with_shared(member.model, saved["state"]), SavedSizes.from_state(saved["sizes"])
    try:
        check_names(member.model, state)
        if sizes and last_widths(member.model) is None:
            plan_of_shapes(member.model, shapes_in(member.model, state), sizes)
        if member.average is not None and saved["average"] is not None:
            check_names(member.average, with_shared(member.average, saved["average"]))
    except ValueError as error:
        raise ValueError(f"{member.label}{error}") from None


def _load_module(module: nn.Module, saved: Mapping[str, Any], own: Any) -> None:
    state = with_shared(module, saved)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            state[name] = own(value)
    module.load_state_dict(state)


def _load_buffers(module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    for name, value in buffers.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        present = owner._buffers.get(leaf)
        if present is not None and present.shape == value.shape:
            present.copy_(value)
        else:
            owner._buffers[leaf] = value.clone()


def _transient_buffers(module: nn.Module, names: Container[str] | None) -> dict[str, Tensor]:
    """Buffers of a module that are not persistent, and so not in its state; all, or those with certain names."""
    kept = module.state_dict(keep_vars=True)
    found = {name: buffer for name, buffer in module.named_buffers() if name not in kept}
    return {name: buffer for name, buffer in found.items() if names is None or name in names}


def _listing(kinds: Sequence[str]) -> str:
    return ", ".join(kinds) or "no others"
