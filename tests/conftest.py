"""The suite holds what a CPU does, much of it bit for bit, also on a machine with a GPU; ``scripts/check_gpu.py`` is for those."""

from __future__ import annotations

import os

if "TSTAR_TEST_ON_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
