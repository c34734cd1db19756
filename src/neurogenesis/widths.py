"""Find the widths of a model: which sizes can grow, together with what, and why not.

A width is a number of neurons or channels with every parameter axis that has that size for the same
reason: the rows of the layers that produce the neurons, whatever carries something per neuron on the way
(norms, depthwise convolutions, PReLU), and the columns of the layers that consume them.
"""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .axes import Atom, Product, Sum, Term, concatenation, fix, leaves, owners, product, resolve, size, unify
from .edits import Edit, edited, grouped, new_values
from .rules import Axes
from .tracing import Attribute, Example, Rejected, Tracer, call_model, tensors_in, trace

_REMEMBERED: WeakKeyDictionary[nn.Module, Widths] = WeakKeyDictionary()


@dataclass(frozen=True)
class Axis:
    """One axis of a parameter or buffer that a width runs through.

    `per_neuron` is how many positions each neuron owns there (49 behind a flattened 7 x 7 image), `offset`
    the first of them (behind a concatenation). `role` is producer, carrier or consumer.
    """

    tensor: str
    axis: int
    role: str
    per_neuron: int
    offset: int

    @property
    def module(self) -> str:
        """The path of the layer that the parameter belongs to."""
        return _layer(self.tensor)

    def __str__(self) -> str:
        times = f" x{self.per_neuron}" if self.per_neuron > 1 else ""
        return f"{self.module}{times}" + (f" @{self.offset}" if self.offset else "")


class Width:
    """A number of neurons: its name, its size now, where it runs through, and whether it can grow."""

    def __init__(self, name: str, term: Term, structure: _Structure):
        self.name = name
        self._term = term
        self._structure = structure

    @property
    def size(self) -> int:
        return size(self._term)

    @property
    def growable(self) -> bool:
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why the width cannot grow; None if it can."""
        reasons = [reason for atom in leaves(self._term) for reason in atom.fixed]
        if not reasons:
            return None
        # What the outside world fixes explains more than what follows from it.
        first = [reason for reason in reasons if reason.startswith("a size of the model")]
        split = f" (as {term})" if isinstance(term := resolve(self._term), Product) else ""
        return (first or reasons)[0] + split

    @property
    def producers(self) -> list[Axis]:
        return self._axes("producer")

    @property
    def carriers(self) -> list[Axis]:
        return self._axes("carrier")

    @property
    def consumers(self) -> list[Axis]:
        return self._axes("consumer")

    @property
    def axes(self) -> list[Axis]:
        return self._axes("producer", "carrier", "consumer")

    def positions(self, axis: Axis) -> Tensor:
        """The positions that each neuron owns on one of the width's axes, of shape (size, per neuron)."""
        owner = owners(self._structure.axes[axis.tensor][axis.axis], next(leaves(self._term)))
        order = owner.sort(stable=True).indices[(owner < 0).sum() :]
        return order.reshape(self.size, -1)

    def _axes(self, *roles: str) -> list[Axis]:
        return [axis for axis in self._structure.axes_of(self._term) if axis.role in roles]

    def __repr__(self) -> str:
        return f"Width({self.name!r}, size={self.size}, " + (
            "growable)" if self.growable else f"fixed: {self.reason})"
        )


