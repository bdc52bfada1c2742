"""The native norm and gate of training against the paper's formula in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from penstock.gating import EQUATIONS, GatedConv2d
from penstock.native import ISA_VARIABLE, available_isas
from penstock.training.fast_layers import FastLayers
from penstock.training.norm_gate import native_norm_gate
from penstock.training.winner_norm import norm_over_winners


def plain(
    z: Tensor,
    shift: Tensor,
    gains: Tensor,
    norm: nn.BatchNorm2d,
    clamps: bool,
    level: None,
    over_winners: bool,
) -> tuple[Tensor, Tensor]:
    if over_winners and norm.training:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        running = (norm.running_mean, norm.running_var)
        normed = norm_over_winners(z, gains != 0, *running, 0.3, norm.eps)
    else:
        normed = norm(z)
    out = gains[:, :, None, None] * (normed + shift[:, None, None])
    out = torch.relu(out) if clamps else out
    return out, out.abs().sum(dim=(2, 3))


@pytest.mark.parametrize("isa", available_isas())
@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 4), st.integers(1, 70), st.integers(2, 7), st.integers(2, 7), st.booleans(), st.booleans(),
    st.booleans(), st.floats(-5, 5), st.integers(0, 2**16),
)  # fmt: skip
def test_values_gradients_and_statistics_are_the_formulas(
    isa: str, n: int, c: int, h: int, w: int, clamps: bool, frozen: bool, winners: bool, centre: float,
    seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).double()  # the same numbers in both precisions

    values = ((draw(n, c, h, w) + centre).float().double(), draw(c), draw(n, c).relu())
    to_out, to_sums = draw(n, c, h, w), draw(n, c)
    found = []
    for form, kind in ((plain, torch.float64), (native_norm_gate, torch.float32)):
        norm = nn.BatchNorm2d(c, affine=False, momentum=0.3).to(kind).train(not frozen)
        leaves = [whole.to(kind).requires_grad_() for whole in values]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ISA_VARIABLE, isa)
            out, sums = form(leaves[0], leaves[1], leaves[2], norm, clamps, None, winners)
            loss = (out * to_out.to(kind)).sum() + (sums * to_sums.to(kind)).sum()
            of_z, of_shift, of_gains = torch.autograd.grad(loss, leaves)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        # Nothing asks for the gradient of a loser's gain: whoever chose the winners multiplies it by zero.
        asked = of_gains * (values[2] != 0) if winners else of_gains
        found.append((out, sums, of_z, of_shift, asked, norm.running_mean, norm.running_var))
    wanted, given_ = found
    near_zero = (wanted[0].abs() < 1e-4) & (values[2] > 0)[:, :, None, None]
    if bool(near_zero.any()):
        return  # a value that may fall on either side of zero: both gradients are right
    names = ("out", "sums", "dz", "dshift", "dgains", "running mean", "running variance")
    for name, theirs, mine in zip(names, wanted, given_, strict=True):
        limit = 2e-3 if name in ("dz", "dgains") else 2e-4
        error = (mine - theirs).detach().abs().max()
        assert error <= limit * theirs.detach().abs().max().clamp_min(1.0), (name, float(error))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Identity(), nn.SiLU()])
def test_the_next_gate_takes_the_sums_only_while_they_hold(activation: nn.Module) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 20, 3, padding=1, bias=False)
    layer = GatedConv2d(conv, nn.BatchNorm2d(20, affine=False), activation, density=0.5).train()
    with FastLayers(layer) as fast:
        out = layer(torch.randn(3, 4, 8, 8))
        wanted = out.abs().sum(dim=(2, 3)) / 64
        own = [known.sums for known in fast._known.values()]
        assert len(own) == (not isinstance(activation, nn.SiLU))
        assert all(fast.absolute_sum(out) is sums for sums in own)
        assert torch.allclose(fast.summarise(out, "l1"), wanted, rtol=1e-5, atol=1e-6)
        doubled = out.mul_(2)
        assert torch.allclose(fast.summarise(doubled, "l1"), 2 * wanted, rtol=1e-5, atol=1e-6)
    assert not fast._known
    assert layer.arithmetic is EQUATIONS


def test_two_gates_that_read_one_map_sum_it_once() -> None:
    layer = GatedConv2d(nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16, affine=False)).train()
    x = torch.randn(3, 16, 8, 8, requires_grad=True)
    with FastLayers(layer) as fast:
        first, second = fast.absolute_sum(x), fast.absolute_sum(x)
        other = fast.absolute_sum(x * 1)
    assert first is second
    assert other is not first
    (found,) = torch.autograd.grad((first * 2 + second).sum(), x)
    assert torch.equal(found, 3 * x.detach().sgn())


class _Branches(nn.Module):
    """One gated layer whose result goes into a ReLU only, one that is also read beside it, one without."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.c = (
            GatedConv2d(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16, affine=False))
            for _ in range(3)
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.a(x))
        y = self.b(x)
        return self.c(F.relu(y) + 0.5 * y) + x


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, GatedConv2d) or super().is_leaf_module(module, name)


def test_a_relu_is_done_early_only_where_nothing_else_reads_the_result() -> None:
    network = _Branches().train()
    traced = fx.GraphModule(network, _Tracer().trace(network))
    fast_layers = FastLayers(traced)
    assert fast_layers._before_relu == {network.a}
    x = torch.randn(3, 16, 8, 8)
    found = []
    for fast in (False, True):
        if fast:
            with fast_layers:
                out = traced(x)
        else:
            out = traced(x)
        found.append((out, *torch.autograd.grad(out.square().sum(), list(traced.parameters()))))
    for plain_, fast_ in zip(*found, strict=True):
        assert torch.allclose(plain_, fast_, rtol=1e-3, atol=1e-3 * float(plain_.detach().abs().max()))
