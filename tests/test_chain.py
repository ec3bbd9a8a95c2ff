"""The handshake chain: every interleaving of small cases and random ones of larger, against every pair tried, and with its rules broken."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cases import how_many, some
from chain_cases import UNBOUNDED, Case, even, random_case, stream
from streamjoin.chain.messages import (
    Ack,
    Closed,
    Drop,
    Effect,
    Extend,
    HandBack,
    Leave,
    Mark,
    Match,
    Message,
    Retire,
    Send,
    SizeChanged,
    TupleBlock,
)
from streamjoin.chain.worker import ProtocolError, State, Worker
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin_research.chain.interleavings import explore
from streamjoin_research.chain.network import Network, workers_of
from streamjoin_research.chain.stores import Pair, QueueStore, StreamTuple, Tuples, Window

SEEDS = range(how_many(320, of=4))


def small_cases() -> Iterator[tuple[str, Case]]:
    """Four tuples a side, on up to three workers."""
    for workers, block in itertools.product((1, 2, 3), (1, 2)):
        chain, marks = f"{workers} workers, blocks of {block}", 2 if workers < 3 else 3
        yield f"{chain}, unbounded", Case(workers, block, even((4, 4)))
        yield f"{chain}, in blocks of two", Case(workers, block, even((4, 4), block=2))
        yield f"{chain}, window", Case(workers, block, even((4, 4), marks=marks), (1.5, 1.5))
        yield f"{chain}, one stream first", Case(workers, block, (stream(0, range(4)), stream(1, range(10, 14))))
        if workers < 3 or block > 1:
            yield f"{chain}, one side's window", Case(workers, block, even((4, 4), marks=marks), (0.5, math.inf))
        if workers < 3:
            yield f"{chain}, window, more marks", Case(workers, block, even((4, 4), marks=1), (1.5, 1.5))
    yield "3 workers, blocks of 1, window, more marks", Case(3, 1, even((3, 3), marks=1), (1.5, 1.5))


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in some(small_cases(), of=5, since=2)])
def test_every_interleaving_finds_each_pair_once(case: Case) -> None:
    """And keeps I1 to I7 after every read."""
    done = explore(case.network(), case.answer())
    assert done.failure is None, str(done.failure)
    assert done.states > 1


def test_interleavings_that_are_left_out_differ_from_others_in_nothing() -> None:
    """Without the reduction there are many more states, and they end as well."""
    for case in (Case(2, 1, even((2, 2))), Case(3, 1, even((2, 1))), Case(2, 1, even((2, 2), marks=1), (0.5, 0.5))):
        reduced, whole = explore(case.network(), case.answer()), explore(case.network(), case.answer(), reduced=False)
        assert reduced.failure is None
        assert whole.failure is None
        assert reduced.states < whole.states / 2


class Ordered(Network[Tuples, Pair]):
    """Checks after each read, and writes down which tuples came to which worker."""

    def __init__(self, *arguments: object) -> None:
        self.came: dict[int, tuple[list[int], list[int]]] = {}
        super().__init__(*arguments)  # type: ignore[arg-type]

    def read(self, at: int, side: int) -> list[Pair]:
        item, worker = self.next_item(at, side), self.workers[at]
        if isinstance(item, TupleBlock):
            self.came.setdefault(id(worker), ([], []))[item.stream].extend(new.number for new in item.tuples)
        found = super().read(at, side)
        self.check()
        return found


def test_random_runs_find_what_trying_every_pair_finds() -> None:
    nontrivial = 0
    for seed in SEEDS:
        case = random_case(seed)
        network = case.network(Ordered)
        found = network.run(random.Random(seed))
        assert sorted(found, key=repr) == sorted(case.answer(), key=repr), f"seed {seed}"
        assert not any(network.sources), f"seed {seed}"
        assert network.dropped == [0, 0]
        for came in network.came.values():
            expected = [[new.number for new in case.tuples(side)] for side in SIDES]
            assert [came[LEFT], came[RIGHT]] == expected, f"I3, seed {seed}"
        nontrivial += bool(case.answer()) and case.workers > 1
    assert nontrivial > len(SEEDS) / 2


class ArrowStore:
    """Blocks are Arrow tables, and so is what a block finds: by equal keys, within 20 seconds. Workers notice nothing of it."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.table = pa.table({"number": pa.array([], pa.int64()), "time": pa.array([], pa.int64()), "key": pa.array([], pa.int64())})

    def __len__(self) -> int:
        return self.table.num_rows

    def append(self, tuples: pa.Table) -> None:
        self.table = pa.concat_tables([self.table, tuples])

    def prepend(self, tuples: pa.Table) -> None:
        self.table = pa.concat_tables([tuples, self.table])

    def take(self, count: int) -> pa.Table:
        taken, self.table = self.table.slice(0, count), self.table.slice(count)
        return taken

    def expired(self, mark: float) -> int:
        times = self.table["time"].to_pylist()
        return next((at for at, time in enumerate(times) if not (mark == math.inf or time + 20 < mark)), len(times))

    def probe(self, tuples: pa.Table) -> list[pa.Table]:
        found = self.table.join(tuples, "key", join_type="inner", left_suffix="_held", right_suffix="_probing")
        near = pc.less_equal(pc.abs(pc.subtract(found["time_held"], found["time_probing"])), 20)
        names = [f"number_{name}" for name in (("held", "probing") if self.stream == LEFT else ("probing", "held"))]
        found = found.filter(near).select(names).rename_columns(["left", "right"])
        return [found] if found.num_rows else []


