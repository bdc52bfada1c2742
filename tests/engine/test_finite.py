"""Nothing that is not finite passes in silence: operators pass it on, gates and results refuse it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.networks import Case, cases, enliven, randomise
from torch import Tensor, nn

import penstock.engine as engines
from penstock import zoo
from penstock.errors import CompileError, InputError
from penstock.gating import GatedConv2d, gated_layers, summarise
from penstock.surgery import add_gates

_CHANNELS, _SIDE = 5, 12
_HUGE = 3e38
_FAULTS = (1e12, -1e25, 1e25, 3e37, float("inf"), float("-inf"), float("nan"))


class Poison(nn.Module):
    """x in, NaN, infinities and ordinary numbers out, made by sums that overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self._times([_HUGE] * 4 + [1.0]), self._times([-_HUGE, _HUGE, 0, 1, 1])

    def _times(self, factors: list[float]) -> nn.BatchNorm2d:
        norm = nn.BatchNorm2d(_CHANNELS, eps=0.0)
        norm.weight.data = torch.tensor(factors)
        return norm

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x)


def _after_conv(activation: nn.Module) -> nn.Module:
    conv = nn.Conv2d(_CHANNELS, _CHANNELS, 1, groups=_CHANNELS)
    conv.weight.data.fill_(1.0)
    assert conv.bias is not None
    conv.bias.data.zero_()
    return nn.Sequential(conv, activation)


_ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.GELU,
    nn.Hardswish,
    lambda: nn.LeakyReLU(0.2),
    nn.Sigmoid,
    nn.Hardsigmoid,
    nn.Tanh,
    lambda: nn.GELU(approximate="tanh"),
    nn.Mish,
    nn.Softsign,
    lambda: nn.ELU(0.7),
    nn.SELU,
)
_POOLS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.MaxPool2d(2, 2),
    lambda: nn.MaxPool2d(3, 2, 1),
    lambda: nn.MaxPool2d(3, 1, 1),
    lambda: nn.MaxPool2d(3, 3),
    lambda: nn.MaxPool2d(3, 1, dilation=2),
    lambda: nn.AdaptiveMaxPool2d(3),
    lambda: nn.AdaptiveMaxPool2d(1),
    lambda: nn.AvgPool2d(3, 2, 1),
    lambda: nn.AdaptiveAvgPool2d(4),
)


def _kinds(x: np.ndarray) -> np.ndarray:
    """0 for a number, 1 for NaN, ±2 for infinities."""
    return np.where(np.isnan(x), 1, np.where(np.isinf(x), 2 * np.sign(x), 0))


@pytest.mark.parametrize("isa", engines.available_isas())
def test_every_operator_passes_nan_and_infinity_on_as_pytorch_does(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", isa)
    torch.manual_seed(0)
    images = torch.randn(2, _CHANNELS, _SIDE, _SIDE)
    # Overflowing or far from it: sums near the edge depend on their order.
    images = torch.where(images.abs() > 1.2, 3 * images, 1e-4 * images)
    operators = [make() for make in (*_ACTIVATIONS, *_POOLS)] + [_after_conv(make()) for make in _ACTIVATIONS]
    for operator in operators:
        network = nn.Sequential(Poison(), operator).eval()
        engine = engines.compile(network, images)
        with torch.no_grad():
            # In double precision: in single, GELU of infinity is NaN or not by processor and by size.
            wanted = operator.double()(network[0](images).double()).float().flatten(1).numpy()
        found = np.zeros_like(wanted)
        engine._native.run(images.numpy(), np.zeros(0, np.int32), found)
        np.testing.assert_array_equal(_kinds(found), _kinds(wanted), err_msg=str(operator))
        finite = np.isfinite(wanted)
        np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-4, atol=1e-5, err_msg=str(operator))


