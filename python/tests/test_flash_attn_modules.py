"""flash_attn's padding and rotary modules, and the shim under its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.flash_attn  # noqa: E402
from attn.flash_attn import __main__ as command  # noqa: E402
from attn.flash_attn import bert_padding, shim  # noqa: E402
from attn.flash_attn.layers import rotary  # noqa: E402
from flash_reference import assert_close  # noqa: E402


def test_unpad_and_pad():
    x = torch.randn(3, 5, 2, 4, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    rows, indices, cu_seqlens, longest, used = bert_padding.unpad_input(x, mask.bool())
    assert rows.shape == (8, 2, 4)
    assert indices.tolist() == [0, 1, 3, 10, 11, 12, 13, 14]
    assert cu_seqlens.tolist() == [0, 3, 3, 8]
    assert cu_seqlens.dtype == used.dtype == torch.int32
    assert (longest, used.tolist()) == (5, [3, 0, 5])
    again = bert_padding.pad_input(rows, indices, 3, 5)
    assert torch.equal(again, x * mask[:, :, None, None])
    weights = torch.randn(again.shape)
    (gradient,) = torch.autograd.grad(again, x, weights)
    assert torch.equal(gradient, weights * mask[:, :, None, None])

    unused = torch.tensor([[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    rows, indices, cu_seqlens, longest, used = bert_padding.unpad_input(x, mask, unused)
    assert cu_seqlens.tolist() == [0, 4, 5, 10]
    assert used.tolist() == [3, 0, 5]
    assert torch.equal(rows, x.flatten(0, 1)[indices])


def test_unpad_concatenated_sequences():
    x = torch.randn(3, 6, 2)
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    found = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert found[1].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17]
    assert found[2].tolist() == [0, 2, 5, 8, 10, 16]
    assert found[3] == 6
    assert torch.equal(found[0], x.flatten(0, 1)[found[1]])


def test_rows_by_index():
    x = torch.randn(6, 3, requires_grad=True)
    indices = torch.tensor([4, 0])
    picked, same = bert_padding.index_first_axis_residual(x, indices)
    assert torch.equal(picked, x[indices])
    assert same is x
    put = bert_padding.index_put_first_axis(picked, indices, 6)
    (gradient,) = torch.autograd.grad(put.sum(), x)
    assert gradient.sum(1).tolist() == [3, 0, 0, 0, 3, 0]


def turned(x, angles, interleaved):
    """x [n, H, D] turned by angles [n, rotary_dim / 2], by complex numbers."""
    half = angles.shape[1]
    first = torch.arange(half) * (2 if interleaved else 1)
    second = first + (1 if interleaved else half)
    pair = torch.complex(x[..., first], x[..., second])
    pair = pair * torch.polar(torch.ones_like(angles), angles)[:, None]
    index = torch.cat((first, second))
    return x.index_copy(-1, index, torch.cat((pair.real, pair.imag), -1))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [16, 24])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, (2, 5)])
def test_rotary(interleaved, rotary_dim, packed, offsets):
    torch.manual_seed(0)
    angles = torch.rand(16, rotary_dim // 2).double() * 6
    cos, sin = angles.cos().float(), angles.sin().float()
    lengths = (4, 7) if packed else (6, 6)
    starts = offsets if isinstance(offsets, tuple) else (offsets, offsets)
    x = torch.randn(11, 2, 24) if packed else torch.randn(2, 6, 2, 24)
    x.requires_grad_()
    x64 = x.detach().double().requires_grad_()
    parts = x64.split(lengths) if packed else x64
    exact = [
        turned(part, angles[at : at + len(part)], interleaved)
        for part, at in zip(parts, starts, strict=True)
    ]
    exact = (torch.cat if packed else torch.stack)(exact)
    keywords = {
        "interleaved": interleaved,
        "seqlen_offsets": torch.tensor(offsets).int() if isinstance(offsets, tuple) else offsets,
        "cu_seqlens": torch.tensor([0, 4, 11]).int() if packed else None,
        "max_seqlen": 7 if packed else None,
    }
    found = rotary.apply_rotary_emb(x, cos, sin, **keywords)
    assert_close(found, exact, 1e-6)
    weights = torch.randn(x.shape)
    (gradient,) = torch.autograd.grad(found, x, weights)
    (expected,) = torch.autograd.grad(exact, x64, weights.double())
    assert_close(gradient, expected, 1e-6)
    written = x.detach().clone()
    assert rotary.apply_rotary_emb(written, cos, sin, inplace=True, **keywords) is written
    assert torch.equal(written, found)
    if not packed and offsets == 0:
        again = rotary.apply_rotary_emb_torch(x, cos[:6], sin[:6], interleaved)
        assert torch.equal(again, found)
    low = rotary.apply_rotary_emb(x.detach().bfloat16(), cos, sin, **keywords)
    assert low.dtype == torch.bfloat16
    assert_close(low, exact.detach(), 2**-7)


def test_rotary_of_packed_heads():
    torch.manual_seed(0)
    cos, sin = torch.randn(2, 9, 4)
    q, k, v = torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    expected = [rotary.apply_rotary_emb(t, cos, sin, seqlen_offsets=2) for t in (q, k)]
    qkv = torch.stack((q, k, v), 2)
    found = rotary.apply_rotary_emb_qkv_(qkv, cos, sin, seqlen_offsets=2)
    assert found is qkv
    assert torch.equal(found, torch.stack((*expected, v), 2))
    heads = torch.cat((q, k[:, :, :1], v[:, :, :1]), 2)
    found = rotary.apply_rotary_emb_qkv_(heads, cos, sin, seqlen_offsets=2, num_heads_q=2)
    assert torch.equal(found, torch.cat((expected[0], expected[1][:, :, :1], v[:, :, :1]), 2))
    kv = torch.stack((k, v), 2)
    found = rotary.apply_rotary_emb_kv_(kv, cos, sin, seqlen_offsets=2)
    assert torch.equal(found, torch.stack((expected[1], v), 2))
    with pytest.raises(attn.InvalidArgument, match="num_heads_q is 3 and qkv has 4 heads"):
        rotary.apply_rotary_emb_qkv_(heads, cos, sin, num_heads_q=3)
    with pytest.raises(attn.InvalidArgument, match=r"shapes \(9, 4\) and \(9, 3\); accepted"):
        rotary.apply_rotary_emb(q, cos, sin[:, :3])


PROGRAM = """
import sys
import flash_attn, flash_attn.bert_padding, flash_attn_interface
from flash_attn import flash_attn_func
from flash_attn.flash_attn_interface import flash_attn_varlen_func
from flash_attn.layers.rotary import apply_rotary_emb
import attn.flash_attn
assert flash_attn is attn.flash_attn
assert flash_attn.bert_padding is attn.flash_attn.bert_padding
assert flash_attn_interface is attn.flash_attn.flash_attn_3
assert flash_attn_func is attn.flash_attn.flash_attn_func
print("works", *sys.argv[1:])
"""


def run(*arguments, path=""):
    package = str(Path(attn.__file__).parents[1])
    paths = (path, package, os.environ.get("PYTHONPATH"))  # the last: of what attn needs
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True
    )


def test_shim_for_one_program(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import beside\n" + PROGRAM)
    (tmp_path / "beside.py").write_text("")  # a module of the program's folder
    done = run("-m", "attn.flash_attn", "run", script, "one", "--two")
    assert done.stdout == "works one --two\n", done.stderr


def test_shim_in_a_folder_of_packages(tmp_path, monkeypatch, capsys):
    script = tmp_path / "program.py"
    version = (
        "from importlib import metadata\nof = metadata.packages_distributions()\n"
        "print(metadata.version('flash-attn'), of['flash_attn'], of['flash_attn_interface'])"
    )
    script.write_text(PROGRAM + version)
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["", "install", "--target", str(folder)])
    command.main()
    assert f"{folder}/flash_attn/__init__.py\n" in capsys.readouterr().out
    done = run(script, path=str(folder))
    assert done.stdout == "works\n2.8.4 ['flash-attn'] ['flash-attn']\n", done.stderr
    monkeypatch.setattr(sys, "argv", ["", "uninstall", "--target", str(folder)])
    command.main()
    assert list(folder.iterdir()) == []


def test_shim_leaves_others_alone(tmp_path, monkeypatch):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("theirs = True\n")
    with pytest.raises(attn.InvalidArgument, match=r"flash_attn/__init__.py that is not attn's"):
        shim.write(tmp_path, "2.8.4")
    with pytest.raises(attn.InvalidArgument, match="has no flash_attn of attn's"):
        shim.remove(tmp_path, "2.8.4")
    assert (tmp_path / "flash_attn" / "__init__.py").read_text() == "theirs = True\n"
    monkeypatch.syspath_prepend(tmp_path)
    import flash_attn

    assert flash_attn.theirs
    with pytest.raises(attn.InvalidArgument, match="a program that has not imported it yet"):
        attn.flash_attn.install()
    attn.flash_attn.uninstall()
    assert sys.modules.pop("flash_attn") is flash_attn


def test_install_and_uninstall():
    assert "flash_attn" not in sys.modules
    attn.flash_attn.install()
    try:
        import flash_attn

        assert flash_attn is attn.flash_attn
    finally:
        attn.flash_attn.uninstall()
    assert "flash_attn" not in sys.modules
    assert "flash_attn_interface" not in sys.modules
