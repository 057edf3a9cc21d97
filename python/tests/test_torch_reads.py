"""Which traces of functions that capture tensors are kept, and which hold for one moment."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import attn.torch  # noqa: E402
from attn.expression import finish  # noqa: E402
from attn.trace import trace  # noqa: E402

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


def counted(function, table, ids):
    """The function as a score, and the list that grows by one at each trace."""
    traces = []

    def score(s, b, h, q, k):
        note()
        return s + function(b, h, q, k, table, ids)

    # In no closure: a list may change unseen, so that the function would be traced again for it.
    note.traces = traces
    return score, traces


def note():
    note.traces.append(1)


note.__module__ = "attn.tests"  # as a function of attn it is taken to change nothing


def attended(score):
    """LSE, which shows a score that is the same for all keys too."""
    q = torch.ones(2, 6, 1, 8) / 8
    return attn.torch.attention(q, q, q, score=score, return_lse=True)[1]


@pytest.mark.parametrize("name", KEPT)
def test_traced_once(name):
    table, ids = TABLE.clone(), IDS.repeat(1, 2)
    score, traces = counted(KEPT[name], table, ids)
    first = attended(score)
    for _ in range(3):
        assert torch.equal(attended(score), first)
    assert len(traces) == 1
    table.mul_(-0.5)
    assert not torch.equal(attended(score), first)
    assert len(traces) == 1


@pytest.mark.parametrize("name", READ)
def test_traced_at_each_call(name):
    table, ids = TABLE.clone(), IDS.repeat(1, 2)
    score, traces = counted(READ[name], table, ids)
    attended(score)
    table.mul_(3)
    found = attended(score)
    assert len(traces) == 2
    again, _ = counted(READ[name], table, ids)
    assert torch.equal(found, attended(again))


def test_a_float_of_an_expression_is_no_read():
    """Each such function was traced at each call, 12 us instead of 0.3."""
    table = torch.ones(4)

    def mask(b, h, q, k):
        return table[(q.float() / 2).int()] > 0

    first = trace(mask)
    assert trace(mask) is first
    assert finish(first)[0] == "t0[to_int(to_float(query) / 2)] > 0"
