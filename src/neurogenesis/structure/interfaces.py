"""The interfaces of a model: sizes of its inputs and outputs, which change only when the user says so."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

from torch import Tensor, nn

from ..tables import table
from .axes import Axis, Structure, layer_of, named_tensors, unwrapped
from .examples import Example, Examples, examples_in
from .finding import known_widths, last_widths
from .kept import kept_of
from .labels import Attribute
from .modes import ordinary_tensors
from .reasons import Kind
from .rehearsal import perturbed
from .terms import Atom, leaves, resolve, size
from .trials import Pass, attributes_set, grown_tensors, run

InterfaceKind = Literal["input", "output", "tokens", "vocabulary"]
_GROWN_BY = 3  # in trials; an odd number, to avoid sizes that match by coincidence


class Interface:
    """A size of a model's inputs or outputs: its name, its size, the axes it runs through, whether it can grow.

    Args:
        name: its kind and the layer, such as ``"output of classifier"``.
        kind: ``"output"``, ``"input"`` (features), ``"tokens"`` (rows of an embedding) or ``"vocabulary"`` (these
            together with the scores that the model returns for each token).
        atoms: the sizes in the structure; a vocabulary has two if its weights are not tied.
        structure: the axes of the model's tensors.
        reason: why it cannot grow; None if it can.
    """

    def __init__(
        self, name: str, kind: InterfaceKind, atoms: tuple[Atom, ...], structure: Structure, reason: str | None = None
    ):
        self.name, self.kind, self._atoms, self.structure, self.reason = name, kind, atoms, structure, reason

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The sizes that are resized together."""
        if self.structure.outdated is not None:
            raise ValueError(f"{self.name}: {self.structure.outdated}")
        return self._atoms

    @property
    def size(self) -> int:
        """Current number of features, classes or tokens."""
        return self.atoms[0].size

    @property
    def growable(self) -> bool:
        """Whether it can grow, by hand."""
        return self.reason is None

    @property
    def axes(self) -> list[Axis]:
        """The axes of parameters and buffers that are resized."""
        return [axis for atom in self.atoms for axis in self.structure.axes_of(atom)]

    def __repr__(self) -> str:
        return f"Interface({self.name!r}, size={self.size}, " + (
            "growable)" if self.growable else f"fixed: {self.reason})"
        )


