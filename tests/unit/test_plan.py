"""Lowering: the tables compute the right numbers, whenever messages move; mutants of them do not."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import layout as at
from collectives.algorithms import Algorithm, every, find
from collectives.contract import ROOTED, contract
from collectives.extents import Bound, aligned_part, chunk_offsets
from collectives.plan import Target, lower
from collectives.plans import holds
from collectives.proof.reference import Wrong
from collectives.properties import output_may_be_input
from collectives.schedule import (
    DATA,
    INPUT,
    OUTPUT,
    SCRATCH,
    WHOLE,
    Lane,
    Phase,
    Schedule,
    collect,
    copy,
    lane,
    recv,
    recv_reduce,
    send,
)
from collectives.verify import weights
from tests.unit.table_cases import Case

ALL = pytest.mark.parametrize("algorithm", every(), ids=lambda a: f"{a.collective}-{a.name}")
SHAPES = (((0, 1), (2, 3)), ((0, 1, 2), (3,)), ((0, 2, 4), (1, 3)), ((0, 1, 2), (3, 4, 5)), ((0,), (1, 2), (3, 4, 5)))
MUTANTS = 20  # of each algorithm


def choices(algorithm):
    """Every choice of the parameters that are not the pipeline's."""
    own = [p for p in algorithm.parameters if p.name not in ("segment_bytes", "slots")]
    for values in product(*(p.choices for p in own)):
        yield tuple(zip((p.name for p in own), values, strict=True))


