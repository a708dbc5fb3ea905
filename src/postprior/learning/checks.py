"""Refusing what cannot be learned from, with words that say which example and why."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from postprior.batch import Batch
from postprior.errors import BeliefError, NetworkError, PartError, PostpriorError
from postprior.families import Draw
from postprior.learning.likelihoods import Likelihood
from postprior.networks.bayesian import LIKELIHOOD
from postprior.networks.belief import Belief
from postprior.networks.drawing import Trainable


def check_finite(batch: Batch, first: int) -> None:
    """Raise a PartError if an input is NaN or infinite; ``first`` numbers the batch's first example."""
    for name, value in batch.inputs():
        if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
            bad = ~value.isfinite().reshape(len(value), -1).all(1)
            where = int(bad.nonzero()[0])
            found = value[where][~value[where].isfinite()].flatten()[0].item()
            raise PartError(
                f"example {first + where}: {name} holds {found}, expected finite numbers "
                f"({int(bad.sum())} of {len(value)} examples in its batch are bad); mend or drop it"
            )


def outputs_of(network: Trainable, draws: Mapping[str, Draw], batch: Batch, first: int) -> Tensor:
    """What the network makes of the batch; if it refuses, a PartError that says what it was given."""
    try:
        outputs: Any = network.run(draws, *batch.args, **batch.kwargs)
    except PostpriorError:
        raise  # of what a share of a belief needs of other processes
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes = ", ".join(f"{name} of shape {tuple(v.shape)}" for name, v in batch.inputs() if isinstance(v, Tensor))
        raise PartError(
            f"the network refused the batch that starts at example {first} ({shapes}, first axis the batch): {error}. "
            "Give parts of the shape the network is made for"
        ) from error
    if not isinstance(outputs, Tensor):
        raise NetworkError(
            f"the network returned {type(outputs).__name__}, expected one tensor: wrap it in a module that picks one"
        )
    return outputs


def targets_of(batch: Batch, first: int) -> Tensor:
    """The targets of the batch, or a PartError where there are none to learn from."""
    if batch.targets is None:
        raise PartError(f"the batch that starts at example {first} has inputs only: give (inputs, targets)")
    lengths = {len(value) for _, value in batch.inputs() if isinstance(value, Tensor) and value.dim() > 0}
    if lengths and len(batch.targets) not in lengths:
        raise PartError(
            f"the batch that starts at example {first} has {len(batch.targets)} targets for inputs of "
            f"{sorted(lengths)} examples: give one target an example"
        )
    return batch.targets


def check_unknowns(belief: Belief, likelihood: Likelihood) -> None:
    """Raise a BeliefError unless the belief covers what the likelihood itself has to learn."""
    for name in likelihood.unknowns():
        if LIKELIHOOD + name not in belief.weights:
            raise BeliefError(
                f"{type(likelihood).__name__}'s {name} is to be learned, but the belief says nothing of it: "
                "make the first belief with unknowns=likelihood.unknowns(), or give the likelihood a known value"
            )
