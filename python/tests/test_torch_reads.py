"""Which traces of functions that capture tensors are kept, and which hold for one moment."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import attn.torch  # noqa: E402
from attn.trace.expression import finish  # noqa: E402
from attn.trace.tracer import call, trace  # noqa: E402

WIDTH, PARTS = 5, 4
TABLE = torch.arange(1.0, 7.0)
IDS = torch.tensor([[0, 0, 1], [1, 2, 2]], dtype=torch.int32)

# Functions of b, h, q, k, the table and the matrix of ids that read no value of these.
KEPT = {
    "int": lambda b, h, q, k, t, ids: t[(q / 3).int()],
    "long": lambda b, h, q, k, t, ids: t[(q * 0.5).long()],
    "float": lambda b, h, q, k, t, ids: t[q] * ids[b, k].float(),
    "bool": lambda b, h, q, k, t, ids: attn.where(ids[b, k].bool(), t[q], 0.0),
    "two dimensions": lambda b, h, q, k, t, ids: t[ids[b, k]],
    "a branch by a number": lambda b, h, q, k, t, ids: t[q] if WIDTH > 3 else t[k],
    "a loop": lambda b, h, q, k, t, ids: sum(t[(q >> i) & 1] for i in range(PARTS)),
    "a number of Python": lambda b, h, q, k, t, ids: t[q] * math.log(int(WIDTH) / 2),
    "sizes": lambda b, h, q, k, t, ids: t[q] * (len(t) + t.shape[0] + t.size(0) + ids.dim()),
    "torch functions": lambda b, h, q, k, t, ids: torch.where(q > k, torch.tanh(t[q]), 0),
    "a type": lambda b, h, q, k, t, ids: q.to(t.dtype) * t[k],
}
# And that read some, or make a tensor of them.
READ = {
    "item": lambda b, h, q, k, t, ids: t[q] * t[0].item(),
    "int": lambda b, h, q, k, t, ids: t[q] * int(t[0]),
    "float": lambda b, h, q, k, t, ids: t[q] * float(t[0]),
    "tolist": lambda b, h, q, k, t, ids: t[q] * t.tolist()[0],
    "a root": lambda b, h, q, k, t, ids: t[q] * math.sqrt(t[0]),
    "the least": lambda b, h, q, k, t, ids: t[q] * min(100, float(t[0])),
    "a branch": lambda b, h, q, k, t, ids: t[q] * (2 if t[0] > 2 else 3),
    "not": lambda b, h, q, k, t, ids: t[q] * (not (t[0] - 1)),
    "an index": lambda b, h, q, k, t, ids: t[q] * (1, 2, 3, 5)[t[0].int()],
    "in": lambda b, h, q, k, t, ids: t[q] * (1.0 in t),
    "equal": lambda b, h, q, k, t, ids: t[q] * torch.equal(t, TABLE),
    "a text": lambda b, h, q, k, t, ids: t[q] * len(f"{10 ** t[0]:.0f}"),
    "NumPy's": lambda b, h, q, k, t, ids: t[q] * t.numpy()[0].item(),
    "another tensor": lambda b, h, q, k, t, ids: (t * 2)[q],
    "another type": lambda b, h, q, k, t, ids: t[q] * t.int()[k],
    "a sum": lambda b, h, q, k, t, ids: t[q] * t.sum(),
}


@pytest.fixture
def traces(monkeypatch):
    """A list that grows by one at each trace."""
    made = []

    def counting(function):
        made.append(function)
        return call(function)

    monkeypatch.setattr("attn.trace.tracer.call", counting)
    return made


def score_of(function, table, ids):
    return lambda s, b, h, q, k: s + function(b, h, q, k, table, ids)


def attended(score):
    """LSE, which shows a score that is the same for all keys too."""
    q = torch.ones(2, 6, 1, 8) / 8
    return attn.torch.attention(q, q, q, score=score, return_lse=True)[1]


@pytest.mark.parametrize("name", KEPT)
def test_traced_once(name, traces):
    table, ids = TABLE.clone(), IDS.repeat(1, 2)
    score = score_of(KEPT[name], table, ids)
    first = attended(score)
    for _ in range(3):
        assert torch.equal(attended(score), first)
    assert len(traces) == 1
    table.mul_(-0.5)
    assert not torch.equal(attended(score), first)
    assert len(traces) == 1


@pytest.mark.parametrize("name", READ)
def test_traced_at_each_call(name, traces):
    table, ids = TABLE.clone(), IDS.repeat(1, 2)
    score = score_of(READ[name], table, ids)
    attended(score)
    table.mul_(3)
    found = attended(score)
    assert len(traces) == 2
    assert torch.equal(found, attended(score_of(READ[name], table, ids)))


def width_of(function):
    """The number that the function compares the key with, `key < 7` or `key < 7 + ...`."""
    text = finish(trace(function))[0]
    return text.removeprefix("key < ").split(" ")[0]


def set_data(t):
    t.data = torch.zeros(7)


@pytest.mark.parametrize("change", [lambda t: t.resize_(7), set_data], ids=["resize_", "data"])
@pytest.mark.parametrize("read", [len, lambda t: t.shape[0], lambda t: t.size(0), torch.numel])
def test_another_size_of_the_same_tensor(change, read):
    t = torch.zeros(6)
    function = lambda s: s.key < read(t)  # noqa: E731
    assert width_of(function) == "6"
    change(t)
    assert width_of(function) == "7"


def test_another_type_of_the_same_tensor():
    t = torch.zeros(6, dtype=torch.int32)
    half = lambda s: t[s.key] / 2 > 1  # noqa: E731
    assert finish(trace(half))[0] == "to_float(_t0[key]) / 2 > 1"
    t.data = torch.zeros(6)
    assert finish(trace(half))[0] == "_t0[key] / 2 > 1"


def test_attributes_of_a_tensor():
    t = torch.zeros(6)
    by_name = lambda s: s.key < t.window  # noqa: E731
    for t.window in (5, 6):
        assert width_of(by_name) == str(t.window)
    plain = torch.zeros(6)
    trained = lambda s: s.key < (3 if plain.requires_grad else 5)  # noqa: E731
    assert width_of(trained) == "5"
    plain.requires_grad_()
    assert width_of(trained) == "3"


def test_a_number_that_wants_a_gradient():
    """A number of the CPU is read when a call is made, but not one that receives a gradient."""
    t = torch.tensor(3.0)
    function = lambda s, b, h, q, k: s * t  # noqa: E731
    trace(function)
    t.requires_grad_()
    assert finish(trace(function))[0] == "score * _t0[0]"


def test_bound_methods():
    t = torch.tensor(5)
    item = t.item
    function = lambda s: s.key < item()  # noqa: E731
    assert width_of(function) == "5"
    t.fill_(6)
    assert width_of(function) == "6"


def test_state_of_torch(monkeypatch):
    enabled = torch.is_grad_enabled
    by_module = lambda s: s.key < (3 if torch.is_grad_enabled() else 5)  # noqa: E731
    by_name = lambda s: s.key < (3 if enabled() else 5)  # noqa: E731
    by_type = lambda s: s.key < (3 if torch.get_default_dtype() == torch.float32 else 5)  # noqa: E731
    attribute = lambda s: s.key < torch.my_width  # noqa: E731
    assert (width_of(by_module), width_of(by_name), width_of(by_type)) == ("3", "3", "3")
    with torch.no_grad():
        assert (width_of(by_module), width_of(by_name)) == ("5", "5")
    try:
        torch.set_default_dtype(torch.float64)
        assert width_of(by_type) == "5"
    finally:
        torch.set_default_dtype(torch.float32)
    for width in (5, 6):
        monkeypatch.setattr(torch, "my_width", width, raising=False)
        assert width_of(attribute) == str(width)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s.key < torch.randint(0, 1 << 30, ()).item(),
        lambda s, draw=torch.randint: s.key < int(draw(0, 1 << 30, ())),
        lambda s: s.key < torch.initial_seed() % (1 << 30),
    ],
)
def test_random_numbers_of_torch(function):
    torch.manual_seed(1)
    first = width_of(function)
    torch.manual_seed(2)
    assert width_of(function) != first


def test_a_float_of_an_expression_is_no_read():
    """Each such function was traced at each call, 12 us instead of 0.3."""
    table = torch.ones(4)

    def mask(b, h, q, k):
        return table[(q.float() / 2).int()] > 0

    first = trace(mask)
    assert trace(mask) is first
    assert finish(first)[0] == "_t0[to_int(to_float(query) / 2)] > 0"


@pytest.mark.parametrize(
    "size",
    [
        lambda t: t.nonzero().shape[0],
        lambda t: len(t[t > 0]),
        lambda t: t.unique().numel(),
        lambda t: torch.ones(9)[: t[0]].size(0),
    ],
)
def test_shapes_that_follow_from_values(size):
    """The trace was kept as that of the first values."""
    t = torch.tensor([1, 0, 0, 0])

    def function(s):
        return s.key < size(t)

    first = width_of(function)
    t.copy_(torch.tensor([2, 3, 4, 5]))
    assert width_of(function) != first
