"""The three ways of "ESJ Operator" to find a new tuple's partners in a worker, as small kernels that count their comparisons.

For the comparison with the paper alone: the engine probes sorted runs (:mod:`streamjoin.kernel.probe`). All serve equality; the tree
would serve order as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Structure(ABC):
    """One stream's tuples, known by their keys."""

    def __init__(self) -> None:
        self.comparisons = 0
        """Keys that were compared to find partners; looking into a hash map counts as one. Inserting is not counted, as in the paper."""

    @abstractmethod
    def insert(self, key: int) -> None:
        """Hold a tuple."""

    @abstractmethod
    def probe(self, key: int) -> int:
        """How many tuples of that key are held."""


class Queue(Structure):
    """(a): a FIFO queue. A probe compares with each tuple. O(n)."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[int] = []

    def insert(self, key: int) -> None:
        self._keys.append(key)

    def probe(self, key: int) -> int:
        self.comparisons += len(self._keys)
        return sum(1 for held in self._keys if held == key)


class _Node:
    __slots__ = ("height", "key", "left", "right", "tuples")

    def __init__(self, key: int) -> None:
        self.key, self.tuples, self.height = key, 1, 1
        self.left: _Node | None = None
        self.right: _Node | None = None


class Tree(Structure):
    """(b): a balanced binary search tree (AVL) of keys, each with its tuples. O(log n + matches)."""

    def __init__(self) -> None:
        super().__init__()
        self._root: _Node | None = None

    def insert(self, key: int) -> None:
        self._root = _inserted(self._root, key)

    def probe(self, key: int) -> int:
        node = self._root
        while node is not None:
            self.comparisons += 1
            if node.key == key:
                # Each partner is met once.
                self.comparisons += node.tuples
                return node.tuples
            node = node.left if key < node.key else node.right
        return 0


class Map(Structure):
    """(c): a hash map from keys to their tuples. O(1 + matches)."""

    def __init__(self) -> None:
        super().__init__()
        self._tuples: dict[int, int] = {}

    def insert(self, key: int) -> None:
        self._tuples[key] = self._tuples.get(key, 0) + 1

    def probe(self, key: int) -> int:
        found = self._tuples.get(key, 0)
        self.comparisons += 1 + found
        return found


STRUCTURES: dict[str, type[Structure]] = {"queue": Queue, "tree": Tree, "map": Map}


def _inserted(node: _Node | None, key: int) -> _Node:
    if node is None:
        return _Node(key)
    if key == node.key:
        node.tuples += 1
        return node
    if key < node.key:
        node.left = _inserted(node.left, key)
    else:
        node.right = _inserted(node.right, key)
    return _balanced(node)


def _height(node: _Node | None) -> int:
    return 0 if node is None else node.height


def _measure(node: _Node) -> None:
    node.height = 1 + max(_height(node.left), _height(node.right))


def _balanced(node: _Node) -> _Node:
    _measure(node)
    lean = _height(node.left) - _height(node.right)
    if lean > 1 and node.left is not None:
        if _height(node.left.left) < _height(node.left.right):
            node.left = _rotated(node.left, to_left=True)
        return _rotated(node, to_left=False)
    if lean < -1 and node.right is not None:
        if _height(node.right.right) < _height(node.right.left):
            node.right = _rotated(node.right, to_left=False)
        return _rotated(node, to_left=True)
    return node


def _rotated(node: _Node, *, to_left: bool) -> _Node:
    root = node.right if to_left else node.left
    if root is None:
        return node
    if to_left:
        node.right, root.left = root.left, node
    else:
        node.left, root.right = root.right, node
    _measure(node)
    _measure(root)
    return root
