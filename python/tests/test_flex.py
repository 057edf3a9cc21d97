"""attn.torch.flex_attention against PyTorch's own, which has no backward pass on the CPU."""

from __future__ import annotations

from copy import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import flex_attention as theirs  # noqa: E402

import attn.torch  # noqa: E402
from attn.torch import flex  # noqa: E402
from torch_problems import assert_as_exact, dense, leaf, relative_errors  # noqa: E402
from traced_functions import BATCH, CASES, HEADS, LENGTH, Library  # noqa: E402

# PyTorch warns of running its function without its compiler.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
TORCH = Library(torch, torch.as_tensor)


def problem(dtype, dim=16, heads_k=HEADS):
    shapes = [(BATCH, heads, LENGTH, dim) for heads in (HEADS, heads_k, heads_k)]
    return [torch.randn(s, dtype=torch.float64).to(dtype).double() for s in shapes]


LOW = ("causal", "documents", "softcap", "graphormer")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in CASES]
    + [(name, dtype) for name in LOW for dtype in (torch.bfloat16, torch.float16)],
)
def test_every_mask_and_score(name, dtype):
    # PyTorch 2.15 refuses a captured float of which its compiler has met another value before.
    torch._dynamo.reset()
    kind, builder = CASES[name]
    function = builder(TORCH)
    score = function if kind == "score" else None
    block_mask = own_mask = None
    if kind == "mask":
        block_mask = theirs.create_block_mask(
            function, BATCH, HEADS, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16
        )
        own_mask = attn.torch.create_block_mask(function, BATCH, HEADS, LENGTH, LENGTH)
    yardsticks = []
    for draw in range(3):
        torch.manual_seed(draw)
        tensors = problem(dtype)
        exact = theirs.flex_attention(*tensors, score, block_mask, return_lse=True)
        low = [t.to(dtype) for t in tensors]
        found = theirs.flex_attention(*low, score, block_mask, return_lse=True)
        # A row that sees nothing: LSE is -inf for both.
        seen = torch.isfinite(exact[1])
        assert torch.equal(torch.isfinite(found[1]), seen)
        exact = (exact[0], exact[1][seen])
        yardsticks.append(relative_errors((found[0], found[1][seen]), exact))
    masks = [own_mask] if own_mask is None else [own_mask, block_mask]
    for mask in masks:
        out, lse = attn.torch.flex_attention(*low, score, mask, return_lse=True)
        assert lse.dtype == torch.float32
        assert torch.equal(torch.isfinite(lse), seen)
        assert_as_exact((out, lse[seen]), exact, yardsticks)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled):
    torch._dynamo.reset()
    ids = torch.randint(0, 4, (LENGTH,)).sort().values
    slopes, bias = leaf(HEADS), leaf(HEADS, LENGTH, LENGTH)
    torch.manual_seed(0)
    tensors = [t.float().requires_grad_() for t in problem(torch.float32, heads_k=2)]

    def mask_mod(b, h, i, j):
        return (ids[i] == ids[j]) & (i >= j)

    def score_mod(s, b, h, i, j, slopes=slopes, bias=bias):
        return 2 * torch.tanh(s / 2) + slopes[h] * (j - i) + bias[h, i, j]

    block_mask = theirs.create_block_mask(
        mask_mod, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32
    )
    function = partial(attn.torch.flex_attention, enable_gqa=True)
    if compiled:
        function = torch.compile(function, backend="aot_eager", fullgraph=True)

    def five(s, b, h, i, j):
        return score_mod(s, b, h, i, j)

    out = function(*tensors, five, block_mask)
    wanted = [*tensors, slopes, bias]
    gradient = torch.randn(out.shape)
    found = torch.autograd.grad(out, wanted, gradient)
    exact = [t.detach().double().requires_grad_() for t in wanted]
    changed = partial(score_mod, slopes=exact[3], bias=exact[4])
    heads_last = [t.transpose(1, 2) for t in exact[:3]]
    expected = dense(*heads_last, changed, mask_mod).transpose(1, 2)
    assert (out - expected).abs().max() < 1e-5
    want = torch.autograd.grad(expected, exact, gradient.double())
    for a, b in zip(found, want, strict=True):
        assert (a - b).abs().max() <= 2e-5 * b.abs().max()


def test_blocks_count_beside_the_mask():
    """A BlockMask shows what its lists say: full blocks whole, others where mask_mod is true."""

    def causal(b, h, i, j):
        return i >= j

    lists = torch.tensor([[[1, 2]]], dtype=torch.int32)  # rows of blocks: one partial, two partial
    places = torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    full = torch.tensor([[[1, 0]]], dtype=torch.int32)
    full_places = torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    made = theirs.BlockMask.from_kv_blocks(
        lists, places, full, full_places, BLOCK_SIZE=16, mask_mod=causal, seq_lengths=(32, 32)
    )
    q, k, v = (torch.randn(1, 1, 32, 8) for _ in range(3))
    out = attn.torch.flex_attention(q, k, v, block_mask=made)
    i, j = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    seen = torch.where((i < 16) & (j >= 16), True, i >= j)
    assert torch.equal(out, attn.torch.scaled_dot_product_attention(q, k, v, seen[None, None]))


