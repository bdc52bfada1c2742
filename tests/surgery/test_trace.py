"""The capture: a copy, true in both modes, with shapes, under the user's names."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.surgery.networks import randomise
from torch import Tensor, fx, nn

from penstock import zoo
from penstock.errors import SurgeryError
from penstock.gating import gated_layers, set_density
from penstock.surgery import add_gates, channel_flow, explain, shape_of, trace, weight_layers

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(5))


class Dropping(nn.Module):
    """Functional dropout that follows the mode, dropout that is always on, and an input with a default."""

    def __init__(self, always: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.fc = nn.Linear(16, 5)
        self.always = always

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        x = F.relu(self.conv(x)).mean((2, 3))
        x = F.dropout(x, 0.5) if self.always else F.dropout(x, p=0.5, training=self.training)
        x = self.fc(x)
        return x if targets is None else F.cross_entropy(x, targets)


@pytest.mark.parametrize("training", [True, False])
def test_functional_dropout_follows_the_mode_after_capture(training: bool) -> None:
    model = Dropping().train(training)
    for traced in (trace(model, IMAGES), add_gates(model, IMAGES)):
        assert traced.training is training
        traced.eval()
        torch.testing.assert_close(traced(IMAGES), model.eval()(IMAGES))
        assert torch.equal(traced(IMAGES), traced(IMAGES))
        traced.train()
        assert not torch.equal(traced(IMAGES), traced(IMAGES))
        model.train(training)


def test_dropout_that_is_always_on_stays_on() -> None:
    traced = trace(Dropping(always=True).eval(), IMAGES)
    assert not torch.equal(traced(IMAGES), traced(IMAGES))


class StochasticDepth(nn.Module):
    """Skips its input for some samples, in train mode only."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (torch.rand(len(x), 1, 1, 1) < 0.5)


def test_modules_that_read_their_mode_follow_it_after_capture() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), StochasticDepth(), nn.Conv2d(4, 4, 1)).eval()
    gated = add_gates(model, IMAGES)
    assert explain(gated)["0"].gated
    torch.testing.assert_close(gated(IMAGES), model(IMAGES))
    gated.train()
    assert not torch.equal(gated(IMAGES), gated(IMAGES))
    assert weight_layers(gated)[1].input == weight_layers(gated)[0].output


class TwoFaced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.aux, self.fc = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = F.relu(self.conv(x))
        y = self.fc(x.mean((2, 3)))
        return (y, self.aux(x)) if self.training else y


def test_a_forward_that_differs_between_modes_is_captured_in_the_present_one_and_noted() -> None:
    model = TwoFaced().eval()
    gated = add_gates(model, IMAGES)
    torch.testing.assert_close(gated(IMAGES), model(IMAGES))
    told = explain(gated)
    assert "captured is what it does in eval mode" in told.notes[0]
    assert "note: " in str(told)
    assert "never runs" in told["aux"].reason
    both = add_gates(model.train(), IMAGES)(IMAGES)
    assert isinstance(both, tuple)
    torch.testing.assert_close(both[0], model(IMAGES)[0])


def test_every_node_has_its_shape_and_statistics_and_chance_are_untouched() -> None:
    model = randomise(zoo.m_cifarnet(dropout=0.5)).train()
    before = copy.deepcopy(model.state_dict())
    chance = torch.get_rng_state()
    traced = trace(model, torch.zeros(1, 3, 32, 32))
    assert torch.equal(torch.get_rng_state(), chance)
    assert {node.name: shape_of(node) for node in traced.graph.nodes}["conv2"] == (1, 128, 15, 15)
    after = traced.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(module.training for module in traced.modules())


def test_a_frozen_norm_stays_in_eval_mode() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)).train()
    model[1].eval()
    gated = add_gates(model, IMAGES)
    layer = dict(gated_layers(gated))["0"]
    assert not layer.norm.training
    torch.testing.assert_close(gated(IMAGES), model(IMAGES))


def test_a_gated_network_can_be_traced_copied_and_trained_on() -> None:
    gated = add_gates(zoo.m_cifarnet().train(), torch.randn(2, 3, 32, 32))
    images = torch.randn(2, 3, 24, 24)
    again = trace(gated, images)
    assert [layer.name for layer in weight_layers(again)] == [layer.name for layer in weight_layers(gated)]
    assert shape_of(weight_layers(again)[0].node) == (2, 64, 22, 22)
    assert str(explain(copy.deepcopy(again))) == str(explain(gated))
    set_density(again, 0.5)
    assert explain(gated)["conv0"].density == 1.0
    again(images).sum().backward()
    assert all(parameter.grad is not None for parameter in again.parameters())


def test_a_users_own_graph_module_is_taken_as_it_is() -> None:
    model = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))).eval()
    assert explain(add_gates(model, IMAGES))["0"].gated


def test_fused_norms_become_a_norm_and_an_activation_under_their_own_names() -> None:
    import timm

    model = randomise(timm.create_model("mobilenetv2_100", num_classes=5)).eval()
    traced = trace(model, torch.randn(1, 3, 32, 32))
    assert {"bn1", "bn1.act"} <= {node.target for node in traced.graph.nodes}
    assert type(traced.get_submodule("bn1")) is nn.BatchNorm2d
    assert traced.state_dict().keys() == model.state_dict().keys()
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(traced(images), model(images))


def test_a_graph_without_shapes_says_how_to_get_them() -> None:
    with pytest.raises(SurgeryError, match=r"trace\(network, example\)"):
        channel_flow(fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 1))))
