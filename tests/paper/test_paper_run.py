import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from paper.tiny_experiments import experiment, images, pretrained
from postprior.data.parts import as_part
from postprior.errors import DataError, StoreError
from postprior.families import Draw
from postprior.learning.likelihoods import Categorical
from postprior.learning.pretrained import fisher_diagonal
from postprior.networks.convert import first_belief
from postprior.networks.zoo import SmallConvNet
from postprior.paper import records
from postprior.paper.beginnings import begin
from postprior.paper.estimate import Estimate
from postprior.paper.ewc import Consolidation
from postprior.paper.experiment import Experiment
from postprior.paper.run import run
from postprior.paper.runs import Status, run_all
from postprior.paper.tasks import prepare

TINY = images()
EVERY = [
    experiment("ft", "point"),
    experiment("ffg"),
    experiment("cfg", "channelwise"),
    experiment("mnf", "multiplicative"),
    experiment("ft-early", "point", method="early", holdout=0.2),
    experiment("ewc", "point", method="ewc", num_parts=3),
    pretrained("ft-pretrained", "point", "finetune"),
    pretrained("ffg-fixed", "factorized", "fixed", pretraining_sds=(0.1, 1.0)),
    pretrained("ffg-laplace", "factorized", "laplace"),
]


def plain(folder: Path) -> dict[str, Any]:
    """Every file of results, without what no two runs share."""
    read = {path.name: json.loads(path.read_text()) for path in (folder / "runs").iterdir()}
    return {name: {key: value for key, value in result.items() if key != "seconds"} for name, result in read.items()}


@pytest.mark.parametrize("of", EVERY, ids=lambda of: of.approach)
def test_a_run_scores_every_part_and_gives_the_same_again(of: Experiment, tmp_path: Path) -> None:
    shares: list[float] = []
    result = run(of, 0, TINY, progress=shares.append)
    assert len(result.by_part) == of.num_parts
    for score in (*result.by_part, result.final):
        assert 0 <= score.accuracy <= 1
        assert 0 < score.nll < math.inf
        assert 0 <= score.ece <= 1
    point = of.family == "point"
    assert (result.by_part[0].num_samples, result.final.num_samples) == ((1, 1) if point else (2, 3))
    assert shares == sorted(shares)
    assert of.method == "early" or shares[-1] == 1.0
    assert (result.prior_sd_found in of.pretraining_sds) if of.pretraining_sds else result.prior_sd_found is None
    again = run(of, 0, TINY)
    assert (again.by_part, again.final) == (result.by_part, result.final)
    assert run(of, 1, TINY).final != result.final
    assert records.read(records.write(tmp_path, result)) == result


def test_it_learns() -> None:
    result = run(experiment("ft", "point", steps=60), 0, TINY)
    assert result.final.accuracy > 0.9
    assert result.final.nll < 0.5


def interrupting(after: int) -> Any:
    """Presses Ctrl-C in the middle of the run after so many have ended."""

    def report(status: Status) -> None:
        if status.num_done == after and 0.5 <= status.fraction < 1:
            raise KeyboardInterrupt

    return report


def test_interrupted_twice_it_gives_the_same_results(tmp_path: Path) -> None:
    some = [EVERY[0], EVERY[1], EVERY[8]]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    results = run_all(some, 2, whole, load=lambda _: TINY)
    for done in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            run_all(some, 2, cut, load=lambda _: TINY, report=interrupting(done))
        assert len(plain(cut)) == done
    resumed = run_all(some, 2, cut, load=lambda _: TINY)
    assert plain(cut) == plain(whole)
    assert len(plain(whole)) == 6
    assert [(r.experiment, r.seed, r.final) for r in resumed] == [(r.experiment, r.seed, r.final) for r in results]


def test_what_is_done_is_not_done_again_and_needs_no_data(tmp_path: Path) -> None:
    def none(name: str) -> Any:
        raise DataError(f"{name} is not here")

    before = run_all([EVERY[0]], 1, tmp_path, load=lambda _: TINY)
    assert run_all([EVERY[0]], 1, tmp_path, load=none) == before
    with pytest.raises(DataError, match="mnist is not here"):
        run_all([EVERY[0]], 2, tmp_path, load=none)
    with pytest.raises(DataError, match="cifar10 is not here"):
        run_all([EVERY[8]], 1, tmp_path, load=none)


