"""Index folders: atomic writes, memory-mapped reads, checksums.

A folder holds ``documents.jsonl`` (canonical corpus lines), ``offsets.npy`` (their offsets), the files of one index, and
``manifest.json`` with the format version, the settings, and size and SHA-256 of every other file.
"""

import hashlib
import json
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from retriever.bm25 import Bm25Index
from retriever.corpus import LINES, StoredDocuments, write_documents
from retriever.encoders import encoder_class, is_named
from retriever.errors import BadIndex, RetrieverError, WriteFailed
from retriever.file_kinds import kind_of_file
from retriever.index import DenseIndex, index_class

_KINDS = ("hashed", "bm25", "transformer")
Index = DenseIndex | Bm25Index
Verify = Literal["auto", "before", "behind", "never"]
_FORMAT = 1
MANIFEST = "manifest.json"
# Up to this size, hashing all files before the first search takes less than half a second.
VERIFY_AT_ONCE = 256 << 20
# The head of a file determines how much memory FAISS and NumPy address, so it is always verified first.
_HEAD = 1 << 20


class Manifest(TypedDict):
    """Fields of ``manifest.json``.

    ``kind`` is ``bm25`` or the encoder's (`retriever.encoders.Encoder.kind`).
    ``sha256``, ``sha256_head`` (of the first MiB) and ``bytes`` are by file name. ``recall`` maps "@k" to the recall against
    exact search, measured by the build; ``recall_target`` is the recall@10 for which it chose the search effort in ``settings``, if it
    was asked to. ``sha256_manifest`` covers all other fields.
    """

    format: int
    kind: str
    ntotal: int
    settings: dict[str, str | int | float]
    recall: dict[str, float]
    recall_target: NotRequired[float]
    bytes: dict[str, int]
    sha256_head: dict[str, str]
    sha256: dict[str, str]
    sha256_manifest: str


