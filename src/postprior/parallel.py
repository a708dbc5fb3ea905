"""Many tasks at once, on Ray: over the cores of this machine, or over a cluster."""

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast, final

from postprior.errors import MissingExtraError, PostpriorError, SettingError, WorkersError

LOCAL = "local"

RETRIES = 3
"""How often a task is begun anew whose worker died."""

Task = TypeVar("Task")
Result = TypeVar("Result")


@final
class Workers(Generic[Task, Result]):
    """A function that many processes run, each task in one of them."""

    def __init__(self, ray: Any, function: Callable[[Task], Result], gpus: float) -> None:
        self._ray = ray
        # One core each, and one thread, which Ray sees to: several workers share a machine.
        self._remote: Any = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(function)

    def map(self, tasks: Sequence[Task], done: Callable[[int], None] | None = None) -> list[Result]:
        """Every result, in the order of the tasks; ``done`` is told how many there are."""
        found: dict[int, Result] = {}
        for number, result in self.each(tasks):
            found[number] = result
            if done is not None:
                done(len(found))
        return [found[number] for number in range(len(tasks))]

    def each(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Every result as it comes, with the number of its task.

        A task whose worker dies is begun anew elsewhere. An error that a task raises ends all, as it would here.
        """
        numbers = {self._remote.remote(task): number for number, task in enumerate(tasks)}
        left = list(numbers)
        try:
            while left:
                ready, left = self._ray.wait(left)
                for reference in ready:
                    yield numbers[reference], cast(Result, self._ray.get(reference))
        except self._ray.exceptions.RayTaskError as error:
            cause: Any = error.cause
            raise cause if isinstance(cause, PostpriorError) else error.as_instanceof_cause() from None
        except self._ray.exceptions.RayError as error:
            said = str(error).partition("\n")[0]
            raise WorkersError(
                f"a worker died {RETRIES + 1} times over one task: {said}. Give it more memory"
            ) from error
        finally:
            for reference in left:
                self._ray.cancel(reference, force=True)


@contextmanager
def workers(
    where: str, function: Callable[[Task], Result], *, count: int | None = None, gpus: float = 0.0
) -> Generator[Workers[Task, Result]]:
    """Workers on this machine ("local", ``count`` of them) or on a cluster ("ray://host:port").

    Each has one core, and ``gpus`` accelerators, of which 0.25 means that four workers share one.
    """
    if where != LOCAL and not where.startswith("ray://"):
        raise SettingError(f"parallel={where!r}: expected 'local', or a cluster's address such as ray://host:10001")
    if where != LOCAL and count is not None:
        raise SettingError("workers: a cluster says itself how many it has")
    if count is not None and count < 1:
        raise SettingError(f"workers={count}: expected a whole number from 1")
    ray = _ray()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if where == LOCAL:
        # What this process can import, its workers can, such as a user's own functions.
        found = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
        ray.init(num_cpus=count or os.cpu_count(), include_dashboard=False, runtime_env=found, **quiet)
    else:
        try:
            ray.init(where, **quiet)
        except (ConnectionError, RuntimeError, TimeoutError) as error:
            said = str(error).partition("\n")[0]
            raise WorkersError(f"no cluster answers at {where}: {said}. Check the address, or use 'local'") from error
    try:
        yield Workers(ray, function, gpus)
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(f"parallel needs Ray ({error}): pip install 'postprior[parallel]'") from error
    return ray
