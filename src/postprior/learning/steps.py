"""Gradient steps on one posterior: the optimizer, its rates, its precision, and how a step is averaged over samples."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from postprior import distributed
from postprior.batch import Batch, IndexedPart, Part
from postprior.errors import DivergedError, SettingError
from postprior.families import Draw
from postprior.learning.checkpoint import Saved, inside, put_back, under
from postprior.learning.checks import outputs_of, targets_of
from postprior.learning.graph import Item, RecordedStep, recordable
from postprior.learning.likelihoods import Likelihood
from postprior.learning.objective import Step, Term, objective
from postprior.learning.settings import Precision, Settings
from postprior.learning.shards import Shard
from postprior.networks.drawing import ShardedNetwork, Trainable

STEPS_BETWEEN_LOOKS = 50
"""On an accelerator, looking at the loss stops the queue: it is looked at this often. On the CPU, at every step."""

STEPS_BEFORE_RECORDING = 3
"""Libraries choose their kernels and take their workspaces in the first steps, which a recording must not contain."""


class Stepper:
    """Gradient steps on one posterior: the optimizer, its rates and its precision."""

    def __init__(
        self,
        posterior: Trainable,
        part: Part,
        likelihood: Likelihood,
        terms: Mapping[str, Term],
        settings: Settings,
        num_examples: int,
        num_steps: int,
    ) -> None:
        self._part = part
        self._weight = part.weight if isinstance(part, Shard) else 1.0
        self._posterior, self._likelihood, self._terms = posterior, likelihood, terms
        self._settings, self._num_examples, self.num_steps = settings, num_examples, num_steps
        self._device, self._dtype = posterior.device, posterior.dtype
        self._optimizer = adam(posterior, settings)
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        # Only half precision is too narrow for gradients as they are.
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=settings.precision == "float16")
        self._look_every = 1 if self._device.type == "cpu" else STEPS_BETWEEN_LOOKS
        self._records = uses_graph(settings, self._device)
        self._recorded: RecordedStep | None = None
        self._left = torch.ones((), device=self._device, dtype=torch.float64)
        """The share of steps that are left, for recorded steps, which cannot read a number of Python's."""
        self._latest = torch.zeros((), device=self._device, dtype=self._dtype)
        self.step, self.nelbo = 0, math.nan
        self._first = 0
        """The first step that this process took."""
        self.sums = {name: torch.zeros_like(self._latest) for name in terms}
        """Each term in nats, added up since they were last set to zero."""

    def items(self, order: torch.Generator) -> Iterator[Tensor] | Iterator[Batch]:
        """What one pass over the part takes its steps on; numbers of examples, where they have numbers."""
        size = self._settings.batch_size
        # An augmentation may do other work every time, which cannot be recorded with the step.
        if isinstance(self._part, IndexedPart) and self._settings.augment is None:
            return self._part.chunks(size, order)
        return self._part.batches(size, order)

    def take(self, item: Item) -> None:
        """One step."""
        if isinstance(item, Batch):
            item = item.to(self._device, self._dtype)
            if self._settings.augment is not None and item.args:
                item = Batch((self._settings.augment(item.args[0]), *item.args[1:]), item.kwargs, item.targets)
        warm = self.step - self._first >= STEPS_BEFORE_RECORDING
        if self._records and self._recorded is None and warm and recordable(item):
            self._recorded = RecordedStep(self._step, item, self._posterior.generator)
        if self._recorded is not None and self._recorded.fits(item):
            self._recorded.replay(item)
        else:
            self._step(item)
        self._look()
        self.step += 1

    def state(self) -> Saved:
        """What the next step depends on, where its item and the global generators are given."""
        tensors = {
            **under("posterior", self._posterior.tensors()),
            **under("sums", self.sums),
            "left": self._left,
            "generator": self._posterior.generator.get_state(),
        }
        for number, slots in self._optimizer.state_dict()["state"].items():
            tensors |= under(f"optimizer/{number}", slots)
        return tensors, {"step": self.step, "nelbo": self.nelbo, "scaler": self._scaler.state_dict()}

    def load_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Go on from such a state; before the first step, since a recorded one would keep what it was recorded with."""
        put_back(self._posterior.tensors(), inside("posterior", tensors))
        put_back({**self.sums, "left": self._left}, {**inside("sums", tensors), "left": tensors["left"]})
        self._posterior.generator.set_state(tensors["generator"])
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in inside("optimizer", tensors).items():
            number, _, key = name.partition("/")
            if int(number) >= len(self._parameters) or value.shape not in ((), self._parameters[int(number)].shape):
                raise SettingError(
                    "the checkpoint keeps the optimizer's state in another order: resume it with the code that saved "
                    "it, or begin anew"
                )
            slots.setdefault(int(number), {})[key] = _slot(key, value, self._parameters[int(number)])
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": slots})
        self._scaler.load_state_dict(about["scaler"])
        self.step, self.nelbo, self._first = about["step"], about["nelbo"], about["step"]

    def _step(self, item: Item) -> None:
        if isinstance(item, Tensor):
            assert isinstance(self._part, IndexedPart)
            item = self._part.fetch(item).to(self._device, self._dtype)
        self._set_rates()
        loss, nats = self._loss(item)
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
        self._posterior.settle()
        self._average([loss.detach(), *nats.values()])
        self._latest.copy_(loss.detach())
        for name, value in nats.items():
            self.sums[name].add_(value)
        if self._settings.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            self._clip(self._settings.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def _average(self, figures: list[Tensor]) -> None:
        """Slopes and figures become the means over all processes, which then take the same step.

        DistributedDataParallel does this in hooks of autograd, before ``settle`` has written the slopes of the weights
        that are gathered: these it would miss. They lie in two long vectors already, which need no bucket.
        """
        if distributed.size() > 1:
            # The slopes of a share are those of all processes together already.
            whole = [] if isinstance(self._posterior, ShardedNetwork) else self._parameters
            # What this process did not use, another may have.
            for parameter in whole:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            distributed.average([*(p.grad for p in whole if p.grad is not None), *figures])

    def _clip(self, largest: float) -> None:
        if not isinstance(self._posterior, ShardedNetwork):
            nn.utils.clip_grad_norm_(self._parameters, largest)
            return
        slopes = [p.grad for p in self._parameters if p.grad is not None]
        norm = math.sqrt(distributed.total(sum(float(slope.square().sum(dtype=torch.float64)) for slope in slopes)))
        for slope in slopes:
            slope.mul_(min(1.0, largest / (norm + 1e-6)))  # as torch's own function does

    def _set_rates(self) -> None:
        if self._settings.schedule == "constant":
            return
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(rate * self._left)
            else:
                group["lr"] = rate * (1 - self.step / self.num_steps)
        self._left.sub_(1 / self.num_steps)

    def _loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        samples = list(self._samples(batch))
        loss = _mean([loss for loss, _ in samples])
        return loss, {name: _mean([nats[name] for _, nats in samples]) for name in self._terms}

    def _samples(self, batch: Batch) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        for done in range(0, self._settings.num_samples, 2):
            draws = self._posterior.draw()
            yield self._sampled(draws, batch)
            if done + 1 < self._settings.num_samples:
                with self._posterior.mirroring():
                    yield self._sampled(self._posterior.mirrored(draws), batch)

    def _sampled(self, draws: Mapping[str, Draw], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        with _autocast(self._device, self._settings.precision):
            outputs = outputs_of(self._posterior, draws, batch, 0)
        outputs = outputs.to(self._dtype) if outputs.is_floating_point() else outputs
        targets = self._likelihood.check(outputs, targets_of(batch, 0), 0)
        return objective(self._terms, Step(batch, targets, outputs, draws, self._num_examples, self._weight))

    def _look(self) -> None:
        last = self.step == self.num_steps - 1
        if self.step % self._look_every and not last:
            return
        self.nelbo = float(self._latest)
        if not math.isfinite(self.nelbo):
            raise DivergedError(
                f"the loss became {self.nelbo} at step {self.step + 1} of {self.num_steps}; the belief is as it was. "
                "Lower learning_rate or spread_rate, or set clip_norm=1"
            )


def adam(posterior: Trainable, settings: Settings) -> torch.optim.Adam:
    """Adam with default moments over everything that learns, widths at a rate of their own."""
    places: list[nn.Parameter] = []
    widths: list[nn.Parameter] = []
    if posterior.gathered:
        places.append(posterior.gathered.mu)
        widths.append(posterior.gathered.log_sd)
    for family in posterior.ungathered().values():
        for name, parameter in family.named_parameters():
            if parameter.requires_grad:
                (widths if name in family.spread else places).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": places, "lr": settings.learning_rate},
        {"params": widths, "lr": settings.learning_rate * settings.spread_rate},
    ]
    groups = [group for group in groups if group["params"]]
    # One kernel for all parameters; it does not know complex numbers.
    fused = not any(parameter.is_complex() for parameter in (*places, *widths))
    recorded = uses_graph(settings, groups[0]["params"][0].device)
    if recorded:
        for group in groups:  # a number would be recorded with the step, a tensor can change
            group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
    return torch.optim.Adam(groups, fused=fused, capturable=recorded)


def uses_graph(settings: Settings, device: torch.device) -> bool:
    """Whether steps are recorded and replayed; not where they read values back, or wait for other processes."""
    alone = distributed.size() == 1
    return settings.cuda_graph and device.type == "cuda" and settings.precision != "float16" and alone


def _mean(values: list[Tensor]) -> Tensor:
    # One value is its own mean. Between two steps of a small network Python's own time shows.
    return values[0] if len(values) == 1 else torch.stack(values).mean()


def _slot(key: str, value: Tensor, parameter: Tensor) -> Tensor:
    # A fused optimizer walks through moments as their parameter lies in memory, which need not be row by row.
    return value.clone() if key == "step" else torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _autocast(device: torch.device, precision: Precision) -> torch.autocast:
    dtype = {"float32": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]
    return torch.autocast(device.type, dtype, enabled=precision != "float32")
