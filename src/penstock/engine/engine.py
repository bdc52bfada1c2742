"""The engine: a compiled network that computes only the channels each image needs.

    engine = penstock.compile(gated, example, threads=1)
    logits = engine(images)                     # torch in, torch out; numpy in, numpy out
    logits = engine(images, density=0.3)        # another budget, nothing is rebuilt
    record = engine.record(images)              # MACs and winners, image by image, counted as it runs
    profile = engine.profile(images[:1])        # milliseconds per step

Several threads may call one engine at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.engine.encode import FORMAT, Program
from penstock.engine.inputs import to_images
from penstock.engine.native import native
from penstock.engine.results import LayerTime, Profile, RunRecord
from penstock.errors import CompileError, InputError, LayerError
from penstock.gating import check_density, winner_count

Counts = npt.NDArray[np.int32]


class Engine:
    """Made by `penstock.compile`; call it on a batch of images."""

    def __init__(
        self, program: Program, densities: Mapping[str, float], threads: int, isa: str, preprocess: Any = None
    ) -> None:
        module = native()
        try:
            self._native = module.Engine(
                FORMAT,
                program.tensors,
                program.ops,
                program.scalars,
                program.args,
                program.weights,
                len(program.layers),
                len(program.gated),
                isa,
                threads,
            )
        except module.ProgramError as error:
            raise CompileError(str(error)) from error
        self.threads = threads
        self.isa = isa
        self.layers = program.layers  # convolutions and linear layers, in the order they run
        self.gated = program.gated
        self.preprocess = preprocess
        self.densities = dict(densities)
        _, *size = program.tensors[0, :4].tolist()
        self.input_shape: tuple[int, int, int] = (size[0], size[1], size[2])
        self.output_shape = program.result_shape
        self._names = program.op_names
        self._kinds = program.op_kinds
        self._op_layers = program.op_layers
        self._channels: list[int] = self._native.knob_channels
        self._values = int(np.prod(self.output_shape))
        self._counts = self._winner_counts(self.densities)
        self._chosen: dict[float, Counts] = {}  # counts of uniform densities that were asked for

    @property
    def arena_bytes(self) -> int:
        """Memory for one image at a time: all feature maps, and the scratch of the convolutions."""
        return int(self._native.arena_bytes)

    @property
    def scratch(self) -> list[int]:
        """Floats that each step needs while it runs, besides the feature maps."""
        return list(self._native.op_scratch)

    def __call__(self, x: Any, density: float | Mapping[str, float] | None = None) -> Any:
        """x: (batch, channel, height, width), torch or numpy → (batch, …), the same kind.

        density: a run-time budget for this call, one number or {gated layer or pattern: number}; layers
        that are not named keep the density they were compiled with.
        """
        counts = self._counts if density is None else self._counts_for(density)
        if type(x) is Tensor and not x.is_neg():
            # In place, if it can be: by way of numpy and back a small network would take a tenth longer.
            made = self._native.run_tensor(x, counts, self.output_shape)
            if made is not None:
                return made
        images = to_images(x, self.input_shape)
        results = np.empty((images.shape[0], self._values), np.float32)
        bad = self._native.run(images, counts, results)
        if bad >= 0:
            self._check(bad)
        if len(self.output_shape) != 1:
            results = results.reshape(-1, *self.output_shape)
        return torch.from_numpy(results) if isinstance(x, Tensor) else results

    def record(self, x: Any, density: float | Mapping[str, float] | None = None) -> RunRecord:
        """Run and count: what each image cost in each layer, and which channels were computed."""
        images = to_images(x, self.input_shape)
        count, layers, width = images.shape[0], len(self.layers), sum(self._channels)
        results = np.empty((count, self._values), np.float32)
        macs = np.zeros((count, layers), np.int64)
        active = np.zeros((count, layers, 2), np.int32)
        chosen = np.zeros((count, width), np.uint8)
        saliencies = np.zeros((count, width), np.float32)
        counts = self._counts_for(density)
        self._check(self._native.run_recorded(images, counts, results, macs, active, chosen, saliencies))
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
        counts = self._counts_for(density)
        times = np.zeros((repeats, len(self._names)), np.int64)
        whole = np.zeros(repeats)
        algorithms = np.zeros(len(self.layers), np.int32)
        results = np.empty((1, self._values), np.float32)
        for run in range(repeats):
            self._native.run_timed(images, counts, results, times[run], algorithms)
            start = time.perf_counter()
            self._native.run(images, counts, results)
            whole[run] = time.perf_counter() - start
        return Profile(
            layers=tuple(
                self._step_time(op, times[:, op] * 1e-6, record, algorithms) for op in range(len(self._names))
            ),
            milliseconds=float(whole.min() * 1e3),
            median_milliseconds=float(np.median(whole) * 1e3),
            macs=int(record.macs.sum()),
            repeats=repeats,
            threads=self.threads,
            isa=self.isa,
        )

    def _step_time(
        self, op: int, milliseconds: npt.NDArray[np.floating[Any]], record: RunRecord, algorithms: Counts
    ) -> LayerTime:
        least = float(milliseconds.min())
        layer = self._op_layers[op]
        basic = LayerTime(self._names[op], self._kinds[op].lower(), least, float(np.median(milliseconds)))
        if layer < 0:
            return basic
        macs = int(record.macs[0, layer])
        return LayerTime(
            basic.name,
            basic.kind,
            basic.milliseconds,
            basic.median_milliseconds,
            macs=macs,
            active_in=int(record.active_in[0, layer]),
            active_out=int(record.active_out[0, layer]),
            gflops=2e-6 * macs / least if least > 0 else None,
            algorithm=native().ALGORITHMS[algorithms[layer]] if self._kinds[op] == "Conv" else None,
        )

    def _check(self, bad: int) -> None:
        if bad >= 0:
            raise InputError(
                f"image {bad} of the batch holds NaN or infinity; the engine takes finite pixels only"
            )

    def _counts_for(self, density: float | Mapping[str, float] | None) -> Counts:
        if density is None:
            return self._counts
        known = self._chosen.get(density) if type(density) is float else None
        if known is not None:
            return known
        if isinstance(density, Mapping):
            return self._winner_counts(self._by_layer(density))
        value = check_density(density)
        if value not in self._chosen:
            if len(self._chosen) > 1000:
                self._chosen.clear()
            self._chosen[value] = self._winner_counts(dict.fromkeys(self.gated, value))
        return self._chosen[value]

    def _by_layer(self, density: Mapping[str, float]) -> dict[str, float]:
        chosen = dict(self.densities)
        for pattern, given in density.items():
            value = check_density(given, where=f"density of layer {pattern!r}")
            hits = [name for name in self.gated if name == pattern or fnmatchcase(name, pattern)]
            if not hits:
                raise LayerError(
                    f"no gated layer is named {pattern!r}; there are: {', '.join(self.gated) or 'none'}"
                )
            chosen.update(dict.fromkeys(hits, value))
        return chosen

    def _winner_counts(self, densities: Mapping[str, float]) -> Counts:
        counts = [
            winner_count(densities[name], c) for name, c in zip(self.gated, self._channels, strict=True)
        ]
        return np.array(counts, np.int32)

    def __repr__(self) -> str:
        return (
            f"Engine({len(self.layers)} layers, {len(self.gated)} gated, input {self.input_shape}, "
            f"threads={self.threads}, isa={self.isa!r})"
        )
