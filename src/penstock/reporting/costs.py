"""The paper's two cost tables: MACs and output channels layer by layer, and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.accounting import Account, LayerAccount
from penstock.reporting.numbers import mebibytes, short_count, short_time, times
from penstock.reporting.skipping import SkipMap
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, word


@dataclass(frozen=True)
class LayerCost:
    """size: the output's height and width. computed: output channels computed for an image (on average);
    remaining: the channels some image used, None where all are always computed. milliseconds: measured in the
    engine, None where it was not."""

    name: str
    size: tuple[int, int] | None
    macs: float
    computed: float
    remaining: int | None = None
    milliseconds: float | None = None


@dataclass(frozen=True)
class NetworkCost:
    """One column of the layer table: a network, by one way of making it cheaper."""

    method: str
    layers: tuple[LayerCost, ...]

    @property
    def macs(self) -> float:
        return sum(layer.macs for layer in self.layers)

    @property
    def milliseconds(self) -> float | None:
        """Of the layers that were timed; None without any."""
        timed = [layer.milliseconds for layer in self.layers if layer.milliseconds is not None]
        return sum(timed) if timed else None


@dataclass(frozen=True)
class MemoryCost:
    """Bytes: what all convolutions access for one image, and the peak for 1 and for 128 images.

    family: networks of one family are compared with its first.
    """

    network: str
    weights: float
    activations: float
    peak_1: float
    peak_128: float
    family: str = ""


def network_cost(
    method: str,
    account: Account,
    maps: Sequence[SkipMap] = (),
    milliseconds: Mapping[str, float] | None = None,
) -> NetworkCost:
    """A column from an account; with `maps` also the channels that remain without the never-used ones, with
    `milliseconds` (layer by layer) also a column of these."""
    remaining = {one.layer: one.remaining for one in maps}
    return _column(method, account, lambda layer: (layer.macs, layer.active_out), remaining, milliseconds)


def original_cost(
    method: str, account: Account, milliseconds: Mapping[str, float] | None = None
) -> NetworkCost:
    """The column of the network that the account's network was before it got gates."""
    return _column(method, account, lambda layer: (layer.dense_macs, layer.out_channels), {}, milliseconds)


def _column(
    method: str,
    account: Account,
    count: Callable[[LayerAccount], tuple[float, float]],
    remaining: Mapping[str, int],
    milliseconds: Mapping[str, float] | None,
) -> NetworkCost:
    """count: a layer's MACs and channels."""
    timed = milliseconds or {}
    layers = (
        LayerCost(
            layer.name,
            _size(layer.output_size),
            *count(layer),
            remaining.get(layer.name),
            timed.get(layer.name),
        )
        for layer in account.layers
    )
    return NetworkCost(method, tuple(layers))


def memory_cost(network: str, account: Account, family: str = "") -> MemoryCost:
    """A row from an account."""
    return MemoryCost(
        network,
        account.weight_bytes,
        account.activation_bytes,
        account.peak_bytes_for(1),
        account.peak_bytes_for(128),
        family,
    )


def _size(size: tuple[int, ...]) -> tuple[int, int]:
    return (size[0], size[1]) if len(size) == 2 else (1, 1)


def layer_table(networks: Sequence[NetworkCost], *, convention: str, name: str = "layers") -> Table:
    """As in the paper's appendix; the first network is the original that savings refer to."""
    timed = [network for network in networks if network.milliseconds is not None]
    columns = [
        Column("layer", "Layer", numeric=False),
        Column("shape", "Shape", numeric=False),
        *(Column(network.method, network.method, hint="MACs (output channels)") for network in networks),
        *(
            Column(f"{network.method}_milliseconds", f"{network.method}, ms", hint="measured in the engine")
            for network in timed
        ),
    ]
    by_name = {network.method: {layer.name: layer for layer in network.layers} for network in networks}
    names = list(dict.fromkeys(layer.name for network in networks for layer in network.layers))
    rows = []
    for layer in names:
        found = [layers.get(layer) for layers in by_name.values()]
        size = next((one.size for one in found if one is not None and one.size is not None), None)
        shape = Cell(f"{size[0]} × {size[1]}", size[0] * size[1]) if size else NOTHING
        clocks = [by_name[network.method].get(layer) for network in timed]
        rows.append(
            (word(layer), shape, *(_layer_cell(one) for one in found), *(_time_cell(one) for one in clocks))
        )
    total = (
        word("Total"),
        Cell(""),
        *(Cell(short_count(network.macs), network.macs) for network in networks),
        *(_clock(network.milliseconds) for network in timed),
    )
    saving = (word("Saving"), Cell(""), *_savings(networks), *(Cell("") for _ in timed))
    caption = f"MACs (output channels) a layer, counted by the convention “{convention}”"
    if timed:
        caption += "; milliseconds of one image in float32, each layer with its gate"
    return Table(name, caption, tuple(columns), tuple(rows), (total, saving) if networks else ())


def _time_cell(layer: LayerCost | None) -> Cell:
    return NOTHING if layer is None else _clock(layer.milliseconds)


def _clock(milliseconds: float | None) -> Cell:
    return figure(milliseconds, None if milliseconds is None else short_time(milliseconds))


def _layer_cell(layer: LayerCost | None) -> Cell:
    if layer is None:
        return NOTHING
    computed = f"{layer.computed:.0f}"
    channels = computed if layer.remaining is None else f"{computed}/{layer.remaining}"
    return Cell(f"{short_count(layer.macs)} ({channels})", layer.macs)


def _savings(networks: Sequence[NetworkCost]) -> list[Cell]:
    original = networks[0].macs if networks else 0
    return [
        NOTHING
        if index == 0 or network.macs == 0
        else Cell(times(original / network.macs), original / network.macs)
        for index, network in enumerate(networks)
    ]


def memory_table(networks: Sequence[MemoryCost], *, convention: str, name: str = "memory") -> Table:
    """As in the paper; the first network of each family is the one its others are compared with."""
    columns = (
        Column("network", "Network", numeric=False),
        Column("weights_bytes", "Weights accessed"),
        Column("activations_bytes", "Activations accessed"),
        Column("peak_1_bytes", "Peak, 1 image"),
        Column("peak_128_bytes", "Peak, 128 images"),
    )
    rows = []
    originals: dict[str, MemoryCost] = {}
    for network in networks:
        original = originals.setdefault(network.family, network)
        cells = [word(network.network)]
        for key in ("weights", "activations", "peak_1", "peak_128"):
            value, first = getattr(network, key), getattr(original, key)
            ratio = f" ({times(first / value)})" if network is not original and value else ""
            cells.append(figure(value, mebibytes(value) + ratio))
        rows.append(tuple(cells))
    caption = (
        f"Memory of all convolutions, counted by the convention “{convention}”; float32, MiB = 2²⁰ bytes"
    )
    return Table(name, caption, columns, tuple(rows))