class Widths(Mapping[str, Width]):
    """All widths of a model by name, in the order of its layers. Iterate over `.values()`; print as a table.

    It stays right while `neurogenesis.grow` and `neurogenesis.shrink` change the model.
    """

    def __init__(self, widths: Sequence[Width], structure: _Structure):
        self._widths = {width.name: width for width in widths}
        self._structure = structure

    def __getitem__(self, name: str) -> Width:
        if name in self._widths:
            return self._widths[name]
        found = [w for w in self._widths.values() if any(axis.module == name for axis in w.producers)]
        found = [w for w in found if w.growable] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(f"{name!r} produces several widths: {', '.join(repr(w.name) for w in found)}")
        near = difflib.get_close_matches(name, self._widths, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see print(widths) for the names"
        raise KeyError(f"no width is called {name!r}; {hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._widths)

    def __len__(self) -> int:
        return len(self._widths)

    @property
    def growable(self) -> list[Width]:
        return [width for width in self._widths.values() if width.growable]

    def edits(
        self, atom: Atom, change: int | Sequence[int], tensors: Mapping[str, Tensor], generator: Any
    ) -> list[Edit]:
        return self._structure.edits(atom, change, tensors, generator)

    def attribute_values(self) -> list[tuple[str, str, int]]:
        return self._structure.attribute_values()

    def differs_from(self, model: nn.Module) -> str | None:
        """What of the model has changed since its widths were found, other than by growing and shrinking."""
        tensors, axes = named_tensors(model), self._structure.axes
        for name in {**tensors, **axes}:
            there = tuple(tensors[name].shape) if name in tensors else None
            expected = tuple(map(size, axes[name])) if name in axes else None
            if there != expected:
                return f"the model has changed ({name} has shape {there}, not {expected})"
        return None

    def __str__(self) -> str:
        rows = [("width", "size", "producers", "carriers", "consumers", "can grow")]
        for width in self._widths.values():
            lists = [_listed(axes) for axes in (width.producers, width.carriers, width.consumers)]
            rows.append((width.name, str(width.size), *lists, "yes" if width.growable else f"no: {width.reason}"))
        lengths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = ["  ".join([*map(str.ljust, row, lengths), row[5]]).rstrip() for row in rows]
        return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])

    __repr__ = __str__


def _listed(axes: Sequence[Axis]) -> str:
    names = list(dict.fromkeys(map(str, axes)))
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _layer(tensor: str) -> str:
    """The layer of a parameter: its module, or the parameter itself where the module holds several weights."""
    path, _, name = tensor.rpartition(".")
    if ".parametrizations." in f".{path}":
        path, _, name = f".{path}".partition(".parametrizations.")
        path = path.removeprefix(".")
    return path if name in _USUAL and path else tensor


_USUAL = ("weight", "bias", "running_mean", "running_var", "weight_g", "weight_v")


class _Structure:
    """The axes of all parameters and buffers as terms, and what each axis does."""

    def __init__(self, axes: dict[str, Axes]):
        self.axes = axes
        self.roles: dict[tuple[str, int], tuple[str, str]] = {}
        self.attributes: list[Attribute] = []

    def add(self, model: nn.Module, tracer: Tracer, tensors: Mapping[str, Tensor]) -> None:
        """Take over what a run has shown of roles and attributes."""
        for seen in tracer.roles:
            atoms = set(leaves(seen.term))
            places = [
                (name, axis)
                for name in seen.sources
                for axis, term in enumerate(self.axes[name])
                if not atoms.isdisjoint(leaves(term))
            ]
            # Where input and output axes are one width, strides tell the one that is meant.
            same = [(name, axis) for name, axis in places if tensors[name].stride(axis) == seen.stride]
            places = [p for p in places if p in same or Counter(n for n, _ in places)[p[0]] == 1] or places
            for place in places:
                present = self.roles.get(place)
                if present is None or _RANK[seen.role] > _RANK[present[0]]:
                    self.roles[place] = seen.role, seen.fill
            if seen.role == "consumer" and not places:
                fix(seen.term, "consumed by a tensor that is not a parameter")
        known = set(self.attributes)
        for attribute in tracer.attributes:
            module = tracer.modules[attribute.module]
            value = getattr(module, attribute.name, None)
            if type(value) is int and value == size(attribute.term) and attribute not in known:
                known.add(attribute)
                self.attributes.append(attribute)

    def role(self, name: str, axis: int) -> tuple[str, str]:
        return self.roles.get((name, axis), ("carrier", "mean"))

    @cached_property
    def places(self) -> dict[Atom, list[tuple[str, int]]]:
        """On which axes each atom lies; asked for when no axes are unified any more."""
        result: dict[Atom, list[tuple[str, int]]] = {}
        for name, axes in self.axes.items():
            for number, term in enumerate(axes):
                for atom in dict.fromkeys(leaves(term)):
                    result.setdefault(atom, []).append((name, number))
        return result

    def axes_of(self, term: Term) -> Iterator[Axis]:
        """The axes that a width, or a fixed compound of several, runs through."""
        term = resolve(term)
        for name, number in self.places[next(leaves(term))]:
            whole, role = self.axes[name][number], self.role(name, number)[0]
            if isinstance(term, Atom):
                owned = (owners(whole, term) == 0).nonzero().flatten()
                yield Axis(name, number, role, per_neuron=len(owned), offset=int(owned[0]))
            elif resolve(whole) == term:
                yield Axis(name, number, role, per_neuron=1, offset=0)

    def edits(
        self, atom: Atom, change: int | Sequence[int], tensors: Mapping[str, Tensor], generator: Any
    ) -> list[Edit]:
        """The edits that add `change` neurons at a width's end, or remove those of the given indices."""
        result = []
        for name, axis in self.places[atom]:
            term, (role, fill) = self.axes[name][axis], self.role(name, axis)
            values = None
            if isinstance(change, int):
                positions = _new_positions(term, atom, change)
                values = new_values(tensors[name], axis, len(positions), fill, generator)
            else:
                positions = torch.isin(owners(term, atom), torch.tensor(change)).nonzero().flatten()
            result.append(Edit(name, axis, size(term), positions, values, role))
        # Consumers last: where new rows and new columns cross, the zero fan-out holds.
        return sorted(result, key=lambda edit: edit.role == "consumer")

    def attribute_values(self) -> list[tuple[str, str, int]]:
        """Module path, attribute and the value it should have, for every attribute that states a size."""
        return [(each.module, each.name, size(each.term)) for each in self.attributes]


