"""One part is learned, judged and recorded; what is interrupted on the way can be taken up again."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, Self
from uuid import UUID, uuid4, uuid5

from torch import nn

from postprior import distributed
from postprior.batch import Part
from postprior.data.encoding import Encoding
from postprior.errors import (
    BeliefError,
    DataError,
    DivergedError,
    NetworkError,
    PartError,
    RacedError,
    SettingError,
    StoreError,
)
from postprior.learning.absorb import Update, absorb
from postprior.learning.checkpoint import Checkpointing, Saved
from postprior.learning.likelihoods import Likelihood
from postprior.learning.training import Progress
from postprior.networks.belief import Belief
from postprior.networks.sharded import ShardedBelief
from postprior.pipeline import drafts
from postprior.pipeline.drafts import Intent
from postprior.pipeline.gate import Verdict, judge, parse
from postprior.pipeline.incoming import Incoming, Overlap, address_of, encoding_for, raw_data, receive
from postprior.pipeline.lineage import Manifest, ancestry, counted_parts, family_tree
from postprior.pipeline.measures import BEFORE_SAMPLES, measure, some
from postprior.pipeline.recipe import Recipe, beginning, described, plain_settings
from postprior.pipeline.sharing import learned_share, measures_of
from postprior.pipeline.surprise import MOST, Surprise, surprises
from postprior.serving.card import model_card
from postprior.store.archive import Archive
from postprior.store.journal import Entry
from postprior.store.sealed import check_name

HEAD, CHAMPION, CANDIDATE = "head", "champion", "candidate"

HELDOUT_SAMPLES = 30

OWN = (HEAD, CHAMPION, CANDIDATE)
"""Aliases with a meaning, which are moved by verbs of their own."""

HOPELESS = (PartError, DivergedError, SettingError, BeliefError, NetworkError, DataError, RacedError)
"""What goes wrong again if it is tried again: nothing is left to resume."""


@dataclass(frozen=True)
class Target:
    """Where a new belief belongs."""

    onto: str
    """The belief it grew from."""
    alias: str
    """What points to it from then on: head, or the name of a branch."""
    promote: bool
    """Whether it may become the champion."""

    def __post_init__(self) -> None:
        if self.alias != HEAD:
            check_alias(self.alias)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a user asks of an absorption; data are addresses, or whatever ``as_part`` takes."""

    data: Any
    part: str | None
    evaluate: Any
    gate: str | None
    repeat: bool
    target: Target
    settings: Mapping[str, Any]
    shard: bool = False
    """Whether the belief is cut among the processes."""

    def __post_init__(self) -> None:
        check_gate(self.gate, self.evaluate)
        if self.shard and self.evaluate is not None:
            raise SettingError(
                "held-out data are judged by whole beliefs, and this one is to be sharded: leave --evaluate and --gate "
                "out with --shard, and use `postprior evaluate` where the belief fits"
            )

    def intent(self, incoming: Incoming) -> Intent:
        """What is kept of it while it is carried out."""
        return Intent(
            token=_token(incoming),
            data=address_of(self.data),
            part=incoming.name,
            fingerprint=incoming.hashed.fingerprint.digest,
            onto=self.target.onto,
            alias=self.target.alias,
            promote=self.target.promote,
            judged=self.evaluate is not None,
            evaluate=address_of(self.evaluate),
            gate=self.gate,
            repeat=self.repeat,
            settings=self.settings,
            shard=self.shard,
        )


def check_alias(name: str) -> str:
    """The name, which users may move as they like; to be asked before long work."""
    if name in OWN:
        raise StoreError(f"{name} is moved by absorb, promote and rollback alone: choose another name")
    return check_name(name, "alias")


@dataclass(frozen=True)
class Tools:
    """What an absorption works with."""

    archive: Archive
    recipe: Recipe
    make: Callable[[str], nn.Module]
    """Makes the network on a device, as it was before any part."""
    device: str
    progress: Callable[[Progress], None] | None = None
    checkpointing: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """``every_seconds`` and ``stop`` of a ``Checkpointing``."""

    @cached_property
    def network(self) -> nn.Module:
        """The network, made when it is first needed: a share of a belief does without."""
        return self.make(self.device)

    def learn_share(self, part: Part, intent: Intent) -> tuple[ShardedBelief, Update]:
        """Learn the part in a share of the belief, together with the other processes."""
        told: dict[str, Any] = {"progress": self.progress, "stop": self.checkpointing.get("stop")}
        read, make = partial(self.archive.share, intent.onto), partial(self.make, "cpu")
        return learned_share(read, make, part, self.recipe, intent.settings, device=self.device, **told)


