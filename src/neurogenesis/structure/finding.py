"""Find the widths of a model."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .axes import Structure, layer_of, named_tensors, unwrapped
from .examples import Example, Examples, examples_in
from .extensions import extensions
from .kept import kept_of
from .labels import Site
from .limits import fix_by_role, fix_parametrized, fix_shared, hold_unused, tie_widths
from .modes import ordinary_tensors
from .outputs import named_outputs
from .reasons import Kind, Reason
from .rehearsal import Run, attempt_growth, perturbed, rehearse, with_copied_buffers
from .rules import Axes, RuleError
from .terms import Atom, Sum, Term, fix, leaves, resolve
from .tracing import Rejected, Tracer, trace
from .updates import register
from .widths import Width, Widths


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

    Axes of size 1 that reshapes add are factors of others, if they turn out to count heads that can grow. Where they do
    not, the model is traced once more without them, as they might hide what else can grow.

    Args:
        model: the model.
        examples: its inputs.
        tie: groups of widths that grow together, as in `widths`.
        tensors: run the model with these in place of its parameters and buffers; they may have other shapes.
        known: the structure found with earlier examples, which is extended.
    """
    found = _find(model, examples, tie, tensors, known)
    structure = found.structure
    singles = {site: next(leaves(term)) for site, term in structure.singles.items()}
    others = {site for site, atom in singles.items() if structure.counts.get(atom) != "heads"}  # such as windows
    plain = others | {site for site, atom in singles.items() if atom.fixed}
    if known is not None or not plain:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which the first trace has given
        again = _find(model, examples, tie, tensors, plain=frozenset(plain))
    spurious = {singles[site] for site in others if not singles[site].fixed}
    gained = len(again.growable) - (len(found.growable) - len(spurious))
    return again if gained > 0 or (spurious and gained == 0) else found


def _find(
    model: nn.Module,
    examples: Sequence[Example],
    tie: Sequence[str | Sequence[str]] = (),
    tensors: Mapping[str, Tensor] | None = None,
    known: Structure | None = None,
    plain: frozenset[Site] = frozenset(),
) -> Widths:
    tensors = named_tensors(model) if tensors is None else tensors
    check_supported(model, tensors)
    parameters = dict(model.named_parameters())
    structure = known or Structure(model, _own_axes(tensors, parameters))
    structure.plain |= plain
    axes = structure.axes
    perturb = partial(perturbed, tensors, parameters)
    operations: dict[Any, list[tuple[str, Axes]]] = {}
    outputs: dict[Run, list[Tensor]] = {}
    used = set[str]() if known is None else tensors.keys() - known.unused
    called: set[nn.Module] = set()
    for noisy, number, training in product((True, False), range(len(examples)), (False, True)):
        if not noisy and not (structure.by_values and tensors.keys() - used):
            continue  # else noise might keep experts from being used
        if number == 0 and not training:
            base = perturb(noisy)
        run = Run(number, training, noisy)
        copies = with_copied_buffers(base, parameters)
        tracer = Tracer(model, copies, axes, strict=False, plain=structure.plain)
        try:
            named = named_outputs(model, trace(model, examples[number], tracer, copies, training))
            outputs[run] = [tensor for _, tensor in named]
        except RuleError:
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error, Rejected) else error
            message = f"{type(cause).__name__}: {cause}"
            if not training:
                raise ValueError(f"the model rejects the example: {message}") from cause
            _warn(f"the model fails in training mode on this example ({message}): layers used only then are ignored")
            continue
        for output, tensor in named:
            for term in tracer.label(tensor).axes:
                fix(term, Reason("a size of the model's output", Kind.OUTPUT, output))
        for key, seen in tracer.operations.items():
            operations.setdefault(key, []).extend(seen)
        structure.add(tracer, copies)
        if number == 0:  # in training mode, if that works
            structure.work = tracer.work
        used |= tracer.used
        called |= tracer.called
        structure.by_values |= tracer.by_values
    if not any(outputs.values()):
        raise ValueError("the model's output holds no tensor: return tensors, or tuples, lists or dicts of tensors")
    if unused := _note_unused(structure, model, tensors, used, called, known):
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        names = f"{', '.join(unused[:3])}{more}"
        remedy = "pass a list of inputs that together use all layers, as example=[...]"
        _warn(f"the example does not use {names}: widths there cannot be found; if other inputs do, {remedy}")
    fix_parametrized(model, axes)
    fix_shared(model, axes)
    fix_by_role(structure, parameters)
    for extension in extensions(model):
        extension.limit(model, structure)
    for group in tie:
        tie_widths(structure, [group] if isinstance(group, str) else list(group))
    del base, copies, tracer  # free memory for the grown copy
    rehearse(structure, operations, partial(attempt_growth, model, examples, structure, perturb, outputs))
    hold_unused(structure, model)
    return Widths(_named_widths(structure), structure)


def _own_axes(tensors: Mapping[str, Tensor], parameters: Container[str]) -> dict[str, Axes]:
    return {name: [Atom(length, own=name in parameters) for length in own.shape] for name, own in tensors.items()}


def _note_unused(
    structure: Structure,
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    used: set[str],
    called: Container[nn.Module],
    known: Structure | None,
) -> list[str]:
    """Note in a structure what no example has used; returns the parameters that another input may use."""
    parameters = dict(model.named_parameters())
    # Operations see the tensors inside quantized weights, not the weights.
    quantized = [name for name, own in parameters.items() if type(own.detach()) is not Tensor]
    used = used | {name for name in quantized if _owner(model, name) in called}
    structure.unused = frozenset(name for name in tensors if name not in used)
    idle = [each.idle(model) for each in extensions(model)]
    unused = [name for name in parameters if name not in used and not any(name in names for names in idle)]
    still = {name for name in unused if _can_be_called(model, name, called)}
    structure.not_called = frozenset(still if known is None else still & known.not_called)
    return unused


def _can_be_called(model: nn.Module, parameter: str, called: Container[nn.Module]) -> bool:
    """Whether a parameter belongs to a module that is still to be called, unlike a list of parameters."""
    owner = _owner(model, parameter)
    return owner not in called and not isinstance(owner, (nn.ParameterList, nn.ParameterDict))


def _owner(model: nn.Module, parameter: str) -> nn.Module:
    return model.get_submodule(parameter.rpartition(".")[0])


def publish(found: Widths, model: nn.Module) -> Widths:
    """Make widths the known ones of a model, and keep their sizes current from now on."""
    kept_of(model).widths = found
    register(found.structure, model)
    return found


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)


def last_widths(model: nn.Module) -> Widths | None:
    """The widths of a model as the last search found them; None if there was none, or the model has changed since."""
    known: Widths | None = kept_of(unwrapped(model)).widths
    return None if known is None or known.differs_from(unwrapped(model)) is not None else known


def latest_structure(model: nn.Module) -> Structure | None:
    """The structure as the last search found it, even if the model is being resized; None if there was no search."""
    known: Widths | None = kept_of(unwrapped(model)).widths
    return None if known is None else known.structure


def known_widths(
    model: nn.Module, example: Examples | Callable[[], Examples] | None, *, tie: Sequence[str | Sequence[str]] = ()
) -> Widths:
    """The widths of a model as the last search found them; found anew for ties, or if the model has changed since.

    Args:
        model: the model.
        example: an input of the model, or a function that returns one; None raises ValueError if it is needed.
        tie: groups of widths that grow together, as in `widths`.
    """
    known: Widths | None = kept_of(unwrapped(model)).widths
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
