"""Making the shipped weights: tokenizer, imitation, and a record of how they were made."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tstar_envs import EnvEntry, TextEnv
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.model import new_tiny, save_tiny
from tstar_train.policy.tokenizer import train_tokenizer
from tstar_train.presets import TINY_ENV_OPTIONS
from tstar_train.warmstart.demonstrations import DemonstrationStyle, practice_rows
from tstar_train.warmstart.imitate import ImitationSchedule, imitate

VOCABULARY = {"search_qa": 2304}
SCHEDULES = {"search_qa": ImitationSchedule(steps=12_000, batch=8)}
_TOKENIZER_ROWS = 6_000


class TextCodec:
    """Rows of plain text instead of ids, for the tokenizer's training corpus."""

    end = 0
    pad = 0

    def start(self, prompt: str, observation: str) -> list[Any]:
        return [f"{observation}\n"]

    def observation(self, text: str) -> list[Any]:
        return [f"\nObservation: {text}\n"]

    def reply(self, text: str) -> list[Any]:
        return [text]

    def text(self, text: str) -> list[Any]:
        return [text]

    def decode(self, ids: Sequence[Any]) -> str:
        return "".join(ids)


def practice_factory(entry: EnvEntry) -> partial[TextEnv[Any, Any]]:
    """Fresh practice environments of a family under the options that its tiny policy plays with."""
    return partial(entry.load_class().practice, **TINY_ENV_OPTIONS.get(entry.family, {}))


def build_weights(entry: EnvEntry, out: Path, seed: int, steps: int | None, console: Console) -> None:
    """Train a tiny policy for a family from nothing and write it.

    Args:
        entry: any environment of the family.
        out: folder; ``model.safetensors``, ``config.json``, the tokenizer and ``training.json`` are written there.
        seed: of weights and demonstrations.
        steps: updates, None for the family's schedule.
        console: for progress.
    """
    torch.set_num_threads(1)
    started = time.process_time()
    style = DemonstrationStyle()
    practice = practice_factory(entry)
    texts = itertools.islice(practice_rows(practice, TextCodec(), 999, style), _TOKENIZER_ROWS)
    tokenizer = train_tokenizer((str(piece) for row in texts for piece in row.ids), VOCABULARY[entry.family])
    codec = PlainCodec(tokenizer, with_prompt=False)
    model = new_tiny(tokenizer, seed)
    schedule = SCHEDULES[entry.family]
    if steps is not None:
        schedule = ImitationSchedule(**{**asdict(schedule), "steps": steps})
    losses: list[tuple[int, float]] = []

    def report(step: int, loss: float, seconds: float) -> None:
        losses.append((step, loss))
        console.print(f"step {step}/{schedule.steps}  loss {loss:.4f}  {seconds / 60:.1f} CPU-minutes", highlight=False)

    imitate(model, practice_rows(practice, codec, seed, style), schedule, codec.pad, report)
    save_tiny(model, tokenizer, out)
    record = {
        "made_by": f"python -m tstar_train warmstart --env {entry.name} --seed {seed} --steps {schedule.steps}",
        "family": entry.family,
        "rules_version": entry.rules_version,
        "parameters": sum(p.numel() for p in model.parameters()),
        "schedule": asdict(schedule),
        "style": asdict(style),
        "cpu_seconds": round(time.process_time() - started, 1),
        "torch": torch.__version__,
        "losses": losses,
    }
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
