"""How the engine is compared with the masked PyTorch network.

Both round differently, so where the k-th and the next saliency of a layer are nearly equal either choice of
winners is right, and the values after it differ for good reason. Such an image is excused from there on, and
counted. The rule: every channel on which the two disagree has a saliency within NEAR of the cut between
winners and losers (or of zero or the layer's threshold, where being computed at all begins), relative to the
layer's largest saliency. Where PyTorch's single precision is further off than that, so may the engine be.

PyTorch computes in double precision: in single precision its own error passes the tolerance now and then (a
sum that nearly cancels; 1.6e-4 where the engine was off by 3e-6). Some random networks enlarge every rounding
error, whoever computes them: in one, PyTorch's single precision was 1.9e-3 off and the engine 1.1e-3. There
the engine may be a few times as far off as PyTorch's single precision is, in its results or in any layer's
saliencies, which multiply what the layer yields.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from penstock.accounting import account
from penstock.engine import Engine
from penstock.gating import gated_layers

NEAR = 1e-5
TOLERANCE = 1e-4
TIMES_ROUNDING = 4.0
MOST = 1e-2  # no network is excused beyond this


@dataclass(frozen=True)
class Agreement:
    images: int
    excused: int


def assert_agreement(network: nn.Module, engine: Engine, images: Tensor, text: str = "") -> Agreement:
    """Same winners, outputs within TOLERANCE, MACs equal to the account's, image by image."""
    exact, exact_images = copy.deepcopy(network).double(), images.double()
    rounded = copy.deepcopy(network)
    with torch.no_grad():
        wanted = exact(exact_images).numpy()
        single = rounded(images).numpy()
    scales = np.maximum(np.abs(wanted).reshape(len(wanted), -1).max(axis=1, initial=0.0), 1e-3)
    rounding = np.full(len(images), _largest_error(single, wanted, scales))
    record = engine.record(images)
    np.testing.assert_array_equal(
        record.outputs, engine(images).numpy(), err_msg="recording changes the result"
    )
    excused = np.zeros(len(images), bool)
    comparable = np.ones(len(images), bool)  # single precision has chosen the same winners so far
    layers, rounded_layers = dict(gated_layers(exact)), dict(gated_layers(rounded))
    for name in engine.gated:
        gains, saliency = layers[name].gains, layers[name].saliency
        assert gains is not None
        assert saliency is not None
        differences = (rounded_layers[name].saliency.double() - saliency).abs().amax(dim=1).numpy()
        their_rounding = np.where(comparable, differences, 0.0)
        rounding = np.maximum(rounding, their_rounding / saliency.amax(dim=1).clamp(min=1e-3).numpy())
        comparable &= ((rounded_layers[name].gains != 0) == (gains != 0)).all(dim=1).numpy()
        threshold = 0.0 if layers[name].threshold is None else float(layers[name].threshold)
        for image in range(len(images)):
            if not excused[image]:
                excused[image] = _near_tie(
                    gains[image].numpy() != 0,
                    record.winners[name][image],
                    saliency[image].numpy(),
                    threshold,
                    float(their_rounding[image]),
                    f"{name} of {text}",
                )
    allowed = np.clip(TIMES_ROUNDING * rounding, TOLERANCE, MOST)
    assert np.isfinite(wanted).all()
    counts = account(exact, exact_images).image_macs.numpy()
    for image in np.flatnonzero(~excused):
        one = slice(image, image + 1)
        error = _largest_error(record.outputs[one], wanted[one], scales[one])
        most = allowed[image]
        assert error <= most, f"image {image}: relative error {error:.2e} over {most:.0e} in {text}"
        assert record.macs[image].sum() == counts[image], f"image {image}: MACs of {text}"
    return Agreement(len(images), int(excused.sum()))


def _largest_error(ours: np.ndarray, wanted: np.ndarray, scales: np.ndarray) -> float:
    """The largest difference of any image, relative to that image's scale."""
    differences = np.abs(ours - wanted).reshape(len(wanted), -1).max(axis=1, initial=0.0)
    return float((differences / scales).max(initial=0.0))


def _near_tie(
    ours: np.ndarray,
    theirs: np.ndarray,
    saliency: np.ndarray,
    threshold: float,
    their_rounding: float,
    where: str,
) -> bool:
    """Whether two choices of winners differ for good reason; they must not differ for another."""
    if (ours == theirs).all():
        return False
    largest = float(saliency.max())
    cut = float(saliency[ours].min()) if ours.any() else 0.0
    differing = saliency[ours != theirs]
    allowed = min(max(NEAR * largest, TIMES_ROUNDING * their_rounding), MOST * largest)
    near = np.abs(differing - cut) <= allowed
    near |= np.abs(differing - threshold) <= allowed
    assert near.all(), f"{where}: winners differ where no saliency is near the cut: {differing} against {cut}"
    return True
