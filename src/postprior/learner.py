"""The everyday surface: one object that absorbs parts, predicts, and can be put away and taken up again."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from postprior import distributed
from postprior.data.parts import as_inputs, as_part
from postprior.errors import BeliefError, SettingError, StoreError
from postprior.learning import likelihoods, predict
from postprior.learning.absorb import Update, absorb
from postprior.learning.forward import ForwardPrecision
from postprior.learning.likelihoods import Likelihood
from postprior.learning.objective import Term
from postprior.learning.predict import Prediction, Score
from postprior.learning.progress import shown
from postprior.learning.settings import Settings, checked_names
from postprior.learning.sharded import absorb_sharded
from postprior.networks.bayesian import check_fits, from_belief
from postprior.networks.belief import Belief
from postprior.networks.convert import first_belief
from postprior.networks.sharded import ShardedBelief, check_fits_share, first_share
from postprior.store.manifest import from_plain, to_plain
from postprior.store.tensors import read_tensors, write_tensors


class Learner:
    """A network that learns from parts that arrive one after another; after each, the posterior becomes the prior.

    ``network`` is left untouched. ``family`` is a name in ``postprior.FAMILIES``; ``likelihood`` a name, an object such
    as ``postprior.Gaussian(sd=0.7)``, or a function of outputs and targets. ``prior_sd`` is the width of the first
    prior, a number or ``"fan_in"``. ``point`` and ``frozen`` are patterns of parameter names. ``prior`` is a first
    belief to start from instead, such as one made from a pretrained network. Every field of ``postprior.Settings``
    is a further keyword: ``temperature=0.2``, ``epochs=50``. ``shard`` cuts the belief among the processes of
    ``distributed.joined``, inside of which the learner is then made and used: each has a ``share``, and none the whole.

        >>> learner = Learner(nn.Linear(2, 3), likelihood="categorical", epochs=2, seed=0)
        >>> update = learner.absorb((torch.randn(20, 2), torch.randint(3, (20,))))
        >>> learner.predict(torch.randn(4, 2)).mean.shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        family: str = "factorized",
        likelihood: str | Likelihood | Callable[[Tensor, Tensor], Tensor] = "categorical",
        prior_sd: float | str = 1.0,
        point: Sequence[str] = (),
        frozen: Sequence[str] = (),
        prior: Belief | ShardedBelief | None = None,
        shard: bool = False,
        seed: int = 0,
        terms: Mapping[str, Term] | None = None,
        progress: bool = False,
        settings: Settings | None = None,
        **more_settings: Any,
    ) -> None:
        self.settings = replace(settings or Settings(), **checked_names(more_settings))
        self.likelihood = likelihoods.as_likelihood(likelihood)
        self.network, self.seed, self.terms, self.progress = network, seed, dict(terms or {}), progress
        unknowns = self.likelihood.unknowns()
        if prior is None and shard:
            for name, given, only in (("family", family, "factorized"), ("point", point, ()), ("frozen", frozen, ())):
                if given != only:
                    raise SettingError(f"{name}={given!r} with shard=True: only factorised Gaussians can be cut")
            prior = first_share(network, prior_sd, unknowns)
        elif prior is None:
            prior = first_belief(network, family, prior_sd=prior_sd, point=point, frozen=frozen, unknowns=unknowns)
        elif shard and isinstance(prior, Belief):
            prior = ShardedBelief.of(prior)
        if isinstance(prior, Belief):
            check_fits(network, prior)
        else:
            check_fits_share(network, prior)
        if isinstance(prior, ShardedBelief) and self.terms:
            raise SettingError("terms=... look at whole draws, and with shard=True there are none: leave them out")
        self._belief = prior

    @property
    def belief(self) -> Belief:
        """What is known so far: frozen, and the prior of the next part."""
        if isinstance(self._belief, ShardedBelief):
            raise BeliefError(
                "the belief is sharded: no process holds all of it. Where one can, learner.share.whole() puts it "
                "together, in all processes at once"
            )
        return self._belief

    @property
    def share(self) -> ShardedBelief:
        """This process's share of a belief that is sharded."""
        if isinstance(self._belief, Belief):
            raise BeliefError("the belief is whole, not sharded: see learner.belief, or make a learner with shard=True")
        return self._belief

    def absorb(self, data: Any, *, target: str | None = None, **settings: Any) -> Update:
        """Learn from one part; whatever goes wrong, the belief is as it was.

        ``data``: ``(x, y)`` of arrays or tensors, a Dataset, a DataLoader, or dictionaries (``target`` names the
        targets). Further keywords are settings for this part alone. Inside ``distributed.joined`` all processes call
        this together, each with the whole of the data or a Dataset that fetches them, and get the same belief.
        """
        chosen = replace(self.settings, **checked_names(settings))
        title = f"part {self._belief.num_parts + 1}"
        with shown(title) if self.progress and distributed.is_first() else nullcontext() as progress:
            given: dict[str, Any] = {
                "part": as_part(data, target=target),
                "likelihood": self.likelihood,
                "settings": chosen,
                "seed": self.seed,
                "progress": progress,
            }
            if isinstance(self._belief, ShardedBelief):
                self._belief, update = absorb_sharded(self.network, prior=self._belief, **given)
            else:
                self._belief, update = absorb(self.network, prior=self._belief, terms=self.terms, **given)
        return update

    def predict(
        self,
        inputs: Any,
        *,
        num_samples: int = 100,
        seed: int | None = None,
        batch_size: int = 500,
        at_mean: bool = False,
        keep_samples: bool = False,
        precision: ForwardPrecision = "float32",
        compiled: bool = False,
    ) -> Prediction:
        """Predictions averaged over weight samples, or with the mean weights; a tuple is several inputs.

        ``precision="bfloat16"`` and ``compiled=True`` make it faster; see ``docs/speed.md``.
        """
        return predict.predict(
            self.network,
            self.belief,
            as_inputs(inputs),
            self.likelihood,
            num_samples=num_samples,
            seed=self.seed if seed is None else seed,
            batch_size=batch_size,
            at_mean=at_mean,
            keep_samples=keep_samples,
            precision=precision,
            compiled=compiled,
        )

    def score(
        self,
        data: Any,
        *,
        target: str | None = None,
        num_samples: int = 100,
        seed: int | None = None,
        batch_size: int = 500,
    ) -> Score:
        """NLL and accuracy on data with targets."""
        return predict.score(
            self.network,
            self.belief,
            as_part(data, target=target),
            self.likelihood,
            num_samples=num_samples,
            seed=self.seed if seed is None else seed,
            batch_size=batch_size,
        )

    def mean_network(self) -> nn.Module:
        """A plain copy of the network with the mean weights, to deploy where one forward pass has to do."""
        network = copy.deepcopy(self.network)
        with torch.no_grad():
            bayesian = from_belief(network, self.belief, generator=torch.Generator())
            network.load_state_dict(bayesian.network.state_dict())
            means = self.belief.mean()
            for name, parameter in network.named_parameters():
                parameter.copy_(means.get(name, parameter))
        return network.eval()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write belief, likelihood, settings and seed to one file, which appears whole or not at all.

        Functions of your own (likelihood, augment, terms) are not written: no file here can hold code.
        """
        tensors, about = to_plain(self.belief)
        plain = asdict(replace(self.settings, augment=None))
        codeless = {
            "likelihood": likelihoods.to_json(self.likelihood),
            "settings": plain,
            "seed": self.seed,
            "needs": [
                name
                for name, given in (
                    ("likelihood", likelihoods.to_json(self.likelihood) is None),
                    ("augment", self.settings.augment is not None),
                    ("terms", bool(self.terms)),
                )
                if given
            ],
        }
        write_tensors(path, tensors, {"belief": about, "learner": codeless})

    @classmethod
    def load(cls, path: str | os.PathLike[str], network: nn.Module, **keywords: Any) -> Self:
        """Take up a learner that ``save`` wrote, with the network it is about.

        Keywords are those of the constructor; functions that the learner had must be given again.
        """
        tensors, about = read_tensors(path)
        if "learner" not in about:
            raise StoreError(f"{path} holds no learner: expected a file that Learner.save wrote")
        kept = about["learner"]
        missing = [name for name in kept["needs"] if name not in keywords]
        if missing:
            raise SettingError(
                f"{path} was saved with functions of your own, which no file here can hold: "
                f"pass {', '.join(f'{name}=...' for name in missing)} again"
            )
        given: dict[str, Any] = {**kept["settings"], "seed": kept["seed"], **keywords}
        if "likelihood" not in given:
            given["likelihood"] = likelihoods.from_json(kept["likelihood"])
        device = next(network.parameters()).device
        return cls(network, prior=from_plain(tensors, about["belief"]).to(device), **given)
