"""ResNet-18, -34 and -50 (He et al., 2015), with torchvision's structure and state-dict names.

Weights trained for torchvision's models of the same name load with ``load_state_dict``. ResNet-50 has its
stride in the 3×3 convolution, as torchvision's. MACs for one 224×224 image: 1.81G, 3.66G and 4.09G.
"""

from __future__ import annotations

from torch import Tensor, nn

from penstock.zoo.definition import remembered


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1×1 down, 3×3, 1×1 up to four times the width, around a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(channels: int, width: int, stride: int) -> nn.Sequential | None:
    """A 1×1 convolution where the shape changes, nothing where it does not."""
    if stride == 1 and channels == width:
        return None
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))


def stage(
    block: type[BasicBlock] | type[Bottleneck], depth: int, channels: int, width: int, stride: int
) -> nn.Sequential:
    """`depth` blocks, the first of which takes the stride and the change of width."""
    first = block(channels, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(depth - 1)))


class ResNet(nn.Module):
    """x: (batch, 3, height, width) → (batch, classes)."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, int, int, int], classes: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = stage(block, depths[0], 64, 64, stride=1)
        self.layer2 = stage(block, depths[1], 64 * block.expansion, 128, stride=2)
        self.layer3 = stage(block, depths[2], 128 * block.expansion, 256, stride=2)
        self.layer4 = stage(block, depths[3], 256 * block.expansion, 512, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


@remembered
def resnet18(classes: int = 1000) -> ResNet:
    """ResNet-18: eight basic blocks.

    >>> import torch
    >>> with torch.device("meta"):  # shapes only
    ...     resnet18(classes=10)(torch.zeros(2, 3, 224, 224)).shape
    torch.Size([2, 10])
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), classes)


@remembered
def resnet34(classes: int = 1000) -> ResNet:
    """ResNet-34: sixteen basic blocks.

    >>> import torch
    >>> with torch.device("meta"):  # shapes only
    ...     len(resnet34().layer3)
    6
    """
    return ResNet(BasicBlock, (3, 4, 6, 3), classes)


@remembered
def resnet50(classes: int = 1000) -> ResNet:
    """ResNet-50: sixteen bottleneck blocks.

    >>> import torch
    >>> with torch.device("meta"):  # shapes only
    ...     resnet50().fc.in_features
    2048
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)
