"""Network Slimming: which channels go, and that removing them is masking them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.pruning.masking import assert_same, masked_copy, norms_by_name, randomised
from torch import Tensor, nn

from penstock.accounting import account
from penstock.errors import PruningError
from penstock.exporting import load, save
from penstock.gating import gated_layers
from penstock.pruning import Budget, LayerCut, NetworkSlimming
from penstock.surgery import add_gates
from penstock.zoo import m_cifarnet, resnet18


@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6])
@pytest.mark.parametrize(("make", "size"), [(m_cifarnet, 32), (resnet18, 64)])
def test_a_pruned_network_answers_as_the_masked_one(make: type[nn.Module], size: int, ratio: float) -> None:
    network = randomised(make())
    x = torch.randn(4, 3, size, size)
    cut = NetworkSlimming().prune(network, x[:1], Budget(ratio=ratio))
    norm_of = {"conv1": "bn1"} if make is resnet18 else {}
    masked = masked_copy(network, cut, norms_by_name(network) | norm_of)
    with torch.no_grad():
        wanted = masked(x)
        assert_same(wanted, cut.network(x))
        assert not torch.allclose(wanted, network(x), rtol=1e-2)  # masking did change something
    assert cut.ratio == pytest.approx(ratio, abs=0.005)
    convolutions = dict(cut.network.named_modules())
    for layer in cut.layers:
        assert convolutions[layer.layer].weight.shape[0] == layer.channels_after >= 1


@pytest.mark.parametrize(("make", "size"), [(m_cifarnet, 32), (resnet18, 64)])
def test_the_channels_that_go_are_those_below_one_threshold(make: type[nn.Module], size: int) -> None:
    network = randomised(make())
    cut = NetworkSlimming().prune(network, torch.randn(1, 3, size, size), Budget(ratio=0.3))
    # A tied channel counts by its largest scale, so what is gone must be small in every norm of its layer …
    norm_of = norms_by_name(network)
    for layer in cut.layers[:-1]:
        scale = network.get_submodule(norm_of[layer.layer]).weight.abs()
        gone = [channel for channel in range(layer.channels_before) if channel not in layer.kept]
        assert (scale[gone] <= cut.threshold).all()
    # … and in a network without ties what stays must not be.
    if make is m_cifarnet:
        for layer in cut.layers[:-1]:
            scale = network.get_submodule(norm_of[layer.layer]).weight.abs()
            assert scale[list(layer.kept)].min() >= cut.threshold


def test_the_layers_of_a_residual_sum_lose_the_same_channels() -> None:
    network = randomised(resnet18())
    cut = NetworkSlimming().prune(network, torch.randn(1, 3, 64, 64), Budget(ratio=0.5))
    kept = {layer.layer: layer.kept for layer in cut.layers}
    assert kept["conv1"] == kept["layer1.0.conv2"] == kept["layer1.1.conv2"]
    assert kept["layer2.0.conv2"] == kept["layer2.0.downsample.0"] == kept["layer2.1.conv2"]
    assert len(kept["layer1.0.conv1"]) < 64
    assert kept["fc"] == tuple(range(1000))


@pytest.mark.parametrize(("make", "size"), [(m_cifarnet, 32), (resnet18, 64)])
def test_a_pruned_network_survives_its_checkpoint_with_and_without_gates(
    make: type[nn.Module], size: int, tmp_path: Path
) -> None:
    x = torch.randn(2, 3, size, size)
    small = NetworkSlimming().prune(randomised(make()), x, Budget(ratio=0.4)).network
    for network in (small, add_gates(small, x, density=0.6)):
        save(network, tmp_path / "model.safetensors")
        again = load(tmp_path / "model.safetensors").eval()
        with torch.no_grad():
            assert torch.equal(again(x), network(x))


@pytest.mark.parametrize("saving", [1.0, 1.19, 2.0, 5.0])
def test_a_saving_is_reached_with_as_few_channels_as_it_takes(saving: float) -> None:
    network = randomised(m_cifarnet())
    x = torch.randn(1, 3, 32, 32)
    cut = NetworkSlimming().prune(network, x, Budget(saving=saving))
    assert saving <= cut.saving < 1.02 * saving
    assert cut.macs_before == account(network, x, "paper").macs == 174_301_824
    assert cut.macs_after == account(cut.network, x, "paper").macs
    if saving == 1.0:
        assert cut.channels_after == cut.channels_before == 1088
        assert_same(network(x), cut.network(x))


def test_the_papers_own_pruned_network_costs_what_the_paper_says() -> None:
    # The NS column of the paper's table of M-CifarNet, then gates at d = 0.6 on top of it.
    widths = (52, 64, 123, 128, 128, 182, 111, 192)
    network = m_cifarnet()
    for index, width in enumerate(widths):
        network.get_submodule(f"norm{index}").weight.data[width:] = 1e-3
    removed = sum(network.get_submodule(f"norm{index}").num_features for index in range(8)) - sum(widths)
    x = torch.randn(2, 3, 32, 32)
    cut = NetworkSlimming().prune(network, x, Budget(ratio=removed / 1088))
    assert tuple(layer.channels_after for layer in cut.layers) == (*widths, 10)
    assert cut.saving == pytest.approx(1.19, abs=0.005)
    assert cut.macs_after / 1e6 == pytest.approx(146.5, abs=0.1)
    gated = add_gates(cut.network, x, density=0.6)
    assert [int(layer.winners) for _, layer in gated_layers(gated)] == [32, 39, 74, 77, 77, 110, 67, 116]
    macs = account(gated, x, "paper").macs
    assert macs / 1e6 == pytest.approx(54.2, abs=0.1)
    assert cut.macs_before / macs == pytest.approx(3.21, abs=0.01)


def test_the_penalty_is_the_lasso_on_every_scale_and_pulls_them_to_zero() -> None:
    network = randomised(m_cifarnet())
    method = NetworkSlimming(sparsity=0.5)
    penalty = method.penalty(network)
    assert penalty is not None
    scales = [module.weight for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert penalty.item() == pytest.approx(0.5 * sum(scale.abs().sum().item() for scale in scales), rel=1e-5)
    penalty.backward()
    for scale in scales:
        torch.testing.assert_close(scale.grad, 0.5 * scale.detach().sign())


def test_equal_scales_are_taken_evenly_from_all_layers() -> None:
    cut = NetworkSlimming().prune(m_cifarnet(), torch.randn(1, 3, 32, 32), Budget(ratio=0.5))
    for layer in cut.layers[:-1]:
        assert layer.channels_after / layer.channels_before == pytest.approx(0.5, abs=0.02)


def test_no_layer_is_removed_whole_however_small_its_scales() -> None:
    network = randomised(m_cifarnet())
    network.get_submodule("norm3").weight.data.mul_(1e-6)
    cut = NetworkSlimming().prune(network, torch.randn(1, 3, 32, 32), Budget(ratio=0.3))
    assert {layer.layer: layer.channels_after for layer in cut.layers}["conv3"] == 1
    with pytest.raises(PruningError, match=r"ratio 0\.999 .* 1080 of the 1088 channels"):
        NetworkSlimming().prune(network, torch.randn(1, 3, 32, 32), Budget(ratio=0.999))
    with pytest.raises(PruningError, match=r"saving 1e\+09: .* most that can be had"):
        NetworkSlimming().prune(network, torch.randn(1, 3, 32, 32), Budget(saving=1e9))


class Awkward(nn.Module):
    """conv0 and conv1 in a sum of which only one has a norm; a sigmoid after conv2; conv3 without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(3, 8, 3)
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.conv3 = nn.Conv2d(8, 8, 3)
        self.conv4, self.norm4 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv0(x) + self.norm1(self.conv1(x)))
        x = torch.sigmoid(self.norm2(self.conv2(x)))
        x = torch.relu(self.norm4(self.conv4(torch.relu(self.conv3(x)))))
        return self.fc(x.mean((2, 3)))


