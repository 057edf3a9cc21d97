"""The shim: an import of flash_attn then finds attn's.

python -m attn.flash_attn install      where this Python has its packages; it stays
python -m attn.flash_attn uninstall
python -m attn.flash_attn run SCRIPT [ARGUMENT...]     for one program
"""

from __future__ import annotations

import argparse
import runpy
import sys
import sysconfig
from pathlib import Path

from . import __version__, install
from .shim import remove, write


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m attn.flash_attn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("install", "uninstall"):
        command = commands.add_parser(name)
        command.add_argument(
            "--target", type=Path, default=Path(sysconfig.get_path("purelib")), metavar="FOLDER"
        )
    command = commands.add_parser("run")
    command.add_argument("script")
    command.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.command == "run":
        install()
        sys.argv = [options.script, *options.arguments]
        sys.path[0] = str(Path(options.script).resolve().parent)  # as `python SCRIPT` has it
        runpy.run_path(options.script, run_name="__main__")
        return
    done = write if options.command == "install" else remove
    for path in done(options.target, __version__):
        print(path)


if __name__ == "__main__":
    main()
