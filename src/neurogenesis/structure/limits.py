"""Limits on growth that operations do not show: kinds of modules, parametrizations, shared memory, roles, ties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrizations import _Orthogonal, _SpectralNorm

from .axes import Structure, common_row, is_binary, layer_of, named_tensors
from .fills import ZERO, Fill
from .memory import blocks_of, shared_memory, shared_memory_error
from .reasons import Kind, Reason
from .rules import Axes, Role
from .terms import Atom, Product, Term, fix, leaves, resolve, unify

_PARAMETRIZATIONS: dict[type[nn.Module], str] = {
    _Orthogonal: "kept orthogonal by the parametrization of {}, which other sizes would break",
    _SpectralNorm: "divided by its spectral norm in the parametrization of {}, which new neurons would change",
}


def fix_parametrized(model: nn.Module, axes: Mapping[str, Axes]) -> None:
    """Fix weights with a property that resizing would break."""
    for path, module in model.named_modules():
        if type(module) in _PARAMETRIZATIONS:
            weight, _, _ = path.rpartition(".")
            named = weight.replace("parametrizations.", "")
            text = f"{named} is {_PARAMETRIZATIONS[type(module)].format(layer_of(named))}"
            for term in (term for name in axes if name.startswith(f"{weight}.") for term in axes[name]):
                fix(term, Reason(text, Kind.PARAMETRIZED))


def fix_shared(model: nn.Module, axes: Mapping[str, Axes]) -> None:
    """Fix tensors that share memory without being the same object."""
    for name, other in shared_memory(named_tensors(model), blocks_of(model)).items():
        for term in axes[name]:
            fix(term, Reason(shared_memory_error(name, other), Kind.SHARED_MEMORY))


def tie_widths(structure: Structure, patterns: list[str]) -> None:
    """Unify all growable widths whose producers match one of the patterns."""
    chosen: dict[Atom, str] = {}
    producers = {layer_of(name) for (name, _), (role, _) in structure.roles.items() if role == "producer"}
    for pattern in patterns:
        if not any(fnmatchcase(producer, pattern) for producer in producers):
            raise ValueError(f"tie: {pattern!r} matches no layer that produces a width")
    for (name, number), (role, _) in structure.roles.items():
        if role == "producer" and any(fnmatchcase(layer_of(name), pattern) for pattern in patterns):
            for atom in leaves(structure.axes[name][number]):
                if not atom.fixed:
                    chosen.setdefault(atom, layer_of(name))
    if not chosen:
        raise ValueError(f"tie: no layer that produces a growable width matches {patterns}")
    if len({atom.size for atom in chosen}) > 1:
        sizes = ", ".join(f"{layer} of size {atom.size}" for atom, layer in chosen.items())
        raise ValueError(f"tie: tied widths must have one size, but these match: {sizes}")
    first, *others = chosen
    for atom in others:
        unify(first, atom)


def fix_by_role(structure: Structure, parameters: Container[str]) -> None:
    """Fix widths that lack a producer or a trained consumer, are normalized across, or occur twice in a product."""
    structure.compensations.fix_contradictions()
    roles: dict[Atom, set[tuple[Role, Fill]]] = {}
    trained: Counter[Atom] = Counter()
    tied: dict[Atom, str] = {}
    for name, axes in structure.axes.items():
        for number, term in enumerate(axes):
            for atom in leaves(term):
                roles.setdefault(atom, set()).add(structure.role(name, number))
                trained[atom] += structure.role(name, number)[0] == "consumer" and name in parameters
                if (name, number) in structure.both_ways:
                    tied.setdefault(atom, name)
            place = name, number
            changed = structure.role(*place)[0] == "producer" or structure.behind_norm.get(place, False)
            if changed and place in structure.normed_across:
                fix(term, Reason(f"normalized across by the weight norm of {layer_of(name)}", Kind.NORMALIZED))
            for atom in _repeated_factors(term):
                fix(atom, Reason(f"multiplied by itself in the shape of {name}"))
    for atom in tied.keys() & structure.compensations.copied_atoms.keys():
        why = structure.compensations.copied_atoms[atom]
        text = f"{why}, and cannot be copied: {tied[atom]} is both the fan-in and the fan-out of these neurons"
        fix(atom, Reason(text, Kind.TIED))
    for atom, seen in roles.items():
        if not any(role == "producer" and fill.values == "random" for role, fill in seen):
            if atom in tied:  # such as a decoder with the transposed weight of the encoder
                text = (
                    f"{tied[atom]} is both the fan-in and the fan-out of these neurons, which would have to be random "
                    "and zero"
                )
                fix(atom, Reason(text, Kind.TIED))
            elif ("producer", ZERO) in seen:
                fix(atom, Reason("produced only by a bias"))
            else:
                fix(atom, Reason("not produced by any layer", Kind.NOT_PRODUCED))
        elif "consumer" not in {role for role, _ in seen}:
            fix(atom, Reason("not consumed by any layer", Kind.NOT_CONSUMED))
        elif not trained[atom]:
            fix(atom, Reason("consumed only by buffers, which are not trained", Kind.ONLY_BUFFERS))


def hold_unused(structure: Structure, model: nn.Module) -> None:
    """Hold the widths that layers which no example uses may be connected to.

    Such a layer may read a width of any size up to its own, alone, flattened or concatenated with others.
    """
    parameters = [name for name, _ in model.named_parameters() if name in structure.unused]
    lengths = {name: _largest_axis(model, name) for name in parameters}
    structure.held.clear()
    for atom in (each for each in growable_atoms(structure) if each not in structure.complete):
        if fitting := [name for name, length in lengths.items() if length >= atom.size]:
            nearest = min(fitting, key=lambda name: (lengths[name] % atom.size, lengths[name]))
            text = f"{layer_of(nearest)} is not used by the example and may be connected to it"
            kind = Kind.IDLE if structure.by_values else Kind.NOT_CALLED
            structure.held[atom] = Reason(text, kind if structure.not_called.issuperset(fitting) else Kind.UNUSED)


def _largest_axis(model: nn.Module, name: str) -> int:
    """The largest axis of a parameter that may belong to a width: no vocabulary, no kernel size."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    shape = getattr(module, leaf).shape
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        shape = shape[1:]
    elif isinstance(module, _ConvNd):
        shape = shape[:2]
    return max(shape, default=0)


