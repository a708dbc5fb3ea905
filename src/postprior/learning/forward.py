"""Many examples through a network with one weight sample: in pieces that stay in the cache, in bfloat16, compiled."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from postprior.batch import Batch
from postprior.errors import PartError, SettingError
from postprior.families import Draw
from postprior.learning.checks import outputs_of
from postprior.networks.bayesian import BayesianNetwork

NEAR = 2**18
"""Numbers that examples may have together if what a layer makes of them is to stay in the cache of a core."""

ForwardPrecision = Literal["float32", "bfloat16"]


@final
class Forward:
    """How batches are put through the network.

    A network that mixes examples, or whose inputs are not counted by their first axis, gets its batches whole: whether
    pieces give what the whole gives is tried on the first batch.
    """

    def __init__(
        self,
        bayesian: BayesianNetwork,
        *,
        precision: ForwardPrecision = "float32",
        compiled: Callable[..., Any] | None = None,
    ) -> None:
        if precision not in ("float32", "bfloat16"):
            raise SettingError(f"precision={precision!r}: expected 'float32' or 'bfloat16'")
        self._bayesian, self._compiled = bayesian, compiled
        self._compiled_shapes: list[torch.Size] | None = None
        self._device = bayesian.generator.device.type
        self._autocast = precision == "bfloat16"
        self._half = _linear_maps(bayesian.network) if self._autocast else frozenset[str]()
        # On a GPU a few large launches beat many small ones.
        self._in_pieces: bool | None = None if self._device == "cpu" else False
        self._dtype = next(iter(bayesian.families().values())).location.real.dtype

    def prepared(self, draws: Mapping[str, Draw]) -> Mapping[str, Draw]:
        """The sample as the layers want it: converted once, not again for every piece."""
        if not self._half:
            return draws
        return {n: d._replace(weight=d.weight.bfloat16()) if n in self._half else d for n, d in draws.items()}

    def __call__(self, draws: Mapping[str, Draw], batch: Batch, first: int) -> Tensor:
        """The network's outputs for the batch; ``first`` numbers its first example."""
        pieces = _pieces(batch) if self._in_pieces is not False else []
        if self._compiled is not None and self._compiled_shapes is None:
            self._compile(draws, pieces[0] if pieces else batch)
        if len(pieces) < 2:
            return self._outputs(draws, batch, first)
        if self._in_pieces is None:
            whole = self._outputs(draws, batch, first)
            self._in_pieces = self._agree(draws, pieces, whole)
            return whole
        return torch.cat([self._outputs(draws, piece, first) for piece in pieces])

    def _outputs(self, draws: Mapping[str, Draw], batch: Batch, first: int) -> Tensor:
        # The rest of a batch, smaller than the other pieces, is not worth a compilation of its own.
        self._bayesian.compiled = self._compiled if _shapes(batch) == self._compiled_shapes else None
        with torch.autocast(self._device, torch.bfloat16, enabled=self._autocast):
            outputs = outputs_of(self._bayesian, draws, batch, first)
        return outputs.to(self._dtype) if outputs.is_floating_point() else outputs

    def _agree(self, draws: Mapping[str, Draw], pieces: list[Batch], whole: Tensor) -> bool:
        try:
            found = torch.cat([self._outputs(draws, piece, 0) for piece in pieces])
        except (PartError, RuntimeError):
            return False
        tolerance = (0.05 if self._autocast else 1e-3) * float(whole.detach().abs().nan_to_num().max())
        return found.shape == whole.shape and torch.allclose(found, whole, rtol=0, atol=tolerance, equal_nan=True)

    def _compile(self, draws: Mapping[str, Draw], batch: Batch) -> None:
        """For batches of this shape; where it cannot be done, with a note and without compiling."""
        self._compiled_shapes, self._bayesian.compiled = _shapes(batch), self._compiled
        try:
            with torch.autocast(self._device, torch.bfloat16, enabled=self._autocast):
                self._bayesian.run(draws, *batch.args, **batch.kwargs)
        except Exception as error:  # a compiler may fail in any way, and nothing depends on it
            self._compiled = None
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"compiled=True: this network could not be compiled here ({type(error).__name__}: {reason}); "
                "the prediction is the same without, only slower",
                UserWarning,
                stacklevel=2,
            )


def _shapes(batch: Batch) -> list[torch.Size]:
    return [value.shape for _, value in batch.inputs() if isinstance(value, Tensor)]


def _pieces(batch: Batch) -> list[Batch]:
    """The batch in pieces of one size, and a rest; none where its examples are not what the first axes count."""
    tensors = [value for _, value in batch.inputs() if isinstance(value, Tensor)]
    lengths = {len(value) if value.dim() else 0 for value in tensors}
    if len(lengths) != 1 or 0 in lengths:
        return []
    (length,) = lengths
    size = max(1, NEAR * length // max(1, sum(value.numel() for value in tensors)))

    return [batch.cut(start, size) for start in range(0, length, size)]


def _linear_maps(network: nn.Module) -> frozenset[str]:
    """The weights that convolutions and linear layers multiply by, which compute in bfloat16 under autocast."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    layers = [module for module in network.modules() if isinstance(module, (_ConvNd, nn.Linear))]
    return frozenset(names[id(layer.weight)] for layer in layers if id(layer.weight) in names)
