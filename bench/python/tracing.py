"""What a mask or score costs the host before anything attends: its trace, the trace found again, and the plan.

  python bench/python/tracing.py [--repeat 200] [--json FILE]

A trace is made once for each function and kept. "first" traces a function that is not known, a new one each time, made
ahead of the timed loop; "again" asks for the trace of a known one. attn.plan plans anew each time. A call keeps the
plans of problems it has met: one of a new text reads and plans it, and what finding a plan takes is the difference of
the last two rows. Each number is the least of the repeats: other work on the machine only adds.
"""

import argparse
import gc
import time

import measured
import numpy as np

import attn
from attn import _attn
from attn.options import make_options
from attn.trace.tracer import trace

IDS = np.zeros(64, np.int32)


def causal():
    return lambda b, h, q, k: q >= k


def window():
    return lambda b, h, q, k: (q >= k) & (q - k < 1024)


def window_of_a_captured_number(width=1024):
    return lambda b, h, q, k: (q >= k) & (q - k < width)


def documents():
    return lambda b, h, q, k: (IDS[q] == IDS[k]) & (q >= k)


def softcap():
    return lambda s, b, h, q, k: 30 * (s / 30).tanh()


FUNCTIONS = {
    "one comparison": causal,
    "two comparisons": window,
    "two, of a captured number": window_of_a_captured_number,
    "two, that read an array": documents,
    "a softcap": softcap,
}


def first(make, repeat, number=20):
    """Least mean of tracing functions that are new, in microseconds."""
    least = float("inf")
    for _ in range(repeat):
        functions = [make() for _ in range(number)]
        gc.disable()  # the collector's time is of whoever made the garbage
        start = time.perf_counter()
        for function in functions:
            trace(function)
        least = min(least, time.perf_counter() - start)
        gc.enable()
    return 1e6 * least / number


def again(make, repeat):
    function = make()
    trace(function)
    return measured.microseconds(lambda: trace(function), 200, repeat)


def plans(repeat):
    """Of one query and key, so that next to nothing is computed."""
    x = np.ones((1, 1, 1, 8), np.float32)
    text, mask = iter(range(1 << 30)), window()
    made = make_options(causal=True)
    plan = _attn.plan(made, x, x, x, False)
    calls = {
        "attn.plan": lambda: attn.plan(x, x, x, causal=True),
        "call, of a new text": lambda: attn.attention(x, x, x, mask=f"key <= query + {next(text)}"),
        "call, of a known text": lambda: attn.attention(x, x, x, mask="key <= query + 1"),
        "call, of a known function": lambda: attn.attention(x, x, x, mask=mask),
        "the module's call, plan found": lambda: _attn.forward(made, x, x, x, None, False),
        "the module's call, plan given": lambda: _attn.forward(made, x, x, x, None, False, plan),
    }
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(10):  # in turns, since differences are read
        for name, call in calls.items():
            least[name] = min(least[name], measured.microseconds(call, 100, max(1, repeat // 10)))
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {
        "trace_us": {
            name: {"first": first(make, options.repeat), "again": again(make, options.repeat)}
            for name, make in FUNCTIONS.items()
        },
        "plan_us": plans(options.repeat),
    }
    print(f"{'us':30} {'first':>8} {'again':>8}")
    for name, row in results["trace_us"].items():
        print(f"{name:30} {row['first']:8.2f} {row['again']:8.2f}")
    print()
    for name, value in results["plan_us"].items():
        print(f"{name:30} {value:8.2f}")
    measured.save(options.json, results)


if __name__ == "__main__":
    main()
