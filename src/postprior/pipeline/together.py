"""Several parts absorbed at once by many workers, and recorded as one belief in which each counts once."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from postprior.data.encoding import Encoding
from postprior.data.fingerprint import Hashed, fingerprint
from postprior.errors import SettingError
from postprior.learning.absorb import absorb
from postprior.learning.apart import absorb_apart
from postprior.learning.combine import check_combines
from postprior.maths import seeds
from postprior.networks.belief import Belief
from postprior.parallel import Workers, workers
from postprior.pipeline import drafts
from postprior.pipeline.absorbing import Target, Tools, acknowledge, check_gate, judged
from postprior.pipeline.gate import Verdict
from postprior.pipeline.incoming import Overlap, checked_name, compare, encoding_for, raw_data
from postprior.pipeline.lineage import Record, counted_parts, family_tree
from postprior.pipeline.recipe import Recipe, beginning, build, described, plain_settings
from postprior.serving.card import model_card

EVENT = "absorb-together"


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """How parts are shared out."""

    parallel: str
    """"local", or the address of a Ray cluster."""
    workers: int | None
    """How many on this machine; None for one a core."""
    rounds: int
    """Of refinement."""

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise SettingError(f"rounds={self.rounds}: expected a whole number from 0")


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What came of several parts absorbed at once."""

    belief: str
    parts: tuple[str, ...]
    promoted: bool
    after: Mapping[str, float] | None
    """Measures of the held-out data under the new belief."""
    verdict: Verdict | None
    overlaps: tuple[Overlap, ...]
    set_back: int
    """How many weights or kernels some worker came out less sure of than it went in, and what was set back there."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether no gate stopped it."""
        return self.verdict is None or self.verdict.passed


@dataclass(frozen=True)
class Look:
    """A worker's task: read a part, and tell what it is."""

    recipe: Recipe
    data: Any

    def __call__(self) -> Hashed:
        return fingerprint(raw_data(self.data, self.recipe, labelled=True))


@dataclass(frozen=True)
class Learn:
    """A worker's task: learn a part from a prior."""

    recipe: Recipe
    given: nn.Module | None
    device: str
    data: Any
    encoding: Any
    settings: Mapping[str, Any]
    prior: Belief
    number: int

    def __call__(self) -> Belief:
        recipe = self.recipe
        prior = self.prior.to(self.device)
        network = beginning(build(recipe, self.given, self.device), recipe, prior)
        part = Encoding.from_json(self.encoding).part(raw_data(self.data, recipe, labelled=True))
        posterior, _ = absorb(
            network,
            prior=prior,
            part=part,
            likelihood=recipe.make_likelihood(),
            settings=recipe.settings_with(self.settings),
            # Noise of its own, or what chance does to one worker it would do to all.
            seed=seeds.number(recipe.seed, "worker", self.number),
        )
        return posterior.to("cpu")


Task = Look | Learn


def absorb_together(
    tools: Tools,
    given: nn.Module | None,
    device: str,
    data: Sequence[Any],
    *,
    crowd: Crowd,
    target: Target,
    evaluate: Any,
    gate: str | None,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None] | None,
) -> Gathered:
    """Absorb parts apart from one belief and multiply what was learned; the store is to be locked meanwhile.

    A worker that dies is replaced, and its part learned anew. If this process dies, nothing has happened.
    """
    began, archive, recipe = time.perf_counter(), tools.archive, tools.recipe
    drafts.refuse_unfinished(archive)
    if len(data) < 2:
        raise SettingError(f"{len(data)} parts cannot be absorbed in parallel: give two or more")
    check_gate(gate, evaluate)
    prior = archive.belief(target.onto)
    check_combines(prior)
    # What one part alone would settle must be the same for all: the first of them settles it.
    encoding = encoding_for(raw_data(data[0], recipe, labelled=True), recipe, archive.manifest(target.onto)["encoding"])
    held = None if evaluate is None else encoding.part(raw_data(evaluate, recipe, labelled=True))
    total = len(data) * (crowd.rounds + 2)
    done = 0

    def tell(count: int) -> None:
        if progress is not None:
            progress(done + count, total)

    with workers(crowd.parallel, _carried_out, count=crowd.workers, gpus=float(device != "cpu")) as pool:
        known = list(counted_parts(family_tree(archive, target.onto), target.onto).values())
        records, overlaps = _recognised(pool, recipe, data, known, tell)
        done += len(data)

        def learn(jobs: Sequence[tuple[int, Belief]]) -> list[Belief]:
            nonlocal done
            common = (encoding.to_json(), settings)
            tasks = [Learn(recipe, given, device, data[n], *common, belief, n) for n, belief in jobs]
            found = pool.map(tasks, tell)
            done += len(data)
            return found

        together = absorb_apart(tools.network, prior, len(data), learn, rounds=crowd.rounds)
    posterior = together.belief.to(device)
    after, verdict = judged(tools, gate, tools.network, posterior, held)
    manifest: dict[str, Any] = {
        **described(recipe),
        "kind": EVENT,
        "parent": target.onto,
        "parents": [target.onto],
        "part": None,
        "parts": records,
        "rounds": crowd.rounds,
        "set_back": together.set_back,
        "overlaps": [asdict(overlap) for overlap in overlaps],
        "configuration": plain_settings(recipe.settings_with(settings)),
        "encoding": encoding.to_json(),
        "metrics": {"before": None, "after": after},
        "gate": verdict.to_json() if verdict else None,
        "seconds": time.perf_counter() - began,
    }
    id = archive.put(together.belief, manifest, model_card(manifest))
    names = tuple(record["id"] for record in records)
    promoted = acknowledge(archive, EVENT, id, target, verdict, {"parts": list(names)})
    return Gathered(
        belief=id,
        parts=names,
        promoted=promoted,
        after=after,
        verdict=verdict,
        overlaps=overlaps,
        set_back=together.set_back,
        seconds=manifest["seconds"],
    )


def _recognised(
    pool: Workers[Task, Any],
    recipe: Recipe,
    data: Sequence[Any],
    known: Sequence[Record],
    tell: Callable[[int], None],
) -> tuple[list[dict[str, Any]], tuple[Overlap, ...]]:
    """The record of every part, none of which may repeat one that is known, or another."""
    records: list[dict[str, Any]] = []
    overlaps: list[Overlap] = []
    for each, hashed in zip(data, pool.map([Look(recipe, each) for each in data], tell), strict=True):
        name = checked_name(each, None, hashed.fingerprint)
        _, shared = compare(name, hashed, [*known, *records], False)
        overlaps += shared
        records.append({"id": name, **hashed.fingerprint.to_json()})
    return records, tuple(overlaps)


def _carried_out(task: Task) -> Any:
    return task()
