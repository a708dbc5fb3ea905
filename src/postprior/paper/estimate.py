"""How long the runs that are left will take, judged by those most like them."""

from collections.abc import Callable, Iterable
from statistics import fmean

from postprior.paper.experiment import Experiment


class Estimate:
    """Seconds a step, as seen so far."""

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._seen: list[tuple[Experiment, float]] = []

    def add(self, experiment: Experiment, seconds: float) -> None:
        """A run of this experiment took so long."""
        self._seen.append((experiment, seconds / experiment.num_steps))

    def of(self, experiment: Experiment) -> float | None:
        """Seconds that a run of it will take, or None where nothing was seen."""
        kin: list[Callable[[Experiment], bool]] = [
            lambda seen: (seen.network, seen.family, seen.method) == _kind(experiment),
            lambda seen: seen.network == experiment.network,
            lambda seen: True,
        ]
        for alike in kin:
            rates = [rate for seen, rate in self._seen if alike(seen)]
            if rates:
                return fmean(rates) * experiment.num_steps
        return None

    def of_all(self, ahead: Iterable[Experiment]) -> float | None:
        """Seconds until all these are done, shared among the runs that go on at once."""
        known = [self.of(experiment) for experiment in ahead]
        seconds = [number for number in known if number is not None]
        return sum(seconds) / self._at_once if len(seconds) == len(known) else None

    def left(self, ahead: Iterable[Experiment], now: Experiment, elapsed: float, fraction: float) -> float | None:
        """Seconds until all is done where runs follow one another: the rest of the current run, and those ahead."""
        current, rest = Estimate(), self.of(now)
        current._seen = list(self._seen)
        if fraction > 0:
            # What the current run shows of itself is worth more than what others showed.
            rest = elapsed * (1 - fraction) / fraction
            current.add(now, elapsed / fraction)
        others = current.of_all(ahead)
        return rest + others if rest is not None and others is not None else None


def _kind(experiment: Experiment) -> tuple[str, str, str]:
    return experiment.network, experiment.family, experiment.method