_RANK = {"carrier": 0, "producer": 1, "consumer": 2}


def _new_positions(term: Term, atom: Atom, count: int) -> Tensor:
    before = atom.size
    atom.size += count
    try:
        return (owners(term, atom) >= before).nonzero().flatten()
    finally:
        atom.size = before


def widths(model: nn.Module, example: Example, *, tie: Sequence[str | Sequence[str]] = ()) -> Widths:
    """Find every width of a model from one example input.

    The model is run in evaluation and in training mode, each time with the axes of all tensors labelled, and
    once more with every width grown, to see that its code follows and its outputs stay. It is left as it was.

    Args:
        model: any module.
        example: an input the model accepts: a tensor, a tuple of arguments or a dict of keyword arguments.
        tie: groups of patterns such as ``[["layer1.*"]]``; the widths whose producers match one of a group's
            patterns grow together. They must have the same size.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> ng.widths(model, torch.randn(1, 4))["0"]
        Width('0', size=8, growable)
    """
    tensors = named_tensors(model)
    _check_materialised(tensors)
    axes: dict[str, Axes] = {name: [Atom(n) for n in tensor.shape] for name, tensor in tensors.items()}
    structure = _Structure(axes)
    operations: dict[Any, list[tuple[str, Axes]]] = {}
    outputs = None
    modes = [False, True]
    for training in modes:
        tracer = Tracer(model, tensors, axes, strict=False)
        try:
            result = trace(model, example, tracer, model, training)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, Rejected) else error
            message = f"{type(cause).__name__}: {cause}"
            if not training:
                raise ValueError(f"the model rejects the example: {message}") from cause
            warnings.warn(
                f"the model cannot be run in training mode on this example ({message}); "
                "layers that only run in training are not seen",
                stacklevel=2,
            )
            modes = [False]
            break
        for tensor in tensors_in(result):
            for term in tracer.label(tensor).axes:
                fix(term, "a size of the model's output")
        for key, seen in tracer.operations.items():
            operations.setdefault(key, []).extend(seen)
        structure.add(model, tracer, tensors)
        outputs = outputs if training else result
    _fix_modules(model, axes)
    _fix_the_rest(structure)
    for group in tie:
        _tie(structure, [group] if isinstance(group, str) else list(group))
    _try_out(structure, operations, partial(_attempt, model, example, structure, outputs, modes))
    found = Widths(_named(structure), structure)
    _REMEMBERED[model] = found
    return found


