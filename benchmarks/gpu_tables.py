"""What ``gpu.py`` measures. A table is a stream of named rows: what has been measured stays, whatever comes after."""

import gc
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ours
import torch
from timing import Case, interleaved, ratio
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import postprior
from postprior import distributed
from postprior.learning.graph import RecordedStep
from postprior.maths import seeds
from postprior.networks.zoo import MLP

Rows = Iterator[tuple[str, dict[str, Any]]]
PLAIN = "alike, fused Adam"
"""The plain network treated as ours is: channels_last, pooling before ReLU, the optimizer's fused kernel."""
BASES = (PLAIN, "alike")
MODES = ("recorded", "eager")
MOST_STEPS, PROFILED_STEPS, SLOWEST = 200, 50, 12
SECONDS_OF_PARTS = 12.0


@dataclass(frozen=True)
class Asked:
    """How to measure."""

    device: torch.device
    rounds: int
    span: float
    """Seconds that a turn of a case is to take; it has 200 steps at most."""
    small: bool
    """Everything smaller, to try the program where there is no GPU."""

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def apart(self) -> Callable[[], AbstractContextManager[object]]:
        """Gives a stream of its own to a case, to be entered every time the case is run.

        Recordings on one stream share what cuBLAS works in, and torch 2.11 frees it with the first of them that goes
        (pytorch issue 193402): the others then write into memory that belongs to someone else.
        """
        if self.device.type != "cuda":
            return nullcontext
        stream = torch.cuda.Stream(self.device)
        return lambda: torch.cuda.stream(stream)


@dataclass(frozen=True)
class Turn:
    """A case, so often that its turn takes long enough."""

    run: Case
    count: int


