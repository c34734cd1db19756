"""Find the widths of a model: which sizes can grow, what grows with them, and what prevents growth.

A width is a number of neurons or channels, together with every parameter axis that depends on it: the rows of
the layers that produce the neurons, the parameters of layers that act on each neuron separately (norms,
depthwise convolutions, PReLU), and the columns of the layers that consume them.
"""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..tables import table
from .axes import Axis, Structure, layer_of, named_tensors, unwrapped
from .examples import Example, Examples, examples_in, tensors_in
from .extensions import extensions
from .fills import FanIn
from .limits import fix_by_role, fix_modules, fix_parametrized, fix_shared, hold_unused, tie_widths
from .modes import ordinary_tensors
from .reasons import Kind, Reason
from .rehearsal import Run, attempt_growth, perturbed, rehearse, with_copied_buffers
from .rules import Axes, RuleError
from .terms import Atom, Product, Sum, Term, fix, leaves, positions_of, resolve, size
from .tracing import Rejected, Tracer, trace
from .updates import register

_LAST_WIDTHS: WeakKeyDictionary[nn.Module, Widths] = WeakKeyDictionary()


class Width:
    """A number of neurons: its name, its current size, the axes it runs through, and whether it can grow."""

    def __init__(self, name: str, term: Term, structure: Structure):
        self.name = name
        self._own_term = term
        self.structure = structure
        self.initial = self.size
        self._positions: dict[Axis, tuple[tuple[int, ...], Tensor, bool]] = {}

    @property
    def _term(self) -> Term:
        if self.structure.outdated is not None:
            raise ValueError(f"{self.name}: {self.structure.outdated}")
        return self._own_term

    @property
    def size(self) -> int:
        """Current number of neurons."""
        return size(self._term)

    @property
    def atom(self) -> Atom:
        """The atom that is resized when the width grows."""
        return next(leaves(self._term))

    @property
    def growable(self) -> bool:
        """Whether the width can grow now."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why the width cannot grow now; None if it can."""
        why = self.why
        return None if why is None else why.text

    @property
    def why(self) -> Reason | None:
        """The reason why the width cannot grow now, with its kind; None if it can."""
        return self.obstacle()

    def obstacle(self, allowed: Container[Kind] = ()) -> Reason | None:
        """The reason why the width cannot grow now, apart from those of kinds that do not matter; None if it can."""
        if (fixed := self._fixed) is not None:
            return fixed
        return next((each for each in self.structure.current_reasons(self.atom) if each.kind not in allowed), None)

    @property
    def fixed(self) -> str | None:
        """Why the width can never grow or shrink; None if it can."""
        why = self._fixed
        return None if why is None else why.text

    @property
    def _fixed(self) -> Reason | None:
        """The most specific of all reasons."""
        reasons = [reason for atom in leaves(self._term) for reason in atom.fixed]
        if not reasons:
            return None
        reason = self._of_hidden_layer(min(reasons, key=lambda each: each.kind.vagueness))
        term = resolve(self._term)
        return replace(reason, text=f"{reason.text} (as {term})") if isinstance(term, Product) else reason

    def _of_hidden_layer(self, reason: Reason) -> Reason:
        """Say if a size of the model's input or output is also that of a hidden layer, as the remedy differs."""
        producers, consumers = self.producers, self.consumers
        if reason.kind is Kind.INPUT and producers:
            text = f"a size of the model's input, which is combined with what {producers[0].module} produces"
            return Reason(text, Kind.JOINED)
        if reason.kind is Kind.OUTPUT and producers and consumers:
            text = f"a size of the model's output, as the model returns what {consumers[0].module} reads"
            return Reason(text, Kind.RETURNED)
        return reason

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
        """Positions that each neuron owns on one of the width's axes, of shape (size, per neuron)."""
        return self._cached_positions(axis)[1]

    def positions_after(self, axis: Axis, count: int) -> Tensor:
        """Positions that each neuron would own after growing by `count`, of shape (size + count, per neuron)."""
        term, atom = self.structure.axes[axis.tensor][axis.axis], self.atom
        return positions_of(term, atom, {atom: atom.size + count})

    def new_positions(self, axis: Axis, count: int) -> Tensor:
        """Positions that `count` new neurons would own on an axis, of shape (count, per neuron)."""
        return self.positions_after(axis, count)[self.size :]

    def in_order(self, axis: Axis) -> bool:
        """Whether the neurons own the whole axis, in order."""
        return self._cached_positions(axis)[2]

    def _cached_positions(self, axis: Axis) -> tuple[tuple[int, ...], Tensor, bool]:
        atom, term = self.atom, self.structure.axes[axis.tensor][axis.axis]
        sizes = tuple(leaf.size for leaf in leaves(term))
        known = self._positions.get(axis)
        if known is None or known[0] != sizes:
            positions = positions_of(term, atom)
            in_order = torch.equal(positions.flatten(), torch.arange(size(term)))
            known = self._positions[axis] = sizes, positions, in_order
        return known

    def neurons(self, axis: Axis, tensor: Tensor) -> Tensor:
        """Entries of a parameter, or of a tensor of its shape, by neuron: (size, per neuron, ...)."""
        rows, positions = tensor.movedim(axis.axis, 0), self.positions(axis)
        if self.in_order(axis):
            return rows.reshape(*positions.shape, *rows.shape[1:])
        return rows[positions.to(rows.device)]

    def norms(self, axis: Axis, tensor: Tensor) -> Tensor:
        """Norm of each neuron's entries in a parameter, or in a tensor of its shape."""
        part = self.neurons(axis, tensor)
        norms: Tensor = torch.linalg.vector_norm(part, dim=tuple(range(1, part.ndim)))
        return norms

    def new_entries(
        self, axis: Axis, count: int, tensor: Tensor, generator: torch.Generator | None, fan_in: FanIn | None = None
    ) -> Tensor:
        """Default values of `count` new neurons on one of the width's axes, ordered by position."""
        return self.structure.new_entries(self.atom, axis.tensor, axis.axis, count, tensor, generator, fan_in)

    def _axes(self, *roles: str) -> list[Axis]:
        return [axis for axis in self.structure.axes_of(self._term) if axis.role in roles]

    def __repr__(self) -> str:
        return f"Width({self.name!r}, size={self.size}, " + ("growable)" if self.growable else f"fixed: {self.reason})")


