"""Types of the native module (kernels/run/binding.cpp, binding_engine.cpp); a test compares the two."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT: int
OP_FIELDS: int
VECTOR_SLACK: int
SCHEMA: Mapping[str, Any]
ALGORITHMS: tuple[str, ...]
CORE: str

class FileError(ValueError): ...

def isa_names() -> list[str]: ...
def fma_peak_gflops(isa: str, seconds: float = 0.2) -> float: ...
def processor_name(vendor: str, family: int, model: int) -> str: ...
def tuning(isa: str) -> dict[str, float]: ...
def load_path(path: str, isa: str, threads: int) -> Engine: ...
def load_bytes(image: bytes | NDArray[np.uint8], isa: str, threads: int) -> Engine: ...
def crc32(bytes: bytes, before: int) -> int: ...
def place_rooms(rooms: NDArray[np.int64], offsets: NDArray[np.int64]) -> int: ...

class Engine:
    """A compiled network. A run returns None, or which values were bad, and where."""

    def run(
        self,
        images: NDArray[np.float32],
        counts: NDArray[np.int32],
        results: NDArray[np.float32],
        /,
    ) -> Any: ...
    def run_tensor(self, x: object, counts: NDArray[np.int32], shape: Sequence[int], /) -> Any: ...
    def run_recorded(
        self,
        images: NDArray[np.float32],
        counts: NDArray[np.int32],
        results: NDArray[np.float32],
        macs: NDArray[np.int64],
        active: NDArray[np.int32],
        chosen: NDArray[np.uint8],
        saliencies: NDArray[np.float32],
        /,
    ) -> Any: ...
    def run_timed(
        self,
        images: NDArray[np.float32],
        counts: NDArray[np.int32],
        results: NDArray[np.float32],
        nanoseconds: NDArray[np.int64],
        algorithms: NDArray[np.int32],
        /,
    ) -> Any: ...
    def count_winners(self, densities: NDArray[np.float64], counts: NDArray[np.int32], /) -> None: ...
    def array(self, section: str, /) -> Any: ...
    def image(self) -> bytes: ...
    @property
    def section_names(self) -> list[str]: ...
    @property
    def input_shape(self) -> list[int]: ...
    @property
    def output_shape(self) -> list[int]: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def tensor_bytes(self) -> int: ...
    @property
    def knob_channels(self) -> list[int]: ...

class Trainer:
    """Layers of a training step; every map is (batch, height, width, channel)."""

    def __init__(self, isa: str, threads: int) -> None: ...
    def forward(
        self,
        x: NDArray[np.float32],
        weight: NDArray[np.float32],
        padding: int,
        y: NDArray[np.float32],
        /,
    ) -> None: ...
    def backward(
        self,
        x: NDArray[np.float32],
        weight: NDArray[np.float32],
        padding: int,
        gradient: NDArray[np.float32],
        to_x: NDArray[np.float32],
        to_weight: NDArray[np.float32],
        wants_x: bool,
        /,
    ) -> None: ...
    def norm_moments(
        self,
        z: NDArray[np.float32],
        pivot: NDArray[np.float32],
        sums: NDArray[np.float32],
        squares: NDArray[np.float32],
        /,
    ) -> None: ...
    def norm_apply(
        self,
        z: NDArray[np.float32],
        scale: NDArray[np.float32],
        offset: NDArray[np.float32],
        clamps: bool,
        out: NDArray[np.float32],
        sums: NDArray[np.float32],
        /,
    ) -> None: ...
    def norm_sums(
        self,
        z: NDArray[np.float32],
        gradient: NDArray[np.float32],
        scale: NDArray[np.float32],
        offset: NDArray[np.float32],
        of_sums: NDArray[np.float32],
        clamps: bool,
        total: NDArray[np.float32],
        product: NDArray[np.float32],
        /,
    ) -> None: ...
    def norm_gradient(
        self,
        z: NDArray[np.float32],
        gradient: NDArray[np.float32],
        scale: NDArray[np.float32],
        offset: NDArray[np.float32],
        of_sums: NDArray[np.float32],
        clamps: bool,
        slope: NDArray[np.float32],
        constant: NDArray[np.float32],
        to_z: NDArray[np.float32],
        /,
    ) -> None: ...
    def skip_forward(
        self,
        x: NDArray[np.float32],
        won_in: NDArray[np.uint8],
        weight: NDArray[np.float32],
        won_out: NDArray[np.uint8],
        stride: int,
        padding: int,
        z: NDArray[np.float32],
        means: NDArray[np.float32],
        squares: NDArray[np.float32],
        /,
    ) -> None: ...
    def skip_apply(
        self,
        z: NDArray[np.float32],
        won: NDArray[np.uint8],
        scale: NDArray[np.float32],
        offset: NDArray[np.float32],
        clamps: bool,
        out: NDArray[np.float32],
        sums: NDArray[np.float32],
        /,
    ) -> None: ...
    def skip_sums(
        self,
        z: NDArray[np.float32],
        gradient: NDArray[np.float32],
        won: NDArray[np.uint8],
        scale: NDArray[np.float32],
        offset: NDArray[np.float32],
        of_sums: NDArray[np.float32],
        clamps: bool,
        total: NDArray[np.float32],
        product: NDArray[np.float32],
        /,
    ) -> None: ...
    def skip_backward(
        self,
        x: NDArray[np.float32],
        won_in: NDArray[np.uint8],
        weight: NDArray[np.float32],
        won_out: NDArray[np.uint8],
        stride: int,
        padding: int,
        z: NDArray[np.float32],
        gradient: NDArray[np.float32],
        scale: NDArray[np.float32],
        offset: NDArray[np.float32],
        of_sums: NDArray[np.float32],
        clamps: bool,
        slope: NDArray[np.float32],
        constant: NDArray[np.float32],
        to_x: NDArray[np.float32],
        to_weight: NDArray[np.float32],
        wants_x: bool,
        /,
    ) -> None: ...
    def skip_pack(
        self,
        whole: NDArray[np.float32],
        won: NDArray[np.uint8],
        packed: NDArray[np.float32],
        /,
    ) -> None: ...
    def skip_unpack(
        self,
        packed: NDArray[np.float32],
        won: NDArray[np.uint8],
        whole: NDArray[np.float32],
        /,
    ) -> None: ...
