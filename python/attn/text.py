"""Numbers and arrays as attn's parser reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .expression import Expr

_FLOAT32_MAX = 3.4028235677973366e38  # from here on a number rounds to infinity


def of_float(value: float) -> str:
    if value != value:
        return "nan"
    if abs(value) >= _FLOAT32_MAX:
        return "inf" if value > 0 else "-inf"
    return f"{float(value)!r}" if value == 0 or abs(value) > 1e-44 else "0.0"


def finish(*expressions: Expr) -> tuple[Any, ...]:
    """The text of each expression, then {name: array}: _t0, _t1, ... in order of first use. A call
    that has another array of such a name is refused.
    """
    texts = [e.text for e in expressions]
    arrays: dict[int, Any] = {}
    for e in expressions:
        if e.buffers:
            arrays.update(e.buffers)
    named: dict[str, Any] = {}
    if arrays:
        everything = "".join(texts)
        for key in sorted(arrays, key=lambda k: everything.find(f"\x01{k}\x02")):
            name = f"_t{len(named)}"
            named[name] = arrays[key]
            texts = [text.replace(f"\x01{key}\x02", name) for text in texts]
    return (*texts, named)
