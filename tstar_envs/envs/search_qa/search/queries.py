"""When two queries are one."""

from __future__ import annotations

import unicodedata


def query_key(query: str) -> str:
    """What two queries have in common that are one to a search by words (the retriever's ``text.normalise``).

    NFKC, case folded, punctuation and symbols as spaces. Combining marks stay: they are letters to the scripts of India. Word order
    and stop words stay, because they matter to a dense encoder.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", query).casefold())
    return " ".join("".join(" " if unicodedata.category(c)[0] in "ZPSC" else c for c in folded).split())
