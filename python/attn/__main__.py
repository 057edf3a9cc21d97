"""The attn command: `attn ...` or `python -m attn ...`; `attn --help` lists what it does."""

import os
import sys
from pathlib import Path

from . import _attn, nvrtc


def main() -> None:
    # Beside what is compiled, which in an editable installation is not where this file is.
    command = Path(_attn.__file__).with_name("bin") / "attn"
    if not command.exists():
        print(
            f"attn: there is no command at {command}; accepted is a package that pip built where "
            "CLI11 and nlohmann-json were found, and without one build/attn, which `make` builds",
            file=sys.stderr,
        )
        sys.exit(3)  # not available here
    found = nvrtc.installed()
    if found:
        os.environ.setdefault("ATTN_NVRTC", str(found[0]))
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
