"""One run of an experiment."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from postprior.data.datasets import ImageData
from postprior.learning import metrics
from postprior.learning.absorb import absorb
from postprior.learning.likelihoods import Categorical
from postprior.learning.predict import frozen_network
from postprior.learning.training import Progress
from postprior.maths import seeds
from postprior.networks.belief import Belief
from postprior.paper import records
from postprior.paper.beginnings import begin, part_of
from postprior.paper.ewc import Consolidation
from postprior.paper.experiment import Experiment
from postprior.paper.records import PartScore, Result
from postprior.paper.tasks import Images, prepare

IMAGES_AT_ONCE, ON_A_GPU = 500, 5_000
"""A GPU waits longer for the launches of many small batches than it works on them."""


def run(
    experiment: Experiment,
    seed: int,
    images: ImageData,
    device: torch.device | str = "cpu",
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Learn the parts one after another and score after each; ``progress`` hears the share of steps done.

    The same experiment and seed give the same scores on the CPU.
    """
    began = time.perf_counter()
    task = prepare(experiment, seed, images, device)
    phase = _Phases(experiment.num_steps, progress).phase
    beginning = begin(experiment, task, seed, device, phase)
    network, belief = beginning.network, beginning.belief
    consolidation = Consolidation(experiment.ewc_strength)
    by_part: list[PartScore] = []
    for images_of_part in task.parts:
        part = part_of(images_of_part)
        belief, _ = absorb(
            network,
            prior=belief,
            part=part,
            likelihood=Categorical(),
            settings=experiment.settings,
            seed=seed,
            terms=consolidation.terms(),
            progress=phase(experiment.settings.steps or 0),
        )
        if experiment.method == "ewc" and len(by_part) + 1 < len(task.parts):
            consolidation.add(network, belief, part, seed)
        by_part.append(_score(network, belief, task.asked, experiment.samples_by_part, seed))
    return Result(
        experiment=experiment,
        seed=seed,
        by_part=tuple(by_part),
        final=_score(network, belief, task.asked, experiment.samples_at_end, seed),
        prior_sd_found=beginning.sd,
        seconds=time.perf_counter() - began,
        device=records.device_name(device),
        commit=records.commit(),
        versions=records.versions(),
    )


class _Phases:
    """Counts steps over pretraining, grid search and parts."""

    def __init__(self, num_steps: int, progress: Callable[[float], None] | None) -> None:
        self._num_steps, self._progress, self._planned = num_steps, progress, 0

    def phase(self, num_steps: int) -> Callable[[Progress], None]:
        before = self._planned
        self._planned += num_steps

        def tell(now: Progress) -> None:
            if self._progress:
                self._progress((before + now.step) / self._num_steps)

        return tell


def _score(network: nn.Module, belief: Belief, asked: Images, num_samples: int, seed: int) -> PartScore:
    # Without a width somewhere, every sample is the same.
    num_samples = num_samples if belief.points < belief.weights.keys() else 1
    log_probs = _log_probabilities(network, belief, asked.pixels, num_samples, seed).double().cpu()
    labels = asked.labels.cpu()
    return PartScore(
        accuracy=metrics.accuracy(log_probs.exp(), labels),
        nll=-float(log_probs.gather(1, labels.unsqueeze(1)).mean()),
        ece=metrics.ece(log_probs.exp(), labels),
        num_samples=num_samples,
    )


@torch.no_grad()
def _log_probabilities(network: nn.Module, belief: Belief, pixels: Tensor, num_samples: int, seed: int) -> Tensor:
    """Of the prediction averaged over weight samples, [N, K].

    In logarithms, where ``predict`` has probabilities: a sure network that errs would have an infinite NLL.
    """
    bayesian = frozen_network(network, belief)
    generator = seeds.stream(pixels.device, seed, "predict")
    pieces = pixels.split(IMAGES_AT_ONCE if pixels.device.type == "cpu" else ON_A_GPU)
    total = pixels.new_full((), -math.inf)
    for _ in range(num_samples):
        draws = bayesian.draw(generator)
        logits = torch.cat([bayesian.run(draws, some) for some in pieces])
        total = torch.logaddexp(total, logits.log_softmax(1))
    return total - math.log(num_samples)
