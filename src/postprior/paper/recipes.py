"""What the named configurations are made of: the settings of each task and variant."""

from dataclasses import replace
from typing import Any

from postprior.learning.settings import Settings
from postprior.paper.experiment import SOURCES, Experiment, Variant

STEPS: dict[tuple[str, bool], tuple[int, int]] = {
    ("mnist", False): (8_000, 1_500),
    ("cifar10", False): (8_000, 1_200),
    ("cifar5+5", False): (5_000, 600),
    ("mnist", True): (300, 50),
    ("cifar10", True): (120, 20),
    ("cifar5+5", True): (120, 20),
}
"""By task and whether quick: steps at T=1, and steps a part at any other T; the tuned ones have as many in all at
every T."""

TEMPERATURE: dict[str, dict[Variant, float]] = {
    "mnist": {"paper": 1.0, "tuned": 0.2, "quick": 0.05},
    "cifar10": {"paper": 0.05, "tuned": 0.005, "quick": 0.005},
    "cifar5+5": {"paper": 0.05, "tuned": 0.005, "quick": 0.005},
}
"""What multiplies the KL. The paper's 0.05 is for "the larger network". A quick run's parts have a fiftieth of the
images, which at the tuned temperature would hardly move the prior."""

QUICK: dict[str, dict[str, int]] = {
    "mnist": {"num_train": 2_000, "num_test": 1_000, "samples_by_part": 2, "samples_at_end": 10},
    "cifar10": {"num_train": 1_000, "num_test": 500, "samples_by_part": 1, "samples_at_end": 10},
}
"""3Conv3FC takes ten times as long as LeNet5, so it gets fewer images."""

FAMILIES = {"ffg": "factorized", "cfg": "channelwise", "mnf": "multiplicative"}
"""By approach; the others are points."""

Candidate = dict[str, Any]
"""What the tuned settings may differ in: fields of ``Settings``, of the experiment those in ``OWN``."""

OWN = ("prior_sd", "ewc_strength")

PARTS_OF_SEARCH = 10
"""The T that settings were searched at; with another, the steps over all parts stay the same."""

TUNED: dict[str, dict[str, Candidate]] = {"mnist": {}, "cifar10": {}, "cifar5+5": {}}
"""By task and approach, what `postprior search` chose. Empty as long as no search has run to its end:
until then what is called tuned is what the search starts from."""

LIKE = {"ft-early": "ft", "mnf": "ffg", "ffg-kl1": "ffg", "ffg-fixed": "ffg-laplace"}
"""Where an approach was not searched, the one whose settings it takes."""


def early(task: str, num_parts: int, variant: Variant) -> Experiment:
    """Fine-tuning that stops by a tenth of each part."""
    return experiment(task, "ft-early", num_parts, variant, method="early", holdout=0.1)


def pretrained(approach: str, num_parts: int, variant: Variant, **fields: Any) -> Experiment:
    """CIFAR(5+5) with pretraining; the whole of the first five classes is one part, so it takes the steps of T=1."""
    before = settings("cifar5+5", 1, variant, point=True)
    return experiment("cifar5+5", approach, num_parts, variant, pretraining_settings=before, **fields)


def experiment(
    task: str,
    approach: str,
    num_parts: int,
    variant: Variant,
    *,
    family: str | None = None,
    temperature: float | None = None,
    holdout: float = 0.0,
    function_space: float = 0.0,
    **fields: Any,
) -> Experiment:
    """A configuration of this task; further fields are the experiment's own."""
    family = family or FAMILIES.get(approach, "point")
    point = family == "point"
    if variant == "quick":
        fields.update(QUICK[SOURCES[task]])
    fields.setdefault("method", "finetune" if point else "bayes")
    how = settings(task, num_parts, variant, point)
    made = Experiment(
        name=f"{task}-{approach}-t{num_parts}-{variant}",
        dataset=task,
        approach=approach,
        network="LeNet5" if task == "mnist" else "ThreeConvThreeFC",
        family=family,
        num_parts=num_parts,
        variant=variant,
        settings=replace(how, holdout=holdout, function_space=function_space),
        prior_sd=1.0 if variant == "paper" else 0.1,
        **fields,
    )
    if variant == "tuned":
        found = dict(TUNED[task].get(approach) or TUNED[task].get(LIKE.get(approach, ""), {}))
        if "steps" in found:
            found["steps"] = _steps_a_part(found["steps"], num_parts)
        made = adjusted(made, found)
    if temperature is not None:
        made = adjusted(made, {"temperature": temperature})
    return made


def adjusted(start: Experiment, candidate: Candidate) -> Experiment:
    """The experiment with what the candidate says."""
    own = {name: value for name, value in candidate.items() if name in OWN}
    how = {name: value for name, value in candidate.items() if name not in OWN}
    return replace(start, **own, settings=replace(start.settings, **how))


def settings(task: str, num_parts: int, variant: Variant, point: bool) -> Settings:
    """How a part is learned; a point has neither KL nor width, so that temperature and spread_rate stay at 1."""
    jointly, a_part = STEPS[task, variant == "quick"]
    options: dict[str, Any] = {} if variant == "paper" else {"schedule": "linear"}
    if not point:
        options["temperature"] = TEMPERATURE[task]["tuned" if variant == "search" else variant]
        options["spread_rate"] = 1.0 if variant == "paper" else 5.0
    if variant == "quick":
        options["batch_size"] = 32
    steps = jointly if num_parts == 1 else a_part
    if variant in ("tuned", "search"):
        steps = _steps_a_part(a_part, num_parts)
    # The old belief's score of each new part would cost a pass and is not reported.
    return Settings(steps=steps, score_samples=0, cuda_graph=True, **options)


def _steps_a_part(steps: int, num_parts: int) -> int:
    """Steps a part where ``PARTS_OF_SEARCH`` parts would have so many: as many in all."""
    return steps * PARTS_OF_SEARCH // num_parts
