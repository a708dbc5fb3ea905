"""Every message that names an extra names one that there is, and every extra that is left out of `all` is heavy."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
NAMED = re.compile(r"postprior\[(\w+)\]|_missing\(\"(\w+)\", error\)")
HEAVY = {"mlflow", "parallel"}


def named() -> dict[str, set[str]]:
    """Which files speak of each extra."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for names in NAMED.findall(path.read_text(encoding="utf-8")):
            found.setdefault(next(filter(None, names)), set()).add(path.name)
    return found


def test_messages_name_extras_that_there_are() -> None:
    found = named()
    assert found.keys() >= {"data", "export", "figures", "mlflow", "report", "sklearn", "tensorboard"}
    assert {name: files for name, files in found.items() if name not in EXTRAS} == {}


def test_all_holds_everything_light() -> None:
    (everything,) = EXTRAS["all"]
    held = set(re.findall(r"\w+", everything.removeprefix("postprior")))
    assert held == EXTRAS.keys() - HEAVY - {"all"}


@pytest.mark.parametrize(
    ("extra", "package"), [("data", "pyarrow"), ("mlflow", "postprior[export]"), ("store", "s3fs")]
)
def test_extras_hold_what_they_are_named_for(extra: str, package: str) -> None:
    assert any(requirement.startswith(package) for requirement in EXTRAS[extra])