@dataclass(frozen=True)
class Ready:
    """All that is read before a part is begun: what is missing or damaged then leaves nothing unfinished behind."""

    incoming: Incoming
    encoding: Encoding
    lesson: "Lesson | None"
    """None where the belief is cut among processes."""
    held: Part | None
    """Held-out data."""


@dataclass(frozen=True)
class Begun:
    """An absorption that can be carried out."""

    intent: Intent
    ready: Ready
    checkpoint: Saved | None = None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was measured and judged."""

    before: Mapping[str, float]
    """Measures of the new part under the old belief."""
    after: Mapping[str, float] | None
    """Measures of the held-out data under the new belief."""
    verdict: Verdict | None
    surprises: tuple[Surprise, ...]
    overlaps: tuple[Overlap, ...]
    update: Update | None
    """None where a process did it all, and died before it could say so."""


@dataclass(frozen=True, kw_only=True)
class Outcome(Findings):
    """What came of one absorption."""

    belief: str
    part: str
    promoted: bool
    """Whether the belief became the champion."""

    @property
    def passed(self) -> bool:
        """Whether no gate stopped it."""
        return self.verdict is None or self.verdict.passed


def check_gate(gate: str | None, evaluate: Any) -> None:
    """Refuse a gate that cannot be read, or has nothing to judge by, before anything is learned in vain."""
    if gate is not None:
        parse(gate)
        if evaluate is None:
            raise SettingError(f"gate {gate!r} needs data to judge by: give --evaluate, which is not learned")


def begin(tools: Tools, asked: Asked) -> Begun | Outcome:
    """Look at a part that is to be absorbed; the store is to be locked from here until it is carried out."""
    if distributed.restarts() and (again := _taken_up(tools, asked)):
        return again
    drafts.refuse_unfinished(tools.archive)
    known = counted_parts(family_tree(tools.archive, asked.target.onto), asked.target.onto)
    incoming = receive(asked.data, asked.part, tools.recipe, list(known.values()), asked.repeat)
    intent = asked.intent(incoming)
    ready = _ready(tools, intent, incoming, asked.evaluate)
    tools.archive.drop_drafts()  # of an absorption that ended, by a process that died before it had cleared up
    drafts.write_intent(tools.archive, intent)
    return Begun(intent, ready)


def _token(incoming: Incoming) -> str:
    """What the absorption is known by; the same again where torchrun has started its processes anew."""
    launch = distributed.launch()
    return uuid5(UUID(launch), f"{incoming.hashed.fingerprint.digest} {incoming.name}").hex if launch else uuid4().hex


def _taken_up(tools: Tools, asked: Asked) -> Begun | Outcome | None:
    """What the same processes left of it, or had done, before torchrun started them anew."""
    token = _token(receive(asked.data, asked.part, tools.recipe, [], True))
    if not asked.repeat and (done := recorded(tools.archive, token)):
        tools.archive.drop_drafts()
        return done
    unfinished = drafts.read_intent(tools.archive)
    return resume(tools, asked.data, asked.evaluate) if unfinished and unfinished.token == token else None


def resume(tools: Tools, data: Any = None, evaluate: Any = None) -> Begun | Outcome:
    """Look at what was interrupted, to go on with it; what was handed over as arrays must be handed over again."""
    archive = tools.archive
    intent = drafts.read_intent(archive)
    if intent is None:
        raise StoreError(f"{archive.address}: there is nothing to resume: no absorption was interrupted")
    if done := recorded(archive, intent.token):
        archive.drop_drafts()
        return done
    data, evaluate = (
        data if intent.data is None else intent.data,
        evaluate if intent.evaluate is None else intent.evaluate,
    )
    if data is None or (intent.judged and evaluate is None):
        raise SettingError(f"part {intent.part} or its held-out data was handed over as arrays: hand it over again")
    known = counted_parts(family_tree(archive, intent.onto), intent.onto)
    incoming = receive(data, intent.part, tools.recipe, list(known.values()), intent.repeat)
    if incoming.hashed.fingerprint.digest != intent.fingerprint:
        raise StoreError(
            f"{intent.data or 'the data'} holds other examples than when part {intent.part} was begun: put them back, "
            "or give the absorption up with --discard"
        )
    checkpoint = drafts.read_checkpoint(archive)
    if checkpoint and (then := checkpoint[1]["of"].get("processes", 1)) != distributed.size():
        raise StoreError(
            f"part {intent.part} was begun by {then} processes, found {distributed.size()}: resume it with as many "
            "(torchrun --nproc-per-node), or give it up with --discard"
        )
    return Begun(intent, _ready(tools, intent, incoming, evaluate), checkpoint)


def _ready(tools: Tools, intent: Intent, incoming: Incoming, evaluate: Any) -> Ready:
    recipe, archive = tools.recipe, tools.archive
    encoding = encoding_for(incoming.raw, recipe, archive.manifest(intent.onto)["encoding"])
    held = encoding.part(raw_data(evaluate, recipe, labelled=True)) if intent.judged else None
    lesson = None if intent.shard else Lesson.of(tools, archive.belief(intent.onto))
    return Ready(incoming, encoding, lesson, held)


def carry_out(tools: Tools, begun: Begun | Outcome) -> Outcome:
    """Learn, judge and record; other processes learn with this one, and leave the store to it (see ``following``)."""
    if isinstance(begun, Outcome):
        distributed.told({"recorded": begun.belief})
        return begun
    encoding, resumed = begun.ready.encoding.to_json(), begun.checkpoint is not None
    distributed.told({"intent": asdict(begun.intent), "encoding": encoding, "resumed": resumed})
    try:
        outcome = _learn(tools, begun)
    except HOPELESS:
        tools.archive.drop_drafts()
        raise
    tools.archive.drop_drafts()
    distributed.told({"recorded": outcome.belief})
    return outcome


def _learn(tools: Tools, begun: Begun) -> Outcome:
    archive, recipe, intent, ready = tools.archive, tools.recipe, begun.intent, begun.ready
    lesson, before = ready.lesson, dict[str, float]()
    with distributed.agreed():
        part = ready.encoding.part(ready.incoming.raw)
        if lesson:
            asking: dict[str, Any] = {"num_samples": BEFORE_SAMPLES, "seed": recipe.seed}
            before = measure(lesson.network, lesson.prior, some(part, recipe.seed), lesson.likelihood, **asking)
    posterior, update = (
        lesson.learn(tools, part, intent.settings, begun.checkpoint) if lesson else tools.learn_share(part, intent)
    )
    with distributed.agreed():
        after, verdict = None, None
        if lesson and isinstance(posterior, Belief):
            after, verdict = judged(tools, intent.gate, lesson.network, posterior, ready.held)
        else:
            before = measures_of(update)
        past = [manifest["metrics"]["before"] for manifest in _absorptions(archive, intent.onto)]
        findings = Findings(
            before=before,
            after=after,
            verdict=verdict,
            surprises=tuple(surprises(before, past)),
            overlaps=ready.incoming.overlaps,
            update=update,
        )
        manifest = _manifest(recipe, intent, ready, findings)
        card = model_card(manifest)
        id = archive.put(posterior.to("cpu"), manifest, card) if isinstance(posterior, Belief) else ""
    if isinstance(posterior, ShardedBelief):  # which all put together
        id = archive.put(posterior.to("cpu"), manifest, card)
    with distributed.agreed():
        target = Target(intent.onto, intent.alias, intent.promote)
        about = {"part": intent.part, "intent": intent.token}
        promoted = acknowledge(archive, "absorb", id, target, verdict, about)
    return Outcome(belief=id, part=intent.part, promoted=promoted, **vars(findings))


@dataclass(frozen=True)
class Lesson:
    """What a part is learned with, in each of the processes that learn it."""

    network: nn.Module
    prior: Belief
    likelihood: Likelihood

    @classmethod
    def of(cls, tools: Tools, prior: Belief) -> Self:
        """Ready to learn."""
        prior = prior.to(next(tools.network.parameters()).device)
        return cls(beginning(tools.network, tools.recipe, prior), prior, tools.recipe.make_likelihood())

    def learn(
        self, tools: Tools, part: Part, settings: Mapping[str, Any], checkpoint: Saved | None
    ) -> tuple[Belief, Update]:
        """Learn the part, from the checkpoint on where there is one."""
        keep = partial(drafts.write_checkpoint, tools.archive)
        return absorb(
            self.network,
            prior=self.prior,
            part=part,
            likelihood=self.likelihood,
            settings=tools.recipe.settings_with(settings),
            seed=tools.recipe.seed,
            progress=tools.progress,
            checkpointing=Checkpointing(save=keep, resume_from=checkpoint, **tools.checkpointing),
        )


def judged(
    tools: Tools, gate: str | None, network: nn.Module, posterior: Belief, held: Part | None
) -> tuple[dict[str, float] | None, Verdict | None]:
    """Measures of held-out data under a new belief, and what its gate says of them."""
    if held is None:
        return None, None
    recipe, archive = tools.recipe, tools.archive

    def ask(belief: Belief) -> dict[str, float]:
        likelihood = recipe.make_likelihood()
        return measure(network, belief, held, likelihood, num_samples=HELDOUT_SAMPLES, seed=recipe.seed)

    after = ask(posterior)
    if gate is None:
        return after, None
    champion: dict[str, float] = {}
    if any(condition.relative for condition in parse(gate)):
        reigning = archive.belief(archive.state().aliases[CHAMPION])
        champion = ask(reigning.to(next(network.parameters()).device))
    return after, judge(gate, after, champion)


def _absorptions(archive: Archive, id: str) -> list[Manifest]:
    """The newest ancestors that learned a part."""
    found: list[Manifest] = []
    for _, manifest in ancestry(archive, id):
        found += [manifest] if manifest["kind"] == "absorb" else []
        if len(found) == MOST:
            break
    return found


def acknowledge(archive: Archive, event: str, id: str, target: Target, verdict: Verdict | None, about: Any) -> bool:
    """After this the belief is there for good, before it nothing has happened; whether it became the champion."""
    moves, expect = {CANDIDATE: id}, dict[str, str | None]()
    passed = verdict is None or verdict.passed
    promoted = passed and target.promote and target.alias == HEAD
    if passed:
        moves[target.alias] = id
    if promoted:
        moves[CHAMPION] = id
    if target.alias == HEAD:
        expect[HEAD] = target.onto
    told = {**about, "promoted": promoted, "passed": passed}
    archive.append(event, belief=id, moves=moves, expect=expect, about=told)
    return promoted


def _manifest(recipe: Recipe, intent: Intent, ready: Ready, findings: Findings) -> dict[str, Any]:
    assert findings.update is not None, "what was just learned has its report"
    after, verdict, update = findings.after, findings.verdict, findings.update
    return {
        **described(recipe),
        "kind": "absorb",
        "parent": intent.onto,
        "parents": [intent.onto],
        "part": ready.incoming.record(),
        "forced": ready.incoming.forced,
        "overlaps": [asdict(overlap) for overlap in findings.overlaps],
        "configuration": plain_settings(recipe.settings_with(intent.settings)),
        "encoding": ready.encoding.to_json(),
        "metrics": {"before": dict(findings.before), "after": None if after is None else dict(after)},
        "gate": verdict.to_json() if verdict else None,
        "surprises": [asdict(each) for each in findings.surprises],
        "update": {"data_term": update.data_term, "kl": update.kl, "steps": update.num_steps},
        "seconds": update.seconds,
    }


def recorded(archive: Archive, token: str) -> Outcome | None:
    """The outcome of an absorption that ended, though perhaps the process that did it died before it could say so."""
    for entry in reversed(archive.entries()):
        if entry.belief is not None and entry.about.get("intent") == token:
            return outcome_of(archive, entry.belief, entry)
    return None


def outcome_of(archive: Archive, belief: str, entry: Entry) -> Outcome:
    """What came of an absorption, as it was recorded."""
    manifest = archive.manifest(belief)
    return Outcome(
        belief=belief,
        part=str(entry.about["part"]),
        promoted=bool(entry.about["promoted"]),
        before=manifest["metrics"]["before"],
        after=manifest["metrics"]["after"],
        verdict=Verdict(**manifest["gate"]) if manifest["gate"] else None,
        surprises=tuple(Surprise(**each) for each in manifest["surprises"]),
        overlaps=tuple(Overlap(**each) for each in manifest["overlaps"]),
        update=None,
    )
