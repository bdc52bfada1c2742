"""Channel flow: what it calls silent is exactly zero, on random networks and case by case."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.surgery.networks import randomise, stir_gates
from tests.surgery.random_networks import Net, networks
from tests.surgery.test_conversion import assert_silent_channels_are_zero
from torch import Tensor, fx, nn

import penstock.surgery.channels as channels_module
from penstock.errors import LayerError
from penstock.gating import gated_layers, set_density
from penstock.surgery import (
    Channels,
    Concat,
    Dense,
    Gate,
    Meet,
    Silent,
    Spread,
    Union,
    active_mask,
    add_gates,
    channel_flow,
    explain,
    gates_of,
    trace,
    weight_layers,
)
from penstock.surgery.channels import concat, meet, spread, union

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))
A, B = Gate("a", 4), Gate("b", 4)


@fx.wrap
def relu(x: Tensor) -> Tensor:
    """A function of the user's that has torch's name and does something else."""
    return x + 1


@settings(max_examples=40)
@given(network=networks(), density=st.floats(0.05, 0.95), seed=st.integers(0, 99))
def test_on_random_networks_gates_preserve_the_function_and_silent_channels_are_zero(
    network: Net, density: float, seed: int
) -> None:
    randomise(network, seed).eval()
    gated = add_gates(network, IMAGES)
    with torch.no_grad():
        expected, actual = network(IMAGES), gated(IMAGES)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    told = explain(gated)
    assert {conv.name for conv in told.convolutions} == {
        name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)
    }
    if told.gated:
        set_density(gated, density)
        stir_gates(gated, IMAGES, seed=seed)
        assert_silent_channels_are_zero(gated, IMAGES)


@pytest.mark.soak
@settings(max_examples=1500)
@given(network=networks(), density=st.floats(0.05, 0.95), seed=st.integers(0, 9999))
def test_on_very_many_random_networks_silent_channels_are_zero(
    network: Net, density: float, seed: int
) -> None:
    inner = test_on_random_networks_gates_preserve_the_function_and_silent_channels_are_zero.hypothesis
    inner.inner_test(network, density, seed)


class Two(nn.Module):
    """Two gated convolutions, `a` and `b`, and what is made of their outputs."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.b = nn.Conv2d(3, 4, 3, padding=1)
        self.combine = combine
        self.last = nn.LazyConv2d(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.combine(F.relu(self.a(x)), F.relu(self.b(x))))


CASES: list[tuple[Callable[[Tensor, Tensor], Tensor], Channels]] = [
    (lambda a, b: a + b, Union((A, B))),
    (lambda a, b: a - b, Union((A, B))),
    (lambda a, b: a.add_(b), Union((A, B))),
    (lambda a, b: torch.maximum(a, b), Union((A, B))),
    (lambda a, b: a + b + a, Union((A, B))),
    (lambda a, b: a * b, Meet((A, B))),
    (lambda a, b: a * b.mean((2, 3), keepdim=True).sigmoid(), A),
    (lambda a, b: a * b.mean(1, keepdim=True), A),
    (lambda a, b: torch.cat([a, b], 1), Concat((A, B))),
    (lambda a, b: torch.cat([a, b], dim=-3), Concat((A, B))),
    (lambda a, b: torch.cat([a, b], 2), Dense(4)),
    (lambda a, b: torch.cat([a, torch.cat([b, a], 1)], 1), Concat((A, B, A))),
    (lambda a, b: a + b.sigmoid(), Dense(4)),
    (lambda a, b: a + 1, Dense(4)),
    (lambda a, b: a + 0, A),
    (lambda a, b: a / 3, A),
    (lambda a, b: a / b, Dense(4)),
    (lambda a, b: F.pad(a, (1, 1, 2, 2)), A),
    (lambda a, b: F.pad(a, (1, 1), value=2.0), Dense(4)),
    (lambda a, b: F.pad(a, (1, 1, 0, 0), mode="replicate"), A),
    (lambda a, b: F.pad(a, (0, 0, 0, 0, 1, 2)), Concat((Silent(1), A, Silent(2)))),
    (lambda a, b: a[:, :, ::2, 1:], A),
    (lambda a, b: a[:, 1:3], Dense(2)),
    (lambda a, b: a.mean(-1, keepdim=True), A),
    (lambda a, b: a.mean(1, keepdim=True), Dense(1)),
    (lambda a, b: a.view(a.size(0), 4, 8, 8), A),
    (lambda a, b: a.view(a.size(0), 8, 4, 8), Dense(8)),
    (lambda a, b: a.flatten(1)[:, :, None, None], Dense(256)),
    (lambda a, b: a.transpose(1, 2), Dense(8)),
    (lambda a, b: F.dropout2d(F.interpolate(a, size=5), 0.1), A),
    (lambda a, b: F.batch_norm(a, torch.zeros(4), torch.ones(4)), Dense(4)),
    (lambda a, b: F.max_pool2d(a.contiguous().clone(), 2, ceil_mode=True), A),
    (lambda a, b: a.clamp(-1, 1), A),
    (lambda a, b: a.clamp(1, 2), Dense(4)),
]


