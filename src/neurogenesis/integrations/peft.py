r"""LoRA ranks of PEFT as widths: when a rank is resized, the layers and configs that store it are updated.

A LoRA layer adds :math:`s B A x` to its base layer, with :math:`s = \alpha / r`, or :math:`\alpha / \sqrt r` for
rank-stabilized LoRA. A resized rank keeps s: alpha changes with r, in the layer and in the config.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peft import PeftType, get_peft_model_state_dict
from peft.tuners.adalora import AdaLoraLayer
from peft.tuners.lora import LoraLayer, ParamWrapper
from peft.tuners.lora.layer import MultiheadAttention
from peft.tuners.lora.variants import ALoraLinearVariant, DoraEmbeddingVariant, DoraLinearVariant, _DoraConvNdVariant
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.other import SAFETENSORS_WEIGHTS_NAME, ModulesToSaveWrapper, get_pattern_key
from torch import Tensor, nn

from ..structure.axes import Structure
from ..structure.extensions import register
from ..structure.reasons import Kind, Reason
from ..structure.terms import fix, leaves

_Change = tuple[dict[str, Any], str, Any]  # a dict, a key in it and its new value
_VARIANTS = (ALoraLinearVariant, DoraLinearVariant, DoraEmbeddingVariant, _DoraConvNdVariant)
_CHANGE_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")  # initializations that change the base weights


class Adapters:
    """The extension for models with adapters: LoRA ranks can be resized, other sizes inside adapters cannot."""

    def limit(self, model: nn.Module, structure: Structure) -> None:
        """Fix the sizes inside adapters that layers or configs could not follow; no layer outside shares them."""
        layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}
        owners = {name: _owner(name, layers) for name in structure.axes}
        atoms = {name: {leaf for term in terms for leaf in leaves(term)} for name, terms in structure.axes.items()}
        outside = {atom for name, own in atoms.items() if owners[name] is None for atom in own}
        configs = _configs(model)
        for name, owner in owners.items():
            if owner is not None:
                path, adapter = owner
                structure.complete |= atoms[name] - outside
                reason = _why_fixed(layers[path], adapter, configs.get((path, adapter)))
                for atom in atoms[name] - outside if reason else ():
                    fix(atom, Reason(f"{reason} ({path})", Kind.ADAPTER))

    def idle(self, model: nn.Module) -> Container[str]:
        """Tensors of inactive adapters, and of modules that are replaced by a trained copy (``modules_to_save``)."""
        layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}
        owners = {name: _owner(name, layers) for name, _ in model.named_parameters()}
        found = {name for name, own in owners.items() if own and own[1] not in layers[own[0]].active_adapters}
        for path, module in model.named_modules():
            if isinstance(module, ModulesToSaveWrapper):
                kinds = {f"{path}.modules_to_save.{each}." for each in module.modules_to_save}
                used = {f"{path}.modules_to_save.{each}." for each in module.active_adapters} & kinds
                idle = tuple(kinds - used) + ((f"{path}.original_module.",) if used else ())
                found |= {name for name in owners if name.startswith(idle)}
        return found

    def follow(self, model: nn.Module) -> Sequence[FollowRanks]:
        """One operation for each submodule that adapters were put into."""
        return [FollowRanks(base) for _, base in _base_models(model)]

    def settle(self, model: nn.Module) -> None:
        """Nothing: ranks follow with each resize."""


class FollowRanks:
    """Set the ranks and alphas in LoRA layers and adapter configs to those of the tensors."""

    def __init__(self, base: nn.Module):
        self.base = base
        self._before: list[_Change] = []

    def apply(self) -> None:
        changes = list(_changes(self.base))
        self._before = [(target, key, target[key]) for target, key, _ in changes]
        for target, key, value in changes:
            target[key] = value

    def revert(self) -> None:
        for target, key, value in self._before:
            target[key] = value

    def commit(self) -> None:
        pass


register(Adapters())


def _base_models(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Models that adapters were put into, with their paths: names in configs are relative to them."""
    for path, module in model.named_modules():
        if isinstance(vars(module).get("peft_config"), Mapping) and not isinstance(module, BaseTuner):
            yield path, module


# --- ranks that are resized ------------------------------------------------------------------------------


def _changes(base: Any) -> Iterator[_Change]:
    """Changes after which layers and configs have the ranks of the tensors."""
    layers = [(path, layer) for path, layer in base.named_modules() if isinstance(layer, LoraLayer)]
    for adapter, config in base.peft_config.items():
        if config.peft_type != PeftType.LORA:
            continue
        ranks, alphas, resized = {}, {}, False
        for path, layer in layers:
            if adapter not in layer.r or isinstance(layer, (ParamWrapper, MultiheadAttention)):
                continue
            rank, alpha = layer.r[adapter], layer.lora_alpha[adapter]
            if (new := _rank(layer, adapter)) != rank:
                resized, stable = True, layer.use_rslora.get(adapter, False)
                nominal = alpha / _divisor(rank, stable)
                alpha = matching_alpha(nominal, new, stable)
                yield layer.r, adapter, new
                yield layer.lora_alpha, adapter, alpha
                if layer.scaling[adapter] == nominal:  # else the user has set another one
                    yield layer.scaling, adapter, alpha / _divisor(new, stable)
            ranks[path], alphas[path] = new, alpha
        if resized:
            fields = vars(config)
            for field, patterns, values in (("r", "rank_pattern", ranks), ("lora_alpha", "alpha_pattern", alphas)):
                common, special = described(values, fields[field], fields[patterns] or {})
                yield fields, field, common
                yield fields, patterns, special
            if config.init_lora_weights == "orthogonal":  # demands even ranks, also of adapters that are then loaded
                yield fields, "init_lora_weights", True


