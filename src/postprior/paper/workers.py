"""Several runs at once, each in a process of its own.

The networks of the paper leave most of a large GPU idle: a step is a chain of small kernels. Processes fill it, if
NVIDIA's multi-process service runs (``nvidia-cuda-mps-control -d``); without it they take turns.
"""

import functools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from postprior.data import datasets
from postprior.data.datasets import ImageData
from postprior.errors import FailedRunsError, PostpriorError
from postprior.paper import records
from postprior.paper.experiment import SOURCES, Experiment
from postprior.paper.records import Result
from postprior.paper.run import run
from postprior.parallel import workers

COST = {"multiplicative": 4.0, "channelwise": 1.5}
"""Roughly, of a step beside one of the other families."""


def run_apart(
    todo: Sequence[tuple[Experiment, int]], folder: Path, device: torch.device | str, jobs: int
) -> Iterator[Result]:
    """Run them all, ``jobs`` at a time; each result as it ends, on the disk by then.

    A run that fails does not take the others with it: what went wrong is told once all have ended.
    """
    ordered = _ordered(todo)
    # A forked process could not use the GPU that this one has begun to use.
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare, initargs=(threads,))
    try:
        waiting = {pool.submit(_work, e.to_plain(), seed, folder, str(device)): (e, seed) for e, seed in ordered}
        failed: list[str] = []
        for future in as_completed(waiting):
            try:
                yield future.result()
            except (PostpriorError, RuntimeError) as error:  # the latter for what a GPU refuses
                failed.append(f"{records.title(*waiting[future])}: {error}")
        _tell_of(failed, len(ordered))
    except BaseException:
        for child in multiprocessing.active_children():
            child.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def run_on_ray(
    todo: Sequence[tuple[Experiment, int]], folder: Path, device: torch.device | str, where: str, jobs: int | None
) -> Iterator[Result]:
    """The same on the workers of Ray, on this machine or a cluster, where the datasets must be; the disk is ours."""
    ordered, failed = _ordered(todo), list[str]()
    tasks = [(experiment.to_plain(), seed, str(device)) for experiment, seed in ordered]
    gpus = 1.0 if torch.device(device).type == "cuda" else 0.0
    with workers(where, _attempt, count=jobs, gpus=gpus) as pool:
        for number, result in pool.each(tasks):
            if isinstance(result, str):
                failed.append(f"{records.title(*ordered[number])}: {result}")
                continue
            records.write(folder, result)
            yield result
    _tell_of(failed, len(ordered))


def fast_kernels() -> None:
    """For a process of our own: TF32 in matrix products, as torch has it in convolutions anyway."""
    torch.backends.cuda.matmul.allow_tf32 = True


def _prepare(threads: int) -> None:
    torch.set_num_threads(threads)
    fast_kernels()


def _ordered(todo: Sequence[tuple[Experiment, int]]) -> list[tuple[Experiment, int]]:
    # Seed by seed, so that what an interruption leaves is even; the longest first, so that none ends alone.
    return sorted(todo, key=lambda key: (key[1], -key[0].num_steps * COST.get(key[0].family, 1.0)))


def _tell_of(failed: list[str], num_runs: int) -> None:
    if failed:
        raise FailedRunsError(f"{len(failed)} of {num_runs} runs failed; the others are kept. " + "; ".join(failed))


def _attempt(task: tuple[dict[str, Any], int, str]) -> Result | str:
    """A run, or what went wrong with it: that must not end the others."""
    plain, seed, device = task
    _prepare(1)
    experiment = Experiment.from_plain(plain)
    try:
        return run(experiment, seed, _images(SOURCES[experiment.dataset]), device)
    except (PostpriorError, RuntimeError) as error:
        return str(error)


def _work(plain: dict[str, Any], seed: int, folder: Path, device: str) -> Result:
    experiment = Experiment.from_plain(plain)
    result = run(experiment, seed, _images(SOURCES[experiment.dataset]), device)
    records.write(folder, result)
    return result


@functools.cache
def _images(name: str) -> ImageData:
    return datasets.load(name)
