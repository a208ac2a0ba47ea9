"""Noise to the last bit: against mpmath, by enumeration, and with faults.

No test asks the integers or the table of the package what is right: tails of
the Gaussian come from mpmath's error function with 300 bits.
"""

import inspect
import itertools
import json
import random
import types
from decimal import Decimal, localcontext
from statistics import NormalDist

import mpmath
import numpy as np
import pytest

from pyg_trust.verify import noise

MP = mpmath.mp.clone()
MP.prec = 300


def tail(m, b):
    return MP.erfc(MP.convert(m) / MP.mpf(2) ** b / MP.sqrt(2)) / 2


def quantile(p):
    x = MP.mpf(-NormalDist().inv_cdf(float(p)))
    for _ in range(4):
        x += (tail(x, 0) - p) / MP.npdf(x)
    return x


def is_right(n, v, known, b=32):
    """Whether all reals that start with v have |Z| nearest to n / 2^b."""
    low, high = MP.mpf(v) / 2 ** (known + 1), MP.mpf(v + 1) / 2 ** (known + 1)
    most = MP.mpf(1) / 2 if n == 0 else tail(2 * n - 1, b + 1)
    return tail(2 * n + 1, b + 1) <= low and high <= most


def is_cell(n, word, more=()):
    sign, v, known = word >> 63, word % 2**63, 63
    for extra in more:
        v, known = v * 2**64 + extra, known + 64
    if not is_right(abs(n), v, known):
        return False
    return n == 0 or (n < 0) == bool(sign)


def at_boundaries(count, seed):
    """Words next to the end of a cell, in all octaves."""
    draw, words = random.Random(seed), []
    for i in range(count):
        octave = i % 20
        v = draw.randrange(2 ** (62 - octave), 2 ** (63 - octave))
        x = quantile(MP.mpf(v) / 2**64)
        m = 2 * int(MP.floor(x * 2**32)) + 1
        v = int(MP.floor(tail(m, 33) * 2**64))
        # So many cells away as float64 and the table may be off.
        slope = MP.npdf(tail(m, 33) * 0 + MP.mpf(m) / 2**33)
        away = 2.0 ** draw.uniform(-26, -12) * draw.choice([-1, 0, 1])
        v += int(away * slope * 2**32)
        words.append(draw.getrandbits(1) << 63 | min(max(v, 0), 2**63 - 1))
    return words


BOUNDARIES = at_boundaries(1200, 1)


def wrong_words(quick, words, table):
    """Words that the fast way settles, and not as they have to be."""
    found, is_open = quick(np.array(words, dtype=np.uint64), table)
    return sum(
        not is_cell(int(n), word)
        for n, word, unknown in zip(found, words, is_open, strict=True)
        if not unknown
    )


def wrong_streams(settle, words):
    """Streams of which integers settle too much, too little or wrongly."""
    draw, bad = random.Random(3), 0
    for word in words:
        more = [draw.getrandbits(64) for _ in range(4)]
        left = iter(more)
        found = settle(word, left)
        used = 4 - len(list(left))
        if found is None or not is_cell(found, word, more[:used]):
            bad += 1
        elif used:
            # One word less did not tell.
            bad += is_cell(found, word, more[: used - 1])
    return bad


def wrong_masses(magnitude, b, known):
    """Enumerate all starts of a stream: cells with a false probability."""
    settled, unknown, bad = {}, 0, 0
    for v in range(2**known):
        n = magnitude(v, known, b)
        if n is None:
            # Rightly: the end of a cell is between its ends.
            low = MP.mpf(v) / 2 ** (known + 1)
            n = int(MP.nint(quantile(low) * 2**b)) if v else 0
            bad += v > 0 and is_right(n, v, known, b)
            unknown += 1
        else:
            bad += not is_right(n, v, known, b)
            settled[n] = settled.get(n, 0) + 1
    for n in range(9 * 2**b):
        inner = MP.mpf(1) / 2 if n == 0 else tail(2 * n - 1, b + 1)
        mass = 2 * (inner - tail(2 * n + 1, b + 1)) * 2**known
        seen = settled.get(n, 0)
        bad += not seen <= mass <= seen + unknown
    return bad, unknown / 2**known


def test_tails_are_enclosed():
    draw = random.Random(0)
    cases = [(draw.randrange(1, 2**b * 9), b) for b in [0, 1, 5, 33] * 25]
    for m, b in [*cases, (1, 33), (1, 0), (40, 0), (9 * 2**33 - 1, 33)]:
        for bits in (60, 80, 144, 1000):
            low, high = noise.tail(m, b, bits)
            with MP.workprec(bits + 100):
                exact = tail(m, b) * MP.mpf(2) ** bits
                assert low <= exact <= high
            # Tight, or more bits than needed would be asked for.
            assert high - low <= 4


