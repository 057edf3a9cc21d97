"""Bytes on a GPU in three columns: the models, the plan's own count, and Nsight Compute's counters.

  python3 bench/papers/io_gpu.py --library attn_c.so b16_n1024_h16_d64_f32
  python3 bench/papers/io_gpu.py --library attn_c.so --phase backward b16_n1024_h16_d64_f32 b16_n1024_h16_d64_bf16

Prints, for each problem, standard attention, FlashAttention (K, V outer), its block-sparse form and FlashAttention-2, all with the arithmetic of
forward_simt, and what the library would pick; backward standard attention's algorithm 3, FlashAttention's 4, its block-sparse form, and FlashAttention-2 on
the kernels that take the problem. Columns: the model and the plan (`attn io --arch`), then bytes that ncu counts while
the kernels run once: L2 to and from the multiprocessors (what the papers call HBM accesses, and the plan counts), DRAM, and shared memory as the
threads' loads and stores use it (lsu): what wgmma reads there and TMA writes there passes the load and store units by and is not counted.

--library: attn_c as a shared object (.so), or build/libattn.a, with which one is compiled. Needs PyTorch; ncu for the counters."""
import argparse, concurrent.futures, csv, ctypes, io, json, math, os, re, shutil, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FLASH = "forward_flash_attention"
ALGORITHMS = {"standard": "forward_standard", "flash_attention": FLASH, "block_sparse": f"{FLASH}/sparse", "flash_attention_2": "forward_simt"}
FLASH_BACKWARD = "backward_flash_attention"
STANDARD_BACKWARD = "backward_standard"
# Launches of a pass, by kernel. backward_simt has one for the rows and one for each of dQ, dK and dV, backward_standard one for P and dS in place of the first.
LAUNCHES = {"forward_standard": 3, STANDARD_BACKWARD: 4, "backward_simt": 4, "backward_sm80": 3, "backward_sm90": 4}
# Base names of counters, and what each adds to.
METRICS = {"l1tex__m_xbar2l1tex_read_bytes": ("l2_read", 1), "l1tex__m_l1tex2xbar_write_bytes": ("l2_written", 1), "dram__bytes_read": ("dram_read", 1),
           "dram__bytes_write": ("dram_written", 1), "l1tex__data_pipe_lsu_wavefronts_mem_shared": ("shared", 128)}
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12, "": 1}


def require_gpu():
    """Ends a program that only times a GPU, with a sentence, where there is none."""
    import torch
    if not torch.cuda.is_available():
        sys.exit(f"{os.path.basename(sys.argv[0])} times a GPU, and PyTorch {torch.__version__} sees none here")


# The library that calls attn: a shared object of bench/gpu/attn_c.cpp, or libattn.a, with which one is compiled.
def load(library):
    if library.endswith(".so"):
        loaded = ctypes.CDLL(os.path.abspath(library))
    else:
        out = os.path.join(tempfile.mkdtemp(), "attn_c.so")
        subprocess.check_call(["c++", "-O2", "-std=c++20", "-shared", "-fPIC", f"-I{ROOT}/include", f"{ROOT}/bench/gpu/attn_c.cpp", library,
                               "-lfmt", "-ldl", "-lpthread", "-o", out])
        loaded = ctypes.CDLL(out)
    loaded.attn_plan.restype = loaded.attn_plan_backward.restype = ctypes.c_void_p
    return loaded


def phase_of(kernel):
    return "backward" if kernel.startswith("backward") else "forward"


def rows_of(phase, descriptor):
    """(algorithm, kernel) of the lines of a problem's table."""
    if phase == "forward":
        return [*ALGORITHMS.items(), ("flash_attention_2", "")]
    fast = ["backward_simt"] if descriptor.endswith("_f32") else ["backward_sm80", "backward_sm90"]
    return [("standard", STANDARD_BACKWARD), ("flash_attention", FLASH_BACKWARD), ("block_sparse", f"{FLASH_BACKWARD}/sparse"), *(("flash_attention_2", kernel) for kernel in fast)]


def sizes(descriptor):
    """b, n, h, d and dtype of a descriptor of a self-attention problem without GQA."""
    numbers = [int(re.search(rf"(?:^|_){x}(\d+)(?:_|$)", descriptor).group(1)) for x in "bnhd"]
    return *numbers, descriptor.rsplit("_", 1)[1]


