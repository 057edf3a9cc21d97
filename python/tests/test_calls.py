"""References, memory, threads."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import attn

RANDOM = np.random.default_rng(11)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_references_are_given_back():
    q, k, v, bias = normal(1, 8, 2, 16), normal(1, 8, 2, 16), normal(1, 8, 2, 16), normal(8, 8)
    ids = np.zeros((1, 8), np.int32)
    mask = attn.Formula("ids[batch, query] == ids[batch, key]", ids=ids)
    arrays = (q, k, v, bias, ids)
    before = [sys.getrefcount(x) for x in arrays]
    for _ in range(100):
        out, lse = attn.attention(q, k, v, bias=bias, mask=mask, return_lse=True)
        attn.attention_backward(out, q, k, v, out, lse, bias=bias, mask=mask)
        with pytest.raises(attn.Error):
            attn.attention(q, k, v, bias=bias, mask=mask, seqused_k=ids)
    assert [sys.getrefcount(x) for x in arrays] == before
    assert sys.getrefcount(out) == 2


def test_memory_stays_flat():
    """10^5 calls with results of 4 KB, and 10^4 refusals; a leak of 100 bytes a call would show."""
    q, k, v = normal(1, 16, 4, 16), normal(1, 16, 4, 16), normal(1, 16, 4, 16)
    bias = normal(16, 16)

    def calls(count):
        for i in range(count):
            attn.attention(q, k, v, bias=bias, mask="key <= query", return_lse=True)
            if i % 10 == 0:
                with pytest.raises(attn.Error):
                    attn.attention(q, k, v, layout="x")

    calls(5_000)
    before = resident_bytes()
    calls(100_000)
    assert resident_bytes() - before < 8 << 20


def test_many_problems_are_forgotten():
    """Texts of problems are remembered, but not without end."""
    q = normal(1, 2, 1, 4)
    for i in range(5_000):
        attn.attention(q, q, q, mask=f"key <= query + {i}")
    before = resident_bytes()
    for i in range(5_000, 20_000):
        attn.attention(q, q, q, mask=f"key <= query + {i}")
    assert resident_bytes() - before < 16 << 20


def test_many_threads():
    """Calls of different problems from 8 threads at once give the bits of calls one by one."""
    problems = [
        (normal(1, n, 2, 32), normal(1, n, 2, 32), normal(1, n, 2, 32), {"window": (n // 3, 0)})
        for n in (17, 64, 130, 200)
    ]
    alone = [attn.attention(q, k, v, **options) for q, k, v, options in problems]

    def work(i):
        q, k, v, options = problems[i % 4]
        return np.array_equal(attn.attention(q, k, v, **options), alone[i % 4])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(800)))


FIRST_CALLS = """
import faulthandler, threading
import numpy as np
import attn

faulthandler.dump_traceback_later(300, exit=True)  # ends calls that wait for ever
looks, called = threading.Event(), threading.Event()

class Slow(type(np)):
    def __getattribute__(self, name):
        if name == "empty" and not looks.is_set():
            looks.set()
            called.wait()
        return super().__getattribute__(name)

x = np.ones((1, 2, 1, 4), np.float32)
np.__class__ = Slow
first = threading.Thread(target=lambda: attn.attention(x, x, x))
first.start()
looks.wait()
attn.attention(x, x, x)
called.set()
first.join()
"""


def test_a_first_call_waits_for_no_other():
    """While one looks up numpy.empty, another thread calls as well."""
    subprocess.run([sys.executable, "-c", FIRST_CALLS], check=True)


def test_other_threads_run_meanwhile():
    """The interpreter is free while C++ works: a thread counts on during a call.

    One that waits for the interpreter counts once at most, as the call begins or ends. A busy
    machine may leave the thread no processor during one call, but not during all.
    """
    q = normal(1, 3000, 8, 64)
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.0005)

    def counts_during_a_call():
        start = counted[0]
        attn.attention(q, q, q, backend="cpu", algorithm="standard", threads=1)
        return counted[0] - start

    thread = threading.Thread(target=count)
    thread.start()
    try:
        assert any(counts_during_a_call() >= 3 for _ in range(50))
    finally:
        done.set()
        thread.join()


def test_dropout_mask_is_that_of_the_call():
    q = np.zeros((2, 9, 3, 1), np.float32)
    k = np.zeros((2, 40, 3, 1), np.float32)
    v = np.broadcast_to(np.eye(40, dtype=np.float32)[None, :, None], (2, 40, 3, 40))
    p = attn.attention(q, k, v, dropout=0.4, rng=(7, 11)).transpose(0, 2, 1, 3)
    kept = np.full((2, 3, 9, 40), True)
    assert attn.dropout_mask(kept, 0.4, (7, 11)) is kept
    assert np.array_equal(kept, p > 0)
    assert 0.5 < kept.mean() < 0.7
    kept.flags.writeable = False
    with pytest.raises(attn.InvalidArgument, match="kept is a read-only ndarray"):
        attn.dropout_mask(kept, 0.4, 7)


def test_rng_in_an_array_is_read_by_each_call():
    generator = np.random.default_rng(8)
    q, k, v, d_out = (generator.standard_normal((2, 9, 3, 4), np.float32) for _ in range(4))
    state = np.empty(2, np.int64)
    options = {"dropout": 0.4, "causal": True}
    plan = attn.plan(q, k, v, backward=True, rng=state, **options)
    for numbers in ((7, 11), (8, 11), (2**64 - 3, 2**63 + 1)):
        state[:] = np.array(numbers, np.uint64).view(np.int64)
        out, lse = attn.attention(q, k, v, rng=numbers, return_lse=True, **options)
        wanted = attn.attention_backward(d_out, q, k, v, out, lse, rng=numbers, **options)
        for call, backward, kept in (
            (attn.attention, attn.attention_backward, {"rng": state, **options}),
            (plan.forward, plan.backward, {}),
        ):
            assert np.array_equal(call(q, k, v, **kept), out)
            found = backward(d_out, q, k, v, out, lse, **kept)
            assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
        masks = [
            attn.dropout_mask(np.full((2, 3, 9, 9), fill), 0.4, rng)
            for fill, rng in ((True, numbers), (False, state))
        ]
        assert np.array_equal(*masks)


def test_the_command():
    """Runs where pip installed it; elsewhere says so in a sentence."""
    package = Path(attn.__file__).parent
    command = [sys.executable, "-m", "attn", "info"]
    path = os.pathsep.join(filter(None, (str(package.parent), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if hasattr(attn._attn, "command"):
        assert done.stdout.startswith("version")
        return
    assert done.returncode == 3
    assert done.stderr.startswith("attn: there is no command in ")
    assert done.stderr.count("\n") == 1


def test_import_is_light():
    """No library of arrays comes with `import attn`."""
    code = "import sys, attn; print({'numpy', 'torch', 'jax', 'typing'} & set(sys.modules))"
    run = [sys.executable, "-S", "-c", code]
    path = os.pathsep.join(sys.path)
    found = subprocess.run(
        run, capture_output=True, text=True, env={"PYTHONPATH": path}, check=True
    )
    assert found.stdout.strip() == "set()"
