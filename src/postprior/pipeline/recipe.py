"""What is settled once, when a store is made, and holds for all its beliefs."""

import copy
import inspect
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import nn

from postprior.data.readers import function_at
from postprior.errors import DataError, NetworkError, PostpriorError, SettingError, StoreError
from postprior.learning import likelihoods
from postprior.learning.likelihoods import Likelihood
from postprior.learning.settings import Settings, checked_names
from postprior.maths import seeds
from postprior.networks.belief import Belief
from postprior.networks.convert import matching
from postprior.networks.zoo import MLP, LeNet5, ResNet32x32, SmallConvNet, ThreeConvThreeFC

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "3conv3fc": ThreeConvThreeFC,
    "resnet32x32": ResNet32x32,
    "smallconvnet": SmallConvNet,
    "mlp": MLP,
}
"""What a network may be called; anything else is the address of a function, package.module:function."""

GIVEN = "given"
"""What stands for the address of a network that was handed over as a module."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that later parts are learned by. It is kept as JSON, so it holds addresses and never code."""

    network: str
    arguments: Mapping[str, Any]
    family: str
    likelihood: Mapping[str, Any]
    prior_sd: float | str
    settings: Mapping[str, Any]
    """What differs from the defaults of ``Settings``."""
    point: tuple[str, ...]
    frozen: tuple[str, ...]
    carry: tuple[str, ...]
    """Patterns of the parameters that were pretrained; none where no network was."""
    normalise: str
    target: str | None
    inputs: tuple[str, ...] | None
    classes: tuple[str, ...] | None
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Plain values that ``from_json`` takes."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``; a StoreError where the values cannot be those."""
        expected = {field.name for field in fields(cls)}
        if set(given) != expected:
            odd = ", ".join(sorted(set(given) ^ expected))
            raise StoreError(f"the store's recipe has {odd} in excess or missing: it was made by another version")
        plain: dict[str, Any] = {k: tuple(cast(list[Any], v)) if isinstance(v, list) else v for k, v in given.items()}
        return cls(**plain)

    def make_likelihood(self) -> Likelihood:
        """The likelihood, new."""
        return likelihoods.from_json(self.likelihood)

    def settings_with(self, changes: Mapping[str, Any]) -> Settings:
        """How a part is learned, with changes for this part alone."""
        return settings_of({**self.settings, **changes})


def settings_of(changes: Mapping[str, Any]) -> Settings:
    """The defaults with these changes; what JSON cannot hold is refused."""
    if "augment" in changes:
        raise SettingError(
            "augment is a function, which no store can hold: augment in the function that gives the data"
        )
    # What the part scores under the old belief is measured by the pipeline, with its uncertainties.
    return replace(Settings(score_samples=0), **checked_names(dict(changes)))


def build(recipe: Recipe, given: nn.Module | None, device: str) -> nn.Module:
    """The network as it was before any part, on the device; the same weights whenever it is asked for."""
    if recipe.network == GIVEN and given is None:
        raise SettingError("the store was made with a network that was handed over: hand it over again, network=...")
    if given is not None:
        return _placed(copy.deepcopy(given), device)
    make = NETWORKS.get(recipe.network)
    try:
        make = make or _maker_at(recipe.network)
    except DataError as error:
        raise NetworkError(f"the network {error}; or one of {', '.join(NETWORKS)}") from error
    with seeds.quarantined(torch.device("cpu"), recipe.seed, "network"):
        return _placed(_called(recipe.network, make, recipe.arguments), device)


def beginning(network: nn.Module, recipe: Recipe, belief: Belief) -> nn.Module:
    """The network that the first part starts from: pretrained parameters stand where the first belief has them."""
    if belief.num_parts or not recipe.carry:
        return network
    means = belief.mean()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in matching(means, recipe.carry, "carry"):
                parameter.copy_(means[name])
    return network


def described(recipe: Recipe) -> dict[str, Any]:
    """What the manifests of all beliefs of a store have in common."""
    network = {"address": recipe.network, "arguments": dict(recipe.arguments)}
    return {"family": recipe.family, "likelihood": dict(recipe.likelihood), "network": network, "seed": recipe.seed}


def plain_settings(settings: Settings) -> dict[str, Any]:
    """As JSON has them."""
    plain = asdict(replace(settings, augment=None))
    del plain["augment"]
    return plain


def _maker_at(address: str) -> Callable[..., nn.Module]:
    """The function; a store is a file that may come from anyone, so nothing is called that promises no network.

    What is installed beside this library could do anything with the arguments that a store names. A user's own code is
    taken as it is.
    """
    make = function_at(address)
    if inspect.isclass(make) and issubclass(make, nn.Module):
        return make
    if _is_installed(address) and not _says_network(make):
        raise NetworkError(
            f"{address} is a function of an installed package that does not say that it makes a network, and no store "
            "may have it called: annotate what it returns (-> torch.nn.Module), or call it in a function of your own"
        )
    return cast(Callable[..., nn.Module], make)


def _is_installed(address: str) -> bool:
    """Whether the module is the standard library's or lies among installed packages."""
    module = import_module(address.partition(":")[0])
    file = getattr(module, "__file__", None)
    if file is None:
        return True
    places = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(place in Path(file).resolve().parents for place in places)


def _says_network(make: Any) -> bool:
    try:
        said = inspect.get_annotations(make, eval_str=True).get("return")
    except Exception:  # an annotation is code of others: whatever it raises, it says nothing
        return False
    return inspect.isclass(said) and issubclass(said, nn.Module)


def _called(address: str, make: Callable[..., Any], arguments: Mapping[str, Any]) -> nn.Module:
    try:
        network = make(**arguments)
    except PostpriorError:
        raise
    except TypeError as error:
        raise SettingError(
            f"{address} was called with {dict(arguments)}: {error}; it takes {_signature(make)}"
        ) from error
    except Exception as error:
        raise NetworkError(f"{address} raised {type(error).__name__}: {error}; mend the function") from error
    if not isinstance(network, nn.Module):
        raise NetworkError(f"{address} returned {type(network).__name__}, expected a torch.nn.Module")
    return network


def _signature(make: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(make))
    except ValueError:
        return "other arguments"


def _placed(network: nn.Module, device: str) -> nn.Module:
    try:
        return network.to(device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError(f"device={device!r} cannot be used: {str(error).partition(chr(10))[0]}") from error
