"""The syntax tree of a resolved and typed expression: literals, references to columns, and calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from streamjoin.language.types import BOOLEAN, DataType

Value = int | float | Decimal | str | bool | None


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. DATE is held as days, TIMESTAMP and INTERVAL as microseconds, DECIMAL as Decimal; None is NULL."""

    value: Value
    type: DataType


@dataclass(frozen=True, slots=True)
class Reference:
    """A stream's column; both names as they were declared."""

    stream: str
    column: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function applied to its arguments.

    ``function`` is an SQL function's name in lower case, or one of: add subtract multiply divide modulo negate, eq ne
    lt le gt ge same (<=>), and or not, between in like is_null, cast, case (condition, value, condition, value, ...,
    value otherwise). Arguments keep their own types: the evaluator widens them to what the call needs.
    """

    function: str
    arguments: tuple[Node, ...]
    type: DataType


Node = Literal | Reference | Call


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Call):
            stack.extend(node.arguments)


def streams_read(*nodes: Node) -> set[str]:
    """The names of the streams whose columns they read."""
    return {each.stream for node in nodes for each in walk(node) if isinstance(each, Reference)}


OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "modulo": "%",
    "eq": "=",
    "ne": "<>",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "same": "<=>",
}
"""Binary operators, as SQL writes them."""
COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "same"))


def conjuncts(tree: Node) -> Sequence[Node]:
    """The conditions that AND joins at the top of the tree, in the order written."""
    return tree.arguments if isinstance(tree, Call) and tree.function == "and" else (tree,)


def conjunction(parts: Sequence[Node]) -> Node:
    """One or more conditions joined by AND."""
    return parts[0] if len(parts) == 1 else Call("and", tuple(parts), BOOLEAN)
