"""Measure trajectories per CPU second of rollout and update, beside TRL's GRPO with the same model, environment and batch.

    python scripts/bench/bench_trl.py [--rounds 4] [--env sokoban-easy]

Both sample 4 tasks x 8 episodes of the same turns (every reply is as long as it may be: a random model hardly ever ends one), play them in
the same environment with growing contexts, and take one AdamW step over all of the policy's tokens. TRL plays through its
``environment_factory``; its tokenizer reads every reply as one call of the tool ``act``. Needs the dev extra (trl).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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

TASKS, GROUP, TURNS, TOKENS = 4, 8, 4, 24


class EveryReplyActs(PreTrainedTokenizerFast):
    """Reads a reply as one call of ``act``, whatever it says."""

    def parse_response(self, response: Any, *args: Any, **kwargs: Any) -> Any:
        text = self.decode(response, skip_special_tokens=True)
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": text}}}
        return {"role": "assistant", "content": text, "tool_calls": [call]}


def model_of(vocabulary: int) -> Qwen2ForCausalLM:
    """The size of the built-in policies, random."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    ).eval()


class Ours:
    """Iterations of this trainer without T-STAR; the penalty for what is no action gives every token a gradient, as TRL has it."""

    def __init__(self, env: str) -> None:
        tokenizer = shaped("qwen2")
        policy = Policy(model_of(len(tokenizer)), ChatCodec(tokenizer), tokenizer, "small")
        entry = find_entry(env)
        config = Config(
            env=entry.id,
            model="small",
            tstar=False,
            env_options={"horizon": TURNS},
            rollout=RolloutConfig(
                tasks_per_iteration=TASKS, group_size=GROUP, max_tokens=TOKENS, invalid_penalty=0.5
            ),
            optim=OptimConfig(learning_rate=1e-6),
        )
        self._trainer, self._number = trainer_of(config, policy, SingleProcess()), 0

    def step(self) -> float:
        """CPU seconds of one iteration."""
        began = time.process_time()
        iterate(self._trainer, self._number)
        self._number += 1
        return time.process_time() - began


class Theirs:
    """Steps of TRL's GRPOTrainer."""

    def __init__(self, env: str, steps: int, folder: Path) -> None:
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

        spent: list[float] = []
        self.spent = spent

        class PhaseTimer(TrainerCallback):
            def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
                spent.append(-time.process_time())

            def on_step_end(self, *args: Any, **kwargs: Any) -> None:
                spent[-1] += time.process_time()

        def reward(completions: list[Any], completion_ids: list[list[int]], **columns: object) -> list[float]:
            # Differs within a group, so that every token has a gradient.
            return [float(sum(ids) % 7) for ids in completion_ids]

        env = cls(**{**entry.kwargs, "split": "train"})
        rules, tasks = env.prompt(), list(env.task_ids("train"))[: TASKS * steps]
        rows = [
            {"prompt": [{"role": "system", "content": rules}, {"role": "user", "content": ""}], "task": task}
            for task in tasks
        ]
        options = GRPOConfig(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=TASKS * GROUP,
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
            model_of(len(plain)),
            reward,
            args=options,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=Rollout,
            callbacks=[PhaseTimer()],
        )

    def run(self) -> list[float]:
        """CPU seconds of each step."""
        self._trainer.train()
        return self.spent


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds",
        type=int,
        default=4,
        help="measurements of each side, the first step of each not counted (default: %(default)s)",
    )
    parser.add_argument(
        "--env", default="sokoban-easy", help="environment id or short name (default: %(default)s)"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    ours, mine, others = Ours(asked.env), [], []
    ours.step()
    for _ in range(asked.rounds):
        mine += [ours.step() for _ in range(2)]
        with tempfile.TemporaryDirectory() as folder:
            others += Theirs(asked.env, 3, Path(folder)).run()[1:]
    rows = TASKS * GROUP
    print(
        f"{rows} trajectories an iteration, {TURNS} turns of at most {TOKENS} tokens; CPU seconds of one thread"
    )
    for name, seconds in (("tstar", mine), ("trl", others)):
        median = statistics.median(seconds)
        print(
            f"{name:<6} median {median:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {rows / median:6.1f} trajectories/s"
        )
    print(f"ratio {statistics.median(others) / statistics.median(mine):.2f}")


if __name__ == "__main__":
    main()
