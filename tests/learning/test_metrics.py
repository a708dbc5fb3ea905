"""Scores against numbers worked out by hand, against scikit-learn, and against slow plain loops."""

import math
from collections.abc import Callable

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from torch import Tensor

from postprior.errors import SettingError
from postprior.learning.metrics import (
    accuracy,
    accuracy_matrix,
    average_accuracy,
    backward_transfer,
    brier,
    ece,
    forgetting,
    forward_transfer,
    nll,
    ood_auroc,
)

F64 = torch.float64
Score = Callable[[Tensor, Tensor], float]
PREDICTION_SCORES: list[Score] = [accuracy, nll, brier, ece]

# Three examples, three classes: right, right, wrong.
P = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.7, 0.2, 0.1]], dtype=F64)
Y = torch.tensor([0, 1, 2])

# Three parts. The best the first test set ever saw is 0.9, the second 0.8.
R = torch.tensor([[0.9, 0.2, 0.3], [0.7, 0.8, 0.4], [0.6, 0.5, 0.7]], dtype=F64)


def predictions(num_examples: int = 400, num_classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(num_examples, num_classes, generator=generator, dtype=F64)
    labels = torch.multinomial((logits / 2).softmax(dim=1), 1, generator=generator).squeeze(1)
    return logits.softmax(dim=1), labels


def slow_ece(probabilities: Tensor, labels: Tensor, num_bins: int) -> float:
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(num_bins)]
    for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        bins[min(int(confidence * num_bins), num_bins - 1)].append((confidence, row.index(confidence) == label))
    gaps = [abs(sum(c for c, _ in members) - sum(right for _, right in members)) for members in bins]
    return sum(gaps) / len(labels)


def test_by_hand() -> None:
    assert accuracy(P, Y) == pytest.approx(2 / 3)
    assert nll(P, Y) == pytest.approx(-(math.log(0.5) + math.log(0.8) + math.log(0.1)) / 3)
    assert brier(P, Y) == pytest.approx((0.375 + 0.06 + 1.34) / 3)
    # Each confidence (0.5, 0.8, 0.7) is alone in its bin of 15, and |1 - 0.5| + |1 - 0.8| + |0 - 0.7| = 1.4.
    assert ece(P, Y) == pytest.approx(1.4 / 3)
    # In one bin: the mean confidence and the accuracy are both 2 / 3.
    assert ece(P, Y, num_bins=1) == pytest.approx(0, abs=1e-6)


def test_against_scikit_learn() -> None:
    probabilities, labels = predictions()
    proba, y, classes = probabilities.numpy(), labels.numpy(), list(range(5))
    assert nll(probabilities, labels) == pytest.approx(log_loss(y, proba, labels=classes), rel=1e-12)
    expected = brier_score_loss(y, proba, labels=classes, scale_by_half=False)
    assert brier(probabilities, labels) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("num_bins", [1, 2, 10, 15, 100])
@pytest.mark.parametrize("sharpness", [1.0, 50.0])
def test_ece_against_a_slow_oracle(num_bins: int, sharpness: float) -> None:
    probabilities, labels = predictions()
    probabilities = probabilities.pow(sharpness) / probabilities.pow(sharpness).sum(dim=1, keepdim=True)
    expected = slow_ece(probabilities, labels, num_bins)
    assert ece(probabilities, labels, num_bins) == pytest.approx(expected, abs=2e-6)


def test_ece_keeps_certain_predictions_in_the_last_bin() -> None:
    # All three share the bin from 14/15 to 1, so their gap is |2.95 - 2| / 3. A bin for 1 alone would make two gaps:
    # (|0.95 - 1| + |2 - 1|) / 3.
    probabilities = torch.tensor([[0.95, 0.05], [1.0, 0.0], [1.0, 0.0]], dtype=F64)
    labels = torch.tensor([0, 0, 1])
    assert ece(probabilities, labels) == pytest.approx(0.95 / 3, abs=1e-6)


