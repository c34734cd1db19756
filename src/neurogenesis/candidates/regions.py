"""Candidates alone, in the smallest module that has the width's producers and the way to its consumer.

That module is called again with the arguments that it got in a training pass: the same masks, positions and rotary
embeddings. It has the candidates' weights in place of the present ones, and runs until the consumer gets its input,
which is that of the candidates alone. So would-be heads cost what so many heads cost, and nothing else runs again.

Neurons that grow independently of each other allow that. It is compared with a run of the model once
(`Trials.verified_region`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..passes.records import Pair
from ..passes.replay import ModelCall, Watch, replay
from ..passes.routes import Route
from ..structure.axes import named_tensors
from ..structure.running import internal_run
from ..structure.widths import Width
from .grown import Candidates, grown_tensors
from .rows import channel_dim


@dataclass(frozen=True)
class Region:
    """A module inside a model, in which candidates of a width run alone.

    Args:
        model: the model.
        width: the width.
        route: a route with a region.
    """

    model: nn.Module
    width: Width
    route: Route

    @property
    def module(self) -> nn.Module:
        assert self.route.region is not None
        return self.model.get_submodule(self.route.region)

    def in_pair(self, candidates: Candidates, pair: Pair, seed: int) -> Tensor | None:
        """The consumer's input from candidates in a recorded pass; None if that cannot be repeated."""
        call = pair.region
        return None if call is None or not call.intact else self.in_call(candidates, pair.H_prev, call, seed)

    @torch.no_grad()
    def in_call(self, candidates: Candidates, H_prev: Tensor, call: ModelCall, seed: int = 0) -> Tensor | None:
        """The consumer's input from candidates alone; None if it does not run.

        Args:
            candidates: the candidates.
            H_prev: the first producer's input.
            call: the arguments of the region, in the same pass.
            seed: seed of random operations in the region.
        """
        count, axis = len(candidates.fan_in), self.route.consumer
        route = replace(self.route, later=frozenset({axis.module}))  # other modules there may have begun before
        tensors, attributes = grown_tensors(self.model, self.width, route, count, candidates, instead=True)
        producer, consumer = (self.model.get_submodule(own.module) for own in (self.route.producer, axis))
        given, found = [H_prev], list[Tensor]()
        watches = [
            Watch(producer, "input", lambda _: given.pop() if given else None),
            Watch(consumer, "input", found.append),
        ]
        call = call.with_tensors(call.tensors)  # containers of its own, such as a cache, to which a run may add
        with internal_run(self.model):
            replay(self.module, call, watches, tensors=self._own(tensors), attributes=attributes, seed=seed)
        if not found:
            return None
        positions = self.width.positions_with(axis, count).flatten()
        return found[0].index_select(channel_dim(consumer), positions.to(found[0].device))

    def _own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the model by their names in the region."""
        names = {id(tensor): name for name, tensor in named_tensors(self.model).items()}
        own = [
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        ]
        return {name: tensors[names[id(each)]] for name, each in own if names[id(each)] in tensors}
