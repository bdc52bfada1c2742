"""Fewer steps, same results: norms folded into weights, activations into their producers.

Enters and leaves: a `Network`. Each rule asks that nobody else reads the value that disappears.
"""

from __future__ import annotations

import numpy as np

from penstock.engine.steps import (
    AFTER_CONV,
    IDENTITY,
    AdaptivePool,
    Add,
    Affine,
    ChannelNorm,
    Concat,
    Conv,
    Floats,
    Import,
    Layout,
    Linear,
    ListedConv,
    Network,
    Pack,
    Pool,
    Step,
)

_CLAMPS = ("none", "relu", "relu6")


def fuse(network: Network) -> Network:
    """Apply every rule, in place, and return the network."""
    _drop_unread(network)
    _small_convs_to_linear(network)
    _merge_pointwise(network)
    _pack_vectors(network)
    _shortcuts_first(network)
    return network


def _drop_unread(network: Network) -> None:
    needed: set[int] = set()
    kept: list[Step] = []
    for step in reversed(network.steps):
        if step.output == -1 or step.output in needed or isinstance(step, Import):
            needed.update(step.inputs)
            kept.append(step)
    network.steps = kept[::-1]


def _small_convs_to_linear(network: Network) -> None:
    """A dense convolution that sees its whole input at once is a linear layer (squeeze and excitation)."""
    for place, step in enumerate(network.steps):
        if not isinstance(step, Conv) or step.gates is not None or step.groups != 1:
            continue
        source = network.values[step.inputs[0]]
        whole = step.weights.shape[2:] == (source.height, source.width) and step.padding == (0, 0)
        if not whole or (source.area > 1 and step.dilation != (1, 1)):
            continue
        outputs = step.weights.shape[0]
        bias = np.zeros(outputs, np.float32) if step.bias is None else step.bias
        network.steps[place] = Linear(
            step.name,
            step.inputs,
            step.output,
            weights=step.weights.reshape(outputs, -1),
            bias=bias,
            layer=step.layer,
        )


def _merge_pointwise(network: Network) -> None:
    """Affines and activations go into the convolution, linear layer, sum or affine that feeds them."""
    changed = True
    while changed:
        changed = False
        readers = network.readers()
        producers = {step.output: step for step in network.steps}
        for step in network.steps:
            if not isinstance(step, Affine) or len(readers.get(step.inputs[0], [])) != 1:
                continue
            before = producers[step.inputs[0]]
            if _merge(before, step):
                before.output = step.output
                network.steps.remove(step)
                changed = True
                break


def _merge(before: Step, step: Affine) -> bool:
    if not isinstance(before, Conv | ListedConv | Linear | Add | Affine) or before.function != IDENTITY:
        return False
    plain = step.scale is None and step.shift is None
    if not plain and not _scale_into(before, step):
        return False
    if isinstance(before, Conv) and step.function.name not in AFTER_CONV:
        # The scale is in the weights already; the function stays a step of its own.
        if plain:
            return False
        step.scale = step.shift = None
        return False
    if isinstance(before, Add) and not step.function.keeps_zero:
        return False
    before.function = step.function
    return True


def _scale_into(before: Step, step: Affine) -> bool:
    """scale · (what `before` computes) + shift, by changing the weights of `before`."""
    if isinstance(before, ListedConv) or (isinstance(before, Conv) and before.gates is None):
        if step.scale is not None:
            before.weights = before.weights * step.scale[:, None, None, None]
            before.bias = None if before.bias is None else before.bias * step.scale
        if isinstance(before, ListedConv) and len(before.inputs) == 2:  # the map multiplies in between
            before.shift = _affine_shift(before.shift, step)
        elif step.shift is not None:
            before.bias = step.shift if before.bias is None else before.bias + step.shift
        return True
    if isinstance(before, Linear) and all(
        part is None or len(part) == len(before.bias) for part in (step.scale, step.shift)
    ):
        if step.scale is not None:
            before.weights = before.weights * step.scale[:, None]
            before.bias = before.bias * step.scale
        if step.shift is not None:
            before.bias = before.bias + step.shift
        return True
    if isinstance(before, Affine):
        if step.scale is not None:
            before.scale = step.scale if before.scale is None else before.scale * step.scale
            before.shift = None if before.shift is None else before.shift * step.scale
        if step.shift is not None:
            before.shift = step.shift if before.shift is None else before.shift + step.shift
        return True
    return False


def _affine_shift(shift: Floats | None, step: Affine) -> Floats | None:
    """scale · shift + the step's own shift."""
    if shift is not None and step.scale is not None:
        shift = shift * step.scale
    if step.shift is None:
        return shift
    return step.shift if shift is None else shift + step.shift


