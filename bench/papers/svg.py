"""Panels of lines or of bars beside each other, as SVG text; no library needed."""
import html, math

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]  # Okabe and Ito
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 260, 74, 64, 44


def ticks(low, high, log):
    if log:
        first, last = math.floor(math.log2(low) + 1e-9), math.ceil(math.log2(high) - 1e-9)
        last = max(last, first + 1)  # one value alone has a panel too
        step = max(1, math.ceil((last - first) / 6))
        return [2.0 ** e for e in range(first, last + step, step)]
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(f for f in (1, 2, 5, 10) if (high - low) / (step * f) <= 5.5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, last + 1)]


def number(value):
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def panel(out, at, spec):
    """spec: title, x, y (labels), log_x, log_y, series [(name, colour index, dashed, [(x, y)])]; marks=False: lines without circles.
    With groups, names of x = 1, 2, ...: bars."""
    groups = spec.get("groups", [])
    points = [point for *_, series in spec["series"] for point in series]
    x_ticks = [0.5, len(groups) + 0.5] if groups else ticks(min(x for x, _ in points), max(x for x, _ in points), spec.get("log_x"))
    low = min(y for _, y in points) if spec.get("log_y") else 0
    y_ticks = ticks(low, max(y for _, y in points), spec.get("log_y"))
    scale = lambda log: math.log if log else (lambda v: v)
    fx, fy = scale(spec.get("log_x")), scale(spec.get("log_y"))
    px = lambda v: at + WIDTH * (fx(v) - fx(x_ticks[0])) / (fx(x_ticks[-1]) - fx(x_ticks[0]))
    py = lambda v: TOP + HEIGHT * (1 - (fy(v) - fy(y_ticks[0])) / (fy(y_ticks[-1]) - fy(y_ticks[0])))
    text = lambda x, y, anchor, size, what: out.append(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(what)}</text>')
    text(at + WIDTH / 2, TOP - 14, "middle", 14, spec["title"])
    text(at + WIDTH / 2, TOP + HEIGHT + 40, "middle", 12, spec["x"])
    text(at - 6, TOP - 14, "end", 12, spec["y"])
    for at_group, name in enumerate(groups, 1):
        text(px(at_group), TOP + HEIGHT + 18, "middle", 12, name)
    for tick in [] if groups else x_ticks:
        out.append(f'<path d="M {px(tick):.1f} {TOP} v {HEIGHT}" stroke="#e4e4e4"/>')
        text(px(tick), TOP + HEIGHT + 18, "middle", 11, number(tick))
    for tick in y_ticks:
        out.append(f'<path d="M {at} {py(tick):.1f} h {WIDTH}" stroke="#e4e4e4"/>')
        text(at - 6, py(tick) + 4, "end", 11, number(tick))
    width = 0.8 * WIDTH / max(1, len(groups)) / len(spec["series"])
    for i, (_, colour, _, series) in enumerate(spec["series"] if groups else []):
        for x, y in series:
            left = px(x) + (i - len(spec["series"]) / 2) * width
            out.append(f'<rect x="{left:.1f}" y="{py(y):.1f}" width="{width - 2:.1f}" height="{TOP + HEIGHT - py(y):.1f}" fill="{COLOURS[colour]}"/>')
            if width > 9:  # beside narrower bars numbers would lie on each other
                text(left + width / 2 - 1, py(y) - 4, "middle", 9, f"{y:.2f}".rstrip("0").rstrip(".").lstrip("0"))
    for _, colour, dashed, series in [] if groups else spec["series"]:
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in series)
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[colour]}" stroke-width="2"{dash}/>')
        if not dashed and spec.get("marks", True):
            out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="{COLOURS[colour]}"/>' for x, y in series]


def figure(title, panels):
    """The whole figure; every panel has its own legend below it."""
    rows = max(len(spec["series"]) for spec in panels)
    width = (LEFT + WIDTH + GAP) * len(panels)
    height = TOP + HEIGHT + 62 + 18 * rows
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" fill="#202020">', '<rect width="100%" height="100%" fill="#ffffff"/>',
           f'<text x="{width / 2}" y="24" text-anchor="middle" font-size="16">{html.escape(title)}</text>']
    for i, spec in enumerate(panels):
        at = LEFT + i * (LEFT + WIDTH + GAP)
        panel(out, at, spec)
        for j, (name, colour, dashed, _) in enumerate(spec["series"]):
            y = TOP + HEIGHT + 60 + 18 * j
            dash = ' stroke-dasharray="6 4"' if dashed else ""
            out.append(f'<path d="M {at} {y} h 26" stroke="{COLOURS[colour]}" stroke-width="2"{dash}/>')
            out.append(f'<text x="{at + 34}" y="{y + 4}" font-size="12">{html.escape(name)}</text>')
    return "\n".join(out + ["</svg>", ""])