@pytest.mark.parametrize('b', [0, 1, 3])
@pytest.mark.parametrize('known', [6, 10])
def test_no_probability_is_off_by_more_than_what_is_open(b, known):
    bad, unknown = wrong_masses(noise.magnitude, b, known)
    assert bad == 0
    # One start of a stream at the end of each cell, and the first.
    assert unknown <= (5 * 2**b + 2) / 2**known


def test_known_words(shared):
    file = shared / 'oracles' / 'exact_arithmetic' / 'words.json'
    cases = json.loads(file.read_text())['words']
    words = [int(case['word']) for case in cases]
    for word, case in zip(words, cases, strict=True):
        more = iter([int(extra) for extra in case['more']])
        assert noise.settle(word, more) == case['cell']
    assert len(cases) > 200
    found, is_open = noise.quick(
        np.array(words, dtype=np.uint64), noise.table()
    )
    for n, unknown, case in zip(found, is_open, cases, strict=True):
        assert unknown or n == case['cell']


def words_of(count, seed):
    draw = np.random.default_rng(seed)
    return draw.integers(0, 2**64, count, dtype=np.uint64).tolist()


@pytest.mark.parametrize('count', [10_000, 100_000])
def test_random_words(count):
    words = words_of(count, count)
    assert wrong_words(noise.quick, words, noise.table()) == 0
    _, is_open = noise.quick(np.array(words, np.uint64), noise.table())
    assert is_open.mean() < 1e-3


def test_words_at_boundaries_and_extremes():
    ends = [0, 1, 2**63, 2**63 - 1, 2**64 - 1, 2**62, 2**62 - 1, 2**43]
    octaves = [2**e - d for e in range(40, 64) for d in (0, 1)]
    words = [*BOUNDARIES, *ends, *octaves]
    assert wrong_words(noise.quick, words, noise.table()) == 0
    _, is_open = noise.quick(np.array(words, np.uint64), noise.table())
    # Neither all nor none of these.
    assert 0.2 < is_open.mean() < 0.9
    assert wrong_streams(noise.settle, words[:400]) == 0


def test_the_table_is_as_good_as_its_error_says():
    table = noise.table()
    rows = [0, 63, 64, 640, 1279, *range(5, 1280, 37)]
    for row in rows:
        e, j = divmod(row, 64)
        unit = MP.mpf(2) ** -(e + 3 + 6)
        error = MP.mpf('0.5') - MP.mpf(float(table.room[row]))
        c = [MP.mpf(float(value)) for value in table.coefficients[:, row]]
        for t in (-1, 0, 1):
            p = unit * (2 * (64 + j) + 1 + t)
            y = MP.polyval(c[::-1], t)
            low, high = (tail((y + d) * 2**-32, 0) for d in (error, -error))
            assert low <= p <= high
    assert table.room[-1] == -1


def test_the_table_is_the_same_for_every_caller():
    with localcontext() as context:
        context.prec = 5
        made = noise.make_table()
        assert Decimal(1) / 3 == Decimal('0.33333')
    assert made.digest() == noise.table().digest() == noise.DIGEST


class Source:
    """Bytes that can be drawn again, and how many were asked for."""

    def __init__(self, seed):
        self.draw, self.asked, self.given = random.Random(seed), [], b''

    def __call__(self, count):
        self.asked.append(count)
        made = self.draw.randbytes(count)
        self.given += made
        return made


def by_hand(data, count):
    """Draw cells from bytes, as the convention says, without the table."""
    words = [
        int.from_bytes(data[i : i + 8], 'little')
        for i in range(0, len(data), 8)
    ]
    later = iter(words[count:])
    _, is_open = noise.quick(np.array(words[:count], np.uint64), noise.table())
    # Those that are open take what follows, in their order.
    return [
        noise.settle(word, later if unknown else iter(()))
        for word, unknown in zip(words[:count], is_open, strict=True)
    ], list(later)


def test_cells_can_be_drawn_again_from_the_bytes(monkeypatch):
    monkeypatch.setattr(noise, '_PIECE', 100)
    source = Source(0)
    found = noise.cells(source, 250)
    assert source.asked[:3] == [800, 800, 400]
    want, left = by_hand(source.given, 250)
    assert found.tolist() == want
    assert not left
    assert found.dtype == np.int64
    assert noise.cells(source, 0).shape == (0,)


def test_open_words_are_settled_after_all_others():
    tail_word = (5).to_bytes(8, 'little')
    given = [tail_word * 3, b'\x55' * 8, b'\xaa' * 8, b'\x0f' * 8]
    asked = []

    def source(count):
        asked.append(count)
        return given[len(asked) - 1]

    found = noise.cells(source, 3)
    assert asked == [24, 8, 8, 8]
    extras = [int.from_bytes(extra, 'little') for extra in given[1:]]
    assert all(
        is_cell(int(n), 5, [extra])
        for n, extra in zip(found, extras, strict=True)
    )
    assert len(set(found.tolist())) == 3


