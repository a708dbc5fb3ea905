"""An absorption that several processes carry out, as all but the first see it: they learn, and the first one writes."""

from dataclasses import replace
from typing import Any

from postprior import distributed
from postprior.data.encoding import Encoding
from postprior.networks.sharded import ShardedBelief
from postprior.pipeline import drafts
from postprior.pipeline.absorbing import Lesson, Outcome, Tools, outcome_of
from postprior.pipeline.drafts import Intent
from postprior.pipeline.incoming import raw_data


def follow(tools: Tools, data: Any) -> Outcome:
    """Learn what the first process begins, each step together with it; ``data`` where they were handed over."""
    archive = tools.archive
    with distributed.agreed():
        pass  # the first process looks at the part
    begun = distributed.told()
    if "recorded" in begun:
        return _recorded(tools, begun["recorded"])
    intent = Intent(**begun["intent"])
    with distributed.agreed():
        encoding = Encoding.from_json(begun["encoding"])
        raw = raw_data(data if intent.data is None else intent.data, tools.recipe, labelled=True)
        part = encoding.part(raw)
        lesson = None if intent.shard else Lesson.of(tools, archive.belief(intent.onto))
        checkpoint = drafts.read_checkpoint(archive) if begun["resumed"] else None
    posterior, update = (
        lesson.learn(tools, part, intent.settings, checkpoint) if lesson else tools.learn_share(part, intent)
    )
    with distributed.agreed():
        pass  # the first process judges
    if isinstance(posterior, ShardedBelief):
        archive.put(posterior.to("cpu"), {}, "")
    with distributed.agreed():
        pass  # the first process records
    return replace(_recorded(tools, distributed.told()["recorded"]), update=update)


def _recorded(tools: Tools, belief: str) -> Outcome:
    entries = reversed(tools.archive.entries())
    entry = next(entry for entry in entries if entry.belief == belief and entry.event == "absorb")
    return outcome_of(tools.archive, belief, entry)