def test_workers_handle_arrow_tables_as_they_do_tuples() -> None:
    found_any = 0
    for seed in range(20):
        case = replace(random_case(seed, changes=0.1), reach=(20.0, 20.0), predicate=lambda left, right: left.key == right.key)
        sources = [
            [TupleBlock(side, item.number, arrow(item.tuples)) if isinstance(item, TupleBlock) else item for item in case.sources[side]]
            for side in SIDES
        ]
        network = Network(workers_of(ArrowStore, case.block_tuples), case.workers, (sources[0], sources[1]))
        pairs = [(row["left"], row["right"]) for table in network.run(random.Random(seed)) for row in table.to_pylist()]
        assert sorted(pairs) == sorted((left.number, right.number) for left, right in case.answer()), f"seed {seed}"
        found_any += bool(pairs)
    assert found_any > 10


def arrow(tuples: Tuples) -> pa.Table:
    columns = {name: [getattr(new, name) for new in tuples] for name in ("number", "time", "key")}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def test_neighbours_differ_by_a_block_and_the_ends_of_a_chain_by_one_for_each_link() -> None:
    """The papers say that workers differ by one block at most. So they do until tuples expire: then what is dropped, and what is pushed on
    in less than a block, may leave each worker almost a block ahead of the next."""
    most = {False: 0.0, True: 0.0}
    for seed in range(how_many(400, of=2)):
        chance = random.Random(seed)
        workers, block = chance.choice([3, 4]), chance.choice([2, 3, 8])
        reach = chance.choice([(3.0, 3.0), (10.0, 10.0), UNBOUNDED])
        network = Case(workers, block, even((chance.randrange(60), chance.randrange(60)), marks=2), reach).network()
        for source in network.sources:
            source.pop()
        network.run(chance)
        for side in SIDES:
            sizes = [len(worker.held[side]) for worker in network.workers][:: 1 - 2 * side]
            assert all(-block <= before - after < block for before, after in itertools.pairwise(sizes)), f"seed {seed}"
            ahead = max(before - after for before, after in itertools.combinations(sizes, 2))
            assert ahead <= (workers - 1) * (block - 1), f"seed {seed}"
            most[reach != UNBOUNDED] = max(most[reach != UNBOUNDED], ahead / block)
    assert most[False] < 1 < most[True]


def test_unbounded_windows_are_complete_only_when_streams_end() -> None:
    """Tuples that nothing pushes stay where they are: a pair at two ends of a chain waits."""
    case = Case(2, 2, even((1, 1)))
    network = case.network()
    ends = [source.pop() for source in network.sources]
    assert network.run(random.Random(0)) == []
    for source, end in zip(network.sources, ends, strict=True):
        source.append(end)
    assert network.run(random.Random(0)) == case.answer()


