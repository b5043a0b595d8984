"""Fixtures of the tests of sampling servers: policies, and engines that are closed."""

from __future__ import annotations

import pytest
from policies import random_policy

from tstar_train.distributed import SingleProcess
from tstar_train.engines.vllm_server import VLLMServerEngine


@pytest.fixture(scope="module")
def policy():
    return random_policy(0)


@pytest.fixture
def other():
    return random_policy(1)


@pytest.fixture
def asking():
    """Make engines, and close them."""
    made = []

    def engine(policy, config, out=None):
        made.append(VLLMServerEngine(policy, config, SingleProcess(), out))
        return made[-1]

    yield engine
    for each in made:
        each.close()
