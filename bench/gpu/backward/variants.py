"""Builds variants of the backward kernel as cubins, several at a time, and prints what the assembler says of each.

  python3 variants.py OUT_FOLDER [--jobs 16] [--nvcc nvcc] [NAME...]

A name is words joined by "_", most of them constants of Config (device/backward_sm90.cuh): full or causal; q2, q3
(kStagesQ); p1, p2 (kStagesP); red, bulk or paced (kAdd); k2, k4, k8 (kPiece, KB); late (kReadersFence); h2, h4
(kLateProduct); poly (kPolynomial); x1, x2, x4, x8 (kLeaveOut); unbounded. Without names: those of the log's last table."""
import argparse, concurrent.futures, os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = os.path.join(HERE, "../../../src/cuda/device")


NAMES = [
    *(f"{mask}_{rest}" for mask in ("full", "causal") for rest in (
        "q2_p2_red_late", "q2_p2_bulk_late", "q2_p2_paced", "q2_p2_paced_late", "q2_p2_paced_late_h4", "q2_p2_paced_late_h4_poly",
        "q3_p1_paced_late", "q3_p1_paced_late_h4")),
    "full_q2_p2_red_late_x1", "full_q2_p2_paced_late_x2"
]


def defines(name):
    words = name.split("_")
    number = lambda letter, other: next((int(w[1:]) for w in words if re.fullmatch(letter + r"\d+", w)), other)
    has = lambda word: int(word in words)
    return dict(CAUSAL=has("causal"), STAGES_Q=number("q", 2), STAGES_P=number("p", 2),
                ADD=next(w for w in words if w in ("red", "bulk", "paced")), PIECE=1024 * number("k", 4),
                READERS_FENCE=has("late"), LATE_PRODUCT=number("h", 0), POLYNOMIAL=has("poly"),
                LEAVE_OUT=number("x", 0), SCORE_REGISTERS=number("r", 168), BOUNDED=1 - has("unbounded"))


def build(name):
    out = os.path.join(options.out, name + ".cubin")
    command = [options.nvcc, "-std=c++20", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v",
               f"-I{DEVICE}", f"-I{HERE}/device", f"-I{options.out}"]
    command += [f"-D{k}={v}" for k, v in defines(name).items()] + [os.path.join(HERE, "variant.cu"), "-o", out]
    done = subprocess.run(command, capture_output=True, text=True)
    text = done.stdout + done.stderr
    if done.returncode:
        return f"{name}: FAILED\n{text}"
    spills = re.search(r"properties for backward\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores", text)
    return f"{name}: {spills.group(2)} bytes of spill stores" + (", products serialized" if "serialized" in text else "")


parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("names", nargs="*")
parser.add_argument("--jobs", type=int, default=16)
parser.add_argument("--nvcc", default="nvcc")
options = parser.parse_args()
os.makedirs(options.out, exist_ok=True)
with open(os.path.join(options.out, "products.cuh"), "w") as header:
    header.write(subprocess.run([sys.executable, os.path.join(HERE, "products.py")], capture_output=True, text=True, check=True).stdout)
with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
    for line in pool.map(build, options.names or NAMES):
        print(line, flush=True)