def draw(algorithm, random, ranks, count):
    """A case of so many ranks and elements, the rest at random."""
    itemsize = random.choice([1, 2, 4, 8])
    params = random.choice(list(choices(algorithm)))
    segment = None
    if algorithm.pipelined and random.random() < 0.6:
        segment = random.choice([1, 3, 5, 8]) * itemsize
        params += (("slots", random.choice([1, 2, 3, 4, 7])),)
    shapes = [shape for shape in SHAPES if sum(map(len, shape)) == ranks and not algorithm.lack(ranks, shape)]
    return Case(
        algorithm,
        ranks,
        count,
        params,
        segment,
        nodes=random.choice([None, *shapes]),
        shared=random.random() < 0.7,
        root=random.randrange(ranks) if algorithm.collective in ROOTED else 0,
        itemsize=itemsize,
        align=random.choice([1, 1, 4, 64 // itemsize]),
        piece_bytes=random.choice([1, 2, 100]) * 64,
    )


@ALL
@pytest.mark.parametrize("ranks", range(1, 8))
def test_tables_compute_the_right_numbers_whenever_messages_move(algorithm, ranks):
    if algorithm.lack(ranks):
        pytest.skip(str(algorithm.refusal(ranks)))
    random = Random(f"{algorithm.collective} {algorithm.name} {ranks}")
    for count in random.sample([0, 1, ranks - 1, ranks, ranks + 1, 13, 31, 97], 3):
        case = draw(algorithm, random, ranks, count)
        print(case)  # shown if it is wrong
        tables = [table.words for table in case.tables(case.weights())]
        case.run(tables, random.randrange(1 << 30))


@ALL
def test_every_setting_computes_the_right_numbers_on_every_shape(algorithm):
    random = Random(1)
    for params in choices(algorithm):
        shapes = [nodes for nodes in SHAPES if not algorithm.lack(sum(map(len, nodes)), nodes)]
        few = random.sample(shapes, min(3, len(shapes)))
        for nodes in shapes if len(params) < 2 and algorithm.needs_nodes else few:
            segment = random.choice([None, 24]) if algorithm.pipelined else None
            ranks = sum(map(len, nodes))
            case = Case(
                algorithm,
                ranks,
                41,
                params,
                segment,
                nodes=nodes,
                root=(ranks - 1) * (algorithm.collective in ROOTED),
                itemsize=8,
            )
            print(case)
            case.run([table.words for table in case.tables(case.weights())], random.randrange(1 << 30))


def test_the_interpreter_refuses_an_input_that_is_written():
    case = Case(find("reduce", "binomial_tree"), 3, 8)
    memories = case.memories()
    with pytest.raises(Wrong, match="an input is written"):
        memories[1][INPUT].write(0, memories[1][INPUT].read(4, 4))


# ---------------------------------------------------------------- mutants
def words_that_count(words):
    """Places of the words that somebody reads: (place, what to add to it or take from it); None: an element's size."""

    def line(section, index, width):
        start = words[section] + index * width
        return start, words[start : start + width]

    for lane_number in range((words[at.ROUNDS] - words[at.LANES]) // at.LANE_WORDS):
        start, lane_words = line(at.LANES, lane_number, at.LANE_WORDS)
        if not lane_words[at.N_ROUNDS]:
            continue  # padding
        yield from ((start + name, 1) for name in (at.N_ROUNDS, at.SEGMENTS, at.FIRST_ROUND, at.CHANNEL))
        for number in range(lane_words[at.FIRST_ROUND], lane_words[at.FIRST_ROUND] + lane_words[at.N_ROUNDS]):
            start, (first, count, *_) = line(at.ROUNDS, number, at.ROUND_WORDS)
            yield from ((start + name, 1) for name in (at.FIRST_ROW, at.ROW_COUNT))
            for index in range(first, first + count):
                yield from row_words(words, *line(at.ROWS, index, at.ROW_WORDS))


def row_words(words, start, row):
    plain, full, tail = row[at.LANDING] == at.PLAIN, row[at.FULL], row[at.TAIL_LENGTH] > 0
    yield from [(start + at.LENGTH, None)] * (full > 0)
    yield from [(start + at.OFFSET, None)] * (full > 0 and plain)
    yield from [(start + at.STRIDE, None)] * (full > 1 and plain)
    yield from [(start + at.TAIL_LENGTH, None)] * tail
    yield from [(start + at.TAIL_OFFSET, None)] * (tail and plain)
    named = [at.KIND, *[at.FULL] * (full > 0)]
    if row[at.KIND] == at.FOLD:
        named += [at.BUFFER, at.FIRST_TERM, at.TERM_COUNT]
        for j in range(row[at.TERM_COUNT]):
            term = words[at.TERMS] + (row[at.FIRST_TERM] + j) * at.TERM_WORDS
            own = words[term + at.TERM_ROW] == at.OWN
            yield term + at.TERM_ROW, 1
            yield from [(term + at.TERM_BUFFER, 1)] * own
            yield from [(term + at.TERM_OFFSET, None)] * (own and row[at.FULL] > 0)
            yield from [(term + at.TERM_TAIL_OFFSET, None)] * (own and row[at.TAIL_LENGTH] > 0)
            yield from [(words[at.WEIGHTS] + row[at.FIRST_TERM] + j, 1)] * (row[at.TERM_COUNT] > 1)
    else:
        named += [at.LINK, at.PEER if row[at.LINK] == at.MPI else at.FIFO, *[at.BUFFER] * plain]
        named += [at.LANDING] * (row[at.KIND] == at.RECV)  # streamed to whole: more memory, same numbers
    yield from ((start + name, 1) for name in named)


def caught(case, tables, seeds=range(4)):
    """Whether wrong numbers, a hang, or a table that makes no sense give a mutant away."""
    try:
        for seed in seeds:
            case.run(tables, seed)
    except (Wrong, LookupError, ValueError, ArithmeticError):
        return True
    return False


@ALL
def test_mutants_of_tables_are_caught_by_the_numbers(algorithm):
    random = Random(f"mutants {algorithm.collective} {algorithm.name}")
    passed = []
    for _ in range(MUTANTS):
        case = draw(
            algorithm, random, random.choice([p for p in (3, 4, 5) if not algorithm.lack(p)]), random.choice([31, 40])
        )
        tables = [list(table.words) for table in case.tables(case.weights())]
        rank = random.choice([rank for rank, words in enumerate(tables) if words[at.N_PHASES]])
        place, step = random.choice(list(words_that_count(tables[rank])))
        tables[rank][place] += random.choice([-1, 1]) * (step or case.itemsize)
        if not caught(case, tables):
            passed.append((rank, place, case))
    assert len(passed) <= MUTANTS // 4, passed  # a segment of nothing more, a place that nobody looks at again


def without(case, word, value=0):
    """The case's tables with one word of all rows as if lowering had forgotten it."""
    tables = [list(table.words) for table in case.tables(case.weights())]
    for words in tables:
        for start in range(words[at.ROWS], words[at.TERMS] - at.ROW_WORDS + 1, at.ROW_WORDS):
            words[start + word] = value
    return tables


@pytest.mark.parametrize(
    "name, word, case",
    [
        ("a fold waits for sends of what it overwrites", at.END_AFTER, ("allreduce", "recursive_doubling", 4, False)),
        ("messages of one pair go in order", at.PREVIOUS, ("allgather", "bruck", 5, False)),
        ("slots have memory of their own", at.SLOT_STRIDE, ("reduce_scatter", "ring", 4, True)),
    ],
)
def test_what_lowering_adds_is_needed(name, word, case):
    collective, algorithm, ranks, pipelined = case
    segment, params = (32, (("slots", 3),)) if pipelined else (None, ())
    case = Case(find(collective, algorithm), ranks, 200, params, segment, shared=False)
    for seed in range(20):
        case.run([table.words for table in case.tables(case.weights())], seed)
    assert caught(case, without(case, word), range(20))


# ---------------------------------------------------------------- weights
@ALL
def test_a_dry_run_weighs_every_operand_as_the_proof_does(algorithm):
    """Whenever messages move; and every operand's weight is noted."""
    cases = [(6, None), (7, None), (5, SHAPES[2]), (6, SHAPES[4])]
    for ranks, nodes in [(p, nodes) for p, nodes in cases if not algorithm.lack(p, nodes)]:
        for params in list(choices(algorithm))[:4]:
            case = Case(algorithm, ranks, 31, params, nodes=nodes, shared=nodes is None)
            noted = case.weights(seed=1)
            assert all(weight > 0 for each in noted for weight in each)
            assert noted == case.weights(seed=2)
            schedules = algorithm.schedules(ranks, nodes=nodes, **dict(params))
            assert noted == weights(schedules, contract(algorithm.collective, ranks)), "the proof finds others"


# ---------------------------------------------------------------- large messages
def extents(words):
    """What rows and terms name of each of the caller's buffers: (buffer, first byte, end)."""

    def lines(section, first, count, width):
        return [words[words[section] + i * width :][:width] for i in range(first, first + count)]

    for lane_words in lines(at.LANES, 0, words[words[at.PHASES] + at.END_LANE], at.LANE_WORDS):
        for first, count, *_ in lines(at.ROUNDS, lane_words[at.FIRST_ROUND], lane_words[at.N_ROUNDS], at.ROUND_WORDS):
            for row in lines(at.ROWS, first, count, at.ROW_WORDS):
                places = [(row[at.BUFFER], row[at.OFFSET], row[at.STRIDE], row[at.TAIL_OFFSET])]
                terms = lines(at.TERMS, row[at.FIRST_TERM], row[at.TERM_COUNT], at.TERM_WORDS)
                places += [term[at.TERM_BUFFER : at.TERM_TAIL_OFFSET + 1] for term in terms if term[0] == at.OWN]
                for buffer, offset, stride, tail in places:
                    starts = [(offset + k * stride, row[at.LENGTH]) for k in range(row[at.FULL])]
                    starts += [(tail, row[at.TAIL_LENGTH])]
                    if buffer <= at.BUFFERS.index(OUTPUT):
                        yield from ((buffer, start, start + n) for start, n in starts if n)


@pytest.mark.parametrize(
    "algorithm, segment",
    [(a, segment) for a in every() for segment in (None, (1 << 30) + 8) if segment is None or a.pipelined],
    ids=lambda x: f"{x.collective}-{x.name}" if isinstance(x, Algorithm) else str(x),
)
def test_messages_of_twelve_gigabytes(algorithm, segment):
    """1.5e9 int64 on 4 ranks: every byte is reached, none beyond the end, and the numbers are right."""
    case = Case(algorithm, 4, 1_500_000_001, itemsize=8, align=8, piece_bytes=1 << 31, constant=True)
    case = replace(case, segment_bytes=segment, nodes=((0, 1), (2, 3)))
    tables = [table.words for table in case.tables(case.weights())]
    case.run(tables, seed=1)
    for rank, words in enumerate(tables):
        reached: dict[str, list[tuple[int, int]]] = {}
        for buffer, lo, hi in extents(words):
            reached.setdefault(at.BUFFERS[buffer], []).append((lo, hi))
        assert reached
        for name, parts in reached.items():
            size = 8 * sum(map(case.bound.length, holds(algorithm.collective, 4, rank)[name]))
            parts = sorted(set(parts))
            ends = [max(hi for _, hi in parts[: i + 1]) for i in range(len(parts))]
            assert parts[0][0] == 0
            assert ends[-1] == size
            assert all(lo <= end for (lo, _), end in zip(parts[1:], ends, strict=False)), "a gap"
    assert max(hi for _, _, hi in extents(tables[0])) > 1 << 31


def test_rows_do_not_grow_with_segments():
    case = Case(find("allreduce", "ring"), 4, 1 << 20, segment_bytes=1 << 20)
    few, many = (replace(case, segment_bytes=n).tables()[0] for n in (1 << 19, 1 << 10))
    assert few.n_rows == many.n_rows
    assert few.words[at.ROWS] == many.words[at.ROWS]
    assert many.words[at.SLOT_BYTES] <= few.words[at.SLOT_BYTES]


def test_what_cannot_be_lowered_says_why():
    swap = [send(WHOLE, 1), recv_reduce(WHOLE, 1)]
    with pytest.raises(ValueError, match="passes 4611686018427387904 bytes: the message is too long"):
        lower(collect([[send(WHOLE.split(4)[3], 1)]]), Target(8, Bound([0, 1 << 60]), {DATA: [WHOLE]}))
    with pytest.raises(ValueError, match="lanes are numbered 0 to 63"):
        lower(Schedule((Phase({64: Lane((tuple(swap),))}),)), Target(8, Bound([0, 8]), {DATA: [WHOLE]}))
    with pytest.raises(ValueError, match="17 slots: a pipeline has at most 16"):
        lower(collect([Phase({0: lane([swap], [WHOLE], slots=17)})]), Target(8, Bound([0, 8]), {DATA: [WHOLE]}))


# ---------------------------------------------------------------- fractions to elements
@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 64))
def test_chunks_are_tensor_splits(count, parts):
    torch = pytest.importorskip("torch")
    lengths = [len(chunk) for chunk in torch.tensor_split(torch.empty(count), parts)]
    assert [b - a for a, b in pairwise(chunk_offsets(count, parts))] == lengths


@settings(deadline=None)
@given(
    st.integers(0, 1 << 40), st.sampled_from([1, 8, 64]), st.lists(st.fractions(0, 1, max_denominator=99), min_size=2)
)
def test_parts_are_monotone_aligned_and_within(length, align, parts):
    found = [aligned_part(length, part, align) for part in sorted({Fraction(0), *parts, Fraction(1)})]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, length)
    assert all(x % align == 0 or x == length for x in found)


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(1, 9), st.sampled_from([1, 16]), st.integers(1, 12))
def test_bounds_agree_with_chunks(count, chunks, align, pieces):
    offsets = chunk_offsets(count, chunks)
    bound = Bound(offsets, align)
    assert [bound(Fraction(i, chunks)) for i in range(chunks + 1)] == offsets
    cuts = [bound(Fraction(i, chunks * pieces)) for i in range(chunks * pieces + 1)]
    assert cuts == sorted(cuts)