@pytest.mark.parametrize("summary", ["l1", "l2", "linf", "variance"])
def test_a_gate_that_reads_nan_or_infinity_is_named(summary: str) -> None:
    torch.manual_seed(1)
    images = torch.randn(3, _CHANNELS, _SIDE, _SIDE)
    network = nn.Sequential(Poison(), nn.Conv2d(_CHANNELS, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    gated = add_gates(network.eval(), images, summary=summary, density=0.5)
    engine = engines.compile(gated, images * 1e-3)
    assert np.isfinite(engine((images * 1e-3).numpy())).all()
    bad = (images * 1e-3).clone()
    bad[1] = images[1]
    with pytest.raises(InputError, match=r"image 1 of the batch: .*yields NaN or infinity.*suspect"):
        engine(bad)


@pytest.mark.parametrize("threads", [1, 2])
def test_pixels_that_were_not_preprocessed_are_told_from_bad_weights(threads: int) -> None:
    torch.manual_seed(2)
    images = torch.randn(4, 3, 32, 32)
    gated = enliven(add_gates(randomise(zoo.m_cifarnet()), images, density=0.5), images)
    engine = engines.compile(gated, images, threads=threads)
    huge = images.clone()
    huge[2] *= 1e37
    with pytest.raises(InputError, match=r"image 2 of the batch: .*layer 'conv0'.*looks unpreprocessed"):
        engine(huge)
    with pytest.raises(InputError, match="image 2 of the batch"):
        engine.record(huge.numpy())
    np.testing.assert_array_equal(engine(images), engine(images))


class _Watch:
    """Runs a network with suppressed channels really zero, and keeps the largest magnitude of any value."""

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network)
        self.largest = 0.0
        self.gates_finite = True
        for module in self.network.modules():
            if isinstance(module, GatedConv2d):
                module.register_forward_hook(self._gated)
            elif not list(module.children()):
                module.register_forward_hook(self._plain)

    def _note(self, x: Tensor) -> None:
        # What is infinite in double precision is larger than anything.
        self.largest = max(self.largest, float(x.double().abs().nan_to_num(1e300, 1e300).max()))

    def _plain(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not isinstance(module, nn.Identity):
            self._note(output)

    def _gated(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        assert isinstance(module, GatedConv2d)
        level = module.level()
        bias = module.gate.bias if level is None else module.gate.bias[level]
        ss = summarise(inputs[0], module.gate.summary)
        raw = ss @ module.gate.weight + bias
        self.gates_finite = self.gates_finite and bool(torch.isfinite(raw).all())
        assert module.gains is not None
        self._note(ss @ module.gate.weight.abs())
        self._note(ss * ss * inputs[0].shape[-1] ** 4)
        return torch.where(module.gains[:, :, None, None] != 0, output, torch.zeros_like(output))


@dataclass(frozen=True)
class Injected:
    case: Case
    images: Tensor


@st.composite
def injected(draw: st.DrawFn) -> Injected:
    """A random network in which a weight, a bias or a pixel is not finite, or makes values overflow."""
    case = draw(cases())
    network, images = case.network, case.images.clone()
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.BatchNorm2d)]
    for what in draw(
        st.lists(st.sampled_from(("weight", "weight", "bias", "predictor", "pixel")), max_size=3)
    ):
        if what == "pixel":
            tensors = [images]
        elif what == "predictor":
            tensors = [layer.gate.weight.data for _, layer in gated_layers(network)]
        else:
            tensors = [t.data for layer in layers if (t := getattr(layer, what)) is not None]
        if tensors:
            values = draw(st.sampled_from(tensors)).view(-1)
            values[draw(st.integers(0, len(values) - 1))] = draw(st.sampled_from(_FAULTS))
    images *= draw(st.sampled_from((1.0, 1e4)))
    return Injected(Case(network, images, case.text), images)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(injected(), st.integers(1, 2))
def test_the_engine_raises_exactly_where_pytorch_overflows(given_: Injected, threads: int) -> None:
    """Single precision in PyTorch decides, double precision tells how near to the edge it was.

    Within a factor of a million of the largest float32, rounding and the order of sums decide; and where an
    activation turns -∞ to zero PyTorch goes on while Winograd's sums do not. There the engine may do either.
    """
    network, images = given_.case.network, given_.images
    weights = torch.cat([p.detach().flatten() for p in network.parameters()])
    try:
        engine = engines.compile(network, torch.zeros_like(images), threads=threads)
    except CompileError:  # weights that are not finite, or not once a norm was folded into them
        return
    assert torch.isfinite(weights).all()
    for image in images.split(1):
        if not torch.isfinite(image).all():
            with pytest.raises(InputError, match="image 0 of the batch holds NaN or infinity"):
                engine(image)
            continue
        single, exact = _Watch(network), _Watch(network.double())
        with torch.no_grad():
            wanted, _ = single.network(image), exact.network(image.double())
        network.float()
        bad = not (torch.isfinite(wanted).all() and single.gates_finite)
        if exact.largest < 1e32:
            assert not bad
            assert torch.isfinite(engine(image)).all()
        elif bad and exact.largest > 1e45:
            with pytest.raises(InputError, match="image 0 of the batch"):
                engine(image)
