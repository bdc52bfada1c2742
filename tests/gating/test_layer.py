from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from penstock.errors import DensityError, LayerError
from penstock.gating import (
    GatedConv2d,
    gated_layers,
    saliency_penalty,
    set_density,
    set_image_densities,
)
from penstock.surgery.operators import TABLE, Kind

# The table of operators says which activations keep zero; a gated layer finds out for itself.
ZERO_PRESERVING = [kind for row in TABLE if row.kind is Kind.ACTIVATION for kind in row.modules]


def gated(
    c_in: int = 3, c_out: int = 8, density: float = 1.0, activation: nn.Module | None = None
) -> GatedConv2d:
    conv = nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)
    return GatedConv2d(conv, nn.BatchNorm2d(c_out, affine=False), activation or nn.ReLU(), density=density)


def two_layers() -> nn.Sequential:
    return nn.Sequential(gated(3, 8), gated(8, 6))


@pytest.mark.parametrize("kind", ZERO_PRESERVING, ids=lambda kind: kind.__name__)
def test_a_suppressed_channel_is_exactly_zero_after_every_allowed_activation(kind: type[nn.Module]) -> None:
    layer = gated(density=0.5, activation=kind()).eval()
    nn.init.normal_(layer.shift)
    out = layer(torch.randn(4, 3, 6, 6))
    assert layer.gains is not None
    off = layer.gains == 0
    assert (off.sum(dim=1) >= 4).all()
    assert (out[off] == 0).all()
    assert (out[~off].abs().sum(dim=(1, 2)) > 0).any()


@pytest.mark.parametrize(
    "activation", [nn.Sigmoid(), nn.Softplus(), nn.Hardsigmoid(), nn.Hardtanh(1, 2), nn.Softmax(1)]
)
def test_an_activation_that_moves_zero_is_refused_by_name(activation: nn.Module) -> None:
    with pytest.raises(LayerError, match=rf"{type(activation).__name__} cannot follow a gate.*ReLU"):
        gated(activation=activation)


def test_a_conv_with_bias_and_a_norm_with_scale_are_refused() -> None:
    with pytest.raises(LayerError, match="bias=False"):
        GatedConv2d(nn.Conv2d(3, 4, 1))
    with pytest.raises(LayerError, match="affine=False"):
        GatedConv2d(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))


def test_a_new_density_takes_effect_on_the_next_forward() -> None:
    layer, x = gated().eval(), torch.rand(5, 3, 6, 6)
    nn.init.constant_(layer.gate.bias, 10.0)  # every saliency is positive
    for density, k in ((1.0, 8), (0.5, 4), (0.51, 5), (0.1, 1), (1.0, 8)):
        set_density(layer, density)
        layer(x)
        assert layer.gains is not None
        assert (layer.gains != 0).sum(dim=1).tolist() == [k] * 5
        assert layer.density == density


def test_the_densest_forward_is_the_same_after_a_sparse_one() -> None:
    layer, x = gated().eval(), torch.randn(2, 3, 6, 6)
    before = layer(x)
    set_density(layer, 0.25)
    assert not torch.equal(layer(x), before)
    set_density(layer, 1.0)
    assert torch.equal(layer(x), before)


def test_densities_are_set_by_layer_name_and_by_pattern() -> None:
    network = nn.Sequential(two_layers(), two_layers())
    set_density(network, {"0.*": 0.5, "1.1": 0.25})
    assert {name: layer.density for name, layer in gated_layers(network)} == {
        "0.0": 0.5,
        "0.1": 0.5,
        "1.0": 1.0,
        "1.1": 0.25,
    }


def test_one_bad_entry_changes_no_layer() -> None:
    network = two_layers()
    with pytest.raises(DensityError, match="'1'"):
        set_density(network, {"0": 0.5, "1": 0.0})
    with pytest.raises(LayerError, match=r"'head'.*0, 1"):
        set_density(network, {"0": 0.5, "head": 0.5})
    assert [layer.density for _, layer in gated_layers(network)] == [1.0, 1.0]


def test_a_network_without_gates_says_how_to_add_them() -> None:
    with pytest.raises(LayerError, match="add_gates"):
        set_density(nn.Conv2d(3, 4, 1), 0.5)
    with pytest.raises(LayerError, match="add_gates"):
        saliency_penalty(nn.Conv2d(3, 4, 1))


def test_the_penalty_sums_over_layers_the_batch_mean_of_the_l1_norm_before_winners_are_chosen() -> None:
    network, x = two_layers(), torch.randn(4, 3, 6, 6)
    set_density(network, 0.25)
    network(x)
    by_hand = 0.0
    for _, layer in gated_layers(network):
        assert layer.saliency is not None
        rows = [sum(abs(value) for value in row) for row in layer.saliency.tolist()]
        by_hand += sum(rows) / len(rows)
    assert saliency_penalty(network).item() == pytest.approx(by_hand, rel=1e-5)


