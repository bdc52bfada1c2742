"""Which convolutions get a gate, and the reason for each that does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.surgery.explained import IMAGES, convert, head, reason
from tests.surgery.networks import randomise
from torch import Tensor, nn

from penstock.errors import LayerError
from penstock.gating import GatedConv2d, set_density
from penstock.surgery import add_gates, explain


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(3, 6, 1, bias=False),
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.Conv2d(3, 6, 3, dilation=2),
        nn.Conv2d(3, 6, (1, 3), padding=(0, 1)),
        nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"),
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", [None, {}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_every_form_of_conv_and_norm_keeps_its_function(
    conv: nn.Conv2d, norm: dict[str, bool] | None
) -> None:
    norms = [] if norm is None else [nn.BatchNorm2d(6, **norm)]
    assert convert(nn.Sequential(conv, *norms, nn.ReLU(), head(6)))["0"].gated


def test_grouped_convolutions_are_gated() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.BatchNorm2d(12), head(12)
    )
    assert convert(model)["2"].gated


def test_depthwise_convolutions_are_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU(), head(8)
    )
    assert "depthwise" in reason(model, "2")


def test_a_convolution_on_a_1x1_map_is_left_alone() -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 8, 1), nn.ReLU(), head(8))
    assert "cost as much" in reason(model, "1")


def test_a_convolution_that_is_the_networks_output_is_left_alone() -> None:
    told = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.AdaptiveAvgPool2d(1)))
    assert told["0"].gated
    assert "network's output" in told["2"].reason


class Residual(nn.Module):
    """conv → norm → add → activation, with an in-place sum."""

    def __init__(self, norm_after: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 1)
        self.conv = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.after = nn.BatchNorm2d(6) if norm_after else nn.Identity()
        self.head = head(6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.norm(self.conv(x))
        y += x
        return self.head(F.relu(self.after(y)))


def test_a_convolution_that_ends_in_a_residual_sum_is_gated() -> None:
    told = convert(Residual())
    assert told["conv"].gated
    assert told["stem"].gated


def test_a_norm_after_the_residual_sum_forbids_the_gate() -> None:
    told = convert(Residual(norm_after=True))
    assert "BatchNorm2d 'after'" in told["conv"].reason
    assert told["stem"].gated  # it has its activation before


class Concatenation(nn.Module):
    """As in a dense block: the norm comes after the concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1, bias=False)
        self.two = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = head(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(torch.cat([self.one(x), self.two(x)], 1))))


def test_a_norm_after_a_concatenation_forbids_the_gates() -> None:
    told = convert(Concatenation())
    assert all("BatchNorm2d 'norm'" in conv.reason for conv in told.left_alone)
    assert len(told.left_alone) == 2


class Twice(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 1)
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.other = nn.Conv2d(6, 6, 3, padding=1)
        if what == "weight":
            self.other.weight = self.conv.weight
        self.what = what
        self.head = head(6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.norm(self.conv(x)))
        if self.what == "conv":
            x = F.relu(self.conv(x))
        elif self.what == "norm":
            x = F.relu(self.norm(self.other(x)))
        elif self.what == "output":
            y = self.other(x)
            x = F.relu(self.norm.forward(y)) + y
        else:
            x = F.relu(self.other(x))
        return self.head(x)


@pytest.mark.parametrize(
    ("what", "word"), [("conv", "runs 2 times"), ("norm", "shared"), ("weight", "shares its weight")]
)
def test_what_is_reused_is_refused_by_name(what: str, word: str) -> None:
    assert word in reason(Twice(what), "conv")


class UsedBefore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.norm = nn.BatchNorm2d(6)
        self.head = head(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.head(F.relu(self.norm(y)) + F.relu(y))


def test_a_convolution_read_before_its_norm_is_left_alone() -> None:
    assert "before its norm" in reason(UsedBefore(), "conv")


def test_other_norms_and_other_convolutions_are_refused_by_name() -> None:
    assert "GroupNorm" in reason(nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), head(6)))
    assert "ConvTranspose2d" in reason(
        nn.Sequential(nn.ConvTranspose2d(3, 6, 3), nn.Conv2d(6, 6, 1), nn.ReLU(), head(6))
    )


def test_parametrised_convolutions_are_left_alone() -> None:
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 6, 3)), nn.ReLU(), nn.Conv2d(6, 6, 1), head(6)
    )
    randomise(model).eval()
    assert "parametri" in explain(model, IMAGES)["0"].reason.lower()


def test_keep_dense_takes_names_and_patterns_and_refuses_what_matches_nothing() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()) for _ in range(3)], head(3))
    told = explain(add_gates(model, IMAGES, keep_dense=["0.0", "2.*"]))
    assert [conv.name for conv in told.gated] == ["1.0"]
    assert "on request" in told["2.0"].reason
    assert [c.name for c in explain(add_gates(model, IMAGES, keep_dense="0.0")).gated] == ["1.0", "2.0"]
    with pytest.raises(LayerError, match=r"'3\.0'.*0\.0, 1\.0, 2\.0"):
        add_gates(model, IMAGES, keep_dense=["3.0"])


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.spare = nn.Conv2d(3, 6, 1)
        self.head = head(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)))


def test_a_convolution_that_never_runs_is_in_the_explanation() -> None:
    told = convert(Unused())
    assert "never runs" in told["spare"].reason
    assert told["spare"].output_shape is None


def test_the_explanation_reads_as_a_table_and_follows_the_density() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    gated = add_gates(model, IMAGES, density=0.5)
    lines = str(explain(gated)).splitlines()
    assert len(lines) == 4
    assert lines[1].split()[:5] == ["0", "3→8", "3x3", "6x6", "d=0.5"]
    assert "network's output" in lines[2]
    assert lines[3] == "1 of 2 convolutions gated"
    set_density(gated, 0.25)
    assert explain(gated)["0"].density == 0.25
    with pytest.raises(KeyError, match="no convolution is named 'x'"):
        explain(gated)["x"]


def test_a_plain_network_is_explained_with_an_example() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), head(8))
    assert explain(model, IMAGES)["0"].gated
    assert not any(isinstance(module, GatedConv2d) for module in model.modules())
