"""Command line: train (the default), resume, and ``warmstart``."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        Exit code: 0, or 2 with one message on stderr for what the user can fix.
    """
    from tstar_envs import MissingExtra, TStarError

    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["warmstart"]:
            from tstar_train.cli import warmstart_command

            return warmstart_command(given[1:])
        from tstar_train.cli import train_command

        return train_command(given)
    except TStarError as error:
        message = str(error)
    except ImportError as error:
        missing = (error.name or str(error)).partition(".")[0]
        if missing.startswith("tstar"):
            raise
        message = str(MissingExtra("training", missing, "train"))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            message = f"the disk is full ({error.filename or 'while writing'}); what was written before is intact. Free some, then --resume"
        else:
            message = str(error)
    except KeyboardInterrupt:
        message = "interrupted; the last checkpoint is intact"
    except RuntimeError as error:
        from tstar_train.checkpoint import BadCheckpoint

        if not isinstance(error, BadCheckpoint):
            raise
        message = str(error)
    print(f"tstar_train: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