def test_the_penalty_reaches_the_predictors_of_losers_too() -> None:
    layer = gated(density=0.125)
    nn.init.zeros_(layer.gate.weight)
    layer(torch.randn(2, 3, 6, 6))
    saliency_penalty(layer).backward()
    assert layer.gate.bias.grad is not None
    torch.testing.assert_close(layer.gate.bias.grad, torch.ones(8))


def test_the_penalty_before_any_forward_names_the_layer() -> None:
    with pytest.raises(LayerError, match="'0' has not run"):
        saliency_penalty(two_layers())


def test_gradcheck_of_the_whole_layer() -> None:
    layer = gated(2, 4, density=0.5, activation=nn.SiLU()).double().eval()
    nn.init.normal_(layer.shift)
    with torch.no_grad():
        layer.gate.bias.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))  # far apart: the winners stay the winners
        layer.gate.weight.mul_(0.01)
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    parameters = dict(layer.named_parameters())

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *parameters.values()))


def test_a_losers_filter_gets_no_gradient_from_the_task() -> None:
    layer = gated(3, 4, density=0.5)
    nn.init.zeros_(layer.gate.weight)
    with torch.no_grad():
        layer.gate.bias.copy_(torch.tensor([1.0, 4.0, 2.0, 3.0]))
    layer(torch.randn(2, 3, 6, 6)).sum().backward()
    assert layer.shift.grad is not None
    assert (layer.shift.grad == 0).tolist() == [True, False, True, False]
    assert layer.gate.bias.grad is not None
    assert (layer.gate.bias.grad == 0).tolist() == [True, False, True, False]


def test_a_deep_copy_after_a_forward_is_free_of_its_original() -> None:
    network, x = two_layers(), torch.randn(2, 3, 6, 6)
    network(x)
    twin = copy.deepcopy(network)
    set_density(twin, 0.5)
    assert [layer.density for _, layer in gated_layers(network)] == [1.0, 1.0]
    assert [int(layer.winners) for _, layer in gated_layers(network)] == [8, 6]
    assert [int(layer.winners) for _, layer in gated_layers(twin)] == [4, 3]
    ours, theirs = dict(network.named_parameters()), dict(twin.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(ours[name].data_ptr() != theirs[name].data_ptr() for name in ours)
    network.eval(), twin.eval()
    set_density(twin, 1.0)
    assert torch.equal(network(x), twin(x))


def test_the_winner_count_is_not_part_of_the_weights() -> None:
    assert not [name for name in two_layers().state_dict() if "winners" in name]


@pytest.mark.parametrize("density", [1.0, 0.5])
def test_the_layer_runs_on_a_device_that_is_not_the_cpu(density: float) -> None:
    # The meta device refuses every mix with CPU tensors, so this holds for any accelerator.
    layer = gated(density=density).to("meta")
    out = layer(torch.empty(2, 3, 6, 6, device="meta"))
    assert out.device.type == "meta"
    assert out.shape == (2, 8, 6, 6)


def test_density_survives_a_change_of_type_and_of_memory_format() -> None:
    layer = gated(density=0.5).to(torch.float64).to(memory_format=torch.channels_last).eval()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    layer(x)
    assert layer.gains is not None
    assert ((layer.gains != 0).sum(dim=1) <= 4).all()
    assert layer.winners.dtype == torch.int64


def test_an_inference_mode_forward_and_a_density_change_inside_it_work() -> None:
    layer, x = gated().eval(), torch.randn(2, 3, 6, 6)
    with torch.inference_mode():
        layer.density = 0.5
        layer(x)
    layer.density = 0.25
    layer(x)
    assert int(layer.winners) == 2


def test_each_image_of_a_batch_can_have_its_own_density() -> None:
    torch.manual_seed(1)
    layer = GatedConv2d(nn.Conv2d(4, 10, 3, bias=False), nn.BatchNorm2d(10, affine=False)).eval()
    x = torch.randn(3, 4, 6, 6)
    densities = [0.2, 0.55, 1.0]
    alone = []
    for image, density in zip(x, densities, strict=True):
        layer.density = density
        alone.append(layer(image[None]))
    set_image_densities(layer, torch.tensor(densities, dtype=torch.float64))
    assert torch.allclose(layer(x), torch.cat(alone), atol=1e-6)
    set_density(layer, 0.5)
    layer(x[:2])
    assert (layer.gains != 0).sum(dim=1).tolist() <= [5, 5]
    for wrong in (torch.tensor([0.0, 0.5]), torch.tensor([1.5]), torch.tensor(0.5)):
        with pytest.raises(LayerError, match="one density"):
            set_image_densities(layer, wrong)
