"""What the numbers of tables_gpu.py say: where a method becomes faster than attn, and figures 5 and 6 of the FlashAttention paper, speed-up over length.

  python3 bench/papers/speedups.py bench/results/h200-appendix-e.json --out build/speedups

prints the crossovers of a result, the paper's own (tables 11, 17 and 20) beside them, writes OUT.json with these, and OUT.svg with a panel for each
head size of the part `heads`: standard attention's time over attn's, and cuDNN's over attn's, both passes, without and with mask and dropout, and causal.
The paper's figures 5 and 6 are plots on an A100; their points are not in paper.py, so the curves stand alone. Needs nothing but Python."""
import argparse, json

import paper, svg

PHASES = ("forward", "backward", "both")
OVER = {"PyTorch eager": ("standard", False), "SDPA cuDNN": ("cuDNN", True)}  # name in the legend, dashed
VARIANTS = (("", {}), ("mask", {"mask": True}), ("dropout", {"dropout": True}), ("mask, dropout", {"mask": True, "dropout": True}), ("causal", {"causal": True}))


def crossover(times, ours):
    """Of {n: seconds} twice, the least n from which on `times` is below `ours` at each n that both have; None where it is not so at the longest."""
    first = None
    for n in sorted(set(times) & set(ours), reverse=True):
        if times[n] >= ours[n]:
            break
        first = n
    return first


def times_of(line, phase):
    return {cell["problem"]["n"]: cell[phase] for cell in line if phase in cell}


def crossovers(rows, reference, phase="both"):
    """{method: n or None} of {method: {n: seconds}}, beside the method `reference`; a method with no length in common is left out."""
    return {name: crossover(times, rows[reference]) for name, times in rows.items() if name != reference and set(times) & set(rows[reference])}


def of_paper(table):
    """Milliseconds of a table of the paper by length."""
    return {name: dict(zip(paper.LENGTHS, map(float, numbers.split()))) for name, numbers in paper.TABLES[table].items()}


def sentence(what, reference, found, lengths):
    faster = [f"{name} from n {n} on" for name, n in found.items() if n is not None]
    never = [name for name, n in found.items() if n is None]
    said = [f"faster than {reference}: {', '.join(faster)}"] if faster else []
    return f"{what}, n {min(lengths)} to {max(lengths)}: " + "; ".join(said + ([f"not at the longest length that both have: {', '.join(never)}"] if never else [])) + "."


def report(parts):
    """{"crossovers": {part: {phase: {method: n or null}}}, "sentences": [...]} of the parts of a result that go over lengths, and of the paper."""
    found, said = {}, []
    for part, lines in parts.items():
        if part in ("heads", "short") or "attn" not in lines:
            continue
        found[part] = {}
        for phase in PHASES:
            rows = {name: times_of(line, phase) for name, line in lines.items()}
            found[part][phase] = crossovers(rows, "attn")
        rows = {name: times_of(line, "both") for name, line in lines.items()}
        if rows["attn"] and found[part]["both"]:
            said.append(sentence(f"{part}, both passes", "attn", found[part]["both"], rows["attn"]))
        table = paper.NUMBER.get((part, "both"))
        if table:
            theirs = of_paper(table)
            found[part]["the paper, both"] = crossovers(theirs, paper.FLASH)
            said.append(sentence(f"  the paper's table {table}", paper.FLASH, found[part]["the paper, both"], theirs[paper.FLASH]))
    return {"crossovers": found, "sentences": said}


def curves(heads, phase="both"):
    """{d: [(name, colour, dashed, [(n, speed-up of attn)])]} of the part `heads`."""
    panels = {}
    key = lambda problem: tuple(problem[x] for x in ("d", "n", "mask", "dropout", "causal"))
    ours = {key(cell["problem"]): cell[phase] for cell in heads.get("attn", []) if phase in cell}
    for name, (word, dashed) in OVER.items():
        theirs = {key(cell["problem"]): cell[phase] for cell in heads.get(name, []) if phase in cell}
        for colour, (variant, flags) in enumerate(VARIANTS):
            flags = tuple(flags.get(x, False) for x in ("mask", "dropout", "causal"))
            for d in sorted({at[0] for at in ours}):
                points = [(at[1], theirs[at] / ours[at]) for at in sorted(ours) if at[0] == d and at[2:] == flags and at in theirs]
                if len(points) > 1:
                    panels.setdefault(d, []).append((f"over {word}{variant and ', '}{variant}", colour, dashed, points))
    return panels


def figure(heads, title):
    """SVG, or nothing where no head size has two lengths."""
    panels = [{"title": f"d {d}", "x": "n", "y": "times", "log_x": True, "log_y": True, "series": series} for d, series in sorted(curves(heads).items())]
    return svg.figure(title, panels) if panels else ""


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("result", help="what tables_gpu.py --out wrote")
    arguments.add_argument("--out", default="", help="OUT.json and OUT.svg")
    options = arguments.parse_args()
    with open(options.result) as file:
        result = json.load(file)
    told = report(result["parts"])
    print("\n".join(told["sentences"]))
    drawn = figure(result["parts"].get("heads", {}), f"Speed-up of attn, forward and backward, on one {result['gpu']}")
    if options.out:
        with open(options.out + ".json", "w") as file:
            json.dump({"of": options.result, **told}, file, indent=1)
            file.write("\n")
        if drawn:
            with open(options.out + ".svg", "w") as file:
                file.write(drawn)


if __name__ == "__main__":
    main()
