"""Checkpoints: whatever network is saved comes back equal, with its densities, sizes and notes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exporting.kept import Mine, gates_shaken, same, shaken
from torch import nn

import penstock as ps
from penstock.datasets.preprocess import Preprocess
from penstock.errors import CheckpointError
from penstock.exporting import read_notes
from penstock.exporting.container import write_container
from penstock.exporting.describe import describe, to_plain
from penstock.gating import gated_layers, set_levels
from penstock.surgery.shrink import keep_channels, removal_report


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "network.safetensors"


@pytest.mark.parametrize(("make", "size"), [("m_cifarnet", 32), ("resnet18", 32)])
def test_dense_zoo_networks_come_back_equal(make: str, size: int, path: Path) -> None:
    network = shaken(getattr(ps.zoo, make)(classes=7))
    ps.save(network, path)
    loaded = ps.load(path)
    assert type(loaded) is type(network)
    assert not loaded.training
    same(network, loaded, torch.randn(2, 3, size, size))
    assert all(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("summary", ["l1", "l2", "linf", "variance"])
def test_gated_networks_come_back_with_densities_by_layer(summary: str, path: Path) -> None:
    x = torch.randn(3, 3, 32, 32)
    gated = gates_shaken(
        ps.add_gates(shaken(ps.zoo.m_cifarnet()), x, 0.55, summary=summary, keep_dense=["conv6"])
    )
    ps.set_density(gated, {"conv3": 0.25, "conv7": 1.0})
    ps.save(gated, path)
    loaded = ps.load(path)
    same(gated, loaded, x)
    assert {layer.gate.summary for _, layer in gated_layers(loaded)} == {summary}
    assert not ps.explain(loaded)["conv6"].gated
    assert [conv.gated for conv in ps.explain(loaded).convolutions] == [i != 6 for i in range(8)]


def test_levels_come_back_and_a_cut_layer_keeps_one(path: Path) -> None:
    x = torch.randn(4, 3, 32, 32)
    gated = ps.add_gates(shaken(ps.zoo.m_cifarnet()), x, 0.4)
    set_levels(gated, (0.3, 0.5, 1.0))
    gates_shaken(gated)
    ps.save(gated, path)
    loaded = ps.load(path)
    for density in (0.3, 0.5, 0.9):
        ps.set_density(gated, density)
        ps.set_density(loaded, density)
        same(gated, loaded, x)
    ps.set_density(gated, 0.4)
    small = keep_channels(gated, x, {"conv1": range(20)})
    assert [layer.levels for _, layer in gated_layers(small)] == [
        () if place == 1 else (0.3, 0.5, 1.0) for place in range(8)
    ]
    ps.save(small, path)
    same(small, ps.load(path), x)
    before, after = (
        dict(gated_layers(net))["conv1"] for net in (gated, keep_channels(gated, x, {"conv1": range(40)}))
    )
    assert int(after.winners) == int(before.winners) == 26
    assert torch.equal(after.shift, before.shift[0, :40])


@pytest.mark.parametrize("levels", [[0.5], [0.5, 0.3], ["a", "b"], 7])
def test_levels_that_cannot_be_are_refused(levels: Any, path: Path) -> None:
    gated = ps.add_gates(shaken(ps.zoo.m_cifarnet()), torch.randn(1, 3, 32, 32))
    plain = to_plain(describe(gated, None, {}, "test"))
    plain["gates"]["conv0"]["levels"] = levels
    write_container(path, gated.state_dict(), plain)
    with pytest.raises(CheckpointError, match=r"network\.safetensors"):
        ps.load(path)


def test_a_network_after_remove_unused_comes_back_as_small(path: Path) -> None:
    x = torch.randn(4, 3, 32, 32)
    gated = gates_shaken(ps.add_gates(shaken(ps.zoo.m_cifarnet()), x, 0.4))
    small = ps.remove_unused(gated, x)
    ps.save(small, path)
    loaded = ps.load(path)
    same(small, loaded, x)
    assert removal_report(loaded) == removal_report(small)
    assert sum(p.numel() for p in loaded.parameters()) < sum(p.numel() for p in gated.parameters())
    again = path.with_name("again.safetensors")
    ps.save(loaded, again)
    assert again.read_bytes() == path.read_bytes()


def test_a_statically_pruned_network_comes_back_dense_and_then_gated(path: Path) -> None:
    x = torch.randn(2, 3, 32, 32)
    pruned = keep_channels(shaken(ps.zoo.m_cifarnet()), x, {"conv1": range(20), "conv5": range(0, 192, 3)})
    ps.save(pruned, path)
    same(pruned, ps.load(path), x)
    gated = gates_shaken(ps.add_gates(pruned, x, 0.5))
    ps.save(gated, path)
    same(gated, ps.load(path), x)


def test_a_pruned_and_gated_resnet_comes_back(path: Path) -> None:
    x = torch.randn(2, 3, 32, 32)
    keep = {"layer1.0.conv1": range(30), "layer4.1.conv1": range(100, 200)}
    pruned = keep_channels(shaken(ps.zoo.resnet18(classes=5)), x, keep)
    gated = gates_shaken(ps.add_gates(pruned, x, 0.6))
    ps.save(gated, path)
    same(gated, ps.load(path), x)


def test_a_users_own_model_is_gated_and_filled_as_recorded_and_stays_untouched(path: Path) -> None:
    x = torch.randn(2, 3, 16, 16)
    gated = gates_shaken(ps.add_gates(shaken(Mine()), x, 0.5, keep_dense=["last"]))
    ps.save(gated, path)
    mine = Mine()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    same(gated, ps.load(path, mine), x)
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items())
    same(gated, ps.load(path, ps.add_gates(mine, x, keep_dense=["last"])), x)


def test_a_users_own_model_comes_back_smaller_reshapes_and_depthwise_convolutions_included(
    path: Path,
) -> None:
    x = torch.randn(2, 3, 16, 16)
    pruned = keep_channels(shaken(Mine()), x, {"stem": range(3), "block": range(3), "last": [1, 4]})
    assert pruned.get_submodule("depthwise").groups == 3
    assert pruned.get_submodule("head").in_features == 32
    ps.save(pruned, path)
    same(pruned, ps.load(path, Mine()), x)


def test_a_users_dense_model_comes_back(path: Path) -> None:
    network = shaken(Mine())
    ps.save(network, path)
    same(network, ps.load(path, Mine()), torch.randn(2, 3, 16, 16))
    with pytest.raises(CheckpointError, match=r"does not say how its network is made; .*load\(path, model\)"):
        ps.load(path)


def test_an_import_path_is_followed_only_on_request(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = path.parent / "home"
    home.mkdir()
    (home / "penstock_test_models.py").write_text(
        "from torch import nn\n"
        "def build():\n    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())\n"
        "def number():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(home)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    ps.save(network, path, definition="penstock_test_models:build")
    with pytest.raises(CheckpointError, match=r"penstock_test_models:build.*trust_import=True"):
        ps.load(path)
    assert "penstock_test_models" not in sys.modules
    same(network, ps.load(path, trust_import=True), torch.randn(1, 3, 8, 8))
    assert "penstock_test_models" in sys.modules
    for bad, said in (("number", "gave a int"), ("nothing", "nothing")):
        ps.save(network, path, definition=f"penstock_test_models:{bad}")
        with pytest.raises(CheckpointError, match=said):
            ps.load(path, trust_import=True)
    ps.save(network, path, definition="penstock_no_such_module:build")
    with pytest.raises(CheckpointError, match=r"No module named .penstock_no_such_module.*PYTHONPATH"):
        ps.load(path, trust_import=True)
    with pytest.raises(CheckpointError, match="module:callable"):
        ps.save(network, path, definition="os.system('true')")
    sys.modules.pop("penstock_test_models")


def test_preprocess_and_notes_travel(path: Path) -> None:
    network = ps.zoo.m_cifarnet()
    network.preprocess = Preprocess((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))  # type: ignore[assignment]
    gated = ps.add_gates(network, torch.randn(1, 3, 32, 32), 0.5)
    ps.save(gated, path, notes={"top1": 90.6, "data": "cifar10"})
    loaded = ps.load(path)
    assert loaded.preprocess == network.preprocess
    raw = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(loaded.preprocess(raw), network.preprocess(raw))  # type: ignore[operator]
    said = read_notes(path)
    assert said.notes == {"top1": 90.6, "data": "cifar10"}
    assert said.definition == {"zoo": "m_cifarnet", "arguments": {"classes": 10, "dropout": 0.0}}
    assert said.input_shape == (3, 32, 32)
    assert said.written_by == ps.__version__
    network.preprocess = torch.nn.Identity()
    with pytest.raises(CheckpointError, match="preprocess is a Identity"):
        ps.save(network, path)
    with pytest.raises(CheckpointError, match="JSON"):
        ps.save(ps.zoo.m_cifarnet(), path, notes={"when": object()})


def test_types_and_shared_weights_survive(path: Path) -> None:
    half = shaken(ps.zoo.m_cifarnet()).to(torch.bfloat16)
    ps.save(half, path)
    assert {p.dtype for p in ps.load(path).parameters()} == {torch.bfloat16}
    tied = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    tied[1].weight = tied[0].weight
    ps.save(tied, path)
    twin = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    twin[1].weight = twin[0].weight
    loaded = ps.load(path, twin)
    assert loaded[1].weight is loaded[0].weight  # type: ignore[index]
    same(tied, loaded, torch.randn(1, 3, 4, 4))


def test_a_wrapped_network_is_saved_as_the_network_inside(path: Path) -> None:
    network = shaken(Mine())
    ps.save(nn.DataParallel(torch.compile(network, backend="eager")), path)  # type: ignore[arg-type]
    same(network, ps.load(path, Mine()), torch.randn(2, 3, 16, 16))


def test_loading_draws_no_chance(path: Path) -> None:
    ps.save(ps.add_gates(ps.zoo.m_cifarnet(), torch.randn(1, 3, 32, 32)), path)
    state = torch.random.get_rng_state()
    ps.load(path)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_loading_imports_no_compiler(path: Path) -> None:
    # torch's meta device does so for a random fill, and then loading takes seconds.
    ps.save(ps.zoo.resnet18(classes=2), path)
    code = (
        f"import sys, penstock; penstock.load({str(path)!r}); "
        "print([name for name in ('sympy', 'torch._dynamo', 'torch._inductor') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_an_interrupted_save_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = shaken(Mine())
    ps.save(network, path)
    before = path.read_bytes()

    def crash(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="no space"):
        ps.save(shaken(Mine()), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