def test_rounding_above_one_is_not_taken_for_logits() -> None:
    probabilities = torch.tensor([[1.0 + 1e-6, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1])
    assert ece(probabilities, labels) == pytest.approx(0, abs=1e-6)
    assert nll(probabilities, labels) == 0


def test_a_single_example() -> None:
    one, label = P[:1], Y[:1]
    assert accuracy(one, label) == 1
    assert nll(one, label) == pytest.approx(math.log(2))
    assert brier(one, label) == pytest.approx(0.375)
    assert ece(one, label) == pytest.approx(0.5)


def test_perfect_and_hopeless_predictions() -> None:
    perfect, labels = torch.eye(3), torch.arange(3)
    scores = [score(perfect, labels) for score in PREDICTION_SCORES]
    assert scores == pytest.approx([1, 0, 0, 0], abs=1e-6)
    assert math.copysign(1, nll(perfect, labels)) == 1  # 0.0, never -0.0
    hopeless = perfect.roll(1, dims=0)
    assert accuracy(hopeless, labels) == 0
    assert brier(hopeless, labels) == 2


def test_nll_is_infinite_where_the_truth_was_held_impossible() -> None:
    probabilities = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    assert nll(probabilities, torch.tensor([0, 1])) == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("score", [accuracy, nll, brier])
def test_lower_precision_is_welcome(score: Score, dtype: torch.dtype) -> None:
    probabilities, labels = predictions()
    value = score(probabilities.to(dtype), labels.to(torch.int32))
    assert isinstance(value, float)
    assert value == pytest.approx(score(probabilities, labels), abs=4 * torch.finfo(dtype).eps)


def test_ood_auroc_by_hand_and_against_scikit_learn() -> None:
    # Of the four pairs two are in order, one is reversed and one is a tie.
    assert ood_auroc(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 3.0])) == pytest.approx(2.5 / 4)
    generator = torch.Generator().manual_seed(2)
    inside = torch.randint(0, 20, (60,), generator=generator)
    outside = torch.randint(5, 25, (90,), generator=generator)
    y = [0] * 60 + [1] * 90
    expected = roc_auc_score(y, torch.cat([inside, outside]).numpy())
    assert ood_auroc(inside, outside) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("scale", "shift"), [(1, 0), (1e-6, 0), (1, 100), (1e4, -50)])
def test_ood_auroc_depends_on_the_order_alone(scale: float, shift: float) -> None:
    inside, outside = torch.tensor([0.1, 0.2, 0.4], dtype=F64), torch.tensor([0.3, 0.5], dtype=F64)
    assert ood_auroc(inside * scale + shift, outside * scale + shift) == pytest.approx(5 / 6)
    assert ood_auroc(outside, inside) == pytest.approx(1 / 6)


def test_ood_auroc_of_equal_scores_is_a_half() -> None:
    assert ood_auroc(torch.ones(3), torch.ones(2)) == pytest.approx(0.5)


def test_an_accuracy_matrix_has_a_row_a_part_and_a_column_a_test_set() -> None:
    labels = [torch.tensor([0, 1]), torch.tensor([1, 1, 0, 0])]
    wanted = [[[0, 1], [1, 0, 1, 1]], [[1, 0], [1, 1, 0, 1]]]  # the classes predicted after each part
    predictions = [[torch.eye(2)[torch.tensor(classes)] for classes in row] for row in wanted]
    found = accuracy_matrix(predictions, labels)
    assert torch.equal(found, torch.tensor([[1.0, 0.25], [0.0, 0.75]], dtype=torch.float64))
    assert (forgetting(found), backward_transfer(found)) == (1.0, -1.0)
    for bad in ([], predictions[:1], [predictions[0], predictions[1][:1]]):
        with pytest.raises(SettingError, match=r"accuracy_matrix: expected 2 rows of 2 .* predict every part's test"):
            accuracy_matrix(bad, labels)
    with pytest.raises(SettingError, match=r"accuracy_matrix: expected 0 rows.*with at least one"):
        accuracy_matrix([], [])
    with pytest.raises(SettingError, match=r"accuracy: expected integer labels \[2\]"):
        accuracy_matrix(predictions, labels[::-1])


def test_over_time_by_hand() -> None:
    assert average_accuracy(R) == pytest.approx(0.6)
    assert forgetting(R) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.5)) / 2)
    assert backward_transfer(R) == pytest.approx(((0.6 - 0.9) + (0.5 - 0.8)) / 2)
    baseline = torch.tensor([0.5, 0.1, 0.1])
    assert forward_transfer(R, baseline) == pytest.approx(((0.2 - 0.1) + (0.4 - 0.1)) / 2)


def test_forgetting_looks_at_rows_before_the_part_too() -> None:
    matrix = torch.tensor([[0.5, 0.9, 0.0], [0.5, 0.6, 0.0], [0.5, 0.6, 0.0]])
    assert forgetting(matrix) == pytest.approx(0.15)
    assert backward_transfer(matrix) == 0


