"""The one table of torch operators: what each is called, what it does to channels, how it is cut, its MACs.

Everyone who walks a traced network asks here: flow, ties and shrinking, the engine's lowering, the ONNX
export, the accounting. Rows are the names in `activations`, `arithmetic`, `moving` and `layers`;
``use_of(node)`` finds the row of a node and reads its settings, module or function alike.

    use = use_of(node)
    use.operator is layers.MAX_POOL
    use.setting("kernel_size")
    use.kind is Kind.PASS                  # a zero channel stays zero
    way_of(node) == Same(source)           # and it is the channel of the same number

A new operator is a new row.
"""

from penstock.surgery.operators import activations, arithmetic, layers, moving
from penstock.surgery.operators.row import Cutting, Kind, Operator, Product
from penstock.surgery.operators.table import (
    TABLE,
    UNKNOWN,
    is_inplace,
    kind_of,
    may_multiply,
    use_of,
    use_of_module,
)
from penstock.surgery.operators.uses import Use, module_of, place_of, shape_of, tensor_inputs
from penstock.surgery.operators.ways import Joined, Met, Padded, Repeated, Same, way_of

__all__ = [
    "TABLE",
    "UNKNOWN",
    "Cutting",
    "Joined",
    "Kind",
    "Met",
    "Operator",
    "Padded",
    "Product",
    "Repeated",
    "Same",
    "Use",
    "activations",
    "arithmetic",
    "is_inplace",
    "kind_of",
    "layers",
    "may_multiply",
    "module_of",
    "moving",
    "place_of",
    "shape_of",
    "tensor_inputs",
    "use_of",
    "use_of_module",
    "way_of",
]
