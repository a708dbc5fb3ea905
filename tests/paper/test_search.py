from dataclasses import replace
from pathlib import Path

import pytest

from paper.tiny_experiments import write_result
from postprior.errors import DataError
from postprior.paper import records, search
from postprior.paper.configs import CONFIGURATIONS
from postprior.paper.experiment import Experiment
from postprior.paper.records import PartScore, Result

TASKS = list(search.CANDIDATES)


@pytest.mark.parametrize("task", TASKS)
def test_candidates_are_scored_on_images_set_aside_and_differ(task: str) -> None:
    tried = search.candidates(task)
    assert {each.num_validation for each in tried} == {search.NUM_HELD}
    assert len({each.hash for each in tried}) == len(tried)
    assert {each.approach for each in tried} == search.CANDIDATES[task].keys() <= CONFIGURATIONS[task].keys()
    assert {each.num_parts for each in tried} == {10}


def test_candidates_of_some_approaches() -> None:
    tried = search.candidates("mnist", ["ft", "cfg"])
    assert {each.approach for each in tried} == {"ft", "cfg"}
    assert set(search.approaches()) >= {"ft", "ft-fs", "ewc", "ffg", "cfg", "ft-pretrained", "ffg-laplace"}


def result(of: Experiment, seed: int, accuracy: float) -> Result:
    score = PartScore(accuracy, 0.5, 0.02, 1)
    return Result(of, seed, (score,), score, None, 60.0, "cpu, test", "abc", {})


def test_the_best_of_each_approach_are_tried_again() -> None:
    ft, cfg = search.candidates("cifar10", ["ft"])[:5], search.candidates("cifar10", ["cfg"])[:2]
    results = [result(of, 0, 0.1 * place) for place, of in enumerate(ft)] + [result(of, 0, 0.5) for of in cfg]
    results.append(result(ft[0], 1, 0.9))  # a second seed is no reason
    assert search.finalists(results) == [ft[4], ft[3], ft[2], *cfg]


def test_what_is_slow_is_not_tried_again() -> None:
    (of, *_) = search.candidates("mnist", ["mnf"])
    assert search.finalists([result(of, 0, 0.9)]) == []


def test_the_best_over_seeds_is_chosen() -> None:
    first, second, third = search.candidates("mnist", ["ft"])[:3]
    results = [result(first, 0, 0.9), result(first, 1, 0.8), result(second, 0, 0.85), result(second, 1, 0.86)]
    results.append(result(third, 0, 0.99))  # no finalist: one seed may have been lucky
    chosen = search.chosen(results)
    assert chosen == {"mnist": {"ft": search.CANDIDATES["mnist"]["ft"][1]}}


def test_the_record_shows_every_candidate(tmp_path: Path) -> None:
    first, second = search.candidates("mnist", ["ft"])[:2]
    for of, seed, accuracy in ((first, 0, 0.9), (second, 0, 0.91), (second, 1, 0.93)):
        write_result(tmp_path, of, seed, accuracy)
    lines = search.write(tmp_path).read_text().splitlines()
    assert lines[0] == "### mnist, FT: 2 tried"
    assert [line.split("|")[-5:-1] for line in lines[4:6]] == [
        [" 2 ", " 92.00 ", " 0.500 ", " 0.020 "],
        [" 1 ", " 90.00 ", " 0.500 ", " 0.020 "],
    ]


def test_a_run_on_the_test_set_is_no_part_of_a_search(tmp_path: Path) -> None:
    (of, *_) = search.candidates("mnist", ["ft"])
    write_result(tmp_path, replace(of, num_validation=0), 0, 0.9)
    with pytest.raises(DataError, match="scored on the test set"):
        search.finalists(records.read_all(tmp_path))
