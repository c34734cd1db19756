"""Trial runs: activations and gradients of candidate neurons in the current model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from ..passes.activations import Activations
from ..passes.measurements import Measurement
from ..passes.records import ConsumerRecord, NotFinite, Pair, check_finite
from ..passes.replay import ModelCall, Side, Watch, observe_call, replay, replays, temporary_attributes
from ..passes.routes import Route, select_neurons
from ..passes.samples import Samples
from ..structure.axes import Axis
from ..structure.paths import tensor_at
from ..structure.running import constant_calls
from ..structure.weight_norm import weight_of
from ..structure.widths import Width
from .chains import Chain, ChainRun
from .grown import Candidates, apply_weights, grown_tensors
from .looks import Pass, Recorded
from .probes import why_unsupported
from .regions import Region
from .rows import rows_match


@dataclass(frozen=True)
class Trials:
    """Runs of the model with candidates for one width, up to its consumer.

    Args:
        model: the model.
        width: the width.
        route: where the width is watched.
        measurement: the model on its latest inputs.
        chain: the shortcut to the point, if there is one.
    """

    model: nn.Module
    width: Width
    route: Route
    measurement: Measurement | None
    chain: Chain | None = None

    def activations(self, fan_in: Tensor, seed: int, gradients: bool = False) -> tuple[Activations, Activations]:
        """Activations of the present neurons, which are finite, and of candidates on the model's latest inputs."""
        found = None if gradients else self.in_chains(fan_in, seed)
        H, new = self.in_model(fan_in, seed, gradients) if found is None else found
        if not H.finite:
            raise NotFinite(f"activations of {self.width.name}")
        return H, new

    def in_model(self, fan_in: Tensor, seed: int, gradients: bool = False) -> tuple[Activations, Activations]:
        """Activations of the present neurons and of candidates, from runs of the model with both."""
        count, point = len(fan_in), self.model.get_submodule(self.route.point.module)
        positions = self.width.positions_after(self.route.point, count)
        H: dict[int, Tensor] = {}
        new: dict[int, Tensor] = {}

        def split(call: int, h: Tensor) -> None:
            if call not in H:  # of a layer called more than once, the first call counts
                H[call] = select_neurons(h, point, positions[: self.width.size])
                new[call] = select_neurons(h, point, positions[self.width.size :])

        # The point runs before its first call counts if it is also called with constants.
        route = replace(self.route, later=frozenset()) if constant_calls(point) else self.route
        with torch.set_grad_enabled(gradients):
            tensors, attributes = grown_tensors(self.model, self.width, route, count, Candidates(fan_in))
        for number, call in enumerate(self._calls):
            watch = Watch(point, self.route.side, partial(split, number))
            replay(self.model, call, [watch], tensors=tensors, attributes=attributes, seed=seed, gradients=gradients)
        with torch.set_grad_enabled(gradients):
            present, added = (Activations(list(each.values())).latest(self._limit) for each in (H, new))
        return present, added

    @torch.no_grad()
    def in_chains(self, fan_in: Tensor, seed: int) -> tuple[Activations, Activations] | None:
        """Same as `in_model`, but several times faster: candidates run alone; None if they cannot."""
        if self.chain is None or any(call.autocast is not None for call in self._calls):
            return None
        H: list[Tensor] = []
        new: list[Tensor] = []
        missing = self._limit
        with replays(self.model, seed=seed) as run:
            for call in reversed(self._calls):
                if missing <= 0:
                    break
                one = ChainRun(self.chain)
                run(call, one.watches)
                if not one.complete:
                    return None
                assert one.present is not None
                parts = one.candidates(fan_in, missing)
                new[:0] = parts
                H[:0] = one.present[-missing:].split([len(part) for part in parts])  # type: ignore[no-untyped-call]
                missing -= len(one.present)
        return Activations(H), Activations(new)

    def inputs_and_outputs(self, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs H_prev and outputs Z of the producer on the model's latest inputs, features x samples."""
        runs = [self._at_producer(call, seed) for call in self._calls]
        H_prev, Z = (torch.cat([seen[side].flatten(0, -2).T for seen in runs], 1) for side in ("input", "output"))
        check_finite([H_prev, Z], f"activations of {self.width.name}")
        return H_prev, Z

    def _at_producer(self, call: ModelCall, seed: int = 0, evaluation: bool = False) -> dict[Side, Tensor]:
        """Input and output of the producer in a call of the model, if it runs."""
        producer, seen = self.route.place(self.model, self.route.producer), dict[Side, Tensor]()

        def keep(side: Side, tensor: Tensor) -> None:
            seen.setdefault(side, tensor)  # of a layer called more than once, the first call counts

        sides: tuple[Side, Side] = ("input", "output")
        watches = [Watch(producer, side, partial(keep, side)) for side in sides]
        replay(self.model, call, watches, seed=seed, evaluation=evaluation)
        return seen

    def gradients(
        self, candidates: Candidates, fan_out: Tensor, record: ConsumerRecord, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the fan-in and fan-out of candidates, to first order: D is that of the current model.

        Args:
            candidates: the candidates.
            fan_out: their weights in the consumer, count x per neuron x the rest.
            record: inputs and gradients of training passes.
            seed: seed of random operations in the model.
        """
        total: list[Tensor] = [torch.zeros_like(candidates.fan_in), torch.zeros_like(fan_out)]
        for pair in record.pairs:
            leaves = [each.detach().clone().requires_grad_() for each in (candidates.fan_in, fan_out)]
            own = Candidates(leaves[0], candidates.bias, candidates.sources)
            points: Sequence[tuple[Axis, Side]] = [(self.route.consumer, "input")]
            (consumed,) = self.at_points(own, pair.H_prev, pair.call, points, seed, gradients=True)
            if consumed is None:
                continue
            with torch.enable_grad():
                consumer = self.model.get_submodule(self.route.consumer.module)
                output = apply_weights(consumer, consumed.to(leaves[1].dtype), leaves[1], self.route.consumer)
            gradients = torch.autograd.grad(output, leaves, pair.D.reshape(output.shape).to(output))
            total = [t + g for t, g in zip(total, gradients, strict=True)]
        return record.processes.mean(total[0]), record.processes.mean(total[1])

    @property
    def _limit(self) -> int:
        return 0 if self.measurement is None else self.measurement.items(self.width.name)

    @property
    def _calls(self) -> Sequence[ModelCall]:
        return () if self.measurement is None else self.measurement.calls_for([self.width.name])

    def at_points(
        self,
        candidates: Candidates,
        H_prev: Tensor,
        call: ModelCall,
        points: Sequence[tuple[Axis, Side]],
        seed: int = 0,
        gradients: bool = False,
    ) -> list[Tensor | None]:
        """Candidates at some points, such as consumers' inputs, in a run of the model with the producer's input given.

        Candidates have no fan-out, so everything else is as without them. None for points that the run does not reach.
        """
        wanted = len(candidates.fan_in)
        if self.width.collides(wanted):
            candidates = candidates.and_one_more
        count = len(candidates.fan_in)
        everything = replace(self.route, later=frozenset())  # a consumer may not run, so that the run goes on
        with torch.set_grad_enabled(gradients):
            tensors, attributes = grown_tensors(self.model, self.width, everything, count, candidates)
        found: dict[int, Tensor] = {}
        given = [H_prev]  # for the first call of the producer
        producer = self.route.place(self.model, self.route.producer)
        watches = [Watch(producer, "input", lambda _: given.pop() if given else None)]
        for number, (axis, side) in enumerate(points):
            module = self.route.place(self.model, axis)
            watches.append(Watch(module, side, partial(self._select_new, found, number, axis, module, count, wanted)))
        replay(self.model, call, watches, tensors=tensors, attributes=attributes, seed=seed, gradients=gradients)
        return [found.get(number) for number in range(len(points))]

    def passes(
        self,
        candidates: Candidates,
        records: Sequence[ConsumerRecord],
        shortcuts: Sequence[Chain | Region | None],
        samples: Samples,
        seed: int,
        later: bool = False,
    ) -> list[list[Pass | Recorded]]:
        """For each consumer and recorded pass, its input, what candidates would add to it, and its output's gradient.

        Frozen consumers have none, because they would not learn. Nor are there passes that cannot be repeated, because
        a consumer gets random samples.

        Args:
            candidates: the candidates.
            records: the recorded passes at each consumer.
            shortcuts: the one to each consumer, if there is one.
            samples: knows the samples of the passes.
            seed: seed of random operations in the model.
            later: whether candidates are run later where that gives the same.
        """
        passes: list[list[Pass | Recorded]] = [[] for _ in records]
        by_call: dict[int, list[tuple[int, Pair]]] = {}  # in one run of the model, all consumers without a shortcut
        for number, (record, shortcut) in enumerate(zip(records, shortcuts, strict=True)):
            if not tensor_at(self.model, record.route.consumer.tensor).requires_grad:
                continue
            consumer = record.route.place(self.model, record.route.consumer)
            for pair in (each for each in record.pairs if each.H.numel()):
                usable = shortcut if record.route.side == "input" else None
                if later and isinstance(usable, Chain) and usable.runs_later(pair):
                    passes[number].append(Recorded(pair.H_prev, pair.H, pair.D, samples.of(pair.call), pair.items))
                    continue
                h = None if usable is None else usable.in_pair(candidates, pair, seed)
                if h is not None and rows_match(consumer, pair.H, h):
                    passes[number].append(Pass(pair.H, h, pair.D, samples.of(pair.call), pair.items))
                else:  # the model may have asked a transposed convolution for another size
                    by_call.setdefault(id(pair.call), []).append((number, pair))
        for pairs in by_call.values():
            points: Sequence[tuple[Axis, Side]] = [(records[number].route.consumer, "input") for number, _ in pairs]
            first = pairs[0][1]
            found = self.at_points(candidates, first.H_prev, first.call, points, seed)
            for (number, pair), each in zip(pairs, found, strict=True):
                route = records[number].route
                consumer = route.place(self.model, route.consumer)
                if each is not None and rows_match(consumer, pair.H, each):
                    passes[number].append(Pass(pair.H, each, pair.D, samples.of(pair.call), pair.items))
        return passes

    def why_not_run(self, call: ModelCall) -> str | None:
        """Why would-be neurons cannot be run up to all consumers that can be watched; None if they can."""
        H_prev = self._at_producer(call, evaluation=True).get("input")
        problem = why_unsupported(self.model, self.route, self.route.consumer)
        if problem is None and H_prev is not None:
            try:
                with temporary_attributes(self._modes(False)):
                    self.at_points(Candidates(self._random_fan_in(1)), H_prev, call, [(self.route.consumer, "input")])
            except Exception as error:  # from the model's own code, which may use neurons where hooks do not reach
                return f"the model fails with new neurons before {self.route.consumer.module}: {error}"
        return problem

    def verified_chain(self, call: ModelCall) -> Chain | None:
        """The chain to the point, if it gives the same as a run of the model, in evaluation and in training mode.

        Dropout modules are off in both, as their masks would differ; a dropout that is no module is found this way.
        """
        route = self.route
        if route.chain is None:
            return None
        H_prev = self._at_producer(call, evaluation=True).get("input")
        if H_prev is None:  # the producer does not run in evaluation mode
            return None
        chain = Chain(self.model, self.width, route)
        if H_prev.is_floating_point():  # an example of zeros would show nothing
            H_prev = torch.randn(H_prev.shape, generator=torch.Generator().manual_seed(1)).to(H_prev)
        fan_in = self._random_fan_in(3)
        same = all(self._same(chain, Candidates(fan_in), H_prev, call, training) for training in (False, True))
        return chain if same else None

    def verified_region(self, call: ModelCall) -> Region | None:
        """The region, if candidates alone in it are as in a run of the model, in evaluation and in training mode."""
        if self.route.region is None or self.route.side == "output":
            return None
        region, fan_in = Region(self.model, self.width, self.route), self._random_fan_in(2)
        return region if all(self._same_in(region, Candidates(fan_in), call, mode) for mode in (False, True)) else None

    def _same_in(self, region: Region, candidates: Candidates, call: ModelCall, training: bool) -> bool:
        """Whether a region gives the same as a run of the model, or differs in training mode by chance alone."""
        calls: list[ModelCall] = []
        handle = observe_call(region.module, calls.append)
        try:
            with temporary_attributes(self._modes(training)), torch.no_grad():
                H_prev = self._at_producer(call)["input"]
                (expected,) = self.at_points(candidates, H_prev, call, [(self.route.consumer, "input")])
                found, again = (region.in_call(candidates, H_prev, calls[-1], seed) for seed in (0, 1))
        except Exception:  # from code that may need more than its new neurons, or may not have run
            return False
        finally:
            handle.remove()
        if (
            expected is None
            or found is None
            or again is None
            or (found.shape, found.dtype) != (expected.shape, expected.dtype)
        ):
            return False
        return bool(torch.allclose(found, expected, rtol=1e-4, atol=1e-6)) or (
            training and not torch.equal(found, again)
        )

    def _modes(self, training: bool) -> list[tuple[nn.Module, str, bool]]:
        """Evaluation mode, or training mode without dropout, whose masks would differ."""
        return [(each, "training", training and not isinstance(each, _DropoutNd)) for each in self.model.modules()]

    def _random_fan_in(self, count: int) -> Tensor:
        """Random weights in the first producer."""
        axis = self.route.producer
        rows = weight_of(self.model, axis.tensor).detach().movedim(axis.axis, 0)
        noise = torch.randn(count, axis.per_neuron, *rows.shape[1:], generator=torch.Generator().manual_seed(0))
        scaled: Tensor = noise.to(rows) / rows[0].numel() ** 0.5
        return scaled

    def _same(self, chain: Chain, candidates: Candidates, H_prev: Tensor, call: ModelCall, training: bool) -> bool:
        """Whether a chain gives the same as a run of the model."""
        try:
            with temporary_attributes(self._modes(training)), torch.no_grad():
                (expected,) = self.at_points(candidates, H_prev, call, [(self.route.point, self.route.side)])
                found = chain.in_call(candidates, H_prev, call)
        except Exception:  # from a module's own code, which may need more than its new neurons or a larger batch
            return False
        return (
            expected is not None
            and (found.shape, found.dtype) == (expected.shape, expected.dtype)  # the model may use autocast inside
            and torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
        )

    def _select_new(
        self, found: dict[int, Tensor], number: int, axis: Axis, module: nn.Module, count: int, wanted: int, h: Tensor
    ) -> None:
        if number not in found:
            channel = 1 if isinstance(module, (_ConvNd, _NormBase)) else -1
            positions = self.width.new_positions(axis, count)[:wanted]
            found[number] = h.index_select(channel, positions.flatten().to(h.device))
