"""Index folders: written whole or not at all, and refused by name when a byte has changed.

A folder holds ``documents.jsonl`` (canonical corpus lines), the files of one index, and
``manifest.json`` with the format version, the settings and the SHA-256 of every other file.
"""

import hashlib
import json
import shutil
import uuid
from pathlib import Path
from typing import Literal, TypedDict, get_args

from retriever.bm25 import Bm25Index
from retriever.corpus import Document, read_corpus
from retriever.errors import BadCorpus, BadIndex, WriteFailed
from retriever.index import HashedIndex

Kind = Literal["hashed", "bm25"]
_FORMAT = 1
_MANIFEST = "manifest.json"
_DOCUMENTS = "documents.jsonl"


class Manifest(TypedDict):
    """The fields of ``manifest.json``; ``sha256`` maps file name to hex digest."""

    format: int
    kind: Kind
    ntotal: int
    settings: dict[str, str | int | float]
    sha256: dict[str, str]


def save_index(index: HashedIndex | Bm25Index, folder: str | Path) -> None:
    """Write an index to a new folder.

    Everything goes to a hidden sibling first, which is renamed when complete, so a reader never sees
    half an index. Equal documents and settings give equal bytes.

    Args:
        index: What to write, documents included.
        folder: A path that does not exist yet, or an empty folder.

    Raises:
        FileExistsError: The folder holds something already.
        WriteFailed: The disk refused; nothing is left of what was written.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists already; remove it or name another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.tmp"
    temporary.mkdir()
    try:
        with (temporary / _DOCUMENTS).open("w", encoding="ascii", newline="\n") as stream:
            stream.writelines(document.to_json() + "\n" for document in index.documents)
        index.save(temporary)
        manifest: Manifest = {
            "format": _FORMAT,
            "kind": "hashed" if isinstance(index, HashedIndex) else "bm25",
            "ntotal": index.ntotal,
            "settings": index.info(),
            "sha256": {path.name: _sha256(path) for path in sorted(temporary.iterdir())},
        }
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="ascii")
        temporary.replace(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # FAISS tells a failed write as a RuntimeError; nothing else here raises one.
        if isinstance(error, OSError | RuntimeError):
            reason = getattr(error, "strerror", None) or str(error).strip()
            raise WriteFailed(
                f"{folder} cannot be written: {reason}. Nothing of it is left; make room or name another folder."
            ) from error
        raise


def load_index(folder: str | Path, threads: int = 1) -> HashedIndex | Bm25Index:
    """Verify and read an index folder.

    Args:
        folder: What `save_index` wrote.
        threads: OpenMP threads of a search; BM25 always uses one.

    Raises:
        FileNotFoundError: There is no such folder.
        BadIndex: A file is missing, foreign, truncated or changed; the message names it.
        MissingDependency: faiss or bm25s is not installed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for name, expected in manifest["sha256"].items():
        if _sha256(folder / name) != expected:
            raise BadIndex(
                f"{folder / name}: SHA-256 differs from {_MANIFEST}; copy or build the index again."
            )
    documents = _read_documents(folder)
    index: HashedIndex | Bm25Index
    try:
        if manifest["kind"] == "hashed":
            index = HashedIndex.load(folder, documents, threads)
        else:
            index = Bm25Index.load(folder, documents)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        # The bytes are as listed, so the list is wrong: a manifest put to another index's files.
        raise BadIndex(f"{folder / _MANIFEST}: not the manifest of these files ({error}).") from error
    # What is left of the manifest is compared too, so that no byte of the folder goes unchecked.
    found = (index.ntotal, index.info())
    if (manifest["ntotal"], manifest["settings"]) != found:
        raise BadIndex(
            f'{folder / _MANIFEST}: "ntotal" and "settings" are not those of the index, {found!r}; '
            "copy or build the index again."
        )
    return index


def read_manifest(folder: Path) -> Manifest:
    """Read and check a manifest, and that the folder holds the files it lists and no others.

    Quick whatever the size of the index: no other file is opened.

    Raises:
        FileNotFoundError: There is no such folder.
        BadIndex: The manifest is missing, malformed or of another format, or the files are not as listed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder}: no such index folder; run: python -m retriever build --corpus FILE --out {folder}"
        )
    path = folder / _MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BadIndex(f"{path} is missing; {folder} is no index folder.") from error
    except (ValueError, RecursionError) as error:
        raise BadIndex(f"{path}: not JSON ({error}); copy or build the index again.") from error
    if not isinstance(content, dict) or set(content) != set(Manifest.__annotations__):
        raise BadIndex(f"{path}: expected an object with the fields {', '.join(Manifest.__annotations__)}.")
    if content["format"] != _FORMAT or content["kind"] not in get_args(Kind):
        raise BadIndex(
            f"{path}: format {content['format']!r} and kind {content['kind']!r} are not known to this "
            f"version (format {_FORMAT}, kinds {', '.join(get_args(Kind))}); build the index again."
        )
    if not isinstance(content["sha256"], dict):
        raise BadIndex(f'{path}: the field "sha256" must be an object, found {content["sha256"]!r:.80}.')
    listed, present = set(content["sha256"]), {entry.name for entry in folder.iterdir()} - {_MANIFEST}
    if listed != present:
        raise BadIndex(
            f"{folder}: missing files {sorted(listed - present)}, unlisted files {sorted(present - listed)}; "
            "copy or build the index again."
        )
    manifest: Manifest = content  # type: ignore[assignment]  # checked above, field by field
    return manifest


def _read_documents(folder: Path) -> list[Document]:
    try:
        return read_corpus(folder / _DOCUMENTS)
    except (BadCorpus, FileNotFoundError) as error:
        raise BadIndex(f"{folder / _DOCUMENTS}: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
