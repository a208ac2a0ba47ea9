"""Builds the wheel of the checker alone: python tests/checker_wheel.py dist"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHECKER = """\
Metadata-Version: 2.1
Name: pyg_trust_check
Version: {version}
Summary: Checks trust reports of pyg_trust, without torch and without a build
Requires-Python: >=3.10
Requires-Dist: numpy>=1.26
Requires-Dist: scipy>=1.13
Requires-Dist: mpmath>=1.3
Requires-Dist: safetensors>=0.5
"""


def checker_wheel(folder: Path) -> Path:
    """Builds the wheel of the checker alone: its files and the kernel's."""
    text = (ROOT / 'pyg_trust' / '__init__.py').read_text()
    version = text.split("__version__ = '")[1].split("'")[0]
    name = f'pyg_trust_check-{version}'
    about = f'{name}.dist-info'
    files = {
        'pyg_trust_check/__init__.py': '"""Checks trust reports."""\n\n'
        'from .check import check_report  # noqa: F401\n\n'
        f'__version__ = {version!r}\n',
        'pyg_trust_check/__main__.py': '"""The command line."""\n\n'
        'import sys\n\nfrom .check.__main__ import main\n\n'
        'sys.exit(main())\n',
        f'{about}/METADATA': CHECKER.format(version=version),
        f'{about}/WHEEL': 'Wheel-Version: 1.0\nGenerator: checker_wheel.py\n'
        'Root-Is-Purelib: true\nTag: py3-none-any\n',
    }
    for part in ('check', 'verify'):
        for file in sorted((ROOT / 'pyg_trust' / part).glob('*.py')):
            files[f'pyg_trust_check/{part}/{file.name}'] = file.read_text()
    record = [
        f'{path},sha256={_record_hash(content)},{len(content.encode())}'
        for path, content in files.items()
    ]
    files[f'{about}/RECORD'] = '\n'.join([*record, f'{about}/RECORD,,', ''])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f'{name}-py3-none-any.whl'
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            # No times: the same source gives the same file.
            archive.writestr(zipfile.ZipInfo(path), content)
    return wheel


def _record_hash(content: str) -> str:
    found = hashlib.sha256(content.encode()).digest()
    return base64.urlsafe_b64encode(found).rstrip(b'=').decode()


if __name__ == '__main__':
    checker_wheel(Path(sys.argv[1]))
