"""Networks for the surgery tests: weights and statistics made random, and the model list of the issue."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock import zoo
from penstock.gating import GatedConv2d, gated_layers, summarise


def quick(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network without drawing every weight: they are tiles of one random vector."""
    with torch.device("meta"):
        network = build()
    network.to_empty(device="cpu")
    noise = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
    start = 0
    with torch.no_grad():
        for parameter in network.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 16
            flat = parameter.view(-1)
            for place in range(0, len(flat), len(noise)):
                piece = flat[place : place + len(noise)]
                torch.mul(noise.roll(start)[: len(piece)], (2.0 / fan_in) ** 0.5, out=piece)
                start += 997
        for buffer in network.buffers():
            buffer.zero_()
    return randomise(network)


def randomise(network: nn.Module, seed: int = 0) -> nn.Module:
    """Random norm scales (both signs, zeros, near-zeros), shifts and statistics: fresh ones hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if not isinstance(module, _BatchNorm):
                continue
            count = module.num_features
            if module.affine:
                scale = torch.randn(count, generator=generator)
                scale[::7] = 0.0
                scale[1::7] *= 1e-5
                module.weight.copy_(scale)
                module.bias.copy_(0.5 * torch.randn(count, generator=generator))
            if module.running_mean is not None and module.running_var is not None:
                module.running_mean.copy_(0.2 * torch.randn(count, generator=generator))
                module.running_var.copy_(0.5 + torch.rand(count, generator=generator))
    return network


def stir_gates(gated: nn.Module, images: Tensor, dead: float = 0.0, seed: int = 0) -> None:
    """Make the gates depend on the images, so that winners differ; a share `dead` of channels never wins.

    Layer by layer as they run, so that the saliencies stay near 1 and the features do not explode.
    """
    generator = torch.Generator().manual_seed(seed)
    handles = []

    def stir(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, GatedConv2d)
        summary = summarise(inputs[0], layer.gate.summary)
        weight = torch.randn(layer.gate.weight.shape, generator=generator).to(summary)
        reach = (summary @ weight).abs().max().clamp(min=1e-12)
        layer.gate.weight.copy_(0.5 * weight / reach)
        layer.gate.bias.copy_(torch.ones_like(layer.gate.bias))
        layer.gate.bias[torch.rand(len(layer.shift), generator=generator) < dead] = -2.0
        layer.shift.copy_(torch.randn(layer.shift.shape, generator=generator).to(summary))

    for _, layer in gated_layers(gated):
        handles.append(layer.register_forward_pre_hook(stir))
    with torch.no_grad():
        gated(images)
    for handle in handles:
        handle.remove()


def _timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=10)

    return build


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=10)

    return build


# name → (how to build it, image size, convolutions gated, convolutions in all)
MODELS: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "zoo m_cifarnet": (zoo.m_cifarnet, 32, 8, 8),
    "zoo resnet18": (lambda: zoo.resnet18(10), 64, 20, 20),
    "zoo resnet34": (lambda: zoo.resnet34(10), 64, 36, 36),
    "zoo resnet50": (lambda: zoo.resnet50(10), 64, 53, 53),
    "zoo vgg16_bn": (lambda: zoo.vgg16_bn(10), 32, 13, 13),
    "timm resnet18": (_timm("resnet18"), 64, 20, 20),
    "timm resnet34": (_timm("resnet34"), 64, 36, 36),
    "timm resnet50": (_timm("resnet50"), 64, 53, 53),
    "timm resnext50_32x4d": (_timm("resnext50_32x4d"), 96, 53, 53),
    "timm wide_resnet50_2": (_timm("wide_resnet50_2"), 64, 53, 53),
    "timm vgg16_bn": (_timm("vgg16_bn"), 32, 13, 15),
    "timm densenet121": (_timm("densenet121"), 64, 59, 120),
    "timm mobilenetv2_100": (_timm("mobilenetv2_100"), 64, 35, 52),
    "timm mobilenetv3_large_100": (_timm("mobilenetv3_large_100"), 64, 31, 63),
    "timm efficientnet_b0": (_timm("efficientnet_b0"), 64, 33, 81),
    "timm regnetx_008": (_timm("regnetx_008"), 96, 53, 53),
    "timm convnext_tiny": (_timm("convnext_tiny"), 64, 0, 22),
    "timm inception_v3": (_timm("inception_v3"), 107, 94, 94),
    "torchvision resnet18": (_torchvision("resnet18"), 64, 20, 20),
    "torchvision vgg16_bn": (_torchvision("vgg16_bn"), 32, 13, 13),
}

# Those of timm and torchvision, by name.
OUTSIDE = tuple(name for name in MODELS if not name.startswith("zoo "))
