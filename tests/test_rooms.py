"""Files hold one idea each: a long one says at its top why it is long."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REASON = 'Longer than 700 lines because '


def long_files(root):
    """The source files of more than 700 lines without a reason."""
    found = []
    for folder in ('pyg_trust', 'csrc'):
        for file in sorted((root / folder).rglob('*')):
            if file.suffix not in ('.py', '.cpp', '.cu', '.h'):
                continue
            lines = file.read_text().splitlines()
            top = [line.split(REASON) for line in lines[:5]]
            if len(lines) > 700 and not any(
                len(parts) == 2 and parts[1].strip() for parts in top
            ):
                found.append(str(file.relative_to(root)))
    return found


def test_no_file_is_long_without_a_reason():
    assert long_files(ROOT) == []


@pytest.mark.parametrize(
    ('lines', 'first', 'is_found'),
    [
        (700, '', False),
        (701, '', True),
        (701, f'# {REASON}it lists all.', False),
        (701, f'# {REASON}', True),
        (701, '\n' * 9 + f'# {REASON}it lists all.', True),
    ],
)
def test_a_long_file_is_found(tmp_path, lines, first, is_found):
    (tmp_path / 'csrc').mkdir()
    (tmp_path / 'pyg_trust').mkdir()
    made = [*first.split('\n'), *['x = 1'] * lines][:lines]
    (tmp_path / 'pyg_trust' / 'a.py').write_text('\n'.join(made))
    assert long_files(tmp_path) == (['pyg_trust/a.py'] if is_found else [])
