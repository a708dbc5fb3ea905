"""What the documents show runs as it stands, and their links lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import matplotlib
import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [path for path in (README, *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]

FENCE = re.compile(r"^(?P<indent>[ \t]*)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```[ \t]*$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*\Z")
LINK = re.compile(r"\]\(<?([^)>\s]+)|^\[[^\]]+\]:\s+(\S+)|(?:src|href)=\"([^\"]+)\"", re.M)


def python_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The line each ```python block that is to run begins at, and its code."""
    for fence in FENCE.finditer(text):
        if fence["language"] == "python" and not NOT_RUN.search(text[: fence.start()]):
            yield text.count("\n", 0, fence.start("body")), dedent(fence["body"])


def relative_links(text: str) -> list[str]:
    """Targets of links and images, without their #anchor; code is left out, where `f[0](x)` looks like a link."""
    prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))
    targets = [next(filter(None, groups)) for groups in LINK.findall(prose)]
    return [target.partition("#")[0] for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:|#", target)]


def test_the_readme_has_code_that_runs() -> None:
    assert README.exists(), "README.md is missing"
    assert list(python_blocks(README.read_text(encoding="utf-8"))), "README.md shows no python that runs"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for line, code in python_blocks(document.read_text(encoding="utf-8")):
        # The empty lines in front make a traceback name the line of the document.
        exec(compile("\n" * line + code, str(document), "exec"), namespace)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files(document: Path) -> None:
    links = relative_links(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_blocks_and_links_are_found() -> None:
    text = (
        '[a](docs/a.md#part) ![b](<b.png>) [web](https://x.org) [here](#here) `f[0](x)` <img src="c.svg">\n'
        "```python\nx = f[1](y)\n```\n\n- in a list\n  ```python\n  z = 1\n  ```\n\n"
        "<!-- not run: it downloads -->\n```python\nfetch()\n```\n```bash\nls\n```\n[d]: d.md\n"
    )
    assert list(python_blocks(text)) == [(2, "x = f[1](y)\n"), (7, "z = 1\n")]
    assert relative_links(text) == ["docs/a.md", "b.png", "c.svg", "d.md"]
