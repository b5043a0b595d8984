"""Measure CPU seconds of rollout and update beside TRL's GRPO, with the same model, environment and batch.

    python scripts/bench/bench_trl.py [--sizes 1M 20M 100M] [--rounds 4] [--env sokoban-easy]

Both sample groups of 8 episodes of the same turns (every reply is as long as it may be: a random model hardly ever ends one), play
them in the same environment with growing contexts, and take one AdamW step over all of the policy's tokens. They take their steps in
turn in one process, on one thread. TRL plays through its ``environment_factory``; its tokenizer reads every reply as one call of the
tool ``act``. Rollout is all that samples and plays (TRL's ``_generate``), update the rest of a step. Needs the dev extra (trl).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tstar_envs import find_entry
from tstar_train.build import trainer_of
from tstar_train.config import Config, OptimConfig, RolloutConfig
from tstar_train.distributed import SingleProcess
from tstar_train.loop import iterate
from tstar_train.policy.chat import ChatCodec
from tstar_train.policy.model import Policy

sys.path.append(str(Path(__file__).resolve().parents[2]))
from scripts.studies.small_tokenizers import shaped

GROUP, TURNS, TOKENS = 8, 4, 24


class Size(NamedTuple):
    """Shape of a model, and the tasks of an iteration."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    tasks: int


# The first is that of the built-in policies. A step of the largest takes a minute and more, so it has fewer tasks.
SIZES = {
    "1M": Size(128, 384, 4, 4, 4),
    "20M": Size(512, 1536, 6, 8, 4),
    "100M": Size(768, 2560, 12, 12, 1),
}


class Spent(NamedTuple):
    """CPU seconds of an iteration."""

    rollout: float
    update: float

    @property
    def whole(self) -> float:
        """CPU seconds of both."""
        return self.rollout + self.update


class EveryReplyActs(PreTrainedTokenizerFast):
    """Reads a reply as one call of ``act``, whatever it says."""

    def parse_response(self, response: Any, *args: Any, **kwargs: Any) -> Any:
        text = self.decode(response, skip_special_tokens=True)
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": text}}}
        return {"role": "assistant", "content": text, "tool_calls": [call]}


