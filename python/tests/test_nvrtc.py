"""NVRTC as wheels bring it: which file is found, and who is told.

That a kernel compiles by the wheel of `pip install attn[cuda]` is tried by wheel.sh.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import attn
from attn import __main__ as command
from attn import nvrtc

NEWER = "nvidia/cu13/lib/libnvrtc.so.13"
OLDER = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"


def site(folder, *files, content=None):
    """The folder, with the files as in site-packages: each some library, or the content."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            shutil.copy(attn._attn.__file__, folder / file)
        else:
            (folder / file).write_bytes(content)
    return folder


def test_installed(tmp_path, monkeypatch):
    """The newest CUDA first, wherever it lies; nothing beside NVRTC itself."""
    beside = ("libnvrtc.alt.so.13", "libnvrtc-builtins.so.13.5", "libnvrtc.so")
    first = site(tmp_path / "a", OLDER, *(f"nvidia/cu13/lib/{name}" for name in beside))
    second = site(tmp_path / "b", NEWER)
    monkeypatch.setattr(sys, "path", [str(first), str(tmp_path / "absent"), str(second)])
    assert nvrtc.installed() == [second / NEWER, first / OLDER]
    monkeypatch.setattr(sys, "path", [str(tmp_path / "absent")])
    assert nvrtc.installed() == []


def opened(path, **environment):
    """Which of the files below a folder are in the memory of a process that asked for attn.info."""
    code = (
        "import sys, attn; sys.path.append(sys.argv[1]); attn.info()\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if sys.argv[1] in line})"
    )
    kept = {name: value for name, value in os.environ.items() if name != "ATTN_NVRTC"}
    kept["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(Path(attn.__file__).parents[1]), *sys.path))
    )
    run = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(
        run, capture_output=True, text=True, env={**kept, **environment}, check=True
    )
    return set(done.stdout.split())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")
class TestLoad:
    def test_opens_all_that_are_installed(self, tmp_path):
        """The library takes the one that suits the driver, by its name."""
        folder = site(tmp_path, NEWER, OLDER)
        assert opened(folder) == {str(folder / NEWER), str(folder / OLDER)}

    def test_goes_on_after_one_for_another_system(self, tmp_path):
        site(tmp_path, NEWER, content=b"no library")
        folder = site(tmp_path, OLDER)
        assert opened(folder) == {str(folder / OLDER)}

    def test_leaves_it_to_attn_nvrtc(self, tmp_path):
        folder = site(tmp_path, NEWER)
        assert opened(folder, ATTN_NVRTC="/another/libnvrtc.so") == set()


@pytest.mark.parametrize("named", ["", "/another/libnvrtc.so"])
def test_the_command_is_told(tmp_path, monkeypatch, named):
    """By ATTN_NVRTC, which stays where the user set it."""
    folder = site(tmp_path, NEWER, OLDER)
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(sys, "argv", ["attn", "info"])
    monkeypatch.setattr(os, "environ", {"ATTN_NVRTC": named} if named else {})
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    run = []
    monkeypatch.setattr(attn._attn, "command", lambda *words: run.append(words), raising=False)
    with pytest.raises(SystemExit):
        command.main()
    assert run == [([b"info"], [os.fsencode(sys.executable), b"-m", b"attn"])]
    assert os.environ["ATTN_NVRTC"] == (named or str(folder / NEWER))
