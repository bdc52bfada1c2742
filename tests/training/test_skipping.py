"""Training that computes winners only, against the masked layer in plain PyTorch and double precision."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.tiny import RICH, run, same_bits, weights
from torch import Tensor, nn

from penstock.gating import GatedConv2d, set_density, set_image_densities, set_levels
from penstock.native import ISA_VARIABLE, available_isas
from penstock.surgery import add_gates
from penstock.training import fast_layers
from penstock.training.fast_layers import FastLayers
from penstock.training.fused import FusedLayers
from penstock.training.skipping import PackedMap, pack, pays, skipping_conv


def masked(
    x: Tensor, weight: Tensor, shift: Tensor, gains: Tensor, norm: nn.BatchNorm2d, stride: int, padding: int
) -> Tensor:
    """Every channel computed, each normalised over the images that it won, then multiplied by π."""
    z = torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    columns = []
    for c in range(z.shape[1]):
        won = gains[:, c] != 0
        values = z[won, c]
        if norm.training and bool(won.any()):
            mean, variance = values.mean(), values.var(correction=0)
            unbiased = values.var(correction=1) if values.numel() > 1 else variance
            norm.running_mean[c] += norm.momentum * (mean.detach() - norm.running_mean[c])
            norm.running_var[c] += norm.momentum * (unbiased.detach() - norm.running_var[c])
        else:
            mean, variance = norm.running_mean[c].clone(), norm.running_var[c].clone()
        normed = (z[:, c] - mean) / (variance + norm.eps).sqrt()
        columns.append(gains[:, c, None, None] * (normed + shift[c]))
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("isa", available_isas())
@settings(max_examples=50, deadline=None)
@given(
    images=st.integers(1, 4), ins=st.integers(1, 37), outs=st.integers(1, 37), height=st.integers(3, 13),
    width=st.integers(3, 13), padding=st.integers(0, 2), stride=st.integers(1, 2), packed=st.booleans(),
    share=st.floats(0.0, 1.0), frozen=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_values_gradients_and_statistics_are_the_masked_layers(
    isa: str, images: int, ins: int, outs: int, height: int, width: int, padding: int, stride: int,
    packed: bool, share: float, frozen: bool, seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).double()  # the same numbers in both precisions

    def some(channels: int) -> Tensor:
        return torch.rand(images, channels, generator=generator) < share

    conv = nn.Conv2d(ins, outs, 3, stride, padding, bias=False)
    given_in = some(ins) if packed else torch.ones(images, ins, dtype=torch.bool)
    x = (draw(images, ins, height, width) + 1) * given_in[:, :, None, None]
    weight, shift = draw(outs, ins, 3, 3), draw(outs)
    gains = (draw(images, outs).abs() + 0.1) * some(outs)
    sides = [(side + 2 * padding - 3) // stride + 1 for side in (height, width)]
    to_out, to_sums = draw(images, outs, *sides), draw(images, outs)
    found = []
    for kind in (torch.float64, torch.float32):
        norm = nn.BatchNorm2d(outs, 0.1, 0.3, affine=False).to(kind).train(not frozen)
        leaves = [value.to(kind).requires_grad_() for value in (x, weight, shift, gains)]
        if kind is torch.float64:
            before = masked(*leaves, norm, stride, padding)
            if bool(((before.abs() < 1e-4) & (before != 0)).any()):
                return  # a value that may fall on either side of zero: both gradients are right
            out, sums = before.relu(), before.relu().sum(dim=(2, 3))
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(ISA_VARIABLE, isa)
                conv.weight = nn.Parameter(leaves[1])
                leaves[1] = conv.weight
                source = pack(leaves[0], given_in.view(torch.uint8)) if packed else leaves[0]
                result = skipping_conv(source, conv, leaves[2], leaves[3], norm, True)
                out, sums = result.whole, result.sums
        loss = (out * to_out.to(kind)).sum() + (sums * to_sums.to(kind)).sum()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ISA_VARIABLE, isa)
            of_x, of_weight, of_shift, of_gains = torch.autograd.grad(loss, leaves)
        losers = (of_x * given_in[:, :, None, None], of_weight, of_shift, of_gains * (gains != 0))
        found.append((out, sums, *losers, norm.running_mean, norm.running_var))
    names = ("out", "sums", "dx", "dweight", "dshift", "dgains", "running mean", "running variance")
    for name, theirs, mine in zip(names, *found, strict=True):
        assert theirs is not None
        assert mine is not None
        error = float((mine - theirs).detach().abs().max())
        assert error <= 1e-4 * float(theirs.detach().abs().max().clamp_min(1.0)), (name, error)


class _Chain(nn.Module):
    """Layers of both strides in a row, one of another shape among them, and one that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        sizes = ((3, 20, 3, 1, 1), (20, 24, 3, 1, 0), (24, 32, 3, 2, 1), (32, 32, 1, 1, 0), (32, 17, 3, 1, 1))
        for index, (ins, outs, side, stride, padding) in enumerate(sizes):
            self.add_module(f"conv{index}", nn.Conv2d(ins, outs, side, stride, padding, bias=False))
            self.add_module(f"norm{index}", nn.BatchNorm2d(outs))
            self.add_module(f"act{index}", nn.ReLU(inplace=True))
        self.last = nn.Conv2d(17, 17, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(17)
        self.head = nn.Linear(17, 5)

    def forward(self, x: Tensor) -> Tensor:
        *chain, last, norm, head = self.children()
        for module in chain:
            x = module(x)
        return head((torch.relu(norm(last(x))) + x).mean((2, 3)))


def chain(density: float) -> nn.Module:
    return add_gates(_Chain(), torch.randn(2, 3, 14, 14), density=density).train()


def step(network: nn.Module, arithmetic: FusedLayers, x: Tensor) -> list[Tensor]:
    with arithmetic:
        out = network(x)
    return [out, *torch.autograd.grad(out.square().sum(), list(network.parameters())), *network.buffers()]


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("levels", [False, True])
def test_a_network_that_skips_learns_what_the_masked_one_learns(
    levels: bool, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_layers, "pays", lambda *_: skips)
    network = chain(0.5)
    torch.manual_seed(0)
    x = torch.randn(8, 3, 14, 14).contiguous(memory_format=torch.channels_last)
    if levels:
        set_levels(network, (0.3, 0.6, 1.0))
        set_image_densities(network, torch.tensor([0.2, 0.3, 0.4, 0.55, 0.6, 0.7, 0.9, 1.0]))
    twin = deepcopy(network).double()
    mine = step(network, FastLayers(network, "winners"), x)
    theirs = step(twin, FusedLayers(twin, "winners"), x.double())
    for ours, wanted in zip(mine, theirs, strict=True):
        error, size = (ours - wanted).detach().abs(), wanted.detach().abs().max().clamp_min(1e-3)
        # A value next to zero may be clamped in one precision only, which moves some gradients.
        assert float((error > 1e-4 * size).double().mean()) <= 0.02


def test_only_gated_layers_ever_get_a_packed_map(monkeypatch: pytest.MonkeyPatch) -> None:
    network = chain(0.5)
    seen: list[tuple[bool, bool]] = []
    conv = fast_layers.skipping_conv

    def watched(x: Tensor | PackedMap, *rest: object) -> PackedMap:
        made = conv(x, *rest)  # type: ignore[arg-type]
        seen.append((isinstance(x, PackedMap), "whole" in made.__dict__))
        return made

    monkeypatch.setattr(fast_layers, "skipping_conv", watched)
    monkeypatch.setattr(fast_layers, "pays", lambda *_: True)
    with FastLayers(network, "winners"):
        out = network(torch.randn(4, 3, 14, 14))
    assert type(out) is Tensor
    # conv3 is 1×1 and takes and gives whole maps; conv4's result goes into a sum as well.
    assert [packed for packed, _ in seen] == [False, True, True, False, False]


def test_small_maps_with_many_winners_are_computed_whole() -> None:
    conv = nn.Conv2d(64, 64, 3, padding=1)
    few, most = torch.zeros(4, 64), torch.ones(4, 64)
    few[:, :16] = 1
    small, large = torch.zeros(4, 64, 4, 4), torch.zeros(4, 64, 32, 32)
    packed = PackedMap(torch.zeros(4, 4, 4, 64), few.to(torch.uint8), None, False)
    assert not pays(conv, small, most)
    assert not pays(conv, large, most)
    assert pays(conv, packed, few)
    assert pays(conv, large, few)


def test_a_hook_on_a_layer_sees_the_whole_map() -> None:
    network = chain(0.5)
    seen: list[object] = []
    first = next(module for module in network.modules() if isinstance(module, GatedConv2d))
    first.register_forward_hook(lambda _module, _given, out: seen.append(type(out)))
    with FastLayers(network, "winners"):
        network(torch.randn(4, 3, 14, 14))
    assert seen == [Tensor]


def test_losers_are_not_computed() -> None:
    """Weights that only losers read or make may hold anything."""
    network = chain(0.5)
    set_density(network, 0.5)
    layer = next(module for module in network.modules() if isinstance(module, GatedConv2d))
    with torch.no_grad():
        layer.gate.weight.zero_()
        layer.gate.bias.copy_(torch.arange(20.0).flip(0))  # channels 0 to 9 win in every image
        layer.conv.weight[10:] = float("nan")
    with FastLayers(layer, "winners"):
        out = layer(torch.randn(4, 3, 14, 14))
    assert bool(out.isfinite().all())
    out.sum().backward()
    gradient = layer.conv.weight.grad
    assert gradient is not None
    assert bool(gradient.isfinite().all())
    assert not gradient[10:].any()


@pytest.mark.parametrize("levels", ["", "0.3,0.75"])
def test_a_run_that_was_interrupted_ends_with_the_same_bits(tmp_path: Path, levels: str) -> None:
    recipe = RICH.replace(statistics="winners", any_levels=levels, epochs=3)
    whole, _ = run(recipe)
    for _ in range(40):
        part, result = run(recipe, tmp_path, minutes=1e-9)  # one step, then it stops
        if result.finished:
            break
    assert result.finished
    assert same_bits(weights(whole), weights(part))


def test_the_number_of_threads_changes_no_bit() -> None:
    x = torch.randn(8, 3, 14, 14)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            network = chain(0.5)
            layer = next(module for module in network.modules() if isinstance(module, GatedConv2d))
            with FastLayers(layer, "winners"):
                out = layer(x)
            found.append((out, *torch.autograd.grad(out.square().sum(), [layer.conv.weight, layer.shift])))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
