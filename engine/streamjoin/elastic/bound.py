"""What no plan can avoid moving: a bound that does not know how the new plan is cut, so that a plan can be found to move too much.

Whatever it looks like, a plan for n tasks is a choice of the l left and r right tuples that each of them holds, l + r <= V. To the task
that a worker goes on as which held a left and b right tuples, it moves at least m = max(0, l - a) + max(0, r - b). And::

    sum l >= L,  sum r >= R      every tuple is held by some task
    sum l * r >= P               P pairs may match, and each is found in a task that holds both of its tuples

The second does not hold for schemes whose areas hold one side, and are probed by the other (``biclique``, ``broadcast``). The least sum of
m under these conditions is a lower bound, and by weak duality, for any lambda and mu >= 0, so is::

    lambda P + mu (L + R) + the least, over who goes on, of the sum over tasks of  min over l, r of  m - lambda l r - mu (l + r)

of which :func:`least_moved` takes the greatest that it finds: numbers that are not the best make it smaller, never wrong. It is proved
for the tuples that the statistics say, not for those that there are. There may be no plan that moves so little: tasks are taken for sets
of tuples of any form, while those of a scheme are rectangles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.language.predicate import Bound, MainKind, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.region import held, volumes
from streamjoin.scheme.statistics import SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import Scheme, after, before

Array = np.ndarray[Any, np.dtype[Any]]

STEPS = 24
"""Of the search for lambda: it is then known to a hundred-thousandth of its range."""
PRICES, ZOOMS = 17, 4
"""So many values of mu are looked at, so often, each time between the neighbours of the best."""
MOST_KINDS, GRADES = 512, 48
"""Of more kinds of workers than this, those are taken together that hold alike to within a part of so many."""
GOLDEN = (math.sqrt(5) - 1) / 2
ROUNDING = 1e-9
"""Of sums, relative to all tuples."""


def least_moved(old: Scheme | None, new: Scheme, statistics: Statistics, main: MainPredicate) -> float:
    """So many tuples, replicas counted, are moved by each plan that has as many tasks as ``new`` and none fuller than its fullest.

    ``old``: the running scheme; None: nothing is held yet. Where all areas of ``new`` hold both sides, the plans are meant that do so too;
    else all plans.
    O(kinds of workers) in each of some hundred steps: 10 ms for a dozen.
    """
    # Any number may begin anew, with nothing.
    kinds, alike = _alike(np.concatenate([np.zeros((0, 2)) if old is None else _held(old, statistics), np.zeros((new.tasks, 2))]))
    both = all(all(area.holds) for area in new.areas)
    problem = _Problem(
        held=kinds,
        alike=alike,
        tasks=new.tasks,
        capacity=float(loads(new, statistics).max()),
        left=statistics.sides[LEFT].total,
        right=statistics.sides[RIGHT].total,
        pairs=pairs_that_match(statistics, main) if both else 0.0,
    )
    # Where tuples weigh more than 1, the bound is one of volume: no tuple is more of it than the heaviest.
    return problem.solve() / max(side.weight for side in statistics.sides)


def pairs_that_match(statistics: Statistics, main: MainPredicate) -> float:
    """The pairs that the main predicate admits whatever the keys are inside the left side's buckets, as volume x volume. O(buckets).

    Where keys say nothing (no main predicate, and != for want of knowing which are equal), all pairs; of keys of unknown spread none.
    """
    left, right = statistics.sides
    if main.kind is not MainKind.RANGE:
        return left.total * right.total
    if left.histogram is None or right.histogram is None or len(left.histogram.bounds) < 2:
        return 0.0
    bounds = left.histogram.bounds.tolist()
    # What both the lowest key of a bucket and its highest reach, all keys between them reach. The two open buckets have no such keys.
    highest = [before(bound, main.is_float) for bound in bounds[1:]]
    lows = [main.reach(key, key)[0] for key in highest]
    highs = [None if (high := main.reach(key, key)[1]) is None else after(high, main.is_float) for key in bounds[:-1]]
    reached = np.maximum(0.0, _below(right, highs, right.total) - _below(right, lows, 0.0))
    return float(np.diff(left.below(left.histogram.bounds)) @ reached)


def _below(side: SideStatistics, bounds: Sequence[Bound], without: float) -> Array:
    """The tuples below each of these bounds; ``without`` a bound."""
    known = np.array([bound is not None for bound in bounds])
    return np.where(known, side.below(np.array([bound or 0 for bound in bounds])), without)


def _held(scheme: Scheme, statistics: Statistics) -> Array:
    """Per task the volume that it holds of left and of right."""
    parts = [(task, region) for task, regions in enumerate(held(scheme)) for region in regions]
    found = np.zeros((scheme.tasks, 2))
    places = np.array([(task, region.side) for task, region in parts]).reshape(-1, 2)
    np.add.at(found, (places[:, 0], places[:, 1]), volumes((region for _, region in parts), statistics))
    return found


def _alike(workers: Array) -> tuple[Array, Array]:
    """The kinds of workers, by what they hold, and how many there are of each: as a rule many hold alike.

    Of more than ``MOST_KINDS``, those that hold nearly the same are taken for one that holds all that any of them does, which can only
    make the bound lower.
    """
    kinds, alike = np.unique(workers, axis=0, return_counts=True)
    if len(kinds) <= MOST_KINDS:
        return kinds, alike
    step = np.maximum(kinds.max(axis=0), 1e-300) / GRADES
    grade = np.ceil(kinds / step)
    _, place = np.unique(grade, axis=0, return_inverse=True)
    place = place.ravel()
    merged = np.zeros((int(place.max()) + 1, 2))
    np.maximum.at(merged, place, kinds)
    return merged, np.bincount(place, alike).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Problem:
    """See the module."""

    held: Array
    """Per kind of worker, its left and its right tuples."""
    alike: Array
    """Per kind, how many."""
    tasks: int
    capacity: float
    left: float
    right: float
    pairs: float

    def solve(self) -> float:
        lefts, rights = self._corners()
        # Beyond, a task gains more by a tuple than it costs to move one, and the sum falls without end.
        most = 4 / self.capacity if self.pairs else 0.0
        found = _greatest(lambda price: self._best(lefts, rights, price), most)
        return max(0.0, found - ROUNDING * (self.left + self.right))

    def _best(self, lefts: Array, rights: Array, pairs_price: float) -> float:
        """The greatest bound that this lambda gives, and about the best mu."""
        if pairs_price:
            more = self._on_the_diagonal(pairs_price)
            lefts, rights = np.hstack([lefts, more[0]]), np.hstack([rights, more[1]])
        moved = np.maximum(0, lefts - self.held[:, :1]) + np.maximum(0, rights - self.held[:, 1:])
        gained, taken = moved - pairs_price * lefts * rights, lefts + rights
        best, low, high = -math.inf, 0.0, 1.0
        for _ in range(ZOOMS):
            prices = np.linspace(low, high, PRICES)
            least = (gained[:, :, None] - prices * taken[:, :, None]).min(axis=1)
            order = np.argsort(least, axis=0)
            alike = self.alike[order]
            chosen = np.clip(self.tasks - (np.cumsum(alike, axis=0) - alike), 0, alike)
            least_sum = (np.take_along_axis(least, order, axis=0) * chosen).sum(axis=0)
            bounds = pairs_price * self.pairs + prices * (self.left + self.right) + least_sum
            at = int(np.argmax(bounds))
            best = max(best, float(bounds[at]))
            low, high = prices[max(0, at - 1)], prices[min(PRICES - 1, at + 1)]
        return best

    def _corners(self) -> tuple[Array, Array]:
        """Per kind of worker, the corners of the polygons in which m is linear.

        There lies every least value that is not on the line l + r = V. A corner that is not possible is given as l = r = 0, which is.
        """
        held = self.held
        zero, all_left, all_right = np.zeros(len(held)), np.full(len(held), self.left), np.full(len(held), self.right)
        of_left, of_right = (zero, held[:, 0], all_left), (zero, held[:, 1], all_right)
        points = [(left, right) for left in of_left for right in of_right]
        points += [(left, self.capacity - left) for left in of_left] + [(self.capacity - right, right) for right in of_right]
        return self._possible(np.stack([left for left, _ in points], axis=1), np.stack([right for _, right in points], axis=1))

    def _on_the_diagonal(self, pairs_price: float) -> tuple[Array, Array]:
        """Where, on l + r = V, the slope of m - lambda l r is zero; m's own is -1, 0 or 1."""
        low, high = max(0.0, self.capacity - self.right), min(self.left, self.capacity)
        lefts = np.clip((self.capacity - np.array([-1.0, 0.0, 1.0]) / pairs_price) / 2, low, max(low, high))
        lefts, rights = self._possible(lefts, self.capacity - lefts)
        return np.tile(lefts, (len(self.held), 1)), np.tile(rights, (len(self.held), 1))

    def _possible(self, lefts: Array, rights: Array) -> tuple[Array, Array]:
        slack = ROUNDING * (self.left + self.right)
        fits = (lefts >= 0) & (rights >= 0) & (lefts <= self.left + slack) & (rights <= self.right + slack)
        fits &= lefts + rights <= self.capacity + slack
        return np.where(fits, lefts, 0.0), np.where(fits, rights, 0.0)


def _greatest(value: Callable[[float], float], high: float) -> float:
    """About the greatest value of a concave function on [0, high], by golden section; never more than it."""
    low, best = 0.0, value(0.0)
    if not high:
        return best
    best = max(best, value(high))
    one, other = high - GOLDEN * high, GOLDEN * high
    at_one, at_other = value(one), value(other)
    for _ in range(STEPS):
        best = max(best, at_one, at_other)
        if at_one >= at_other:
            high, other, at_other = other, one, at_one
            one = high - GOLDEN * (high - low)
            at_one = value(one)
        else:
            low, one, at_one = one, other, at_other
            other = low + GOLDEN * (high - low)
            at_other = value(other)
    return max(best, at_one, at_other)