def test_what_is_not_random_or_too_short_is_refused():
    # The word of a cell, and ten more.
    with pytest.raises(ValueError, match=r"'source' .* random: 11 words did"):
        noise.cells(lambda count: bytes(count), 3)
    with pytest.raises(ValueError, match=r'needs to return 24 bytes \(got 23'):
        noise.cells(lambda count: bytes(count - 1), 3)


def test_a_table_that_changed_in_memory_draws_nothing(monkeypatch):
    asked = []

    def source(count):
        asked.append(count)
        return random.Random(0).randbytes(count)

    for name, size in (('coefficients', 2.0**-30), ('room', 0.001)):
        changed = noise.table()._asdict()
        changed[name] = changed[name] + size
        made = noise.Table(**changed)
        with monkeypatch.context() as patch:
            patch.setattr(noise, 'table', lambda made=made: made)
            with pytest.raises(RuntimeError, match=r'table .* has changed'):
                noise.cells(source, 4)
    assert not asked
    for values in noise.table():
        with pytest.raises(ValueError, match='read-only'):
            values[...] = 0


# Faults, each by what is changed in the source of the module.
TABLE_FAULTS = {
    'no error': lambda t: t._replace(room=np.where(t.room > 0, 0.5, -1)),
    'an eighth of the error': lambda t: t._replace(
        room=np.where(t.room > 0, 0.5 - (0.5 - t.room) / 8, -1)
    ),
    'a coefficient off': lambda t: t._replace(
        coefficients=t.coefficients + np.eye(7, 1) * 2.0**-8
    ),
    'tails not open': lambda t: t._replace(
        room=np.where(t.room > 0, t.room, 0.4)
    ),
}
FAULTS = {
    'word shifted by a bit': ('v = words << np.uint64(1)', 'v = words'),
    'sign bit used as v': ('& (2**63 - 1), 63', '& (2**64 - 1), 64'),
    'sign of another bit': (
        'sign = words.view(np.int64) >> 63',
        'sign = (words << np.uint64(1)).view(np.int64) >> 63',
    ),
    'cells of twice the width': ('f = np.rint(y)', 'y /= 2; f = np.rint(y)'),
    'settled by the low end': ('most = (v + 1) <<', 'most = v <<'),
    'settled by the high end': ('least = v <<', 'least = (v + 1) <<'),
    'bits of a new word': ('(v << 64) | extra, known + 64', 'extra, 64'),
    'bits appended below one that is lost': (
        '(v << 64) | extra, known + 64',
        '(v << 63) | extra >> 1, known + 64',
    ),
    'the wrong end of a cell': ('_is_below(2 * n - 1', '_is_below(2 * n + 1'),
    'the cell above': ('_is_below(2 * n + 1', '_is_below(2 * n + 2'),
    'a tail of half the width': (
        'low, high = tail(m, b, bits)',
        'low, high = (end // 2 for end in tail(m, b, bits))',
    ),
    'octaves by rounded floats': (
        'np.bitwise_and(v, ~top, out=top)',
        'top = v',
    ),
    'open words that are guessed': ('y >= table.room', 'y > 2 + table.room'),
    'the same sign for all': (
        'return -found if sign else',
        'return found if sign else',
    ),
}


def mutant(old, new):
    source = inspect.getsource(noise)
    assert source.count(old) == 1, old
    made = types.ModuleType('mutant')
    made.__package__ = noise.__package__
    exec(compile(source.replace(old, new), 'mutant', 'exec'), vars(made))
    inner, calls = made.tail, itertools.count()

    def counted(m, b, bits):
        if next(calls) > 5_000 or bits > 1_000 or m > 30 << b:
            raise RecursionError('no end')
        return inner(m, b, bits)

    made.tail = counted
    return made


def count_wrong(module):
    words = BOUNDARIES[:600]
    bad = wrong_words(module.quick, words, noise.table())
    # Of those whose octave float64 rounds up, too.
    ends = [2**e - d for e in range(46, 64) for d in (1, 2, 3)]
    bad += wrong_words(module.quick, ends, noise.table())
    try:
        bad += wrong_streams(module.settle, words[:120])
        bad += wrong_masses(module.magnitude, 1, 6)[0]
    except (RecursionError, ArithmeticError):
        bad += 1
    return bad


def test_no_fault_is_none():
    assert count_wrong(mutant('_PIECE = 2**14', '_PIECE = 2**13')) == 0


@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_is_caught(fault):
    assert count_wrong(mutant(*FAULTS[fault])) > 0


@pytest.mark.parametrize('fault', TABLE_FAULTS)
def test_a_faulty_table_is_caught(fault):
    table = TABLE_FAULTS[fault](noise.table())
    words = [*BOUNDARIES, *range(2**42 - 50, 2**42)]
    assert wrong_words(noise.quick, words, table) > 0
