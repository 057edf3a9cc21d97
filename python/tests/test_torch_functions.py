"""PyTorch's functions in a score: value and derivative against PyTorch's own in double precision.

With one key LSE is the score, so that a call computes a function at as many points as there are
queries.
"""

from __future__ import annotations

import math
import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attn.torch  # noqa: E402

# Scores where exponentials leave the range of float32 too; none lies at a kink.
POINTS = torch.tensor(
    [-1e4, -104, -90, -87, -20, -9, -5.5, -3, -1.5, -0.5, -1e-3, 1e-3, 0.7, 1.6, 4, 9, 20, 90, 1e4]
)
TWO = torch.tensor(2.0)


class Straight(torch.autograd.Function):
    """A derivative that is not the one of its value, which a trace would not see."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g


def _by_straight(s):
    return Straight.apply(s) + 1


def _infinite_at_ends(s):
    return torch.where(s > 5, torch.inf, torch.where(s < -5, -torch.inf, s))


SCORES = {
    "selu": F.selu,
    "logaddexp": lambda s: torch.logaddexp(s, 2 - s / 3),
    "logaddexp of a number": lambda s: torch.logaddexp(s, TWO),
    "lerp": lambda s: torch.lerp(s, 1 - s / 4, 0.3),
    "lerp by a score": lambda s: torch.lerp(1 - s, s * 0.5, torch.sigmoid(s)),
    "addcmul": lambda s: torch.addcmul(s, s, TWO, value=0.5),
    "addcdiv": lambda s: torch.addcdiv(s, TWO, s.abs() + 1, value=3.0),
    "erf": torch.erf,
    "special.erf": torch.special.erf,
    "erf of a part": lambda s: 3 * torch.erf(s / 7 - 0.25),
    "gelu": F.gelu,
    "gelu by tanh": lambda s: F.gelu(s, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "special.expit": torch.special.expit,
    "logarithm of sigmoid": lambda s: torch.log(torch.sigmoid(s.clamp(-80, 80))),
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "sin and cos of a part": lambda s: 3 * torch.sin(s.clamp(-30, 30) / 7 - 0.25) * s.cos(),
    "tan": lambda s: torch.tan(s.clamp(-100, 100) / 90),
    "exp": lambda s: torch.exp(s.clamp(max=80)),
    "exp2": lambda s: torch.exp2(s / 200),
    "log": lambda s: torch.log(abs(s) + 2),
    "log2": lambda s: torch.log2(s.abs() + 2),
    "sqrt": lambda s: torch.sqrt(s.abs()),
    "rsqrt": lambda s: torch.rsqrt(s.abs() + 1),
    "reciprocal": lambda s: torch.reciprocal(s.abs() + 1),
    "square": torch.square,
    "cube": lambda s: s**3,
    "power of a number": lambda s: 2.5 ** (s / 1000),
    "square root as a power": lambda s: (s.abs() + 1) ** 0.5,
    "power of 1.5": lambda s: (s.abs() + 1) ** 1.5,
    "power of -2": lambda s: (s.abs() + 1) ** -2,
    "power of -0.5": lambda s: torch.pow(s.abs() + 1, -0.5),
    "power of 2.0": lambda s: s**2.0,
    "power of 0": lambda s: s**0 + s,
    "softplus": F.softplus,
    "softplus of a beta": lambda s: F.softplus(s, beta=0.5),
    "softplus of a threshold": lambda s: F.softplus(s, threshold=3),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "elu": F.elu,
    "elu of an alpha": lambda s: F.elu(s, 1.5),
    "leaky_relu": F.leaky_relu,
    "leaky_relu of a slope": lambda s: F.leaky_relu(s, 0.2),
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh of bounds": lambda s: F.hardtanh(s, -4.0, 8.0),
    "softsign": F.softsign,
    "log1p": lambda s: torch.log1p(s.abs()),
    "expm1": lambda s: torch.expm1(s.clamp(max=80)),
    "log10": lambda s: torch.log10(s.abs() + 2),
    "isinf": lambda s: torch.where(torch.isinf(_infinite_at_ends(s)), 3.0, s),
    "isfinite": lambda s: torch.where(torch.isfinite(_infinite_at_ends(s)), s, -3.0),
    "isposinf": lambda s: torch.where(torch.isposinf(_infinite_at_ends(s)), 3.0, s),
    "isneginf": lambda s: torch.where(torch.isneginf(_infinite_at_ends(s)), 3.0, s),
    "sign": torch.sign,
    "clamp": lambda s: s.clamp(-2, 5),
    "minimum": lambda s: torch.minimum(s, 3 * s),
    "maximum": lambda s: torch.maximum(s, s * s),
    "masked_fill": lambda s: s.masked_fill(s < 0, 3.0),
    "where": lambda s: torch.where(s > 0, s, 2 * s),
    "where as a method": lambda s: s.where(s > 0, 2 * s) + TWO.where(s > 1, s),
    "detach of a tensor": lambda s: s * TWO.detach() + TWO.sum().detach(),
    "isnan": lambda s: torch.where(torch.isnan(s), 0.0, s),
    "add": lambda s: torch.add(s, s, alpha=2),
    "sub": lambda s: torch.sub(1, s, alpha=3),
    "rsub": lambda s: torch.rsub(s, 2),
}


@pytest.mark.parametrize("name", SCORES)
def test_value_and_derivative(name):
    function = SCORES[name]
    q = POINTS.view(1, -1, 1, 1).requires_grad_()
    one = torch.ones(1, 1, 1, 1)
    _, lse = attn.torch.attention(
        q, one, one, score=lambda s, b, h, i, j: function(s), scale=1.0, return_lse=True
    )
    (found,) = torch.autograd.grad(lse.sum(), q)
    exact = POINTS.double().requires_grad_()
    want = function(exact)
    # Of 1 + erf and its like an absolute error of some 2^-24 is left, times the score.
    torch.testing.assert_close(lse.flatten().double(), want, rtol=1e-6, atol=4e-6)
    gradient = torch.zeros_like(exact)
    if want.requires_grad:
        (gradient,) = torch.autograd.grad(want.sum(), exact)
    torch.testing.assert_close(found.flatten().double(), gradient, rtol=2e-6, atol=4e-6)


def _value_and_derivative(function, points):
    """Of the function in a score, then in double precision by PyTorch."""
    q = points.view(1, -1, 1, 1).requires_grad_()
    one = torch.ones(1, 1, 1, 1)
    _, lse = attn.torch.attention(
        q, one, one, score=lambda s, b, h, i, j: function(s), scale=1.0, return_lse=True
    )
    exact = points.detach().double().requires_grad_()
    want = function(exact)
    return [
        (lse.flatten().double(), torch.autograd.grad(lse.sum(), q)[0].flatten().double()),
        (want, torch.autograd.grad(want.sum(), exact)[0]),
    ]


def _either_sign(*sizes):
    return torch.tensor([sign * size for size in sizes for sign in (-1, 1)])


SMALL = _either_sign(1e-37, 1e-20, 3e-8, 1e-7, 3e-5, 1e-3, 0.03, 0.1, 0.2, 0.249, 0.251, 0.49, 0.51)
# No digit is lost however small the result is: compared by the relative error alone.
RELATIVE = {
    "log1p": (torch.log1p, torch.cat([SMALL, torch.tensor([-0.999, -0.75, 2.0, 1e5, 3e38])])),
    "expm1": (torch.expm1, torch.cat([SMALL, torch.tensor([-17.0, -2.0, 3.0, 88.0])])),
    "softplus": (
        F.softplus,
        torch.tensor([-86.0, -60, -20, -5, -1, -0.1, 0, 0.1, 1, 19.9, 21, 1e30]),
    ),
    "logsigmoid": (F.logsigmoid, torch.tensor([86.0, 60, 20, 5, 1, 0.1, 0, -0.1, -1, -50, -1e30])),
    "elu": (F.elu, SMALL),
    "mish": (F.mish, torch.tensor([-80.0, -20, -5, -0.1, 0.1, 5, 30, 1e30])),
    "softsign": (F.softsign, torch.cat([SMALL, torch.tensor([-1e30, 1e30])])),
}


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_error(name):
    found, want = _value_and_derivative(*RELATIVE[name])
    for ours, exact in zip(found, want, strict=True):
        torch.testing.assert_close(ours, exact, rtol=5e-7, atol=0)


INTEGERS = {
    "//": lambda a, b: a // 3 + a // -3,
    "sums of booleans": lambda a, b: (
        ((a > b) + (a > 2)) * 3 + ((a > b) * (a > 2)).to(torch.int32) + ~((a > b) * (b > 1)) * 5
    ),
    "type": lambda a, b: (a / 3).type(torch.int32) + b.type(torch.float32) * 5 + a.type_as(b),
    "rsub": lambda a, b: torch.rsub(a, b, alpha=3) + torch.rsub(a, b),
    "%": lambda a, b: a % 3 + (b % -3) * 10,
    "// of a number": lambda a, b: 100 // (b * b + 1) + 100 % (a * a + 1),
    "floor": lambda a, b: torch.div(a, b * b + 1, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b * b + 1, rounding_mode="trunc"),
    "floors of integers": lambda a, b: torch.floor(a) + 2 * torch.ceil(b) + torch.round(a).trunc(),
    "floors": lambda a, b: (
        torch.floor(a * 0.7) + 30 * torch.ceil(b / 3) + torch.trunc(a / -1.7) * 9
    ),
    "to integers": lambda a, b: (
        (a * 0.7).int() + 30 * (b / 3).long() + (a / -4).to(torch.int32) * 9
    ),
    "round": lambda a, b: torch.round(a / 2) + 30 * (b / 4).round() + torch.round(a * 0.3) * 9,
    "frac": lambda a, b: torch.frac(a / 4) + 30 * torch.frac(b * 0.7),
    "// of floats": lambda a, b: (a * 0.7) // 2.5 + 30 * (b // -0.75) + 9 * (10.5 // (a * a + 1)),
    "% of floats": lambda a, b: (a * 0.7) % 2.5 + 30 * (b % -0.75) + 9 * (10.5 % (a * a + 1)),
    # Quotients that float32 rounds to integers.
    "// by 0.1": lambda a, b: a // 0.1 + 900 * (b // -0.1),
    "// of products": lambda a, b: (a * 0.7) // 0.1 + 900 * ((b * 2.1) // (0.3 + 0 * a)),
    "% of products": lambda a, b: (a * 0.07) % 0.01 + (b * 0.21) % (-0.03 + 0 * a),
    "// by a zero": lambda a, b: torch.where(((a * 0.7) // (0 * b)).isinf(), b, a),
    "// of large numbers": lambda a, b: (a * 1e5 + 0.3) // 0.1 - (b * 1e30) // 3e25,
    "fmod of floats": lambda a, b: (
        torch.fmod(a, 0.1) + 30 * torch.fmod(b * 0.7, -2.1) + torch.fmod(a * 0.7, b * b + 0.1)
    ),
    "div of floats": lambda a, b: (
        torch.div(a, 1.5, rounding_mode="floor") + 30 * torch.div(b, -1.5, rounding_mode="trunc")
    ),
    "floors of large numbers": lambda a, b: (
        torch.floor((a * 1e6 + 0.5) * 1e6) + torch.trunc(b * 1e9)
    ),
    "fmod": lambda a, b: torch.fmod(a, 3) + 10 * torch.fmod(b, -4) + 100 * torch.fmod(a, b * b + 1),
    "infinities": lambda a, b: torch.isfinite(a) * 2 + torch.isinf(b) * 4,
    "trunc of a negative": lambda a, b: torch.div(a, -3, rounding_mode="trunc"),
    "/": lambda a, b: a / 3 - a / ((b * b + 1) / 2),
    "shifts": lambda a, b: (a << 2) + (b >> 1) + (1 << (a & 3)),
    "bits": lambda a, b: (a ^ b) + 100 * (a & b) - (a | 5) + ~b,
    "signs": lambda a, b: a - (b - 1) - (-a) - -3 + abs(a - b) * -2,
    "powers": lambda a, b: a**3 - b**2,
    "minimum": lambda a, b: torch.minimum(a, b) * 3 + torch.maximum(a, 2 * b),
    "clamp": lambda a, b: a.clamp(-2, 5) - torch.clamp(b, max=3) + b.clamp_min(4),
    "sign": lambda a, b: torch.sign(a) - 2 * torch.sign(b),
    "logical": lambda a, b: torch.logical_and(a, b) * 2 + torch.logical_xor(a, b < 3) * 4,
    "logical_not": lambda a, b: torch.logical_not(a) * 2 + (~(b < 3)) * 4,
    "booleans": lambda a, b: ((a > 0) < (b > 0)) * 3 + ((a > 0) == (b > 0)) * 5,
    "bits of booleans": lambda a, b: ((a > 0) & b) + ((a > 0) | b) + ((a > 0) ^ (b > 0)) * 9,
    "where": lambda a, b: torch.where((a & 1) != 0, a, -b),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 9),
    "types": lambda a, b: a.to(torch.float32) / 3 + a.bool() * 3 + (a > 0).int() - (b > 0).float(),
    "type_as": lambda a, b: (a > 0).type_as(b) - 2,
    "like": lambda a, b: torch.full_like(a, 3) * a - torch.ones_like(b) + torch.zeros_like(a),
    "float functions": lambda a, b: torch.sigmoid(a) + torch.erf(b / 4) + torch.sqrt(a * a),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    function, n = INTEGERS[name], 24
    zeros = torch.zeros(1, n, 1, 1)
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    want = function(i - 7, j - 11).double()
    for key in range(n):
        _, lse = attn.torch.attention(
            zeros, zeros, zeros,
            mask=lambda b, h, q, k, key=key: k == key,
            score=lambda s, b, h, q, k: s + function(q - 7, k - 11),
            return_lse=True,
        )  # fmt: skip
        torch.testing.assert_close(lse[0, 0].double(), want[:, key], rtol=1e-6, atol=1e-6)


def twice(x):
    return 2 * x


with warnings.catch_warnings():  # that it is deprecated
    warnings.simplefilter("ignore")
    scripted = torch.jit.script(twice)


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("score", lambda s, b, h, i, j: s + TABLE[i, j].detach(), "detach of Expr"),
        ("score", lambda s, b, h, i, j: s * s.detach(), "detach of Expr('score')"),
        ("score", lambda s, b, h, i, j: s.view(torch.int32) * 1.0, "the bits of Expr('score')"),
        ("score", lambda s, b, h, i, j: torch.atan(s), "torch function atan"),
        ("score", lambda s, b, h, i, j: s + torch.dot(TABLE[i], TABLE[j]), "torch function dot of"),
        ("score", lambda s, b, h, i, j: s + TABLE[i] @ TABLE[j], "rank 1 is used as a value"),
        ("score", lambda s, b, h, i, j: s + TABLE[0] @ TABLE[j], "of a part of an array, which"),
        ("score", lambda s, b, h, i, j: s @ s, "@ of Expr('score'), which is a scalar"),
        ("score", lambda s, b, h, i, j: Straight.apply(s), "Straight is an autograd.Function"),
        ("score", lambda s, b, h, i, j: _by_straight(s), "Straight is an autograd.Function"),
        ("score", lambda s, b, h, i, j: scripted(s), "twice is a function of torch.jit.script"),
        ("score", lambda s, b, h, i, j: torch.floor(s), "floor of Expr('score'), which depends on"),
        (
            "score",
            lambda s, b, h, i, j: torch.fmod(s, 2.0),
            "fmod of Expr('abs(score) / 2.0'), which",
        ),
        ("score", lambda s, b, h, i, j: s + (s * 2).long(), "int of Expr('score * 2'), which"),
        ("mask", lambda b, h, i, j: (i / 3).to(torch.uint8) == 1, "accepts int32 and int64"),
        ("mask", lambda b, h, i, j: j.to(torch.uint8) < 2, "accepts int32 and int64"),
        ("score", lambda s, b, h, i, j: s + ((j > i) - (j > 2)), "of booleans: accepts"),
        ("mask", lambda b, h, i, j: torch.round(i / 3, decimals=2) == 1, "decimals: accepts 0"),
        ("score", lambda s, b, h, i, j: s**0.3, "the power 0.3 of Expr('score'): accepts"),
        ("score", lambda s, b, h, i, j: s + (i - j) ** -1, "which is an integer: accepts 0 to 8"),
    ],
)
def test_what_would_mean_something_else_is_refused(name, function, message):
    q = torch.ones(1, 4, 1, 4)
    with pytest.raises(attn.TraceError) as refused:
        attn.torch.attention(q, q, q, **{name: function})
    assert message in str(refused.value)


TABLE = torch.ones(4, 4, requires_grad=True)


def t5_bucket(distance, buckets=32, longest=128):
    """Of a relative position: half of the buckets for each sign, half of these of one position, the
    others growing by powers up to `longest`.
    """
    of_sign, exact = buckets // 2, buckets // 4
    size = torch.abs(distance)
    growth = torch.log(size.float() / exact) / math.log(longest / exact) * (of_sign - exact)
    far = torch.clamp(exact + growth.to(torch.int32), max=of_sign - 1)
    return (distance > 0).to(torch.int32) * of_sign + torch.where(size < exact, size, far)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_t5_relative_positions(dtype):
    torch.manual_seed(5)
    n, heads = 200, 4
    q, k, v, d_o = (torch.randn(1, n, heads, 16).to(dtype) for _ in range(4))
    table = torch.randn(32, heads, requires_grad=True)
    out = attn.torch.attention(
        q, k, v, score=lambda s, b, h, i, j: s + table[t5_bucket(j - i), h], scale=1.0
    )
    out.backward(d_o)
    found, table.grad = table.grad, None
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    buckets = t5_bucket(j - i).long()
    assert buckets.unique().numel() == 31  # none of a positive distance of 0
    exact = table.detach().double().requires_grad_()
    s = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) + exact[buckets].permute(2, 0, 1)
    want = torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v.double())
    want.backward(d_o.double())
    error = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), want, rtol=0, atol=error)
    torch.testing.assert_close(
        found.double(), exact.grad, rtol=0, atol=error * exact.grad.abs().max().item()
    )


@pytest.mark.parametrize("function", [torch.remainder, torch.floor_divide])
@pytest.mark.parametrize("divisor", [0.1, 0.7, -0.3, 3.7, math.inf, -math.inf, 0.25])
def test_remainders_and_quotients_are_those_of_torch(divisor, function):
    """To the bit: a mask shows where they differ by one rounding."""
    n = 400
    by = torch.full((n,), divisor)
    want = function(torch.arange(n).float() - 150, by[0])
    for of in (lambda k: function(k - 150, divisor), lambda k: function(k - 150, by[k])):
        seen = attn.torch.attention(
            torch.zeros(1, 1, 1, 8),
            torch.zeros(1, n, 1, 8),
            torch.eye(n).reshape(1, n, 1, n),
            mask=lambda b, h, q, k, of=of: of(k) == want[k],
        )[0, 0, 0]
        assert seen.count_nonzero() == n, (seen == 0).nonzero().flatten() - 150


def test_gradients_of_remainders():
    """The floor has none: d(a % b) is d a - floor(a / b) d b."""
    torch.manual_seed(6)
    n = 24
    a, b = (torch.randn(n) * 5).requires_grad_(), (torch.rand(n) + 0.5).requires_grad_()
    q, v = torch.zeros(1, n, 1, 1), torch.randn(1, n, 1, 1)
    out = attn.torch.attention(
        q, q, v, score=lambda s, _, h, i, j: s + a[j] % b[j] + torch.floor(a[j]) * b[i]
    )
    d_o = torch.randn(1, n, 1, 1)
    found = torch.autograd.grad(out, (a, b), d_o)
    x, y = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    s = (x % y)[None, :] + torch.floor(x)[None, :] * y[:, None]
    want = torch.autograd.grad(s.softmax(-1) @ v[0, :, 0].double(), (x, y), d_o[0, :, 0].double())
    for ours, exact in zip(found, want, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_detach_of_what_has_no_gradient():
    q, table = torch.randn(1, 4, 1, 4), torch.randn(4, 4)
    out = attn.torch.attention(
        q, q, q, mask=lambda b, h, i, j: (j - i).detach() <= 0,
        score=lambda s, b, h, i, j: s + table[i, j].detach(),
    )  # fmt: skip
    assert torch.equal(out, attn.torch.attention(q, q, q, causal=True, bias=table))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["where as a method", "silu", "gelu", "softplus", "elu", "log1p"])
def test_compiled(name):
    q = POINTS.view(1, -1, 1, 1)
    one = torch.ones(1, 1, 1, 1)

    def function(q):
        score = lambda s, b, h, i, j: SCORES[name](s)  # noqa: E731
        return attn.torch.attention(q, one, one, score=score, scale=1.0, return_lse=True)[1]

    made = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert torch.equal(made(q), function(q))
