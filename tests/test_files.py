import os
import pickle

import pytest
import torch

from pyg_trust import files


class Unsafe:
    pass


def test_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / 'a.json'
    files.write(path, b'old and long')
    files.write(str(path), b'new')
    assert path.read_bytes() == b'new'
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_deleted(tmp_path):
    path = tmp_path / 'a[1].json'
    (tmp_path / '.a[1].json.x1y2.tmp').write_bytes(b'old data')
    (tmp_path / '.a1.json.x1y2.tmp').write_bytes(b'of another file')
    files.write(path, b'new')
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ['.a1.json.x1y2.tmp', 'a[1].json']


def test_states_hold_tensors_and_no_code(tmp_path):
    path = tmp_path / 'a.pt'
    files.save(path, {'x': torch.arange(3), 'name': 'a'})
    assert files.load(path)['x'].tolist() == [0, 1, 2]
    files.save(path, {'x': object.__new__(Unsafe)})
    with pytest.raises(pickle.UnpicklingError):
        files.load(path)


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
