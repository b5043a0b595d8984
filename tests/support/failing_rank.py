"""``python -m tstar_train`` of which one rank fails on the way: python -m failing_rank, with the fault in the environment.

``FAULT="RANK WHERE HOW FILE"``: in the third iteration this rank, before it samples (``sampling``), joins the sum of a gradient (``sum``),
is in the middle of DeepSpeed's backward pass (``backward``) or writes a checkpoint (``saving``), touches FILE and then is killed
(``kill``), stopped (``stop``), loops (``loop``) or loops in C without ever letting another thread run (``hold``); ``touch`` is all.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import tstar_train.loop
from tstar_train.__main__ import main
from tstar_train.checkpoint import CheckpointWriter
from tstar_train.learner.deepspeed import DeepSpeedLearner, Zero
from tstar_train.learner.torch import TorchLearner

RANK, WHERE, HOW, FILE = os.environ["FAULT"].split()
FROM = 2
now = {"iteration": -1, "rank": -1}


def fail(where):
    if where != WHERE or now["rank"] != int(RANK) or now["iteration"] < FROM:
        return
    Path(FILE).write_text(f"{time.time()} {os.getpid()}")
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif HOW == "hold":
        re.match(r"(a+)+$", "a" * 60 + "b")
    while HOW == "loop":
        time.sleep(0.001)


def before(owner, name, where):
    real = getattr(owner, name)

    def wrapped(*arguments, **options):
        if where == "sampling":
            now.update(iteration=arguments[7].number, rank=arguments[6].rank)
        fail(where)
        return real(*arguments, **options)

    setattr(owner, name, wrapped)


def backward(self, loss, last=False, real=Zero.backward):
    if loss.requires_grad:
        loss.register_hook(lambda gradient: fail("backward"))
    real(self, loss, last)


before(tstar_train.loop, "sample_groups", "sampling")
before(TorchLearner, "apply", "sum")
before(DeepSpeedLearner, "apply", "sum")
before(CheckpointWriter, "save", "saving")
Zero.backward = backward

if __name__ == "__main__":
    sys.exit(main())
