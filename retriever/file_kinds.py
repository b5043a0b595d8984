"""File types that are mistaken for text, detected by their first bytes."""

import os
from pathlib import Path

HEAD_BYTES = 512
_PAGE = "a web page, not the file (an error, or Google Drive's warning about large files); download it again"
_FAISS = "a FAISS index, without its passages, which cannot be served alone"
# first bytes, in lower case -> type of the file and remedy
_KINDS: dict[bytes, str] = {
    b"par1": "a parquet file; write its rows as JSON lines (pandas: read_parquet, then to_json(orient='records', lines=True))",
    b"arrow1": "an Arrow file; write its rows as JSON lines (datasets: Dataset.from_file, then to_json)",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself; fetch it: git lfs pull",
    b"<!doctype html": _PAGE,
    b"<html": _PAGE,
    b"bzh": "packed with bzip2; unpack it: bunzip2 FILE",
    b"\xfd7zxz\0": "packed with xz; unpack it: unxz FILE",
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it: unzstd FILE",
    b"\x1f\x8b": "packed with gzip; let its name end in .gz, or unpack it: gunzip FILE",
    b"pk\x03\x04": "a zip archive; unpack it: unzip FILE",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive; unpack it: 7z x FILE",
    b"rar!\x1a\x07": "a RAR archive; unpack it: unrar x FILE",
    b"%pdf-": "a PDF, not text",
    b"\x89hdf\r\n": "an HDF5 file; write its records as JSON lines",
    b"/annex/objects/": "a git-annex pointer, not the file itself; fetch it: git annex get FILE",
    b"../.git/annex/": "a git-annex pointer, not the file itself; fetch it: git annex get FILE",
    b"<?xml": "XML, not JSON (a bucket's error, if it is short); look into it, and download the file again",
    b"404: not found": "a server's answer that the file is not there; look at its address",
    b"sqlite format 3\0": "an SQLite database; write its table as JSON lines",
    b"\x93numpy": "a NumPy array, not text",
    b"\x80\x04": "a Python pickle, which is never loaded here; write it as JSON lines",
    **dict.fromkeys((b"ixf", b"ixm", b"ixp", b"iwfl", b"iwpq", b"iwsq", b"ihn"), _FAISS),
}


def kind_of_file(path: str | os.PathLike[str]) -> str:
    """Detect a file that is not readable text.

    Args:
        path: any path; a file that cannot be opened gives "".

    Returns:
        Type of the file and remedy; "" if it may be text.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
    except (OSError, ValueError):
        return ""
    if head and not head.strip(b"\0"):
        return "bytes of value 0 alone: a download that was cut off; fetch it again"
    if head[257:262] == b"ustar":
        return "a tar archive; unpack it: tar xf FILE"
    plain = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return next((said for first, said in _KINDS.items() if plain.startswith(first)), "")
