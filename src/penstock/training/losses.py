"""The loss of a batch, and which weights decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.gating import GatedConv2d, LevelNorm2d, SaliencyPredictor, gated_layers
from penstock.training.choices import Loss


def task_loss(logits: Tensor, labels: Tensor, choices: Loss, taught: Tensor | None) -> Tensor:
    """Cross entropy with the labels, mixed with the divergence from the teacher's logits if there are any."""
    loss = F.cross_entropy(logits, labels, label_smoothing=choices.label_smoothing)
    if taught is None:
        return loss
    wanted = F.log_softmax(taught / choices.temperature, dim=1)
    given = F.log_softmax(logits / choices.temperature, dim=1)
    divergence = F.kl_div(given, wanted, reduction="batchmean", log_target=True)
    return (1 - choices.distill) * loss + choices.distill * choices.temperature**2 * divergence


def similarity(pooled: Mapping[GatedConv2d, Tensor]) -> Tensor:
    """ManiDP's loss: images with similar features should have similar saliencies, in every layer.

    Σ over layers of MSE(cos(g_i, g_j), cos(f_i, f_j)) over the images i, j of the batch; pooled: f, (batch,
    channel), the mean size of a layer's channels. g are the layers' saliencies in the same forward.
    """
    total = torch.zeros(())
    for layer, features in pooled.items():
        assert layer.saliency is not None
        total = total + F.mse_loss(cosines(layer.saliency), cosines(features))
    return total


def cosines(rows: Tensor) -> Tensor:
    """The cosine of every two rows. rows: (batch, channel) → (batch, batch)."""
    unit = F.normalize(rows, dim=1)
    return unit @ unit.T


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Convolution and linear weights, which decay; and gates, norms, shifts and biases, which do not."""
    gates = {id(p) for m in network.modules() if isinstance(m, SaliencyPredictor) for p in m.parameters()}
    shifts = {id(layer.shift) for _, layer in gated_layers(network)}  # with levels these have rows as well
    decayed = [p for p in network.parameters() if p.dim() >= 2 and id(p) not in gates | shifts]
    chosen = {id(p) for p in decayed}
    kept = [p for p in network.parameters() if id(p) not in chosen]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def freeze_norms(network: nn.Module) -> None:
    """Norms use and keep their running statistics although the network trains."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | LevelNorm2d):
            module.eval()


def count_hits(logits: Tensor, labels: Tensor) -> int:
    """How many images the network would name right."""
    return int((logits.detach().argmax(1) == labels).sum())


def is_finite(loss: Tensor) -> bool:
    """Whether the loss is a number; this waits for the device."""
    return bool(torch.isfinite(loss.detach()))
