"""Several processes that learn one part together: which one this is, and what all of them say; alone, nothing happens.

What is exchanged are numbers, JSON and safetensors, never pickles. Small things go over the CPU (gloo), so that a GPU
is not held up; the slopes of a step go where they lie.
"""

import json
import os
import re
import socket
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

import safetensors.torch
import torch
from torch import Tensor
from torch import distributed as torch_distributed

from postprior import errors
from postprior.errors import PostpriorError, SettingError, WorkersError

TIMEOUT = 1800.0
"""Seconds after which a process that does not answer is given up; the first one may take long to read a part."""

LARGE = 2**18
"""Tensors of so many numbers are averaged where they lie; smaller ones share a message."""

_dist = cast(Any, torch_distributed)


def rank() -> int:
    """Which of the processes this is, from 0."""
    return _dist.get_rank() if _is_joined() else 0


def size() -> int:
    """How many processes there are."""
    return _dist.get_world_size() if _is_joined() else 1


def is_first() -> bool:
    """Whether this is the process that writes, and speaks to people."""
    return rank() == 0


def key() -> tuple[str | int, ...]:
    """What is added to the key of a stream of randomness that is this process's own."""
    return ("process", rank()) if rank() else ()


def launched() -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarts() -> int:
    """How often torchrun has started this process anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launch() -> str | None:
    """A name for this run of torchrun, the same after each restart; None without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    # Its own id is "none" unless the user gives one, but it is the parent of all its processes.
    about = (os.environ["TORCHELASTIC_RUN_ID"], socket.gethostname(), os.getppid())
    return uuid5(NAMESPACE_URL, "/".join(map(str, about))).hex


@contextmanager
def joined(timeout: float = TIMEOUT) -> Generator[None]:
    """Inside, the processes that a launcher such as torchrun started work together; without one, nothing happens.

    Some other process that dies, or does not answer for ``timeout`` seconds, ends in a WorkersError.
    """
    if not timeout > 0:
        raise SettingError(f"timeout={timeout}: expected a number of seconds above 0")
    if not launched() or _is_joined():
        yield
        return
    # Optimizers bring it in at their first step, and some default argument in it is the group there is at that time:
    # it would outlive its end here, and its threads now and then abort the process at its own.
    import_module("torch._dynamo")

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with _answered():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        _dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **_meeting_point(timeout))
    try:
        yield
    finally:
        _dist.destroy_process_group()


