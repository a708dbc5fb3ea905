"""The store as one works with it: every verb of the command line, as a method."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

from torch import nn

from postprior import distributed
from postprior.data.encoding import Encoding
from postprior.errors import StoreError
from postprior.learning.combine import divergence_by_layer
from postprior.learning.likelihoods import Categorical, Likelihood
from postprior.learning.predict import predict
from postprior.learning.training import Progress
from postprior.networks.belief import Belief
from postprior.pipeline import absorbing, combining, drafts, exporting, moving
from postprior.pipeline.absorbing import (
    CANDIDATE,
    CHAMPION,
    HEAD,
    HELDOUT_SAMPLES,
    Asked,
    Begun,
    Outcome,
    Target,
    Tools,
)
from postprior.pipeline.exporting import SERVED_SAMPLES
from postprior.pipeline.following import follow
from postprior.pipeline.incoming import encoding_for, raw_data
from postprior.pipeline.initial import Plan, first
from postprior.pipeline.lineage import Record, counted_parts, family_tree
from postprior.pipeline.measures import measure
from postprior.pipeline.predictions import Predictions
from postprior.pipeline.recipe import Recipe, build
from postprior.pipeline.reporting import write_report
from postprior.pipeline.together import Crowd, Gathered, absorb_together
from postprior.serving.trackers import Tracker
from postprior.store.archive import Archive
from postprior.store.audit import Problem
from postprior.store.journal import Entry

Address = str | os.PathLike[str]


class Store:
    """Beliefs on a disk or at any fsspec address, and all that is done with them.

    ``head`` is the belief that the next part is absorbed into, ``champion`` the one that last passed its gate, and
    ``candidate`` the newest, passed or not. Wherever a belief is asked for, ``at`` takes an alias, an id or the
    beginning of one, and ``head~3``. Data are addresses (.npz, .parquet, .csv, a folder of pictures by class, a saved
    Hugging Face dataset, ``module:function``), or whatever ``postprior.as_part`` takes.

        >>> import tempfile
        >>> place = tempfile.mkdtemp() + "/store"
        >>> store = Store.create(place, "mlp", arguments={"in_features": 2, "num_outputs": 3}, epochs=2)
        >>> outcome = store.absorb((torch.randn(20, 2), torch.arange(20) % 3), part="monday")
        >>> store.predict(torch.randn(4, 2)).mean.shape
        torch.Size([4, 3])
    """

    def __init__(self, archive: Archive, given: nn.Module | None, device: str) -> None:
        """Use ``create`` or ``open``."""
        self.archive, self.recipe = archive, Recipe.from_json(archive.recipe)
        self._given, self._device = given, device

    @classmethod
    def create(
        cls,
        address: Address,
        network: str | nn.Module,
        *,
        likelihood: str | Likelihood = "categorical",
        device: str = "cpu",
        **plan: Any,
    ) -> Self:
        """Make a store where nothing stands, with the belief before any part; nothing else starts from scratch.

        ``network`` is a name such as ``"lenet5"``, the address of a function (``"package.module:function"``, called
        with ``arguments``), or a module, which then has to be handed over whenever the store is opened. ``plan`` are
        the fields of ``initial.Plan`` (family, prior_sd, point, frozen, seed; pretrained, carry, pretrained_sd,
        old_data; normalise, classes, target, inputs, like) and of ``Settings`` (epochs, temperature, ...).
        """
        recipe, belief, encoding, given = first(Plan.of(network, likelihood, plan), device)
        archive = Archive.create(address, recipe.to_json())
        moving.acknowledge_first(archive, recipe, belief, encoding)
        return cls(archive, given, device)

    @classmethod
    def open(cls, address: Address, network: nn.Module | None = None, *, device: str = "cpu") -> Self:
        """Take up a store; ``network`` only if it was made with a module."""
        return cls(Archive.open(address), network, device)

    def absorb(
        self,
        data: Any,
        *,
        part: str | None = None,
        evaluate: Any = None,
        gate: str | None = None,
        allow_repeat: bool = False,
        branch: str | None = None,
        onto: str | None = None,
        promote: bool = True,
        wait: bool = False,
        trackers: Sequence[Tracker] = (),
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        every_seconds: float = 60.0,
        shard: bool = False,
        **settings: Any,
    ) -> Outcome:
        """Score a new part under the old belief, learn it, evaluate, record, and promote if the gate passes.

        ``part`` names it (otherwise its file does). ``evaluate`` is held-out data, which is not learned; a ``gate``
        such as ``"nll<=champion+0.01"`` compares measures of it, and a belief that does not pass is kept as
        ``candidate``, while head and champion stay. ``branch`` moves an alias of that name and not ``head``; ``onto``
        is where it grows from. ``wait`` for another process to finish, rather than a BusyError. ``stop`` is asked after
        every step; at True the absorption is put away for ``resume``, as it is every ``every_seconds``. Further
        keywords are settings for this part alone. ``trackers`` are told of what was recorded; what they raise is a
        warning. Inside ``distributed.joined`` all processes call this together; the first one writes and is waited for.
        With ``shard`` each of them holds a share of the belief, none the whole, and the belief is as many files.
        """

        def begin(tools: Tools) -> Begun | Outcome:
            asked = Asked(
                data=data,
                part=part,
                evaluate=evaluate,
                gate=gate,
                repeat=allow_repeat,
                target=self._target(branch, onto, promote),
                settings=settings,
                shard=shard,
            )
            return absorbing.begin(tools, asked)

        return self._learned(begin, data, self._tools(progress, stop, every_seconds), wait, trackers)

    def absorb_together(
        self,
        data: Sequence[Any],
        *,
        parallel: str = "local",
        workers: int | None = None,
        rounds: int = 0,
        evaluate: Any = None,
        gate: str | None = None,
        branch: str | None = None,
        onto: str | None = None,
        promote: bool = True,
        wait: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **settings: Any,
    ) -> Gathered:
        """Absorb several parts at once on Ray's workers, and multiply what they learned: merging, in one go.

        ``parallel`` is "local" or the address of a cluster, which has to reach the data and hold this package.
        ``rounds`` of refinement let every worker learn again, knowing what the others found; each part counts once all
        the same. ``progress`` is told how many tasks are done, and of how many. The other keywords are as of
        ``absorb``. If this process dies, nothing has happened: there is nothing to resume.
        """
        crowd = Crowd(parallel=parallel, workers=workers, rounds=rounds)
        with self.archive.locked(wait):
            return absorb_together(
                self._tools(),
                self._given,
                self._device,
                data,
                crowd=crowd,
                target=self._target(branch, onto, promote),
                evaluate=evaluate,
                gate=gate,
                settings=settings,
                progress=progress,
            )

    def resume(
        self,
        data: Any = None,
        *,
        evaluate: Any = None,
        wait: bool = False,
        trackers: Sequence[Tracker] = (),
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        every_seconds: float = 60.0,
    ) -> Outcome:
        """Go on with the absorption that was interrupted, to the same bytes on the CPU.

        Data that were handed over as arrays must be handed over again.
        """
        tools = self._tools(progress, stop, every_seconds)
        return self._learned(lambda tools: absorbing.resume(tools, data, evaluate), data, tools, wait, trackers)

    def discard(self, *, wait: bool = False) -> str:
        """Give the interrupted absorption up; the name of its part."""
        with self.archive.locked(wait):
            try:
                intent = drafts.read_intent(self.archive)
            except StoreError:
                part = "whose name cannot be read"
            else:
                if intent is None:
                    raise StoreError(f"{self.address}: there is nothing to discard: no absorption was interrupted")
                part = intent.part
            self.archive.drop_drafts()
            return part

    # Asking.

    @property
    def address(self) -> str:
        """Where it is."""
        return self.archive.address

    @property
    def aliases(self) -> dict[str, str]:
        """The ids that the aliases point to now."""
        return dict(self.archive.state().aliases)

    def belief(self, at: str = HEAD) -> Belief:
        """A belief, on the CPU."""
        return self.archive.belief(self.archive.resolve(at))

    def evaluate(
        self, data: Any, *, at: str = CHAMPION, num_samples: int = HELDOUT_SAMPLES, seed: int = 0
    ) -> dict[str, float]:
        """Measures of data with targets, none of which is learned: NLL, accuracy, ECE and so on."""
        network, belief, likelihood = self._asked(at)
        part = self._encoding(at, raw := raw_data(data, self.recipe, labelled=True)).part(raw)
        return measure(network, belief, part, likelihood, num_samples=num_samples, seed=seed)

    def predict(self, data: Any, *, at: str = CHAMPION, **options: Any) -> Predictions:
        """What is predicted for every row, targets or not; ``options`` as of ``postprior.predict``."""
        network, belief, likelihood = self._asked(at)
        encoding = self._encoding(at, raw := raw_data(data, self.recipe, labelled=False))
        found = predict(network, belief, encoding.inputs(raw), likelihood, **options)
        one_of = isinstance(likelihood, Categorical) and found.mean.dim() == 2
        return Predictions(**vars(found), classes=encoding.classes, one_of=one_of)

    def log(self, at: str | None = None) -> list[Entry]:
        """What was done, the newest first; with ``at``, only how that belief came about."""
        entries = self.archive.entries()[::-1]
        if at is None:
            return entries
        own = family_tree(self.archive, self.archive.resolve(at))
        return [entry for entry in entries if entry.belief in own]

    def show(self, at: str = HEAD) -> dict[str, Any]:
        """All that is known of one belief but its tensors: its manifest."""
        return self.archive.manifest(self.archive.resolve(at))

    def parts(self, at: str = HEAD) -> list[Record]:
        """The records of the parts that a belief has learned and not forgotten, oldest first."""
        id = self.archive.resolve(at)
        return list(counted_parts(family_tree(self.archive, id), id).values())

    def diff(self, one: str, other: str) -> dict[str, float]:
        """KL(one ‖ other) in nats by layer: how much ``one`` says that ``other`` did not know."""
        return divergence_by_layer(self.belief(one), self.belief(other))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> list[Problem]:
        """Read every file against its checksum; each thing that is not as it was written."""
        return self.archive.verify(progress)

    # Moving.

    def promote(self, ref: str = CANDIDATE) -> Entry:
        """Make a belief the champion. Head moves there too if the belief grew from it, and stays if it is ahead."""
        return moving.promote(self.archive, ref)

    def rollback(self, to: str | None = None) -> Entry:
        """Take head back to its parent, or to another ancestor; the champion too, if that is not behind it."""
        return moving.rollback(self.archive, to)

    def alias(self, name: str, ref: str | None) -> Entry:
        """Point a name of your own at a belief; None takes the name away."""
        return moving.alias(self.archive, name, ref)

    # Combining.

    def merge(
        self, refs: Sequence[str], *, base: str, into: str = HEAD, drop_negative: bool = False, wait: bool = False
    ) -> Entry:
        """The belief of all evidence that several learned apart since ``base``; ``into`` moves there.

        Their product over base^(K - 1), in closed form: exact where the beliefs are the true posteriors.
        ``drop_negative``: where one came out less sure of a weight than the base, it learned nothing of that weight.
        """
        with self.archive.locked(wait):
            return combining.merge(self.archive, self._network(), refs, base, into, drop_negative=drop_negative)

    def forget(self, part: str, *, wait: bool = False) -> Entry:
        """Divide one part's contribution out of head, which is approximate. The champion stays where it is."""
        with self.archive.locked(wait):
            return combining.forget(self.archive, self._network(), part)

    # Leaving.

    def export(
        self,
        path: Address,
        *,
        at: str = CHAMPION,
        num_samples: int = SERVED_SAMPLES,
        at_mean: bool = False,
        seed: int = 0,
        like: Any = None,
    ) -> Path:
        """Write a belief as ``.onnx`` or ``.pt2``: weight samples baked in, raw inputs in, doubts among the outputs.

        ``at_mean``: the mean weights instead, which is one network and knows no doubt about itself. ``like``: data to
        trace the network with, where random inputs would not do (tokens).
        """
        options: dict[str, Any] = {"num_samples": num_samples, "at_mean": at_mean, "seed": seed, "like": like}
        return exporting.export(self._tools(), at, Path(path), **options)

    def report(self, path: Address, data: Any = None, *, at: str = HEAD) -> Path:
        """One self-contained HTML page about the store and a belief; with held-out ``data``, about what it knows."""
        return write_report(self._tools(), path, data, at)

    def sweep(self) -> int:
        """Remove what dead processes left half-written, which nobody sees; how many beliefs were among it."""
        return self.archive.sweep()

    def _learned(
        self,
        begin: Callable[[Tools], Begun | Outcome],
        data: Any,
        tools: Tools,
        wait: bool,
        trackers: Sequence[Tracker],
    ) -> Outcome:
        """What is begun is carried out; of several processes the first holds the store, and writes."""
        if not distributed.is_first():
            return follow(tools, data)
        with ExitStack() as held:
            with distributed.agreed():
                held.enter_context(self.archive.locked(wait))
                begun = begin(tools)
            outcome = absorbing.carry_out(tools, begun)
        exporting.track(self._tools(), outcome, trackers)
        return outcome

    def _network(self) -> nn.Module:
        return build(self.recipe, self._given, self._device)

    def _target(self, branch: str | None, onto: str | None, promote: bool) -> Target:
        alias = HEAD if branch is None else branch
        growing = alias if alias in self.archive.state().aliases else HEAD
        return Target(self.archive.resolve(growing if onto is None else onto), alias, promote)

    def _tools(
        self,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        every_seconds: float = 60.0,
    ) -> Tools:
        checkpointing = {"every_seconds": every_seconds, **({"stop": stop} if stop else {})}
        make = partial(build, self.recipe, self._given)
        return Tools(self.archive, self.recipe, make, self._device, progress, checkpointing)

    def _asked(self, at: str) -> tuple[nn.Module, Belief, Likelihood]:
        """What is needed to ask a belief."""
        return self._network(), self.belief(at).to(self._device), self.recipe.make_likelihood()

    def _encoding(self, at: str, raw: Any) -> Encoding:
        return encoding_for(raw, self.recipe, self.show(at)["encoding"])
