"""attn.flash_attn under the names that programs import: flash_attn and flash_attn_interface."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from ..errors import InvalidArgument

# The names that are imported elsewhere, and the module here that each finds.
_NAMES = {
    "flash_attn": "",
    "flash_attn.flash_attn_interface": ".flash_attn_interface",
    "flash_attn.bert_padding": ".bert_padding",
    "flash_attn.layers": ".layers",
    "flash_attn.layers.rotary": ".layers.rotary",
    "flash_attn_interface": ".flash_attn_3",
}
_MARK = "# Written by python -m attn.flash_attn install.\n"
_FILES = {
    "flash_attn/__init__.py": f"{_MARK}from attn.flash_attn import install\n\ninstall()\n",
    "flash_attn_interface.py": f"{_MARK}from attn.flash_attn import install\n\ninstall()\n",
}


def install() -> None:
    """From now on an import of flash_attn or flash_attn_interface in this process finds attn's.

    Raises:
        attn.InvalidArgument: another flash_attn has been imported already.
    """
    package = __package__ or ""
    for name, place in _NAMES.items():
        ours = import_module(place, package) if place else sys.modules[package]
        present = sys.modules.get(name)
        if present is not None and present is not ours and not _is_shim(present):
            raise InvalidArgument(
                f"{name} is imported from {getattr(present, '__file__', None)}; accepted is a "
                "program that has not imported it yet"
            )
    for name, place in _NAMES.items():
        sys.modules[name] = sys.modules[package + place]


def uninstall() -> None:
    """Takes back what `install` did."""
    package = __package__ or ""
    for name, place in _NAMES.items():
        if sys.modules.get(name) is sys.modules.get(package + place):
            sys.modules.pop(name, None)


def _is_shim(module: object) -> bool:
    """Whether a module is one of _FILES, which calls install while it is imported."""
    path = Path(getattr(module, "__file__", None) or "")
    return path.is_file() and path.read_text().startswith(_MARK)


def write(folder: Path, version: str) -> list[Path]:
    """Writes the shim into a folder of packages, and returns what was written.

    Beside the modules that is the distribution flash-attn, by which libraries look for it.
    """
    for name in _FILES:
        path = folder / name
        if path.exists() and not path.read_text().startswith(_MARK):
            raise InvalidArgument(
                f"{folder} has a {name} that is not attn's; accepted is a folder without it"
            )
    information = f"flash_attn-{version}.dist-info"
    files = dict(_FILES)
    files[f"{information}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {version}\n"
        "Summary: attn.flash_attn under the name flash_attn\n"
    )
    files[f"{information}/INSTALLER"] = "attn\n"
    files[f"{information}/top_level.txt"] = "flash_attn\nflash_attn_interface\n"
    names = [*files, f"{information}/RECORD"]
    files[f"{information}/RECORD"] = "".join(f"{name},,\n" for name in names)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [folder / name for name in names]


def remove(folder: Path, version: str) -> list[Path]:
    """Removes what `write` wrote into a folder. Returns what was removed."""
    information = folder / f"flash_attn-{version}.dist-info"
    installer = information / "INSTALLER"
    if not installer.is_file() or installer.read_text() != "attn\n":
        raise InvalidArgument(f"{folder} has no flash_attn of attn's; accepted is one that has")
    paths = [folder / name for name in _FILES] + sorted(information.iterdir())
    for path in paths:
        path.unlink(missing_ok=True)
    cached = folder / "flash_attn" / "__pycache__"
    for path in cached.glob("*"):
        path.unlink()
    for emptied in (cached, folder / "flash_attn", information):
        if emptied.is_dir():
            emptied.rmdir()
    return paths
