"""NVRTC, the run-time compiler of CUDA, as pip installs it (`pip install attn[cuda]`)."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

# Folders below site-packages: of nvidia-cuda-nvrtc (CUDA 13) and nvidia-cuda-nvrtc-cu12.
_FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")


def installed() -> list[Path]:
    """The libraries that wheels brought, the newest CUDA first."""
    from pathlib import Path

    return [
        library
        for folder in _FOLDERS
        for site in sys.path
        for library in sorted(Path(site or ".").glob(f"{folder}/libnvrtc.so.1[0-9]"))
    ]


_loaded = False


def load() -> None:
    """Opens what `installed` finds, so that the library finds it by its name.

    Once a process, before the first use of a GPU. `ATTN_NVRTC` names another file and wins.
    """
    global _loaded
    if _loaded or os.environ.get("ATTN_NVRTC"):
        return
    _loaded = True
    import ctypes

    for library in installed():
        try:
            ctypes.CDLL(str(library))
        except OSError:
            continue  # built for another system; the next one, or the loader's own path, may do
