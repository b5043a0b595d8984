"""Where the public files of the full tier come from. What fetches them reads this table; nothing here touches a network."""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """A public file.

    Attributes:
        name: as it must be called in ``$TSTAR_DATA/webshop``.
        url: where the original's setup script takes it from (Google Drive).
        licence: of the repository that publishes it; the product texts were collected by its authors.
        whole: whether it belongs to the set of 1.18 million products; else to the one of 1,000.
    """

    name: str
    url: str
    licence: str
    whole: bool


_DRIVE = "https://drive.google.com/uc?id="
_LICENCE = "MIT (princeton-nlp/WebShop)"
SOURCES = (
    Source("items_shuffle.json", _DRIVE + "1A2whVgOO0euk5O13n2iYDM0bQRkkRduB", _LICENCE, True),
    Source("items_ins_v2.json", _DRIVE + "1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi", _LICENCE, True),
    Source("items_shuffle_1000.json", _DRIVE + "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib", _LICENCE, False),
    Source("items_ins_v2_1000.json", _DRIVE + "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu", _LICENCE, False),
    Source("items_human_ins.json", _DRIVE + "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O", _LICENCE, True),
)
