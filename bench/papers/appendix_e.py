"""Tables 9 to 21 of the FlashAttention paper (appendix E.6) on a CPU: run time and memory against the length, with peers. On a GPU: tables_gpu.py.

  python3 bench/papers/appendix_e.py --table 18 --attn build/attn --batch 1 --lengths 128,256,512,1024,2048
  python3 bench/papers/appendix_e.py --table 21 --attn build/attn --batch 1

One command a table. Rows: attn flash_attention_2, standard and block_sparse (`attn bench` compares each with fp64 before it is timed), and, where this
Python has torch, standard attention in PyTorch, eager (--compile: compiled too), and its scaled_dot_product_attention. A peer's O, dQ, dK and dV are
checked (cell_check.py) before it is timed: beside fp64, or, with dropout, whose bits are its own, by mean and variance; a wrong one has no time, and
the program ends with 1. Cells are ms (--statistic), or MB for table 21; "-" is what ran out of memory, was left out by --most-scores, or does not
exist. The paper's numbers stand below, with their machine."""
import argparse, ctypes, json, os, statistics, subprocess, sys, time

from paper import TABLES as PAPER

# table: (phase, mask, dropout); 21 is memory.
TABLES = {9: ("forward", 1, 1), 10: ("backward", 1, 1), 11: ("both", 1, 1), 12: ("forward", 1, 0), 13: ("backward", 1, 0),
          14: ("both", 1, 0), 15: ("forward", 0, 1), 16: ("backward", 0, 1), 17: ("both", 0, 1), 18: ("forward", 0, 0),
          19: ("backward", 0, 0), 20: ("both", 0, 0), 21: ("both", 0, 0)}
DROPOUT = 0.1

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--table", type=int, choices=sorted(TABLES), required=True)
arguments.add_argument("--attn", default="build/attn")
arguments.add_argument("--dtype", default="f32", choices=["f32", "bf16", "f16"])
arguments.add_argument("--batch", type=int, default=16)
arguments.add_argument("--heads", type=int, default=8)
arguments.add_argument("--d", type=int, default=64)
arguments.add_argument("--lengths", default="128,256,512,1024,2048,4096")
arguments.add_argument("--threads", type=int, default=2, help="of attn and of PyTorch")
arguments.add_argument("--seconds", type=float, default=0.3, help="of timing a cell; at least 3 calls")
arguments.add_argument("--statistic", default="median", choices=["median", "minimum"],
                       help="of the calls of a cell; the minimum is the better number on a machine that others use")
arguments.add_argument("--most-scores", type=float, default=6e8, help="batch x heads x n x n beyond which what keeps S is left out")
arguments.add_argument("--compile", action="store_true", help="standard attention by torch.compile too: a minute and more a cell on a CPU")
arguments.add_argument("--json", default="")
options = arguments.parse_args()
LENGTHS = [int(n) for n in options.lengths.split(",")]
PHASE, MASK, HAS_DROPOUT = TABLES[options.table]
MEMORY = options.table == 21
os.environ["OMP_NUM_THREADS"] = str(options.threads)
try:
    import torch
    import torch.nn.functional as F
    import cell_check
except ImportError:
    torch = None
    print("torch is not here: its rows are left out")


# --- attn ---
def descriptor(n, sparse=False):
    """The paper masks the padding at the end of a sequence: its lengths are N - 20 to N."""
    mask = f"_mask(key<{n - 10})" if MASK else ""
    butterfly = "_butterfly128" if sparse else ""
    dropout = f"_dropout{DROPOUT}" if HAS_DROPOUT else ""
    return f"b{options.batch}_n{n}_h{options.heads}_d{options.d}{mask}{butterfly}{dropout}_{options.dtype}"


def attn_phase(n, algorithm, phase):
    # The CPU has no backward pass of these orders; FlashAttention-2's skips what a mask leaves out.
    of_phase = "flash_attention_2" if phase == "backward" and algorithm == "block_sparse" else algorithm
    words = [options.attn, "bench", descriptor(n, algorithm == "block_sparse"), "--phase", phase, "--seconds", str(options.seconds), "--json", "-",
             "--threads", str(options.threads), "--algorithm", of_phase]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == 3:
        return None
    row = json.loads(done.stdout)["results"][0]
    if not row["correct"]:
        sys.exit(f"attn {algorithm}, n {n}, {phase}: wrong, so not timed")
    return row["peak_memory_bytes"] if MEMORY else row[f"seconds_{options.statistic}"]


def attn_cell(algorithm):
    def cell(n):
        if algorithm == "standard" and options.batch * options.heads * n * n > options.most_scores:
            return None
        parts = [attn_phase(n, algorithm, phase) for phase in (("forward", "backward") if PHASE == "both" else (PHASE,))]
        if None in parts:
            return None
        return max(parts) if MEMORY else sum(parts)
    return cell


# --- PyTorch ---
def peak_memory(call):
    """Growth of the resident set during a call, bytes."""
    ctypes.CDLL(None).malloc_trim(0)  # memory that glibc keeps for reuse would not grow
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    status = lambda key: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def seconds_of(call):
    call()
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < options.seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) if options.statistic == "median" else min(times)


