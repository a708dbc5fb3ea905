"""The paper's question on data that needs no download: scikit-learn's digits, at once and in ten parts."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from postprior.errors import MissingExtraError
from postprior.learner import Learner
from postprior.learning import metrics
from postprior.learning.settings import Settings
from postprior.maths import seeds
from postprior.networks.zoo import SmallConvNet
from postprior.paper import records

NUM_TEST = 500
PRIOR_SD = 0.3

# Chosen in ten parts on 297 training images that were set aside, four seeds each, of ten settings for fine-tuning and
# for the factorised Gaussian (benchmarks/digits_settings.py); the flow does not bear the higher rate.
FINE_TUNING = Settings(epochs=20, batch_size=32, learning_rate=5e-3, score_samples=0)
BAYES = Settings(
    epochs=60,
    batch_size=32,
    learning_rate=1e-2,
    spread_rate=5.0,
    schedule="linear",
    temperature=0.001,
    score_samples=0,
)
FLOW = replace(BAYES, learning_rate=6e-3, temperature=0.003)
FUNCTION_SPACE = 0.3
"""Weight of the term that holds the new predictions to the old belief's, on the new part's inputs."""


@dataclass(frozen=True)
class Method:
    """A family, and how it learns."""

    family: str
    settings: Settings


METHODS = {
    "FT": Method("point", FINE_TUNING),
    "FT-FS": Method("point", replace(FINE_TUNING, schedule="linear", function_space=FUNCTION_SPACE)),
    "FFG": Method("factorized", BAYES),
    "FFG-FS": Method("factorized", replace(BAYES, temperature=0.003, function_space=FUNCTION_SPACE)),
    "CFG": Method("channelwise", BAYES),
    "MNF": Method("multiplicative", FLOW),
}
"""By the paper's names; with FS, the function-space term beside them, which is not the paper's."""


@dataclass(frozen=True)
class Run:
    """One method with one seed, learned in ``num_parts``; curves have one entry a part."""

    method: str
    num_parts: int
    seed: int
    accuracy: tuple[float, ...]
    nll: tuple[float, ...]
    ece: float
    seconds: float
    """Spent learning."""


def load_digits() -> tuple[Tensor, Tensor]:
    """1,797 images of 8 x 8 pixels from 0 to 1, and their labels."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingExtraError("the digits come with scikit-learn: pip install 'postprior[sklearn]'") from error
    images, labels = datasets.load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels, dtype=torch.long)


def run(
    method: str,
    num_parts: int,
    seed: int,
    shuffled: bool = False,
    tell: Callable[[int], Any] = lambda _: None,
    *,
    settings: Settings | None = None,
    prior_sd: float = PRIOR_SD,
    set_aside: int = 0,
) -> Run:
    """Learn the training images in parts, in the order they were recorded in, so that each part has other writers.

    ``shuffled`` makes the parts alike, as the paper has them, in an order that the seed decides beside the network's
    start and all noise. The test images are drawn from all writers, the same ones always. ``tell`` hears of each part.
    ``set_aside`` training images, the same ones always, take the place of the test images, to choose settings by.
    """
    images, labels = load_digits()
    order = torch.randperm(len(images), generator=seeds.stream("cpu", "digits", "test"))
    test, train = order[:NUM_TEST], order[NUM_TEST:]
    if set_aside:
        test, train = train[:set_aside], train[set_aside:]
    train = train.sort().values
    if shuffled:
        train = train[torch.randperm(len(train), generator=seeds.stream("cpu", "digits", "order", seed))]
    with seeds.quarantined(torch.device("cpu"), "digits", "network", seed):
        network = SmallConvNet()
    how = METHODS[method]
    learner = Learner(network, family=how.family, prior_sd=prior_sd, seed=seed, settings=settings or how.settings)
    probabilities, seconds = [], 0.0
    for number, part in enumerate(train.chunk(num_parts), 1):
        seconds += learner.absorb((images[part], labels[part])).seconds
        probabilities.append(learner.predict(images[test]).mean)
        tell(number)
    return Run(
        method,
        num_parts,
        seed,
        tuple(metrics.accuracy(p, labels[test]) for p in probabilities),
        tuple(metrics.nll(p, labels[test]) for p in probabilities),
        metrics.ece(probabilities[-1], labels[test]),
        seconds,
    )


