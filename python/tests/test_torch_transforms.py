"""torch.func of attn.torch: vmap against a loop over what it maps, gradients of each sample against
PyTorch's own attention in double precision.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.func import grad, hessian, jacrev, jvp, vmap  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import attn  # noqa: E402
import attn.torch  # noqa: E402

# PyTorch's own of what it calls deprecated itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

torch.manual_seed(3)
SIZE = 3
attend = attn.torch.attention
sdpa = attn.torch.scaled_dot_product_attention
Q = torch.randn(SIZE, 2, 6, 4, 8)
K, V = torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 5)
ROWS = torch.randn(SIZE, 2, 4, 6, 8)  # with heads in front
PACKED = torch.randn(SIZE, 6, 4, 8)
SEEN = torch.rand(SIZE, 2, 4, 6, 6) > 0.3
CU = torch.tensor([0, 4, 6], dtype=torch.int32)
CAUSAL_BLOCKS = attn.torch.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6)


def packed(q, **options):
    return attend(q, q, q, cu_seqlens_q=CU, cu_seqlens_k=CU, **options)


# Function, its arguments, the dimensions that are mapped.
CASES = {
    "queries": (lambda q: attend(q, K, V, causal=True), (Q,), (0,)),
    "keys": (lambda k: attend(Q[0], k, V), (torch.randn(SIZE, 2, 6, 2, 8),), (0,)),
    "all by another dimension": (lambda q: attend(q, q, q), (Q.movedim(0, 2),), (2,)),
    "the last dimension": (lambda q: attend(q, K, V), (Q.movedim(0, -1),), (-1,)),
    "heads first": (lambda q: attend(q, q, q, layout="bhsd"), (ROWS,), (0,)),
    "lse": (lambda q: attend(q, K, V, return_lse=True)[1], (Q,), (0,)),
    "packed": (packed, (PACKED,), (0,)),
    "lse of packed": (lambda q: packed(q, return_lse=True)[1], (PACKED,), (0,)),
    "lengths": (
        lambda q, n: attend(q, K, V, seqused_k=n),
        (Q, torch.randint(1, 6, (SIZE, 2), dtype=torch.int32)),
        (0, 0),
    ),
    "masks": (lambda q, m: attend(q, K, V, mask=m), (Q, SEEN), (0, 0)),
    "masks alone": (lambda m: attend(Q[0], K, V, mask=m), (SEEN,), (0,)),
    "one mask of each sequence": (lambda q: attend(q, K, V, mask=SEEN[0]), (Q,), (0,)),
    "one mask of all sequences": (lambda q: attend(q, K, V, mask=SEEN[0, :1]), (Q,), (0,)),
    "biases": (lambda q, b: attend(q, K, V, bias=b), (Q, torch.randn(SIZE, 6, 6)), (0, 0)),
    "one bias of each sequence": (
        lambda q, b: attend(q, K, V, bias=b),
        (Q, torch.randn(2, 4, 6, 6)),
        (0, None),
    ),
    "sinks": (lambda q, s: attend(q, K, V, sink=s), (Q, torch.randn(SIZE, 4)), (0, 0)),
    "alibi of sequences": (
        lambda q, s: attend(q, K, V, alibi=s),
        (Q, torch.rand(2, 4)),
        (0, None),
    ),
    "batch in a text": (lambda q: attend(q, K, V, mask="(batch + key) % 2 == 0"), (Q,), (0,)),
    "batch in a function": (
        lambda q: attend(q, K, V, score=lambda s: s.score * (s.batch + 1)),
        (Q,),
        (0,),
    ),
    "a captured table": (
        lambda q, t: attend(q, K, V, score=lambda s: s.score + t[s.key]),
        (Q, torch.randn(SIZE, 6)),
        (0, 0),
    ),
    "captured integers alone": (
        lambda t: attend(Q[0], K, V, mask=lambda s: t[s.key] == 1),
        (torch.randint(0, 2, (SIZE, 6)),),
        (0,),
    ),
    "a captured number": (
        lambda t: attend(Q[0], K, V, score=lambda s: s.score * t),
        (torch.randn(SIZE),),
        (0,),
    ),
    "dropout of one seed": (lambda q: attend(q, K, V, dropout=0.5, rng=(1, 2)), (Q,), (0,)),
    "dropout of several seeds": (
        lambda q, r: attend(q, K, V, dropout=0.5, rng=r),
        (Q, torch.randint(0, 1000, (SIZE, 2))),
        (0, 0),
    ),
    "SDPA": (lambda q, m: sdpa(q, q, q, attn_mask=m), (ROWS, SEEN), (0, 0)),
    "flex_attention": (
        lambda q: attn.torch.flex_attention(
            q, q, q, lambda s, b, h, i, j: s + h * b, CAUSAL_BLOCKS
        ),
        (ROWS,),
        (0,),
    ),
    "no queries": (lambda q: attend(q[:, :0], K, V), (Q,), (0,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_vmap(name):
    """Values and the gradients of all arguments that are numbers."""
    function, arguments, in_dims = CASES[name]
    several = [
        [a if dim is None else a.select(dim, i) for a, dim in zip(arguments, in_dims, strict=True)]
        for i in range(SIZE)
    ]
    out = vmap(function, in_dims)(*arguments)
    assert torch.equal(out, torch.stack([function(*one) for one in several]))
    floats = tuple(i for i, a in enumerate(arguments) if a.is_floating_point())
    if not floats or "lse" in name:
        return

    def loss(*given):
        return (function(*given) ** 2).sum()

    found = vmap(grad(loss, floats), in_dims)(*arguments)
    for i, one in enumerate(several):
        leaves = [a.clone().requires_grad_() if j in floats else a for j, a in enumerate(one)]
        wanted = torch.autograd.grad(loss(*leaves), [leaves[j] for j in floats])
        for every, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(every[i], expected, rtol=1e-6, atol=1e-6)


def test_a_gradient_of_vmap():
    def loss(q, k):
        return (vmap(lambda q: attend(q, k, V, causal=True))(q) ** 2).sum()

    q, k = Q.clone().requires_grad_(), K.clone().requires_grad_()
    wanted = torch.autograd.grad(
        sum((attend(one, k, V, causal=True) ** 2).sum() for one in q), (q, k)
    )
    for found in (grad(loss, (0, 1))(Q, K), torch.autograd.grad(loss(q, k), (q, k))):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_of_samples_of_a_model():
    """Of each sample with regard to the weights that all share, as privacy in training needs."""
    torch.manual_seed(4)
    # Scores of about 1: at 16, PyTorch's own gradients in float32 are 3e-4 off.
    weights = {"q": torch.randn(16, 16) / 4, "kv": torch.randn(16, 32) / 4}
    samples = torch.randn(5, 7, 16)

    def loss(weights, x, function):
        def heads(t):
            return t.unflatten(-1, (2, -1)).transpose(0, 1)[None]

        q, (k, v) = x @ weights["q"], (x @ weights["kv"]).chunk(2, -1)
        out = function(heads(q), heads(k), heads(v), is_causal=True)
        return (out**2).mean()

    found = vmap(grad(loss), (None, 0, None))(weights, samples, sdpa)
    exact = {name: t.double() for name, t in weights.items()}
    for i, x in enumerate(samples):
        wanted = grad(loss)(exact, x.double(), F.scaled_dot_product_attention)
        for name in weights:
            torch.testing.assert_close(found[name][i].double(), wanted[name], rtol=1e-4, atol=1e-5)


def test_jacobian_and_vmap_of_vmap():
    small = Q[0, :1, :3]
    found = jacrev(lambda q: attend(q, K[:1], V[:1]))(small)
    wanted = torch.autograd.functional.jacobian(lambda q: attend(q, K[:1], V[:1]), small)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    twice = vmap(vmap(lambda q: attend(q[None], K[:1], V[:1])[0]))(Q)
    for i in range(SIZE):
        expected = attend(Q[i], K[:1].expand_as(K), V[:1].expand_as(V))
        torch.testing.assert_close(twice[i], expected, rtol=1e-6, atol=1e-6)


def test_randomness_of_dropout():
    """The flag of torch.vmap says whether the elements draw apart."""
    same = Q[:1].expand_as(Q)

    def call(q):
        return attend(q, K, V, dropout=0.5)

    with pytest.raises(RuntimeError, match="randomness"):
        vmap(call)(same)
    out = vmap(call, randomness="same")(same)
    assert torch.equal(out[0], out[1])
    out = vmap(call, randomness="different")(same)
    assert not torch.equal(out[0], out[1])


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: vmap(f),
        lambda f: grad(lambda q: f(q[0])),
        lambda f: vmap(grad(f)),
        lambda f: grad(lambda q: vmap(f)(q).sum()),
    ],
    ids=["vmap", "grad", "vmap of grad", "grad of vmap"],
)
def test_compiled(transform):
    function = transform(lambda q: attend(q, K, V, causal=True).sum())
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(Q), function(Q), rtol=1e-6, atol=1e-6)


def test_what_has_no_derivative_is_refused():
    def loss(q):
        return (attend(q, K, V) ** 2).sum()

    with pytest.raises(attn.Unsupported, match="^attn.torch has no second derivative"):
        grad(lambda q: (grad(loss)(q) ** 2).sum())(Q[0])
    with pytest.raises(attn.Unsupported, match="^attn.torch has no second derivative"):
        vmap(grad(lambda q: grad(loss)(q).sum()))(Q)
    for call in (lambda: jvp(loss, (Q[0],), (Q[0],)), lambda: hessian(loss)(Q[0, :, :1])):
        with pytest.raises(attn.Unsupported, match="^attn.torch has no derivative of forward mode"):
            call()


def test_integers_out_of_range_are_refused():
    """An int64 that int32 does not hold, seen through vmap."""
    far = torch.full((SIZE, 6), 2**32)
    with pytest.raises(attn.TraceError, match="outside of int32"):
        vmap(lambda t: attend(Q[0], K, V, mask=lambda s: t[s.key] == 0))(far)


def test_merge():
    half = [
        lambda q, h=h: attend(q, K[:, h], V[:, h], return_lse=True) for h in (slice(3), slice(3, 6))
    ]
    out, _ = vmap(lambda q: attn.torch.merge([f(q) for f in half]))(Q)
    torch.testing.assert_close(out, vmap(lambda q: attend(q, K, V))(Q), rtol=1e-5, atol=1e-5)


def _grad_pass(result, inputs, gradients):
    """Each gradient of a batch by itself."""
    every = [
        torch.autograd.grad(result, inputs, gs, retain_graph=True)
        for gs in zip(*gradients, strict=True)
    ]
    return [torch.stack(parts) for parts in zip(*every, strict=True)]


@pytest.mark.parametrize("kind", ["out", "lse", "bias", "observed", "compiled", "graph"])
def test_batches_of_gradients(kind):
    """is_grads_batched, which torch.autograd.functional.jacobian(vectorize=True) uses too."""
    q, k, v = (t.detach().clone().requires_grad_() for t in (Q[0], K, V))
    bias = torch.randn(6, 6, requires_grad=True)
    options = {"bias": bias} if kind == "bias" else {"return_lse": kind == "lse"}
    inputs = (q, k, v, *([bias] if kind == "bias" else []))

    def run():
        out = attend(q, k, v, **options)
        return out if isinstance(out, tuple) else (out,)

    if kind == "compiled":
        run = torch.compile(run, backend="aot_eager")
    result = run()
    gradients = [torch.randn(SIZE, *t.shape) for t in result]
    wanted = _grad_pass(result, inputs, gradients)
    if kind == "observed":
        with FlopCounterMode(display=False):
            result = run()
            found = torch.autograd.grad(result, inputs, gradients, is_grads_batched=True)
    else:
        graph = kind == "graph"
        found = torch.autograd.grad(
            result, inputs, gradients, is_grads_batched=True, create_graph=graph
        )
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