def foldable_sums(network: Network) -> list[Add]:
    """Sums that a 1×1 convolution could do itself, those of the largest maps first.

    A convolution that adds needs no room for its own result. In planes it is computed a few planes at a time,
    which is slower; so there this is for sums that do not fit otherwise. Larger kernels are left out: a
    Winograd transform of the input would be done again for each of those pieces. In pixels it is computed a
    block of pixels at a time, which is faster where maps do not fit into the second-level cache
    (`penstock.engine.lanes`).
    """
    sums = [
        step for step in network.steps if isinstance(step, Add) and _adding_conv(network, step) is not None
    ]
    return sorted(sums, key=lambda s: -network.values[s.output].channels * network.values[s.output].area)


def fold_sum(network: Network, sum_: Add) -> None:
    """Let the convolution before the sum add the other summand."""
    found = _adding_conv(network, sum_)
    assert found is not None
    conv, skip = found
    network.steps.remove(conv)
    conv.inputs = [conv.inputs[0], skip]
    conv.output = sum_.output
    conv.after = sum_.function
    network.steps[network.steps.index(sum_)] = conv


def _adding_conv(network: Network, sum_: Add) -> tuple[Conv, int] | None:
    """The convolution that may take over a sum, and the value it has to add."""
    result = network.values[sum_.output]
    if sum_.inputs[0] == sum_.inputs[1] or result.area == 1:
        return None
    readers = network.readers()
    producers = {step.output: step for step in network.steps}
    for own, skip in (sum_.inputs, sum_.inputs[::-1]):
        conv = producers[own]
        alone = isinstance(conv, Conv) and len(conv.inputs) == 1 and len(readers[own]) == 1
        if network.values[own].filled or network.values[skip].filled:
            continue  # a convolution that adds knows zeros only
        if not alone or not isinstance(conv, Conv) or conv.weights.shape[2:] != (1, 1):
            continue
        if not result.in_pixels or _adds_pixels(network, conv, skip, sum_):
            return conv, skip
    return None


def _adds_pixels(network: Network, conv: Conv, skip: int, sum_: Add) -> bool:
    """Whether a convolution can add in pixels: it passes pixel by pixel, and no map has padding."""
    maps = [network.values[value] for value in (conv.inputs[0], conv.output, skip, sum_.output)]
    plain = conv.stride == (1, 1) and conv.padding == (0, 0) and conv.groups == 1
    if not plain or sum_.function.name not in _CLAMPS or not all(one.in_pixels for one in maps):
        return False
    readers = network.readers()
    kept = [reader for value in (conv.inputs[0], skip, sum_.output) for reader in readers[value]]
    return not any(isinstance(step, Conv) and step is not conv and max(step.padding) > 0 for step in kept)


def join_affines(network: Network) -> None:
    """Affines of a concatenation in pixels read its parts: nothing is copied first."""
    readers = network.readers()
    producers = {step.output: step for step in network.steps}
    for step in network.steps:
        before = producers.get(step.inputs[0]) if isinstance(step, Affine) else None
        if not isinstance(before, Concat) or len(readers[before.output]) != 1:
            continue
        if network.values[before.output].in_pixels and network.values[step.output].in_pixels:
            step.inputs = list(before.inputs)
    _drop_unread(network)


def _pack_vectors(network: Network) -> None:
    """1×1 maps are packed vectors, except where a step works on planes; there they are converted."""
    for value in network.values:
        value.layout = Layout.PLANES if value.area > 1 else Layout.VECTOR
    steps: list[Step] = []
    for step in network.steps:
        on_planes = isinstance(step, Conv | ListedConv | Pool | AdaptivePool | ChannelNorm)
        if on_planes:
            for place, source in enumerate(step.inputs):
                if not network.values[source].is_map:
                    twin = _twin(network, source)
                    steps.append(Pack(f"{step.name} (as planes)", [source], twin))
                    step.inputs[place] = twin
        steps.append(step)
        makes_planes = isinstance(step, Conv | ListedConv | Pool | ChannelNorm | Import)
        if makes_planes and not network.values[step.output].is_map:
            result = step.output
            step.output = _twin(network, result)
            steps.append(Pack(f"{step.name} (as a vector)", [step.output], result))
    network.steps = steps


def _shortcuts_first(network: Network) -> None:
    """The convolution of a shortcut runs before the branch around it.

    Both read the same value, which is still near and then free; and the branch's last convolution comes right
    before the sum, so that weights needed after it can be fetched meanwhile (kernels/run/runtime.cpp).
    """
    readers = network.readers()
    for step in list(network.steps):
        if not isinstance(step, Conv) or len(step.inputs) > 1:
            continue
        others = readers[step.inputs[0]]
        after = readers.get(step.output, [])
        if others[0] is step or others[-1] is not step or len(after) != 1 or not isinstance(after[0], Add):
            continue
        network.steps.remove(step)
        network.steps.insert(network.steps.index(others[0]), step)


def _twin(network: Network, value: int) -> int:
    of = network.values[value]
    return network.new_value(of.channels, of.height, of.width, of.name)
