"""Bayesian incremental learning: today's posterior is tomorrow's prior.

The public names, written out by hand. Each is brought in when it is first asked for, so that the command line can
answer without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postprior.batch import Batch as Batch
    from postprior.batch import Part as Part
    from postprior.data.parts import as_inputs as as_inputs
    from postprior.data.parts import as_part as as_part
    from postprior.errors import PostpriorError as PostpriorError
    from postprior.families import FAMILIES as FAMILIES
    from postprior.learner import Learner as Learner
    from postprior.learning.absorb import Update as Update
    from postprior.learning.absorb import absorb as absorb
    from postprior.learning.checkpoint import Checkpointing as Checkpointing
    from postprior.learning.likelihoods import Bernoulli as Bernoulli
    from postprior.learning.likelihoods import Categorical as Categorical
    from postprior.learning.likelihoods import Gaussian as Gaussian
    from postprior.learning.likelihoods import Likelihood as Likelihood
    from postprior.learning.likelihoods import Poisson as Poisson
    from postprior.learning.predict import Prediction as Prediction
    from postprior.learning.predict import Score as Score
    from postprior.learning.predict import predict as predict
    from postprior.learning.predict import score as score
    from postprior.learning.settings import Settings as Settings
    from postprior.learning.sharded import absorb_sharded as absorb_sharded
    from postprior.networks.bayesian import BayesianNetwork as BayesianNetwork
    from postprior.networks.belief import Belief as Belief
    from postprior.networks.convert import bayesianize as bayesianize
    from postprior.networks.convert import first_belief as first_belief
    from postprior.networks.sharded import ShardedBelief as ShardedBelief
    from postprior.networks.sharded import first_share as first_share
    from postprior.pipeline.absorbing import Outcome as Outcome
    from postprior.pipeline.predictions import Predictions as Predictions
    from postprior.pipeline.store import Store as Store

_HOMES = {
    "FAMILIES": "postprior.families",
    "Batch": "postprior.batch",
    "BayesianNetwork": "postprior.networks.bayesian",
    "Belief": "postprior.networks.belief",
    "Bernoulli": "postprior.learning.likelihoods",
    "Categorical": "postprior.learning.likelihoods",
    "Checkpointing": "postprior.learning.checkpoint",
    "Gaussian": "postprior.learning.likelihoods",
    "Learner": "postprior.learner",
    "Likelihood": "postprior.learning.likelihoods",
    "Outcome": "postprior.pipeline.absorbing",
    "Part": "postprior.batch",
    "Poisson": "postprior.learning.likelihoods",
    "PostpriorError": "postprior.errors",
    "Prediction": "postprior.learning.predict",
    "Predictions": "postprior.pipeline.predictions",
    "Score": "postprior.learning.predict",
    "Settings": "postprior.learning.settings",
    "ShardedBelief": "postprior.networks.sharded",
    "Store": "postprior.pipeline.store",
    "Update": "postprior.learning.absorb",
    "absorb": "postprior.learning.absorb",
    "absorb_sharded": "postprior.learning.sharded",
    "as_inputs": "postprior.data.parts",
    "as_part": "postprior.data.parts",
    "bayesianize": "postprior.networks.convert",
    "first_belief": "postprior.networks.convert",
    "first_share": "postprior.networks.sharded",
    "predict": "postprior.learning.predict",
    "score": "postprior.learning.predict",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("metrics", "pretrained"):
        return import_module(f"postprior.learning.{name}")
    if name in ("distributed", "errors", "sklearn"):
        return import_module(f"postprior.{name}")
    raise AttributeError(f"postprior has no {name!r}; there are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "distributed", "errors", "metrics", "pretrained", "sklearn"]
