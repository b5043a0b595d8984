"""What a page of results in one file needs, whose texts are foreign: data for its script, and a policy that runs this script alone."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any


def script_json(data: Any) -> str:
    """JSON that no HTML parser takes for markup and no script parser for a line break, whatever its texts are.

    Brackets and the ampersand are escaped here, U+2028, half a surrogate pair and all else beyond ASCII by ``ensure_ascii``.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def content_policy(script: str, style: str) -> str:
    """A Content-Security-Policy under which a page uses these two sources and loads nothing: a second lock behind the escaping."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
