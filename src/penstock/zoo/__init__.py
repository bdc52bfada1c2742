"""Plain definitions of the networks of the paper and their relatives, and their shipped checkpoints.

>>> import torch, penstock as ps
>>> ps.zoo.m_cifarnet()(torch.zeros(2, 3, 32, 32)).shape
torch.Size([2, 10])
>>> "m_cifarnet-cifar10-d50" in ps.zoo.available()
True
"""

from penstock.zoo.m_cifarnet import MCifarNet, m_cifarnet
from penstock.zoo.pretrained import available, pretrained
from penstock.zoo.resnet import ResNet, resnet18, resnet34, resnet50
from penstock.zoo.vgg import VGG, vgg16_bn

__all__ = [
    "VGG",
    "MCifarNet",
    "ResNet",
    "available",
    "m_cifarnet",
    "pretrained",
    "resnet18",
    "resnet34",
    "resnet50",
    "vgg16_bn",
]
