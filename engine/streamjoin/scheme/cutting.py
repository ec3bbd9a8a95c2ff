"""Coverage areas over a matrix, each cut into tasks: what the models come to, and how it is written down as a scheme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.cuts import Rectangle
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.tiling import Area, KeyRange, Scheme
from streamjoin.scheme.varietal import Shape


@dataclass(frozen=True, slots=True)
class Cutting:
    """Coverage areas over a matrix, in the order in which on either side the first ones hold a prefix of the keys; how each is cut."""

    matrix: Matrix
    areas: tuple[tuple[Rectangle, Shape], ...]

    @classmethod
    def whole(cls, matrix: Matrix, shape: Shape) -> Cutting:
        """One coverage area of this shape."""
        return cls(matrix, ((Rectangle(0, matrix.rows, 0, matrix.columns), shape),))

    @property
    def tasks(self) -> int:
        return sum(shape.tasks for _, shape in self.areas)

    @property
    def largest_load(self) -> float:
        return max(shape.largest_load(*area.volumes(self.matrix)) for area, shape in self.areas)

    def scheme(self, model: str) -> Scheme:
        areas: list[Area] = []
        rows_written = columns_written = 0
        for coverage, (held, shape) in enumerate(self.areas):
            # On either side the areas before hold a prefix of the keys, so that what is left to write is one range.
            rows = _unwritten(held.top, held.bottom, rows_written, self.matrix.row_keys)
            columns = _unwritten(held.begin, held.end, columns_written, self.matrix.column_keys)
            rows_written, columns_written = max(rows_written, held.bottom), max(columns_written, held.end)
            keys = self.matrix.row_keys(held.top, held.bottom), self.matrix.column_keys(held.begin, held.end)
            areas += [
                Area(
                    task=len(areas) + number,
                    coverage=coverage,
                    keys=keys,
                    units=units,
                    writes=(rows if units[RIGHT].low == 0 else None, columns if units[LEFT].low == 0 else None),
                )
                for number, units in enumerate(shape.areas())
            ]
        return Scheme(model, self.tasks, tuple(areas), _summary([shape for _, shape in self.areas]))


def _unwritten(begin: int, end: int, written: int, keys: Callable[[int, int], KeyRange]) -> KeyRange | None:
    return keys(max(begin, written), end) if written < end else None


def _summary(shapes: Sequence[Shape]) -> str:
    counts = Counter(map(str, shapes))
    listed = ", ".join(f"{count} x {shape}" if count > 1 else shape for shape, count in list(counts.items())[:8])
    more = ", ..." if len(counts) > 8 else ""
    return f"{len(shapes)} coverage {'area' if len(shapes) == 1 else 'areas'}: {listed}{more}"
