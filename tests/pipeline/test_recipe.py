"""What a store may have called: networks, and nothing that does not promise one."""

import inspect
from pathlib import Path

import pytest
import torch
from small_store import part, small_store

from postprior import Store
from postprior.data.readers import function_at
from postprior.errors import DataError, NetworkError
from postprior.pipeline.recipe import Recipe, build


def recipe(tmp_path: Path, network: str, **arguments: object) -> Recipe:
    plain = small_store(tmp_path).archive.recipe
    return Recipe.from_json({**plain, "network": network, "arguments": arguments})


@pytest.mark.parametrize("address", ["os:system", "subprocess:run", "builtins:eval", "os.path:join", "pickle:loads"])
def test_nothing_of_pythons_own_is_ever_called(tmp_path: Path, address: str) -> None:
    with pytest.raises(NetworkError, match="belongs to Python itself"):
        build(recipe(tmp_path, address, command="true"), None, "cpu")
    with pytest.raises(DataError, match="belongs to Python itself"):
        function_at(address)


@pytest.mark.parametrize("address", ["torch:load", "torch.hub:load", "numpy:load", "safetensors.torch:load_file"])
def test_installed_functions_must_say_that_they_make_a_network(tmp_path: Path, address: str) -> None:
    with pytest.raises(NetworkError, match=r"does not say that it makes a network.*-> torch\.nn\.Module"):
        build(recipe(tmp_path, address, f="x"), None, "cpu")


def test_classes_of_networks_and_ones_own_functions_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build(recipe(tmp_path, "torch.nn:Linear", in_features=3, out_features=2), None, "cpu")
    assert isinstance(made, torch.nn.Linear)
    (tmp_path / "own_nets.py").write_text("import torch\ndef make(n):\n    return torch.nn.Linear(3, n)\n")
    monkeypatch.syspath_prepend(tmp_path)
    store = Store.create(tmp_path / "own", "own_nets:make", arguments={"n": 2}, epochs=1)
    assert store.absorb(part(0), part="a").promoted


def test_an_installed_function_with_its_promise_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from postprior.pipeline import recipe as module

    monkeypatch.setattr(module, "_is_installed", lambda _: True)
    for name, returns in (("promising", " -> torch.nn.Module"), ("silent", "")):
        source = f"import torch\ndef make(){returns}:\n    return torch.nn.Linear(3, 2)\n"
        (tmp_path / f"{name}_nets.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert inspect.isfunction(function_at("promising_nets:make"))
    assert isinstance(build(recipe(tmp_path / "a", "promising_nets:make"), None, "cpu"), torch.nn.Linear)
    with pytest.raises(NetworkError, match="does not say"):
        build(recipe(tmp_path / "b", "silent_nets:make"), None, "cpu")