# ---------------------------------------------------------------- output in the place of the input
LOW, HIGH = WHOLE.split(2)


@pytest.mark.parametrize(
    "rounds, may",
    [
        ([[copy(WHOLE, INPUT, OUTPUT)]], True),
        ([[copy(LOW, INPUT, OUTPUT)], [send(LOW, 1, INPUT)]], False),
        ([[copy(LOW, INPUT, OUTPUT)], [send(HIGH, 1, INPUT)]], True),
        ([[send(WHOLE, 1, INPUT)], [recv(WHOLE, 1, OUTPUT)]], True),
        ([[send(WHOLE, 1, INPUT), recv(WHOLE, 1, OUTPUT)]], False),
        ([[recv_reduce(WHOLE, 1, OUTPUT, INPUT)]], True),
        ([[recv_reduce(WHOLE, 1, OUTPUT, INPUT)], [copy(HIGH, INPUT, SCRATCH)]], False),
        ([Phase({0: lane([[recv(LOW, 1, OUTPUT)]]), 1: lane([[send(LOW, 1, INPUT)]])})], False),
        ([Phase({0: lane([[recv(LOW, 1, OUTPUT)]])}), Phase({0: lane([[send(LOW, 1, INPUT)]])})], False),
    ],
)
def test_when_output_may_be_input(rounds, may):
    assert output_may_be_input(collect(rounds)) == may


@pytest.mark.parametrize("algorithm", every("reduce"), ids=lambda a: a.name)
@pytest.mark.parametrize("segment", [None, 16])
def test_where_output_may_be_input_it_is_right(algorithm, segment):
    for ranks, root in [(p, root) for p, root in ((1, 0), (2, 1), (5, 0), (6, 3)) if not algorithm.lack(p)]:
        case = Case(algorithm, ranks, 31, segment_bytes=segment, root=root, alias=True)
        params = {"segment_bytes": segment} if segment else {}
        if all(map(output_may_be_input, algorithm.schedules(ranks, root=root, **params))):
            case.run([table.words for table in case.tables(case.weights())], seed=ranks)


@ALL
def test_the_callers_buffers_hold_what_the_contract_says(algorithm):
    for ranks in (1, 4):
        promise = contract(algorithm.collective, ranks)
        for rank in range(ranks):
            given_by_plans = holds(algorithm.collective, ranks, rank)
            for buffer, spans in promise.layout(rank).items():
                lengths = sum(span.size for span in given_by_plans[buffer])
                assert lengths == sum(span.size for span in spans)
