"""bench/gpu/samples.py on a page whose loops are known."""
import os, subprocess, sys, tempfile

kHeader = '"Kernel Name","k",\n"Address","Source","# Samples","Instructions Executed","stall_long_sb","stall_wait","stall_wait (Not Issued)"\n'
kMultiprocessors = 132


def expect(what, text, wanted):
    if wanted not in text:
        sys.exit(f"{what}: no '{wanted}' in\n{text}")


def page(rows):
    """A page of (source, samples, turns of all warps of a multiprocessor, waits for memory), an instruction each 16 bytes."""
    lines = (f'"0x{1024 + 16 * i:x}","{source}","{samples}","{turns * kMultiprocessors}","{long_sb}","{samples - long_sb}","0"'
             for i, (source, samples, turns, long_sb) in enumerate(rows))
    return kHeader + "\n".join(lines) + "\n"


def told(rows, *more):
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(page(rows))
        file.flush()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "gpu", "samples.py")
        return subprocess.run([sys.executable, script, "--csv", file.name, "--cycles", "2000000", *more], check=True, text=True,
                              stdout=subprocess.PIPE).stdout


def main():
    # Of 16 warps 4 go round 1000 times each, by a branch that leaves 6 clocks in 2000 out of the way; 8 go round 500 times.
    rows = [("S2R R0", 2000, 16, 0), ("  LDS R1", 1000, 4000, 900), ("FADD R1", 2980, 4000, 0), ("CALL special", 300, 4, 0),
            ("@P0  BRA 0x410", 20, 4000, 20), ("  HGMMA R2", 4, 4000, 0), ("MUFU R3", 7996, 4000, 0), ("BRA 0x450", 0, 4000, 0),
            ("EXIT", 1700, 16, 0)]
    text = told(rows)
    expect("a loop of 4 warps", text, "3 instructions, 4 warps, 2000 clocks a turn")
    expect("a loop of 8 warps", text, "3 instructions, 8 warps, 4000 clocks a turn")
    expect("where warps stand", text, f"    500.0    500.0  {'LDS R1':72}  long_sb 90, wait 10\n")
    expect("how much of a turn is over", text, f"   1490.0   1990.0  {'FADD R1':72}  wait 100\n")
    expect("products, however short", text, "      2.0      2.0  HGMMA R2")
    if "BRA" in text or "special" in text or "EXIT" in text:
        sys.exit(f"what is short, or in no loop:\n{text}")
    expect("--least", told(rows, "--least", "5"), "     10.0   2000.0  @P0  BRA 0x410")


if __name__ == "__main__":
    main()