def _rank(layer: Any, adapter: str) -> int:
    """The rank of a layer, from the shape of its tensors."""
    if adapter in layer.lora_embedding_A:
        return int(layer.lora_embedding_A[adapter].shape[0])
    return int(layer.lora_A[adapter].weight.shape[0])


def _divisor(rank: int, stable: bool) -> float:
    return math.sqrt(rank) if stable else rank


def matching_alpha(scaling: float, rank: int, stable: bool = False) -> float:
    r"""The alpha for which PEFT computes a scaling, :math:`\alpha / r` or :math:`\alpha / \sqrt r`, from it.

    Not every double is such a quotient: then the scaling is off by one unit in the last place.

    Example:
        >>> matching_alpha(16 / 8, 12)
        24
        >>> matching_alpha(1 / 3, 5) / 5 == 1 / 3
        True
    """
    divisor = _divisor(rank, stable)
    near = [scaling * divisor]
    near += [math.nextafter(near[0], towards) for towards in (math.inf, -math.inf)]
    alpha = next((each for each in near if each / divisor == scaling), near[0])
    return int(alpha) if alpha == int(alpha) else alpha


def described(values: Mapping[str, Any], common: Any, patterns: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    r"""Describe values by name as a LoraConfig does: a common value, and patterns of the names that differ from it.

    Args:
        values: the values by name.
        common: the present common value.
        patterns: the present values by pattern; they stay where they are right.

    Example:
        >>> described({"a.q": 4, "b.q": 4}, 2, {})
        (4, {})
        >>> described({"a.q": 4, "b.q": 2}, 2, {})
        (2, {'^a\\.q': 4})
    """
    if len(set(values.values())) == 1:
        return next(iter(values.values())), {}
    kept = {key: value for key, value in patterns.items() if key not in map(_pattern, values)}
    wrong = {name: value for name, value in values.items() if kept.get(get_pattern_key(kept, name), common) != value}
    return common, {**{_pattern(name): value for name, value in wrong.items()}, **kept}  # the first match counts


def _pattern(name: str) -> str:
    """A pattern that matches this name only."""
    return f"^{re.escape(name)}"


# --- files -----------------------------------------------------------------------------------------------


def adapter_files(model: Any) -> Iterator[tuple[Path, dict[str, str]]]:
    """The file of each adapter, where ``save_pretrained`` puts it, and names in the model by names in the file."""
    state = model.state_dict()
    own = {value.data_ptr(): name for name, value in state.items() if isinstance(value, Tensor) and value.numel()}
    for adapter in model.peft_config:
        saved = get_peft_model_state_dict(model, state, adapter, save_embedding_layers=False)
        names = {name: own[value.data_ptr()] for name, value in saved.items() if value.data_ptr() in own}
        yield Path("" if adapter == "default" else adapter) / SAFETENSORS_WEIGHTS_NAME, names


def shapes_without_adapters(base: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in a base model before it got adapters.

    Modules in ``modules_to_save`` are listed under the names of those that they replace.
    """
    layers = {path: layer for path, layer in base.named_modules() if isinstance(layer, BaseTunerLayer)}
    copies = [path for path, layer in base.named_modules() if isinstance(layer, ModulesToSaveWrapper)]
    for name, value in base.state_dict(keep_vars=True).items():
        if _owner(name, layers) is None:
            for path in (each for each in copies if name.startswith(f"{each}.")):
                kind, _, rest = name[len(path) + 1 :].partition(".")
                name = f"{path}.{rest.partition('.')[2] if kind == 'modules_to_save' else rest}"
            yield name.replace(".base_layer.", "."), tuple(value.shape)


# --- sizes that are fixed --------------------------------------------------------------------------------


def _owner(name: str, layers: Mapping[str, Any]) -> tuple[str, str] | None:
    """The layer, by path, and the adapter that a tensor belongs to; None for tensors of base layers."""
    parts = name.split(".")
    for number in range(len(parts) - 2, 0, -1):
        path = ".".join(parts[:number])
        if path in layers and parts[number] in layers[path].adapter_layer_names:
            return path, parts[number + 1]
    return None


def _configs(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Configs of adapters by layer and adapter."""
    return {
        (f"{path}.{inner}".strip("."), adapter): config
        for path, base in _base_models(model)
        for inner, layer in base.named_modules()
        if isinstance(layer, BaseTunerLayer)
        for adapter, config in base.peft_config.items()
    }


def _why_fixed(layer: Any, adapter: str, config: Any) -> str | None:
    """Why a rank of an adapter cannot be resized; None if it can."""
    if isinstance(layer, AdaLoraLayer):
        return "AdaLoRA sets the ranks by a budget of its own"
    if not isinstance(layer, LoraLayer) or config is None:
        return f"only ranks of LoRA are resized, not the sizes inside {type(layer).__module__.split('.')[-2]}"
    if isinstance(layer, MultiheadAttention):
        return "LoRA writes into the weights of nn.MultiheadAttention"
    if isinstance(layer, ParamWrapper):
        return "the config has no rank for a single parameter (target_parameters)"
    variant = layer.lora_variant.get(adapter)
    if variant is not None and not isinstance(variant, _VARIANTS):
        return f"{type(variant).__name__} is a kind of LoRA whose rank means more than a number of neurons"
    start = config.init_lora_weights
    if isinstance(start, str) and start.startswith(_CHANGE_BASE):
        return f"init_lora_weights={start!r} changed the base weights by this rank, and does so again when it is loaded"
    return None
