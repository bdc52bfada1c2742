"""The conversion list: equal outputs at density 1, exact zeros below it, the user's model untouched."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.surgery.networks import MODELS, quick, randomise, stir_gates
from torch import Tensor, fx, nn

from penstock.gating import gated_layers, set_density
from penstock.surgery import Filled, active_mask, add_gates, channel_flow, explain


class Recorder(fx.Interpreter):
    """Every value of a forward as it was when it was produced."""

    def __init__(self, network: fx.GraphModule) -> None:
        super().__init__(network)
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.values[n.name] = value.clone()
        return value


def assert_silent_channels_are_zero(gated: fx.GraphModule, images: Tensor) -> int:
    """Check the flow against the real values; returns how many values had silent channels.

    Where the flow says Filled, those channels are not zero but each holds one constant.
    """
    recorder = Recorder(gated)
    with torch.no_grad():
        recorder.run(images)
    masks = {name: layer.gains != 0 for name, layer in gated_layers(gated) if layer.gains is not None}
    silent = 0
    for name, channels in channel_flow(gated).items():
        value = recorder.values[name]
        active = active_mask(channels, masks, len(images))
        if isinstance(channels, Filled):
            maps = value.flatten(2) if value.ndim > 2 else value[:, :, None]
            live = maps.amax(dim=2) - maps.amin(dim=2) > 1e-5 * maps.abs().amax(dim=2)  # means are rounded
        else:
            live = (value != 0).flatten(2).any(dim=2) if value.ndim > 2 else value != 0
        assert not (live & ~active).any(), f"{name} is nonzero in a channel that {channels} calls silent"
        silent += int(not active.all())
    return silent


@pytest.mark.parametrize("name", MODELS)
def test_the_gated_network_equals_the_original_at_density_1_and_has_silent_channels_below(name: str) -> None:
    build, size, gated_count, conv_count = MODELS[name]
    model = quick(build).eval()
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected = model(images)
    gated = add_gates(model, images)
    with torch.no_grad():
        actual = gated(images)
    error = float((actual - expected).abs().max() / expected.abs().max())
    assert error <= 1e-4, f"{name}: relative error {error:.2e}"

    told = explain(gated)
    assert (len(told.gated), len(told.convolutions)) == (gated_count, conv_count), str(told)
    assert all(conv.reason for conv in told.left_alone)
    assert not gated.training
    if gated_count:
        set_density(gated, 0.5)
        stir_gates(gated, images)
        assert assert_silent_channels_are_zero(gated, images) > gated_count
    else:
        assert "nothing to gate" in str(told)


@pytest.mark.parametrize("training", [True, False])
def test_the_users_model_is_untouched(training: bool) -> None:
    build, size, _, _ = MODELS["zoo resnet18"]
    model = randomise(build()).train(training)
    before = copy.deepcopy(model.state_dict())
    gated = add_gates(model, torch.randn(2, 3, size, size), density=0.5)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(module.training is training for module in gated.modules())
    assert model.training is training
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in gated.parameters()}
    assert not shared


def test_names_are_the_users_and_ungated_weights_keep_theirs() -> None:
    build, size, _, _ = MODELS["zoo resnet18"]
    gated = add_gates(build(), torch.randn(1, 3, size, size), keep_dense=("conv1",))
    names = gated.state_dict().keys()
    assert "layer1.0.conv1.conv.weight" in names
    assert "layer1.0.conv1.norm.running_mean" in names
    assert "layer1.0.conv1.gate.weight" in names
    assert {"conv1.weight", "bn1.weight", "fc.bias"} <= names
    assert not any(name.startswith("layer1.0.bn1") for name in names)


def test_train_mode_gives_equal_outputs_too_when_no_scale_is_near_zero() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    randomise(model)
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([1.0, -2.0, 0.1, -0.3, 0.7, 1.5, -1.0, 0.01]))
    images = torch.randn(4, 3, 9, 9)
    gated = add_gates(model, images)
    torch.testing.assert_close(gated(images), model(images), rtol=1e-4, atol=1e-5)
    gated.eval()
    model.eval()  # and the running statistics moved alike
    torch.testing.assert_close(gated(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_gates_take_the_networks_type(dtype: torch.dtype) -> None:
    model = randomise(MODELS["zoo m_cifarnet"][0]()).to(dtype).eval()
    gated = add_gates(model, torch.randn(1, 3, 32, 32, dtype=dtype))
    assert {p.dtype for p in gated.parameters()} == {dtype}
    assert gated(torch.randn(1, 3, 32, 32, dtype=dtype)).dtype is dtype


def test_paper_init_keeps_the_filters_and_takes_the_norms_shift() -> None:
    model = randomise(MODELS["zoo m_cifarnet"][0]()).eval()
    gated = add_gates(model, torch.randn(1, 3, 32, 32), init="paper")
    layer = dict(gated_layers(gated))["conv3"]
    assert torch.equal(layer.conv.weight, model.conv3.weight)
    assert torch.equal(layer.shift, model.norm3.bias)
    assert torch.equal(layer.gate.bias, torch.ones(128))
    deviation = float(layer.gate.weight.detach().std())
    assert abs(deviation - (2 / 128) ** 0.5) < 0.02 * deviation