class Interfaces:
    """The interfaces of a model: iterate over them, look one up by name, or print them as a table.

    A kind, such as ``"vocabulary"``, is the name of the only one of its kind.
    """

    def __init__(self, found: Sequence[Interface], structure: Structure):
        self._found = {each.name: each for each in found}
        self.structure = structure

    def __getitem__(self, name: str) -> Interface:
        if name in self._found:
            return self._found[name]
        own = [each for each in self if each.kind == name]
        if len(own) == 1:
            return own[0]
        if own:
            raise KeyError(f"{name!r} is one of several: {', '.join(repr(each.name) for each in own)}")
        near = difflib.get_close_matches(name, self._found, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see print(interfaces) for the names"
        raise KeyError(f"no interface is called {name!r}; {hint}")

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[Interface]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        if not self._found:
            return "no interfaces: no parameter has a size of the model's input or output alone"
        rows = []
        for each in self:
            places = ", ".join(f"{axis.tensor} axis {axis.axis}" for axis in each.axes)
            rows.append((each.name, str(each.size), places, "yes" if each.growable else f"no: {each.reason}"))
        return table(("interface", "size", "axes", "grows by hand"), rows)

    __repr__ = __str__


def interfaces(model: nn.Module, example: Examples | None = None) -> Interfaces:
    """Find the sizes of a model's inputs and outputs that can grow by hand.

    A `Grower` leaves them alone. `grow` and `shrink` take their names: new classes of a classifier, new tokens of a
    vocabulary, new features of an input. Each is tried on the example first: what the model returned before must stay.

    Args:
        model: any module.
        example: an input of the model, or a list of several; required. If it has targets, of which the model computes
            a loss, the loss may change.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> [(each.name, each.size) for each in ng.interfaces(model, torch.randn(1, 4))]
        [('input of 0', 4), ('output of 2', 2)]
    """
    model = unwrapped(model)
    if example is None:
        raise ValueError("interfaces of the model are not known: call interfaces(model, example), or pass example=")
    given = example
    found = last_widths(model)
    structure = (known_widths(model, given) if found is None else found).structure
    with ordinary_tensors():
        tried = _tried(model, examples_in(given), structure)
    kept_of(model).interfaces = tried
    return tried


def known_interfaces(model: nn.Module, example: Examples | None) -> Interfaces:
    """The interfaces of a model as they were found last; found anew if the model has changed since."""
    found = last_widths(model)
    known: Interfaces | None = kept_of(unwrapped(model)).interfaces
    present = known is not None and found is not None and known.structure is found.structure
    return known if known is not None and present else interfaces(model, example)


def find_interface(model: nn.Module, width: object, example: Examples | None) -> Interface | None:
    """The interface that is meant: it, or what its name says; None if that names a width."""
    if isinstance(width, Interface):
        return known_interfaces(model, example)[width.name]
    if not isinstance(width, str) or width.partition(" of ")[0] not in get_args(InterfaceKind):
        return None
    return known_interfaces(model, example)[width]


# --- interfaces that have been resized -------------------------------------------------------------------


def resized_interfaces(model: nn.Module) -> frozenset[tuple[str, int]]:
    """The axes of tensors that have been resized although they have a size of the model's inputs or outputs."""
    return kept_of(unwrapped(model)).resized_interfaces


def interfaces_at(structure: Structure, lengths: Mapping[tuple[str, int], int]) -> dict[Atom, int]:
    """The sizes of interfaces that give axes of tensors these lengths."""
    own = {atom for *_, atom in candidates(structure)}
    found: dict[Atom, int] = {}
    for (name, axis), length in lengths.items():
        term = structure.axes[name][axis]
        for atom in own.intersection(leaves(term)):
            rest = size(term, {atom: 0})
            found.setdefault(atom, (length - rest) * atom.size // (size(term) - rest))
    return found


# --- candidates ------------------------------------------------------------------------------------------

_KINDS: dict[Kind, InterfaceKind] = {Kind.TOKENS: "tokens", Kind.INPUT: "input", Kind.OUTPUT: "output"}


def candidates(structure: Structure) -> Iterator[tuple[str, InterfaceKind, Atom]]:
    """Name, kind and atom of each size that parameters share with the model's input or output, and with no other."""
    parameters = structure.axes.keys() - structure.buffers
    taken: dict[str, int] = {}
    for atom in dict.fromkeys(atom for terms in structure.axes.values() for term in terms for atom in leaves(term)):
        kinds = {_KINDS[reason.kind] for reason in atom.fixed if reason.kind in _KINDS}
        own = [(name, axis) for name, axis in structure.places[atom] if name in parameters]
        roles = {structure.role(name, axis)[0] for name, axis in own}
        if kinds == {"tokens"} or kinds == {"output"}:
            wanted = "carrier" if kinds == {"tokens"} else "producer"
            fits = wanted in roles and "consumer" not in roles
        elif kinds == {"tokens", "output"}:
            fits = "consumer" not in roles
        else:
            fits = kinds == {"input"} and "producer" not in roles and "consumer" in roles
        if fits:
            kind: InterfaceKind = "vocabulary" if len(kinds) > 1 else next(iter(kinds))
            base = f"{kind} of {layer_of(own[0][0])}"
            taken[base] = taken.get(base, 0) + 1
            yield f"{base}#{taken[base]}" if taken[base] > 1 else base, kind, atom


# --- trials ----------------------------------------------------------------------------------------------


def _tried(model: nn.Module, examples: Sequence[Example], structure: Structure) -> Interfaces:
    """All interfaces, each tried on the examples."""
    tensors = perturbed(named_tensors(model), dict(model.named_parameters()), noisy=True)
    passes = [run(model, each, tensors, structure, training) for each in examples for training in (False, True)]
    found = [Interface(name, kind, (atom,), structure) for name, kind, atom in candidates(structure)]
    alone = {each.atoms[0]: each for each in found}
    for rows, scores in _coupled(passes, alone):
        name = alone[rows].name.replace("tokens", "vocabulary", 1)
        found.insert(0, Interface(name, "vocabulary", (rows, scores), structure))
    for each in found:
        each.reason = _reason(model, tensors, passes, each)
    return Interfaces(found, structure)


def _coupled(passes: Sequence[Pass], alone: Mapping[Atom, Interface]) -> dict[tuple[Atom, Atom], None]:
    """Pairs of rows of an embedding, and as many scores that the model returns at each position of an input."""
    pairs: dict[tuple[Atom, Atom], None] = {}
    for each in passes:
        atoms = {copy: atom for atom, copy in each.copies.items()}
        sequences = [list(map(resolve, terms)) for tensor, terms in each.inputs if not tensor.is_floating_point()]
        for _, terms in each.outputs:
            *positions, last = map(resolve, terms) if terms else [None]
            scores = atoms.get(last) if isinstance(last, Atom) else None
            if scores is not None and scores in alone and alone[scores].kind == "output" and positions in sequences:
                rows = (atom for atom, own in alone.items() if own.kind == "tokens" and atom.size == scores.size)
                pairs.update({(atom, scores): None for atom in rows})
    return pairs


def _reason(
    model: nn.Module, tensors: Mapping[str, Tensor], passes: Sequence[Pass], interface: Interface
) -> str | None:
    """Why an interface cannot grow; None if it can. Attributes that must follow are added to the structure."""
    structure, atoms = interface.structure, interface.atoms
    grown = grown_tensors(structure, atoms, _GROWN_BY, tensors)
    trial = partial(_problem, model, grown, passes, interface)
    problem = trial([])
    if problem is None:
        return None
    guessed = [each for each in _equal_attributes(model, interface) if each not in structure.attributes]
    if not guessed or trial(guessed) is not None:
        return problem
    for each in list(guessed):  # keep those without which it fails
        fewer = [other for other in guessed if other != each]
        guessed = guessed if trial(fewer) is not None else fewer
    structure.attributes += guessed
    return None


def _problem(
    model: nn.Module,
    grown: Mapping[str, Tensor],
    passes: Sequence[Pass],
    interface: Interface,
    attributes: Sequence[Attribute],
) -> str | None:
    """What changes, or why the model fails, with an interface grown; None if all is well."""
    structure, atoms = interface.structure, interface.atoms
    sizes = {atom: atom.size + _GROWN_BY for atom in atoms}
    values = structure.attribute_values(sizes)
    values += [(each.module, each.name, each.value(sizes)) for each in attributes]
    # A loss, for example, runs across all entries, and new ones contribute to it.
    across = any(reason.kind not in _ALONE for atom in atoms for reason in atom.fixed)
    seen = False
    for each in passes:
        own = {each.copies[atom]: number for atom, number in sizes.items()}
        try:
            with attributes_set(model, values):
                after = run(model, each.example_at(own), grown, structure, each.training)
        except Exception as error:
            return f"the model fails when it grows: {error.__cause__ or error}"
        if (problem := each.difference(after, own, free=across)) is not None:
            return problem
        seen |= any(atom in own for _, terms in each.outputs for term in terms for atom in leaves(term))
    if not seen and interface.kind in ("output", "vocabulary"):
        return "no output has this size: it is combined with others before the model returns it"
    return None


_ALONE = {*_KINDS, Kind.NOT_CONSUMED, Kind.NOT_PRODUCED, Kind.TIED, Kind.SIZE_ONE}


def _equal_attributes(model: nn.Module, interface: Interface) -> Iterator[Attribute]:
    """Attributes with the value of an interface, of its layers and the modules that contain them."""
    layers = [axis.tensor.rpartition(".")[0].split(".") for axis in interface.axes]
    around = {".".join(layer[:depth]) for layer in layers for depth in range(len(layer) + 1)}
    for path, module in model.named_modules():
        for name, value in vars(module).items() if path in around else ():
            if type(value) is int and value == interface.size:
                yield Attribute(path, name, interface.atoms[0])
