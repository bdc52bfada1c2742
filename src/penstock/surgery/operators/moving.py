"""Rows: reshapes, indexing, padding, resizing, types, sizes; and what does nothing in eval mode."""

from __future__ import annotations

from torch import nn

from penstock.surgery.operators.row import Kind, Operator

# A reshape that names its sizes one by one; cutting channels rewrites those (surgery/shrink.py).
VIEW = Operator("view", Kind.MOVE, view=True)
RESHAPE = Operator("reshape", Kind.MOVE, view=True)
FLATTEN = Operator(
    "flatten", Kind.MOVE, modules=(nn.Flatten,), settings={"start_dim": 0, "end_dim": -1}, view=True
)
SQUEEZE = Operator("squeeze", Kind.MOVE, settings={"dim": None}, view=True)
UNSQUEEZE = Operator("unsqueeze", Kind.MOVE, settings={"dim": None}, view=True)
PERMUTE = Operator("permute", Kind.OTHER, settings={"dims": None}, view=True)
TRANSPOSE = Operator("transpose", Kind.OTHER, settings={"dim0": None, "dim1": None}, view=True)
INDEX = Operator("getitem", Kind.SELECT, settings={"index": None}, view=True)
CHUNK = Operator("chunk", Kind.OTHER, settings={"chunks": None, "dim": 0})
SPLIT = Operator("split", Kind.OTHER, settings={"split_size": None, "dim": 0})
CONCAT = Operator("cat", Kind.CONCAT, aliases=("concat", "concatenate"), settings={"dim": 0})

PAD = Operator("pad", Kind.PAD, settings={"pad": None, "mode": "constant", "value": None})
ZERO_PAD = Operator("ZeroPad2d", Kind.PASS, functions=False, modules=(nn.ZeroPad2d,), even=False)
REFLECTION_PAD = Operator("ReflectionPad2d", Kind.PASS, functions=False, modules=(nn.ReflectionPad2d,))
REPLICATION_PAD = Operator("ReplicationPad2d", Kind.PASS, functions=False, modules=(nn.ReplicationPad2d,))
RESIZE = Operator(
    "interpolate",
    Kind.PASS,
    aliases=("upsample",),
    modules=(nn.Upsample,),
    settings={"size": None, "scale_factor": None, "mode": "nearest", "align_corners": None},
)

CONVERT = Operator("to", Kind.PASS, aliases=("half", "bfloat16", "double", "type", "type_as"))
SAME = Operator("contiguous", Kind.PASS, aliases=("clone", "detach", "float"), same_in_eval=True)
IDENTITY = Operator("Identity", Kind.PASS, functions=False, modules=(nn.Identity,), same_in_eval=True)

_DROPOUT = {"p": 0.5, "training": True, "inplace": False}

DROPOUT = Operator("dropout", Kind.PASS, modules=(nn.Dropout,), settings=_DROPOUT, same_in_eval=True)
DROPOUT2D = Operator(
    "dropout2d",
    Kind.PASS,
    aliases=("feature_dropout",),
    modules=(nn.Dropout2d,),
    settings=_DROPOUT,
    same_in_eval=True,
)
OTHER_DROPOUTS = Operator(
    "dropout1d",
    Kind.PASS,
    aliases=("dropout3d",),
    modules=(nn.Dropout1d, nn.Dropout3d),
    settings=_DROPOUT,
    same_in_eval=True,
)
ALPHA_DROPOUT = Operator(
    "alpha_dropout",
    Kind.OTHER,
    modules=(nn.AlphaDropout,),
    foreign=("DropBlock2d",),
    settings={"p": 0.5, "training": False, "inplace": False},
    same_in_eval=True,
)
# Stochastic depth multiplies a whole sample by one number; timm and torchvision each have their own class.
STOCHASTIC_DEPTH = Operator(
    "DropPath", Kind.PASS, functions=False, foreign=("DropPath", "StochasticDepth"), same_in_eval=True
)

SIZE = Operator("size", Kind.SIZE, settings={"dim": None})
RANK = Operator("dim", Kind.SIZE, aliases=("ndimension",))
COUNT = Operator("numel", Kind.SIZE)
ATTRIBUTE = Operator("getattr", Kind.SIZE, settings={"name": None})

ROWS = tuple(row for row in list(globals().values()) if isinstance(row, Operator))
