"""The engine: a compiled network that computes only the channels each image needs.

    engine = penstock.compile(gated, example, threads=1)    # or, without PyTorch:
    engine = penstock_runtime.load("net.penstock", threads=2)
    logits = engine(images)                     # numpy in, numpy out; torch in, torch out
    logits = engine(images, density=0.3)        # another budget, nothing is rebuilt
    engine.classify("cat.jpg")                  # the likeliest classes of a photograph
    record = engine.record(images)              # MACs and winners, image by image, counted as it runs
    profile = engine.profile(images[:1])        # milliseconds per step

An engine is its file: `save` writes it, and pickles and copies carry its bytes. Several threads may call one
engine at the same time; the GIL is released while it runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_runtime.densities import Densities
from penstock_runtime.errors import CompileError, FileError, InputError
from penstock_runtime.file import Image, pack, write_atomically
from penstock_runtime.images import read_image
from penstock_runtime.info import Info
from penstock_runtime.inputs import bad_values, is_torch_tensor, to_images, torch_module
from penstock_runtime.native import chosen_isa, native
from penstock_runtime.preprocess import Preprocess
from penstock_runtime.profiling import Steps, layer_times, time_runs
from penstock_runtime.results import Classification, Profile, RunRecord, likeliest

_MOST_THREADS = 1024
_LAYER_FIELD = 5  # of an operation: kernels/run/program.h


def load(path: str | os.PathLike[str], threads: int = 1) -> Engine:
    """The network that `engine.save` or `penstock compile` wrote to `path`, run on `threads` threads.

    Its weights stay in the file, mapped: several processes share them.

    >>> import tempfile, torch, penstock as ps, penstock_runtime as pr
    >>> compiled = ps.compile(ps.zoo.pretrained("m_cifarnet-cifar10-any"), torch.zeros(1, 3, 32, 32))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     compiled.save(f"{folder}/net.penstock")
    ...     engine = pr.load(f"{folder}/net.penstock")
    >>> engine(np.zeros((2, 3, 32, 32), np.float32), density=0.5).shape
    (2, 10)
    """
    return Engine(path, threads)


def check_threads(threads: object) -> int:
    """`threads` as a whole number from 1 to 1024, or what was wrong with it."""
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= _MOST_THREADS:
        raise CompileError(f"threads: expected a whole number from 1 to {_MOST_THREADS}, got {threads!r}")
    return threads


class Engine:
    """Made by `penstock.compile` or `penstock_runtime.load`; call it on a batch of images.

    >>> import torch, penstock as ps
    >>> engine = ps.compile(ps.zoo.pretrained("m_cifarnet-cifar10-d50"), torch.zeros(1, 3, 32, 32))
    >>> images = engine.preprocess(ps.datasets.sample().images[:2])
    >>> record = engine.record(images)
    >>> record.outputs.shape, record.winners["conv0"].sum(axis=1).tolist()
    ((2, 10), [32, 32])
    >>> engine.macs(images, density=0.3).max() < engine.macs(images, density=0.5).max()
    np.True_
    >>> len(engine.profile(images[:1], repeats=2).layers) >= len(engine.layers)
    True
    """

    def __init__(
        self, file: str | os.PathLike[str] | bytes | Image, threads: int = 1, isa: str | None = None
    ) -> None:
        """file: a compiled network's path, or such a file's bytes. isa: None takes the widest there is."""
        self.threads = check_threads(threads)
        self.isa = chosen_isa() if isa is None else isa
        module = native()
        try:
            if isinstance(file, bytes | np.ndarray):
                self._native = module.load_bytes(file, self.isa, threads)
            else:
                self._native = module.load_path(os.fspath(file), self.isa, threads)
        except module.FileError as error:
            raise FileError(str(error)) from error
        find = self._native.array
        self.layers: tuple[str, ...] = tuple(find("names/layers"))  # convolutions and linear, as they run
        self.gated: tuple[str, ...] = tuple(find("names/gated"))
        self.input_shape: tuple[int, int, int] = tuple(self._native.input_shape)
        self.output_shape: tuple[int, ...] = tuple(self._native.output_shape)
        self.info = Info.read(find)
        self.precision = self.info.precision
        found = find("precision/float32") or []
        # Of an int8 engine: steps that work in float32, and why.
        self.float_steps: dict[str, str] = dict(zip(found[::2], found[1::2], strict=True))
        self.preprocess: Any = self.info.preprocess  # uint8 images → what the network takes
        self.densities: dict[str, float] = dict(
            zip(self.gated, find("gates/densities").tolist(), strict=True)
        )
        self._budgets = Densities(self._native, self.gated, self.densities)
        layer_of = find("program/ops")[:, _LAYER_FIELD].tolist()
        self._steps = Steps(find("names/operations"), find("names/kinds"), layer_of)
        self._channels: list[int] = self._native.knob_channels
        self._values = int(np.prod(self.output_shape))

    def to_bytes(self, info: Info | None = None) -> bytes:
        """The bytes of a file that holds this network; `info` replaces what it says about itself."""
        return bytes(self._native.image() if info is None else self._packed(info).tobytes())

    def _packed(self, info: Info) -> Image:
        find = self._native.array
        kept = {name: find(name) for name in self._native.section_names if not _about(name)}
        weights = kept.pop("program/weights")
        return pack({**kept, **info.sections(), "program/weights": weights})

    def save(self, path: str | os.PathLike[str], info: Info | None = None) -> None:
        """Write the network as one file, atomically.

        info: what the file says besides the program; change some of it with
        ``dataclasses.replace(engine.info, classes=…)``.
        """
        if self.preprocess is not None and not isinstance(self.preprocess, Preprocess):
            raise FileError(
                f"{path}: engine.preprocess is a {type(self.preprocess).__name__}, and a file holds no code; "
                "express it as penstock_runtime.Preprocess(mean, std), or set it to None"
            )
        said = self.info if info is None else info
        if info is None or info.preprocess is None:
            said = replace(said, preprocess=self.preprocess)
        image = self._packed(said)
        Engine(image, isa=self.isa)  # a file that cannot be read is not written
        write_atomically(Path(path), lambda stream: stream.write(image.data))

    def __reduce__(self) -> tuple[Any, ...]:
        own = None if self.preprocess is self.info.preprocess else self.preprocess
        return _restored, (self.to_bytes(), self.threads, own)

    def explain(self) -> str:
        """Which steps work in which precision, and why those that do not work in int8 do not."""
        if self.precision == "float32":
            return "every step works in float32"
        lines = [f"  {name}: float32, {why}" for name, why in self.float_steps.items()]
        return "\n".join(["every step works in int8" + (", except" if lines else ""), *lines])

    @property
    def arena_bytes(self) -> int:
        """Memory for one image at a time: all feature maps, and the scratch of the convolutions."""
        return int(self._native.arena_bytes)

    def __call__(self, x: Any, density: float | Mapping[str, float] | None = None) -> Any:
        """x: (batch, channel, height, width), torch or numpy → (batch, …), the same kind.

        density: a run-time budget for this call, one number or {gated layer or pattern: number}; layers
        that are not named keep the density they were compiled with.
        """
        counts = self._budgets.counts_for(density)
        torch = torch_module()
        if torch is not None and type(x) is torch.Tensor and not x.is_neg():
            # In place, if it can be: by way of numpy and back a small network would take a tenth longer.
            made = self._native.run_tensor(x, counts, self.output_shape)
            if made is not None:
                return made
        images = to_images(x, self.input_shape)
        results = np.empty((images.shape[0], self._values), np.float32)
        fault = self._native.run(images, counts, results)
        if fault is not None:
            raise bad_values(fault, images, self._steps.names)
        if len(self.output_shape) != 1:
            results = results.reshape(-1, *self.output_shape)
        return torch.from_numpy(results) if torch is not None and is_torch_tensor(x) else results

    def classify(
        self,
        image: str | os.PathLike[str] | bytes,
        density: float | Mapping[str, float] | None = None,
        top: int = 5,
    ) -> Classification:
        """image: a photograph's path, or its file's bytes → its `top` likeliest classes. Needs Pillow.

        >>> import io, PIL.Image, torch, penstock as ps
        >>> engine = ps.compile(ps.zoo.pretrained("m_cifarnet-cifar10-dense"), torch.zeros(1, 3, 32, 32))
        >>> file, sample = io.BytesIO(), ps.datasets.sample()
        >>> PIL.Image.fromarray(sample.images[0].permute(1, 2, 0).numpy()).save(file, "png")
        >>> engine.classify(file.getvalue()).guesses[0].index == sample.labels[0].item()
        True
        """
        if len(self.output_shape) != 1:
            raise InputError(
                f"the network gives {self.output_shape} values an image, which are no class scores"
            )
        if self.preprocess is None:
            raise InputError(
                "the network does not say how images are prepared; set "
                "engine.preprocess = penstock_runtime.Preprocess(mean, std)"
            )
        pixels = read_image(image, self.input_shape, getattr(self.preprocess, "resize", None))
        prepared = self.preprocess(pixels)
        start = time.perf_counter()
        scores = self(prepared, density)[0]
        milliseconds = (time.perf_counter() - start) * 1e3
        return Classification(likeliest(scores, self.info.classes, top), milliseconds)

    def record(self, x: Any, density: float | Mapping[str, float] | None = None) -> RunRecord:
        """Run and count: what each image cost in each layer, and which channels were computed."""
        images = to_images(x, self.input_shape)
        count, layers, width = images.shape[0], len(self.layers), sum(self._channels)
        results = np.empty((count, self._values), np.float32)
        macs = np.zeros((count, layers), np.int64)
        active = np.zeros((count, layers, 2), np.int32)
        chosen = np.zeros((count, width), np.uint8)
        saliencies = np.zeros((count, width), np.float32)
        counts = self._budgets.counts_for(density)
        fault = self._native.run_recorded(images, counts, results, macs, active, chosen, saliencies)
        if fault is not None:
            raise bad_values(fault, images, self._steps.names)
        ends = np.cumsum(self._channels)[:-1]
        return RunRecord(
            outputs=results.reshape(count, *self.output_shape),
            layers=self.layers,
            macs=macs,
            active_in=active[:, :, 0],
            active_out=active[:, :, 1],
            winners=dict(zip(self.gated, np.split(chosen.astype(bool), ends, axis=1), strict=True))
            if self.gated
            else {},
            saliencies=dict(zip(self.gated, np.split(saliencies, ends, axis=1), strict=True))
            if self.gated
            else {},
        )

    def macs(self, x: Any, density: float | Mapping[str, float] | None = None) -> npt.NDArray[np.int64]:
        """(batch,): multiply-accumulates that each image costs."""
        return self.record(x, density).macs.sum(axis=1)

    def profile(
        self, x: Any, density: float | Mapping[str, float] | None = None, repeats: int = 20
    ) -> Profile:
        """Times of every step for one image, the least and the median of `repeats` runs."""
        if repeats < 1:
            raise InputError(f"repeats: expected 1 or more, got {repeats}")
        images = to_images(x, self.input_shape)
        if images.shape[0] != 1:
            raise InputError(f"a profile is of one image, got {images.shape[0]}; give x[:1]")
        record = self.record(images, density)
        counts = self._budgets.counts_for(density)
        sizes = len(self._steps.names), len(self.layers)
        times = time_runs(self._native, images, counts, self._values, sizes, repeats)
        return Profile(
            layers=layer_times(self._steps, times, record),
            milliseconds=float(times.whole.min() * 1e3),
            median_milliseconds=float(np.median(times.whole) * 1e3),
            macs=int(record.macs.sum()),
            repeats=repeats,
            threads=self.threads,
            isa=self.isa,
        )

    def __repr__(self) -> str:
        return (
            f"Engine({len(self.layers)} layers, {len(self.gated)} gated, input {self.input_shape}, "
            f"threads={self.threads}, isa={self.isa!r})"
        )


def _about(section: str) -> bool:
    """Whether a section belongs to `Info`."""
    return (
        section == "classes"
        or section.partition("/")[0] in ("about", "preprocess", "measured")
        or (section == "gates/levels")
    )


def _restored(image: bytes, threads: int, preprocess: Any) -> Engine:
    engine = Engine(image, threads)
    if preprocess is not None:
        engine.preprocess = preprocess
    return engine
