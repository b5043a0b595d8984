"""Transformer encoders of the E5 and MiniLM kind: token vectors pooled into one, of unit length.

The model is named or a local folder, and is only ever loaded from safetensors and without remote code. An
index remembers a digest of the weights, so that its queries cannot be encoded by another model.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from retriever.errors import BadIndex, BadSetting, MissingModel, import_optional

Pooling = Literal["mean", "cls"]
_FILE = "encoder.json"
_BATCH = 32
_MOST_TOKENS = 512
# Where a model's name says in which form it was trained (intfloat/e5-base-v2: "query: ", "passage: ").
_E5_PREFIXES = ("query: ", "passage: ")


class TransformerSettings(NamedTuple):
    """How text is turned into a vector, besides the weights."""

    model: str
    pooling: Pooling
    query_prefix: str
    passage_prefix: str
    max_tokens: int


def settings_for(
    model: str,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_tokens: int | None = None,
) -> TransformerSettings:
    """Fill in what was not said: what a sentence-transformers folder holds, E5's prefixes where the name says E5.

    Args:
        model: Name on the hub, or a folder.
        pooling: ``mean`` over the tokens, or the first token (``cls``).
        query_prefix: Put before every query.
        passage_prefix: Put before every passage.
        max_tokens: Text beyond is cut off; at most what the model takes.

    Raises:
        BadSetting: A value is out of range.
    """
    folder = Path(model)
    if folder.is_dir():
        model = str(folder.resolve())
    if pooling is None:
        said = _read_json(folder / "1_Pooling" / "config.json")
        pooling = "cls" if said.get("pooling_mode_cls_token") else "mean"
    if pooling not in get_args(Pooling):
        raise BadSetting(f"pooling must be mean or cls, got {pooling!r}.")
    if max_tokens is None:
        said = _read_json(folder / "sentence_bert_config.json")
        max_tokens = int(said.get("max_seq_length") or _MOST_TOKENS)
    if max_tokens < 3:
        raise BadSetting(f"max_tokens must be at least 3, got {max_tokens}.")
    prefixes = _E5_PREFIXES if "e5" in folder.name.lower().replace("_", "-").split("-") else ("", "")
    return TransformerSettings(
        model=model,
        pooling=pooling,
        query_prefix=prefixes[0] if query_prefix is None else query_prefix,
        passage_prefix=prefixes[1] if passage_prefix is None else passage_prefix,
        max_tokens=max_tokens,
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


class TransformerEncoder:
    """A model and its tokenizer, on the CPU or a GPU.

    Args:
        settings: See `settings_for`.
        threads: Threads of torch, for the whole process.

    Raises:
        MissingModel: Neither a folder with such a model, nor a name that can be fetched.
        MissingDependency: transformers or torch is not installed.
    """

    def __init__(self, settings: TransformerSettings, threads: int = 1) -> None:
        self._torch = import_optional("torch")
        transformers = import_optional("transformers")
        self.settings = settings
        name = settings.model
        self._torch.set_num_threads(threads)
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(name)
            self._model = transformers.AutoModel.from_pretrained(
                name, use_safetensors=True, trust_remote_code=False, dtype=self._torch.float32
            )
        # Each of these libraries has errors of its own for what it cannot read, down to a bare Exception.
        except Exception as error:
            reason = str(error).strip().splitlines()
            raise MissingModel(
                f"the encoder {name!r} cannot be loaded: {reason[0] if reason else type(error).__name__}. Name a folder "
                "with config.json, model.safetensors and tokenizer files, or a model of the Hugging Face hub."
            ) from error
        self._device = "cuda" if self._torch.cuda.is_available() else "cpu"
        self._model.eval().to(self._device)
        most = getattr(self._model.config, "max_position_embeddings", _MOST_TOKENS)
        self._max_tokens = min(settings.max_tokens, most)
        self.weights_sha256 = self._digest()

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        digest.update(json.dumps(self._tokenizer.get_vocab(), sort_keys=True).encode())
        return digest.hexdigest()

    @property
    def dim(self) -> int:
        """Length of every vector."""
        return int(self._model.config.hidden_size)

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `retriever.encoders.Encoder`."""
        return self._encode([self.settings.passage_prefix + text for text in texts])

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `retriever.encoders.Encoder`; a query without any visible character has a row of zeros."""
        vectors = self._encode([self.settings.query_prefix + text for text in texts])
        vectors[[not text.strip() for text in texts]] = 0
        return vectors

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        torch = self._torch
        vectors = np.empty((len(texts), self.dim), np.float32)
        # Half surrogate pairs have no UTF-8, which is what the tokenizer works on.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        # Texts of similar length share a batch, so that little of it is padding.
        order = sorted(range(len(clean)), key=lambda i: len(clean[i]))
        with torch.inference_mode():
            for start in range(0, len(order), _BATCH):
                rows = order[start : start + _BATCH]
                batch = self._tokenizer(
                    [clean[row] for row in rows],
                    padding=True,
                    truncation=True,
                    max_length=self._max_tokens,
                    return_tensors="pt",
                ).to(self._device)
                hidden = self._model(**batch).last_hidden_state
                if self.settings.pooling == "cls":
                    pooled = hidden[:, 0]
                else:
                    mask = batch["attention_mask"][..., None].to(hidden.dtype)
                    pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
                vectors[rows] = torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()
        return vectors

    def info(self) -> dict[str, str | int]:
        """Return the encoder's name, its settings and the digest of its weights."""
        return {
            "encoder": "transformer",
            "dim": self.dim,
            **self.settings._asdict(),
            "weights_sha256": self.weights_sha256,
        }

    def save(self, folder: Path) -> None:
        """Write the settings and the digest of the weights; the weights stay where they are."""
        content = {"settings": self.settings._asdict(), "weights_sha256": self.weights_sha256}
        (folder / _FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="ascii")

    @classmethod
    def load(cls, folder: Path, threads: int = 1) -> "TransformerEncoder":
        """Load the model that `save` named.

        Raises:
            BadIndex: That model has other weights now.
            MissingModel: It cannot be found.
            OSError, ValueError, KeyError, TypeError: The file is no such file.
        """
        content = json.loads((folder / _FILE).read_text(encoding="ascii"))
        encoder = cls(TransformerSettings(**content["settings"]), threads)
        if encoder.weights_sha256 != content["weights_sha256"]:
            raise BadIndex(
                f"{folder / _FILE}: the index was built with other weights than those of {encoder.settings.model!r} now; "
                "put the model back or build the index again."
            )
        return encoder
