"""What ``mlflow models serve`` runs: the exported file, asked by onnxruntime. MLflow keeps a copy of this very file.

It imports nothing of this library, which need not be installed where a belief is served.
"""

from typing import Any

import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class Served(PythonModel):
    """A belief that answers with its uncertainties."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the exported file."""
        import onnxruntime

        self._session: Any = onnxruntime.InferenceSession(context.artifacts["model"])

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: PythonModelContext, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Every output by its name; several inputs come as a dictionary."""
        del context, params
        fed: Any = model_input
        if not isinstance(fed, dict):
            fed = {self._session.get_inputs()[0].name: fed}
        outputs = [output.name for output in self._session.get_outputs()]
        return dict(zip(outputs, self._session.run(None, fed), strict=True))


set_model(Served())
