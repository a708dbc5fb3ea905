"""Scores of predictions, and of a whole run over parts: tensors in, a Python float out.

Shapes: N examples, C classes, T parts. Probabilities [N, C] are not logits: every row sums to 1. Labels [N] are class
indices. An accuracy matrix R [T, T] has in row i the accuracies after part i, in column j those on part j's test set.
Sums are taken in float64 on the CPU, so that a score does not depend on the device or dtype of the predictions.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from postprior.errors import SettingError


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """The fraction of examples whose most probable class is the label; among equals the first class counts."""
    probabilities, labels = _checked_predictions("accuracy", probabilities, labels)
    return float((probabilities.argmax(dim=1) == labels).double().mean())


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """The negative log-likelihood in nats, -log p(label), averaged over examples.

    It is `inf` as soon as one true class has probability exactly 0: that is the value of the formula. A floor under
    the probabilities would make the score depend on the floor.
    """
    probabilities, labels = _checked_predictions("nll", probabilities, labels)
    # log p <= 0, so abs is the minus sign; it differs in giving 0.0 and not -0.0 to perfect predictions.
    return float(_of_label(probabilities, labels).log().mean().abs())


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """The Brier score: (p - one_hot(label))^2, summed over classes and averaged over examples, so from 0 to 2.

    References:
        Verification of Forecasts Expressed in Terms of Probability (Brier, 1950)
    """
    probabilities, labels = _checked_predictions("brier", probabilities, labels)
    one_hot = F.one_hot(labels, probabilities.shape[1])
    return float((probabilities - one_hot).square().sum(dim=1).mean())


def ece(probabilities: Tensor, labels: Tensor, num_bins: int = 15) -> float:
    """The expected calibration error of the most probable class: sum_b n_b / N |accuracy_b - confidence_b| over bins b.

    References:
        On Calibration of Modern Neural Networks (Guo, Pleiss, Sun and Weinberger, 2017)
        https://arxiv.org/abs/1706.04599

    Arguments:
        probabilities: Predicted probabilities [N, C].
        labels: Class indices [N].
        num_bins: Bins of equal width on [0, 1]; each holds its lower edge, the last one also 1.
    """
    probabilities, labels = _checked_predictions("ece", probabilities, labels)
    if num_bins < 1:
        raise _refused("ece", "num_bins >= 1", str(num_bins), "the usual choice is 15")
    # Not torchmetrics: to import it takes longer than to learn a small part, and every night's process would.
    confidence, guess = probabilities.max(dim=1)
    place = (confidence * num_bins).long().clamp(max=num_bins - 1)
    gaps = torch.zeros(num_bins, dtype=torch.float64).index_add(0, place, (guess == labels).double() - confidence)
    return float(gaps.abs().sum() / len(labels))


def ood_auroc(score_in: Tensor, score_out: Tensor) -> float:
    """The probability that a score from outside the distribution exceeds one from inside; equal scores count half.

    Arguments:
        score_in: Scores [N_in] of examples like those learned from; higher means further out of the distribution,
            as with the entropy of a prediction or its mutual information with the weights.
        score_out: Scores [N_out] of examples from elsewhere.
    """
    from torchmetrics.functional.classification import binary_auroc

    for name, score in (("score_in", score_in), ("score_out", score_out)):
        if score.ndim != 1 or len(score) == 0:
            raise _refused("ood_auroc", f"{name} [N] with N >= 1", str(list(score.shape)), "give one score an example")
        if score.isnan().any():
            raise _refused("ood_auroc", f"{name} without NaN", f"{int(score.isnan().sum())} NaN", "mend the scores")
    scores = torch.cat([score_in.detach().cpu().double(), score_out.detach().cpu().double()])
    # torchmetrics squashes scores outside [0, 1] by a sigmoid, where large ones round to the same number. Only their
    # order counts, so it gets their ranks, scaled into [0, 1).
    _, ranks = scores.unique(return_inverse=True)
    is_out = torch.arange(len(scores)) >= len(score_in)
    return float(binary_auroc(ranks.double() / len(scores), is_out.long()))


def accuracy_matrix(predictions: Sequence[Sequence[Tensor]], labels: Sequence[Tensor]) -> Tensor:
    """R [T, T]: in row i the accuracies after part i, in column j those on part j's test set.

    Arguments:
        predictions: After each part, the probabilities [N, C] predicted for the test set of every part, later ones too.
        labels: Class indices [N] of each test set.
    """
    num_parts = len(labels)
    if not num_parts or [len(row) for row in predictions] != [num_parts] * num_parts:
        expected = f"{num_parts} rows of {num_parts} predictions, one for each test set, with at least one"
        found = f"rows of {[len(row) for row in predictions]}"
        raise _refused("accuracy_matrix", expected, found, "predict every part's test set after every part")
    rows = [[accuracy(row[j], labels[j]) for j in range(num_parts)] for row in predictions]
    return torch.tensor(rows, dtype=torch.float64)


def average_accuracy(R: Tensor) -> float:
    """The mean accuracy over all test sets after the last part: mean_j R[T, j] (Lopez-Paz and Ranzato, 2017)."""
    return float(_checked_matrix("average_accuracy", R, least=1)[-1].mean())


def forgetting(R: Tensor) -> float:
    """How far the last row lies below the best earlier one: mean over j < T of max over l < T of R[l, j] - R[T, j].

    As in the reference, the best is sought in every row before the last, those before part j included. It is
    negative if the last part still helped.

    References:
        Riemannian Walk for Incremental Learning (Chaudhry, Dokania, Ajanthan and Torr, 2018)
        https://arxiv.org/abs/1801.10112
    """
    accuracies = _checked_matrix("forgetting", R, least=2)
    return float((accuracies[:-1, :-1].amax(dim=0) - accuracies[-1, :-1]).mean())


def backward_transfer(R: Tensor) -> float:
    """What later parts did to earlier ones: mean over j < T of R[T, j] - R[j, j]; negative where they were forgotten.

    References:
        Gradient Episodic Memory for Continual Learning (Lopez-Paz and Ranzato, 2017)
        https://arxiv.org/abs/1706.08840
    """
    accuracies = _checked_matrix("backward_transfer", R, least=2)
    return float((accuracies[-1] - accuracies.diagonal())[:-1].mean())


def forward_transfer(R: Tensor, baseline: Tensor) -> float:
    """What earlier parts gave to one not yet seen: mean over j > 1 of R[j - 1, j] - baseline[j].

    References:
        Gradient Episodic Memory for Continual Learning (Lopez-Paz and Ranzato, 2017)
        https://arxiv.org/abs/1706.08840

    Arguments:
        R: Accuracy matrix [T, T].
        baseline: Accuracies [T] on the same test sets at initialisation, before any part.
    """
    accuracies = _checked_matrix("forward_transfer", R, least=2)
    if baseline.shape != R.shape[:1] or not baseline.isfinite().all():
        found = f"shape {list(baseline.shape)}, {int((~baseline.isfinite()).sum())} of its numbers not finite"
        cure = "score the network on every test set before the first part"
        raise _refused("forward_transfer", f"a finite baseline [{len(R)}]", found, cure)
    return float((accuracies.diagonal(offset=1) - baseline.detach().cpu().double()[1:]).mean())


def _of_label(probabilities: Tensor, labels: Tensor) -> Tensor:  # [N, C], [N] -> [N]
    return probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)


def _refused(where: str, expected: str, found: str, cure: str) -> SettingError:
    return SettingError(f"{where}: expected {expected}, found {found}; {cure}.")


def _checked_predictions(where: str, probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The predictions in float64, at most 1, and the labels in int64, both on the CPU; or a `SettingError`."""
    shape, dtype = list(probabilities.shape), probabilities.dtype
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2 or not dtype.is_floating_point:
        cure = "give a row for each example and a column for each class, for a yes-or-no question 1 - p and p"
        raise _refused(where, "floating-point probabilities [N, C] with N >= 1 and C >= 2", f"{dtype} {shape}", cure)
    if list(labels.shape) != shape[:1] or labels.dtype == torch.bool or labels.dtype.is_floating_point:
        cure = "give one class index for each row of the probabilities, for one-hot labels their argmax"
        raise _refused(where, f"integer labels [{shape[0]}]", f"{labels.dtype} {list(labels.shape)}", cure)
    probabilities, labels = probabilities.detach().cpu().double(), labels.detach().cpu().long()
    if labels.min() < 0 or labels.max() >= shape[1]:
        cure = "number the classes from 0, in the order of the columns"
        raise _refused(where, f"labels from 0 to {shape[1] - 1}", f"{int(labels.min())} to {int(labels.max())}", cure)
    total, least = probabilities.sum(dim=1), probabilities.amin(dim=1)
    tolerance = max(1e-4, 2 * torch.finfo(dtype).eps)  # in bfloat16 an honest row is off by more than 1e-4
    fair = ((total - 1).abs() <= tolerance) & (least >= 0)  # NaN passes no comparison
    if not fair.all():
        row = int((~fair).nonzero()[0])
        found = f"row {row} with sum {float(total[row]):.6g} and least entry {float(least[row]):.6g}"
        raise _refused(where, "rows of non-negative numbers that sum to 1", found, "apply softmax to logits")
    return probabilities.clamp(max=1.0), labels


def _checked_matrix(where: str, R: Tensor, least: int) -> Tensor:
    """The accuracy matrix in float64 on the CPU, or a `SettingError`."""
    if R.ndim != 2 or R.shape[0] != R.shape[1] or len(R) < least:
        cure = "give one row after each part and one column for each part's test set"
        raise _refused(where, f"an accuracy matrix [T, T] with T >= {least}", f"shape {list(R.shape)}", cure)
    if not R.isfinite().all():
        cure = "score every test set after every part, those of later parts too"
        raise _refused(where, "finite accuracies", f"{int((~R.isfinite()).sum())} that are not", cure)
    return R.detach().cpu().double()
