"""The accounting: a network and images in, an `Account` out.

    executed   for every image, from the masks that really occurred:
               conv     Σ over computed outputs of (active inputs of its group) · k² · H·W
               gate     active inputs · C_out (predictor) + computed outputs · H·W (boosting)
               linear   active inputs · outputs
               a skipped input that is a constant behind a depthwise convolution: 1 · computed outputs, and
               the predictor reads it too
    paper      k²·⌈d·C_in⌉·⌈d·C_out⌉·H·W + C_in·C_out (predictor) + C_out·H·W (boosting)

A gated layer's output counts as computed where π ≠ 0: a winner whose saliency is 0 is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn

from penstock.accounting.account import Account, LayerAccount
from penstock.accounting.activity import expected_count, paper_count
from penstock.accounting.others import other_macs, reads_pooled_channels
from penstock.errors import InputError
from penstock.gating import GatedConv2d, gated_layers
from penstock.surgery import (
    Channels,
    Dense,
    Gate,
    Union,
    WeightLayer,
    active_mask,
    gates_of,
    trace,
    weight_layers,
)

CONVENTIONS = ("executed", "paper")
_CHUNK = 64  # images run at once


def account(
    network: nn.Module, images: Tensor, convention: str = "executed", original: nn.Module | None = None
) -> Account:
    """What `network` costs on `images`, by one of two conventions; gated or dense networks alike.

    images: (n, channel, height, width), as the network takes them; by the paper's convention only their shape
    matters. original: the network that `saving` compares with (default: this one without its gates), for
    networks that have lost channels for good.

    >>> import torch, penstock as ps
    >>> gated = ps.add_gates(ps.zoo.m_cifarnet(), torch.zeros(1, 3, 32, 32), density=0.5)
    >>> paper = ps.account(gated, torch.zeros(1, 3, 32, 32), convention="paper")
    >>> paper.dense_macs, round(paper.saving, 2)
    (174301824, 3.93)
    """
    if convention not in CONVENTIONS:
        raise InputError(f"convention: expected one of {', '.join(CONVENTIONS)}, got {convention!r}")
    traced = _trace(network, images)
    layers = weight_layers(traced)
    with torch.no_grad():
        others = other_macs(traced, layers, images[:1])
    if convention == "paper":
        rows = _paper_rows(layers, dict(gated_layers(traced)), len(images))
    else:
        rows = _executed_rows(layers, _masks(traced, images), len(images))
    rows += [_other_row(name, macs, len(images)) for name, macs in others.items()]
    dense = sum(row.dense_macs for row in rows)
    if original is not None:
        dense = account(original, images[:1], "paper").dense_macs
    return Account(convention, tuple(rows), len(images), dense)


def _trace(network: nn.Module, images: Tensor) -> fx.GraphModule:
    if isinstance(images, Tensor) and images.ndim == 4 and not images.is_floating_point():
        raise InputError(
            f"images: expected the network's float input (n, channel, height, width), got {images.dtype}; "
            "turn raw images into it first, for instance with network.preprocess(images)"
        )
    try:
        return trace(network, images).eval()
    except InputError as error:
        raise InputError(str(error).replace("example:", "images:", 1)) from error


def _masks(traced: fx.GraphModule, images: Tensor) -> dict[str, Tensor]:
    """{gated layer: bool (images, C)}: which outputs were computed for which image."""
    layers = dict(gated_layers(traced))
    kept: dict[str, list[Tensor]] = {name: [] for name in layers}
    if not layers:
        return {}
    with torch.no_grad():
        for chunk in images.split(_CHUNK):
            traced(chunk)
            for name, layer in layers.items():
                assert layer.gains is not None
                kept[name].append((layer.gains != 0).cpu())
    return {name: torch.cat(parts) for name, parts in kept.items()}


def _executed_rows(layers: list[WeightLayer], masks: Mapping[str, Tensor], images: int) -> list[LayerAccount]:
    rows = []
    for layer in layers:
        size = layer.product
        active_in = active_mask(layer.input, masks, images)
        active_out = active_mask(layer.output, masks, images)
        inputs, outputs = active_in.sum(dim=1), active_out.sum(dim=1)
        by_group = active_in.view(images, size.groups, -1).sum(2) * active_out.view(
            images, size.groups, -1
        ).sum(2)
        pairs = by_group.sum(dim=1)
        constants = size.inputs - inputs if layer.constants else torch.zeros_like(inputs)
        gate = torch.zeros_like(inputs)
        if layer.gated:
            gate = (inputs + constants) * size.outputs + outputs * size.output_map
        macs = pairs * size.taps * size.positions + constants * outputs + gate
        rows.append(
            _row(
                layer,
                macs=macs,
                gate_macs=_mean(gate),
                pairs=_mean(pairs + constants * outputs),
                summaries=_mean(inputs + constants),
                active_in=_mean(inputs),
                active_out=_mean(outputs),
            )
        )
    return rows


def _paper_rows(
    layers: list[WeightLayer], gates: Mapping[str, GatedConv2d], images: int
) -> list[LayerAccount]:
    densities = {name: gate.density for name, gate in gates.items()}
    # A value that a skip connection carries past a layer counts as dense; where that value is one layer's
    # output (a ResNet's stem), so does the layer.
    summed = {
        gate.layer for layer in layers if isinstance(layer.input, Union) for gate in gates_of(layer.input)
    }
    carried = {layer.input.layer for layer in layers if isinstance(layer.input, Gate)} & summed
    counted = {name: 1.0 if name in carried else density for name, density in densities.items()}
    rows = []
    for layer in layers:
        size = layer.product
        entering, leaving = _paper_channels(layer)
        inputs, outputs = paper_count(entering, counted), paper_count(leaving, counted)
        gate = size.inputs * size.outputs + size.outputs * size.output_map if layer.gated else 0
        macs = size.taps * size.positions * inputs * outputs // size.groups + gate
        active_in = expected_count(entering, densities)
        active_out = expected_count(leaving, densities)
        rows.append(
            _row(
                layer,
                macs=torch.full((images,), macs, dtype=torch.int64),
                gate_macs=gate,
                pairs=active_in * active_out / size.groups,
                summaries=active_in,
                active_in=active_in,
                active_out=active_out,
            )
        )
    return rows


def _paper_channels(layer: WeightLayer) -> tuple[Channels, Channels]:
    """The paper knows zeros only: constants behind a depthwise convolution count as computed channels."""
    entering = Dense(layer.input.count) if layer.constants else layer.input
    return entering, layer.output if layer.gated else Dense(layer.output.count)


def _row(
    layer: WeightLayer,
    *,
    macs: Tensor,
    gate_macs: float,
    pairs: float,  # of channels whose weights are read
    summaries: float,  # that a predictor reads
    active_in: float,
    active_out: float,
) -> LayerAccount:
    linear = isinstance(layer.weights, nn.Linear)
    size, element = layer.product, layer.weights.weight.element_size()
    return LayerAccount(
        name=layer.name,
        kind="gated conv" if layer.gated else "linear" if linear else "conv",
        macs=_mean(macs),
        gate_macs=gate_macs,
        dense_macs=size.dense_macs,
        weight_bytes=element * size.taps * pairs,
        dense_weight_bytes=element * size.taps * size.pairs,
        gate_bytes=element * (summaries + 1) * size.outputs if layer.gated else 0.0,
        activation_bytes=element * (active_in * size.input_map + active_out * size.output_map),
        in_channels=size.inputs,
        out_channels=size.outputs,
        active_in=active_in,
        active_out=active_out,
        density=layer.module.density if isinstance(layer.module, GatedConv2d) else None,
        output_size=() if linear else layer.output_shape[2:],
        convolutional=not linear or reads_pooled_channels(layer),
        image_macs=macs,
    )


def _other_row(name: str, macs: int, images: int) -> LayerAccount:
    return LayerAccount(
        name=name,
        kind="other",
        macs=macs,
        gate_macs=0.0,
        dense_macs=macs,
        weight_bytes=0.0,
        dense_weight_bytes=0,
        gate_bytes=0.0,
        activation_bytes=0.0,
        in_channels=0,
        out_channels=0,
        active_in=0.0,
        active_out=0.0,
        density=None,
        output_size=(),
        convolutional=False,
        image_macs=torch.full((images,), macs, dtype=torch.int64),
    )


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
