"""Masks and scores that torch.compile traces with the code around them: the bits of a call without.

What such functions give without it is compared with PyTorch in test_torch_functions.py.
"""

from __future__ import annotations

import functools
import operator
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import attn.torch  # noqa: E402
import torch_problems  # noqa: E402
from test_torch_functions import INTEGERS  # noqa: E402
from torch_problems import leaf  # noqa: E402

# PyTorch's compiler uses what PyTorch calls deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

N = 24
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def compiled(function, dynamic=None, backend="eager"):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)


def attend(q, score=None, mask=None):
    if mask is not None:  # PyTorch 2.11 traces no `mask and ...` of a function
        mask = attn.torch.create_block_mask(mask, None, None, N, N)
    return attn.torch.flex_attention(q, q, q, score, mask, return_lse=True)


NAMES = (
    "//", "%", "// of a number", "trunc", "to integers", "round", "// of floats", "% of floats",
    "% of products", "// by a zero", "fmod of floats", "div of floats", "float functions",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_integers(name):
    function = INTEGERS[name]

    def call(q, key):
        return attend(
            q,
            lambda s, b, h, i, j: s + function(i - 7, j - 11),
            lambda b, h, i, j: j % 3 == key[0],
        )[1]

    made = compiled(call)
    q = torch.randn(1, 1, N, 4)
    for key in (torch.tensor([0], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)):
        assert torch.equal(made(q, key), call(q, key))


# Of a number that the functions capture, then a vector and 0.7 as tensors.
MASKS = {
    "//": lambda w, t, c: lambda b, h, i, j: (j // w) % 2.0 == 0,
    "%": lambda w, t, c: lambda b, h, i, j: ((i - j) * 0.3) % w < 0.4,
    "% of a number": lambda w, t, c: lambda b, h, i, j: (w % (j + 1)) < 0.71,
    "of integers": lambda w, t, c: lambda b, h, i, j: (i // int(w * 3)) == (j // int(w * 3)),
    "of a tensor": lambda w, t, c: lambda b, h, i, j: (t[j] // c) % 2 == 0,
}
SCORES = {
    "//": lambda w, t, c: lambda s, b, h, i, j: s + (i - j) // w,
    "%": lambda w, t, c: lambda s, b, h, i, j: s + (i * 0.3) % w - (t[j] % w),
    "by a tensor": lambda w, t, c: lambda s, b, h, i, j: s + (i - j) % c + (i * 0.3) // c,
    "of a tensor": lambda w, t, c: lambda s, b, h, i, j: (
        s + c % (j + 1) + c // (j + 1) - c / (j + 1)
    ),
    "by elements": lambda w, t, c: lambda s, b, h, i, j: (
        s + t[i] % (t[j] ** 2 + w * w) + i // (t[j] + 9)
    ),
    "div": lambda w, t, c: lambda s, b, h, i, j: (
        s + torch.div(i - j, w, rounding_mode="floor") + torch.div(i - j, w, rounding_mode="trunc")
    ),
    "fmod": lambda w, t, c: lambda s, b, h, i, j: s + torch.fmod(i - j, w) + torch.remainder(i, w),
    "powers": lambda w, t, c: lambda s, b, h, i, j: s + abs(w) ** ((i - j) / 24) + 2 ** (j & 3),
    "shifts": lambda w, t, c: lambda s, b, h, i, j: s + (ONE << (j & 3)) + (ONE >> (j & 1)),
    "comparisons": lambda w, t, c: lambda s, b, h, i, j: (
        s + (c > j) * 2 + (c <= t[i]) * 3 + (c == t[j]) * 4 + (c != i) * 5 + (c < j) - (c >= i)
    ),
}  # fmt: skip
ONE = torch.tensor(1, dtype=torch.int32)


@pytest.mark.parametrize(
    ("kind", "name", "dynamic"),
    [("mask", name, None) for name in MASKS]
    + [("score", name, None) for name in SCORES]
    + [("mask", "%", True), ("score", "div", True)],
)
def test_numbers_that_change(kind, name, dynamic):
    """From the second value on PyTorch takes a number for one that may change."""
    vector, factor = torch.randn(N), torch.tensor(0.7)

    def call(q, w):
        return attend(q, **{kind: (MASKS if kind == "mask" else SCORES)[name](w, vector, factor)})

    made = compiled(call, dynamic)
    q = torch.randn(1, 2, N, 4)
    found = []
    for w in (0.7, -1.3):
        out = call(q, w)
        for a, b in zip(made(q, w), out, strict=True):
            assert torch.equal(a, b)
        found.append(out[1])
    has_number = "tensor" not in name and name not in ("shifts", "comparisons")
    assert torch.equal(*found) != has_number


ASKED = VERSION >= (2, 12)  # attn makes torch.compile ask symbols; before, PyTorch itself refuses
REFUSED = "the truth of|element comparison produced" if ASKED else "Expr|comparison|refuse"


def test_comparisons_with_a_tensor_that_changes():
    """A tensor is read at each call."""

    def call(q, w):
        w = torch.tensor(w)
        return attend(q, mask=lambda b, h, i, j: (i - j == w) | (j == 0))[1]

    made = compiled(call)
    q = torch.randn(1, 2, N, 4)
    for w in (3, 7, 8):
        assert torch.equal(made(q, w), call(q, w))


def same(a, b):
    return a == b


def same_place(i, j, w):
    return same(i - j, w)


class Places:
    def near(self, a, b):
        return self.same(a, b)

    def same(self, a, b):
        return a == b


places = Places()
table = {"same": same}


def with_local_function(w):
    def close(a, b):
        return a == b

    return lambda s, b, h, i, j: s + 10.0 * close(i - j, w)


def of_argument(holds):
    return lambda s, b, h, i, j: s + 10.0 * holds(i - j)


def positional(function):
    return lambda s, b, h, i, j: function(s, b, h, i, j)


COMPARISONS = {
    "loop": lambda w: lambda s, b, h, i, j: s + sum(10.0 * (i - j == x) for x in (1, w)),
    "called twice": lambda w: (
        lambda s, b, h, i, j: s + 10.0 * same(i - j, 1) + 10.0 * same(i - j, w)
    ),
    "argument": lambda w: of_argument(lambda a: a == w),
    "decorated": lambda w: positional(lambda s, b, h, i, j: s + 10.0 * (i - j != w)),
    "==": lambda w: lambda s, b, h, i, j: s + 10.0 * (i - j == w) + 3.0 * (w == j),
    "!=": lambda w: lambda s, b, h, i, j: s + 10.0 * (i - j != w) + 3.0 * (w != j),
    "order": lambda w: (
        lambda s, b, h, i, j: s + 1.0 * (i < w) + 2.0 * (w <= j) + 4.0 * (w > j) + 8.0 * (i >= w)
    ),
    "of a float": lambda w: lambda s, b, h, i, j: s + 10.0 * (0.5 * i == w / 2),
    "~": lambda w: lambda s, b, h, i, j: torch.where(~(i - j == w), s, 0.5),
    "operator": lambda w: lambda s, b, h, i, j: s + 10.0 * operator.eq(w, i - j),
    "called": lambda w: lambda s, b, h, i, j: s + 10.0 * same(i - j, w),
    "called by what is called": lambda w: lambda s, b, h, i, j: s + 10.0 * same_place(i, j, w),
    "of a module": lambda w: lambda s, b, h, i, j: s + 10.0 * torch_problems.same(i - j, w),
    "method": lambda w: lambda s, b, h, i, j: s + 10.0 * places.near(i - j, w),
    "of a table": lambda w: lambda s, b, h, i, j: s + 10.0 * table["same"](i - j, w),
    "local": with_local_function,
    "mask": lambda w: lambda b, h, i, j: (i - j == w) | (j == 0) & (i != w),
    "mask of a window": lambda w: lambda b, h, i, j: (i - j < w) & (j - i < w),
    "mask with a flag": lambda w: lambda b, h, i, j: (i - j != w) & (KIND == "left"),
}
KIND = "left"


@pytest.mark.skipif(not ASKED, reason="PyTorch refuses them")
@pytest.mark.parametrize(
    ("name", "profiled"),
    [(name, False) for name in COMPARISONS] + [("loop", True), ("mask", True)],
)
def test_comparisons_with_a_number_that_changes(name, profiled):
    """PyTorch makes False of ==, and refuses <. A profiler of Python hides nothing."""

    def call(q, w):
        return attend(q, **{"mask" if name.startswith("mask") else "score": COMPARISONS[name](w)})[
            1
        ]

    made = compiled(call, dynamic=True)
    q = torch.randn(1, 2, N, 4)

    def profiler(frame, event, argument):
        return None

    before = sys.getprofile()
    sys.setprofile(profiler if profiled else before)
    try:
        found = [made(q, w) for w in (3, 7, 8)]
        assert sys.getprofile() is (profiler if profiled else before)
    finally:
        sys.setprofile(before)
    for w, lse in zip((3, 7, 8), found, strict=True):
        assert torch.equal(lse, call(q, w))
    assert not torch.equal(*found[:2])


@pytest.mark.parametrize(
    "function",
    [
        lambda w: lambda s, b, h, i, j: s + 1.0 if i == w else s,
        lambda w: lambda s, b, h, i, j: s + 10.0 * ((w, 1) == (i, 1)),
        lambda w: lambda s, b, h, i, j: s + 10.0 * ([w] == [i]),
    ],
    ids=["if", "tuple", "list"],
)
def test_the_truth_of_a_comparison_is_refused(function):
    """In a list and a tuple PyTorch compares in another place, and refuses by itself."""

    def call(q, w):
        return attend(q, function(w))[1]

    made = compiled(call, dynamic=True)
    q = torch.randn(1, 2, N, 4)
    with pytest.raises(attn.TraceError, match="the truth of"):
        call(q, 3)
    with pytest.raises(Exception, match=REFUSED):
        made(q, 7)


@pytest.mark.skipif(not ASKED, reason="PyTorch refuses comparisons itself")
@pytest.mark.parametrize("what", ["_change_table", "_change_numbers"])
def test_functions_are_refused_where_symbols_are_not_asked(what, tmp_path):
    """As where a later PyTorch compares elsewhere. In a new process."""
    if what == "_change_numbers" and VERSION == (2, 12):
        pytest.skip("PyTorch 2.12 has the table alone")
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import torch, attn.torch
from attn.torch import comparisons
comparisons.{what} = lambda: None
q = torch.randn(1, 4, 2, 4)
def call(q, w):
    return attn.torch.attention(q, q, q, score=lambda s: s.score + 10.0 * (s.query == w))
try:
    torch.compile(call, backend="eager", fullgraph=True, dynamic=True)(q, 3)
except Exception as error:
    print(error)
"""
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)], capture_output=True, text=True, check=True
    )
    assert "a function as score within torch.compile" in said.stdout, said.stdout + said.stderr


@pytest.mark.skipif(VERSION < (2, 12), reason="PyTorch refuses flags")
def test_comparisons_without_symbols():
    kind = "left"

    def call(q):
        return attend(q, mask=lambda b, h, i, j: (i >= j if kind == "left" else j >= i) & True)[1]

    q = torch.randn(1, 2, N, 4)
    assert torch.equal(compiled(call)(q), call(q))


BY_NAME = {
    "eq": lambda w: lambda s, b, h, i, j: s + 10.0 * (i - j).eq(w),
    "torch.eq": lambda w: lambda s, b, h, i, j: s + (torch.eq(i, w) + torch.eq(j, w)),
    "ne": lambda w: lambda s, b, h, i, j: s + (1 - (i - j).ne(w)) * 5,
    "torch.ne": lambda w: lambda s, b, h, i, j: torch.where(~torch.ne(i - j, w), s, 0.5),
    "logical_not": lambda w: (
        lambda s, b, h, i, j: s + torch.logical_not(i.eq(w)) + 2 * j.eq(w).bitwise_not()
    ),
    "order": lambda w: (
        lambda s, b, h, i, j: (
            s + (i - j).lt(w) + 2 * torch.le(i, w) + 4 * j.gt(w) + 8 * torch.ge(j - i, w)
        )
    ),
    "eq of floats": lambda w: lambda s, b, h, i, j: s + 10.0 * (0.5 * i).eq(w / 2),
    "eq of masks": lambda w: lambda b, h, i, j: ~(i - j).eq(w),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_comparisons_by_name(name):
    """For these PyTorch asks attn, which it does not for the operators."""
    kind = "mask" if name == "eq of masks" else "score"

    def call(q, w):
        return attend(q, **{kind: BY_NAME[name](w)})[1]

    made = compiled(call)
    q = torch.randn(1, 2, N, 4)
    if name in ("torch.ne", "eq of masks") and VERSION < (2, 14):
        with pytest.raises(Exception, match="builtin operator `invert`"):
            made(q, 3)
        return
    found = [made(q, w) for w in (3, 7, 8)]
    for w, lse in zip((3, 7, 8), found, strict=True):
        assert torch.equal(lse, call(q, w))
    assert not torch.equal(*found[:2])


def decorated(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


@decorated
def banded(s):
    return (s.query - s.key).abs() < 3


@pytest.mark.parametrize("made", ["outside", "within"])
def test_decorated_functions(made):
    """Outside of what is compiled, or within."""

    def call(q):
        @decorated
        def inner(s):
            return (s.query - s.key).abs() < 3

        return attn.torch.attention(q, q, q, mask=inner if made == "within" else banded)

    q = torch.randn(1, N, 2, 4)
    if made == "within" and VERSION < (2, 12):  # which has no __wrapped__ there
        with pytest.raises(Exception, match="bind arguments|too many positional arguments"):
            compiled(call)(q)
        return
    out = compiled(call)(q)
    assert torch.equal(out, call(q))
    assert torch.equal(out, attn.torch.attention(q, q, q, mask="abs(query - key) < 3"))


def test_gradients_of_remainders():
    vector, divisors = leaf(N), leaf(N)

    def call(q, vector, divisors):
        out, lse = attend(
            q, lambda s, b, h, i, j: s + vector[i] % divisors[j] + vector[j] // divisors[i]
        )
        return out.sum() + lse.square().sum()

    tensors = [leaf(1, 2, N, 4), vector, divisors]
    found, want = (
        torch.autograd.grad(f(*tensors), tensors)
        for f in (compiled(call, backend="aot_eager"), call)
    )
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_one_tensor_in_several_places(count):
    """Dynamo refuses a tensor that an autograd.Function is given twice."""
    tensors = [leaf(1, N, 2, 8) for _ in range(count)]

    def call(*tensors):
        x, y = tensors[0], tensors[-1]
        return attn.torch.attention(
            x, y, y, score=lambda s, b, h, i, j: s + y[0, i, h, 0] * x[0, j, h, 1]
        )

    made = compiled(call, backend="aot_eager")
    out = call(*tensors)
    assert torch.equal(made(*tensors), out)
    d_out = torch.randn_like(out)
    found, want = (torch.autograd.grad(f(*tensors), tensors, d_out) for f in (made, call))
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# Of a vector and a number, both tensors that a module holds.
EXPORTED = {
    "index": lambda t, z: lambda b, h, i, j: t[i] == t[j],
    "where": lambda t, z: lambda b, h, i, j: torch.where(i > j, t[i], t[j]) > 0,
    "and": lambda t, z: lambda b, h, i, j: (z > 0) & (i >= j),
    "or": lambda t, z: lambda b, h, i, j: (z < 0) | (i >= j),
    "xor": lambda t, z: lambda b, h, i, j: (z ^ i) > j,
    "+": lambda t, z: lambda b, h, i, j: z + i > j,
    "-": lambda t, z: lambda b, h, i, j: z - i < j,
    "*": lambda t, z: lambda b, h, i, j: z * i >= j,
    "/": lambda t, z: lambda b, h, i, j: 20 * z / (i + 1) > j,
    "//": lambda t, z: lambda b, h, i, j: 20 * z // (i + 1) > j,
    "%": lambda t, z: lambda b, h, i, j: z % (i + 1) <= j,
    "<<": lambda t, z: lambda b, h, i, j: (z << (i & 3)) > j,
    ">>": lambda t, z: lambda b, h, i, j: (20 * z >> (i & 7)) > j,
    "order": lambda t, z: lambda b, h, i, j: z < j + 3,
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", EXPORTED)
def test_export(name, strict):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(N, dtype=torch.int32) // 5)
            self.register_buffer("number", torch.tensor(3, dtype=torch.int32))

        def forward(self, q):
            return attend(q, mask=EXPORTED[name](self.table, self.number))[0]

    torch._dynamo.reset()
    layer, q = Layer(), torch.randn(1, 1, N, 4)
    assert not torch.equal(layer(q), attend(q)[0])
    made = torch.export.export(layer, (q,), strict=strict).module()
    assert torch.equal(made(q), layer(q))