@pytest.mark.parametrize(("combine", "expected"), CASES)
def test_each_step_has_its_flow(combine: Callable[[Tensor, Tensor], Tensor], expected: Channels) -> None:
    model = Two(combine).eval()
    model(IMAGES)
    gated = add_gates(model, IMAGES, density=0.5)
    assert {name for name, _ in gated_layers(gated)} == {"a", "b"}
    assert weight_layers(gated)[-1].input == expected
    stir_gates(gated, IMAGES)
    assert_silent_channels_are_zero(gated, IMAGES)


class Separable(nn.Module):
    """A gated convolution `a`, a depthwise one behind it, what is made of both, and a reader."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor], reader: nn.Module) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.deep = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.combine = combine
        self.last = reader

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x))
        return self.last(self.combine(self.deep(a), a))


# What the reader finds, and whether the channels that it skips are constants.
CONSTANTS: list[tuple[Callable[[Tensor, Tensor], Tensor], Channels, bool]] = [
    (lambda x, a: x, A, True),
    (lambda x, a: F.silu(x), A, True),
    (lambda x, a: F.hardswish(x).sigmoid(), A, True),
    (lambda x, a: x.clamp(1, 2) / 3 + 1, A, True),
    (lambda x, a: x.relu_() + 0, A, True),
    (lambda x, a: x + a, A, True),
    (lambda x, a: x + x.sigmoid(), A, True),
    (lambda x, a: x * x.sigmoid(), A, True),
    (lambda x, a: x * x.mean((2, 3), keepdim=True).sigmoid(), A, True),
    (lambda x, a: x * a.amax((2, 3), keepdim=True), A, True),
    (lambda x, a: x * a, A, False),
    (lambda x, a: x * a.mean(1, keepdim=True), Dense(4), False),
    (lambda x, a: x + a.mean(1, keepdim=True), Dense(4), False),
    (lambda x, a: F.max_pool2d(x, 3, 2, 1), A, True),
    (lambda x, a: F.avg_pool2d(x, 3, 2), A, True),
    (lambda x, a: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), A, True),
    (lambda x, a: F.avg_pool2d(x, 3, 2, 1), Dense(4), False),
    (lambda x, a: F.pad(x, (1, 1)), Dense(4), False),
    (lambda x, a: x[:, :, ::2, 1:], A, True),
    (lambda x, a: torch.cat([x, a], 1)[:, :4], Dense(4), False),
    (lambda x, a: x.softmax(1), Dense(4), False),
    (lambda x, a: F.dropout(x, 0.5, training=True), Dense(4), False),
    (lambda x, a: relu(x), Dense(4), False),
]


@pytest.mark.parametrize(("combine", "expected", "constants"), CONSTANTS)
def test_constants_behind_a_depthwise_convolution_are_followed(
    combine: Callable[[Tensor, Tensor], Tensor], expected: Channels, constants: bool
) -> None:
    gated = add_gates(Separable(combine, nn.Conv2d(4, 5, 1)).eval(), IMAGES, density=0.5)
    _, deep, last = weight_layers(gated)
    assert (deep.input, deep.output, deep.constants) == (A, A, False)
    assert (last.input, last.constants) == (expected, constants)
    stir_gates(gated, IMAGES)
    assert_silent_channels_are_zero(gated, IMAGES)


@pytest.mark.parametrize(
    "reader",
    [
        nn.Conv2d(4, 5, 3, padding=1),
        nn.Conv2d(4, 5, 3),
        nn.Conv2d(4, 4, 1, padding=1),
        nn.Conv2d(4, 4, 1, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 5)),
    ],
)
def test_a_reader_that_cannot_take_constants_reads_every_channel(reader: nn.Module) -> None:
    gated = add_gates(Separable(lambda x, a: F.silu(x), reader).eval(), IMAGES, density=0.5)
    last = weight_layers(gated)[-1]
    assert last.input == Dense(last.product.inputs)
    assert not last.constants
    assert last.output == Dense(last.product.outputs)


class Overwritten(nn.Module):
    """A value that is changed in place after it was produced, and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.b = nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.a(x)), F.relu(self.b(x))
        a.add_(b)  # not bound to a name: only `a` itself tells of it
        return self.last(a + 0) + self.last(a)