class Run:
    """A problem on one kernel, with tensors of random numbers; called, it runs once in PyTorch's current stream. forward: of a backward kernel, a
    Run whose Q, K, V, O and LSE are taken; without, they are random: enough to count bytes."""

    def __init__(self, library, descriptor, kernel, tensors=None, forward=None):
        import torch
        backward = phase_of(kernel) == "backward"
        pointer = ctypes.c_void_p
        b, n, h, d, dtype = sizes(descriptor)
        size = ctypes.c_longlong()
        handle = (library.attn_plan_backward if backward else library.attn_plan)(descriptor.encode(), kernel.encode(), ctypes.byref(size))
        if not handle:
            raise RuntimeError(f"{descriptor} on {kernel}: no plan")
        kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        self.q, self.k, self.v = tensors or (torch.randn(b, n, h, d, device="cuda", dtype=kind) for _ in range(3))
        self.o = torch.full((b, n, h, d), float("nan"), device="cuda", dtype=kind)
        self.lse = torch.full((b, h, n), float("nan"), device="cuda")
        self.workspace = torch.empty(max(1, size.value), dtype=torch.uint8, device="cuda")
        at = lambda t: pointer(t.data_ptr())
        none = (pointer * 1)()
        if backward:
            if forward is not None:
                self.q, self.k, self.v, self.o, self.lse = forward.q, forward.k, forward.v, forward.o, forward.lse
            else:
                self.o.normal_(), self.lse.fill_(math.log(n))
            self.d_o = torch.randn_like(self.o)
            self.gradients = [torch.full_like(self.q, math.nan) for _ in range(3)]
            self.call = lambda: library.attn_backward(pointer(handle), *map(at, (self.q, self.k, self.v, self.o, self.lse, self.d_o, *self.gradients)), none,
                                                      at(self.workspace), size, pointer(torch.cuda.current_stream().cuda_stream))
            return
        self.call = lambda: library.attn_forward(pointer(handle), at(self.q), at(self.k), at(self.v), at(self.o), at(self.lse), none, at(self.workspace),
                                                 size, pointer(torch.cuda.current_stream().cuda_stream))

    def __call__(self):
        if self.call():
            raise RuntimeError("the run failed")


def launch(file):
    """The child under ncu: every configuration once, until the time is up."""
    import torch
    with open(file) as text:
        job = json.load(text)
    library = load(job["library"])
    begin = time.monotonic()
    for descriptor, kernel in job["configurations"]:
        if time.monotonic() - begin > job["seconds"]:
            break
        Run(library, descriptor, kernel)()
        torch.cuda.synchronize()
        print("launched", descriptor, kernel, flush=True)


def launches_of(kernel):
    return LAUNCHES.get(kernel.split("/")[0], 1)


