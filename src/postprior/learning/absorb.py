"""The one line everything serves: belief = absorb(network, prior=belief, part=part)."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from postprior import distributed
from postprior.batch import Part
from postprior.errors import BeliefError, PartError, SettingError
from postprior.learning import objective
from postprior.learning.checkpoint import Checkpointing, Keeper, check_part, identity_of
from postprior.learning.checks import outputs_of
from postprior.learning.graph import own_stream
from postprior.learning.likelihoods import Likelihood
from postprior.learning.objective import Term
from postprior.learning.predict import Score, device_of, frozen_network, score, score_of
from postprior.learning.settings import Settings
from postprior.learning.shards import Shard, of_all, own_share
from postprior.learning.steps import uses_graph
from postprior.learning.training import Epoch, Progress, train
from postprior.maths import seeds
from postprior.networks import normalisation
from postprior.networks.bayesian import BayesianNetwork, from_belief
from postprior.networks.belief import Belief
from postprior.networks.convert import starting_posterior
from postprior.networks.drawing import Trainable

HOLDOUT_SAMPLES = 10
"""Weight samples behind one look at the held-out share."""


@dataclass(frozen=True)
class Update:
    """What one absorption reports; nothing of it is carried."""

    before: Score | None
    """The part under the OLD belief, measured before it was learned; None if ``score_samples`` is 0."""
    data_term: float
    """E[log p(D_t | w)] in nats for the whole part, averaged over the last epoch; the larger the better."""
    kl: float
    """KL(posterior ‖ prior) in nats, once learned; for families with a flow, an estimate from one draw."""
    temperature: float
    num_examples: int
    """Examples learned from, without those held out."""
    num_steps: int
    seconds: float
    epochs: tuple[Epoch, ...]
    stopped_early: bool

    @property
    def elbo(self) -> float:
        """Objective (2) of the paper, in nats: the data term less temperature x KL."""
        return self.data_term - self.temperature * self.kl


def absorb(
    network: nn.Module,
    *,
    prior: Belief,
    part: Part,
    likelihood: Likelihood,
    settings: Settings | None = None,
    seed: int = 0,
    terms: Mapping[str, Term] | None = None,
    progress: Callable[[Progress], None] | None = None,
    checkpointing: Checkpointing | None = None,
) -> tuple[Belief, Update]:
    """The belief after one more part, and a report. Neither the network nor the prior changes, whatever happens.

    ``terms`` are summands of your own, added to the objective. Same seed, same prior and same part give the same bytes
    on the CPU, also where ``checkpointing`` stops the absorption and another process resumes it.

    Inside ``distributed.joined`` all processes call this together and get the same belief: each learns from a share of
    the part's examples, with noise of its own, and ``batch_size`` counts the examples of all of them.
    """
    settings, began = settings or Settings(), time.perf_counter()
    device, key = device_of(network), (seed, prior.num_parts)
    identity = partial(identity_of, prior, likelihood, settings, seed, terms or {}, device.type)
    with distributed.agreed():
        part = own_share(part)
        keeper = Keeper(checkpointing, identity) if checkpointing else None
    check_alike(part, identity)
    own = distributed.key()
    with seeds.quarantined(device, *key, "torch", *own):
        before = _before(network, prior, part, likelihood, settings, seeds.number(*key, "before"), keeper)
        choosing = seeds.stream("cpu", *key, "split", *own)
        learned, held, num_examples = _split(part, before.num_examples, settings, choosing)
        posterior = _start(network, prior, settings, seeds.stream(device, *key, "weights"))
        posterior.gather(prior.weights, draws_are_seen=bool(terms))
        if own:  # the start is the same in all processes, the noise from here on is not
            posterior.generator = seeds.stream(device, *key, "weights", *own)
        distributed.broadcast(posterior.tensors().values())
        usual = _terms(network, posterior, prior, likelihood, settings)
        if taken := usual.keys() & (terms or {}).keys():
            raise SettingError(
                f"terms: {', '.join(taken)} is a term of the objective already; call yours something else"
            )
        all_terms = {**usual, **(terms or {})}

        def judge() -> float:
            assert held is not None
            # Running statistics are those of each process's own batches until the end: here the first one's count.
            distributed.broadcast(posterior.network.buffers())
            with normalisation.modes_kept(posterior):
                posterior.eval()
                options = {"num_samples": HOLDOUT_SAMPLES, "seed": seed, "batch_size": settings.batch_size}
                has_some = not isinstance(held, Shard) or len(held)
                return of_all(score_of(posterior, held, likelihood, **options) if has_some else None).nll

        tracking = normalisation.tracking_layers(posterior.network, prior.held)
        stream = own_stream(device, uses_graph(settings, device))
        with normalisation.training_mode(posterior.network, tracking), stream:
            posterior.training = True
            order = seeds.stream("cpu", *key, "order", *own)
            judging = judge if held is not None else None
            about = (settings, num_examples, order, judging, progress, keeper)
            trace = train(posterior, learned, likelihood, all_terms, *about)
        counts = accumulate_statistics(posterior, prior.counts, learned, settings, tracking)
        with torch.no_grad():
            own_kl = float(objective.total_kl(posterior.families(), prior.weights, posterior.draw()))
        kl = distributed.total(own_kl) / distributed.size()
    belief = posterior.belief(counts, num_parts=prior.num_parts + 1, num_examples=prior.num_examples + num_examples)
    update = Update(
        before=before if settings.score_samples else None,
        data_term=trace.epochs[-1].data_term,
        kl=kl,
        temperature=settings.temperature,
        num_examples=num_examples,
        num_steps=trace.num_steps,
        seconds=time.perf_counter() - began + (keeper.seconds_before if keeper else 0),
        epochs=trace.epochs,
        stopped_early=trace.stopped_early,
    )
    return belief, update


def _before(
    network: nn.Module,
    prior: Belief,
    part: Part,
    likelihood: Likelihood,
    settings: Settings,
    seed: int,
    keeper: Keeper | None,
) -> Score:
    """The part under the old belief, measured once: an absorption that is resumed knows it."""
    if keeper and keeper.before:
        check_part(part, settings.batch_size, keeper.before.num_examples)
        return keeper.before
    num_samples = max(1, settings.score_samples)  # one is needed to check the examples
    options = {"num_samples": num_samples, "seed": seed, "batch_size": settings.batch_size}
    with distributed.agreed():
        try:
            own = score(network, prior, part, likelihood, **options)
        except PartError as error:
            raise numbered(error) from error
    found = of_all(own)
    if keeper:
        keeper.before = found
    return found


def numbered(error: PartError) -> PartError:
    """The error, with what its numbers of examples mean where processes share a part."""
    size, rank = distributed.size(), distributed.rank()
    if size == 1:
        return error
    return type(error)(
        f"{error} (as process {rank} of {size} counts, whose example k is example {size} k + {rank} of the part)"
    )


def check_alike(part: Part, identity: Callable[[], dict[str, Any]]) -> None:
    """Raise a BeliefError unless all processes begin with the same belief, settings and part."""
    if not isinstance(part, Shard):
        return
    own = {**json.loads(json.dumps(identity())), "examples": sum(part.lengths)}
    first = distributed.told(own)
    with distributed.agreed():
        if odd := [name for name in own if own[name] != first[name]]:
            raise BeliefError(
                f"process {distributed.rank()} began with another {odd[0]} ({own[odd[0]]!r:.60}) than the first "
                f"({first[odd[0]]!r:.60}): give all of them the same; a network that is made anew needs the same "
                "torch.manual_seed in each, or a prior"
            )


def _split(
    part: Part, num_examples: int, settings: Settings, generator: torch.Generator
) -> tuple[Part, Part | None, int]:
    if not settings.holdout:
        return part, None, num_examples
    num_held = round(settings.holdout * num_examples)
    if not 0 < num_held < num_examples:
        raise PartError(
            f"holdout={settings.holdout} of {num_examples} examples leaves {num_held} to judge by and "
            f"{num_examples - num_held} to learn from: expected at least one of each; give a larger part"
        )
    learned, held = part.split(num_held, generator)
    return learned, held, num_examples - num_held


def _start(network: nn.Module, prior: Belief, settings: Settings, generator: torch.Generator) -> BayesianNetwork:
    local = settings.local_reparameterization
    if prior.num_parts == 0 or settings.start == "fresh":
        posterior = starting_posterior(network, prior, settings.start_sd, local, generator)
    else:
        posterior = from_belief(network, prior, local_reparameterization=local, generator=generator)
    if not any(parameter.requires_grad for parameter in posterior.parameters()):
        raise SettingError("every parameter is frozen: there is nothing to learn; freeze fewer")
    return posterior


def _terms(
    network: nn.Module,
    posterior: BayesianNetwork,
    prior: Belief,
    likelihood: Likelihood,
    settings: Settings,
) -> dict[str, Term]:
    """The summands that the settings ask for."""
    terms = {
        "data": objective.negative_log_likelihood(likelihood),
        "kl": objective.divergence(posterior, prior.weights, settings.temperature),
    }
    # Before the first part the old belief has seen nothing worth keeping.
    if settings.function_space and prior.num_parts:
        old = frozen_network(network, prior)
        # The posterior's own generator, the one that a recorded step knows of.
        noise = posterior.generator
        terms["function space"] = objective.function_space(old, likelihood, settings.function_space, noise)
    return terms


@torch.no_grad()
def accumulate_statistics(
    posterior: Trainable, before: Mapping[str, int], part: Part, settings: Settings, layers: normalisation.Layers
) -> dict[str, int]:
    """One more pass, with sampled weights as in prediction, adds the part's moments to the running statistics."""
    if not layers:
        return dict(before)
    device, dtype = posterior.device, posterior.dtype
    with normalisation.observing(posterior.network, layers) as seen:
        posterior.training = False
        for batch in part.batches(settings.batch_size):
            outputs_of(posterior, posterior.draw(), batch.to(device, dtype), 0)
    return normalisation.accumulate(layers, before, normalisation.of_all(seen))
