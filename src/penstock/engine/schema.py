"""The numbers of a program by name, as the native module defines them (kernels/run/schema.h).

Nothing is numbered on this side: kinds, fields, functions and formats are asked for by name. A name that the
native module does not have, or a field of it that was given no value, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from penstock.errors import CompileError
from penstock.native import native

_T = TypeVar("_T")


def names(group: str) -> tuple[str, ...]:
    """The names of one list of the schema, in the order of their numbers.

    >>> names("Pool")
    ('max', 'average')
    """
    schema: dict[str, tuple[str, ...]] = native().SCHEMA
    if group not in schema:
        raise CompileError(f"the native module has no list {group!r}; build it again: {_BUILD}")
    return schema[group]


def number(group: str, name: str) -> int:
    """The number of a name.

    >>> number("OpKind", "import_image")
    0
    """
    known = names(group)
    if name not in known:
        raise CompileError(
            f"the native module has no {group} {name!r}, it has {', '.join(known)}; build it again: {_BUILD}"
        )
    return known.index(name)


def row(group: str, values: Mapping[str, _T]) -> list[_T]:
    """One value for every field of `group`, in the schema's order; none missing, none unknown."""
    known = names(group)
    if set(known) != set(values):
        odd = sorted(set(known) ^ set(values))
        raise CompileError(f"{group}: the native module and this version differ in {odd}; run: {_BUILD}")
    return [values[name] for name in known]


def program_format() -> int:
    """The version of the format that the native module reads."""
    return int(native().FORMAT)


def op_fields() -> int:
    """Numbers of one operation: those of every operation, then those of its kind."""
    return int(native().OP_FIELDS)


_BUILD = "pip install . (or, in a source tree, python tools/build_native.py)"