def test_a_result_arises_when_the_ages_of_its_tuples_add_up_to_the_window() -> None:
    """Or to a worker's share less: where a tuple is tells its age, and it meets all that its worker holds."""
    window, block, workers = 200.0, 5, 4
    network = Case(workers, block, ([], []), (window, window), lambda left, right: (left.number - right.number) % 20 == 0).network()
    ages = []
    for number in range(int(5 * window)):
        for side in SIDES:
            time = number + side / 2
            network.sources[side].extend([TupleBlock(side, number, (StreamTuple(side, number, time),)), Mark(side, time)])
            for _ in range(2):
                found = network.read(0 if side == LEFT else workers - 1, side)
                for left, right in [*found, *network.settle()]:
                    if number > 3 * window:
                        ages.append(2 * time - left.time - right.time)
    assert len(ages) > 1000
    assert window * (1 - 1 / workers) - 3 * block < min(ages) < max(ages) < window + 3 * block
    assert sum(ages) / len(ages) == pytest.approx(window * (1 - 1 / workers / 2), rel=0.05)


class NobodysCopies(Worker[Tuples, Pair]):
    """The "missed-join pair" of Teubner and Mueller."""

    copies_of = ()


class LeftCopiesToo(Worker[Tuples, Pair]):
    """As the papers tell it, for both streams alike."""

    copies_of = (LEFT, RIGHT)


class OnlyLeftCopies(Worker[Tuples, Pair]):
    """The other one of the two right ways."""

    copies_of = (LEFT,)


class OvertakingAcks(Network[Tuples, Pair]):
    """Acknowledgements go by a channel that is faster than that of blocks."""

    def _put(self, channel, message) -> None:  # type: ignore[no-untyped-def]
        if isinstance(message, Ack):
            channel.insert(sum(isinstance(other, Ack) for other in channel), message)
        else:
            channel.append(message)


class DropsAnywhere(Worker[Tuples, Pair]):
    """An expired tuple goes where it is."""

    def _forward(self, stream: int) -> Iterator[Effect[Tuples, Pair]]:
        mark = self.marks[1 - stream]
        if mark is not None and (expired := self.held[stream].expired(mark)):
            self.held[stream].take(expired)
            self.dropped[stream] += expired
        yield from super()._forward(stream)


class TellsOtherSizesThanBefore(Worker[Tuples, Pair]):
    """And does not count that its predecessor adds what it acknowledges."""

    def _process(self, block: TupleBlock[Tuples]) -> Iterator[Effect[Tuples, Pair]]:
        told = self._told[block.stream]
        yield from super()._process(block)
        self._told[block.stream] = told


WRONG = {
    "nobody's copies are found": (Network, NobodysCopies, "not found"),
    "both streams' copies are found": (Network, LeftCopiesToo, "found again"),
    "acknowledgements overtake blocks": (OvertakingAcks, Worker, "not found"),
    "expired tuples are dropped where they are": (Network, DropsAnywhere, "not found"),
}


@pytest.mark.parametrize("variant", WRONG)
@pytest.mark.parametrize("reduced", [True, False])
def test_each_wrong_variant_goes_wrong_with_a_tuple_a_side(variant: str, reduced: bool) -> None:
    network, worker, how = WRONG[variant]
    case = Case(2, 2, even((1, 1)), (0.5, 0.5))
    failure = explore(case.network(network, worker), case.answer(), reduced=reduced).failure
    assert failure is not None
    assert failure.what.startswith(how)
    assert explore(case.network(), case.answer(), reduced=reduced).failure is None


@pytest.mark.parametrize("variant", WRONG)
def test_each_wrong_variant_goes_wrong_in_random_runs(variant: str) -> None:
    network, worker, _ = WRONG[variant]
    assert sum(goes_wrong(random_case(seed), network, worker, seed) for seed in range(80)) > 5


def goes_wrong(case: Case, network: type[Network[Tuples, Pair]], worker: type[Worker[Tuples, Pair]], seed: int) -> bool:
    found = case.network(network, worker).run(random.Random(seed))
    return sorted(found, key=repr) != sorted(case.answer(), key=repr)


