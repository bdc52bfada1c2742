"""Every refusal names what was given, what was expected and what to do."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor, nn

from penstock import zoo
from penstock.errors import DensityError, InputError, LayerError, SurgeryError
from penstock.surgery import add_gates, explain, keep_channels, removal_report, remove_unused

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(5))


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 196, 5)
    )


@pytest.mark.parametrize("density", [0, -0.5, 1.5, math.nan, math.inf, "half", None, True])
def test_a_density_outside_0_to_1_is_refused(density: object) -> None:
    with pytest.raises(DensityError, match=re.escape("]0, 1]")):
        add_gates(small(), IMAGES, density=density)  # type: ignore[arg-type]


def test_a_model_without_convolutions_is_refused() -> None:
    with pytest.raises(SurgeryError, match="no Conv2d"):
        add_gates(nn.Sequential(nn.Flatten(), nn.Linear(768, 5)), IMAGES)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(SurgeryError, match=r"expected a torch\.nn\.Module, got dict"):
        add_gates({}, IMAGES)  # type: ignore[arg-type]


def test_an_example_with_the_wrong_channels_names_the_expected_ones() -> None:
    with pytest.raises(InputError, match=r"has 1 channels.*'0' expects 3"):
        add_gates(small(), IMAGES[:, :1])


def test_an_example_of_the_wrong_size_names_the_layer_where_it_stopped() -> None:
    with pytest.raises(InputError, match=r"\(2, 3, 12, 12\).*layer '4'"):
        add_gates(small(), IMAGES[:, :, :12, :12])


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (torch.randn(3, 16, 16), r"got shape \(3, 16, 16\)"),
        (torch.zeros(0, 3, 16, 16), r"got shape \(0, 3, 16, 16\)"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), r"torch\.uint8.*torch\.float32"),
        ([[1.0]], "got list"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(example: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        add_gates(small(), example)


@pytest.mark.parametrize(
    ("kind", "words"), [("init", "'preserve', 'paper', got 'he'"), ("summary", "'l1', .* got 'l3'")]
)
def test_unknown_options_are_refused_with_the_known_ones(kind: str, words: str) -> None:
    with pytest.raises(SurgeryError, match=words):
        add_gates(small(), IMAGES, **{kind: "he" if kind == "init" else "l3"})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["0.weight", "1.running_var", "4.bias"])
def test_bad_weights_are_refused_by_name(bad: float, where: str) -> None:
    model = small()
    model.state_dict()[where].view(-1)[3] = bad
    with pytest.raises(SurgeryError, match=rf"'{re.escape(where)}' holds 1 NaN or infinite"):
        add_gates(model, IMAGES)


def test_huge_but_finite_weights_are_accepted() -> None:
    model = small()
    with torch.no_grad():
        model[0].weight.fill_(3e38)
    assert explain(add_gates(model, IMAGES))["0"].gated


def test_double_insertion_is_refused() -> None:
    gated = add_gates(small(), IMAGES)
    with pytest.raises(SurgeryError, match=r"already has gates \(layer '0'\).*set_density"):
        add_gates(gated, IMAGES)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        if x.mean() > 0:  # the line that cannot be traced
            x = -x
        return self.fc(x.mean((2, 3)))


def test_a_network_that_cannot_be_traced_names_its_line_and_says_what_to_do() -> None:
    with pytest.raises(SurgeryError) as caught:
        add_gates(Branching(), IMAGES)
    message = str(caught.value)
    assert "test_bad_input.py line " in message
    assert "`if x.mean() > 0:" in message
    assert "submodule" in message


def test_a_submodule_that_holds_all_convolutions_and_cannot_be_traced_is_refused_too() -> None:
    with pytest.raises(SurgeryError, match=r"'0' of Sequential.*if x\.mean\(\) > 0"):
        add_gates(nn.Sequential(Branching(), nn.ReLU()), IMAGES)


def test_a_submodule_that_cannot_be_traced_is_kept_whole_and_said_so() -> None:
    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Branching()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1), Tail()).eval()
    gated = add_gates(model, IMAGES)
    told = explain(gated)
    assert told["0"].gated
    assert re.search(r"inside '3\.inner'.*if x\.mean\(\) > 0", told["3.inner.conv"].reason)
    torch.testing.assert_close(gated(IMAGES), model(IMAGES))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.conv(x) + y


def test_a_network_with_two_inputs_is_refused() -> None:
    with pytest.raises(SurgeryError, match="'y' has no default"):
        add_gates(TwoInputs(), IMAGES)


def test_a_script_module_and_a_network_that_cannot_be_copied_are_refused() -> None:
    class Uncopyable(nn.Conv2d):
        def __deepcopy__(self, memo: object) -> None:
            raise RuntimeError("a file handle")

    with pytest.raises(SurgeryError, match="cannot be copied"):
        add_gates(nn.Sequential(Uncopyable(3, 4, 1), nn.Conv2d(4, 4, 1)), IMAGES)


def test_a_lazy_network_is_refused_until_it_has_run() -> None:
    with pytest.raises(SurgeryError, match="not initialised yet"):
        add_gates(nn.Sequential(nn.LazyConv2d(4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)), IMAGES)


def test_explain_without_an_example_says_what_is_missing() -> None:
    with pytest.raises(SurgeryError, match=r"explain\(network, example\)"):
        explain(small())


def test_removal_refuses_networks_without_gates_and_empty_images() -> None:
    with pytest.raises(LayerError, match="no gated layer"):
        remove_unused(small(), IMAGES)
    gated = add_gates(small(), IMAGES)
    with pytest.raises(InputError, match="at least one image"):
        remove_unused(gated, IMAGES[:0])
    with pytest.raises(InputError, match="has 1 channels"):
        remove_unused(gated, IMAGES[:, :1])
    with pytest.raises(LayerError, match="no channel was removed"):
        removal_report(gated)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ({"9": [0]}, "no convolution or linear layer is named '9'; there are: 0, 4"),
        ({"0": []}, "'0' needs at least one index"),
        ({"0": [8]}, "0 to 7, got indices from 8"),
        ({"0": [-1, 2]}, "0 to 7, got indices from -1"),
        ({"0": torch.ones(7, dtype=torch.bool)}, "a bool mask of 8"),
        ({"0": [0.5]}, "at least one index"),
    ],
)
def test_keep_channels_refuses_layers_and_indices_that_do_not_exist(
    keep: dict[str, object], words: str
) -> None:
    with pytest.raises(LayerError, match=words):
        keep_channels(small(), IMAGES, keep)  # type: ignore[arg-type]


def test_a_network_that_torch_compile_wrapped_is_unwrapped() -> None:
    model = zoo.m_cifarnet().eval()
    gated = add_gates(torch.compile(model, backend="eager"), torch.randn(1, 3, 32, 32))  # type: ignore[arg-type]
    assert "conv0.conv.weight" in gated.state_dict()
    assert len(explain(gated).gated) == 8
