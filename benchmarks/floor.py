"""What a belief cannot do without beside the plain step, in milliseconds: one thread, process time, medians.

.venv/bin/python benchmarks/floor.py
THP_MEM_ALLOC_ENABLE=1 .venv/bin/python benchmarks/floor.py   # how much of the plain step is fetching memory
MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_THRESHOLD_=4000000000 .venv/bin/python benchmarks/floor.py
"""

import statistics

import ours
import torch
from timing import Case, interleaved, say
from torch import Tensor, nn

ROUNDS = 5


def adam(size: int) -> Case:
    """Torch's fused Adam over this many numbers."""
    parameter = nn.Parameter(torch.zeros(size))
    parameter.grad = torch.ones(size)
    return torch.optim.Adam([parameter], fused=True).step


def num_sampled_outputs(network: nn.Module, x: Tensor) -> int:
    """The outputs of all convolutions and linear maps for the batch."""
    counts: list[int] = []
    layers = [module for module in network.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    hooks = [layer.register_forward_hook(lambda *given: counts.append(given[2].numel())) for layer in layers]
    with torch.no_grad():
        network(x)
    for hook in hooks:
        hook.remove()
    return sum(counts)


def factors(network: nn.Module) -> tuple[int, list[tuple[int, int]]]:
    """Numbers that a channelwise belief learns, and number and size of its blocks in each convolution."""
    blocks = [
        (m.weight[:, :, 0, 0].numel(), m.weight[0, 0].numel()) for m in network.modules() if isinstance(m, nn.Conv2d)
    ]
    below = sum(count * size * (size - 1) // 2 for count, size in blocks)
    return 2 * sum(parameter.numel() for parameter in network.parameters()) + below, blocks


def products(blocks: list[tuple[int, int]]) -> Case:
    """Every block's factor times another matrix, a few blocks at a time: what each of two products in the KL takes."""
    some = [(torch.ones(2**18 // size**2, size, size), count) for count, size in blocks]

    def run() -> None:
        for stack, count in some:
            for start in range(0, count, len(stack)):
                torch.bmm(stack[: count - start], stack[: count - start])

    return run


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    for name, (make, _) in ours.NETWORKS.items():
        x, y = ours.data(name, ours.BATCH)
        many, _ = ours.data(name, ours.MANY)
        weights = torch.zeros(sum(parameter.numel() for parameter in make().parameters()))
        outputs = torch.zeros(num_sampled_outputs(make(), x))
        learned, blocks = factors(make())
        cases: dict[str, Case] = {
            "plain step, alike": ours.plain_step(make(), x, y),
            "factorized step": ours.our_step(name, "factorized", x, y),
            "normal numbers, one a weight": lambda weights=weights: weights.normal_(),
            "uniform numbers, one a weight": lambda weights=weights: weights.uniform_(),
            "widths (exp)": lambda weights=weights: weights.exp(),
            "Adam, one number a weight": adam(len(weights)),
            "Adam, two numbers a weight": adam(2 * len(weights)),
            "channelwise step": ours.our_step(name, "channelwise", x, y),
            "local step": ours.our_step(name, "factorized", x, y, local_reparameterization=True),
            "Adam, all numbers of channelwise": adam(learned),
            "one product of all factors": products(blocks),
            "normal numbers, one an output": lambda outputs=outputs: outputs.normal_(),
            "plain forward, 1,000 images": ours.plain_forward(ours.as_written(make()), many),
            "ours, a sample of twenty, 1,000 images": ours.our_prediction(name, "factorized", many, 20),
        }
        times = {case: statistics.median(found) * 1e3 for case, found in interleaved(cases, ROUNDS, 1).items()}
        times["ours, a sample of twenty, 1,000 images"] /= 20
        plain = times["plain step, alike"]
        more = times["Adam, two numbers a weight"] - times["Adam, one number a weight"]
        floor = times["normal numbers, one a weight"] + times["widths (exp)"] + more
        say(f"\n{name}: {len(weights):,} weights, {len(outputs):,} sampled outputs")
        for case, milliseconds in times.items():
            say(f"{case:<44}{milliseconds:8.2f} ms")
        say(f"{'floor of factorized over alike':<44}{1 + floor / plain:8.2f} x")
        channelwise = times["normal numbers, one a weight"] + 2 * times["one product of all factors"]
        channelwise += times["Adam, all numbers of channelwise"] - times["Adam, one number a weight"]
        say(f"{'floor of channelwise over alike':<44}{1 + channelwise / plain:8.2f} x")
        say(f"{'floor of local over alike':<44}{2 + times['normal numbers, one an output'] / plain:8.2f} x")


if __name__ == "__main__":
    main()