def test_forgetting_is_negative_when_the_last_part_helped() -> None:
    assert forgetting(torch.tensor([[0.5, 0.5], [0.75, 0.75]])) == -0.25


def test_average_accuracy_of_a_single_part() -> None:
    assert average_accuracy(torch.tensor([[0.75]])) == 0.75


REFUSED_PREDICTIONS = [
    (P[0], Y[:1], r"expected floating-point probabilities \[N, C\] .* found torch.float64 \[3\]; give a row"),
    (P[:0], Y[:0], r"with N >= 1 .* found torch.float64 \[0, 3\]"),
    (torch.ones(3, 1), Y * 0, r"C >= 2, found torch.float32 \[3, 1\]; .* 1 - p and p"),
    (torch.eye(3, dtype=torch.int64), Y, r"expected floating-point .* found torch.int64 \[3, 3\]"),
    (P, Y[:2], r"expected integer labels \[3\], found torch.int64 \[2\]; give one class index"),
    (P, torch.eye(3), r"expected integer labels \[3\], found torch.float32 \[3, 3\]; .* argmax"),
    (P, Y.double(), r"expected integer labels \[3\], found torch.float64 \[3\]"),
    (P, Y + 1, "expected labels from 0 to 2, found 1 to 3; number the classes from 0"),
    (P, Y - 1, "expected labels from 0 to 2, found -1 to 1"),
    (P.log(), Y, r"sum to 1, found row 0 with sum -3\.46\d+ and least entry -1\.38629; apply softmax to logits"),
    (P * 2, Y, "found row 0 with sum 2 and least entry 0.5"),
    (torch.tensor([[0.5, 0.5], [1.5, -0.5]]), Y[:2], "found row 1 with sum 1 and least entry -0.5"),
    (P.where(P != 0.8, math.nan), Y, "found row 1 with sum nan"),
    (P.where(P != 0.8, math.inf), Y, "found row 1 with sum inf"),
]


@pytest.mark.parametrize("score", PREDICTION_SCORES)
@pytest.mark.parametrize(("probabilities", "labels", "message"), REFUSED_PREDICTIONS)
def test_refused_predictions(score: Score, probabilities: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(SettingError, match=rf"^{score.__name__}: .*{message}"):
        score(probabilities, labels)


def test_refused_bins() -> None:
    with pytest.raises(SettingError, match="ece: expected num_bins >= 1, found 0; the usual choice is 15"):
        ece(P, Y, num_bins=0)


def test_refused_scores() -> None:
    good = torch.ones(2)
    with pytest.raises(SettingError, match=r"ood_auroc: expected score_in \[N\] with N >= 1, found \[0\]; give one"):
        ood_auroc(torch.ones(0), good)
    with pytest.raises(SettingError, match=r"expected score_out \[N\] with N >= 1, found \[2, 1\]"):
        ood_auroc(good, torch.ones(2, 1))
    with pytest.raises(SettingError, match="expected score_out without NaN, found 1 NaN; mend the scores"):
        ood_auroc(good, torch.tensor([1.0, math.nan]))


@pytest.mark.parametrize("score", [average_accuracy, forgetting, backward_transfer])
def test_refused_matrices(score: Callable[[Tensor], float]) -> None:
    for wrong in (R[0], R[:2], torch.ones(0, 0)):
        with pytest.raises(SettingError, match=rf"{score.__name__}: expected an accuracy matrix \[T, T\] .* one row"):
            score(wrong)
    with pytest.raises(SettingError, match="expected finite accuracies, found 3 that are not; score every test set"):
        score(R.where(R >= 0.5, math.nan))


@pytest.mark.parametrize("score", [forgetting, backward_transfer])
def test_one_part_cannot_be_forgotten(score: Callable[[Tensor], float]) -> None:
    with pytest.raises(SettingError, match=r"T >= 2, found shape \[1, 1\]"):
        score(R[:1, :1])


def test_refused_baseline() -> None:
    with pytest.raises(SettingError, match=r"forward_transfer: expected a finite baseline \[3\], found shape \[2\]"):
        forward_transfer(R, R[0, :2])
    with pytest.raises(SettingError, match="1 of its numbers not finite; score the network on every test set before"):
        forward_transfer(R, torch.tensor([0.1, math.nan, 0.1]))
