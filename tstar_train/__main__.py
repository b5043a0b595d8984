"""Command line: train (the default), resume, and ``warmstart``."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        Exit code: 0, or 2 with one message on stderr for what the user can fix.
    """
    from tstar_envs import MissingExtra, TStarError
    from tstar_envs.redaction import keep_argument_secrets, keep_environment_secrets, redacted

    given = list(sys.argv[1:] if arguments is None else arguments)
    keep_environment_secrets()
    keep_argument_secrets(given)
    try:
        if given[:1] == ["warmstart"]:
            from tstar_train.cli import warmstart_command

            return warmstart_command(given[1:])
        from tstar_train.cli import train_command

        return train_command(given)
    except TStarError as error:
        message = _with_notes(str(error), error)
    except ImportError as error:
        missing = (error.name or str(error)).partition(".")[0]
        if missing.startswith("tstar"):
            raise
        message = str(MissingExtra("training", missing, "train"))
    except OSError as error:
        message = _with_notes(_about_files(error), error)
    except KeyboardInterrupt as error:
        message = str(error) or "interrupted before anything was measured or learnt"
    print(f"tstar_train: {redacted(message)}", file=sys.stderr)
    return 2


def _with_notes(message: str, error: Exception) -> str:
    """Format an error message with what is saved and the command that resumes the run."""
    return ". ".join([message, *getattr(error, "__notes__", ())])


def _about_files(error: OSError) -> str:
    """Describe an operating-system error in words."""
    where = f"{str(error.filename)!r:.300}" if error.filename else "a file"
    if error.errno == errno.ENOSPC:
        return f"the disk is full ({error.filename or 'while writing'}); what was written before is intact. Free some, then --resume"
    if error.errno == errno.EPIPE:
        return "standard output was closed"
    reason = error.strerror or str(error)
    return f"{where} cannot be used: {reason}; give another path, or mend this one"


def _leave(code: int) -> None:
    """Exit with this code, without Python's complaint about a closed standard output."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.exit(code)
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    from tstar_envs.redaction import redact_tracebacks

    redact_tracebacks()
    _leave(main())
