"""attn::matmul and PyTorch's mm (MKL for f32, oneDNN for bf16) on the same CPU threads of one process, call by call.

  python3 bench/cpu/matmul_torch.py --library build/libattn.a --threads 1 --out bench/results/NAME-matmul-torch.json

--library: libattn.a built with -DCMAKE_POSITION_INDEPENDENT_CODE=ON, or a shared object of it and matmul_c.cpp; given several times, builds are compared with each other too. In each round the
builds and PyTorch run in an order of chance. Before a call all threads of the process come to rest: PyTorch's spin for some 5 ms after a call, on cores
that another library's workers wait for. A call that is not timed goes before each one that is and warms the caches for it. A ratio is the median over
the rounds of a round's ratios, PyTorch's time over attn's; ratio_of_minima is of the least times. Results are compared with fp64 at some elements
first. Shapes: M,N,K, with ",t" where B is column-major (the weight of torch.nn.Linear)."""
import argparse, ctypes, datetime, json, os, random, statistics, subprocess, sys, tempfile, threading, time

SHAPES = {  # what each stands for
    "512,512,512": "", "1024,1024,1024": "", "2048,2048,2048": "", "4096,4096,4096": "", "1000,1000,1000": "no multiple of a tile",
    "1024,2304,768": "GPT-2: Q, K, V", "1024,3072,768": "GPT-2: MLP", "1024,768,3072": "GPT-2: MLP", "512,4096,4096,t": "Llama 8B: Q",
    "512,14336,4096,t": "Llama 8B: MLP", "16,768,768": "few rows", "16,4096,4096,t": "few rows", "64,3072,3072,t": "few rows",
    "8,4096,4096": "few rows", "8,4096,4096,t": "few rows", "1,4096,4096": "a row", "1,4096,4096,t": "a row"}

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--library", action="append", required=True)
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--dtype", action="append", choices=("f32", "bf16"))
arguments.add_argument("--seconds", type=float, default=2.0, help="of timing a shape")
arguments.add_argument("--cpu-time", action="store_true", help="the calling thread's, not the wall's: for one thread of a busy machine")
arguments.add_argument("--rounds", type=int, default=200, help="of a shape, at most")
arguments.add_argument("--out", default="")
arguments.add_argument("shapes", nargs="*", default=list(SHAPES))
options = arguments.parse_args()
os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read when torch is imported
clock = time.thread_time if options.cpu_time else time.perf_counter

import torch

torch.set_num_threads(options.threads)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DTYPES = {"f32": (1, torch.float32), "bf16": (2, torch.bfloat16)}  # attn::DType


def load(path):
    out = path
    if not path.endswith(".so"):
        out = os.path.join(tempfile.mkdtemp(), "matmul_c.so")
        # Names of one build must not be found in another.
        subprocess.check_call(["c++", "-O2", "-std=c++20", "-shared", "-fPIC", f"-I{ROOT}/include", f"{ROOT}/bench/cpu/matmul_c.cpp", path, "-lfmt",
                               "-ldl", "-lpthread", "-Wl,-Bsymbolic", "-o", out])
    library = ctypes.CDLL(os.path.abspath(out))
    library.attn_product.restype = ctypes.c_void_p
    library.attn_product.argtypes = [ctypes.c_int] + [ctypes.c_int64] * 3 + [ctypes.c_int]
    library.attn_run.argtypes = [ctypes.c_void_p] * 4
    library.attn_peak_gflops.restype = ctypes.c_double
    library.attn_threads(options.threads)
    return library


def worst(a, b, c):
    """Largest error of some elements as a share of sqrt(k) 2^-24 sum |a b|, without the rounding of C."""
    i, j = torch.randint(a.shape[0], (50,)), torch.randint(b.shape[1], (50,))
    terms = a[i].double() * b[:, j].T.double()
    rounding = terms.sum(1).abs() * 2.0**-8 if c.dtype == torch.bfloat16 else 0
    return float((((c[i, j].double() - terms.sum(1)).abs() - rounding) / (a.shape[1] ** 0.5 * 2.0**-24 * terms.abs().sum(1))).max())


