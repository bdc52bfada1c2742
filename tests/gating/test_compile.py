from __future__ import annotations

import torch
from torch import nn

from penstock.gating import GatedConv2d, saliency_penalty, set_density


def network() -> nn.Sequential:
    def layer(c_in: int, c_out: int) -> GatedConv2d:
        conv = nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)
        return GatedConv2d(conv, nn.BatchNorm2d(c_out, affine=False), nn.ReLU())

    return nn.Sequential(layer(3, 8), layer(8, 6))


def test_a_compiled_network_serves_every_density_without_compiling_again() -> None:
    torch.compiler.reset()
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    plain = network().eval()
    compiled = torch.compile(plain, backend=count, fullgraph=True)
    x = torch.randn(2, 3, 6, 6)
    for density in (1.0, 0.75, 0.5, 0.25, 0.1, 1.0, 0.33):
        set_density(plain, density)
        torch.testing.assert_close(compiled(x), plain(x))
    assert len(graphs) == 1


def test_a_compiled_training_step_serves_every_density_without_compiling_again() -> None:
    torch.compiler.reset()
    plain = network()
    compiled = torch.compile(plain, backend="aot_eager")
    x = torch.randn(2, 3, 6, 6)
    compiled(x).sum().backward()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for density in (0.75, 0.5, 0.25, 1.0):
            set_density(plain, {"0": density, "1": 1.0 / 3})
            (compiled(x).sum() + saliency_penalty(plain)).backward()
    assert plain[0].gate.bias.grad is not None