def test_a_size_is_told_again_after_a_block_that_came_and_went() -> None:
    case = Case(3, 1, (stream(LEFT, [0, 1]), stream(RIGHT, [])))
    failure = explore(case.network(worker=TellsOtherSizesThanBefore), []).failure
    assert failure is not None
    assert failure.what == "I6: of stream 0 workers hold [1, 0, 1], and blocks are of 1"
    assert explore(case.network(), []).failure is None


def test_it_does_not_matter_which_stream_s_copies_are_found() -> None:
    for case in (Case(3, 1, even((3, 3))), Case(2, 2, even((4, 4), marks=1), (1.5, 1.5))):
        assert explore(case.network(worker=OnlyLeftCopies), case.answer()).failure is None


def test_a_failure_tells_every_read_on_the_way() -> None:
    case = Case(2, 1, even((1, 1)))
    failure = explore(case.network(worker=NobodysCopies), case.answer()).failure
    assert failure is not None
    assert failure.reads[0].startswith("worker 1 of 2, from the left: TupleBlock(stream=0, number=0")
    assert len(str(failure).splitlines()) == 1 + len(failure.reads)


def test_too_many_states_are_refused() -> None:
    case = Case(3, 1, even((4, 4)))
    with pytest.raises(RuntimeError, match="most_states: there are more than 100"):
        explore(case.network(), case.answer(), most_states=100)


LEFTS = [StreamTuple(LEFT, number, float(number)) for number in range(6)]
RIGHTS = [StreamTuple(RIGHT, number, number + 0.5) for number in range(6)]


def middle(block: int = 2, reach: tuple[float, float] = UNBOUNDED, **options: bool) -> Worker[Tuples, Pair]:
    return Worker(lambda side: QueueStore(side, Window(reach)), block, (True, True), **options)


def handle(worker: Worker[Tuples, Pair], *messages: Message[Tuples]) -> list[Effect[Tuples, Pair]]:
    effects: list[Effect[Tuples, Pair]] = []
    for message in messages:
        effects = worker.handle(message)
        worker.validate()
        assert worker.state is State.PROCESSING
    return effects


def test_a_worker_probes_acknowledges_and_forwards_then_tells_its_size() -> None:
    worker = middle()
    handle(worker, TupleBlock(RIGHT, 7, (RIGHTS[0],)))
    assert handle(worker, TupleBlock(LEFT, 4, (LEFTS[0],))) == [Match((LEFTS[0], RIGHTS[0])), Send(LEFT, Ack(LEFT, 4))]
    assert handle(worker, TupleBlock(LEFT, 5, (LEFTS[1],))) == [
        Match((LEFTS[1], RIGHTS[0])),
        Send(LEFT, Ack(LEFT, 5)),
        Send(RIGHT, TupleBlock(LEFT, 0, (LEFTS[0], LEFTS[1]))),
        Send(LEFT, SizeChanged(LEFT, 0)),
    ]


def test_a_right_tuple_s_copy_is_found_until_it_is_acknowledged_and_a_left_one_s_never() -> None:
    worker = middle(1)
    handle(worker, TupleBlock(RIGHT, 0, (RIGHTS[0],)))
    assert Match((LEFTS[0], RIGHTS[0])) in handle(worker, TupleBlock(LEFT, 0, (LEFTS[0],)))
    assert Match((LEFTS[0], RIGHTS[1])) not in handle(worker, TupleBlock(RIGHT, 1, (RIGHTS[1],)))
    handle(worker, Ack(RIGHT, 0))
    assert Match((LEFTS[1], RIGHTS[0])) not in handle(worker, TupleBlock(LEFT, 1, (LEFTS[1],)))


def test_what_is_on_its_way_counts_as_the_successors() -> None:
    """Else a worker would send block after block before the first is acknowledged."""
    worker = middle(2)
    handle(worker, TupleBlock(LEFT, 0, tuple(LEFTS[:2])), TupleBlock(LEFT, 1, tuple(LEFTS[2:4])))
    assert len(worker.held[LEFT]) == 2
    handle(worker, Ack(LEFT, 0))
    assert len(worker.held[LEFT]) == 2
    assert handle(worker, SizeChanged(LEFT, 0))[0] == Send(RIGHT, TupleBlock(LEFT, 1, tuple(LEFTS[2:4])))


