"""Where skipping starts to pay, layer by layer.

    python benchmarks/layers.py --network resnet18

Every convolution of the network runs alone in the dense runtimes (ONNX Runtime, OpenVINO, torch) and in the
engine at several densities of input and output; least times, the dense ones before and after. The last column
is the largest density at which the engine is faster than the fastest of them, between the measured ones by
interpolation. One thread, one image; a dense runtime's call is counted whole, the engine's layer alone.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
import tyro
from kept import RESULTS, keep
from networks import make
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from penstock.engine import Engine
from penstock.engine import compile as compile_engine
from penstock.gating import GatedConv2d
from penstock.measuring.runtimes import dense_runtimes
from penstock.measuring.timing import interleave


@dataclass(frozen=True)
class Options:
    """Time the convolutions of a network one by one."""

    network: str = "resnet18"
    densities: str = "1.0,0.9,0.8,0.7,0.6,0.5,0.4,0.3,0.2,0.1"
    seconds: float = 3.0
    """About how long each layer is measured."""
    out: Path = RESULTS


@dataclass(frozen=True)
class LayerResult:
    layer: str
    shape: str
    dense_ms: float
    dense_runtime: str  # the fastest
    engine_ms: dict[float, float]
    pays_below: float | None  # the engine is faster at this density and under it


class Pair(nn.Module):
    """A gate that chooses the input's channels, then the layer: the density holds on both sides."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.chooser = _gated(
            nn.Conv2d(conv.in_channels, conv.in_channels, 1, groups=conv.in_channels, bias=False)
        )
        self.layer = _gated(
            nn.Conv2d(
                conv.in_channels,
                conv.out_channels,
                conv.kernel_size,
                conv.stride,
                conv.padding,
                conv.dilation,
                conv.groups,
                bias=False,
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.chooser(x))


def _gated(conv: nn.Conv2d) -> GatedConv2d:
    layer = GatedConv2d(conv, None, nn.ReLU())
    layer.gate.weight.data.normal_(0, 0.01)
    layer.gate.bias.data.uniform_(0.9, 1.1)
    return layer


def distinct_layers(network: nn.Module, image: Tensor) -> dict[str, tuple[nn.Conv2d, tuple[int, ...]]]:
    """The convolutions of different shapes, each with its input's shape."""
    found: dict[str, tuple[nn.Conv2d, tuple[int, ...]]] = {}
    seen = set()
    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):

            def note(conv: nn.Module, inputs: tuple[Tensor, ...], _: Tensor, name: str = name) -> None:
                assert isinstance(conv, nn.Conv2d)
                key = (conv.weight.shape, conv.stride, tuple(inputs[0].shape))
                if key not in seen:
                    seen.add(key)
                    found[name] = (conv, tuple(inputs[0].shape))

            hooks.append(module.register_forward_hook(note))
    with torch.no_grad():
        network(image)
    for hook in hooks:
        hook.remove()
    return found


def measure(
    name: str, conv: nn.Conv2d, shape: tuple[int, ...], densities: list[float], seconds: float
) -> LayerResult:
    """Times of one layer, dense and at each density."""
    image = torch.randn(shape)
    with torch.inference_mode():
        engine = compile_engine(Pair(conv).eval(), image)
        dense = nn.Sequential(conv, nn.ReLU()).eval()
        rivals = dense_runtimes(dense, image, ("onnxruntime", "openvino")).run
        contestants: dict[str, Callable[[], object]] = {n: _on(run, image) for n, run in rivals.items()}
        last = image.to(memory_format=torch.channels_last)
        eager = copy.deepcopy(dense).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        contestants["torch"] = lambda: eager(last)
        dense_before = interleave(contestants, seconds=seconds / 4)
        layer_times = {d: _layer_ms(engine, image, d, seconds / 2 / len(densities)) for d in densities}
        times = [dense_before, interleave(contestants, seconds=seconds / 4)]
    least, fastest = min((timing.least, rival) for round_ in times for rival, timing in round_.items())
    return LayerResult(
        name,
        f"{shape[1]}→{conv.out_channels} {conv.kernel_size[0]}×{conv.kernel_size[1]}/{conv.stride[0]} "
        f"{shape[2]}×{shape[3]}",
        least,
        fastest,
        layer_times,
        _crossing(least, layer_times),
    )


def _layer_ms(engine: Engine, image: Tensor, density: float, seconds: float) -> float:
    """The layer's own step, without the one that chooses its inputs."""
    quick = engine.profile(image, density=density, repeats=2).milliseconds
    repeats = max(10, min(500, int(500 * seconds / quick)))
    profile = engine.profile(image, density=density, repeats=repeats)
    return next(layer.milliseconds for layer in profile.layers if layer.name == "layer")


def _crossing(dense: float, times: dict[float, float]) -> float | None:
    ordered = sorted(times.items(), reverse=True)
    if ordered[0][1] <= dense:
        return ordered[0][0]
    for (high, slow), (low, fast) in pairwise(ordered):
        if fast <= dense:
            return low + (high - low) * (dense - fast) / (slow - fast)
    return None


def _on(run: Callable[[Tensor], object], image: Tensor) -> Callable[[], object]:
    return lambda: run(image)


def main(options: Options) -> int:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network, size = make(options.network)
    densities = [float(d) for d in options.densities.split(",")]
    results = []
    for name, (conv, shape) in distinct_layers(network, torch.randn(1, 3, size, size)).items():
        results.append(measure(name, conv, shape, densities, options.seconds))
    table = Table(
        "layer",
        "shape",
        "dense ms",
        "in",
        *(f"d={d:g}" for d in densities),
        "pays below",
        title=options.network,
    )
    for r in results:
        pays = "never" if r.pays_below is None else f"{r.pays_below:.2f}"
        table.add_row(
            r.layer,
            r.shape,
            f"{r.dense_ms:.3f}",
            r.dense_runtime,
            *(f"{r.engine_ms[d]:.3f}" for d in densities),
            pays,
        )
    Console(width=200).print(table)
    keep(f"layers-{options.network}", [asdict(r) for r in results], options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