def model_of(size: Size, vocabulary: int) -> Qwen2ForCausalLM:
    """Make a random model."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.intermediate,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.heads,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    ).eval()


class Ours:
    """Iterations of this trainer without T-STAR; the penalty for what is no action gives every token a gradient, as TRL has it."""

    def __init__(self, env: str, size: Size) -> None:
        tokenizer = shaped("qwen2")
        policy = Policy(model_of(size, len(tokenizer)), ChatCodec(tokenizer), tokenizer, "small")
        entry = find_entry(env)
        config = Config(
            env=entry.id,
            model="small",
            tstar=False,
            env_options={"horizon": TURNS},
            rollout=RolloutConfig(
                tasks_per_iteration=size.tasks, group_size=GROUP, max_tokens=TOKENS, invalid_penalty=0.5
            ),
            optim=OptimConfig(learning_rate=1e-6),
        )
        self._trainer, self._number = trainer_of(config, policy, SingleProcess()), 0

    def step(self) -> Spent:
        """Take one iteration."""
        began = time.process_time()
        done = iterate(self._trainer, self._number, now=time.process_time)
        self._number += 1
        rollout = done.seconds["rollout"]
        return Spent(rollout, time.process_time() - began - rollout)


class Theirs:
    """Steps of TRL's GRPOTrainer; ``between`` is called after each."""

    def __init__(self, env: str, size: Size, steps: int, folder: Path, between: Callable[[], None]) -> None:
        entry = find_entry(env)
        cls = entry.load_class()
        plain = shaped("qwen2")
        tokenizer = EveryReplyActs(
            tokenizer_object=plain.backend_tokenizer, eos_token=plain.eos_token, pad_token=plain.eos_token
        )
        tokenizer.response_template = {"type": "object"}  # TRL asks for one; ``parse_response`` does without
        # It also asks that a template can show calls; one with words, as all are here, is shown by its words.
        calls = "{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments }}{% endfor %}"
        shown = "{{ m.content }}{% if not m.content and m.tool_calls %}" + calls + "{% endif %}"
        tokenizer.chat_template = plain.chat_template.replace("{{ m.content }}", shown)

        class Rollout:
            def __init__(self) -> None:
                self._env = cls(**{**entry.kwargs, "split": "train", "horizon": TURNS})

            def reset(self, task: str, **columns: object) -> str:
                return self._env.reset(options={"task": task})[0]

            def act(self, action: str) -> str:
                """Play one action.

                Args:
                    action: The action.

                Returns:
                    What the environment answers.
                """
                return str(self._env.step(action)[0])

        sampled: list[float] = []
        began: list[float] = []
        self.spent: list[Spent] = []
        spent = self.spent

        class Watch(TrainerCallback):
            def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
                sampled.clear()
                began[:] = [time.process_time()]

            def on_step_end(self, *args: Any, **kwargs: Any) -> None:
                rollout = sum(sampled)
                spent.append(Spent(rollout, time.process_time() - began[0] - rollout))
                between()

        def reward(completions: list[Any], completion_ids: list[list[int]], **columns: object) -> list[float]:
            # Differs within a group, so that every token has a gradient.
            return [float(sum(ids) % 7) for ids in completion_ids]

        env = cls(**{**entry.kwargs, "split": "train"})
        rules, tasks = env.prompt(), list(env.task_ids("train"))[: size.tasks * steps]
        rows = [
            {"prompt": [{"role": "system", "content": rules}, {"role": "user", "content": ""}], "task": task}
            for task in tasks
        ]
        options = GRPOConfig(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=size.tasks * GROUP,
            num_generations=GROUP,
            learning_rate=1e-6,
            max_completion_length=2048,
            generation_kwargs={"max_new_tokens": TOKENS},
            max_tool_calling_iterations=TURNS - 1,
            beta=0.0,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        )
        self._trainer = GRPOTrainer(
            model_of(size, len(plain)),
            reward,
            args=options,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=Rollout,
            callbacks=[Watch()],
        )
        generate = self._trainer._generate

        def timed(*args: Any) -> Any:
            start = time.process_time()
            found = generate(*args)
            sampled.append(time.process_time() - start)
            return found

        self._trainer._generate = timed

    def run(self) -> None:
        """Take all steps; what the trainer prints goes to stderr."""
        with contextlib.redirect_stdout(sys.stderr):
            self._trainer.train()


def measured(env: str, size: Size, rounds: int) -> tuple[list[Spent], list[Spent]]:
    """Measure both sides in turn; the first step of each is not counted."""
    ours = Ours(env, size)
    mine: list[Spent] = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = Theirs(env, size, rounds + 1, Path(folder), lambda: mine.append(ours.step()))
        theirs.run()
    return mine[1:], theirs.spent[1:]


def row(name: str, size: Size, mine: list[Spent], others: list[Spent]) -> str:
    """Format a row of the table: medians, and the ratios of the rounds."""
    cells = [f"{name}, {size.tasks} x {GROUP}"]
    for phase in ("rollout", "update", "whole"):
        pairs = [(getattr(a, phase), getattr(b, phase)) for a, b in zip(mine, others, strict=True)]
        ratios = [b / a for a, b in pairs]
        cells += [
            *(f"{statistics.median(side):.2f}" for side in zip(*pairs, strict=True)),
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=list(SIZES),
        default=list(SIZES),
        help="parameters of the models (default: all)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=4,
        help="steps of each side, after a first that is not counted (default: %(default)s)",
    )
    parser.add_argument(
        "--env", default="sokoban-easy", help="environment id or short name (default: %(default)s)"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"Episodes of {TURNS} turns of {TOKENS} tokens; CPU seconds of one thread, medians of {asked.rounds} steps; ratios of"
    )
    print("single rounds: median (lowest to highest)\n")
    heads = [f"{phase} | TRL's | ratio" for phase in ("rollout", "update", "both")]
    for number, name in enumerate(asked.sizes):
        size = SIZES[name]
        found = row(name, size, *measured(asked.env, size, asked.rounds))
        if (
            not number
        ):  # only now has DeepSpeed, if installed, said what it says on stdout when it is imported
            print(f"\n| parameters, episodes | {' | '.join(heads)} |\n|{'---|' * 10}")
        print(found, flush=True)


if __name__ == "__main__":
    main()
