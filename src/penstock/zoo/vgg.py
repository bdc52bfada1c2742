"""VGG-16 with batch norm (Simonyan & Zisserman, 2014), with torchvision's structure and state-dict names.

Weights trained for torchvision's vgg16_bn load with ``load_state_dict``. 15.47G MACs for one 224×224 image,
its three dense layers included.
"""

from __future__ import annotations

from torch import Tensor, nn

from penstock.zoo.definition import remembered

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # (channels, convolutions before the pooling)


class VGG(nn.Module):
    """x: (batch, 3, height, width) → (batch, classes)."""

    def __init__(self, classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, depth in _STAGES:
            for _ in range(depth):
                layers += [
                    nn.Conv2d(channels, width, 3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
            layers.append(nn.MaxPool2d(2, stride=2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


@remembered
def vgg16_bn(classes: int = 1000, dropout: float = 0.5) -> VGG:
    """VGG-16 with batch norm: thirteen 3×3 convolutions and three dense layers.

    >>> import torch
    >>> with torch.device("meta"):  # shapes only
    ...     vgg16_bn(classes=10)(torch.zeros(2, 3, 224, 224)).shape
    torch.Size([2, 10])
    """
    return VGG(classes, dropout)