def available_metrics():
    """Those of METRICS that this ncu knows, so that a name of another version costs a column and not the run."""
    listed = subprocess.run(["ncu", "--query-metrics"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    known = {line.split()[0] for line in listed.splitlines() if line.strip()}
    found = [name for name in METRICS if name in known]
    return found or list(METRICS)


def parse(text):
    """[{what: value}] of the launches in ncu's CSV, in their order."""
    rows = {}
    for row in csv.DictReader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"')))):
        name, _, rollup = row["Metric Name"].partition(".")
        if name not in METRICS or rollup != "sum":
            continue
        what, factor = METRICS[name]
        value = float(row["Metric Value"].replace(",", "")) * UNITS.get(row["Metric Unit"].split("/")[0], 1) * factor
        rows.setdefault(int(row["ID"]), {})[what] = value
    return [rows[key] for key in sorted(rows)]


def measure(configurations, library, seconds):
    """{(descriptor, kernel): {what: bytes}} of those that were launched in the time; what is why there are none, too."""
    if shutil.which("ncu") is None:
        return {}, "ncu is not here"
    folder = tempfile.mkdtemp()
    with open(f"{folder}/job.json", "w") as file:
        json.dump({"library": library, "configurations": configurations, "seconds": seconds}, file)
    metrics = ",".join(f"{name}.sum" for name in available_metrics())
    done = subprocess.run(["ncu", "--clock-control", "none", "--cache-control", "none", "--csv", "--print-units", "base", "--log-file", f"{folder}/counters.csv",
                           "-k", "regex:attn_(forward|backward)", "--metrics", metrics, sys.executable, os.path.abspath(__file__), "--launch", f"{folder}/job.json"],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = open(f"{folder}/counters.csv").read() if os.path.exists(f"{folder}/counters.csv") else ""
    counted, at = parse(text), 0
    result = {}
    for line in done.stdout.splitlines():
        if not line.startswith("launched "):
            continue
        _, descriptor, *kernel = line.split(" ")
        kernel = " ".join(kernel)
        parts = counted[at:at + launches_of(kernel)]
        at += launches_of(kernel)
        if len(parts) == launches_of(kernel):
            result[descriptor, kernel] = {what: sum(part.get(what, 0) for part in parts) for what in parts[0]}
            result[descriptor, kernel]["l2"] = sum(result[descriptor, kernel].get(what, 0) for what in ("l2_read", "l2_written"))
            result[descriptor, kernel]["dram"] = sum(result[descriptor, kernel].get(what, 0) for what in ("dram_read", "dram_written"))
    why = "" if result else f"ncu ended with {done.returncode}: {(text + done.stdout)[-400:]}"
    return result, why


def planned(attn, descriptor, algorithm, kernel, arch, blocks=None):
    """The row of `attn io --arch`: model, plan, inputs and outputs. blocks: B_r and B_c of the model; default: those of the plan."""
    words = [attn, "io", descriptor, "--arch", arch, "--phase", phase_of(kernel), "--algorithm", algorithm,
             *(["--kernel", kernel] if kernel else []), "--json", "-"]
    call = lambda more: json.loads(subprocess.run(words + more, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)["results"][0]
    if blocks is None:
        row = call(["--fast-bytes", "232448"])
        if row["plan"] is None:
            return row
        blocks = row["plan"]["block_q"], row["plan"]["block_k"]
    return call(["--fast-bytes", "232448", "--block-q", str(blocks[0]), "--block-k", str(blocks[1])])


def precompile(attn, configurations, arch, phases=()):
    """Fills the disk cache with all cores: in the program that runs them kernels would be compiled one after the other. phases: where not of the names."""
    def one(job):
        (descriptor, kernel), phase = job
        subprocess.run([attn, "compile", descriptor, "--phase", phase, "--arch", arch, *(["--kernel", kernel] if kernel else [])],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, [(job, phase) for job in sorted(set(configurations)) for phase in phases or (phase_of(job[1]),)]))


def gigabytes(value):
    return "-" if value is None else f"{value * 1e-9:.3f}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("descriptors", nargs="*")
    arguments.add_argument("--library", default="attn_c.so")
    arguments.add_argument("--attn", default="build/attn")
    arguments.add_argument("--arch", default="sm_90a")
    arguments.add_argument("--phase", default="forward", choices=("forward", "backward"))
    arguments.add_argument("--seconds", type=float, default=60, help="after which no further kernel is counted")
    arguments.add_argument("--json", default="")
    arguments.add_argument("--launch", default="", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.launch:
        launch(options.launch)
        return
    configurations = [(descriptor, kernel) for descriptor in options.descriptors for _, kernel in rows_of(options.phase, descriptor)]
    precompile(options.attn, configurations, options.arch)
    counted, why = measure(configurations, options.library, options.seconds)
    if why:
        print(f"no counters: {why}")
    columns = ("l2_read", "l2_written", "dram", "shared")
    rows = []
    for descriptor in options.descriptors:
        print(f"{descriptor}, GB")
        print("  ".join(["".ljust(36), *(what.rjust(10) for what in ("model", "plan", *columns[:-1], "shared lsu"))]))
        for algorithm, kernel in rows_of(options.phase, descriptor):
            row = planned(options.attn, descriptor, algorithm, kernel, options.arch)
            counts = counted.get((descriptor, kernel), {})
            values = [row["model"]["bytes"], (row["plan"] or {}).get("bytes"), *(counts.get(what) for what in columns)]
            print("  ".join([f"{algorithm} {kernel or row['plan']['target'].split()[0]}".ljust(36), *(gigabytes(value).rjust(10) for value in values)]))
            rows.append({"problem": descriptor, "algorithm": algorithm, "kernel": kernel, "row": row, "counters": counts})
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"command": " ".join(["python3", *sys.argv]), "results": rows, "no_counters": why}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
