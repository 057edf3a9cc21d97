"""The attn command: `attn ...` or `python -m attn ...`; `attn --help` lists what it does."""

import os
import signal
import sys

from . import _attn, nvrtc


def main() -> None:
    if not hasattr(_attn, "command"):
        print(
            f"attn: there is no command in {_attn.__file__}; accepted is a package that pip built "
            "where CLI11 and nlohmann-json were found, or build/attn, which `make` builds",
            file=sys.stderr,
        )
        sys.exit(3)  # not available here
    found = nvrtc.installed()
    if found:
        os.environ.setdefault("ATTN_NVRTC", str(found[0]))
    # The command ends by a signal as a program does, not by an exception or an error.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    arguments = [os.fsencode(argument) for argument in sys.argv[1:]]
    sys.exit(_attn.command(arguments, [os.fsencode(sys.executable), b"-m", b"attn"]))


if __name__ == "__main__":
    main()
