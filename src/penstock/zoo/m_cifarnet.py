"""M-CifarNet, the paper's CIFAR-10 network (its appendix, table of layer shapes).

Eight 3×3 convolutions without bias, each with batch norm and ReLU; 174,301,824 MACs for a 32×32 image and
1,293,898 weights without the norms.
"""

from __future__ import annotations

from torch import Tensor, nn

from penstock.zoo.definition import remembered

# (output channels, stride, padding)
_LAYERS = (
    (64, 1, 0),  # 32 → 30
    (64, 1, 1),
    (128, 2, 1),  # 30 → 15
    (128, 1, 1),
    (128, 1, 1),
    (192, 2, 1),  # 15 → 8
    (192, 1, 1),
    (192, 1, 1),
)
_DROPOUT_AFTER = (3, 6)  # where the authors' own code has it


class MCifarNet(nn.Module):
    """x: (batch, 3, height, width) → (batch, classes)."""

    def __init__(self, classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        channels = 3
        for index, (width, stride, padding) in enumerate(_LAYERS):
            self.add_module(f"conv{index}", nn.Conv2d(channels, width, 3, stride, padding, bias=False))
            self.add_module(f"norm{index}", nn.BatchNorm2d(width))
            self.add_module(f"act{index}", nn.ReLU(inplace=True))
            if dropout > 0 and index in _DROPOUT_AFTER:
                self.add_module(f"drop{index}", nn.Dropout(dropout))
            channels = width
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            x = module(x)
        return x


@remembered
def m_cifarnet(classes: int = 10, dropout: float = 0.0) -> MCifarNet:
    """The paper's CIFAR-10 network; `dropout` 0.5 is what the authors' code trains with.

    >>> import torch
    >>> m_cifarnet()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return MCifarNet(classes, dropout)
