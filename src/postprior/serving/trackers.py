"""Where an absorption can be told of besides the store: TensorBoard and MLflow, behind one small protocol."""

import hashlib
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np

from postprior.errors import MissingExtraError, SettingError

SERVED = Path(__file__).with_name("mlflow_model.py")
"""The code that MLflow runs where a belief is served; MLflow keeps it beside the exported file."""

LINEAGE = "postprior.lineage"
"""The tag by which a lineage's run is found again."""

ONNX_TYPES = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}
"""What ONNX calls the number types that numpy calls otherwise."""


class Tracker(Protocol):
    """Is told of every part once it is learned. It keeps nothing that the store needs: it may fail, or forget."""

    takes_models: bool
    """Whether it has a use for exported beliefs, which cost time to write."""

    def log(
        self, step: int, params: Mapping[str, Any], metrics: Mapping[str, float], *, model: Path | None = None
    ) -> None:
        """Part number ``step`` was learned with ``params``, and scored ``metrics``.

        ``model`` is the belief as ``export.to_onnx`` wrote it, for a tracker that takes models, if it passed its gate.
        """
        ...


@final
class TensorBoard:
    """Scalars by part, and the parameters of each as a table of text; models have no place in TensorBoard.

    >>> TensorBoard("runs/digits").log(1, {"epochs": 20}, {"held_out/nll": 0.41})
    """

    takes_models = False

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)

    def log(
        self, step: int, params: Mapping[str, Any], metrics: Mapping[str, float], *, model: Path | None = None
    ) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", error) from error
        # One writer a part: nothing is lost if the process dies between two.
        with SummaryWriter(self._folder) as writer:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)
            rows = (f"| {_cell(name)} | {_cell(value)} |" for name, value in params.items())
            writer.add_text("parameters", "\n".join(["| parameter | value |", "|---|---|", *rows]), step)


@final
class MLflow:
    """One run for a whole lineage, with every metric by part; inside it one run a part, with its own parameters.

    A later process finds the lineage's run again by its name. Each model becomes the next version of the registered
    model ``model_name``, which ``mlflow models serve -m models:/NAME/VERSION`` serves with its uncertainties: MLflow
    keeps the exported ONNX file and the code that asks it, and no pickle.

        >>> tracker = MLflow("digits", tracking_uri="sqlite:///mlflow.db", model_name="digits")
        >>> tracker.log(1, {"epochs": 20}, {"held_out.nll": 0.41}, model=Path("model.onnx"))
    """

    takes_models = True

    def __init__(
        self,
        lineage: str,
        *,
        experiment: str = "postprior",
        tracking_uri: str | None = None,
        model_name: str | None = None,
    ) -> None:
        self._lineage, self._experiment = lineage, experiment
        self._tracking_uri, self._model_name = tracking_uri, model_name

    def log(
        self, step: int, params: Mapping[str, Any], metrics: Mapping[str, float], *, model: Path | None = None
    ) -> None:
        mlflow = _mlflow()
        if model is not None and model.suffix != ".onnx":
            raise SettingError(f"model={model}: expected an .onnx file, as to_onnx writes it")
        with _tracking(mlflow, self._tracking_uri):
            client = mlflow.MlflowClient()
            known = client.get_experiment_by_name(self._experiment)
            experiment = known.experiment_id if known else client.create_experiment(self._experiment)
            whole = self._whole_run(client, experiment)
            part: dict[str, Any] = {"run_name": f"part {step}", "parent_run_id": whole, "nested": True}
            with mlflow.start_run(experiment_id=experiment, **part):
                mlflow.log_params(dict(params))
                mlflow.log_metrics(dict(metrics), step=step)
                if model is not None:
                    self._log_model(mlflow, model, step)
            for name, value in metrics.items():
                client.log_metric(whole, name, value, step=step)

    def _whole_run(self, client: Any, experiment: str) -> str:
        """The lineage's own run: the one an earlier process made, or a new one."""
        # MLflow's search has no way to quote every name that a lineage may have.
        key = hashlib.sha256(self._lineage.encode()).hexdigest()
        found = client.search_runs([experiment], f"tags.`{LINEAGE}` = '{key}'", max_results=1)
        if found:
            return found[0].info.run_id
        run = client.create_run(experiment, tags={LINEAGE: key}, run_name=self._lineage)
        client.set_terminated(run.info.run_id)
        return run.info.run_id

    def _log_model(self, mlflow: Any, model: Path, step: int) -> None:
        packages = ("mlflow", "numpy", "onnxruntime")
        about: dict[str, Any] = {
            "signature": _signature(model),
            "pip_requirements": [f"{package}=={version(package)}" for package in packages],
            "registered_model_name": self._model_name,
        }
        with warnings.catch_warnings():
            # An example would be a user's data, kept where the model is.
            warnings.filterwarnings("ignore", ".*An input example was not provided", UserWarning)
            warnings.filterwarnings("ignore", ".*Any type hint is inferred", UserWarning)  # MLflow's own types
            mlflow.pyfunc.log_model(
                name="belief", python_model=str(SERVED), artifacts={"model": str(model)}, step=step, **about
            )


def _signature(path: Path) -> Any:
    """What the exported file takes and gives, as it says itself; the first axis is free."""
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing("export", error) from error
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def schema(values: list[Any]) -> Schema:
        # A lone input has no name, so that a request is {"inputs": [...]}.
        names = [value.name for value in values] if len(values) > 1 else [None]
        return Schema([TensorSpec(_type(v.type), (-1, *v.shape[1:]), n) for n, v in zip(names, values, strict=True)])

    return ModelSignature(inputs=schema(session.get_inputs()), outputs=schema(session.get_outputs()))


def _type(onnx_type: str) -> "np.dtype[Any]":
    inner = onnx_type.removeprefix("tensor(").removesuffix(")")
    return np.dtype(ONNX_TYPES.get(inner, inner))


@contextmanager
def _tracking(mlflow: Any, uri: str | None) -> Generator[None]:
    """MLflow's address is a global; the user's is put back."""
    before = mlflow.get_tracking_uri()
    try:
        mlflow.set_tracking_uri(uri or before)
        yield
    finally:
        mlflow.set_tracking_uri(before)


def _mlflow() -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise _missing("mlflow", error) from error
    return mlflow


def _missing(extra: str, error: ImportError) -> MissingExtraError:
    return MissingExtraError(f"the tracker needs the extra {extra} ({error}): pip install 'postprior[{extra}]'")


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
