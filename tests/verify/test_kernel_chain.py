"""Chains of hashed lines, and digests, by hand."""

import hashlib
import io
import json
import zipfile

import numpy as np
import pytest
import torch

from pyg_trust.ledger import PrivacyLedger, RemovalLedger
from pyg_trust.report import fingerprint
from pyg_trust.verify import arrays, chain

BODIES = [{'b': 1, 'a': [0.1, None]}, {'step': 1}, {'step': 2}, {'z': 'é'}]


def by_hand(*parts):
    text = json.dumps(list(parts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def steps(bodies):
    before, content, links = '', b'', []
    for body in bodies:
        before = by_hand(before, body)
        links.append(before)
        text = json.dumps({'body': body, 'link': before})
        content += text.encode() + b'\n'
    return content, links


def removals(count=4):
    before, made = '', []
    for number in range(count):
        line = {
            'action': 'measured' if number else 'fit',
            'spent': 0.25 * number,
            'request': {'nodes': [number]},
            'data': f'{number}' * 64,
        }
        before = by_hand(before, *line.values())
        made.append({**line, 'link': before})
    return {'budget': 1.0, 'entries': made}


def test_lines_are_hashed_with_all_before_them():
    content, links = steps(BODIES)
    found = chain.of_steps(content)
    assert (found.bodies, found.links, found.broken) == (BODIES, links, 0)
    assert found.head == links[-1]
    written, before = b'', ''
    for body in BODIES:
        before, text = chain.line(before, body)
        written += text
    assert written == content
    assert chain.of_steps(b'').head == ''


def test_ledgers_write_what_is_read(tmp_path):
    path = tmp_path / 'run'
    book = PrivacyLedger(path, {'mechanism': 'a'})
    book.record(1.5, 0.5)
    book.record_pure(0.25)
    head = book.head
    book.close()
    found = chain.of_steps(path.read_bytes())
    wanted = [
        {'mechanism': 'a'},
        {'step': 1, 'spent': [1.5, 0.5]},
        {'epsilon': 0.25},
    ]
    assert (found.bodies, found.head, found.broken) == (wanted, head, 0)
    assert path.read_bytes() == steps(wanted)[0]
    state = removals()
    ledger = RemovalLedger(1.0)
    ledger.load_state_dict(state)
    assert ledger.state_dict() == state
    read = chain.of_removals(json.dumps(state).encode())
    assert (read.head, read.broken) == (ledger.head, 0)
    assert read.bodies == state['entries']


@pytest.mark.parametrize('at', range(len(BODIES)))
def test_the_first_line_that_was_changed_is_named(at):
    content, links = steps(BODIES)
    lines = content.splitlines(keepends=True)
    other = json.dumps({'body': {'x': 0}, 'link': links[at]}).encode() + b'\n'
    for changed in ([other], [], [lines[at], lines[at]]):
        bad = [*lines[:at], *changed, *lines[at + 1 :]]
        found = chain.of_steps(b''.join(bad))
        assert found.links[-1:] == (
            [links[-1]] if bad[at:] else links[:at][-1:]
        )
        if bad[at:]:
            assert found.broken == at + (1 if len(changed) < 2 else 2)
            # All are read, also those behind it.
            assert len(found.bodies) == len(found.links) == len(bad)
        else:
            # Of what is missing at its end a chain knows nothing.
            assert found.broken == 0
    # The whole from here on anew, by whoever can write it: another head.
    forged, _ = steps([*BODIES[:at], {'x': 0}, *BODIES[at + 1 :]])
    assert chain.of_steps(forged).broken == 0
    assert chain.of_steps(forged).head != links[-1]


@pytest.mark.parametrize(
    'bad',
    [
        b'{}\n',
        b'[]\n',
        b'3\n',
        b'\xff\n',
        b'{"body": 1, "link": 3}\n',
        b'{"body": 1, "body": 2, "link": "a"}\n',
        b'{"body": NaN, "link": "a"}\n',
        b'[' * 100_000,
    ],
)
def test_a_line_that_is_none_is_refused_or_the_last(bad):
    content, links = steps(BODIES)
    with pytest.raises(ValueError, match='line 5 is none'):
        chain.of_steps(content + bad + content)
    found = chain.of_steps(content + bad + content, False)
    assert (found.broken, found.links) == (5, links)
    first = b'{"body": 1, "link": "a"}\n'
    assert chain.of_steps(first + bad, False).broken == 1


def test_any_change_of_a_removal_breaks_its_line():
    whole = removals()
    for at, line in enumerate(whole['entries']):
        for name, value in line.items():
            other = {'a': 1} if name == 'request' else f'{value}x'
            entries = [dict(each) for each in whole['entries']]
            entries[at][name] = other
            text = json.dumps({**whole, 'entries': entries}).encode()
            assert chain.of_removals(text).broken == at + 1
        cut = [e for e in whole['entries'] if e is not line]
        text = json.dumps({**whole, 'entries': cut}).encode()
        last = at == len(cut)
        assert chain.of_removals(text).broken == (0 if last else at + 1)
    for bad in ({'link': 3}, {'more': 1}, {'action': ...}):
        entries = [dict(each) for each in whole['entries']]
        entries[2].update(bad)
        if ... in bad.values():
            del entries[2]['action']
        text = json.dumps({**whole, 'entries': entries}).encode()
        with pytest.raises(ValueError, match=r'line 3'):
            chain.of_removals(text)
    text = json.dumps({**whole, 'entries': [3]}).encode()
    with pytest.raises(ValueError, match='line 1'):
        chain.of_removals(text)
    assert chain.REMOVAL[:4] == ('action', 'spent', 'request', 'data')
    # Lines of 0.1 have no reference.
    assert chain.REMOVAL[4:] == ('reference',)


# Digests and files of arrays #################################################


def test_digests_are_those_of_tensors():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    parts = [x, x > 0.5, torch.arange(5), torch.arange(5, dtype=torch.int32)]
    plain = ['a', 1, 0.5, None, True, '']
    found = arrays.fingerprint(*(part.numpy() for part in parts), *plain)
    assert found == fingerprint(*parts, *plain)
    half = x.bfloat16()
    held = arrays.Tensor('torch.bfloat16', half.view(torch.int16).numpy())
    assert arrays.fingerprint(held) == fingerprint(half)
    turned = x.t().numpy()
    assert arrays.fingerprint(turned) == fingerprint(x.t())
    lists = (('ab',), ('a', 'b'), ('b', 'a'), (1,), ('1',), (1.0,), (True,))
    lists += ((np.zeros(2),), (np.zeros((2, 1)),), (np.zeros(4, 'f4'),))
    assert len({arrays.fingerprint(*each) for each in lists}) == len(lists)
    with pytest.raises(ValueError, match='list has no'):
        arrays.fingerprint([1])


def test_arrays_are_read_as_they_were_written(tmp_path):
    path = tmp_path / 'a.npz'
    made = {
        'x': np.arange(12.0).reshape(3, 4),
        'turned': np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        'none': np.zeros((0, 5), 'i4'),
        'one': np.array(True),
        'text': np.array('softmax'),
    }
    np.savez(path, **made)
    found = arrays.read_arrays(path)
    assert found.keys() == made.keys()
    for name, array in made.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)
    with pytest.raises(FileNotFoundError):
        arrays.read_arrays(tmp_path / 'b.npz')
    np.savez_compressed(path, **made)
    with pytest.raises(ValueError, match='compressed'):
        arrays.read_arrays(path)
    np.savez(path, x=np.array([None]))
    with pytest.raises(ValueError, match='objects'):
        arrays.read_arrays(path)


@pytest.mark.parametrize(
    ('shape', 'match'),
    [
        ((10**12,), 'another size'),
        ((2,), 'another size'),
        ((4,), 'another size'),
        ((-3,), 'less than nothing'),
        ((-3, -1), 'less than nothing'),
    ],
)
def test_arrays_have_the_size_that_they_say(tmp_path, shape, match):
    stream = io.BytesIO()
    header = {'descr': '<f8', 'fortran_order': False, 'shape': shape}
    np.lib.format.write_array_header_1_0(stream, header)
    path = tmp_path / 'a.npz'
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('x.npy', stream.getvalue() + bytes(24))
    with pytest.raises(ValueError, match=match):
        arrays.read_arrays(path)
    header['shape'] = (3,)
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    good = stream.getvalue() + bytes(24)
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('x.npy', good)
    assert arrays.read_arrays(path)['x'].tolist() == [0.0] * 3
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('x.npy', good[:6] + b'\x02' + good[7:])
    with pytest.raises(ValueError, match='another version'):
        arrays.read_arrays(path)
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('x.npy', good)
        archive.writestr('x', good)
    with pytest.raises(ValueError, match='one name'):
        arrays.read_arrays(path)


# Narrow numbers of files #####################################################


def narrow(**changes):
    """Numbers in three bytes, lowest first, in units of 2^-3."""
    whole = [[5, -7, 0], [-(2**23), 2**23 - 1, 1]]
    code = [
        [list(x.to_bytes(3, 'little', signed=True)) for x in row]
        for row in whole
    ]
    made = {
        'x.units': np.array(code, dtype=np.uint8),
        'x.places': np.array(3, dtype=np.int16),
        'n': np.array([0, 255], dtype=np.uint8),
        'm': np.array([[-1]], dtype=np.int16),
        'f': np.array([0.1], dtype=np.float32),
        'on': np.array([True]),
        'a.bits': np.array([7], dtype=np.uint8),
        **changes,
    }
    return {k: v for k, v in made.items() if v is not None}, whole


def test_narrow_numbers_are_widened_to_the_same_values():
    made, whole = narrow()
    found = arrays.widened(made)
    assert set(found) == {'x', 'n', 'm', 'f', 'on', 'a.bits'}
    assert found['x'].tolist() == [[v / 8 for v in row] for row in whole]
    assert found['n'].tolist() == [0, 255]
    assert found['m'].tolist() == [[-1]]
    assert found['f'].tolist() == [float(np.float32(0.1))]
    assert found['on'].dtype == bool
    assert found['a.bits'].dtype == np.uint8
    kinds = {name: found[name].dtype for name in ('x', 'n', 'm', 'f')}
    assert kinds == {
        **dict.fromkeys('xf', np.float64),
        **dict.fromkeys('nm', np.int64),
    }
    # What an older file holds stays as it is; big-endian is no other number.
    wide = {'n': np.array([2**60]), 'f': np.array([np.nan, -0.0])}
    assert arrays.widened(wide)['n'].tolist() == [2**60]
    assert arrays.widened(wide)['f'].tobytes() == wide['f'].tobytes()
    found = arrays.widened({'n': np.array([3], dtype='>i4')})
    assert found['n'].tolist() == [3]


@pytest.mark.parametrize(
    'changes',
    [
        {'x.places': None},
        {'x.places': np.array([3])},
        {'x.places': np.array(3.0)},
        {'x.places': np.array(2**40)},
        {'x.units': np.zeros((2, 0), dtype=np.uint8)},
        {'x.units': np.zeros((2, 7), dtype=np.uint8)},
        {'x.units': np.zeros((2, 3), dtype=np.int8)},
        {'x.units': np.array(3, dtype=np.uint8)},
    ],
    ids=str,
)
def test_units_of_another_kind_are_refused(changes):
    with pytest.raises(ValueError, match='units'):
        arrays.widened(narrow(**changes)[0])
