"""Where the warps of a kernel stand: its loops by samples of the program counter, in clocks of a turn of a warp.
Needs ncu, and a GPU that it may count on; --csv reads a page that was written before.

  python3 bench/gpu/samples.py --attn build/attn b2_n8192_h32_d64_bf16 --phase backward
  python3 bench/gpu/samples.py --csv source.csv --cycles 7788141

For each loop: how many warps of a multiprocessor are in it, clocks of a turn, and the instructions at which they stand
for --least clocks or longer (products and waits always), with the two reasons that ncu counts most, in
percent; products wait for their own queue for no reason that ncu names. docs/log/cuda-backward-samples.md has what such a
table showed."""
import argparse, csv, re, shutil, subprocess, sys, tempfile

kShown = ("HGMMA", "DEPBAR", "TRYWAIT")
kLeastShare = 0.02  # of all samples, of a loop that is shown
kSame = 0.3  # how far the executions of a loop's instructions may be from those of its branch

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("descriptor", nargs="?")
arguments.add_argument("--attn", default="build/attn")
arguments.add_argument("--phase", default="forward", choices=("forward", "backward"))
arguments.add_argument("--kernel", default="")
arguments.add_argument("--entry", default="", help="a regular expression of the launch; default: attn_PHASE")
arguments.add_argument("--csv", default="", help="as ncu --page source --csv prints it")
arguments.add_argument("--cycles", type=float, default=0, help="of the launch, with --csv")
arguments.add_argument("--multiprocessors", type=int, default=132)
arguments.add_argument("--warps", type=int, default=16, help="of a block of threads")
arguments.add_argument("--least", type=float, default=20)
options = arguments.parse_args()


def profiled():
    """The source page and the cycles of the second launch that matches."""
    entry = options.entry or f"^attn_{options.phase}$"
    with tempfile.TemporaryDirectory() as folder:
        bench = [options.attn, "bench", options.descriptor, "--device", "cuda", "--phase", options.phase]
        bench += ["--kernel", options.kernel] if options.kernel else []
        subprocess.run(["ncu", "--section", "SourceCounters", "--section", "WarpStateStats", "--section", "SpeedOfLight",
                        "-k", f"regex:{entry}", "-s", "1", "-c", "1", "--kill", "yes", "-o", f"{folder}/report", *bench],
                       stdout=subprocess.DEVNULL, check=False)  # it is killed, so it fails
        page = lambda *more: subprocess.run(["ncu", "-i", f"{folder}/report.ncu-rep", *more], check=True, text=True,
                                            stdout=subprocess.PIPE).stdout
        source = page("--page", "source", "--csv")
        cycles = re.search(r"Elapsed Cycles\s+cycle\s+([\d,]+)", page("--page", "details"))
    return source, float(cycles[1].replace(",", ""))


class Instruction:
    def __init__(self, row, columns, stalls):
        number = lambda name: int(row[columns[name]] or 0)
        self.text, self.samples = row[columns["Source"]].strip(), number("# Samples")
        self.executed = number("Instructions Executed")
        self.stalls = sorted(((number(name), name.removeprefix("stall_")) for name in stalls), reverse=True)[:2]

    def line(self, clocks, so_far):
        reasons = ", ".join(f"{name} {100 * n / self.samples:.0f}" for n, name in self.stalls if n and self.samples)
        return f"  {clocks:7.1f} {so_far:8.1f}  {self.text[:72]:72}  {reasons if clocks >= options.least else ''}"


def instructions(source):
    """Of the page, in order, with the place of each by its address."""
    rows = [row for row in csv.reader(source.splitlines()) if len(row) > 3]
    columns = {name: i for i, name in enumerate(rows[0])}
    stalls = [name for name in columns if name.startswith("stall_") and "Not Issued" not in name]
    code = [Instruction(row, columns, stalls) for row in rows[1:]]
    return code, {int(row[columns["Address"]], 0): i for i, row in enumerate(rows[1:])}


def loops(code, places):
    """First and last instruction, and turns, of what branches go back over; overlapping ones are one."""
    found = []
    for last, x in enumerate(code):
        to = re.search(r"\bBRA\S* (0x[0-9a-f]+)", x.text)
        first = places.get(int(to[1], 0), last) if to else last
        if first < last and x.executed:
            if found and first <= found[-1][1]:
                first, turns = min(first, found[-1][0]), max(x.executed, found[-1][2])
                found[-1] = (first, last, turns)
            else:
                found.append((first, last, x.executed))
    return found


def print_loops(source, cycles):
    code, places = instructions(source)
    samples, warps = sum(x.samples for x in code), options.warps
    for first, last, turns in loops(code, places):
        inside = [x for x in code[first : last + 1] if abs(x.executed / turns - 1) <= kSame]
        share = sum(x.samples for x in inside) / samples
        if share < kLeastShare:
            continue
        own = max(1, round(share * warps))
        clocks = cycles * share * warps / (turns / options.multiprocessors)
        print(f"{len(inside)} instructions, {own} warps, {clocks:.0f} clocks a turn")
        so_far = 0.0
        for x in inside:
            here = clocks * x.samples / samples / share
            so_far += here
            if here >= options.least or any(word in x.text for word in kShown):
                print(x.line(here, so_far))


if bool(options.csv) == bool(options.descriptor):
    sys.exit("give a descriptor, or --csv and --cycles")
if not options.csv and not shutil.which("ncu"):
    sys.exit("ncu is not found; accepted without it are --csv and --cycles")
if options.csv and not options.cycles:
    sys.exit("--cycles is not given; accepted with --csv are the cycles of the launch")
if options.csv:
    with open(options.csv) as page:
        print_loops(page.read(), options.cycles)
else:
    print_loops(*profiled())
