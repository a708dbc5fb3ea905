"""The paper's experiments by name: a function each, which returns a complete, frozen configuration.

Every function takes T and one of three variants:

- "paper": what the paper says: Adam as it comes, reset at each part, a constant rate, KL x 1 on MNIST and x 0.05 on
  CIFAR-10, 100 weight samples at the end. It names no batch size and trains "until convergence": we take 128, and
  the steps in recipes.py, the same for all families.
- "tuned": temperature, prior, rates, steps and terms as `postprior search` chose them on training images set aside;
  at T=1 the same, with as many steps in all. The search has not run to its end yet, and ``recipes.TUNED`` is empty: so
  far these are the settings it starts from.
- "quick": few images and steps, and a temperature to match, to see that everything works. Its numbers show no more.

Commands are for the paper's variant with 5 seeds; add ``--variant tuned`` or ``--quick``. Numbers are means over five
seeds with 95% intervals, from results/; minutes are those of a run at T=1 and at T=10 on one H200 that some 15 runs
share. What has no number has not been run five times.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from postprior.errors import SettingError
from postprior.paper import recipes
from postprior.paper.experiment import Experiment, Variant

LABELS = {
    "ft": "FT",
    "ffg": "FFG",
    "cfg": "CFG",
    "mnf": "MNF",
    "ft-early": "FT, early stopping",
    "ft-fs": "FT, function-space term",
    "ewc": "EWC, online",
    "ffg-kl1": "FFG, KL x 1",
    "ft-pretrained": "FT, pretrained",
    "ffg-fixed": "FFG, pretrained, grid search",
    "ffg-laplace": "FFG, pretrained, Laplace",
}
"""What tables and figures call each approach, in their order."""


class Configuration(Protocol):
    """A named configuration."""

    def __call__(self, num_parts: int = 10, variant: Variant = "paper") -> Experiment:
        """With this T."""
        ...


def mnist_ft(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """MNIST, LeNet5, fine-tuning; T=1 is the joint upper bound of a network without a belief.

    ``postprior reproduce mnist --families ft``
    Expected accuracy %: T=1 99.16 ± 0.11, T=10 99.13 ± 0.10 (0.2 / 0.4 min a run).
    """
    return recipes.experiment("mnist", "ft", num_parts, variant)


def mnist_ffg(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """MNIST, LeNet5, fully factorised Gaussian; T=1 is its joint upper bound.

    ``postprior reproduce mnist --families ffg``
    Expected accuracy %: T=1 99.25 ± 0.10, T=10 98.99 ± 0.09 (0.3 / 0.5 min a run).
    """
    return recipes.experiment("mnist", "ffg", num_parts, variant)


def mnist_cfg(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """MNIST, LeNet5, channel factorised Gaussian.

    ``postprior reproduce mnist --families cfg``
    Expected accuracy %: T=1 99.25 ± 0.06, T=10 99.11 ± 0.07 (0.6 / 1.1 min a run).
    """
    return recipes.experiment("mnist", "cfg", num_parts, variant)


def mnist_mnf(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """MNIST, LeNet5, multiplicative normalizing flows.

    ``postprior reproduce mnist --families mnf``
    Expected accuracy %: T=1 99.13 ± 0.13, T=10 98.90 ± 0.06 (1.0 / 2.0 min a run).
    """
    return recipes.experiment("mnist", "mnf", num_parts, variant)


def mnist_ft_early(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """MNIST, LeNet5, fine-tuning that stops by a tenth of each part, which it does not learn from.

    ``postprior reproduce mnist --families ft-early``
    Expected accuracy %: T=1 99.14 ± 0.17, T=10 99.00 ± 0.12 (0.2 / 0.2 min a run).
    """
    return recipes.early("mnist", num_parts, variant)


def mnist_ft_fs(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """MNIST, LeNet5, fine-tuning held to its old predictions on each new part; at T=1 it would be fine-tuning.

    ``postprior reproduce mnist --families ft-fs``
    Expected accuracy %: T=10 99.15 ± 0.08 (0.5 min a run).
    """
    return recipes.experiment("mnist", "ft-fs", num_parts, variant, function_space=1.0)


def mnist_ewc(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """MNIST, LeNet5, online EWC, with λ = 1 unless it was tuned; at T=1 it would be fine-tuning.

    ``postprior reproduce mnist --families ewc``
    Expected accuracy %: T=10 99.12 ± 0.09 (0.7 min a run).
    """
    return recipes.experiment("mnist", "ewc", num_parts, variant, method="ewc")


def cifar10_ft(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR-10, 3Conv3FC, fine-tuning; T=1 is the joint upper bound of a network without a belief.

    ``postprior reproduce cifar10 --families ft``
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar10", "ft", num_parts, variant)


def cifar10_ffg(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR-10, 3Conv3FC, fully factorised Gaussian, KL x 0.05; T=1 is its joint upper bound.

    ``postprior reproduce cifar10 --families ffg``
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar10", "ffg", num_parts, variant)


def cifar10_cfg(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR-10, 3Conv3FC, channel factorised Gaussian, KL x 0.05.

    ``postprior reproduce cifar10 --families cfg``
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar10", "cfg", num_parts, variant)


def cifar10_mnf(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR-10, 3Conv3FC, multiplicative normalizing flows, KL x 0.05.

    ``postprior reproduce cifar10 --families mnf``
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar10", "mnf", num_parts, variant)


def cifar10_ft_early(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR-10, 3Conv3FC, fine-tuning that stops by a tenth of each part, which it does not learn from.

    ``postprior reproduce cifar10 --families ft-early``
    Expected accuracy: not yet measured.
    """
    return recipes.early("cifar10", num_parts, variant)


