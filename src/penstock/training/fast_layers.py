"""The native layers of training on a CPU: one object, given to a network's layers for the time of a forward.

    fast = FastLayers(network)
    with fast:
        loss = criterion(network(images), labels)
    loss.backward()

Gated layers compute through it; torch's own convolutions and batch norms (and a ReLU that has been done
already) are taken over where it fits. What it learns of a map in passing, the sums that the next gate needs,
it keeps for itself until the ``with`` ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from penstock.gating import GatedConv2d, LevelNorm2d
from penstock.surgery.operators import use_of_module
from penstock.surgery.operators.activations import RELU
from penstock.surgery.operators.layers import CONV
from penstock.surgery.operators.moving import IDENTITY
from penstock.surgery.operators.table import row_of_function
from penstock.training.batch_norm import batch_norm
from penstock.training.fused import FusedLayers, count_batch, fits, is_tracked
from penstock.training.norm_gate import native_norm_gate
from penstock.training.readers import layers_before_gated_ones, layers_before_relu
from penstock.training.skipping import PackedMap, can_skip, pays, skipping_conv
from penstock.training.winner_norm import takes_winners
from penstock.training.winograd import conv2d


@dataclass(frozen=True)
class _Known:
    """A map that a gate has read or a gated layer made: Σ |x| over each channel, and whether a ReLU would
    change nothing."""

    map: Tensor
    version: int
    sums: Tensor
    clamped: bool


class FastLayers(FusedLayers):
    """Convolutions, and the norms and gates of gated layers, in native code wherever it fits."""

    def __init__(self, network: nn.Module, statistics: str = "all", cap: float = 0.0) -> None:
        super().__init__(network, statistics, cap)
        self._before_relu = layers_before_relu(network)
        self._before_gated = layers_before_gated_ones(network)
        self._known: dict[int, _Known] = {}
        self._functions = _Functions(self)

    def __enter__(self) -> Self:
        self._functions.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._functions.__exit__(*raised)
        self._known.clear()

    def absolute_sum(self, x: Tensor) -> Tensor:
        known = self._knowledge(x)
        if known is not None:
            return known.sums
        sums = super().absolute_sum(x)
        self._remember(x, sums, clamps=False)  # a residual block reads its input twice
        return sums

    def summarise(self, x: Tensor | PackedMap, summary: str) -> Tensor:
        if not isinstance(x, PackedMap):
            return super().summarise(x, summary)
        if summary != "l1" or x.sums is None:
            return super().summarise(x.whole, summary)
        return x.sums / (x.shape[2] * x.shape[3])

    def features(
        self, layer: GatedConv2d, x: Tensor | PackedMap, gains: Tensor, level: Tensor | None
    ) -> Tensor:
        if not (self.over_winners and _computes_winners_only(layer, x, gains, level)):
            return super().features(layer, x.whole if isinstance(x, PackedMap) else x, gains, level)
        norm = layer.norm
        assert isinstance(layer.conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d | LevelNorm2d)
        count_batch(norm)
        own, clamps = self._clamps(layer)
        with torch._C.DisableTorchFunction():  # none of it is a function that _Functions looks for
            packed = skipping_conv(x, layer.conv, layer.shift, gains, norm, clamps, level)
        if not own and not _is_identity(layer.activation):
            return self.noted(layer, layer.activation(packed.whole))
        if layer in self._before_gated and not layer._forward_hooks:
            return self.noted(layer, packed)  # type: ignore[arg-type]  # gated layers get it, and hand it to us
        return self.noted(layer, self._remember(packed.whole, packed.sums, clamps))

    def _remember(self, out: Tensor, sums: Tensor | None, clamps: bool) -> Tensor:
        if sums is not None:
            self._known[id(out)] = _Known(out, out._version, sums, clamps)
        return out

    def _clamps(self, layer: GatedConv2d) -> tuple[bool, bool]:
        """Whether the layer's own activation is a ReLU that can be done with the norm; and whether any is."""
        activation = use_of_module(layer.activation).operator
        own = activation is RELU and not layer.activation._forward_hooks
        return own, own or (layer in self._before_relu and activation is IDENTITY)

    def boost(self, layer: GatedConv2d, z: Tensor, gains: Tensor, level: Tensor | None) -> Tensor:
        norm = layer.norm
        usable = z.dtype == torch.float32 and layer.training and _fits_norm(norm, level)
        if not usable or not fits(z, gains, norm):
            return super().boost(layer, z, gains, level)
        assert isinstance(norm, nn.BatchNorm2d | LevelNorm2d)
        count_batch(norm)
        own, clamps = self._clamps(layer)
        over_winners = self.over_winners and takes_winners(layer)
        out, sums = native_norm_gate(z, layer.shift, gains, norm, clamps, level, over_winners)
        if not own and not _is_identity(layer.activation):
            return layer.activation(out)
        return self._remember(out, sums, clamps)

    def is_clamped(self, x: Tensor) -> bool:
        """Whether `x` is known to be a ReLU's result already."""
        known = self._knowledge(x)
        return known is not None and known.clamped

    def _knowledge(self, x: Tensor) -> _Known | None:
        """What is known of `x`, unless somebody has written into it since."""
        known = self._known.get(id(x))
        return known if known is not None and known.version == x._version else None


class _Functions(TorchFunctionMode):
    """torch's own convolutions, batch norms and ReLUs while the layers run."""

    def __init__(self, layers: FastLayers) -> None:
        super().__init__()
        self.layers = layers

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        row = row_of_function(func)
        if row is CONV:
            return conv2d(*args, **kwargs)
        if func is F.batch_norm:
            return batch_norm(*args, **kwargs)
        if row is RELU and args and isinstance(args[0], PackedMap):
            return args[0] if args[0].clamped else func(args[0].whole, *args[1:], **kwargs)
        if row is RELU and args and type(args[0]) is Tensor and self.layers.is_clamped(args[0]):
            return args[0]
        return func(*args, **kwargs)


def _is_identity(module: nn.Module) -> bool:
    return use_of_module(module).operator is IDENTITY


def _computes_winners_only(
    layer: GatedConv2d, x: Tensor | PackedMap, gains: Tensor, level: Tensor | None
) -> bool:
    """Whether the kernels that skip losers fit the layer (its convolution, its norm, its call) and pay."""
    values = x.values if isinstance(x, PackedMap) else x
    return (
        type(values) is Tensor
        and values.dtype == torch.float32
        and layer.training
        and _fits_norm(layer.norm, level)
        and fits(values, gains, layer.norm)
        and can_skip(layer.conv, x)
        and pays(layer.conv, x, gains)
        and not torch.is_autocast_enabled("cpu")
    )


def _fits_norm(norm: nn.Module, level: Tensor | None) -> bool:
    if type(norm) is LevelNorm2d:
        # The images of a level must lie side by side.
        return level is not None and (level.dim() == 0 or bool((level[1:] >= level[:-1]).all()))
    return is_tracked(norm) and level is None