def turn(make: Callable[[], Case], asked: Asked, warm: int) -> Turn:
    """The first steps, in which kernels are chosen and the step is recorded, are not counted."""
    asked.wait()  # what it is made of is there
    on_its_stream = asked.apart()
    with on_its_stream():
        case = make()
        for _ in range(warm):
            case()
        asked.wait()
        began, tried = time.perf_counter(), max(1, warm // 2)
        for _ in range(tried):
            case()
        asked.wait()
    count = round(asked.span * tried / (time.perf_counter() - began))
    count = min(MOST_STEPS, max(1, count))

    def run() -> None:
        with on_its_stream():
            for _ in range(count):
                case()
            asked.wait()

    return Turn(run, count)


def compared(makers: Mapping[str, Callable[[], Case]], asked: Asked, *bases: str, warm: int = 10) -> Rows:
    """Medians over rounds in which the cases take turns; a case that fails says why, and costs no other."""
    failed: dict[str, str] = {}
    turns: dict[str, Turn] = {}
    for name, make in makers.items():
        with noted(failed, name):
            turns[name] = turn(make, asked, warm)

    def guarded(name: str) -> None:
        if name not in failed:
            with noted(failed, name):
                turns[name].run()

    times = interleaved({name: lambda name=name: guarded(name) for name in turns}, asked.rounds, 0)
    seconds = {name: [each / turns[name].count for each in times[name]] for name in turns if name not in failed}
    for name in makers:
        if name in failed:
            yield name, {"failed": failed[name]}
            continue
        over = {f"over {base}": ratio(seconds[name], seconds[base]) for base in bases if base in seconds}
        yield name, {"seconds": statistics.median(seconds[name]), "steps_a_turn": turns[name].count, **over}


@contextmanager
def noted(failed: dict[str, str], name: str) -> Generator[None]:
    """Whatever is raised inside is written down."""
    try:
        yield
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def replayed(work: Callable[[], object], asked: Asked) -> Case:
    """The work as one recorded graph; on the CPU as it is."""
    if asked.device.type != "cuda":
        return work
    for _ in range(3):
        work()
    nothing = torch.zeros(1, device=asked.device)
    kept = RecordedStep(lambda _: work(), nothing, seeds.stream(asked.device, 0))
    return lambda: kept.replay(nothing)


def ceilings(asked: Asked) -> Rows:
    """What the machine can do: bytes copied a second (read and written), and what a launch takes."""
    cuda = asked.device.type == "cuda"
    name = torch.cuda.get_device_name() if cuda else "the CPU, to try the program"
    yield "machine", {"device": name, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    many = 100

    def copies(size: int, times: int) -> Callable[[], Case]:
        source, target = torch.randn(2, size, device=asked.device)
        return lambda: replayed(lambda: [target.copy_(source) for _ in range(times)], asked)

    def launches() -> None:
        for _ in range(many):
            one.add_(1.0)

    one = torch.zeros(1, device=asked.device)
    large, near = (2**20, 2**16) if asked.small else (2**28, 2**21)
    for title, size, times in (("copy", large, 1), ("copy in cache", near, many)):
        for _, row in compared({title: copies(size, times)}, asked):
            found = {"bytes": 4 * size, "bytes_a_second": times * 8 * size / row["seconds"]} if "seconds" in row else {}
            yield title, {**row, **found}
    cases = {"launch, recorded": lambda: replayed(launches, asked), "launch, eager": lambda: launches}
    for title, row in compared(cases, asked):
        yield title, {**row, **({"seconds_a_launch": row["seconds"] / many} if "seconds" in row else {})}


def steps(precision: str) -> Callable[[Asked], Rows]:
    """A training step of every family over the plain one, both recorded and both eager."""

    def table(asked: Asked) -> Rows:
        for name in ours.NETWORKS:
            x, y = ours.data(name, ours.BATCH, asked.device)
            for mode in MODES:
                for case, row in compared(_step_cases(name, x, y, precision, mode), asked, *BASES):
                    yield f"{name}, {mode}, {case}", row

    return table


def _step_cases(name: str, x: Tensor, y: Tensor, precision: str, mode: str) -> dict[str, Callable[[], Case]]:
    plainly: dict[str, Any] = {"bf16": precision == "bfloat16", "recorded": mode == "recorded"}
    settings: dict[str, Any] = {"precision": precision, "cuda_graph": mode == "recorded"}
    make = ours.NETWORKS[name][0]
    return {
        PLAIN: lambda: ours.plain_step(make(), x, y, fused=True, **plainly),
        "alike": lambda: ours.plain_step(make(), x, y, **plainly),
        "factorized": lambda: ours.our_step(name, "factorized", x, y, **settings),
        "factorized, local": lambda: ours.our_step(name, "factorized", x, y, local_reparameterization=True, **settings),
        "channelwise": lambda: ours.our_step(name, "channelwise", x, y, **settings),
        "multiplicative": lambda: ours.our_step(name, "multiplicative", x, y, **settings),
    }


def prediction(asked: Asked) -> Rows:
    """A whole call of ``predict`` over as many plain forward passes over the same batches."""
    name, count = "3Conv3FC", 2 if asked.small else 100
    calm = Asked(asked.device, min(asked.rounds, 3), asked.span, asked.small)
    # In pieces as ``predict`` cuts them unless it is told otherwise, and whole.
    for images, size in ((20, 10), (20, 20)) if asked.small else ((1000, 500), (10_000, 500), (10_000, 10_000)):
        x, _ = ours.data(name, images, asked.device)
        for precision in ("float32", "bfloat16"):
            options: dict[str, Any] = {"batch_size": size, "precision": precision}

            def plain(x: Tensor = x, size: int = size, bf16: bool = precision == "bfloat16") -> Case:
                network = ours.NETWORKS[name][0]()
                forwards = [ours.plain_forward(network, some, bf16=bf16) for some in x.split(size)]
                return lambda: [forward() for _ in range(count) for forward in forwards]

            def factorized(x: Tensor = x, options: dict[str, Any] = options) -> Case:
                return ours.our_prediction(name, "factorized", x, count, **options)

            for case, row in compared({"plain": plain, "factorized": factorized}, calm, "plain", warm=1):
                rate = {"samples_a_second": count / row["seconds"]} if "seconds" in row else {}
                yield f"{images} images, {size} at once, {precision}, {case}", {**row, **rate}


def gaps(asked: Asked) -> Rows:
    """The share of a step's time on the wall in which no kernel ran; kernels by the profiler, the wall without it."""
    makers: dict[str, Callable[[], Case]] = {}
    for name in ours.NETWORKS:
        x, y = ours.data(name, ours.BATCH, asked.device)
        for precision in ("float32", "bfloat16"):
            for mode in MODES:
                made = _step_cases(name, x, y, precision, mode)
                makers |= {f"{name}, {precision}, {mode}, {case}": made[case] for case in (PLAIN, "factorized")}
    # All walls first: once it has been used, the profiler may leave something behind that every launch passes.
    for title, row in list(compared(makers, asked)):
        failed: dict[str, str] = {}
        if "seconds" in row:
            with noted(failed, title), asked.apart()():
                row = {**row, **_profiled(makers[title](), row["seconds"], asked)}
        yield title, {**row, **({"failed": failed[title]} if failed else {})}


def _profiled(case: Case, wall: float, asked: Asked) -> dict[str, Any]:
    count, cuda = 3 if asked.small else PROFILED_STEPS, asked.device.type == "cuda"
    for _ in range(10):  # kernels are chosen, and the step is recorded
        case()
    asked.wait()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            case()
        asked.wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == ("kernel" if cuda else "cpu_op")]
    copies = [e for e in events if e.get("cat") in ("gpu_memcpy", "gpu_memset")]
    if not kernels:
        raise RuntimeError("the profiler saw no kernel")
    busy, moving = _covered(kernels) / count, _covered(kernels + copies) / count
    sums: dict[str, float] = {}
    for event in kernels:
        sums[event["name"][:120]] = sums.get(event["name"][:120], 0.0) + event["dur"] / count
    slowest = sorted(sums.items(), key=lambda pair: -pair[1])[:SLOWEST]
    return {
        "seconds_in_kernels": busy,
        "kernels_a_step": len(kernels) / count,
        "copies_a_step": len(copies) / count,
        "share_without_a_kernel": 1 - busy / wall,
        "share_without_kernel_or_copy": 1 - moving / wall,
        "microseconds_a_step_of_the_slowest": {name: round(each, 2) for name, each in slowest},
    }


def _covered(events: list[dict[str, Any]]) -> float:
    """Seconds in which at least one of them ran; a trace counts in microseconds."""
    covered, until = 0.0, -1.0
    for began, ended in sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events):
        covered += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return covered / 1e6


