"""CIFAR-10, Imagenette, image folders, the embedded sample; augmentation; the way into a network.

>>> import penstock as ps
>>> rest, some = ps.datasets.hold_out(ps.datasets.sample(), 100)
>>> len(rest), len(some), tuple(some.images.shape)
(900, 100, (100, 3, 32, 32))
"""

from penstock.datasets.arrays import ImageArrays, hold_out
from penstock.datasets.augment import Augment
from penstock.datasets.cifar import cifar10
from penstock.datasets.embedded import sample
from penstock.datasets.folder import ImageFolder, UnreadableImage, image_folder
from penstock.datasets.gathering import gather
from penstock.datasets.imagenette_parts import imagenette
from penstock.datasets.photographs import Photographs, keep_decoded
from penstock.datasets.preprocess import Preprocess, preprocess_of
from penstock.datasets.protocol import Batch, Images

__all__ = [
    "Augment",
    "Batch",
    "ImageArrays",
    "ImageFolder",
    "Images",
    "Photographs",
    "Preprocess",
    "UnreadableImage",
    "cifar10",
    "gather",
    "hold_out",
    "image_folder",
    "imagenette",
    "keep_decoded",
    "preprocess_of",
    "sample",
]
