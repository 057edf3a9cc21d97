"""What attn.torch counts of a function's text within torch.compile."""

from __future__ import annotations

from functools import partial

import oracle
from attn.trace.equalities import count_equalities


def same(a, b):
    return a == b


def other(a, b):
    return same(a, b) | (a != b)


def again(n):
    return n == 0 or again(n - 1)


def bound(function):
    return lambda *a: function(*a)


def local(a):
    def close(b):
        return a == b

    return lambda b: close(b)


bound_same = bound(same)


def counted(function):
    return count_equalities(function.__code__)


def test_own_text_and_functions_made():
    assert counted(lambda a, b: (a == b) + (a != b) + (a < b)) == 2
    assert counted(lambda a: [x == 1 for x in a]) == 1
    assert counted(lambda a: lambda b: a == b) == 1
    assert counted(lambda a, b: a < b) == 0


def test_functions_called():
    assert counted(lambda a, b: same(a, b)) == 1
    assert counted(lambda a, b: same(a, b) + same(b, a)) == 1  # each once
    assert counted(lambda a, b: other(a, b)) == 2
    assert counted(again) == 1
    assert counted(lambda a, b: bound_same(a, b)) == 1
    assert counted(local(3)) == 1
    assert counted(local) == 1
    assert counted(lambda a: a.same(a) + a.other) == 0  # attributes of what is no module


def test_code_of_which_no_function_is_there():
    """As torch.compile has it of a function that it sees made."""

    def around(a):
        def near(b):
            return a == b

        return lambda b: near(b) + same(a, b)

    code = next(c for c in around.__code__.co_consts if getattr(c, "co_name", "") == "<lambda>")
    assert count_equalities(code) == 2


def test_other_modules(monkeypatch):
    monkeypatch.setattr(oracle, "same", same, raising=False)
    assert counted(lambda a, b: oracle.same(a, b)) == 1
    monkeypatch.setattr(same, "__module__", "torch.nn")
    assert counted(lambda a, b: oracle.same(a, b)) == 0


class Rule:
    def __init__(self, inner=None):
        self.inner = inner
        self.held = same

    def seen(self, a, b):
        return self.by_name(a, b)

    def by_name(self, a, b):
        return (a == b) | (a != b)

    @property
    def width(self):
        return 1 if self.inner == 3 else 2

    @staticmethod
    def fixed(a, b):
        return a == b

    def __call__(self, a):
        return a == 1


rule, nested = Rule(), Rule(Rule())
table = {"same": same, "less": lambda a, b: a < b}


def test_methods_and_attributes_of_objects():
    assert counted(lambda a, b: rule.seen(a, b)) == 3  # with __call__, which may be what is called
    assert counted(lambda a, b: rule.held(a, b)) == 2
    assert counted(lambda a, b: rule.width + a) == 2
    assert counted(lambda a, b: rule.fixed(a, b)) == 2
    assert counted(lambda a, b: nested.inner.seen(a, b)) == 3
    assert counted(lambda a: a.seen(a)) == 0  # what a is, nobody knows
    method = rule.by_name
    assert counted(lambda a, b: method(a, b)) == 2


def test_functions_from_a_table():
    assert counted(lambda a, b: table["same"](a, b)) == 1
    assert counted(lambda a, b: table["less"](a, b)) == 1  # which of them, the text does not say
    several = [partial(other, 1)]
    assert counted(lambda b: several[0](b)) == 2


def test_what_is_no_function_is_passed_over():
    numbers = list(range(2000))
    assert counted(lambda a, b: numbers[a] + len(table) + str(b).count("x")) == 1
