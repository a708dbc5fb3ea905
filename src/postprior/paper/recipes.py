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
"""By task and whether quick: steps at T=1, and steps a part at any other T."""

TEMPERATURE: dict[str, dict[Variant, float]] = {
    "mnist": {"paper": 1.0, "tuned": 0.2, "quick": 0.05},
    "cifar10": {"paper": 0.05, "tuned": 0.2, "quick": 0.005},
    "cifar5+5": {"paper": 0.05, "tuned": 0.2, "quick": 0.005},
}
"""What multiplies the KL. The paper's 0.05 is for "the larger network". A quick run's parts have a fiftieth of the
images, which at the tuned temperature would hardly move the prior."""

QUICK: dict[str, dict[str, int]] = {
    "mnist": {"num_train": 2_000, "num_test": 1_000, "samples_by_part": 2, "samples_at_end": 10},
    "cifar10": {"num_train": 1_000, "num_test": 500, "samples_by_part": 1, "samples_at_end": 10},
}
"""3Conv3FC takes ten times as long as LeNet5, so it gets fewer images."""

FAMILIES = {
    "ft": "point",
    "ft-fs": "point",
    "ffg": "factorized",
    "cfg": "channelwise",
    "mnf": "multiplicative",
    "ewc": "point",
}


def early(task: str, num_parts: int, variant: Variant) -> Experiment:
    """Fine-tuning that stops by a tenth of each part."""
    return experiment(task, "ft-early", num_parts, variant, family="point", method="early")


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
    **fields: Any,
) -> Experiment:
    """A configuration of this task; further fields are the experiment's own."""
    family = family or FAMILIES.get(approach, "point")
    point = family == "point"
    how = settings(task, num_parts, variant, point, temperature)
    if fields.get("method") == "early":
        how = replace(how, holdout=0.1)
    if variant == "quick":
        fields.update(QUICK[SOURCES[task]])
    fields.setdefault("method", "finetune" if point else "bayes")
    return Experiment(
        name=f"{task}-{approach}-t{num_parts}-{variant}",
        dataset=task,
        approach=approach,
        network="LeNet5" if task == "mnist" else "ThreeConvThreeFC",
        family=family,
        num_parts=num_parts,
        variant=variant,
        settings=how,
        prior_sd=1.0 if variant == "paper" else 0.1,
        **fields,
    )


def settings(task: str, num_parts: int, variant: Variant, point: bool, temperature: float | None = None) -> Settings:
    """How a part is learned; a point has neither KL nor width, so that temperature and spread_rate stay at 1."""
    jointly, a_part = STEPS[task, variant == "quick"]
    options: dict[str, Any] = {} if variant == "paper" else {"schedule": "linear"}
    if not point:
        options["temperature"] = temperature or TEMPERATURE[task]["tuned" if variant == "search" else variant]
        options["spread_rate"] = 1.0 if variant == "paper" else 5.0
    if variant == "quick":
        options["batch_size"] = 32
    # The old belief's score of each new part would cost a pass and is not reported.
    return Settings(steps=jointly if num_parts == 1 else a_part, score_samples=0, cuda_graph=True, **options)
