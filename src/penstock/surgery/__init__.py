"""Any CNN in, gated CNN out (torch.fx): capture, channel flow, insertion, explanation."""

from penstock.surgery.channels import (
    Channels,
    Concat,
    Dense,
    Gate,
    Meet,
    Silent,
    Spread,
    Union,
    active_mask,
    gates_of,
)
from penstock.surgery.explain import Convolution, Explanation, explain
from penstock.surgery.flow import WeightLayer, channel_flow, weight_layers
from penstock.surgery.insert import add_gates
from penstock.surgery.trace import shape_of, trace

__all__ = [
    "Channels",
    "Concat",
    "Convolution",
    "Dense",
    "Explanation",
    "Gate",
    "Meet",
    "Silent",
    "Spread",
    "Union",
    "WeightLayer",
    "active_mask",
    "add_gates",
    "channel_flow",
    "explain",
    "gates_of",
    "shape_of",
    "trace",
    "weight_layers",
]