def provenance() -> dict[str, Any]:
    """What the runs were made with, for the record."""
    return {
        "commit": records.commit(),
        "prior_sd": PRIOR_SD,
        "methods": {name: asdict(method) for name, method in METHODS.items()},
        "device": records.device_name("cpu"),
        "threads": torch.get_num_threads(),
        "versions": records.versions(),
    }


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95% interval by Student's t; None for a single value."""
    from scipy.stats import t

    numbers = torch.tensor(values, dtype=torch.float64)
    if len(values) < 2:
        return float(numbers.mean()), None
    half = t.ppf(0.975, len(values) - 1) * float(numbers.std()) / len(values) ** 0.5
    return float(numbers.mean()), float(half)


@dataclass(frozen=True)
class Ending:
    """Where one method stands at the end of its parts: means over seeds, each with half its 95% interval."""

    method: str
    num_parts: int
    num_seeds: int
    accuracy: tuple[float, float | None]
    nll: tuple[float, float | None]
    ece: tuple[float, float | None]
    seconds: tuple[float, float | None]


def endings(runs: Sequence[Run]) -> list[Ending]:
    """One for each method and number of parts."""
    found: list[Ending] = []
    for num_parts in sorted({run.num_parts for run in runs}):
        for name in METHODS:
            own = [run for run in runs if run.method == name and run.num_parts == num_parts]
            if own:
                measured = {
                    "accuracy": [run.accuracy[-1] for run in own],
                    "nll": [run.nll[-1] for run in own],
                    "ece": [run.ece for run in own],
                    "seconds": [run.seconds for run in own],
                }
                found.append(
                    Ending(name, num_parts, len(own), **{k: mean_and_interval(v) for k, v in measured.items()})
                )
    return found


COLUMNS = ("Method", "Parts", "Accuracy %", "NLL", "ECE", "Seconds")


def row(end: Ending) -> tuple[str, ...]:
    """A row of the table, with intervals where there are several seeds."""
    accuracy, half = end.accuracy
    percent = _with_interval((100 * accuracy, half and 100 * half), ".1f")
    scores = (_with_interval(score, ".3f") for score in (end.nll, end.ece))
    return (end.method, str(end.num_parts), percent, *scores, f"{end.seconds[0]:.1f}")


def draw(runs: Sequence[Run], path: Path) -> None:
    """Accuracy and NLL after each part, one line a method, with what the same method reaches on all data at once."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise MissingExtraError("pictures need matplotlib: pip install 'postprior[figures]'") from error
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for colour, name in enumerate(METHODS):
        for panel, measure in zip(panels, ("accuracy", "nll"), strict=True):
            _draw_method(panel, [run for run in runs if run.method == name], measure, name, f"C{colour}")
    for panel, title in zip(panels, ("Test accuracy", "Test NLL (nats an example)"), strict=True):
        panel.set(title=title, xlabel="parts learned")
        panel.grid(alpha=0.3)
    panels[1].set_yscale("log")
    panels[0].legend(title="dotted: all data at once", loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_method(panel: Any, runs: Sequence[Run], measure: str, name: str, colour: str) -> None:
    several = [getattr(run, measure) for run in runs if run.num_parts > 1]
    at_once = [getattr(run, measure)[-1] for run in runs if run.num_parts == 1]
    if several:
        points = [mean_and_interval(values) for values in zip(*several, strict=True)]
        numbers, means = range(1, len(points) + 1), [mean for mean, _ in points]
        panel.plot(numbers, means, color=colour, label=name, marker="o", markersize=3)
        if len(several) > 1:
            low, high = ([m + sign * (half or 0) for m, half in points] for sign in (-1, 1))
            panel.fill_between(numbers, low, high, color=colour, alpha=0.15, linewidth=0)
    if at_once:
        panel.axhline(mean_and_interval(at_once)[0], color=colour, linestyle=":", linewidth=1)


def _with_interval(measured: tuple[float, float | None], form: str) -> str:
    mean, half = measured
    return f"{mean:{form}}" if half is None else f"{mean:{form}} ± {half:{form}}"
