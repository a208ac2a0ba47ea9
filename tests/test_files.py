import os
import random

import pytest
import torch
from states import same

from pyg_trust import files
from pyg_trust.files import commit
from pyg_trust.privacy import PrivateLinkPredictor
from pyg_trust.unlearning import NodeClassifier, Recommender, ShardedUnlearner


class Unsafe:
    pass


def test_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / 'a.json'
    files.write(path, b'old and long')
    files.write(str(path), b'new')
    assert path.read_bytes() == b'new'
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_deleted(tmp_path):
    path = tmp_path / 'a.json'
    (tmp_path / '.a.json.tmp').write_bytes(b'old data, and much of it')
    (tmp_path / '.a.json.writing').touch()
    (tmp_path / '.b.json.tmp').write_bytes(b'of another file')
    files.write(path, b'new')
    assert path.read_bytes() == b'new'
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ['.b.json.tmp', 'a.json']


def test_states_come_back_as_they_were(tmp_path):
    path, x = tmp_path / 'a.pt', torch.rand(4, 6)
    state = {
        'x': [x, x.t(), x[1:], x[:, ::2], x[0, 0], torch.empty(0, 3)],
        7: (None, True, 2**80, -0.0, float('inf'), 'ä', [], {}),
        'types': [x.bfloat16(), x.double(), x > 0.5, (9 * x).to(torch.int8)],
        'csr': (x > 0.5).double().to_sparse_csr(),
        'dict': {'tensor': 1, 'list': 2, 3: {'csr': x}},
    }
    files.save(path, state)
    found = files.load(path)
    assert same(found, state)
    assert [*map(type, found[7])] == [*map(type, state[7])]
    # A tensor that was read is no view of others, or of the file.
    for part in found['x']:
        assert part.untyped_storage().nbytes() == 4 * part.numel()
    assert files.peek(path)['dict']['list'] == 2
    again = path.read_bytes()
    files.save(path, found)
    assert path.read_bytes() == again


def test_states_of_0_1_are_read(tmp_path):
    state = {'x': torch.arange(3), 'y': [1, (2.5, {'z': None})]}
    torch.save(state, tmp_path / 'a.pt')
    assert same(files.load(tmp_path / 'a.pt'), state)
    assert same(files.peek(tmp_path / 'a.pt'), state)


def test_states_hold_tensors_and_no_code(tmp_path):
    path = tmp_path / 'a.pt'
    files.save(path, {'x': torch.arange(3), 'name': 'a'})
    assert files.load(path)['x'].tolist() == [0, 1, 2]
    for bad in (object.__new__(Unsafe), {2.5: 1}, torch.ones(2).to_sparse()):
        with pytest.raises(TypeError, match=r'tensors and plain values|CSR'):
            files.save(path, {'x': bad})
    assert files.load(path)['name'] == 'a'
    torch.save({'x': object.__new__(Unsafe)}, path)
    with pytest.raises(files.DamagedFileError, match=r'a\.pt') as caught:
        files.load(path)
    # What torch says of it explains how to run the code.
    assert 'weights_only' not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize('save', [files.save, lambda p, s: torch.save(s, p)])
def test_damaged_states_are_one_kind_of_error(tmp_path, save):
    path = tmp_path / 'a.pt'
    state = {'x': torch.arange(300.0), 'y': [1, 2.5, 'text'], 'z': (True, {})}
    save(path, state)
    whole = path.read_bytes()
    source = random.Random(0)
    said = []
    for _ in range(300):
        content = bytearray(whole)
        if source.random() < 0.3:
            del content[source.randrange(len(content)) :]
        for _ in range(source.randrange(4)):
            if content:
                content[source.randrange(len(content))] = source.randrange(256)
        path.write_bytes(content)
        try:
            found = files.load(path)
        except files.DamagedFileError as error:
            said.append(str(error))
        else:
            # What is between the parts is no part of them.
            assert same(found, state)
    assert len(said) > 150
    assert not any('weights_only' in text for text in said)
    with pytest.raises(FileNotFoundError):
        files.load(tmp_path / 'none.pt')


@pytest.mark.parametrize('where', ['fsync', 'replace'])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    where, tmp_path, monkeypatch
):
    path = tmp_path / 'a.json'
    files.write(path, b'old')

    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, where, fail)
    with pytest.raises(KeyboardInterrupt):
        files.write(path, b'new')
    assert path.read_bytes() == b'old'
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    path = tmp_path / 'models' / 'scores.pt'
    for save in (files.save, commit.save):
        with pytest.raises(FileNotFoundError, match='made first') as error:
            save(path, {})
        assert error.value.filename == str(path.parent)
        assert not any(tmp_path.iterdir())


def test_a_state_of_another_class_says_whose_it_is(tmp_path):
    class Mine(Recommender):
        pass

    likes = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 2, 2]])
    model = Mine().fit(likes, num_users=3, num_items=3)
    model.save(tmp_path / 'r.pt')
    Recommender().load(tmp_path / 'r.pt')
    shards = ShardedUnlearner(torch.nn.Linear, 2, folder=tmp_path / 'shards')
    for other in (NodeClassifier(), PrivateLinkPredictor(), shards):
        with pytest.raises(ValueError, match='written by a Recommender'):
            other.load_state_dict(model.state_dict())