def standard(q, k, v, mask, dropout):
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf"))
    return F.dropout(torch.softmax(s, dim=-1), dropout) @ v


def sdpa(q, k, v, mask, dropout):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def check(name, n, call, given):
    """call(): O, dQ, dK and dV, all [b, h, n, d] as the given q, k, v and dO are. Raises cell_check.Wrong."""
    hidden = (lambda rows: (torch.arange(n) >= n - 10)[None, :].expand(len(rows), n)) if MASK else None
    one = lambda tensors, at: [t[at].detach() for t in tensors]
    heads, runs = cell_check.some_heads(options.batch, options.heads, n), []
    while not runs or HAS_DROPOUT and len(runs) * n < 4096:  # rows that its mean and variance need; each call has other bits
        results = call()
        runs += [(one(results, at), one(given, at)) for at in heads]
    if HAS_DROPOUT:
        cell_check.dropped(f"{name}, n {n}", runs, DROPOUT, hidden)
        return
    for results, inputs in runs:
        cell_check.exact(f"{name}, n {n}", results, inputs, hidden, None, 4)


def torch_cell(name, attend, keeps_s):
    def cell(n):
        if keeps_s and options.batch * options.heads * n * n > options.most_scores:
            return None
        torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[options.dtype]
        q, k, v, d_o = (torch.randn(options.batch, options.heads, n, options.d, dtype=dtype) for _ in range(4))
        mask = (torch.arange(n) < n - 10)[None, None, None, :].expand(1, 1, n, n) if MASK else None
        for x in (q, k, v):
            x.requires_grad_()
        dropout = DROPOUT if HAS_DROPOUT else 0.0
        forward = lambda: attend(q, k, v, mask, dropout)
        both = lambda o: (o, *torch.autograd.grad(o, (q, k, v), d_o))
        try:
            check(name, n, lambda: both(forward()), (q, k, v, d_o))
        except cell_check.Wrong as error:
            WRONG.append(str(error))
            return None
        if MEMORY:
            both(forward())
            return peak_memory(lambda: both(forward()))
        if PHASE == "both":
            return seconds_of(lambda: both(forward()))
        if PHASE == "backward":
            o = forward()
            return seconds_of(lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True))
        for x in (q, k, v):
            x.requires_grad_(False)
        return seconds_of(forward)
    return cell


WRONG = []
rows = [("attn flash_attention_2", attn_cell("flash_attention_2")), ("attn standard", attn_cell("standard")),
        ("attn block_sparse, butterfly of 128", attn_cell("block_sparse"))]
if torch is not None:
    peers = {"PyTorch standard": (standard, True), "PyTorch SDPA": (sdpa, False)}
    if options.compile:
        peers["PyTorch standard, compiled"] = torch.compile(standard), True
    rows += [(name, torch_cell(name, *peer)) for name, peer in peers.items()]

what = "memory of a training step, MB" if MEMORY else f"{PHASE}, ms"
print(f"Table {options.table}: {what}; {'with' if MASK else 'no'} mask, {'with' if HAS_DROPOUT else 'no'} dropout; batch {options.batch}, "
      f"{options.heads} heads, d {options.d}, {options.dtype}, {options.threads} threads")
print("".rjust(36) + "".join(f"{n:>10}" for n in LENGTHS))
results = {}
unit = 1e-6 if MEMORY else 1e3
for name, cell in rows:
    values = []
    print(name.rjust(36), end="", flush=True)
    for n in LENGTHS:
        values.append(cell(n))
        print("-".rjust(10) if values[-1] is None else f"{values[-1] * unit:10.3g}", end="", flush=True)
    print()
    results[name] = values

ours = results["attn flash_attention_2"]
for name, values in results.items():
    ratios = [None if a is None or not b else a / b for a, b in zip(values, ours)]
    if name == "attn flash_attention_2" or not any(ratios):
        continue
    print(f"{name}: {' '.join('-' if r is None else f'{r:.2f}' for r in ratios)} times attn flash_attention_2"
          + ("" if min(r for r in ratios if r) >= 1 else "; below 1 at n " + ", ".join(str(n) for n, r in zip(LENGTHS, ratios) if r and r < 1)))
if options.table in PAPER:
    print("\nThe paper, A100 40 GB, batch 16, 8 heads, fp16, n 128 256 512 1k ... 64k:")
    for name, numbers in PAPER[options.table].items():
        print(f"  {name}: {numbers}")
if options.json:
    with open(options.json, "w") as file:
        json.dump({"command": " ".join(["python3", *sys.argv]), "table": options.table, "what": what, "lengths": LENGTHS,
                   "options": vars(options), "torch": torch.__version__ if torch is not None else None, "results": results,
                   "paper": PAPER.get(options.table)}, file, indent=1)
        file.write("\n")
if WRONG:
    sys.exit("wrong, so not timed:\n" + "\n".join(WRONG))
