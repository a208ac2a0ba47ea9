"""Folder of checkpoints that is switched atomically to the next state.

Every checkpoint is a file of its own, named by its content and never written
twice. A manifest names those that are in force. A new state is written beside
the old one; then the manifest is replaced, which file systems do at once or
not at all, and what is not part of the new state is deleted. All of this
happens under the lock of the folder, and only if the new state continues the
one that is in force (:mod:`pyg_trust.files.commit`).
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from pyg_trust import files
from pyg_trust._checks import check_instance, check_plain, validated
from pyg_trust.files import DamagedFileError, commit

MANIFEST = 'manifest.json'
# Files that are written here, and what a killed process left of them.
_OURS = re.compile(r'.+-[0-9a-f]{16}\.(safetensors|pt)|\..+\.tmp')
_FORMAT = 1


class ShardStore:
    """Checkpoints in a folder, of which one state is current.

    Args:
        folder (str or Path): the folder, created by the first :meth:`write`.
    """

    def __init__(self, folder: str | Path) -> None:
        check_instance('folder', folder, str, Path)
        self.folder = Path(folder).absolute()

    def manifest(self) -> dict[str, Any] | None:
        """Read the manifest, or return :obj:`None` if there is none.

        Raises:
            DamagedFileError: if the manifest is none of ours.
        """
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        try:
            manifest = json.loads(path.read_bytes())
        except (RecursionError, ValueError) as error:
            raise DamagedFileError(f'{path} is no manifest: {error}') from None
        if (
            not isinstance(manifest, dict)
            or manifest.get('format') != _FORMAT
            or not _names_files(manifest.get('files'))
        ):
            raise DamagedFileError(
                f'{path} is no manifest of format {_FORMAT}'
            )
        return manifest

    @validated
    def write(
        self,
        parts: dict[str, Any],
        plain: dict[str, Any],
        *,
        keep_history: bool = False,
        goes_on: bool = False,
    ) -> dict[str, Any]:
        """Make a new state current, and delete the files of the previous one.

        An interruption before the switch of the manifest leaves the old
        state in force, and one after it the new state. Files that were left
        are deleted by the next :meth:`write` or :meth:`purge`.

        Args:
            parts (dict): the content of each file, by name: tensors and
                plain values, as :func:`pyg_trust.files.save` takes them.
            plain (dict): the content of the manifest, as JSON; if it has a
                ``'lineage'``, the state has to continue the current one.
            keep_history (bool): whether to leave the files of earlier states
                in the folder. (default: :obj:`False`)
            goes_on (bool): whether a current state is required.
                (default: :obj:`False`)

        Returns:
            dict: the new manifest.

        Raises:
            StaleStateError: if somebody else has changed the folder since the
                state was read from it, or moved it away.
            ValueError: if the folder holds the state of another fit, or its
                manifest has two names.
        """
        check_instance('parts', parts, dict)
        for name in parts:
            check_instance('parts', name, str)
        check_plain('plain', plain)
        self.folder.mkdir(parents=True, exist_ok=True)
        with commit.exclusive(self.folder / MANIFEST):
            commit.check_one_name(self.folder / MANIFEST)
            found = self.manifest()
            if goes_on and found is None:
                raise commit.StaleStateError(
                    f'{self.folder} no longer holds the state that was '
                    'written there: it was moved or deleted, and could bring '
                    'back items that are removed now. Nothing was written. '
                    'Put it back, or save() first'
                )
            if found is not None and 'lineage' in {*found, *plain}:
                commit.check_continues(self.folder, found, plain)
            manifest = self._write(parts, plain)
            if not keep_history:
                self._delete_strangers()
        return manifest

    def _write(
        self, parts: dict[str, Any], plain: dict[str, Any]
    ) -> dict[str, Any]:
        entries: dict[str, dict[str, str]] = {}
        for name, value in parts.items():
            content = files.packed(value)
            digest = hashlib.sha256(content).hexdigest()
            file = f'{name}-{digest[:16]}.safetensors'
            entries[name] = {'file': file, 'sha256': digest}
            # A file of this name may have been cut short by a power failure,
            # or changed: keep it only if its digest is right.
            if _digest_of(self.folder / file) != digest:
                files.write(self.folder / file, content)
        manifest = {'format': _FORMAT, 'files': entries, **plain}
        text = json.dumps(manifest, indent=1, sort_keys=True)
        files.write(self.folder / MANIFEST, text.encode())
        return manifest

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read the parts and the manifest of the current state.

        Raises:
            ValueError: if the folder holds no state.
            DamagedFileError: if a file is missing or changed.
        """
        with commit.exclusive(self.folder / MANIFEST, reading=True):
            return self._read()

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        manifest = self.manifest()
        if manifest is None:
            raise ValueError(
                f"'folder' needs to hold a {MANIFEST} (got {self.folder})"
            )
        parts = {}
        for name, entry in manifest['files'].items():
            path = self.folder / entry['file']
            if _digest_of(path) != entry['sha256']:
                raise DamagedFileError(f'{path} is missing, or was changed')
            parts[name] = files.load(path)
        return parts, manifest

    def strangers(self) -> list[Path]:
        """List files that no current state names."""
        manifest = self.manifest()
        named = {MANIFEST}
        if manifest is not None:
            named |= {entry['file'] for entry in manifest['files'].values()}
        if not self.folder.is_dir():
            return []
        return sorted(
            path
            for path in self.folder.iterdir()
            if path.name not in named and _OURS.fullmatch(path.name)
        )

    def purge(self) -> list[Path]:
        """Delete the files of :meth:`strangers`, and return them.

        Where nothing is to be deleted, the folder need not be writable.
        """
        if not self.strangers():
            return []
        with commit.exclusive(self.folder / MANIFEST):
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


def _names_files(entries: Any) -> bool:
    # A name must not lead out of the folder.
    return isinstance(entries, dict) and all(
        isinstance(entry, dict)
        and isinstance(entry.get('sha256'), str)
        and isinstance(entry.get('file'), str)
        and _OURS.fullmatch(entry['file']) is not None
        and '/' not in entry['file']
        and '\\' not in entry['file']
        for entry in entries.values()
    )


def _digest_of(path: Path) -> str:
    if not path.exists():
        return ''
    digest = hashlib.sha256()
    with path.open('rb') as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