def test_the_status_counts_and_estimates(tmp_path: Path) -> None:
    said: list[Status] = []
    run_all([EVERY[0], EVERY[1]], 1, tmp_path, load=lambda _: TINY, report=said.append)
    ends = [status for status in said if status.result]
    assert [(s.num_done, s.num_runs, s.title) for s in ends] == [
        (1, 2, "mnist-ft-t2-quick, seed 0"),
        (2, 2, "mnist-ffg-t2-quick, seed 0"),
    ]
    assert said[0].seconds_left is None
    assert ends[0].seconds_left > 0
    assert ends[1].seconds_left == 0


def test_time_is_estimated_by_the_most_alike() -> None:
    ft, ffg, cfg = (experiment(family=family, steps=5) for family in ("point", "factorized", "channelwise"))
    estimate = Estimate()
    assert estimate.of(ft) is None
    assert estimate.left([ffg], ft, elapsed=3.0, fraction=0.0) is None
    assert estimate.left([ffg], ft, elapsed=3.0, fraction=0.25) == pytest.approx(9.0 + 12.0)
    estimate.add(ft, 10.0)
    estimate.add(ffg, 30.0)
    assert estimate.of(experiment(family="point", steps=10)) == pytest.approx(20.0)
    assert estimate.of(cfg) == pytest.approx(20.0)
    assert estimate.left([ft, ffg], ft, elapsed=0.0, fraction=0.0) == pytest.approx(10 + 10 + 30)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run_all([EVERY[0]], 1, tmp_path, load=lambda _: TINY)
    path = records.path_of(tmp_path, EVERY[0], 0)
    text = path.read_text()
    path.write_text(text[:-100])
    with pytest.raises(StoreError, match=rf"{path.name} is no result .* move it away"):
        run_all([EVERY[0]], 1, tmp_path, load=lambda _: TINY)
    path.write_text(text.replace('"prior_sd": 1.0', '"prior_sd": 2.0'))
    with pytest.raises(StoreError, match="its configuration is not the one"):
        run_all([EVERY[0]], 1, tmp_path, load=lambda _: TINY)


def test_ewc_s_penalty_is_half_fisher_times_the_squared_distance() -> None:
    network, x, y = SmallConvNet(), torch.randn(6, 1, 8, 8), torch.arange(6)
    part, belief = as_part((x, y)), first_belief(network, "point")
    consolidation = Consolidation(strength=3.0)
    assert consolidation.terms() == {}
    for _ in range(2):
        consolidation.add(network, belief, part, seed=0)
    fisher = fisher_diagonal(network, part, Categorical())
    moved: Any = type("Step", (), {"draws": {name: Draw(value + 0.1) for name, value in belief.mean().items()}})
    expected = 0.5 * 3.0 * sum(float((2 * value * 0.1**2).sum()) for value in fisher.values())
    assert float(consolidation.terms()["ewc"](moved)) == pytest.approx(expected, rel=1e-4)


def test_a_strong_ewc_stays_where_it_was() -> None:
    ends = [
        run(experiment("ewc", "point", method="ewc", steps=30, ewc_strength=strength), 0, TINY).by_part
        for strength in (1e-9, 1e9)
    ]
    (free_first, free_last), (held_first, held_last) = ends
    assert free_first == held_first
    assert abs(held_last.nll - held_first.nll) < abs(free_last.nll - free_first.nll)


def test_pretraining_carries_the_convolutions_and_nothing_else() -> None:
    def beginning(of: Experiment) -> Any:
        return begin(of, prepare(of, 0, TINY, "cpu"), 0, "cpu", lambda steps: lambda progress: None)

    tuned, fixed, laplace = (beginning(of) for of in EVERY[6:])
    plain = beginning(experiment(dataset="cifar5+5"))
    carried = tuned.network.state_dict()
    for name, value in laplace.network.state_dict().items():
        assert torch.equal(value, carried[name])
        assert torch.equal(value, plain.network.state_dict()[name]) is False
    for other in (laplace, fixed):
        means, sds = other.belief.mean(), other.belief.sd()
        for name, value in carried.items():
            if name.startswith("features."):
                assert torch.equal(means[name], value)
            else:
                assert not means[name].any()
                assert torch.allclose(sds[name], torch.ones_like(value))
    assert 0 < laplace.belief.sd()["features.0.weight"].min() < laplace.belief.sd()["features.0.weight"].max() <= 1
