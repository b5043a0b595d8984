"""A tiny model that calls tools in Qwen2.5's form: made and taught on the spot from the expert's episodes, so that no call is staged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from scripted import call_of
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import get_json_schema

from tstar_envs.adapters.trl import Rollout, task_rows
from tstar_envs.evalset import TaskSet

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>")


class ToolCallingModel:
    """A model and its tokenizer, taught how the expert plays some tasks by calls.

    Args:
        template: chat template, of Qwen2.5.
        episodes: conversations and the tools of each.
    """

    def __init__(
        self, template: str, episodes: Sequence[tuple[list[dict[str, Any]], list[dict[str, Any]]]]
    ) -> None:
        texts = [_rendered(template, messages, tools) for messages, tools in episodes]
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer, bpe.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        bpe.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=1000,
                special_tokens=[AddedToken(name, special=True) for name in SPECIAL],
                show_progress=False,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            ),
        )
        bpe.add_tokens([AddedToken(name, special=False) for name in MARKS])
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=bpe,
            eos_token=SPECIAL[2],
            pad_token=SPECIAL[0],
            clean_up_tokenization_spaces=False,
        )
        self.tokenizer.chat_template = template
        torch.manual_seed(0)
        self.model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(self.tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=8192,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=self.tokenizer.eos_token_id,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        )
        self.losses = self._taught(texts)

    def _taught(self, texts: Sequence[str], steps: int = 250) -> list[float]:
        """Imitate what the assistant says; the losses."""
        rows = [self._row(text) for text in texts]
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
        losses = []
        for step in range(steps):
            ids, labels = rows[step % len(rows)]
            loss = self.model(input_ids=ids, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def _row(self, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and labels of a conversation."""
        ids: list[int] = []
        labels: list[int] = []
        for number, piece in enumerate(
            re.split(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", text, flags=re.DOTALL)
        ):
            found = self.tokenizer(piece).input_ids
            ids += found
            labels += found if number % 2 else [-100] * len(found)
        return torch.tensor([ids]), torch.tensor([labels])


def _rendered(template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    return str(plain.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False))


def expert_episodes(
    factory: type[Rollout], tasks: TaskSet
) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """The expert's episodes as conversations of calls, and the schemas of the tools as TRL makes them."""
    episodes = []
    for row in task_rows(tasks):
        rollout, env = factory(), tasks.make()
        observation = rollout.reset(**row)
        env.reset(options={"task": row["task"]})
        messages: list[dict[str, Any]] = [row["prompt"][0], {"role": "user", "content": observation}]  # type: ignore[list-item]
        over = False
        while not over:
            reply = env.oracle()
            name, arguments = call_of(env.tools, reply) or ("", {})
            call = {"type": "function", "function": {"name": name, "arguments": arguments}}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "name": name, "content": getattr(rollout, name)(**arguments)},
            ]
            _, _, terminated, truncated, _ = env.step(reply)
            over = terminated or truncated
        messages.append({"role": "assistant", "content": "Done."})
        episodes.append((messages, [get_json_schema(getattr(rollout, tool.name)) for tool in env.tools]))
    return episodes
