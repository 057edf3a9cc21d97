"""attn.torch.scaled_dot_product_attention of sizes that are 0, and of sizes that change in compiled
code, as PyTorch's own takes them.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attn.torch  # noqa: E402
from torch_problems import leaf  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

ours = attn.torch.scaled_dot_product_attention
SHAPES = {
    "no head_dim": [(2, 3, 4, 0), (2, 3, 5, 0), (2, 3, 5, 0)],
    "no head_dim of q and k": [(2, 3, 4, 0), (2, 3, 5, 0), (2, 3, 5, 8)],
    "no head_dim of v": [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 0)],
    "no batch": [(0, 3, 4, 8)] * 3,
    "no heads": [(2, 0, 4, 8)] * 3,
    "no heads, no head_dim": [(2, 0, 4, 0)] * 3,
    "no queries": [(2, 3, 0, 8), (2, 3, 5, 8), (2, 3, 5, 8)],
    "no keys": [(2, 3, 4, 8), (2, 3, 0, 8), (2, 3, 0, 8)],
    "no keys, no head_dim": [(2, 3, 4, 0), (2, 3, 0, 0), (2, 3, 0, 8)],
    "three dimensions": [(3, 4, 0), (3, 5, 0), (3, 5, 8)],
    "two dimensions": [(4, 0), (5, 0), (5, 8)],
}


def results(function, tensors, **options):
    out = function(*tensors, **options)
    torch.manual_seed(2)
    return [out, *torch.autograd.grad(out, tensors, torch.randn(out.shape))]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.5}], ids=str)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_sizes_of_0(shapes, options, is_compiled):
    torch.manual_seed(1)
    tensors = [leaf(*shape) for shape in shapes]
    if is_compiled and options:
        pytest.skip("one kind of call is enough")
    torch._dynamo.reset()
    function = torch.compile(ours, backend="aot_eager", fullgraph=True) if is_compiled else ours
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = results(F.scaled_dot_product_attention, tensors, **options)
    for x, y in zip(results(function, tensors, **options), wanted, strict=True):
        assert x.shape == y.shape
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 0), (8, 0, 0), (0, 8, 8)])
def test_a_head_size_of_0_beside_another(sizes):
    q, k, v = (torch.randn(2, 3, 4, size) for size in sizes)
    with pytest.raises(attn.Error):
        ours(q, k, v)


def test_no_heads_of_tensors_that_do_not_fit():
    q = torch.randn(2, 0, 4, 8)
    for k, v in ((q[..., :7], q), (q, q[:, :, :3]), (q, q.double())):
        with pytest.raises(attn.InvalidArgument, match="accepted"):
            ours(q, k, v)


MASKS = [{"attn_mask": torch.bool}, {"attn_mask": torch.float32}]


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"enable_gqa": True}, *MASKS], ids=str
)
def test_sizes_that_change(options):
    heads = 2 if "enable_gqa" in options else 4
    kind = options.get("attn_mask")

    def function(q, k, v, mask):
        given = {**options, "attn_mask": mask} if kind else options
        return ours(q, k, v, **given)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch, n, m in ((2, 16, 16), (3, 33, 40), (4, 20, 17)):
        q, k, v = leaf(batch, 4, n, 8), leaf(batch, heads, m, 8), leaf(batch, heads, m, 8)
        mask = torch.ones(n, m).tril(m - n)
        mask = mask.bool() if kind is torch.bool else mask
        wanted = results(lambda *t: function(*t, mask), [q, k, v])  # noqa: B023
        for x, y in zip(results(lambda *t: compiled(*t, mask), [q, k, v]), wanted, strict=True):  # noqa: B023
            assert torch.equal(x, y)
