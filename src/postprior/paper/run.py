"""One run of an experiment, and all the runs that are not yet there."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from postprior.data import datasets
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
from postprior.paper.estimate import Estimate
from postprior.paper.ewc import Consolidation
from postprior.paper.experiment import SOURCES, Experiment
from postprior.paper.records import PartScore, Result
from postprior.paper.tasks import Images, prepare

IMAGES_AT_ONCE = 500


@dataclass(frozen=True)
class Status:
    """Where ``run_all`` stands."""

    title: str
    """Of the run that is going on, or that has just ended."""
    num_done: int
    num_runs: int
    """In all, those that were there already too."""
    fraction: float
    """Of the current run."""
    seconds_left: float | None
    """Until all is done; None before there is anything to judge by."""
    result: Result | None = None
    """Where a run has just ended."""


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


def run_all(
    experiments: Sequence[Experiment],
    num_seeds: int,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    report: Callable[[Status], None] | None = None,
    load: Callable[[str], ImageData] = datasets.load,
) -> list[Result]:
    """Every experiment with seeds 0, 1, ...; each run ends in a file, and runs that have one are not done again.

    Every experiment is run with one seed before the next seed begins, so that what an interruption leaves is even.
    """
    wanted = [(experiment, seed) for seed in range(num_seeds) for experiment in experiments]
    results = {key: records.read(path) for key in wanted if (path := records.path_of(folder, *key)).exists()}
    todo = [key for key in wanted if key not in results]
    estimate = Estimate()
    for result in results.values():
        if result.device == records.device_name(device):
            estimate.add(result.experiment, result.seconds)
    # All at once, so that a dataset that is missing is noticed now and not hours later.
    images = {name: load(name) for name in sorted({SOURCES[experiment.dataset] for experiment, _ in todo})}
    for i, (experiment, seed) in enumerate(todo):
        ahead = [later for later, _ in todo[i + 1 :]]
        teller = _Teller(experiment, seed, len(results), len(wanted), estimate, ahead, report)
        teller.tell(0.0)
        result = run(experiment, seed, images[SOURCES[experiment.dataset]], device, teller.tell)
        records.write(folder, result)
        results[experiment, seed] = result
        estimate.add(experiment, result.seconds)
        teller.tell(1.0, result)
    return [results[key] for key in wanted]


class _Teller:
    """Makes a status of the share of steps done in one run."""

    def __init__(
        self,
        experiment: Experiment,
        seed: int,
        num_done: int,
        num_runs: int,
        estimate: Estimate,
        ahead: Sequence[Experiment],
        report: Callable[[Status], None] | None,
    ) -> None:
        self._experiment, self._title, self._report = experiment, records.title(experiment, seed), report
        self._num_done, self._num_runs, self._estimate, self._ahead = num_done, num_runs, estimate, ahead
        self._began = time.perf_counter()

    def tell(self, fraction: float, result: Result | None = None) -> None:
        if self._report:
            elapsed = time.perf_counter() - self._began
            left = self._estimate.left(self._ahead, self._experiment, elapsed, fraction)
            num_done = self._num_done + (result is not None)
            self._report(Status(self._title, num_done, self._num_runs, fraction, left, result))


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
    total = pixels.new_full((), -math.inf)
    for _ in range(num_samples):
        draws = bayesian.draw(generator)
        logits = torch.cat([bayesian.run(draws, some) for some in pixels.split(IMAGES_AT_ONCE)])
        total = torch.logaddexp(total, logits.log_softmax(1))
    return total - math.log(num_samples)
