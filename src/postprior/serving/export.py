"""A baked belief as a file that runs without this library: ONNX, or torch.export's ``.pt2``.

A file takes K times the bytes of the network's weights for K samples, and the inputs and their normalisation once. What
leaves here was read back and asked: a file whose answers differ from the module's never gets its name.
"""

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from postprior.errors import MissingExtraError, NetworkError, PostpriorError, SettingError
from postprior.serving.baked import Baked
from postprior.store.files import appearing

Example = Tensor | Sequence[Tensor]
"""The input, or the inputs in the order in which the module takes them; the first axis of each counts examples."""

Answer = dict[str, Tensor]

TOLERANCE = 1e-5
"""How far the file's answers may be from the module's: absolutely, plus relative to them."""
BATCH_SIZES = (1, 5)
"""The batches a file is asked before it is trusted; none has the size that was traced."""
ONNX_LIMIT = 2**31 - 2**24
"""Bytes of weights in one ONNX file: a protocol buffer ends at 2 GiB, and the graph needs some of it."""


def to_onnx(module: Baked, path: str | os.PathLike[str], example: Example, *, about: Mapping[str, str]) -> Path:
    """Write the module as ONNX, for any number of examples, and compare onnxruntime's answers with its own.

    ``about`` becomes metadata of the file, such as ``{"belief": id}``; the library's version is added. The input is
    named ``input``; several are ``input_0``, ``input_1``, or have the names that the network knows them by.
    """
    onnxruntime = _onnxruntime()
    inputs = _inputs(example)
    names = input_names(module, len(inputs))
    _check_size(module)
    with _tracing(), _explained("ONNX"):
        converted = torch.onnx.export(
            _traced(module, inputs), input_names=names, output_names=module.output_names, dynamo=True, verbose=False
        )
        assert converted is not None
    _tidy(converted.model.graph)
    converted.model.metadata_props.update({f"postprior.{key}": value for key, value in _about(module, about).items()})
    with appearing(Path(path)) as temporary, _explained("ONNX"):
        converted.save(temporary, external_data=False)
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])

        def ask(*batch: Tensor) -> Answer:
            found = session.run(None, {name: value.numpy() for name, value in zip(names, batch, strict=True)})
            return {name: torch.from_numpy(value) for name, value in zip(module.output_names, found, strict=True)}

        _check_parity(module, ask, inputs)
    return Path(path)


def to_torch_export(module: Baked, path: str | os.PathLike[str], example: Example, *, about: Mapping[str, str]) -> Path:
    """Write the module as a ``.pt2`` of ``torch.export``, read it back, and compare its answers with the module's.

    ``torch.export.load(path).module()`` takes the inputs by position and returns the outputs by name. ``about`` is in
    its extra file ``postprior.json``.
    """
    inputs = _inputs(example)
    with _tracing(), _explained("torch.export"):
        program = _traced(module, inputs)
    for node in program.graph_module.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine that made the file
    program.example_inputs = None  # they would be in the file, as a pickle
    file = io.BytesIO()
    extra = {"postprior.json": json.dumps(_about(module, about), sort_keys=True)}
    with appearing(Path(path)) as temporary, _tracing(), _explained("torch.export"):
        torch.export.save(program, file, extra_files=extra)
        temporary.write_bytes(file.getbuffer())
        _check_parity(module, torch.export.load(io.BytesIO(temporary.read_bytes())).module(), inputs)
    return Path(path)


def input_names(module: Baked, num_inputs: int) -> list[str]:
    """What the inputs of the ONNX file are called."""
    numbered = ["input"] if num_inputs == 1 else [f"input_{i}" for i in range(num_inputs)]
    return list(module.by_name) or numbered


def _inputs(example: Example) -> tuple[Tensor, ...]:
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    if not inputs or any(value.dim() == 0 or len(value) == 0 for value in inputs):
        raise SettingError("the example to export with is empty: give one or more examples, as the module is to be fed")
    return tuple(value.detach().cpu() for value in inputs)


