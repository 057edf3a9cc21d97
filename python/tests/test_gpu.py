"""attn on CUDA tensors of PyTorch: exactness, streams, graphs, what is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.flash_attn as fa2  # noqa: E402
import attn.torch  # noqa: E402
import flash_reference as reference  # noqa: E402
from torch_problems import assert_as_exact, dense, relative_errors  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def on_gpu():
    with torch.device("cuda"):
        yield


def slopes_of(heads):
    return torch.tensor([2.0 ** (-h - 1) for h in range(heads)])


# Of each problem: keywords of attn.torch.attention, then score and mask of torch_problems.dense.
PROBLEMS = {
    "plain": ({}, None, None),
    "causal": ({"causal": True}, None, lambda b, h, i, j: j <= i + SHIFT),
    "window": (
        {"window": (20, 9)},
        None,
        lambda b, h, i, j: (j >= i + SHIFT - 20) & (j <= i + SHIFT + 9),
    ),
    "softcap": ({"softcap": 3.0}, lambda s, b, h, i, j: 3 * torch.tanh(s / 3), None),
    "alibi": (
        {"alibi": slopes_of, "causal": True},
        lambda s, b, h, i, j: s - slopes_of(4).to(s).view(4, 1, 1) * (i + SHIFT - j).abs(),
        lambda b, h, i, j: j <= i + SHIFT,
    ),
    "formula": (
        {"mask": attn.Formula("key % three != 1", three=3)},
        None,
        lambda b, h, i, j: j % 3 != 1,
    ),
}  # fmt: skip
N, M = 130, 200
SHIFT = M - N


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [40, 64, 128])
@pytest.mark.parametrize("name", PROBLEMS)
def test_forward_and_backward(name, head_dim, dtype):
    options, score, mask = PROBLEMS[name]
    options = {key: x(4) if callable(x) else x for key, x in options.items()}

    def draw(seed):
        torch.manual_seed(seed)
        shapes = ((2, N, 4, head_dim), (2, M, 2, head_dim), (2, M, 2, head_dim))
        return [torch.randn(s).to(dtype) for s in shapes], torch.randn(2, N, 4, head_dim).to(dtype)

    def results(function, tensors, d_out, dtype):
        tensors = [t.to(dtype).requires_grad_() for t in tensors]
        out = function(*tensors)
        return [out, *torch.autograd.grad(out, tensors, d_out.to(dtype))]

    def exact_of(*tensors):
        return dense(*tensors, score, mask)

    yardsticks = []
    for seed in range(4):
        tensors, d_out = draw(seed)
        exact = results(exact_of, tensors, d_out, torch.float64)
        yardsticks.append(relative_errors(results(exact_of, tensors, d_out, dtype), exact))
    ours = results(lambda *t: attn.torch.attention(*t, **options), tensors, d_out, dtype)
    assert all(t.is_cuda and t.dtype == dtype for t in ours)
    assert_as_exact(ours, exact, yardsticks)


def test_gradients_of_bias_sink_and_slopes():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 70, 4, 64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 4, 70, 70, dtype=torch.bfloat16, requires_grad=True)  # of another dtype
    sink, slopes = torch.randn(4, requires_grad=True), torch.rand(4, requires_grad=True)
    tensors = [q, k, v, bias, sink, slopes]
    d_out = torch.randn_like(q)
    out = attn.torch.attention(q, k, v, bias=bias, sink=sink, alibi=slopes)
    ours = torch.autograd.grad(out, tensors, d_out)
    exact = [t.detach().double().requires_grad_() for t in tensors]

    def score(s, b, h, i, j):
        return s + exact[3] - exact[5].view(4, 1, 1) * (i - j).abs()

    expected = dense(*exact[:3], score, None, exact[4])
    found = torch.autograd.grad(expected, exact, d_out.double())
    reference.assert_close(out, expected, 1e-4)
    for a, b in zip(ours, found, strict=True):  # that of the bias is rounded to bfloat16
        reference.assert_close(a, b, 2**-8 if a.dtype == torch.bfloat16 else 1e-4)
    assert [g.dtype for g in ours] == [t.dtype for t in tensors]


def test_gradient_of_lse_and_merge():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 90, 2, 64, requires_grad=True) for _ in range(3))

    def part(mask):
        return attn.torch.attention(q, k, v, mask=mask, return_lse=True)

    whole = part(None)
    merged = attn.torch.merge([part("key < 33"), part("key >= 33")])
    weights = [torch.randn_like(t) for t in whole]
    expected = torch.autograd.grad(whole, (q, k, v), weights)
    found = torch.autograd.grad(merged, (q, k, v), weights)
    for a, b in zip((*merged, *found), (*whole, *expected), strict=True):
        reference.assert_close(a, b.double(), 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_packed_sequences(dtype):
    torch.manual_seed(0)
    lengths_q, lengths_k = (40, 0, 130, 7), (64, 5, 130, 90)
    q, k, v = (
        torch.randn(sum(lengths), h, 64).to(dtype).requires_grad_()
        for lengths, h in ((lengths_q, 4), (lengths_k, 2), (lengths_k, 2))
    )
    cu_q, cu_k = (torch.tensor([0, *x]).cumsum(0).int() for x in (lengths_q, lengths_k))

    def both(function, dtype):
        tensors = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        out = function(*tensors)
        torch.manual_seed(1)
        return [out, *torch.autograd.grad(out, tensors, torch.randn(out.shape).to(out.dtype))]

    def exact(*tensors):
        parts = [
            t.split(x) for t, x in zip(tensors, (lengths_q, lengths_k, lengths_k), strict=True)
        ]
        return reference.packed(reference.batched(*parts, causal=True, window_size=(50, 0)))[0]

    def ours(*tensors):
        return fa2.flash_attn_varlen_func(
            *tensors, cu_q, cu_k, 130, 130, causal=True, window_size=(50, 0)
        )

    truth = both(exact, torch.float64)
    for a, b, c in zip(both(ours, dtype), truth, both(exact, dtype), strict=True):
        largest = b.abs().max()
        yardstick = (c.double() - b).abs().max()
        error = (a.double() - b).abs().max()
        assert error <= 2 * yardstick + (torch.finfo(dtype).eps / 2 + 2**-22) * largest


def test_pages_and_appended_rows():
    torch.manual_seed(0)
    used = [37, 90]
    pages_k, pages_v = torch.randn(2, 16, 16, 2, 64)
    table = torch.randperm(16).view(2, 8).int()
    q, k, v = torch.randn(2, 3, 4, 64), torch.randn(2, 3, 2, 64), torch.randn(2, 3, 2, 64)
    before = [p[table.long()].flatten(1, 2).double() for p in (pages_k, pages_v)]
    out = fa2.flash_attn_with_kvcache(
        q, pages_k, pages_v, k, v, cache_seqlens=torch.tensor(used).int(), block_table=table,
        causal=True,
    )  # fmt: skip
    for b, n in enumerate(used):
        keys = [torch.cat((p[b, :n], x[b].double())) for p, x in zip(before, (k, v), strict=True)]
        exact, _ = reference.attend(q[b].double(), *keys, causal=True)
        reference.assert_close(out[b], exact, 1e-4)
        assert torch.equal(pages_v[table[b].long()].flatten(0, 1)[n : n + 3], v[b])


def test_dropout_is_that_of_the_cpu():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 65, 3, 64) for _ in range(3))
    options = {"dropout": 0.3, "rng": (123456789, 5), "causal": True}
    expected = attn.attention(q.cpu(), k.cpu(), v.cpu(), **options)
    reference.assert_close(attn.attention(q, k, v, **options).cpu(), expected.double(), 1e-4)
    kept = attn.dropout_mask(torch.empty(2, 3, 65, 65, dtype=torch.bool), 0.3, options["rng"])
    on_cpu = torch.empty(2, 3, 65, 65, dtype=torch.bool, device="cpu")
    assert torch.equal(kept.cpu(), attn.dropout_mask(on_cpu, 0.3, options["rng"]))


def test_work_is_put_into_the_current_stream():
    torch.manual_seed(0)
    real = [torch.randn(1, 64, 2, 64) for _ in range(3)]
    expected = attn.attention(*real, causal=True)
    inputs = [torch.zeros_like(t) for t in real]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        for t, x in zip(inputs, real, strict=True):
            t.copy_(x)
        out = attn.attention(*inputs, causal=True)
        assert not stream.query(), "the call waited"
    stream.synchronize()
    assert torch.equal(out, expected)


def captured(function):
    """A graph of function() and what it returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # kernels are compiled before
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