def one_process(asked: Asked) -> Rows:
    """What it costs to be one of several processes, where it is the only one.

    "alone" knows of no group. "joined" is in a group of one, in which nothing is exchanged. "averaged" takes the path
    of several: slopes and figures are divided and reduced over the group of one (the slopes come out halved, which
    takes as long). A step that waits for others is not recorded, so all these are eager but for "alone, recorded".
    """
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # there may be no other network
    group: Any = torch.distributed
    group.init_process_group("cpu:gloo,cuda:nccl" if asked.device.type == "cuda" else "gloo")
    real = distributed.size

    def having(size: Callable[[], int], make: Callable[..., Case], **settings: Any) -> Callable[[], Case]:
        def put(case: Callable[[], Any]) -> Any:
            distributed.size = size
            try:
                return case()
            finally:
                distributed.size = real

        def made() -> Case:
            case = put(lambda: make(**settings))
            return lambda: put(case)

        return made

    def joined(make: Callable[..., Case]) -> Case:
        case = make()

        def run() -> None:
            with distributed.joined():
                case()

        return run

    try:
        for title, make in _nets(asked):
            cases = {
                "alone": having(lambda: 1, make),
                "alone, recorded": having(lambda: 1, make, cuda_graph=True),
                "joined": lambda make=make: joined(make),
                "averaged": having(lambda: 2, make),
            }
            for case, row in compared(cases, asked, "alone", "alone, recorded"):
                yield f"{title}, {case}", row
    finally:
        group.destroy_process_group()


def _nets(asked: Asked) -> Iterator[tuple[str, Callable[..., Case]]]:
    for name in ours.NETWORKS:
        x, y = ours.data(name, ours.BATCH, asked.device)
        yield name, lambda name=name, x=x, y=y, **more: ours.our_step(name, "factorized", x, y, **more)
    for weights in (10**5,) if asked.small else (10**7, 10**8):
        yield f"{weights:.0e} weights", lambda weights=weights, **more: _wide_step(weights, asked, **more)


def _wide_step(weights: int, asked: Asked, **settings: Any) -> Case:
    """A step on one hidden layer with about so many weights."""
    features, classes = 1000, 10
    hidden = max(1, round(weights / (features + classes + 1)))
    with asked.device:  # to draw so many weights on the CPU would take longer than to measure
        network = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    x, y = torch.randn(64, features).to(asked.device), torch.randint(classes, (64,)).to(asked.device)
    return ours.step_of(network, "factorized", x, y, **settings)


def growth(asked: Asked) -> Rows:
    """A step and its memory against weights, and a part's time against how many came before."""
    cuda = asked.device.type == "cuda"
    for weights in (10**4, 10**5) if asked.small else (10**5, 10**6, 10**7, 10**8):
        for mode in MODES:
            before = 0
            if cuda:
                gc.collect()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            make = {mode: lambda weights=weights, mode=mode: _wide_step(weights, asked, cuda_graph=mode == "recorded")}
            for _, row in compared(make, Asked(asked.device, min(asked.rounds, 5), asked.span, asked.small)):
                a_weight = {"nanoseconds_a_weight": row["seconds"] / weights * 1e9} if "seconds" in row else {}
                memory = {"peak_bytes_a_weight": (torch.cuda.max_memory_allocated() - before) / weights} if cuda else {}
                yield f"{weights:.0e} weights, {mode}", {**row, **a_weight, **memory}
    yield "parts", _parts(asked)


def _parts(asked: Asked) -> dict[str, Any]:
    """Parts of eight examples, each one step, until there are a thousand or the time is up."""
    torch.manual_seed(0)
    network = MLP(in_features=16, num_outputs=4).to(asked.device)
    learner = postprior.Learner(network, epochs=1, batch_size=8, temperature=0.1, score_samples=1)
    x, y = torch.randn(8, 16).to(asked.device), torch.randint(4, (8,)).to(asked.device)
    each: list[float] = []
    while len(each) < (20 if asked.small else 1000) and sum(each) < SECONDS_OF_PARTS:
        began = time.perf_counter()
        learner.absorb((x, y))
        asked.wait()
        each.append(time.perf_counter() - began)
    share = max(1, min(50, len(each) // 3))
    first, last = statistics.median(each[1 : 1 + share]), statistics.median(each[-share:])
    found = {"parts": len(each), "seconds": sum(each), "median_of_first": first, "median_of_last": last}
    return {**found, "counted_at_each_end": share, "last_over_first": last / first}


TABLES: dict[str, Callable[[Asked], Rows]] = {
    "ceilings": ceilings,
    "step, float32": steps("float32"),
    "without a kernel": gaps,
    "step, bfloat16": steps("bfloat16"),
    "prediction": prediction,
    "one process": one_process,
    "growth": growth,
}