def _traced(module: Baked, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    # Two examples: the size 1 would be taken for a constant of the network.
    pair = tuple(torch.stack([value[0], value[-1]]) for value in inputs)
    batch = {0: Dim("batch")}
    shapes = (tuple(batch for _ in pair),)
    try:
        return torch.export.export(module, pair, dynamic_shapes=shapes, strict=True)
    except Exception:
        # Python that Dynamo cannot follow can simply be run, if only it does not depend on the size of the batch.
        return torch.export.export(module, pair, dynamic_shapes=shapes, strict=False)


@torch.no_grad()
def _check_parity(module: Baked, ask: Callable[..., Answer], inputs: tuple[Tensor, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    for batch_size in BATCH_SIZES:
        batch = tuple(_random_like(value, batch_size, generator) for value in inputs)
        expected, found = module(*batch), ask(*batch)
        for name, value in expected.items():
            try:
                torch.testing.assert_close(found[name], value, atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True)
            except AssertionError as error:
                raise NetworkError(
                    f"the exported file does not answer as the belief does, so it was not kept: {name} of a batch of "
                    f"{batch_size}: {error}. Export the mean weights, or in the other format"
                ) from error


def _random_like(example: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
    """Inputs as wide as the example's: noise around its rows, or whole numbers between its least and its largest."""
    shape = (batch_size, *example.shape[1:])
    if example.is_floating_point():
        rows = example[torch.randint(len(example), (batch_size,), generator=generator)]
        width = example.std() if example.numel() > 1 else torch.ones(())
        return rows + width * torch.randn(shape, dtype=example.dtype, generator=generator)
    low, high = int(example.min()), int(example.max())
    return torch.randint(low, high + 1, shape, generator=generator).to(example.dtype)


def _tidy(graph: Any) -> None:
    """Without the paths of the machine that made it, and with every name used once."""
    outer = {id(value): value.name for value in (*graph.inputs, *graph.outputs)}
    for node in graph.all_nodes():
        node.metadata_props.clear()  # stack traces
        for value in node.outputs:
            # A value inside is named after its operation: "mean" in any network that takes one.
            if id(value) not in outer and value.name in outer.values():
                value.name = f"inner_{value.name}"


def _about(module: Baked, about: Mapping[str, str]) -> dict[str, str]:
    weights = "mean" if module.at_mean else f"{len(module.samples)} samples"
    own = {"version": version("postprior"), "likelihood": module.likelihood.name, "weights": weights}
    return {**own, **about}


def _check_size(module: Baked) -> None:
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    if num_bytes > ONNX_LIMIT:
        raise NetworkError(
            f"{len(module.samples)} weight samples hold {num_bytes / 2**30:.1f} GiB, and an ONNX file ends at 2 GiB: "
            "bake fewer samples, or write a .pt2"
        )


def _onnxruntime() -> Any:
    try:
        import onnx  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import onnxruntime
        import onnxscript  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtraError(
            f"ONNX needs onnx, onnxscript and onnxruntime ({error}): pip install 'postprior[export]'"
        ) from error
    return onnxruntime


@contextmanager
def _explained(kind: str) -> Generator[None]:
    """Whatever the exporter raises, as one error; there is no list of what networks can be traced."""
    try:
        yield
    except (PostpriorError, OSError):
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = str(cause).strip().partition("\n")[0]
        raise NetworkError(
            f"the network cannot be exported to {kind}: {type(cause).__name__}: {reason}. Python in forward() that "
            "depends on the data (branches, loops, .item()) is the usual reason: write it with torch operations"
        ) from error


@contextmanager
def _tracing() -> Generator[None]:
    """Inside, the exporter keeps its notes to itself, and transformers take the path whose operations it knows."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level, fast = logger.level, torch.backends.mha.get_fastpath_enabled()
    logger.setLevel(logging.ERROR)  # it tells of every package that it does not need
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*LeafSpec.* is deprecated", FutureWarning)  # its own insides
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        logger.setLevel(level)
