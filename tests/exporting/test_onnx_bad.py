"""What cannot be exported is named before anything is written, and no half-written file is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import penstock as ps
from penstock.errors import DensityError, ExportError, InputError, MissingExtraError
from penstock.exporting import onnx_session

pytest.importorskip("onnx", reason="pip install 'penstock[onnx]'")

Pair = Callable[[nn.Module, int], tuple[nn.Module, Tensor]]


class _Small(nn.Module):
    def __init__(self, step: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.step = step
        self.second = nn.Conv2d(8, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.step(torch.relu(self.first(x)))).mean((2, 3))


def _gated(step: Callable[[Tensor], Tensor] = torch.relu) -> tuple[nn.Module, Tensor]:
    example = torch.randn(1, 3, 8, 8)
    return ps.add_gates(_Small(step), example), example


def _refused(tmp_path: Path, pattern: str, network: nn.Module, example: Tensor, **settings: object) -> str:
    with pytest.raises(ExportError, match=pattern) as caught:
        ps.export_onnx(network, tmp_path / "net.onnx", example, **settings)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    return str(caught.value)


def test_a_batch_is_refused_by_the_skipping_form(tmp_path: Path) -> None:
    network, example = _gated()
    batch = example.repeat(2, 1, 1, 1)
    _refused(tmp_path, r"one image at a time and the example has 2.*skipping=False", network, batch)


def test_every_step_without_a_writer_is_named_at_once(tmp_path: Path) -> None:
    network, example = _gated(lambda x: torch.cumsum(torch.logsumexp(x, dim=3, keepdim=True), dim=2))
    said = _refused(tmp_path, "nothing was written", network, example)
    assert "'logsumexp' (logsumexp)" in said
    assert "'cumsum' (cumsum)" in said


def relu(x: Tensor) -> Tensor:
    """Not what its name says."""
    return -x


torch.fx.wrap("relu")


def test_a_function_that_only_has_the_name_of_torchs_is_refused(tmp_path: Path) -> None:
    network, example = _gated(lambda x: relu(x))
    _refused(tmp_path, r"relu\): there is no ONNX writer", network, example)


def test_a_layer_without_a_writer_is_named_with_its_class(tmp_path: Path) -> None:
    network, example = _gated(nn.LPPool2d(2.0, 2))
    _refused(tmp_path, r"layer 'step' \(LPPool2d\)", network, example)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda x: nn.functional.dropout(x, 0.5, True), "at random even in eval mode"),
        (nn.BatchNorm2d(8, track_running_stats=False), "has no running statistics"),
        (nn.AvgPool2d(3, 2, ceil_mode=True, divisor_override=2), "divisor_override"),
        (nn.Upsample(scale_factor=2, mode="bicubic"), "bicubic"),
        (nn.CircularPad2d(1), "CircularPad2d"),
        (nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), "circular"),
        (nn.AdaptiveMaxPool2d(5), "windows that differ"),
        (nn.PReLU(8), "one slope a channel"),
        (lambda x: x[:, :, [0, 2]], r"indexing with \[0, 2\]"),
    ],
)
def test_a_step_with_an_unwritable_setting_says_which(
    step: Callable[[Tensor], Tensor], reason: str, tmp_path: Path
) -> None:
    network, example = _gated(step)
    _refused(tmp_path, reason, network.eval(), example)


def test_a_view_changed_in_place_is_refused_rather_than_written_wrong(tmp_path: Path) -> None:
    def step(x: Tensor) -> Tensor:
        flat = x.flatten(2)
        x.mul_(2.0)
        return x + flat.view(-1, 8, 8, 8)

    network, example = _gated(step)
    _refused(tmp_path, "another view is read later", network, example)


def test_an_untraceable_network_is_refused_with_its_line(tmp_path: Path) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) if x.sum() > 0 else x

    example = torch.randn(1, 3, 8, 8)
    _refused(tmp_path, r"Branching cannot be exported.*if x\.sum\(\) > 0", Branching(), example)


def test_a_reshape_across_the_batch_is_refused_by_the_masked_form(tmp_path: Path) -> None:
    network, example = _gated(lambda x: x.reshape(-1, 8, 4, 8))
    _refused(tmp_path, "moves the batch axis", network, example, skipping=False)


def test_an_unwritable_place_is_refused_before_any_work(tmp_path: Path) -> None:
    network, example = _gated()
    with pytest.raises(ExportError, match=r"absent.*does not exist"):
        ps.export_onnx(network, tmp_path / "absent" / "net.onnx", example)
    with pytest.raises(ExportError, match="is a folder"):
        ps.export_onnx(network, tmp_path, example)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists() or os.name != "posix", reason="needs a full device")
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, example = _gated()
    (tmp_path / "net.onnx").write_bytes(b"what was there before")
    real = os.fsync

    def full(handle: int) -> None:
        real(handle)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportError, match="No space left on device"):
        ps.export_onnx(network, tmp_path / "net.onnx", example)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    assert (tmp_path / "net.onnx").read_bytes() == b"what was there before"


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    network, example = _gated()
    _refused(tmp_path, "opset: expected 17 to 21, got 11", network, example, opset=11)
    _refused(tmp_path, "density: expected a number.*got 'half'", network, example, density="half")
    _refused(tmp_path, "static=True needs a fixed density", network, example, static=True)
    _refused(tmp_path, "only float32", network.double(), example.double())
    with pytest.raises(DensityError):
        ps.export_onnx(network.float(), tmp_path / "net.onnx", example, density=0.0)
    with pytest.raises(InputError, match="expected one batch of images"):
        ps.export_onnx(network, tmp_path / "net.onnx", example[0])
    with pytest.raises(ExportError, match=r"expected a torch\.nn\.Module"):
        ps.export_onnx("network", tmp_path / "net.onnx", example)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_the_command_that_adds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, example = _gated()
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[onnx\]'"):
        ps.export_onnx(network, tmp_path / "net.onnx", example)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="onnxruntime is not installed"):
        onnx_session(tmp_path / "net.onnx")


def test_the_users_network_is_left_as_it_was(tmp_path: Path) -> None:
    network, example = _gated()
    network.train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    ps.export_onnx(network, tmp_path / "net.onnx", example)
    assert network.training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