class Widths:
    """All widths of a model: iterate over them, look one up by name, or print them as a table.

    Sizes stay current while `neurogenesis.grow` and `neurogenesis.shrink` change the model.
    """

    def __init__(self, widths: Sequence[Width], structure: Structure):
        self._widths = {width.name: width for width in widths}
        self.structure = structure

    def __getitem__(self, name: str) -> Width:
        if name in self._widths:
            return self._widths[name]
        found = [w for w in self if any(axis.module == name for axis in w.producers)]
        found = [w for w in found if w.growable] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(f"{name!r} produces several widths: {', '.join(repr(w.name) for w in found)}")
        near = difflib.get_close_matches(name, self._widths, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see print(widths) for the names"
        raise KeyError(f"no width is called {name!r}; {hint}")

    def __contains__(self, name: object) -> bool:
        return name in self._widths

    def __iter__(self) -> Iterator[Width]:
        return iter(self._widths.values())

    def __len__(self) -> int:
        return len(self._widths)

    @property
    def growable(self) -> list[Width]:
        return [width for width in self if width.growable]

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each width that can be resized."""
        return {width.name: width.size for width in self if width.fixed is None}

    @property
    def resizes(self) -> list[tuple[str, int | list[int]]]:
        """Neurons that have been added to widths, or the indices of those removed, in a model with unused layers."""
        names = {width.atom: width.name for width in self if width.fixed is None}
        return [(names[atom], change) for atom, change in self.structure.resizes]

    @resizes.setter
    def resizes(self, saved: Sequence[tuple[str, int | list[int]]]) -> None:
        self.structure.resizes = [(self[name].atom, change) for name, change in saved]

    def differs_from(self, model: nn.Module) -> str | None:
        """What has changed in the model since its widths were found, other than by growing or shrinking."""
        return self.structure.differs_from(model)

    @property
    def why_none(self) -> str | None:
        """Why the model has no widths at all; None if it has some."""
        if self._widths:
            return None
        fixed = {atom: name for name, axes in self.structure.axes.items() for term in axes for atom in leaves(term)}
        unknown = [
            f"; {name} is {why}" for atom, name in fixed.items() for why in atom.fixed if why.kind is Kind.NO_RULE
        ]
        what = "no layer reads the output of another one: put a hidden layer between input and output"
        return what + "".join(dict.fromkeys(unknown))

    def __str__(self) -> str:
        if self.why_none is not None:
            return f"no widths: {self.why_none}"
        rows = []
        for width in self:
            lists = [_join_names(axes) for axes in (width.producers, width.carriers, width.consumers)]
            rows.append((width.name, str(width.size), *lists, "yes" if width.growable else f"no: {width.reason}"))
        return table(("width", "size", "producers", "carriers", "consumers", "can grow"), rows)

    __repr__ = __str__


def _join_names(axes: Sequence[Axis]) -> str:
    names = list(dict.fromkeys(map(str, axes)))
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def widths(model: nn.Module, example: Examples, *, tie: Sequence[str | Sequence[str]] = ()) -> Widths:
    """Find every width of a model from one example input.

    The model is run in evaluation and in training mode to label the axes of all tensors, and again with every
    width grown to verify that it still runs and that its outputs do not change. The model itself is not changed.

    Args:
        model: any module.
        example: an input the model accepts: a tensor, a tuple of arguments or a dict of keyword arguments. Or a list of
            several, which together use all layers.
        tie: groups of patterns such as ``[["layer1.*"]]``; widths whose producers match a pattern of the same group
            grow together. They must have the same size.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> ng.widths(model, torch.randn(1, 4))["0"]
        Width('0', size=8, growable)
    """
    with ordinary_tensors():
        found = find_widths(unwrapped(model), examples_in(example), tie)
    return publish(found, unwrapped(model))


def find_widths(
    model: nn.Module,
    examples: Sequence[Example],
    tie: Sequence[str | Sequence[str]] = (),
    tensors: Mapping[str, Tensor] | None = None,
    known: Structure | None = None,
) -> Widths:
    """The widths of a model.

    Args:
        model: the model.
        examples: its inputs.
        tie: groups of widths that grow together, as in `widths`.
        tensors: what the model is run with in place of its own parameters and buffers; they may have other shapes.
        known: what is known of the model already, from other examples; it becomes part of the result.
    """
    tensors = named_tensors(model) if tensors is None else tensors
    check_supported(model, tensors)
    parameters = dict(model.named_parameters())
    structure = known or Structure(model, {name: [Atom(n) for n in own.shape] for name, own in tensors.items()})
    axes = structure.axes
    perturb = partial(perturbed, tensors, parameters)
    operations: dict[Any, list[tuple[str, Axes]]] = {}
    outputs: dict[Run, Any] = {}
    used = set[str]() if known is None else tensors.keys() - known.unused
    called: set[nn.Module] = set()
    for noisy, number, training in product((True, False), range(len(examples)), (False, True)):
        if not noisy and not (structure.by_values and tensors.keys() - used):
            continue  # else noise might keep experts from being used
        if number == 0 and not training:
            base = perturb(noisy)
        run = Run(number, training, noisy)
        copies = with_copied_buffers(base, parameters)
        tracer = Tracer(model, copies, axes, strict=False)
        try:
            outputs[run] = trace(model, examples[number], tracer, copies, training)
        except RuleError:
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error, Rejected) else error
            message = f"{type(cause).__name__}: {cause}"
            if not training:
                raise ValueError(f"the model rejects the example: {message}") from cause
            _warn(f"the model fails in training mode on this example ({message}): layers used only then are ignored")
            continue
        for tensor in tensors_in(outputs[run]):
            for term in tracer.label(tensor).axes:
                fix(term, Reason("a size of the model's output", Kind.OUTPUT))
        for key, seen in tracer.operations.items():
            operations.setdefault(key, []).extend(seen)
        structure.add(tracer, copies)
        used |= tracer.used
        called |= tracer.called
        structure.by_values |= tracer.by_values
    if next(tensors_in(outputs), None) is None:
        raise ValueError("the model's output holds no tensor: return tensors, or tuples, lists or dicts of tensors")
    # Of quantized weights, operations see the tensors inside.
    quantized = [name for name, own in parameters.items() if type(own.detach()) is not Tensor]
    used |= {name for name in quantized if _owner(model, name) in called}
    structure.unused = frozenset(name for name in tensors if name not in used)
    idle = [each.idle(model) for each in extensions(model)]
    unused = [name for name in parameters if name not in used and not any(name in names for names in idle)]
    still = {name for name in unused if _can_be_called(model, name, called)}
    structure.not_called = frozenset(still if known is None else still & known.not_called)
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        names = f"{', '.join(unused[:3])}{more}"
        remedy = "pass a list of inputs that together use all layers, as example=[...]"
        _warn(f"the example does not use {names}: widths there cannot be found; if other inputs do, {remedy}")
    fix_modules(model, axes)
    fix_parametrized(model, axes)
    fix_shared(named_tensors(model), axes)
    fix_by_role(structure, parameters)
    for extension in extensions(model):
        extension.limit(model, structure)
    for group in tie:
        tie_widths(structure, [group] if isinstance(group, str) else list(group))
    del base, copies, tracer  # free memory for the grown copy
    rehearse(structure, operations, partial(attempt_growth, model, examples, structure, perturb, outputs))
    hold_unused(structure, model)
    return Widths(_named_widths(structure), structure)


def _can_be_called(model: nn.Module, parameter: str, called: Container[nn.Module]) -> bool:
    """Whether a parameter belongs to a module that is still to be called, unlike a list of parameters."""
    owner = _owner(model, parameter)
    return owner not in called and not isinstance(owner, (nn.ParameterList, nn.ParameterDict))


def _owner(model: nn.Module, parameter: str) -> nn.Module:
    return model.get_submodule(parameter.rpartition(".")[0])


def publish(found: Widths, model: nn.Module) -> Widths:
    """Make widths the known ones of a model, and keep their sizes current from now on."""
    _LAST_WIDTHS[model] = found
    register(found.structure, model)
    return found


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def last_widths(model: nn.Module) -> Widths | None:
    """The widths of a model as the last search found them; None if there was none, or the model has changed since."""
    known = _LAST_WIDTHS.get(unwrapped(model))
    return None if known is None or known.differs_from(unwrapped(model)) is not None else known


def known_widths(
    model: nn.Module, example: Examples | Callable[[], Examples] | None, *, tie: Sequence[str | Sequence[str]] = ()
) -> Widths:
    """The widths of a model as the last search found them; found anew for ties, or if the model has changed since.

    Args:
        model: the model.
        example: an input of the model, or a function that returns one; None raises ValueError if it is needed.
        tie: groups of widths that grow together, as in `widths`.
    """
    known = _LAST_WIDTHS.get(unwrapped(model))
    problem = "its widths are not known yet" if known is None else known.differs_from(unwrapped(model))
    if known is not None and problem is None and not tie:
        return known
    return widths(model, example_for(example, problem), tie=tie)


def example_for(example: Examples | Callable[[], Examples] | None, problem: str | None) -> Examples:
    """The example with which widths must be found because of a problem; raises ValueError if it is None."""
    if example is None:
        raise ValueError(f"{problem}: call widths(model, example) first, or pass example=")
    return example() if callable(example) else example


def check_supported(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{path or 'the model'} is a scripted module and cannot be resized: use the original module"
            )
    for name, tensor in tensors.items():
        if hasattr(tensor, "device_mesh"):
            raise ValueError(
                f"{name} is sharded over several devices, as by fully_shard (FSDP2) or tensor parallelism, and cannot "
                "be resized: use DistributedDataParallel"
            )
        if is_lazy(tensor):
            raise ValueError(f"{name} is lazy and not yet initialized: run the model once on real data first")
        if tensor.is_meta:
            raise ValueError(f"{name} is on the meta device: materialize it first, such as with model.to_empty(...)")
        if tensor.is_inference() and isinstance(tensor, nn.Parameter):
            raise ValueError(f"{name} was created in inference mode and cannot be trained: create the model outside it")


# --- names -----------------------------------------------------------------------------------------------


def _named_widths(structure: Structure) -> list[Width]:
    """Create all widths, named after their first producer and numbered if one layer produces several."""
    bases: dict[Term, str] = {}
    for wanted in ("producer", "consumer"):
        named = {atom for term in bases for atom in leaves(term)}
        for name, axes in structure.axes.items():
            for number, term in enumerate(axes):
                if structure.role(name, number)[0] == wanted:
                    base = layer_of(name) if wanted == "producer" else f"input of {layer_of(name)}"
                    for part in _parts(term):
                        if named.isdisjoint(leaves(part)):
                            bases.setdefault(part, base)
    result = []
    taken: Counter[str] = Counter()
    growable = {term for term in bases if not any(atom.fixed for atom in leaves(term))}
    order = {name: number for number, name in enumerate(dict.fromkeys(bases.values()))}
    for term in sorted(bases, key=lambda term: (order[bases[term]], term not in growable)):
        taken[bases[term]] += 1
        suffix = f"#{taken[bases[term]]}" if taken[bases[term]] > 1 else ""
        result.append(Width(bases[term] + suffix, term, structure))
    return result


def _parts(term: Term) -> Iterator[Term]:
    """Yield the growable atoms of an axis and the fixed terms between them, except fixed factors of growable ones."""
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
