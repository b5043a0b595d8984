"""``vllm serve`` as the child of a run: it ends with its parent, and its CPU build takes new weights.

python -m tstar_train.engines.serve_vllm [--parent=PROCESS] MODEL [options of vllm serve]
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence

_PARENT = "--parent="
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Let Linux end this process when the thread that started it ends, also after SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before
        sys.exit(1)


def keep_plain_on_cpu() -> bool:
    """Let vLLM's CPU build compute with the weights as they are loaded; return whether it is that build."""
    from vllm.platforms import current_platform

    if current_platform.device_type != "cpu":
        return False
    from tstar_train.engines.vllm import keep_weights_plain

    keep_weights_plain()
    return True


def main(arguments: Sequence[str]) -> None:
    """Serve with vLLM's own main function.

    Args:
        arguments: of ``vllm serve``, the model first; before it ``--parent=`` with the id of the process that started this one.
    """
    if arguments and arguments[0].startswith(_PARENT):
        end_with_parent(int(arguments[0].removeprefix(_PARENT)))
        arguments = arguments[1:]
    if keep_plain_on_cpu():
        # vllm's main function asks for the version of the package vllm, which the CPU build has under another name.
        sys.argv = ["vllm serve", "--model", *arguments]
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
        return
    from vllm.entrypoints.cli.main import main as vllm_main

    sys.argv = ["vllm", "serve", *arguments]
    vllm_main()


if __name__ == "__main__":
    main(sys.argv[1:])
elif (
    __name__ == "__mp_main__"
):  # a worker, which vLLM spawns: it imports this module before it makes the model
    keep_plain_on_cpu()
