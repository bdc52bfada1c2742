"""CIFAR-10, image folders, the embedded sample; augmentation on batches; the way into a network."""

from penstock.datasets.arrays import ImageArrays, hold_out
from penstock.datasets.augment import Augment
from penstock.datasets.cifar import cifar10
from penstock.datasets.embedded import sample
from penstock.datasets.folder import ImageFolder, UnreadableImage, image_folder
from penstock.datasets.preprocess import Preprocess
from penstock.datasets.protocol import Batch, Images

__all__ = [
    "Augment",
    "Batch",
    "ImageArrays",
    "ImageFolder",
    "Images",
    "Preprocess",
    "UnreadableImage",
    "cifar10",
    "hold_out",
    "image_folder",
    "sample",
]