def remembered(model: nn.Module) -> Widths | None:
    """The widths last found for a model."""
    return _REMEMBERED.get(model)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name; shared ones once, under their first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _check_materialised(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ValueError(f"{name} is lazy and not yet initialised: run the model once on real data first")
        if tensor.is_meta:
            raise ValueError(f"{name} is on the meta device: materialise it first, as by model.to_empty(...)")


_FIXED_MODULES: list[tuple[tuple[type[nn.Module], ...], str]] = [
    ((nn.RNNBase, nn.RNNCellBase), "tied to the gates and the state of the recurrent layer {}"),
    (
        (nn.MultiheadAttention,),
        "tied to a head count: {} splits its one embedding size into heads for query, key and value alike",
    ),
]


def _fix_modules(model: nn.Module, axes: Mapping[str, Axes]) -> None:
    """Modules whose own checks or kernels allow no other sizes than those they were built with."""
    for path, module in model.named_modules():
        for kinds, reason in _FIXED_MODULES:
            if isinstance(module, kinds):
                for name in axes:
                    if name.startswith(f"{path}." if path else ""):
                        for term in axes[name]:
                            fix(term, reason.format(f"{path or 'the model'} ({type(module).__name__})"))


def _tie(structure: _Structure, patterns: list[str]) -> None:
    chosen: dict[Atom, str] = {}
    for (name, number), (role, _) in structure.roles.items():
        if role == "producer" and any(fnmatchcase(_layer(name), pattern) for pattern in patterns):
            for atom in leaves(structure.axes[name][number]):
                if not atom.fixed:
                    chosen.setdefault(atom, _layer(name))
    if not chosen:
        raise ValueError(f"tie: no layer that produces a growable width matches {patterns}")
    sizes = {layer: atom.size for atom, layer in chosen.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"tie: widths that grow together must have one size, but these match: {sizes}")
    first, *others = chosen
    for atom in others:
        unify(first, atom)


def _fix_the_rest(structure: _Structure) -> None:
    """Widths that no layer produces or consumes, or that are an axis together with themselves."""
    roles: dict[Atom, set[str]] = {}
    for name, axes in structure.axes.items():
        for number, term in enumerate(axes):
            for atom in leaves(term):
                roles.setdefault(atom, set()).add(structure.role(name, number)[0])
            for atom in _squared(term):
                fix(atom, f"multiplied with itself in the shape of {name}")
    for atom, seen in roles.items():
        if "producer" not in seen:
            fix(atom, "not produced by any layer")
        elif "consumer" not in seen:
            fix(atom, "not consumed by any layer")


def _squared(term: Term) -> list[Atom]:
    term = resolve(term)
    if isinstance(term, Atom):
        return []
    children = term.factors if isinstance(term, Product) else term.parts
    result = [atom for child in children for atom in _squared(child)]
    if isinstance(term, Product):
        counts = Counter(atom for child in children for atom in set(leaves(child)))
        result += [atom for atom, number in counts.items() if number > 1]
    return result


def _growable_atoms(structure: _Structure) -> list[Atom]:
    atoms = (atom for axes in structure.axes.values() for term in axes for atom in leaves(term))
    return [atom for atom in dict.fromkeys(atoms) if not atom.fixed]


# --- trying it out ---------------------------------------------------------------------------------------


def _try_out(
    structure: _Structure, operations: Mapping[Any, list[tuple[str, Axes]]], attempt: Callable[..., None]
) -> None:
    """Run the model with all widths grown at once and fix those that its code does not let grow.

    Shapes written out in the code (`x.view(-1, 400)`) cannot be told from shapes it computes by looking at
    one run. Operations that fail in the grown run name the width to blame; the others are tried again.
    """
    while candidates := _growable_atoms(structure):
        try:
            attempt(candidates)
            return
        except Rejected as rejected:
            if not rejected.atoms:
                break
            # The same line of the user's code fails in every other instance of its class too.
            own_code = not rejected.key[0].__module__.startswith("torch.nn.")
            for where, terms in operations.get(rejected.key, []) if own_code else ():
                for atom in {leaf for term in terms for leaf in leaves(term)} & set(candidates):
                    fix(atom, _fixed_shape(rejected.key[-1], where))
            for atom in rejected.atoms:
                if not atom.fixed:
                    fix(atom, rejected.reason)
        except Exception:  # raised by the model's own code, which names no width
            break
    for atom in candidates:
        try:
            attempt([atom])
        except Exception as error:
            fix(atom, f"the model fails when it grows: {error}")


def _fixed_shape(operation: str, where: str) -> str:
    if operation in ("aten.view", "aten.reshape", "aten._unsafe_view"):
        return f"reshaped to a size written out in the code of {where}"
    return f"has a size that {operation} fixes in {where}"


def _attempt(
    model: nn.Module,
    example: Example,
    structure: _Structure,
    outputs: Any,
    modes: Sequence[bool],
    grown: Sequence[Atom],
) -> None:
    """Run the model with the given atoms grown; raise where that fails or changes the outputs."""
    tensors = named_tensors(model)
    current = {name: tensor.detach() for name, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(0)
    sizes = [atom.size for atom in grown]
    try:
        for number, atom in enumerate(grown):
            edits = structure.edits(atom, 1 + number % 3, current, generator)
            for name, own in grouped(edits).items():
                current[name] = edited(current[name], own)
            atom.size += 1 + number % 3
        twins: dict[Atom, Atom] = {}
        axes = {name: [_twin(term, set(grown), twins) for term in terms] for name, terms in structure.axes.items()}
        attributes = structure.attribute_values()
    finally:
        for atom, before in zip(grown, sizes, strict=True):
            atom.size = before
    originals = {id(new): old for old, new in twins.items()}
    replaced = {name: tensor for name, tensor in current.items() if tensor.shape != tensors[name].shape}
    modules = dict(model.named_modules(remove_duplicate=False))

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, replaced, args, kwargs, strict=False)

    before = [(modules[path], name, getattr(modules[path], name)) for path, name, _ in attributes]
    try:
        for path, name, value in attributes:
            setattr(modules[path], name, value)
        for training in modes:
            tracer = Tracer(model, current, axes, strict=True)
            result = trace(model, example, tracer, call, training)
            if not training:
                _check_same(outputs, result)
    except Rejected as rejected:
        rejected.atoms = [originals[id(atom)] for atom in rejected.atoms]
        raise
    finally:
        for module, name, value in before:
            setattr(module, name, value)
    for old, new in twins.items():
        for reason in new.fixed if new.rigid else ():
            fix(old, reason)


def _twin(term: Term, rigid: set[Atom], twins: dict[Atom, Atom]) -> Term:
    term = resolve(term)
    if isinstance(term, Atom):
        return twins.setdefault(term, Atom(term.size, rigid=term in rigid))
    if isinstance(term, Product):
        return product(_twin(each, rigid, twins) for each in term.factors)
    return concatenation(_twin(each, rigid, twins) for each in term.parts)


def _check_same(before: Any, after: Any) -> None:
    for old, new in zip(tensors_in(before), tensors_in(after), strict=True):
        if old.shape != new.shape:
            raise ValueError(f"an output changes its shape from {tuple(old.shape)} to {tuple(new.shape)}")
        if old.is_floating_point() and old.numel():
            tolerance = 0.1 if old.dtype.itemsize < 4 else 1e-3
            old, new = old.double().nan_to_num(), new.double().nan_to_num()
            if (old - new).abs().max() > tolerance * old.abs().max().clamp_min(1e-6):
                raise ValueError("the outputs change although the new fan-out is zero")


# --- names -----------------------------------------------------------------------------------------------


def _named(structure: _Structure) -> list[Width]:
    """Every width with its name: its first producer's path, numbered where one layer produces several."""
    bases: dict[Term, str] = {}
    for wanted in ("producer", "consumer"):
        listed = {atom for term in bases for atom in leaves(term)}
        for name, axes in structure.axes.items():
            for number, term in enumerate(axes):
                if structure.role(name, number)[0] == wanted:
                    base = _layer(name) if wanted == "producer" else f"input of {_layer(name)}"
                    for part in _parts(term):
                        if listed.isdisjoint(leaves(part)):
                            bases.setdefault(part, base)
    result = []
    taken: Counter[str] = Counter()
    growable = {term for term in bases if not any(atom.fixed for atom in leaves(term))}
    order = {name: number for number, name in enumerate(dict.fromkeys(bases.values()))}
    for term in sorted(bases, key=lambda term: (order[bases[term]], term not in growable)):
        taken[bases[term]] += 1
        number = f"#{taken[bases[term]]}" if taken[bases[term]] > 1 else ""
        result.append(Width(bases[term] + number, term, structure))
    return result


def _parts(term: Term) -> Iterator[Term]:
    """The growable atoms of an axis, and between them what is fixed, unless it only multiplies them."""
    term = resolve(term)
    if isinstance(term, Atom) or all(atom.fixed for atom in leaves(term)):
        yield term
    elif isinstance(term, Sum):
        for part in term.parts:
            yield from _parts(part)
    else:
        for each in term.factors:
            if not all(atom.fixed for atom in leaves(each)):
                yield from _parts(each)
