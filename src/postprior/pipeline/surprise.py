"""Whether a new part looks unlike the ones before it, judged by how the old belief met each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from postprior.pipeline.measures import Measures

WATCHED = ("nll", "epistemic_share")
FEWEST, MOST = 3, 8
"""Parts to judge by. Early ones are met worse because less was known, so those long past do not count."""
THRESHOLD = 4.0
LEAST_SPREAD = 0.05
"""Of the median: parts that were met almost alike say little about how much the next may differ."""


@dataclass(frozen=True)
class Surprise:
    """How far one measure of the new part lies from its own past."""

    measure: str
    value: float
    usual: float
    """The median of the past."""
    score: float
    """Distance from the usual in robust standard deviations; the larger the worse."""

    @property
    def is_warning(self) -> bool:
        """Whether someone should look."""
        return self.score > THRESHOLD

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"{self.measure} is {self.value:.3g} under the belief before it, usually {self.usual:.3g} "
            f"({self.score:.1f} deviations): the data may have changed"
        )


def surprises(new: Measures, past: Sequence[Measures]) -> list[Surprise]:
    """One for each watched measure with enough of a past, which comes newest first."""
    found: list[Surprise] = []
    for name in WATCHED:
        values = [measures[name] for measures in past if name in measures][:MOST]
        if name in new and len(values) >= FEWEST:
            found.append(_surprise(name, new[name], values))
    return found


def _surprise(name: str, value: float, past: list[float]) -> Surprise:
    usual = median(past)
    deviation = 1.4826 * median(abs(each - usual) for each in past)  # of a Gaussian, the standard deviation
    spread = max(deviation, LEAST_SPREAD * abs(usual), 1e-9)
    return Surprise(name, value, usual, (value - usual) / spread)
