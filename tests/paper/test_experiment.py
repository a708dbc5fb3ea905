import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from paper.tiny_experiments import experiment, pretrained
from postprior.errors import SettingError
from postprior.learning.settings import Settings
from postprior.paper import records
from postprior.paper.configs import CONFIGURATIONS, LABELS, choose
from postprior.paper.experiment import Experiment
from postprior.paper.summary import sections

EVERY = [(task, name, make) for task, named in CONFIGURATIONS.items() for name, make in named.items()]
OTHERS: dict[str, Any] = {
    "name": "another",
    "dataset": "cifar10",
    "approach": "another",
    "network": "LeNet5",
    "family": "channelwise",
    "num_parts": 3,
    "variant": "paper",
    "settings": Settings(steps=4),
    "prior_sd": "fan_in",
    "ewc_strength": 2.0,
    "num_train": 10,
    "num_test": 10,
    "num_validation": 10,
    "samples_by_part": 9,
    "samples_at_end": 9,
}


@pytest.mark.parametrize("field", OTHERS)
def test_the_hash_changes_with_any_field(field: str) -> None:
    assert replace(experiment(), **{field: OTHERS[field]}).hash != experiment().hash


def test_the_hash_changes_with_fields_that_hang_together() -> None:
    fixed = pretrained("x", "factorized", "fixed", pretraining_sds=(0.1, 1.0))
    same_but = [
        replace(fixed, pretraining_sds=(0.1,)),
        replace(fixed, pretraining_settings=Settings(steps=5)),
        replace(fixed, pretraining_sds=(), pretraining="laplace"),
    ]
    fine_tuned = experiment(family="point")
    assert len({e.hash for e in (fixed, *same_but)}) == 4
    assert replace(fine_tuned, method="ewc").hash != fine_tuned.hash
    together = {"method", "pretraining", "pretraining_settings", "pretraining_sds"}
    assert {field.name for field in fields(Experiment)} == OTHERS.keys() | together


def test_the_hash_changes_with_any_setting() -> None:
    plain = experiment().to_plain()
    assert plain["settings"].keys() == {field.name for field in fields(Settings)} - {"augment"}


def test_the_hash_is_the_same_tomorrow() -> None:
    assert experiment().hash == experiment().hash
    assert len(experiment().hash) == 64


@pytest.mark.parametrize(("task", "name", "make"), EVERY, ids=[f"{task}-{name}" for task, name, _ in EVERY])
def test_a_configuration_is_complete(task: str, name: str, make: Any) -> None:
    assert f"postprior reproduce {task} --families {name}`" in make.__doc__
    assert name in LABELS
    for variant in ("paper", "tuned", "quick"):
        made: Experiment = make(10, variant)
        assert (made.dataset, made.approach, made.num_parts, made.variant) == (task, name, 10, variant)
        assert Experiment.from_plain(json.loads(json.dumps(made.to_plain()))) == made


def test_what_a_configuration_expects_was_measured() -> None:
    results = Path(__file__).parents[2] / "results"
    cells = [cell for section in sections(records.read_all(results)) for cell in section.cells]
    found = {cell.name: cell for cell in cells if len(cell.results) == 5}
    expected = 0
    for task, name, make in EVERY:
        said = re.findall(r"T=(\d+) ([\d.]+) ± ([\d.]+)", make.__doc__)
        assert bool(said) != ("not yet measured" in make.__doc__)
        for num_parts, mean, half_width in said:
            accuracy = found[f"{task}-{name}-t{num_parts}-paper"].over(lambda result: 100 * result.final.accuracy)
            assert (f"{accuracy.mean:.2f}", f"{accuracy.half_width:.2f}") == (mean, half_width)
            expected += 1
    assert expected == sum(cell.name.endswith("-paper") for cell in found.values())


def test_configurations_differ() -> None:
    made = [make(parts, variant) for *_, make in EVERY for parts in (1, 10) for variant in ("paper", "tuned", "quick")]
    assert len({e.name for e in made}) == len({e.hash for e in made}) == len(made)


def test_the_paper_s_settings() -> None:
    mnist, cifar10 = (choose([task], families=["ffg"], parts=[10])[0] for task in ("mnist", "cifar10"))
    assert (mnist.settings.temperature, cifar10.settings.temperature) == (1.0, 0.05)
    for made in (mnist, cifar10):
        assert (made.settings.learning_rate, made.settings.schedule, made.samples_at_end) == (1e-3, "constant", 100)
        assert (made.num_train, made.num_test, made.num_validation) == (None, None, 0)


def test_choosing() -> None:
    chosen = choose(["mnist", "cifar5+5"], families=["ft", "ewc"])
    names = ["mnist-ft-t1-paper", "mnist-ft-t10-paper", "mnist-ewc-t10-paper", "cifar5+5-ft-t10-paper"]
    assert [e.name for e in chosen] == names
    with pytest.raises(SettingError, match="no task is called imagenet: expected one of mnist, "):
        choose(["imagenet"])
    with pytest.raises(SettingError, match="ffg-laplace: expected approaches among ft, ffg, "):
        choose(["mnist"], families=["ffg-laplace"])
    with pytest.raises(SettingError, match="nothing to run"):
        choose(["mnist"], families=["ewc"], parts=[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "imagenet"}, "dataset='imagenet': expected mnist or cifar10 or cifar5"),
        ({"network": "AlexNet"}, "network='AlexNet': expected LeNet5"),
        ({"num_parts": 0}, "num_parts=0"),
        ({"family": "point"}, "family='point': expected 'point' unless method='bayes'"),
        ({"settings": Settings()}, "settings with steps"),
        ({"settings": Settings(steps=3, augment=abs)}, "without augment"),
        ({"settings": Settings(steps=3, holdout=0.1)}, "'early' with a holdout only"),
        ({"pretraining": "laplace"}, "'none' for all but cifar5"),
        ({"dataset": "cifar5+5", "pretraining": "laplace"}, "settings of its own"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        replace(experiment(), **changes)


def test_a_file_with_other_fields_is_refused() -> None:
    plain = experiment().to_plain()
    with pytest.raises(ValueError, match="'color'"):
        Experiment.from_plain({**plain, "color": 1})
