"""All the runs of some experiments that are not yet there, one after another or several at once."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from postprior.data import datasets
from postprior.data.datasets import ImageData
from postprior.paper import records
from postprior.paper.estimate import Estimate
from postprior.paper.experiment import SOURCES, Experiment
from postprior.paper.records import Result
from postprior.paper.run import run
from postprior.paper.workers import run_apart, run_on_ray
from postprior.parallel import LOCAL

Key = tuple[Experiment, int]
"""What a run is known by: the experiment and the seed."""


@dataclass(frozen=True)
class Status:
    """Where ``run_all`` stands."""

    title: str
    """Of the run that is going on, or that has just ended."""
    num_done: int
    num_runs: int
    """In all, those that were there already too."""
    fraction: float
    """Of the current run; 0 where several run at once."""
    seconds_left: float | None
    """Until all is done; None before there is anything to judge by."""
    result: Result | None = None
    """Where a run has just ended."""


def run_all(
    experiments: Sequence[Experiment],
    num_seeds: int,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    jobs: int = 1,
    parallel: str | None = None,
    report: Callable[[Status], None] | None = None,
    load: Callable[[str], ImageData] = datasets.load,
) -> list[Result]:
    """Every experiment with seeds 0, 1, ...; each run ends in a file, and runs that have one are not done again.

    One after another, every experiment is run with one seed before the next seed begins, so that what an interruption
    leaves is even; ``jobs`` of them at once, in processes of their own. ``parallel`` is "ray", for as many of Ray's
    workers on this machine, or the address of a cluster (``ray://host:port``), which has the datasets and decides how
    many run.
    """
    wanted = [(experiment, seed) for seed in range(num_seeds) for experiment in experiments]
    results = {key: records.read(path) for key in wanted if (path := records.path_of(folder, *key)).exists()}
    todo = [key for key in wanted if key not in results]
    estimate = Estimate(jobs)
    for result in results.values():
        if result.device == records.device_name(device):
            estimate.add(result.experiment, result.seconds)
    # All at once, so that a dataset that is missing is noticed now and not hours later.
    images = {name: load(name) for name in sorted({SOURCES[experiment.dataset] for experiment, _ in todo})}
    teller = _Teller(len(results), len(wanted), estimate, [experiment for experiment, _ in todo], report)
    if parallel is not None:
        here = parallel == "ray"
        ended = run_on_ray(todo, folder, device, LOCAL if here else parallel, jobs if here else None)
    elif jobs == 1:
        ended = _one_by_one(todo, images, folder, device, teller)
    else:
        ended = run_apart(todo, folder, device, jobs)
    for result in ended:
        results[result.experiment, result.seed] = result
        teller.ended(result)
    return [results[key] for key in wanted]


def _one_by_one(
    todo: Iterable[Key], images: dict[str, ImageData], folder: Path, device: torch.device | str, teller: "_Teller"
) -> Iterator[Result]:
    for experiment, seed in todo:
        teller.begins(experiment, seed)
        result = run(experiment, seed, images[SOURCES[experiment.dataset]], device, teller.tell)
        records.write(folder, result)
        yield result


class _Teller:
    """Makes a status of what begins, goes on and ends."""

    def __init__(
        self,
        num_done: int,
        num_runs: int,
        estimate: Estimate,
        ahead: list[Experiment],
        report: Callable[[Status], None] | None,
    ) -> None:
        self._num_done, self._num_runs, self._estimate = num_done, num_runs, estimate
        self._ahead, self._report = ahead, report
        self._now: Key | None = None
        self._began = time.perf_counter()

    def begins(self, experiment: Experiment, seed: int) -> None:
        self._now, self._began = (experiment, seed), time.perf_counter()
        self._ahead.remove(experiment)
        self.tell(0.0)

    def tell(self, fraction: float) -> None:
        """Of the run that began last."""
        assert self._now is not None
        left = self._estimate.left(self._ahead, self._now[0], time.perf_counter() - self._began, fraction)
        self._tell(records.title(*self._now), fraction, left)

    def ended(self, result: Result) -> None:
        if self._now is None:
            self._ahead.remove(result.experiment)
        self._estimate.add(result.experiment, result.seconds)
        self._num_done, self._now = self._num_done + 1, None
        self._tell(result.title, 1.0, self._estimate.of_all(self._ahead), result)

    def _tell(self, title: str, fraction: float, left: float | None, result: Result | None = None) -> None:
        if self._report:
            self._report(Status(title, self._num_done, self._num_runs, fraction, left, result))
