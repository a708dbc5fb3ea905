"""A belief of the store leaves it: as a file that runs without this library, and to trackers."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from postprior.data.encoding import Encoding
from postprior.data.forms import KINDS, Form
from postprior.data.tables import ALONE
from postprior.errors import PostpriorError, SettingError, StoreError
from postprior.pipeline.absorbing import Outcome, Tools
from postprior.pipeline.incoming import encoding_for, raw_data
from postprior.pipeline.lineage import counted_parts, family_tree
from postprior.serving.baked import Baked, baked
from postprior.serving.export import to_onnx, to_torch_export
from postprior.serving.trackers import Tracker
from postprior.store.files import check_place

WRITERS = {".onnx": to_onnx, ".pt2": to_torch_export}
EXAMPLES = 4
"""Rows that a network is traced with; the file takes any number."""

SERVED_SAMPLES = 30


def export(tools: Tools, at: str, path: Path, *, num_samples: int, at_mean: bool, seed: int, like: Any = None) -> Path:
    """Write the belief, which normalises what it is given as every part was; its answers are compared with ours.

    ``like`` is data to trace the network with. It is needed where inputs are whole numbers (such as tokens), or where
    the store has seen no data yet; otherwise random inputs do.
    """
    if path.suffix not in WRITERS:
        raise SettingError(f"{path}: the ending says what to write: expected one of {', '.join(WRITERS)}")
    check_place(path)
    id = tools.archive.resolve(at)
    manifest = tools.archive.manifest(id)
    encoding = None if manifest["encoding"] is None else Encoding.from_json(manifest["encoding"])
    example = None
    if like is not None:
        raw = raw_data(like, tools.recipe, labelled=False)
        encoding = encoding or encoding_for(raw, tools.recipe, None)
        example = encoding.raw_inputs(raw, EXAMPLES)
    if encoding is None:
        raise StoreError(f"{at} has seen no data, so nothing tells what its inputs are: give some with --like")
    module, example = _module(tools, id, encoding, example, num_samples=num_samples, at_mean=at_mean, seed=seed)
    about = {"belief": id}
    if encoding.classes:
        about["classes"] = "\n".join(encoding.classes)
    return WRITERS[path.suffix](module, path, example, about=about)


def track(tools: Tools, outcome: Outcome, trackers: Sequence[Tracker]) -> None:
    """Tell every tracker of a part that was recorded. What goes wrong there is a warning: the part is learned."""
    if not trackers:
        return
    manifest = tools.archive.manifest(outcome.belief)
    step = len(counted_parts(family_tree(tools.archive, outcome.belief), outcome.belief))
    params = _params(manifest, outcome)
    metrics = {f"new_part_before.{name}": value for name, value in outcome.before.items()}
    metrics |= {f"held_out.{name}": value for name, value in (outcome.after or {}).items()}
    metrics |= {f"surprise.{each.measure}": each.score for each in outcome.surprises}
    metrics |= {f"update.{name}": float(value) for name, value in manifest["update"].items()}
    for tracker in trackers:
        try:
            with tempfile.TemporaryDirectory() as folder:
                model = None
                if tracker.takes_models and outcome.passed:
                    where = Path(folder) / "model.onnx"
                    model = export(tools, outcome.belief, where, num_samples=SERVED_SAMPLES, at_mean=False, seed=0)
                tracker.log(step, params, metrics, model=model)
        except Exception as error:
            # Others' servers and others' code: whatever they raise, the belief is recorded already.
            said = str(error).partition("\n")[0]
            what = said if isinstance(error, PostpriorError) else f"{type(error).__name__}: {said}"
            warnings.warn(f"part {outcome.part} was absorbed, but not tracked: {what}", stacklevel=3)


def _params(manifest: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    about = {
        "part": outcome.part,
        "belief": outcome.belief,
        "promoted": outcome.promoted,
        "gate_passed": outcome.passed,
    }
    settings = {name: value for name, value in manifest["configuration"].items() if value is not None}
    return {**about, "family": manifest["family"], "likelihood": manifest["likelihood"]["name"], **settings}


def _module(
    tools: Tools, id: str, encoding: Encoding, example: Mapping[str, Tensor] | None, **options: Any
) -> tuple[Baked, tuple[Tensor, ...]]:
    forms = encoding.forms
    if len(forms) > 1 and any(form.mean for form in forms.values()):
        names = ", ".join(forms)
        raise StoreError(f"the network takes {names}, some of them normalised: only a single input can be exported so")
    first = next(iter(forms.values()))
    mean, sd = _normalisation(first)
    network = tools.network
    by_place = all(name == ALONE or name.startswith("input ") for name in forms)
    options |= {"by_name": [] if by_place else [*forms], "mean": mean, "sd": sd}
    module = baked(network, tools.archive.belief(id), tools.recipe.make_likelihood(), **options)
    values = example or {name: _noise(name, form, place) for place, (name, form) in enumerate(forms.items())}
    return module, tuple(values[name] for name in forms)


def _normalisation(form: Form) -> tuple[Tensor | None, Tensor | None]:
    """Mean and sd that broadcast against a batch."""
    if form.kind not in ("pixels", "floats"):
        return None, None
    axes = (-1, *(1 for _ in form.shape[1:])) if form.shape else ()
    # By 0 and 1 it at least takes the network's type, as a part does when it is learned.
    mean, sd = form.mean or (0.0,), form.sd or (1.0,)
    return torch.tensor(mean, dtype=torch.float64).reshape(axes), torch.tensor(sd, dtype=torch.float64).reshape(axes)


def _noise(name: str, form: Form, place: int) -> Tensor:
    generator = torch.Generator().manual_seed(place)
    shape = (EXAMPLES, *form.shape)
    if form.kind == "pixels":
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    if form.kind == "floats":
        mean, sd = _normalisation(form)
        noise = torch.randn(shape, generator=generator)
        assert mean is not None
        assert sd is not None
        return (noise * sd + mean).float()
    raise SettingError(f"{name} takes {KINDS[form.kind]}, and nothing tells which: give some data with --like")