def cifar10_ft_fs(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR-10, 3Conv3FC, fine-tuning held to its old predictions on each new part; at T=1 it would be fine-tuning.

    ``postprior reproduce cifar10 --families ft-fs``
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar10", "ft-fs", num_parts, variant, function_space=1.0)


def cifar10_ewc(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR-10, 3Conv3FC, online EWC, with λ = 1 unless it was tuned; at T=1 it would be fine-tuning.

    ``postprior reproduce cifar10 --families ewc``
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar10", "ewc", num_parts, variant, method="ewc")


def cifar10_ffg_kl1(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR-10, 3Conv3FC, fully factorised Gaussian with the KL as Bayes has it, to show why it is scaled.

    ``postprior reproduce cifar10 --families ffg-kl1``; the paper reports severe underfitting, without a number.
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar10", "ffg-kl1", num_parts, variant, family="factorized", temperature=1.0)


def cifar5_ft(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR(5+5), 3Conv3FC, fine-tuning on the second five classes from a network drawn at random.

    ``postprior reproduce cifar5+5 --families ft``
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar5+5", "ft", num_parts, variant)


def cifar5_ft_pretrained(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR(5+5), 3Conv3FC, fine-tuning from convolutions trained on the first five classes.

    ``postprior reproduce cifar5+5 --families ft-pretrained``
    Expected accuracy: not yet measured.
    """
    return recipes.pretrained("ft-pretrained", num_parts, variant, family="point", pretraining="finetune")


def cifar5_ffg(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR(5+5), 3Conv3FC, fully factorised Gaussian without pretraining, KL x 0.05.

    ``postprior reproduce cifar5+5 --families ffg``
    Expected accuracy: not yet measured.
    """
    return recipes.experiment("cifar5+5", "ffg", num_parts, variant)


def cifar5_ffg_fixed(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR(5+5), 3Conv3FC, FFG around pretrained convolutions with one width, searched on the first part.

    ``postprior reproduce cifar5+5 --families ffg-fixed``
    Expected accuracy: not yet measured.
    """
    sds = (0.03, 0.3) if variant == "quick" else (0.01, 0.03, 0.1, 0.3, 1.0)
    fixed: dict[str, Any] = {"pretraining": "fixed", "pretraining_sds": sds}
    return recipes.pretrained("ffg-fixed", num_parts, variant, family="factorized", **fixed)


def cifar5_ffg_laplace(num_parts: int = 10, variant: Variant = "paper") -> Experiment:
    """CIFAR(5+5), 3Conv3FC, FFG around pretrained convolutions with Laplace's width of every weight.

    ``postprior reproduce cifar5+5 --families ffg-laplace``
    Expected accuracy: not yet measured.
    """
    return recipes.pretrained("ffg-laplace", num_parts, variant, family="factorized", pretraining="laplace")


CONFIGURATIONS: dict[str, dict[str, Configuration]] = {
    "mnist": {
        "ft": mnist_ft,
        "ffg": mnist_ffg,
        "cfg": mnist_cfg,
        "mnf": mnist_mnf,
        "ft-early": mnist_ft_early,
        "ft-fs": mnist_ft_fs,
        "ewc": mnist_ewc,
    },
    "cifar10": {
        "ft": cifar10_ft,
        "ffg": cifar10_ffg,
        "cfg": cifar10_cfg,
        "mnf": cifar10_mnf,
        "ft-early": cifar10_ft_early,
        "ft-fs": cifar10_ft_fs,
        "ewc": cifar10_ewc,
        "ffg-kl1": cifar10_ffg_kl1,
    },
    "cifar5+5": {
        "ft": cifar5_ft,
        "ft-pretrained": cifar5_ft_pretrained,
        "ffg": cifar5_ffg,
        "ffg-fixed": cifar5_ffg_fixed,
        "ffg-laplace": cifar5_ffg_laplace,
    },
}


def choose(
    tasks: Sequence[str],
    *,
    families: Sequence[str] | None = None,
    parts: Sequence[int] | None = None,
    variant: Variant = "paper",
) -> list[Experiment]:
    """The experiments of these tasks: all approaches or some, at the paper's T (1 and 10; 10 alone in CIFAR(5+5))."""
    if unknown := [task for task in tasks if task not in CONFIGURATIONS]:
        raise SettingError(f"no task is called {', '.join(unknown)}: expected one of {', '.join(CONFIGURATIONS)}")
    offered = [name for name in LABELS if any(name in CONFIGURATIONS[task] for task in tasks)]
    if unknown := [name for name in families or () if name not in offered]:
        raise SettingError(f"{', '.join(unknown)}: expected approaches among {', '.join(offered)}")
    chosen: list[Experiment] = []
    for task in tasks:
        for num_parts in parts or ((10,) if task == "cifar5+5" else (1, 10)):
            made = {name: make for name, make in CONFIGURATIONS[task].items() if not families or name in families}
            # With a single part there is nothing old to hold on to, and KL x 1 is shown once.
            skipped = {"ft-fs", "ewc", "ffg-kl1"} if num_parts == 1 else set[str]()
            chosen += [make(num_parts, variant) for name, make in made.items() if name not in skipped]
    if not chosen:
        raise SettingError("nothing to run: ft-fs, ewc and ffg-kl1 need more than one part; add --parts 10")
    return chosen
