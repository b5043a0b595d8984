"""What the benchmark runs on where there is no corpus and no hub: random vectors, and an encoder of MiniLM's shape.

The time of a search or an encoding does not depend on what the numbers are.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever.corpus import Document
from retriever.documents import StoredDocuments, write_documents
from retriever.encoders import Encoder, HashedTfidfEncoder
from retriever.errors import import_optional
from retriever.index import VECTORS, DenseIndex, HashedIndex
from retriever.storage import write_manifest
from retriever.vectors import VectorFile, trained

_BLOCK = 1 << 14
_WORDS = [
    first + second
    for first in "ba be bi bo bu da de di do du".split()
    for second in "ka ke ki ko ku la le li lo lu".split()
]


def unit_vectors(count: int, dim: int, seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """Blocks of random unit vectors, shape (up to 16384, dim)."""
    for start in range(0, count, _BLOCK):
        generator = np.random.default_rng((seed, start))
        block = generator.standard_normal((min(_BLOCK, count - start), dim), np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def queries(count: int, seed: int = 0, words: int = 10) -> list[str]:
    """Different word sequences of the length of a question."""
    generator = np.random.default_rng((seed, count))
    return [
        " ".join(_WORDS[place] for place in row)
        for row in generator.integers(len(_WORDS), size=(count, words))
    ]


def write_index_folder(folder: Path, count: int, encoder: Encoder) -> None:
    """Write a flat index of random vectors; queries are encoded by ``encoder``."""
    folder.mkdir(parents=True)
    write_documents(
        (Document(str(n), f'"Passage {n}"\nThe text of passage {n}.') for n in range(count)), folder
    )
    file = VectorFile(trained("flat", encoder.dim, count, np.empty((0, encoder.dim), np.float32)))
    with (folder / VECTORS).open("wb") as stream:
        file.begin(stream)
        for block in unit_vectors(count, encoder.dim):
            file.append(stream, block)
        file.finish(stream, count)
    encoder.save(folder)
    cls = HashedIndex if isinstance(encoder, HashedTfidfEncoder) else DenseIndex
    write_manifest(folder, cls.open(folder, StoredDocuments(folder), encoder, 1, ""), {})


def write_minilm(folder: Path) -> Path:
    """Write a randomly initialised BERT of the shape of all-MiniLM-L6-v2 (22 M parameters, 384 numbers)."""
    torch, transformers = import_optional("torch"), import_optional("transformers")
    tokenizers = import_optional("tokenizers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *_WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    transformers.BertModel(transformers.BertConfig(vocab_size=30522, **shape)).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return folder
