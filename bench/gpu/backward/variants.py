"""Builds variants of the backward kernel as cubins, several at a time, and prints what the assembler says of each.

  python3 variants.py OUT_FOLDER [--jobs 16] [--nvcc nvcc] [NAME...]

A name is words joined by "_": full or causal; q2, q3 (places of Q and of dO); p1, p2 (of P and dS); red, bulk or pair
(how dQ is added); dq or s (which product the score warpgroup issues first); shared (dQ's operand from shared memory); lag; x1,
x2, x3 (wrong on purpose: without adding dQ, without exponentials, without both). Without names: all that make sense."""
import argparse, concurrent.futures, os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = os.path.join(HERE, "../../../src/cuda/device")


def names():
    found = []
    for mask in ("full", "causal"):
        for rings in ("q2_p2", "q3_p2", "q3_p1"):
            for add in ("red", "bulk", "pair"):
                if add != "red" and rings == "q3_p2":
                    continue  # no room
                for order in ("dq", "dq_shared", "s_shared"):
                    for lag in ("", "_lag"):
                        found.append(f"{mask}_{rings}_{add}_{order}{lag}")
    return found + ["full_q2_p2_red_dq_x1", "full_q2_p2_red_dq_x2", "full_q2_p2_red_dq_x3"]


def defines(name):
    words = name.split("_")
    number = lambda letter, other: next((int(w[1:]) for w in words if re.fullmatch(letter + r"\d+", w)), other)
    return dict(CAUSAL=int("causal" in words), STAGES_Q=number("q", 2), STAGES_P=number("p", 2), ADD=next(w for w in words if w in ("red", "bulk", "pair")),
                QUERY_FIRST=int("dq" in words), SHARED_OPERAND=int("shared" in words), LAG=int("lag" in words),
                SCORE_REGISTERS=number("r", 168), LEAVE_OUT=number("x", 0), BOUNDED=int("unbounded" not in words))


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
    for line in pool.map(build, options.names or names()):
        print(line, flush=True)
