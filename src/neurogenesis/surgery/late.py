"""Resize layers that no example used when they are first called, to the present sizes of the model."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from ..structure.axes import named_tensors
from ..structure.completing import Resize
from ..structure.edits import grouped
from ..structure.widths import Widths
from .plan import Plan, Surgery


def resize_late_layers(surgery: Surgery, found: Widths, unused: Container[str], resizes: Sequence[Resize]) -> None:
    """Repeat earlier resizes on parameters that were not used at that time.

    New entries of consumers are zero, so that the layer's outputs do not change.

    Args:
        surgery: the surgery of the model.
        found: the model's widths at their initial sizes; afterwards at the present sizes, with the record of resizes.
        unused: parameters and buffers that were not used before.
        resizes: all resizes since the beginning.
    """
    structure, generator = found.structure, torch.Generator().manual_seed(0)
    tensors = {name: own.detach() for name, own in named_tensors(surgery.model).items()}
    for atom, change in resizes:
        after = atom.size + (change if isinstance(change, int) else -len(change))
        attributes = structure.attribute_changes({atom: after})
        late = [edit for edit in structure.edits(atom, change, tensors, generator) if edit.tensor in unused]
        scales = [each for each in structure.scales(atom, after - atom.size) if each.tensor in unused]
        for name, edits in grouped(late).items():
            path = name.rpartition(".")[0]
            own = tuple(each for each in attributes if each[0] == path)
            scaled = tuple(each for each in scales if each.tensor.rpartition(".")[0] == path)
            attributes = [each for each in attributes if each[0] != path]  # once, with the first of its tensors
            scales = [each for each in scales if each not in scaled]
            surgery.apply(Plan(name, atom.size, after, tuple(edits), own, scales=scaled))
        tensors.update({name: named_tensors(surgery.model)[name].detach() for name in grouped(late)})
        atom.size = after
    structure.resizes = list(resizes)
