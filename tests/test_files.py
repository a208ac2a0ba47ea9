import os

import pytest

from pyg_trust import files


def test_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / 'a.json'
    files.write(path, b'old and long')
    files.write(str(path), b'new')
    assert path.read_bytes() == b'new'
    assert list(tmp_path.iterdir()) == [path]


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