CHANGES = {
    "mask_mod": lambda made: setattr(made, "mask_mod", lambda b, h, i, j: i <= j),
    "counts": lambda made: made.kv_num_blocks.sub_(1),
    "places": lambda made: made.kv_indices.copy_(made.kv_indices.flip(-1)),
    "full counts": lambda made: made.full_kv_num_blocks.zero_(),
    "full places": lambda made: made.full_kv_indices.copy_(made.full_kv_indices.flip(-1)),
    "another tensor": lambda made: setattr(
        made, "full_kv_num_blocks", torch.zeros_like(made.full_kv_num_blocks)
    ),
    "no full blocks": lambda made: setattr(made, "full_kv_num_blocks", None),
    "data": lambda made: setattr(
        made.full_kv_num_blocks, "data", torch.zeros_like(made.full_kv_num_blocks)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_block_mask_that_changes(change):
    """It was kept as at its first call. A BlockMask made anew of the same lists is the measure."""
    q, k, v = (torch.randn(1, 1, 64, 8) for _ in range(3))
    made = theirs.create_block_mask(
        lambda b, h, i, j: i >= j, None, None, 64, 64, device="cpu", BLOCK_SIZE=16
    )
    first = attn.torch.flex_attention(q, k, v, block_mask=made)
    assert flex._listed(made) is flex._listed(made)
    CHANGES[change](made)
    found = attn.torch.flex_attention(q, k, v, block_mask=made)
    assert not torch.equal(found, first)
    assert torch.equal(found, attn.torch.flex_attention(q, k, v, block_mask=copy(made)))


def test_a_block_mask_of_inference_mode():
    """Its tensors do not count how often they are written."""
    with torch.inference_mode():
        q, k, v = (torch.randn(1, 1, 64, 8) for _ in range(3))
        made = theirs.create_block_mask(
            lambda b, h, i, j: i >= j, None, None, 64, 64, device="cpu", BLOCK_SIZE=16
        )
        first = attn.torch.flex_attention(q, k, v, block_mask=made)
        made.full_kv_num_blocks.zero_()
        found = attn.torch.flex_attention(q, k, v, block_mask=made)
        assert not torch.equal(found, first)
        assert torch.equal(found, attn.torch.flex_attention(q, k, v, block_mask=copy(made)))


def test_one_batch_of_keys():
    """PyTorch takes it where there is a block_mask of as many batches as queries have."""
    q, k, v = leaf(3, 2, 16, 8), leaf(1, 2, 16, 8), leaf(1, 2, 16, 8)
    made = theirs.create_block_mask(
        lambda b, h, i, j: i >= j, 3, None, 16, 16, device="cpu", BLOCK_SIZE=16
    )
    wanted = theirs.flex_attention(*(t.detach() for t in (q, k, v)), block_mask=made)
    found = attn.torch.flex_attention(q, k, v, block_mask=made)
    torch.testing.assert_close(found, wanted)
    weights = torch.randn_like(found)
    ours = torch.autograd.grad(found, (q, k, v), weights)
    heads_last = [t.transpose(1, 2) for t in (q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1))]
    dense_out = dense(*heads_last, None, lambda b, h, i, j: i >= j).transpose(1, 2)
    for a, b in zip(ours, torch.autograd.grad(dense_out, (q, k, v), weights), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_arguments():
    q = torch.randn(1, 2, 8, 4)
    mask = attn.torch.create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 9)
    with pytest.raises(ValueError, match="accepted are those of the tensors, 8 and 8"):
        attn.torch.flex_attention(q, q, q, block_mask=mask)
    for batch, heads in ((2, None), (None, 3)):  # of PyTorch, whose blocks are read by index
        mask = theirs.create_block_mask(
            lambda b, h, i, j: i >= j, batch, heads, 8, 8, device="cpu", BLOCK_SIZE=4
        )
        with pytest.raises(ValueError, match="block_mask is of batch .*, 4 and 2, or 1"):
            attn.torch.flex_attention(*[torch.randn(4, 2, 8, 4)] * 3, block_mask=mask)
    with pytest.raises(ValueError, match="enable_gqa=True"):
        attn.torch.flex_attention(q, q[:, :1], q[:, :1])
    for given, name in ((lambda b, h, i, j: i >= j, "function"), (torch.ones(8, 8), "Tensor")):
        with pytest.raises(
            TypeError, match=f"block_mask is a {name}; accepted is what create_block"
        ):
            attn.torch.flex_attention(q, q, q, block_mask=given)
    with pytest.raises(ValueError, match=r"key has shape \(2, 8, 4\); accepted is \[batch, heads"):
        attn.torch.flex_attention(q, q[0], q)
    with pytest.raises(TypeError, match="value is a ndarray; accepted are tensors of PyTorch"):
        attn.torch.flex_attention(q, q, q.numpy())
    out, aux = attn.torch.flex_attention(q, q, q, return_aux=theirs.AuxRequest(lse=True))
    assert out.shape == q.shape
    assert aux.lse.shape == (1, 2, 8)
    with pytest.raises(NotImplementedError, match="accepted is lse"):
        attn.torch.flex_attention(q, q, q, return_aux=theirs.AuxRequest(max_scores=True))