def test_a_layer_is_left_alone_where_removing_is_not_masking() -> None:
    network = randomised(Awkward())
    x = torch.randn(2, 3, 12, 12)
    cut = NetworkSlimming().prune(network, torch.zeros(1, 3, 12, 12), Budget(ratio=0.5))
    assert [layer.channels_after for layer in cut.layers] == [8, 8, 8, 8, 4, 5]
    for layer in ("conv0", "conv1"):
        assert cut.left_alone[layer] == "conv2 would not read zeros from a channel whose norm is zero"
    assert set(cut.left_alone) == {"conv0", "conv1", "conv2", "conv3", "fc"}
    assert "no batch norm" in cut.left_alone["conv3"]
    assert "output" in cut.left_alone["fc"]
    assert_same(masked_copy(network, cut, {"conv4": "norm4"})(x), cut.network(x))


def test_the_network_given_is_not_changed_and_modes_and_preprocessing_are_kept() -> None:
    network = randomised(m_cifarnet()).train()
    network.conv0.weight.requires_grad_(False)
    network.preprocess = len
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    small = NetworkSlimming().prune(network, torch.randn(1, 3, 32, 32), Budget(ratio=0.4)).network
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert network.training
    assert small.training
    assert small.preprocess is len
    assert not small.get_submodule("conv0").weight.requires_grad
    assert small.get_submodule("conv1").weight.requires_grad


def test_what_cannot_be_pruned_is_refused_with_the_reason() -> None:
    x = torch.randn(1, 3, 32, 32)
    with pytest.raises(PruningError, match="prune before gating"):
        NetworkSlimming().prune(add_gates(m_cifarnet(), x), x, Budget(ratio=0.4))
    bare = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 10))
    with pytest.raises(PruningError, match="0: no batch norm"):
        NetworkSlimming().prune(bare, x, Budget(ratio=0.4))
    with pytest.raises(PruningError, match="no batch norm"):
        NetworkSlimming().penalty(bare)
    broken = m_cifarnet()
    broken.norm5.weight.data[3] = torch.nan
    with pytest.raises(PruningError, match="'norm5'"):
        NetworkSlimming().prune(broken, x, Budget(ratio=0.4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one of the two"),
        ({"ratio": 0.5, "saving": 2.0}, "one of the two"),
        ({"ratio": 1.0}, r"\[0, 1\["),
        ({"ratio": float("nan")}, r"\[0, 1\["),
        ({"saving": 0.5}, "at least 1"),
    ],
)
def test_a_budget_is_one_sensible_number(given: dict[str, float], message: str) -> None:
    with pytest.raises(PruningError, match=message):
        Budget(**given)


def test_a_layer_cut_counts_what_it_kept() -> None:
    assert LayerCut("conv", 4, (0, 3), 100, 50).channels_after == 2