def save_index(index: Index, folder: str | Path) -> None:
    """Save an in-memory index to a new folder.

    The files go to a hidden sibling folder, which is renamed when complete, so a reader never sees half an
    index. Equal documents and settings give equal bytes.

    >>> from tempfile import TemporaryDirectory
    >>> from retriever import Document, HashedIndex, load_index, save_index
    >>> with TemporaryDirectory() as folder:
    ...     save_index(HashedIndex.build([Document("1", "a red fox")]), f"{folder}/index")
    ...     load_index(f"{folder}/index").search(["fox"], topk=1)[0][0].document.id
    '1'

    Args:
        index: The index; its documents are saved too.
        folder: A new path, or an empty folder.

    Raises:
        FileExistsError: The folder is not empty.
        WriteFailed: Writing failed; nothing was kept.
    """
    folder = Path(folder)
    check_vacant(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.tmp"
    temporary.mkdir()
    try:
        write_documents(index.documents, temporary)
        index.save(temporary)
        write_manifest(temporary, index, {})
        temporary.replace(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # FAISS reports a failed write as a RuntimeError; nothing else here raises one.
        if isinstance(error, OSError | RuntimeError):
            raise write_failed(
                folder, error, "Nothing was kept; free disk space or choose another folder."
            ) from error
        raise


def check_vacant(folder: Path) -> None:
    """Check that a folder is new or empty.

    Raises:
        FileExistsError: The folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} already exists; remove it or choose another folder.")


def write_failed(folder: Path, error: BaseException, remedy: str) -> WriteFailed:
    """Create the error for a failed write."""
    reason = getattr(error, "strerror", None) or str(error).strip()
    return WriteFailed(f"{folder} cannot be written: {reason}. {remedy}")


def write_manifest(
    folder: Path, index: Index, recall: dict[str, float], recall_target: float | None = None
) -> None:
    """Write the manifest of all files in a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "kind": "bm25" if isinstance(index, Bm25Index) else index.encoder.kind,
        "ntotal": index.ntotal,
        "settings": index.info(),
        "recall": recall,
        **({} if recall_target is None else {"recall_target": recall_target}),
        "bytes": {path.name: path.stat().st_size for path in files},
        "sha256_head": {path.name: _sha256_head(path) for path in files},
        "sha256": {path.name: sha256_file(path) for path in files},
    }
    manifest["sha256_manifest"] = _sha256_json(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="ascii")


def load_index(
    folder: str | Path,
    threads: int = 1,
    verify: Verify = "auto",
    on_damage: Callable[[BadIndex], None] | None = None,
) -> Index:
    """Open an index folder by memory-mapping its files; see `save_index` for an example.

    Args:
        folder: Folder written by `save_index` or `retriever.build.build_index`.
        threads: Threads of a search and of a transformer; BM25 always uses one.
        verify: When to verify all checksums. ``before``: before this returns. ``behind``: in a background thread, while searches
            are answered; a search after damage was found raises `BadIndex`. ``never``: not at all. ``auto``: before up to 256 MB,
            above that in a thread that the first search waits for, so no answer comes from unverified bytes.
            Sizes and the first MiB of every file are always verified before.
        on_damage: Called from the background thread with the error.

    Raises:
        FileNotFoundError: The folder does not exist.
        BadIndex: A file is missing, unlisted, truncated or changed; the message names it.
        MissingDependency: faiss, bm25s or transformers is not installed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for name, size in manifest["bytes"].items():
        if (found := (folder / name).stat().st_size) != size:
            raise BadIndex(
                f"{folder / name}: {found} bytes, {size} in {MANIFEST}: truncated or changed; copy or build the index again."
            )
        if _sha256_head(folder / name) != manifest["sha256_head"][name]:
            raise _changed(folder / name)
    if verify == "auto" and sum(manifest["bytes"].values()) <= VERIFY_AT_ONCE:
        verify = "before"
    if verify == "before":
        _verify(folder, manifest)
    index = _open(folder, manifest, threads)
    if verify in ("auto", "behind"):
        index.check_files = _verify_in_a_thread(folder, manifest, verify == "auto", on_damage)
    return index


def _open(folder: Path, manifest: Manifest, threads: int) -> Index:
    digest = manifest["sha256"].get(LINES, "")
    index: Index
    try:
        documents = StoredDocuments(folder)
        if manifest["kind"] == "bm25":
            index = Bm25Index.load(folder, documents, digest)
        else:
            encoder = encoder_class(manifest["kind"]).load(folder, threads)
            index = index_class(encoder).open(folder, documents, encoder, threads, digest)
            index.restore(manifest["settings"])
    except RetrieverError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        # The checksums match, so the manifest itself belongs to another index.
        raise BadIndex(f"{folder / MANIFEST}: not the manifest of these files ({error}).") from error
    # The rest of the manifest is compared too, so that every byte of the folder is checked.
    found = (index.ntotal, index.info())
    if (manifest["ntotal"], manifest["settings"]) != found:
        raise BadIndex(
            f'{folder / MANIFEST}: "ntotal" and "settings" are not those of the index, {found!r}; '
            "copy or build the index again."
        )
    return index


def _verify(folder: Path, manifest: Manifest) -> None:
    for name, expected in manifest["sha256"].items():
        if sha256_file(folder / name) != expected:
            raise _changed(folder / name)


def _verify_in_a_thread(
    folder: Path, manifest: Manifest, wait: bool, on_damage: Callable[[BadIndex], None] | None
) -> Callable[[], None]:
    """Start verification. The returned function raises the error found so far.

    With ``wait`` it waits for the result.
    """
    found: list[BadIndex] = []

    def run() -> None:
        try:
            _verify(folder, manifest)
        except OSError as error:
            found.append(BadIndex(f"{folder}: cannot be read ({error})."))
        except BadIndex as error:
            found.append(error)
        if found and on_damage is not None:
            on_damage(found[0])

    def check() -> None:
        if wait:
            thread.join()
        if found:
            raise found[0]

    thread = threading.Thread(target=run, name="verify", daemon=True)
    thread.start()
    return check


def _changed(path: Path) -> BadIndex:
    return BadIndex(f"{path}: SHA-256 differs from {MANIFEST}; copy or build the index again.")


def read_manifest(folder: Path) -> Manifest:
    """Read and validate a manifest, and check that the folder has exactly the listed files.

    Fast for any size of index: no other file is opened.

    Raises:
        FileNotFoundError: The folder does not exist.
        BadIndex: The manifest is missing, malformed or of another format, or the files differ from its list.
    """
    if folder.is_file():
        kind = kind_of_file(folder) or "a file, not an index folder"
        raise BadIndex(f"{folder}: {kind}; run: python -m retriever build --corpus FILE --out FOLDER")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder}: no such index folder; run: python -m retriever build --corpus FILE --out {folder}"
        )
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BadIndex(f"{path} is missing; {folder} is not an index folder.") from error
    except (ValueError, RecursionError) as error:
        raise BadIndex(f"{path}: not JSON ({error}); copy or build the index again.") from error
    if (
        not isinstance(content, dict)
        or set(content) - Manifest.__optional_keys__ != Manifest.__required_keys__
    ):
        raise BadIndex(
            f"{path}: expected an object with the fields {', '.join(sorted(Manifest.__required_keys__))}; build the index again."
        )
    kind = content["kind"]
    if content["format"] != _FORMAT or not (kind in _KINDS or (isinstance(kind, str) and is_named(kind))):
        raise BadIndex(
            f"{path}: format {content['format']!r} and kind {content['kind']!r} are not known to this "
            f"version (format {_FORMAT}, kinds {', '.join(_KINDS)} and module:Class); build the index again."
        )
    if content["sha256_manifest"] != _sha256_json({**content, "sha256_manifest": None}):
        raise BadIndex(f"{path}: has been changed; copy or build the index again.")
    listed, present = set(content["sha256"]), {entry.name for entry in folder.iterdir()} - {MANIFEST}
    if listed != present:
        raise BadIndex(
            f"{folder}: missing files {sorted(listed - present)}, unlisted files {sorted(present - listed)}; "
            "copy or build the index again."
        )
    manifest: Manifest = content  # type: ignore[assignment]  # its digest was verified
    return manifest


def _sha256_json(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256_manifest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii")).hexdigest()


def sha256_file(path: Path) -> str:
    """Compute the SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256_head(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.sha256(stream.read(_HEAD)).hexdigest()
