"""Any CNN in, gated CNN out (torch.fx): capture, channel flow, insertion, explanation, removal."""

from penstock.surgery.channels import (
    Channels,
    Concat,
    Dense,
    Filled,
    Flow,
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
from penstock.surgery.operators import shape_of
from penstock.surgery.remove import remove_unused
from penstock.surgery.shrink import Removal, Width, keep_channels, removal_report
from penstock.surgery.trace import trace

__all__ = [
    "Channels",
    "Concat",
    "Convolution",
    "Dense",
    "Explanation",
    "Filled",
    "Flow",
    "Gate",
    "Meet",
    "Removal",
    "Silent",
    "Spread",
    "Union",
    "WeightLayer",
    "Width",
    "active_mask",
    "add_gates",
    "channel_flow",
    "explain",
    "gates_of",
    "keep_channels",
    "removal_report",
    "remove_unused",
    "shape_of",
    "trace",
    "weight_layers",
]