def test_a_value_overwritten_in_place_is_read_as_what_it_holds_then() -> None:
    gated = add_gates(Overwritten().eval(), IMAGES, density=0.5)
    stir_gates(gated, IMAGES)
    assert_silent_channels_are_zero(gated, IMAGES)
    assert [layer.input for layer in weight_layers(gated)[2:]] == [Union((A, B)), Union((A, B))]
    assert channel_flow(gated)["relu"] == A  # as it was when it was produced


def test_flatten_spreads_each_channel_over_its_map() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    layers = weight_layers(add_gates(model, IMAGES))
    assert [layer.name for layer in layers] == ["0", "4"]
    assert layers[1].input == Spread(Gate("0", 4), 9)
    assert layers[1].input_shape == (2, 36)
    assert layers[0].gated
    assert layers[0].output == Gate("0", 4)
    assert layers[0].weights is layers[0].module.conv
    assert not layers[1].gated
    assert layers[1].output == Dense(5)


def test_a_linear_layer_over_the_last_of_many_axes_reads_dense() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(F.relu(self.conv(x)).flatten(2))

    layers = weight_layers(trace(Tokens(), IMAGES[:, :, :4, :2]))
    assert layers[1].input == Dense(8)
    assert layers[1].output_shape == (2, 8, 5)


def test_a_users_own_relu_is_not_trusted() -> None:
    model = Two(lambda a, b: relu(a)).eval()
    model(IMAGES)
    gated = add_gates(model, IMAGES)
    assert weight_layers(gated)[-1].input == Dense(4)


def test_expressions_simplify() -> None:
    assert union(A, Dense(4)) == Dense(4)
    assert union(A, Silent(4)) == A
    assert union(Silent(4), Silent(4)) == Silent(4)
    assert union(Union((A, B)), A) == Union((A, B))
    assert meet(A, Dense(4)) == A
    assert meet(A, Silent(4)) == Silent(4)
    assert meet(Dense(4), Dense(4)) == Dense(4)
    assert concat([Dense(2), Dense(3), A, Silent(1), Silent(1)]) == Concat((Dense(5), A, Silent(2)))
    assert spread(Dense(3), 4) == Dense(12)
    assert spread(A, 1) == A
    assert list(gates_of(Concat((Union((A, B)), Spread(A, 2), Meet((A, Dense(4))))))) == [A, B, A, A]
    assert Concat((A, Spread(B, 3))).count == 16


def test_masks_follow_the_expression() -> None:
    masks = {"a": torch.tensor([[1, 0, 1, 0]]).bool(), "b": torch.tensor([[0, 0, 1, 1]]).bool()}
    assert active_mask(Union((A, B)), masks, 1).tolist() == [[True, False, True, True]]
    assert active_mask(Meet((A, B)), masks, 1).tolist() == [[False, False, True, False]]
    expected = [[True, True, False, False, True, True, False, False, True, False]]
    assert active_mask(Concat((Spread(A, 2), Dense(1), Silent(1))), masks, 1).tolist() == expected
    with pytest.raises(LayerError, match=r"'b'.*there are: a"):
        active_mask(B, {"a": masks["a"]}, 1)
    with pytest.raises(LayerError, match=r"shape \(1, 4\), expected .* \(2, 4\)"):
        active_mask(A, masks, 2)
    assert doctest.testmod(channels_module).failed == 0
