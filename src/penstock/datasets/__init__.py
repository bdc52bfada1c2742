"""CIFAR-10, image folders, the embedded sample; augmentation on batches."""

from penstock.datasets.arrays import ImageArrays, hold_out
from penstock.datasets.cifar import cifar10

__all__ = ["ImageArrays", "cifar10", "hold_out"]