def _repeated_factors(term: Term) -> list[Atom]:
    """Atoms that occur in several factors of a product."""
    term = resolve(term)
    if isinstance(term, Atom):
        return []
    children = term.factors if isinstance(term, Product) else term.parts
    result = [atom for child in children for atom in _repeated_factors(child)]
    if isinstance(term, Product):
        counts = Counter(atom for child in children for atom in set(leaves(child)))
        result += [atom for atom, number in counts.items() if number > 1]
    return result


def growable_atoms(structure: Structure) -> list[Atom]:
    """All atoms without a reason not to grow."""
    atoms = (atom for axes in structure.axes.values() for term in axes for atom in leaves(term))
    return [atom for atom in dict.fromkeys(atoms) if not atom.fixed]


def current_reasons(structure: Structure, atom: Atom) -> Iterator[Reason]:
    """Why a width should not grow given the current state of parameters and buffers."""
    if atom in structure.held:
        yield structure.held[atom]
    model = structure.model()
    if model is None:
        return
    if any(parameter.requires_grad for parameter in model.parameters()):  # else frozen for the time being
        yield from _frozen(structure, atom)
    for name, axis in structure.places[atom]:
        if structure.is_untrained(name, axis) and name not in structure.masks:
            rows = structure.rows(atom, name, axis, structure.tensor(name))
            discrete = not (rows.is_floating_point() or rows.is_complex())
            if (discrete or is_binary(rows)) and common_row(rows) is None:
                kind = str(rows.dtype).removeprefix("torch.")
                text = f"{name} ({kind}) differs between neurons, so there is no default value for new ones"
                yield Reason(text, Kind.DIFFERS)


def _frozen(structure: Structure, atom: Atom) -> Iterator[Reason]:
    places = structure.places[atom]
    consumers = [name for name, axis in places if structure.role(name, axis)[0] == "consumer"]
    if consumers and not any(structure.tensor(name).requires_grad for name in consumers):
        names = ", ".join(dict.fromkeys(map(layer_of, consumers)))
        text = f"its consumer {names} is frozen (requires_grad is False), so new neurons could not be trained"
        yield Reason(text, Kind.FROZEN)
    parameters = dict.fromkeys(name for name, _ in places if name not in structure.buffers)
    frozen = [name for name in parameters if not structure.tensor(name).requires_grad]
    if frozen:
        more = f" and {len(frozen) - 2} more" if len(frozen) > 2 else ""
        text = f"{', '.join(frozen[:2])}{more} would be resized, but is frozen (requires_grad is False)"
        yield Reason(text, Kind.PARTLY_FROZEN)
