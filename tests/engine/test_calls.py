"""Calling an engine: kinds of input, densities, threads, many callers, profiles, and every bad input."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.networks import enliven, randomise
from torch import nn

import penstock.engine as engines
from penstock import zoo
from penstock.engine import Engine
from penstock.errors import CompileError, DensityError, InputError, LayerError
from penstock.gating import set_density
from penstock.surgery import add_gates
from penstock.zoo.vgg import VGG


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def gated(images: torch.Tensor) -> nn.Module:
    torch.manual_seed(0)
    return enliven(add_gates(randomise(zoo.m_cifarnet()), images, density=0.5), images)


@pytest.fixture(scope="module")
def engine(gated: nn.Module, images: torch.Tensor) -> Engine:
    return engines.compile(gated, images)


def test_torch_gives_torch_and_numpy_gives_numpy(engine: Engine, images: torch.Tensor) -> None:
    ours, theirs = engine(images), engine(images.numpy())
    assert isinstance(ours, torch.Tensor)
    assert isinstance(theirs, np.ndarray)
    assert theirs.dtype == np.float32
    np.testing.assert_array_equal(ours.numpy(), theirs)


def test_results_are_ordinary_tensors_that_outlive_the_engine(gated: nn.Module, images: torch.Tensor) -> None:
    engine = engines.compile(gated, images)
    first = engine(images.clone().requires_grad_())
    kept = first.clone()
    assert (first.device.type, first.dtype, first.requires_grad) == ("cpu", torch.float32, False)
    assert first.is_contiguous()
    second = engine(images[:2] * 2)
    del engine
    torch.testing.assert_close(first, kept, rtol=0, atol=0)
    second += 1
    assert second.shape == (2, 10)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x.double().numpy(),
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.flip(3).flip(3),
        lambda x: x.repeat(1, 1, 1, 2)[..., ::2].repeat(1, 1, 1, 2)[..., :32] * 0 + x,
        lambda x: np.asfortranarray(x.numpy()),
        lambda x: x.clone().requires_grad_(),
        # Contiguous, but read as it lies every value would have the wrong sign.
        lambda x: torch._neg_view(-x),
        lambda x: torch.cat([x, x])[5:],
        lambda x: torch.nn.Parameter(x),
    ],
)
def test_double_precision_and_any_memory_layout_are_taken(
    engine: Engine, images: torch.Tensor, change: Callable[[torch.Tensor], Any]
) -> None:
    np.testing.assert_array_equal(np.asarray(engine(change(images))), engine(images).numpy())


def test_an_empty_batch_gives_an_empty_result(engine: Engine, images: torch.Tensor) -> None:
    assert engine(images[:0]).shape == (0, 10)
    assert engine.record(images[:0]).macs.shape == (0, 9)


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda x: x[:, :2], "channels"),
        (lambda x: x[:, :, :31], "height and width"),
        (lambda x: x[0], r"x\[None\]"),
        (lambda x: x[0, 0], "expected shape"),
        (lambda x: (x * 255).to(torch.uint8), "preprocess"),
        (lambda x: x.numpy().astype(np.int64), "preprocess"),
        (lambda x: x.tolist(), "list"),
        (lambda x: np.ma.masked_less(x.numpy(), 0.0), "mask"),
        (lambda x: x.to_sparse(), "to_dense"),
        (lambda x: x.to_mkldnn(), "to_dense"),
        (lambda x: None, "NoneType"),
    ],
)
def test_a_wrong_shape_or_type_is_refused_with_what_was_expected(
    engine: Engine, images: torch.Tensor, give: Callable[[torch.Tensor], Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        engine(give(images))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_pixel_that_is_not_finite_is_refused_with_the_image(
    gated: nn.Module, images: torch.Tensor, value: float, threads: int
) -> None:
    engine = engines.compile(gated, images, threads=threads)
    bad = images.clone()
    bad[3, 1, 31, 31] = bad[4, 0, 0, 0] = value
    with pytest.raises(InputError, match="image 3 "):
        engine(bad)
    np.testing.assert_array_equal(engine(images[:3]).numpy(), engine(bad[:3]).numpy())


@pytest.mark.parametrize("density", [0, -0.1, 1.1, float("nan"), "half", True, {"conv3": 0.0}])
def test_a_density_out_of_range_is_refused(engine: Engine, images: torch.Tensor, density: Any) -> None:
    with pytest.raises(DensityError):
        engine(images, density=density)


def test_an_unknown_layer_is_named(engine: Engine, images: torch.Tensor) -> None:
    with pytest.raises(LayerError, match="conv99"):
        engine(images, density={"conv99": 0.5})


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", 100_000])
def test_a_thread_count_that_is_none_is_refused(gated: nn.Module, images: torch.Tensor, threads: Any) -> None:
    with pytest.raises(CompileError, match="threads"):
        engines.compile(gated, images, threads=threads)


def test_the_density_of_a_call_is_the_network_at_that_density(
    gated: nn.Module, engine: Engine, images: torch.Tensor
) -> None:
    for density in (0.3, {"conv3": 0.2, "conv[67]": 0.9}, 1.0):
        try:
            set_density(gated, density)
            with torch.no_grad():
                wanted = gated(images)
        finally:
            set_density(gated, 0.5)
        found = engine(images, density=density)
        assert torch.allclose(found, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", ["avx9", "sse", "neon"])
def test_an_unknown_instruction_set_is_refused(
    gated: nn.Module, images: torch.Tensor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", name)
    with pytest.raises(CompileError, match=f"PENSTOCK_ISA={name}"):
        engines.compile(gated, images)


def test_results_depend_neither_on_threads_nor_on_what_ran_before(
    gated: nn.Module, images: torch.Tensor
) -> None:
    fresh = engines.compile(gated, images)(images).numpy()
    for threads in (1, 2, 3):
        engine = engines.compile(gated, images, threads=threads)
        engine(torch.randn(3, 3, 32, 32) * 3, density=0.9)
        for batch in (1, 2, 3, 5):
            np.testing.assert_array_equal(engine(images[:batch]).numpy(), fresh[:batch])
            engine(images.flip(0), density=0.2)


@pytest.mark.parametrize("name", ["resnet18", "vgg16_bn"])
def test_memory_of_every_density_holds_the_same_results(name: str) -> None:
    """Where values lie depends on the density and on the number of threads; what they are must not."""
    torch.manual_seed(3)
    images = torch.randn(1, 3, 96, 96)
    plain = getattr(zoo, name)(classes=10)
    if isinstance(plain, VGG):  # its dense layers hold nine tenths of the weights
        plain.classifier = nn.Sequential(nn.Linear(512 * 7 * 7, 32), nn.ReLU(), nn.Linear(32, 10))
    gated = add_gates(randomise(plain), images, density=0.5)
    # Several images: of one alone all saliencies would be equal, and rounding would choose the winners.
    network = enliven(gated, torch.cat([images, torch.randn(3, 3, 96, 96)]))
    one, two = (engines.compile(network, images, threads=threads) for threads in (1, 2))
    densities = (0.1, 1.0, 0.3, 0.6, {"*": 0.5, "*1*": 0.2})
    wanted = [engines.compile(network, images)(images, density=density).numpy() for density in densities]
    for engine in (one, two, one):
        for density, result in zip(densities, wanted, strict=True):
            np.testing.assert_array_equal(engine(images, density=density).numpy(), result)


def test_many_python_threads_may_call_one_engine(gated: nn.Module, images: torch.Tensor) -> None:
    engine = engines.compile(gated, images, threads=2)
    wanted = {density: engine(images, density=density).numpy() for density in (0.2, 0.5, 1.0)}
    wrong: list[float] = []

    def call(density: float) -> None:
        for _ in range(20):
            if not np.array_equal(engine(images, density=density).numpy(), wanted[density]):
                wrong.append(density)

    callers = [threading.Thread(target=call, args=(density,)) for density in wanted for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_a_profile_names_every_layer_with_time_counts_and_algorithm(
    engine: Engine, images: torch.Tensor
) -> None:
    profile = engine.profile(images[:1], repeats=2)
    counted = [layer for layer in profile.layers if layer.macs is not None]
    assert tuple(layer.name for layer in counted) == engine.layers
    assert profile.macs == engine.macs(images[:1])[0] == sum(layer.macs or 0 for layer in counted)
    assert all(layer.milliseconds > 0 and layer.gflops and layer.gflops > 0 for layer in counted)
    assert [layer.active_in for layer in counted][1] == 32
    assert all(layer.algorithm for layer in counted if layer.kind == "conv")
    with pytest.raises(InputError, match="one image"):
        engine.profile(images)


def test_what_is_missing_is_named_with_its_layer_before_anything_runs() -> None:
    images = torch.randn(1, 3, 8, 8)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.CELU(), nn.Conv2d(4, 4, 3))
    with pytest.raises(CompileError, match=r"layer '1': the engine has no CELU"):
        engines.compile(network, images)
    with pytest.raises(CompileError, match=r"layer '0'.*reflect"):
        engines.compile(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")), images)
    with pytest.raises(CompileError, match=r"layer '1'.*running statistics"):
        engines.compile(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), images
        )
    broken = nn.Sequential(nn.Conv2d(3, 4, 3))
    assert isinstance(broken[0].weight, nn.Parameter)
    broken[0].weight.data[0] = float("nan")
    with pytest.raises(CompileError, match="NaN"):
        engines.compile(broken, images)


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (lambda y: y * y, "'mul': the engine has no product of a value with itself"),
        (lambda y: y + 1e39, "'add': its weights hold NaN or infinity"),
        (lambda y: y * float("nan"), "'mul': its weights hold NaN or infinity"),
    ],
)
def test_arithmetic_without_an_answer_is_refused_by_name(
    by: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return by(x.mean((2, 3)))

    with pytest.raises(CompileError, match=re.escape(message)):
        engines.compile(Net().eval(), torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize("by", [lambda y: y + 1.0, lambda y: y * 2.0, lambda y: y * 3.0 + 1.0])
def test_numbers_after_a_linear_layer_are_folded_into_it(by: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3 * 8 * 8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return by(self.fc(torch.flatten(x, 1)))

    images = torch.randn(2, 3, 8, 8)
    network = Shifted().eval()
    with torch.no_grad():
        wanted = network(images)
    assert torch.allclose(engines.compile(network, images)(images), wanted, atol=1e-5)


def test_preprocessing_travels_with_the_engine(images: torch.Tensor) -> None:
    network = zoo.m_cifarnet()
    network.preprocess = lambda x: x  # type: ignore[assignment]
    assert engines.compile(network, images).preprocess is network.preprocess
