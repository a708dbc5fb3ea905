"""One part learned by processes of which each holds a share of the belief: ``absorb`` for what does not fit one device.

The objective, the steps and the report are those of ``absorb``; see ``networks.drawing`` for how a share learns.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from postprior import distributed
from postprior.batch import Batch, Part
from postprior.errors import BeliefError, PartError, SettingError, StoppedError
from postprior.learning import objective
from postprior.learning.absorb import Update, accumulate_statistics, check_alike, numbered
from postprior.learning.checkpoint import identity_of
from postprior.learning.checks import check_finite, outputs_of, targets_of
from postprior.learning.likelihoods import Likelihood
from postprior.learning.predict import Score
from postprior.learning.settings import Settings
from postprior.learning.shards import of_all, own_share
from postprior.learning.training import Progress, train
from postprior.maths import seeds
from postprior.networks import normalisation
from postprior.networks.bayesian import LIKELIHOOD, likelihood_values
from postprior.networks.drawing import ShardedNetwork
from postprior.networks.sharded import ShardedBelief, check_fits_share, check_learnable, hollow, starting_share

UNSHARDED: Mapping[str, Any] = {
    "local_reparameterization": False,
    "function_space": 0.0,
    "holdout": 0.0,
    "precision": "float32",
}
"""Settings that only a whole belief can do otherwise."""


def absorb_sharded(
    network: nn.Module | Callable[[], nn.Module],
    *,
    prior: ShardedBelief,
    part: Part,
    likelihood: Likelihood,
    settings: Settings | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[ShardedBelief, Update]:
    """This process's share of the belief after one more part, and a report. All processes call it together.

    Learning happens where the prior's share lies; the network's parameters may lie elsewhere, or on the device "meta".
    A function that makes the network lets its weights go once the start is taken from them.
    ``stop`` is asked after every step; at True of any process all raise a StoppedError. There are no checkpoints.
    """
    settings, began = settings or Settings(), time.perf_counter()
    device, key, own = prior.mu.device, (seed, prior.num_parts), distributed.key()
    with distributed.agreed():
        made = network if isinstance(network, nn.Module) else network()
        _check(made, prior, likelihood, settings)
        fresh = prior.num_parts == 0 or settings.start == "fresh"
        start_seed = seeds.number(*key, "start")
        start = starting_share(made, prior, settings.start_sd, start_seed) if fresh else (prior.mu, prior.log_sd)
        frame = hollow(made)
        del made
        part = own_share(part)
    check_alike(part, partial(identity_of, prior, likelihood, settings, seed, {}, device.type))
    with seeds.quarantined(device, *key, "torch", *own):
        before = _score(frame, prior, part, likelihood, settings, seeds.number(*key, "before"))
        mu, log_sd = start if fresh else (prior.mu.clone(), prior.log_sd.clone())
        posterior = ShardedNetwork(frame, prior, mu, log_sd, seeds.stream(device, *key, "weights", *own))
        distributed.broadcast(posterior.network.buffers())
        terms = {
            "data": objective.negative_log_likelihood(likelihood),
            "kl": objective.divergence(posterior, {}, settings.temperature),
        }
        tracking = normalisation.tracking_layers(posterior.network, frozenset())
        watched = _Watch(progress, stop) if stop else progress
        with normalisation.training_mode(posterior.network, tracking):
            posterior.training = True
            order = seeds.stream("cpu", *key, "order", *own)
            trace = train(posterior, part, likelihood, terms, settings, before.num_examples, order, None, watched)
        counts = accumulate_statistics(posterior, prior.counts, part, settings, tracking)
        kl = distributed.total(float(posterior.gathered.own_kl()))
    num_examples = prior.num_examples + before.num_examples
    belief = posterior.belief(counts, num_parts=prior.num_parts + 1, num_examples=num_examples)
    update = Update(
        before=before if settings.score_samples else None,
        data_term=trace.epochs[-1].data_term,
        kl=kl,
        temperature=settings.temperature,
        num_examples=before.num_examples,
        num_steps=trace.num_steps,
        seconds=time.perf_counter() - began,
        epochs=trace.epochs,
        stopped_early=False,
    )
    return belief, update


@final
@dataclass
class _Watch:
    """Tells how far learning is, and asks whether to stop."""

    progress: Callable[[Progress], None] | None
    stop: Callable[[], bool]

    def __call__(self, progress: Progress) -> None:
        if self.progress:
            self.progress(progress)
        # Several processes do what one of them wants to.
        if distributed.largest(float(self.stop())):
            raise StoppedError(
                f"absorption was stopped on request at step {progress.step} of {progress.num_steps}; a belief that is "
                "sharded leaves no checkpoint, so that it begins anew"
            )


def _check(network: nn.Module, prior: ShardedBelief, likelihood: Likelihood, settings: Settings) -> None:
    for name, value in UNSHARDED.items():
        if (found := getattr(settings, name)) != value:
            raise SettingError(f"{name}={found!r} needs a whole belief, and this one is sharded: leave it at {value!r}")
    if settings.cuda_graph:
        raise SettingError("cuda_graph=True records a step of a whole belief, and this one is sharded: leave it out")
    prior.check_here()
    check_learnable(network)
    check_fits_share(network, prior)
    for name in likelihood.unknowns():
        if LIKELIHOOD + name not in prior.cut.shapes:
            raise BeliefError(
                f"{type(likelihood).__name__}'s {name} is to be learned, but the belief says nothing of it: "
                "make the first belief with unknowns=likelihood.unknowns(), or give the likelihood a known value"
            )


@contextmanager
def _numbering() -> Generator[None]:
    """What is said of examples, with what their numbers mean."""
    try:
        yield
    except PartError as error:
        raise numbered(error) from error


@torch.no_grad()
def _score(
    network: nn.Module, prior: ShardedBelief, part: Part, likelihood: Likelihood, settings: Settings, seed: int
) -> Score:
    """The part under the old belief: every process meets its examples with the same weight samples."""
    asked = ShardedNetwork(network, prior, prior.mu, prior.log_sd, seeds.stream(prior.mu.device, seed, "predict"))
    asked.network.eval()

    def batches() -> Iterator[Batch]:
        return (batch.to(asked.device, asked.dtype) for batch in part.batches(settings.batch_size))

    # What one process refuses has to be told before the others wait for it in the middle of the network.
    with distributed.agreed(), _numbering():
        first = 0
        for batch in batches():
            check_finite(batch, first)
            first += len(targets_of(batch, first))
    num_samples = max(1, settings.score_samples)  # one is needed to check the examples
    nll, correct, graded, first = 0.0, 0.0, True, 0
    for batch in batches():
        # The same samples for every batch.
        generator = seeds.stream(prior.mu.device, seed, "predict")
        log_probs, means, targets = list[Tensor](), list[Tensor](), targets_of(batch, first)
        for _ in range(num_samples):
            draws = asked.draw(generator)
            outputs = outputs_of(asked, draws, batch, first)
            with distributed.agreed(), _numbering():
                targets = likelihood.check(outputs, targets, first)
            values = likelihood_values(draws)
            log_probs.append(likelihood.log_prob(outputs, targets, values))
            means.append(likelihood.predictive(outputs, values).mean)
        nll -= float((torch.stack(log_probs).logsumexp(0) - math.log(num_samples)).double().sum())
        right = likelihood.correct(torch.stack(means).mean(0), targets)
        graded, correct = right is not None, correct + (0.0 if right is None else float(right.double().sum()))
        first += len(batch)
    return of_all(Score(nll / first, correct / first if graded else None, first))
