"""CIFAR-10, image folders, the embedded sample; augmentation on batches; the way into a network."""

from penstock.datasets.arrays import ImageArrays, hold_out
from penstock.datasets.cifar import cifar10
from penstock.datasets.embedded import sample
from penstock.datasets.preprocess import Preprocess

__all__ = ["ImageArrays", "Preprocess", "cifar10", "hold_out", "sample"]
