"""The law of the rooms: a file imports only from rooms on the steps before its own, and never in circles."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

# Each room may import from the steps before its own; rooms on one step do not know one another.
LADDER = (
    *(
        ("errors",),
        ("parallel",),
        ("distributed",),
        ("batch",),
        ("maths",),
        ("families",),
        ("networks",),
        ("learning", "data", "store"),
    ),
    *(("learner",), ("sklearn",), ("serving", "paper"), ("pipeline",), ("cli",), ("__main__",)),
)
STEP = {room: step for step, rooms in enumerate(LADDER) for room in rooms}

SRC = Path(__file__).parent.parent / "src"
ROOT = SRC / "postprior" / "__init__.py"  # a lazy table of names from all rooms: it stands outside the law
FILES = {".".join(file.relative_to(SRC).with_suffix("").parts): file for file in SRC.rglob("*.py") if file != ROOT}


def imports(module: str, source: str) -> Iterator[tuple[str, int, bool]]:
    """What a file imports: the dotted name down to the name taken, the line, and whether it is inside a function."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((name, node.lineno, id(node) in inside) for name in names)


def offences(module: str, source: str) -> list[str]:
    room, found = module.split(".")[1], list[str]()
    if room not in STEP:
        return [f"{module}: no room '{room}' in the law; move the file, or give the room a step of LADDER"]
    for name, line, in_function in imports(module, source):
        package, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if in_function and room != "cli" and package == "postprior":
            found.append(f"{module}:{line}: only cli may import {name} inside a function; move it to the top")
        if in_function and package in sys.stdlib_module_names:
            found.append(f"{module}:{line}: {name} is not heavy; move it to the top")
        # What is no room is a public name of the root, which stands to the right of all but cli.
        if package == "postprior" and other != room and STEP.get(other, STEP["cli"] - 1) >= STEP[room]:
            found.append(f"{module}:{line}: '{room}' may not import {name}; turn the dependency round")
    return found


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which files each file imports, a package standing for its `__init__`."""

    def file_of(name: str) -> str | None:
        stem = name.rpartition(".")[0]
        return next((m for m in (name, f"{name}.__init__", stem, f"{stem}.__init__") if m in sources), None)

    return {m: {f for name, _, _ in imports(m, source) if (f := file_of(name))} for m, source in sources.items()}


@pytest.mark.parametrize("module", sorted(FILES))
def test_the_law_holds(module: str) -> None:
    assert not offences(module, FILES[module].read_text(encoding="utf-8"))


def test_there_are_no_circles() -> None:
    TopologicalSorter(graph({m: file.read_text(encoding="utf-8") for m, file in FILES.items()})).prepare()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("postprior.maths.fake", "from postprior.families import point"),
        ("postprior.maths.fake", "import postprior.cli.app"),
        ("postprior.maths.fake", "from postprior import learner"),
        ("postprior.maths.fake", "from ..store import manifest"),
        ("postprior.learning.fake", "from postprior.data.parts import Part"),
        ("postprior.learning.__init__", "from ..data.parts import Part"),
        ("postprior.paper.fake", "from postprior.serving import report"),
        ("postprior.learner", "from postprior import sklearn"),
        ("postprior.paper.fake", "from postprior import Learner"),
        ("postprior.paper.fake", "import postprior"),
        ("postprior.paper.fake", "if True:\n    from postprior.cli import app"),
        ("postprior.paper.fake", "def f() -> None:\n    from postprior.maths import gaussian"),
        ("postprior.maths.fake", "class C:\n    async def f(self) -> None:\n        import json"),
        ("postprior.drawer", ""),
    ],
)
def test_an_offence_is_seen(module: str, source: str) -> None:
    assert len(offences(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("postprior.paper.fake", "import torch, json\nfrom postprior.learner import Learner\nfrom . import table"),
        ("postprior.learning.fake", "def f() -> None:\n    import torchmetrics"),
        ("postprior.cli.fake", "from postprior import __version__\ndef f() -> None:\n    from postprior import paper"),
        ("postprior.sklearn", "import sklearn\nfrom postprior.learner import Learner"),
    ],
)
def test_what_is_lawful_is_let_be(module: str, source: str) -> None:
    assert offences(module, source) == []


def test_a_circle_is_seen() -> None:
    sources = {
        "postprior.maths.__init__": "from postprior.maths.a import f",
        "postprior.maths.a": "from postprior.maths import b",
        "postprior.maths.b": "def g() -> None:\n    from .a import f",
    }
    with pytest.raises(CycleError):
        TopologicalSorter(graph(sources)).prepare()