def rest():
    """Returns once no other thread of this process runs, or waits for a CPU, at two looks 2 ms apart."""
    own, quiet = threading.get_native_id(), 0
    while quiet < 2:
        time.sleep(0.002)
        states = []
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/stat") as file:
                if int(task) != own:
                    states.append(file.read().rpartition(")")[2].split()[0])
        quiet = 0 if "R" in states else quiet + 1


def measure(dtype, shape):
    parts = shape.split(",")
    m, n, k = map(int, parts[:3])
    transposed = len(parts) > 3
    code, of_torch = DTYPES[dtype]
    a, b = torch.randn(m, k).to(of_torch), torch.randn(n, k).to(of_torch).T if transposed else torch.randn(k, n).to(of_torch)
    calls, outputs = [], []
    for library in libraries:
        c = torch.full((m, n), float("nan"), dtype=of_torch)
        plan = library.attn_product(code, m, n, k, transposed)
        calls.append(lambda library=library, plan=plan, c=c: library.attn_run(plan, a.data_ptr(), b.data_ptr(), c.data_ptr()))
        outputs.append(c)
    of_peer = torch.empty(m, n, dtype=of_torch)
    calls.append(lambda: torch.mm(a, b, out=of_peer))
    for call in calls:
        call()
    error = max(worst(a, b, c) for c in outputs)
    assert error < 4, f"{shape} {dtype}: error {error}"
    seconds = [[] for _ in calls]
    end = time.perf_counter() + options.seconds
    while len(seconds[0]) < options.rounds and (len(seconds[0]) < 5 or time.perf_counter() < end):
        for which in random.sample(range(len(calls)), len(calls)):
            if options.threads > 1:
                rest()
            calls[which]()
            start = clock()
            calls[which]()
            seconds[which].append(clock() - start)
    flops = 2.0 * m * n * k
    medians = [statistics.median(x) for x in seconds]
    row = {"shape": shape, "dtype": dtype, "rounds": len(seconds[0]), "torch_gflops": round(flops / medians[-1] / 1e9, 1),
           "attn_gflops": [round(flops / x / 1e9, 1) for x in medians[:-1]],
           "ratio": [round(statistics.median(p / x for p, x in zip(seconds[-1], own)), 3) for own in seconds[:-1]],
           "ratio_of_minima": [round(min(seconds[-1]) / min(own), 3) for own in seconds[:-1]]}
    print(f"{dtype:5}{shape:18}{row['rounds']:4} rounds  torch {row['torch_gflops']:7.1f}  attn", *(f"{x:7.1f}" for x in row["attn_gflops"]), "  ratio",
          *(f"{x:6.3f}" for x in row["ratio"]), "  of minima", *(f"{x:6.3f}" for x in row["ratio_of_minima"]), flush=True)
    return row


libraries = [load(path) for path in options.library]
rows, peaks = [], {}
for dtype in options.dtype or DTYPES:
    peaks[dtype] = round(max(libraries[-1].attn_peak_gflops(DTYPES[dtype][0]) for _ in range(5)), 1)
    print(f"{dtype}: peak of multiply-adds {peaks[dtype]} GFLOP/s on {options.threads} thread(s)")
    rows += [measure(dtype, shape) for shape in options.shapes]
if options.out:
    with open("/proc/cpuinfo") as file:
        cpu = next(line.split(": ")[1].strip() for line in file if line.startswith("model name"))
    result = {"command": "python3 bench/cpu/matmul_torch.py " + " ".join(sys.argv[1:]),
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "torch": torch.__version__,
              "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(), "cpu": cpu, "threads": options.threads,
              "attn_commit": subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True).strip(),
              "peak_gflops": peaks, "results": rows}
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
