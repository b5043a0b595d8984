"""Small random policies for the tests: real models, real tokenizers, no shipped weights needed."""

from __future__ import annotations

import gc
import itertools
import random
from functools import lru_cache

import torch

from tstar_envs import find_entry
from tstar_train.build import trainer_of
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.loop import Trainer
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.model import Policy, new_tiny
from tstar_train.policy.tokenizer import train_tokenizer
from tstar_train.presets import tiny, with_nodes
from tstar_train.recipes.recipe import load_recipe
from tstar_train.warmstart import PracticeMix, TextCodec, practice_rows

HOTPOT = find_entry("hotpotqa")
RECIPE = load_recipe("search_qa")


def papers_preset(env: str) -> Config:
    """The preset of a built-in policy with the paper's tree, which asks the policy and has grafts."""
    return with_nodes(tiny(find_entry(env)), "depth")


@lru_cache(maxsize=1)
def tokenizer():
    rows = practice_rows(
        PracticeMix(RECIPE, HOTPOT), TextCodec(), 1, RECIPE.warm_start.demonstrations, RECIPE.env
    )
    return train_tokenizer((piece for row in itertools.islice(rows, 300) for piece in row.ids), 1200)


def random_policy(seed: int = 0, spread: float = 0.3) -> Policy:
    """A policy with random weights; ``spread`` makes its distributions far from uniform."""
    torch.set_num_threads(1)
    model = new_tiny(tokenizer(), seed, RECIPE.model)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(spread * 0.1 * torch.randn_like(parameter))
    return Policy(model, PlainCodec(tokenizer(), with_prompt=False), tokenizer(), "random")


class EndingCodec:
    """A codec whose end of reply is another token."""

    def __init__(self, codec, end):
        self.codec, self.end, self.ends = codec, end, frozenset([end])

    def __getattr__(self, name):
        return getattr(self.codec, name)


def contexts(policy, lengths, seed=0):
    """Random ids of these lengths."""
    chance = random.Random(seed)
    size = policy.model.config.vocab_size
    return [[chance.randrange(2, size) for _ in range(n)] for n in lengths]


def plain_logprobs(policy, context, reply, temperature=1.0):
    """The log-probability of each token of a reply, from one plain forward pass."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([context + reply])).logits[0].double() / temperature
    wanted = torch.log_softmax(logits, -1)[len(context) - 1 : -1]
    return wanted.gather(-1, torch.tensor(reply)[:, None])[:, 0].tolist()


def held():
    """Bytes of tensors that are alive and belong to no module; views of one storage count once."""
    gc.collect()
    storages = [o.untyped_storage() for o in gc.get_objects() if type(o) is torch.Tensor]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class Given:
    """A stream of tasks that always begins with the same ones."""

    def __init__(self, tasks):
        self._tasks = list(tasks)

    def take(self, cursor, count):
        return self._tasks[:count]


def trainer(config, policy, tasks=None, world=None) -> Trainer:
    """What iterates, around a policy; ``tasks`` are those of every iteration, None for the run's own."""
    made = trainer_of(config, policy, world or SingleProcess())
    if tasks is not None:
        made.stream = Given(tasks)
        if made.sampler is not None:
            made.sampler.stream = made.stream
    return made
