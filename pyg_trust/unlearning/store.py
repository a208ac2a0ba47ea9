"""Folder of checkpoints that is switched atomically to the next state.

Every checkpoint is a file of its own, named by a digest of its content and
never written twice. A manifest names those that are in force. A new state is
written beside the old one; then the manifest is replaced, and what is not part
of the new state is deleted. All of this happens under the lock of the folder,
and only if the new state continues the one that is in force
(:mod:`pyg_trust.files.commit`).

A digest has a salt of its own, in the manifest, which goes with the file: no
guess of what a file had can be tested against an old name.
"""

import hashlib
import hmac
import json
import re
import secrets
from pathlib import Path
from typing import Any

from pyg_trust import files
from pyg_trust._checks import check_instance, check_plain
from pyg_trust.files import DamagedFileError, commit

__all__ = ['MANIFEST', 'ShardStore']

MANIFEST = 'manifest.json'
# Files that are written here, and what a killed process left of them. A name
# must not lead out of the folder.
_OURS = re.compile(
    r'[^/\\]+-[0-9a-f]{16}\.(safetensors|pt)|\.[^/\\]+\.(tmp|writing)'
)
_FORMAT = 1


class ShardStore:
    """Folder in which a sharded unlearner saves its state.

    A manifest lists the files of the current state. Older ones are deleted.

    Args:
        folder (str or Path): the folder, created by the first :meth:`write`.
    """

    def __init__(self, folder: str | Path) -> None:
        check_instance('folder', folder, str, Path)
        self.folder = Path(folder).absolute()
        self._path = self.folder / MANIFEST

    def manifest(self) -> dict[str, Any] | None:
        """Read the manifest, or return :obj:`None` if there is none.

        Its entry ``'files'`` has the file and SHA-256 of each part by name;
        the others are the plain values of the state.

        Raises:
            DamagedFileError: if the file is not a manifest of this format.
        """
        if not self._path.exists():
            return None
        try:
            manifest: dict[str, Any] = json.loads(self._path.read_bytes())
            is_ours = manifest['format'] == _FORMAT and all(
                _OURS.fullmatch(each['file']) and len(each['sha256']) == 64
                for each in manifest['files'].values()
            )
        except (
            *(AttributeError, LookupError, RecursionError),
            *(TypeError, ValueError),
        ):
            is_ours = False
        if not is_ours:
            raise DamagedFileError(
                f'{self._path} is no manifest of format {_FORMAT}'
            )
        return manifest

    def holds(self, plain: dict[str, Any]) -> bool:
        """Return whether the manifest has all entries of ``plain``."""
        found = self.manifest()
        return found is not None and all(
            found.get(key) == value for key, value in plain.items()
        )

    def write(
        self,
        parts: dict[str, Any],
        plain: dict[str, Any],
        *,
        goes_on: bool = False,
    ) -> dict[str, Any]:
        """Make a new state current, and delete the files of the previous one.

        If this is interrupted, either the old state or the new one is current.
        Leftover files are deleted by the next :meth:`write` or :meth:`purge`.

        Args:
            parts (dict): the content of each file, by name: nested lists and
                dicts of tensors and plain values.
            plain (dict): further entries of the manifest, as JSON. If there is
                a ``'ledger'``, the state has to continue the current one.
            goes_on (bool): whether the folder has to hold a state already.
                (default: :obj:`False`)

        Returns:
            dict: the new manifest.
        """
        check_instance('parts', parts, dict)
        for name in parts:
            check_instance('parts', name, str)
        check_plain('plain', plain)
        self.folder.mkdir(parents=True, exist_ok=True)
        with files.exclusive(self._path):
            found = self.manifest()
            if goes_on and found is None:
                raise commit.StaleStateError(
                    f'{self.folder} no longer holds the state that was '
                    'written there: it was moved or deleted, and could bring '
                    'back items that are removed now. Nothing was written. '
                    'Put it back, or save() first'
                )
            if found is not None and 'ledger' in {*found, *plain}:
                commit.check_continues(self._path, found, plain)
            there = (found or {}).get('files', {})
            entries: dict[str, dict[str, str]] = {}
            for name, value in parts.items():
                content, known = files.packed(value), there.get(name, {})
                if _digest(content, known) == known.get('sha256') and (
                    # Changed on the disk, or cut short by a power failure?
                    self._is_whole(known)
                ):
                    entries[name] = known
                    continue
                made = {'salt': secrets.token_hex(32)}
                made['sha256'] = digest = _digest(content, made)
                made['file'] = f'{name}-{digest[:16]}.safetensors'
                files.write(self.folder / made['file'], content)
                entries[name] = made
            manifest = {'format': _FORMAT, 'files': entries, **plain}
            text = json.dumps(manifest, indent=1, sort_keys=True)
            files.write(self._path, text.encode())
            self._delete_strangers()
        return manifest

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parts of the current state, by name, and the manifest.

        Raises:
            ValueError: if the folder holds no state.
            DamagedFileError: if a file is missing or was changed.
        """
        if self.manifest() is None:
            raise ValueError(
                f"'folder' needs to hold a {MANIFEST} (got {self.folder})"
            )
        with files.exclusive(self._path):
            manifest, parts = self.manifest() or {}, {}
            for name, entry in manifest['files'].items():
                path = self.folder / entry['file']
                if not self._is_whole(entry):
                    raise DamagedFileError(
                        f'{path} is missing, or was changed'
                    )
                parts[name] = files.load(path)
            return parts, manifest

    def _is_whole(self, entry: dict[str, str]) -> bool:
        path = self.folder / entry['file']
        return path.exists() and (
            _digest(path.read_bytes(), entry) == entry['sha256']
        )

    def strangers(self) -> list[Path]:
        """List the files that do not belong to the current state."""
        entries = (self.manifest() or {}).get('files', {}).values()
        named = {MANIFEST, *(entry['file'] for entry in entries)}
        there = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(
            path
            for path in there
            if path.name not in named and _OURS.fullmatch(path.name)
        )

    def purge(self) -> list[Path]:
        """Delete files that do not belong to the current state; list them."""
        if not self.strangers():
            return []
        with files.exclusive(self._path):
            return self._delete_strangers()

    def _delete_strangers(self) -> list[Path]:
        gone = self.strangers()
        for path in gone:
            path.unlink(missing_ok=True)
        if gone:
            files.sync_folder(self.folder)
        return gone

    def __repr__(self) -> str:
        return f'{type(self).__name__}({str(self.folder)!r})'


def _digest(content: bytes, entry: dict[str, str]) -> str:
    # Those of version 0.1 have no salt.
    if 'salt' not in entry:
        return hashlib.sha256(content).hexdigest()
    return hmac.digest(entry['salt'].encode(), content, 'sha256').hex()