def test_expired_tuples_are_pushed_on_in_one_block_and_dropped_at_the_end() -> None:
    worker = middle(2, (1.0, 1.0))
    handle(worker, SizeChanged(LEFT, 100), TupleBlock(LEFT, 0, tuple(LEFTS[:5])))
    assert handle(worker, Mark(RIGHT, 3.5)) == [
        Send(LEFT, Mark(RIGHT, 3.5)),
        Send(RIGHT, TupleBlock(LEFT, 0, tuple(LEFTS[:3]))),
        Send(LEFT, SizeChanged(LEFT, 2)),
    ]
    last = Worker(lambda side: QueueStore(side, Window((1.0, 1.0))), 2, (True, False))
    handle(last, TupleBlock(LEFT, 0, tuple(LEFTS[:5])))
    assert handle(last, Mark(RIGHT, 3.5)) == [Send(LEFT, Mark(RIGHT, 3.5)), Drop(LEFT, tuple(LEFTS[:3])), Send(LEFT, SizeChanged(LEFT, 2))]
    assert last.dropped == [3, 0]


def test_a_mark_that_is_not_later_is_not_passed_on() -> None:
    worker = middle()
    assert handle(worker, Mark(LEFT, 5.0)) == [Send(RIGHT, Mark(LEFT, 5.0))]
    assert handle(worker, Mark(LEFT, 5.0)) == handle(worker, Mark(LEFT, 4.0)) == []


class Failing(QueueStore):
    def probe(self, tuples: Tuples) -> list[Pair]:
        raise OSError("no memory")


@pytest.mark.parametrize(
    ("neighbours", "messages", "says"),
    [
        ((True, True), [Ack(LEFT, 0)], "Ack.*came, and the first of"),
        ((True, True), [TupleBlock(LEFT, 0, (LEFTS[0],)), TupleBlock(LEFT, 1, (LEFTS[1],)), Ack(LEFT, 1)], "keep channels in order"),
        ((True, True), [Extend(RIGHT)], "only a source moves on"),
        ((True, True), [Retire(RIGHT)], "no end of two or more"),
        ((False, False), [Retire(RIGHT)], "no end of two or more"),
        ((True, False), [Retire(RIGHT), Leave(LEFT)], "let one go first"),
        ((True, False), [Closed(RIGHT)], "has not asked for it"),
        ((True, True), [HandBack(LEFT, ())], "has not said that it goes"),
        ((True, False), [Retire(RIGHT), Closed(RIGHT), Mark(LEFT, 1.0)], "has gone"),
    ],
)
def test_messages_that_cannot_be_are_refused(neighbours: tuple[bool, bool], messages: list[Message[Tuples]], says: str) -> None:
    worker = Worker(QueueStore, 1, neighbours)
    for message in messages[:-1]:
        worker.handle(message)
    with pytest.raises(ProtocolError, match=says):
        worker.handle(messages[-1])


def test_a_worker_whose_store_failed_takes_no_more_messages() -> None:
    worker = Worker(Failing, 1, (True, True))
    with pytest.raises(OSError, match="no memory"):
        worker.handle(TupleBlock(LEFT, 0, (LEFTS[0],)))
    with pytest.raises(ProtocolError, match="failed while processing"):
        worker.handle(Mark(LEFT, 1.0))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Worker(QueueStore, 0, (False, False)), "block_tuples: 0 must be 1 or more"),
        (lambda: Case(0, 1, ([], [])).network(), "workers: 0 must be 1 or more"),
        (lambda: Window((1.0, -1.0)), "reach: -1.0 must be 0 or more"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=says):
        make()


def test_invariants_are_checked() -> None:
    """A chain that was tampered with does not pass."""
    network = Case(2, 1, even((2, 2))).network()
    network.read(0, LEFT)
    network.check()
    for tamper in (lambda: network.workers[0].held[LEFT].append((LEFTS[5],)), lambda: network.gaps[0][RIGHT].clear()):
        before = deepcopy(network.workers), deepcopy(network.gaps)
        tamper()
        with pytest.raises(AssertionError, match=r"^I[457]: "):
            network.check()
        network.workers, network.gaps = before
