"""The table of operators is the only place that names them, and what it says of them is what torch does."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn

import penstock
from penstock.surgery import trace
from penstock.surgery.operators import TABLE, Kind, Operator, Same, use_of, use_of_module, way_of
from penstock.surgery.operators.activations import CLAMP, PRELU, RELU
from penstock.surgery.operators.layers import BATCH_NORM, CONV, LINEAR, MAX_POOL

SOURCE = Path(penstock.__file__).parent
# Every room that walks a traced network.
WALKERS = (
    "surgery", "accounting", "training", "pruning", "quantizing",
    "engine", "search", "exporting", "measuring",
)  # fmt: skip
# Classes that are also the types of data: code may say that a variable is a convolution.
TYPES = {kind.__name__ for row in TABLE if row.kind in (Kind.WEIGHT, Kind.NORM) for kind in row.modules}
CLASSES = {kind.__name__ for row in TABLE for kind in row.modules} - TYPES - {"GatedConv2d"}
FUNCTIONS = {name for row in TABLE for name in row.names}
# Names of operators that are words of another list as well, and which list that is.
ALLOWED = {
    "engine/steps.py": "the program's own functions, whose numbers the kernels share",
    "engine/fuse.py": "the program's own functions, whose numbers the kernels share",
    "engine/quantise.py": "the program's own functions, whose numbers the kernels share",
    "engine/encode.py": "the fields of a program's operations",
    "exporting/libraries.py": "the mean of a network's preprocessing",
    "training/state.py": "the types of a record's fields",
    "training/choices.py": "the learning rate's schedules, one of which is linear",
    "training/schedules.py": "the learning rate's schedules, one of which is linear",
}


def named_operators(source: str) -> list[tuple[int, str]]:
    """Every place that compares with, or lists, an operator of torch by its name, function or class."""
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    annotations = [
        part
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
    ]
    hints = {id(inner) for part in annotations for inner in ast.walk(part)}
    listed = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if id(node) in called | hints:
                continue  # computing with torch, or making a layer, is not asking what a node is
            owner, name = node.value.id, node.attr
            if owner == "nn" and name in CLASSES:
                listed.append((node.lineno, f"nn.{name}"))
            if owner in ("F", "torch", "operator") and name.rstrip("_") in FUNCTIONS:
                listed.append((node.lineno, f"{owner}.{name}"))
        words: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            words = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            words = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            words = list(node.elts)
        for word in words:
            if isinstance(word, ast.Constant) and word.value in FUNCTIONS:
                listed.append((word.lineno, repr(word.value)))
    return sorted(set(listed))


def test_operators_of_torch_are_named_in_the_table_and_nowhere_else() -> None:
    found = []
    for room in WALKERS:
        for path in sorted((SOURCE / room).rglob("*.py")):
            where = path.relative_to(SOURCE).as_posix()
            if where.startswith("surgery/operators/") or where in ALLOWED:
                continue
            found += [f"{where}:{line} names {what}" for line, what in named_operators(path.read_text())]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "kinds = (nn.ReLU, nn.Tanh)",
        "isinstance(module, nn.MaxPool2d)",
        'name == "max_pool2d"',
        'name in {"relu", "gelu"}',
        'table = {"flatten": 1}',
        "node.target in (F.relu, torch.relu_)",
        "node.target is operator.getitem",
    ],
)
def test_a_name_outside_the_table_is_found(line: str) -> None:
    assert named_operators(line)


@pytest.mark.parametrize(
    "line", ["y = torch.cat(parts)", "nn.ReLU()", "def f(x: nn.Identity): ...", "x.relu()"]
)
def test_computing_with_torch_is_not_naming_an_operator(line: str) -> None:
    assert not named_operators(line)


def test_no_name_and_no_class_stands_in_two_rows() -> None:
    names = [name for row in TABLE for name in row.names]
    classes = [kind for row in TABLE for kind in (*row.modules, *row.foreign)]
    assert len(names) == len(set(names))
    assert len(classes) == len(set(classes))


def _modules(*kinds: Kind) -> list[tuple[Operator, type[nn.Module]]]:
    arguments_needed = (nn.AvgPool2d, nn.MaxPool2d, nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d)
    adaptive = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
    return [
        (row, kind)
        for row in TABLE
        if row.kind in kinds
        for kind in row.modules
        if kind not in (*arguments_needed, *adaptive, nn.Upsample, nn.Dropout1d, nn.Dropout3d)
    ]


@pytest.mark.parametrize(("row", "kind"), _modules(Kind.ACTIVATION, Kind.PASS))
def test_what_the_table_says_to_keep_zero_channels_keeps_them(row: Operator, kind: type[nn.Module]) -> None:
    x = torch.randn(2, 3, 5, 5)
    x[:, 1] = 0
    for training in (False, True):
        y = kind().train(training)(x)
        assert y.shape == x.shape
        assert not y[:, 1].any()


@pytest.mark.parametrize(("row", "kind"), _modules(Kind.ACTIVATION, Kind.OTHER))
def test_what_the_table_calls_nonnegative_is(row: Operator, kind: type[nn.Module]) -> None:
    if row.nonnegative:
        module = kind(dim=1) if kind is nn.Softmax else kind()
        assert bool((module(torch.randn(2, 3, 5, 5)) >= 0).all())


@pytest.mark.parametrize(
    "row", [row for row in TABLE if row.settings and row.modules], ids=lambda row: row.name
)
def test_the_settings_of_a_row_stand_in_the_order_and_with_the_defaults_of_torch(row: Operator) -> None:
    function = getattr(F, row.name, None) or getattr(torch, row.name)
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except ValueError:  # written in C: torch gives no signature
        pytest.skip("torch does not say")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        pytest.skip("torch does not say")
    known = {p.name: p for p in parameters}
    placed = [name for name in row.settings if name in known]
    assert placed == [p.name for p in parameters if p.name in row.settings]
    for name in placed:
        if known[name].default not in (inspect.Parameter.empty, None):
            assert row.settings[name] == known[name].default


@given(low=st.floats(-3, 3, width=32), high=st.floats(-3, 3, width=32))
def test_a_clamp_is_an_activation_just_where_it_leaves_zero_alone(low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    graph = fx.Graph()
    node = graph.call_function(torch.clamp, (graph.placeholder("x"), low, high))
    use = use_of(node)
    assert use.operator is CLAMP
    assert (use.kind is Kind.ACTIVATION) == (float(torch.zeros(()).clamp(low, high)) == 0)


class _Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(F.max_pool2d(self.relu(self.pool(x)), 3, 2, padding=1)).relu()


def test_module_function_and_method_are_one_operator_with_the_same_settings() -> None:
    traced = trace(_Steps(), torch.zeros(1, 2, 16, 16))
    uses = [use_of(node) for node in traced.graph.nodes]
    pools = [use for use in uses if use.operator is MAX_POOL]
    assert [[use.setting(name) for name in MAX_POOL.settings] for use in pools] == [[3, 2, 1, 1, False]] * 2
    assert sum(use.operator is RELU for use in uses) == 3
    assert all(isinstance(way_of(use.node), Same) for use in uses[1:-1])


class _OtherReLU(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class _NamedReLU(nn.ReLU):
    pass


def test_a_subclass_counts_unless_it_computes_something_of_its_own() -> None:
    assert use_of_module(_NamedReLU()).operator is RELU
    assert use_of_module(_OtherReLU()).kind is Kind.OTHER


@pytest.mark.parametrize(
    ("row", "module", "x"),
    [
        (CONV, nn.Conv2d(6, 8, 3), torch.randn(2, 6, 7, 7)),
        (LINEAR, nn.Linear(6, 8), torch.randn(2, 6)),
    ],
    ids=["conv", "linear"],
)
def test_cutting_and_refitting_by_the_row_leaves_a_layer_that_runs(
    row: Operator, module: nn.Module, x: Tensor
) -> None:
    assert row.cutting is not None
    inputs, outputs = torch.tensor([0, 2, 5]), torch.tensor([1, 7])
    masked = torch.zeros_like(x)
    masked[:, inputs] = x[:, inputs]
    expected = module(masked)[:, outputs]
    for side, places in ((row.cutting.outputs, outputs), (row.cutting.inputs, inputs)):
        for name, axis in side.items():
            setattr(module, name, nn.Parameter(getattr(module, name).detach().index_select(axis, places)))
    row.cutting.refit(module)
    torch.testing.assert_close(module(x[:, inputs]), expected)
    assert row.product is not None
    product = row.product(module, (2, 3, 7, 7), (2, 2, 5, 5))
    assert (product.inputs, product.outputs) == (3, 2)


def test_layers_with_one_parameter_a_channel_carry_their_channels() -> None:
    assert BATCH_NORM.cutting is not None
    assert PRELU.cutting is not None
    assert CONV.cutting is not None
    assert BATCH_NORM.cutting.carries(nn.BatchNorm2d(4))
    assert PRELU.cutting.carries(nn.PReLU(4))
    assert not PRELU.cutting.carries(nn.PReLU())
    assert CONV.cutting.carries(nn.Conv2d(4, 4, 3, groups=4))
    assert not CONV.cutting.carries(nn.Conv2d(4, 4, 3, groups=2))
