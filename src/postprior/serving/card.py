"""The model card of a belief: the README.md beside its tensors, as model hubs show it."""

from collections.abc import Mapping
from typing import Any

LICENCE_NOTE = "The weights are yours: no licence is stated."

COLUMNS = ("num_examples", "nll", "accuracy", "ece", "rmse", "epistemic_share")
"""What a card shows of the measures, in this order."""


def model_card(manifest: Mapping[str, Any]) -> str:
    """Markdown with the header that model hubs read, from what is known of the belief before it is written."""
    network = manifest["network"]
    lines = [
        "---",
        "library_name: postprior",
        "tags:",
        "- bayesian",
        "- continual-learning",
        f"- {manifest['family']}",
        "---",
        "",
        f"# A belief about the weights of {_code(network['address'])}",
        "",
        _origin(manifest),
        "",
        f"Family {manifest['family']}, likelihood {manifest['likelihood'].get('name', 'of its own')}, "
        f"seed {manifest['seed']}. {LICENCE_NOTE}",
        "",
        *_measures(manifest),
        "## Use",
        "",
        "```python",
        "from postprior import Store",
        "",
        'store = Store.open("STORE")  # the folder that holds beliefs/, or its address',
        'prediction = store.predict("data.npz", at="ID")  # the name of this folder, or its beginning',
        "```",
        "",
        "The tensors here (safetensors) are parameters of a distribution over each weight, not one value of it; "
        "`manifest.json` says how they came about. Nothing in this folder executes.",
        "",
    ]
    return "\n".join(lines)


def _origin(manifest: Mapping[str, Any]) -> str:
    kind, part = manifest["kind"], manifest.get("part")
    if kind == "init":
        return "The first belief, before any data of the task."
    if kind == "absorb" and part:
        again = ", a part that was absorbed before and was allowed to count again" if manifest["forced"] else ""
        return (
            f"The posterior after part {_code(part['id'])} of {part['num_examples']:,} examples{again}; "
            f"its prior is {_code(manifest['parent'])}."
        )
    if kind == "merge":
        merged = ", ".join(_code(parent) for parent in manifest["parents"])
        return f"The product of {merged}, which learned apart from {_code(manifest['parent'])}."
    if kind == "absorb-together":
        count = sum(each["num_examples"] for each in manifest["parts"])
        return (
            f"The posterior after {len(manifest['parts'])} parts of {count:,} examples together, learned apart and "
            f"multiplied, with {manifest['rounds']} rounds of refinement; their prior is {_code(manifest['parent'])}."
        )
    forgotten = manifest["forgotten"]
    return f"{_code(manifest['parent'])}, with part {_code(forgotten['part'])} divided out, which is approximate."


def _measures(manifest: Mapping[str, Any]) -> list[str]:
    metrics = manifest["metrics"]
    shown = {
        "new part, under the belief before it": metrics["before"],
        "held-out data, under this belief": metrics["after"],
    }
    shown = {title: measures for title, measures in shown.items() if measures}
    if not shown:
        return []
    names = [name for name in COLUMNS if any(name in measures for measures in shown.values())]
    rows = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for title, measures in shown.items():
        rows.append(f"| {title} | {' | '.join(_number(measures.get(name)) for name in names)} |")
    return ["## Measures", "", *rows, "", "NLL is in nats an example.", ""]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value != int(value) else f"{int(value):,}"


def _code(text: Any) -> str:
    return f"`{str(text).replace('`', chr(39))}`"