@pytest.mark.parametrize("keys", [128, 4096])
def test_graphs_of_forward_and_backward(keys):
    torch.manual_seed(0)
    inputs = [
        torch.randn(1, n, 2, 64, dtype=torch.bfloat16, requires_grad=True)
        for n in (128, keys, keys)
    ]
    d_out = torch.randn(1, 128, 2, 64, dtype=torch.bfloat16)

    def step():
        out = attn.torch.attention(*inputs, causal=True, softcap=5.0, deterministic=True)
        return [out, *torch.autograd.grad(out, inputs, d_out)]

    graph, results = captured(step)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            for t in inputs:
                t.copy_(torch.randn(t.shape))
        for t in results:
            t.fill_(torch.nan)
        graph.replay()
        for a, b in zip(results, step(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["generator", "tensor"])
def test_graphs_draw_dropout_anew(kind):
    """Zeros as scores, identities as v and d_out: out is P after dropout, dV its transpose."""
    q = torch.zeros(1, 64, 2, 64, dtype=torch.bfloat16)
    v = torch.eye(64, dtype=q.dtype).expand(1, 2, 64, 64).transpose(1, 2).clone().requires_grad_()
    state = torch.tensor([7, 8])
    options = {"dropout": 0.4, "rng": state if kind == "tensor" else None}

    def step():
        out = attn.torch.attention(q, q, v, **options)
        return out, *torch.autograd.grad(out, [v], v.detach())

    graph, (out, d_v) = captured(step)
    drawn = []
    for seed in (7, 9, 7):
        state.copy_(torch.tensor([seed, 8]))
        torch.manual_seed(seed)
        graph.replay()
        kept = out[0].transpose(0, 1) > 0  # [head, query, key]
        assert torch.equal(kept, d_v[0].permute(1, 2, 0) > 0)
        if kind == "tensor":
            mask = torch.empty(1, 2, 64, 64, dtype=torch.bool)
            assert torch.equal(kept, attn.dropout_mask(mask, 0.4, (seed, 8))[0])
        drawn.append(kept)
    assert 0.5 < drawn[0].float().mean() < 0.7
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    if kind == "generator":
        graph.replay()
        assert not torch.equal(drawn[2], out[0].transpose(0, 1) > 0)


def test_graph_of_a_decoding_step():
    torch.manual_seed(0)
    cache_k, cache_v = torch.randn(2, 2, 300, 2, 64, dtype=torch.bfloat16)
    q, k, v = (torch.randn(2, 1, h, 64, dtype=torch.bfloat16) for h in (8, 2, 2))
    used = torch.tensor([3, 200]).int()

    def step():
        return fa2.flash_attn_with_kvcache(
            q, cache_k, cache_v, k, v, cache_seqlens=used, causal=True, window_size=(100, 0)
        )

    graph, out = captured(step)
    for _ in range(3):
        used += 1
        q.copy_(torch.randn(q.shape))
        graph.replay()
        found = out.clone()
        assert torch.equal(found, step())


def test_compiled():
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = [torch.randn(1, 65, 2, 64, requires_grad=True) for _ in range(3)]
    slopes = torch.rand(2)

    def function(q, k, v):
        return attn.torch.attention(
            q, k, v, score=lambda s, b, h, i, j: s - slopes[h] * (i - j), causal=True
        )

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    d_out = torch.randn(1, 65, 2, 64)
    for f in (function, compiled):
        out = f(*inputs)
        found = [out, *torch.autograd.grad(out, inputs, d_out)]
        if f is function:
            expected = found
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_autocast():
    q, k, v = (torch.randn(1, 20, 2, 64) for _ in range(3))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = attn.torch.attention(q, k, v)
    assert torch.equal(out, attn.torch.attention(*(t.bfloat16() for t in (q, k, v))))


def test_deterministic_gradients_repeat():
    torch.manual_seed(0)
    low = {"dtype": torch.bfloat16, "requires_grad": True}
    tensors = [torch.randn(4, 1024, 4, 128, **low) for _ in range(3)]
    out = fa2.flash_attn_func(*tensors, causal=True, deterministic=True)
    d_out = torch.randn_like(out)
    first = torch.autograd.grad(out, tensors, d_out, retain_graph=True)
    for _ in range(20):
        again = torch.autograd.grad(out, tensors, d_out, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


COMPILED_FOR_NUMBERS = """
import os, sys, torch, attn, attn.torch
q, k, v = (torch.randn(1, 200, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
q.requires_grad_()
counts = []
for width, factor in ((3, 0.5), (40, 1.25), (200, -2.0)):
    out = attn.torch.attention(
        q, k, v, mask=lambda s: s.position - s.key < width, score=lambda s: s.score * factor
    )
    out.sum().backward()
    rows = [t.detach().cpu().float() for t in (q, k, v)]
    expected = attn.attention(*rows, mask=f"position - key < {width}", score=f"score * {factor!r}")
    torch.testing.assert_close(out.detach().cpu().float(), expected, atol=2e-2, rtol=2e-2)
    counts.append(sum(len(files) for _, _, files in os.walk(sys.argv[1])))
print(*counts)
"""


def test_captured_numbers_compile_nothing_anew(tmp_path):
    command = [sys.executable, "-c", COMPILED_FOR_NUMBERS, str(tmp_path)]
    environment = {**os.environ, "ATTN_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first, second, third = map(int, ran.stdout.split())
    assert 0 < first == second == third


def test_outputs_that_are_given():
    q, k, v = (torch.randn(1, 33, 2, 64) for _ in range(3))
    out, lse = torch.full_like(q, torch.nan), torch.full((1, 2, 33), torch.nan)
    expected = attn.attention(q, k, v, return_lse=True)
    found = attn.attention(q, k, v, out=out, lse=lse, return_lse=True)
    assert found[0] is out
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_many_random_calls():
    """Sizes, strides and dtypes as they come, against the CPU."""
    choose = random.Random(0)
    for seed in range(40):
        dtype = choose.choice(DTYPES)
        heads_k, groups = choose.choice([1, 2]), choose.choice([1, 4])
        d = choose.choice([16, 72, 128])
        n, m = choose.choice([(1, 300), (17, 17), (128, 129), (200, 64)])
        options = {"causal": choose.random() < 0.5, "softcap": choose.choice([None, 2.0])}
        yardsticks = []
        for draw in range(6 if n == 1 else 2):
            torch.manual_seed(100 * seed + draw)
            q = torch.randn(2, n, heads_k * groups, d).to(dtype)
            k, v = (torch.randn(2, heads_k, m, d).to(dtype).transpose(1, 2) for _ in range(2))
            on_cpu = [t.cpu() for t in (q, k, v)]
            exact = [attn.attention(*(t.double() for t in on_cpu), **options)]
            low = attn.attention(*on_cpu, algorithm="standard", **options)
            yardsticks.append(relative_errors([low], exact))
        out = attn.attention(q, k, v, **options).cpu()
        if dtype == torch.float32:  # sums of few rows are a matter of their order
            reference.assert_close(out, exact[0], 2e-6)
        else:
            assert_as_exact([out], exact, yardsticks)


def test_refusals():
    q = torch.randn(1, 8, 2, 64)
    with pytest.raises(ValueError, match=r"k.*cpu"):
        attn.attention(q, q.cpu(), q)
    cu_seqlens = torch.tensor([0, 8]).int()
    with pytest.raises(ValueError, match="seqlen"):
        attn.attention(q[0], q[0], q[0], cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)
    with pytest.raises(ValueError, match="k"):
        attn.attention(q, q.half(), q)
    with pytest.raises(ValueError, match="number in the memory of a GPU"):
        attn.attention(q, q, q, mask=attn.Formula("key < n", n=torch.tensor(3)))
