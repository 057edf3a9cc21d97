"""Bytes on a GPU in three columns: the models, the plan's own count, and Nsight Compute's counters.

  python3 bench/papers/io_gpu.py b4_n4096_h16_d64_causal_bf16 --attn build/attn --arch sm_90a

Runs `attn io --arch`, and `ncu` over `attn bench --device cuda --repeat 1`, of whose kernels the last forward launch counts. Three levels: DRAM,
L2 to the multiprocessors (what the papers call HBM accesses), shared memory. It was written without a GPU at hand and has not been run on one: the
names of the counters are to be checked there with `ncu --query-metrics`."""
import argparse, csv, io, json, shutil, subprocess, sys

METRICS = {"dram__bytes_read.sum": "DRAM read", "dram__bytes_write.sum": "DRAM written",
           "l1tex__m_xbar2l1tex_read_bytes.sum": "L2 to SM", "lts__t_bytes.sum": "L2, all",
           "l1tex__data_bank_reads.sum": "shared memory banks read", "l1tex__data_bank_writes.sum": "shared memory banks written"}
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "": 1}


def counters(text):
    """{metric: value} of the last kernel launch in ncu's CSV; bytes, or counts of accesses."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    launches = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        value = float(row["Metric Value"].replace(",", "")) * UNITS.get(row["Metric Unit"], 1)
        launches.setdefault(int(row["ID"]), {})[row["Metric Name"]] = value
    return launches[max(launches)] if launches else {}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("descriptor")
    arguments.add_argument("--attn", default="build/attn")
    arguments.add_argument("--arch", default="sm_90a")
    arguments.add_argument("--json", default="")
    options = arguments.parse_args()
    rows = json.loads(subprocess.run([options.attn, "io", options.descriptor, "--arch", options.arch, "--fast-bytes", "232448", "--json", "-"],
                                     check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)["results"]
    for row in rows:
        plan = f"{row['plan']['bytes'] * 1e-9:.3f} GB ({row['plan']['target']})" if row["plan"] else "-"
        print(f"{row['algorithm']:<18} model {row['model']['bytes'] * 1e-9:8.3f} GB   plan {plan}")
    print(f"inputs and outputs once: {rows[0]['compulsory']['bytes'] * 1e-9:.3f} GB")
    measured = {}
    if shutil.which("ncu") is None:
        print("ncu is not here: no counters")
    else:
        done = subprocess.run(["ncu", "--clock-control", "none", "--cache-control", "none", "--replay-mode", "application", "--csv", "-k",
                               "regex:forward", "--metrics", ",".join(METRICS), options.attn, "bench", options.descriptor, "--device", "cuda",
                               "--repeat", "1"], text=True, stdout=subprocess.PIPE)
        if done.returncode != 0:
            sys.exit(f"ncu ended with {done.returncode}")
        measured = counters(done.stdout)
        for metric, value in measured.items():
            print(f"{METRICS.get(metric, metric):<28} {value:.4g}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"command": " ".join(["python3", *sys.argv]), "rows": rows, "counters": measured}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