def average(tensors: Iterable[Tensor]) -> None:
    """The mean over all processes in the place of each tensor; the same bytes on all of them."""
    if size() == 1:
        return
    small: dict[Any, list[Tensor]] = {}
    with _answered(), torch.no_grad():
        for tensor in tensors:
            plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            if plain.numel() >= LARGE and plain.is_contiguous():
                _dist.all_reduce(plain.div_(size()))
            else:
                small.setdefault((plain.dtype, plain.device), []).append(plain)
        for group in small.values():
            joint = torch.cat([tensor.flatten() for tensor in group]).div_(size())
            _dist.all_reduce(joint)
            for tensor, piece in zip(group, joint.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(piece.view_as(tensor))


def broadcast(tensors: Iterable[Tensor]) -> None:
    """The first process's values in the place of everyone's."""
    if size() == 1:
        return
    with _answered(), torch.no_grad():
        for tensor in tensors:
            values = tensor.detach().contiguous()
            _dist.broadcast(values, 0)
            tensor.copy_(values)


def total(value: float) -> float:
    """The sum over all processes."""
    return sum(gather_values(value))


def largest(value: float) -> float:
    """The largest that any process gives."""
    return max(gather_values(value))


def gather_values(value: float) -> list[float]:
    """What each process gives, in their order."""
    if size() == 1:
        return [value]
    with _answered():
        found = [torch.zeros((), dtype=torch.float64) for _ in range(size())]
        _dist.all_gather(found, torch.tensor(value, dtype=torch.float64))
    return [float(each) for each in found]


def gather(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Each process's tensors, in their order, on the CPU; names and shapes may differ."""
    if size() == 1:
        return [dict(tensors)]
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return [safetensors.torch.load(each) for each in _gather_bytes(safetensors.torch.save(plain))]


def all_pieces(own: Tensor) -> Tensor:
    """The pieces of all processes, of one length, one after another."""
    if size() == 1:
        return own.clone()
    whole = own.new_empty(size() * own.numel())
    with _answered(), torch.no_grad():
        _newest("all_gather_single", "all_gather_into_tensor")(whole, own.contiguous())
    return whole


def own_piece_of_sum(whole: Tensor) -> Tensor:
    """This process's piece of the sum over all processes; the inverse way of ``all_pieces``."""
    if size() == 1:
        return whole
    own = whole.new_empty(whole.numel() // size())
    with _answered(), torch.no_grad():
        _newest("reduce_scatter_single", "reduce_scatter_tensor")(own, whole)
    return own


def told(value: Any = None) -> Any:
    """What the first process says, as JSON; the others wait for it."""
    if size() == 1:
        return value
    return json.loads(_gather_bytes(json.dumps(value).encode() if is_first() else b"")[0])


def told_by_each(value: Any) -> list[Any]:
    """What every process says, in their order, as JSON."""
    if size() == 1:
        return [value]
    return [json.loads(each) for each in _gather_bytes(json.dumps(value).encode())]


@contextmanager
def agreed() -> Generator[None]:
    """An error of ours that one process meets inside is raised on all, so that none waits for another in vain."""
    if size() == 1:
        yield
        return
    own: PostpriorError | None = None
    try:
        yield
    except WorkersError:
        raise  # the others are lost: there is nobody to ask
    except PostpriorError as error:
        own = error
    for number, each in enumerate(told_by_each(plain_error(own))):
        if each is not None:
            raise own if own is not None and number == rank() else error_of(each)


def plain_error(error: PostpriorError | None) -> dict[str, str] | None:
    """An error as JSON."""
    return None if error is None else {"kind": type(error).__name__, "message": str(error)}


def error_of(plain: Mapping[str, str]) -> PostpriorError:
    """The inverse of ``plain_error``."""
    kind: Any = getattr(errors, plain["kind"], PostpriorError)
    return kind(plain["message"])


def _meeting_point(timeout: float) -> dict[str, Any]:
    """Where processes that were started anew leave their addresses for one another.

    torchrun keeps one table of addresses through all restarts (pytorch/pytorch#135712), in which a quick process finds
    those of the dead. So each attempt has a part of its own. Launchers on several hosts do not count restarts alike:
    there this would part them, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives each attempt a new table.
    """
    one_host = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if not (restarts() and one_host and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"):
        return {}
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    table = _dist.TCPStore(host, port, size, is_master=False, timeout=timedelta(seconds=timeout))
    return {"store": _dist.PrefixStore(f"attempt {restarts()}", table), "rank": rank, "world_size": size}


def _is_joined() -> bool:
    return _dist.is_available() and _dist.is_initialized()


def _newest(name: str, before: str) -> Any:
    """A function of torch's, by the name that it has had since 2.13, or by the one before."""
    return getattr(_dist, name, None) or getattr(_dist, before)


def _gather_bytes(own: bytes) -> list[bytes]:
    lengths = [int(length) for length in gather_values(len(own))]
    with _answered():
        # Padded to one length, since not every backend takes several.
        padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8) if own else padded[:0]
        found = [torch.zeros_like(padded) for _ in range(size())]
        _dist.all_gather(found, padded)
    return [each[:length].numpy().tobytes() for each, length in zip(found, lengths, strict=True)]


@contextmanager
def _answered() -> Generator[None]:
    """What the backends raise when another process is gone, as a sentence."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, PostpriorError):
            raise
        # Backends begin with the place in their own code, and end with advice about it.
        said = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip().partition("\n")[0]).partition(". ")[0]
        raise WorkersError(
            f"process {os.environ.get('RANK', '0')} of {os.environ.get('WORLD_SIZE', '1')} has lost the others: one of "
            f"them failed, was killed, or did not answer in time ({said}). Nothing was recorded; see what the others "
            "said, then go on with all of them"
        ) from error
