"""The keywords of attn.attention as a descriptor (docs/descriptors.md) with its tensors."""

from __future__ import annotations

from functools import cache
from math import isfinite
from operator import index

from . import _attn
from .arrays import more_than_number
from .cache_types import type_tokens
from .errors import InvalidArgument
from .formula import Formula

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from typing_extensions import Unpack

    from .types import Array, Mask, Options, Score

_LAYOUTS = ("bshd", "bhsd", "thd")
# Buffers of an array as mask, and of slopes [batch, heads_q]; bindings/call.cpp holds them to the
# sizes of the tensors.
MASK_ARRAY = "_allowed"
HEAD_SLOPES = "_head_slopes"
# Keywords that say which keys each sequence has, and those of keys that all share.
OF_SEQUENCES = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "page_table",
    "key_list",
)
OF_PREFIX = ("prefix_k", "prefix_v", "prefix_page_table")
OF_CACHES = ("scale_q", "scale_k", "scale_v")


def refuse_more_than_number(name: str, value: Any) -> None:
    """Refuses an array that is read as a number but has more than it, as a gradient to record."""
    if more := more_than_number(value):
        raise InvalidArgument(
            f"{name} is a {type(value).__name__} that {more}, which a number would lose; accepted "
            "is a number, and in attn.torch and attn.jax a score that reads an array with a "
            "gradient, as in lambda s: s.score * array"
        )


def _integer(name: str, value: Any) -> int:
    """As operator.index, of which vmap of torch.func gives a RuntimeError."""
    if type(value) is not int:
        refuse_more_than_number(name, value)
    return index(value)


def number_text(name: str, value: Any) -> str:
    """As the descriptor reads it back, bit for bit."""
    if type(value) is not float:
        refuse_more_than_number(name, value)
    try:
        number = float(value)
        if isfinite(number):
            return repr(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgument(f"{name} is {value!r}; accepted is a finite number")


def size_of(name: str, value: Any) -> int:
    try:
        size = _integer(name, value)
        if 0 <= size < 2**31:
            return size
    except TypeError:
        pass
    raise InvalidArgument(f"{name} is {value!r}; accepted is an integer in [0, 2^31)")


def is_set(name: str, value: Any) -> bool:
    """A flag. Text such as "false" would be true."""
    if value is True or value is False:
        return value
    if isinstance(value, str) or (hasattr(value, "shape") and value.shape != ()):
        raise InvalidArgument(f"{name} is {value!r}; accepted is True or False")
    refuse_more_than_number(name, value)
    return bool(value)


def _choice(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}; accepted is a name, as 'auto'")
    return value


_BACKENDS = ("auto", "cpu", "cuda", "reference")


def backend_of(value: Any) -> str:
    if _choice("backend", value) not in _BACKENDS:
        raise InvalidArgument(
            f"backend is {value!r}; accepted are {', '.join(map(repr, _BACKENDS))}"
        )
    return str(value)


def _rank(name: str, array: Array) -> int:
    try:
        return len(array.shape)
    except AttributeError:
        raise TypeError(
            f"{name} is a {type(array).__name__}; accepted are arrays of NumPy, PyTorch, JAX, CuPy "
            "or others with __dlpack__"
        ) from None
    except RuntimeError as error:  # a nested tensor, or a parameter without memory yet
        raise InvalidArgument(
            f"{name} is a {type(array).__name__} that shows no shape ({error}); accepted are "
            "strided arrays in memory"
        ) from None


def _scalar(name: str, array: Array) -> int | float | None:
    """The number of an array without dimensions; None for other arrays."""
    if _rank(name, array) != 0:
        return None
    if getattr(array, "is_cuda", False):
        raise InvalidArgument(
            f"{name} is a number in the memory of a GPU; accepted are numbers of Python and of "
            "CPU memory"
        )
    refuse_more_than_number(name, array)
    value: int | float = array.item()
    return value


_FAR = 2**31 - 1  # no sequence is longer


def window_sides(window: Any) -> tuple[int, int]:
    """Keys before and after the query's place that it sees; -1: all."""
    try:
        sides = [-1 if side is None else min(_integer("window", side), _FAR) for side in window]
    except InvalidArgument:
        raise
    except (TypeError, ValueError):
        sides = []
    if len(sides) != 2:
        raise InvalidArgument(
            f"window is {window!r}; accepted is (left, right): keys before and after the query's "
            "place, -1 or None for no bound"
        )
    return sides[0], sides[1]


def rng_state(dropout: float, rng: Any) -> tuple[int, int, Array | None]:
    """Seed and offset of dropout, and the array that holds them where they are no numbers."""
    if not dropout:
        return 0, 0, None
    if hasattr(rng, "__dlpack__") and _rank("rng", rng):
        if _attn.signature("rng", rng) != "i64:2":
            raise InvalidArgument(
                f"rng is an array of {rng.dtype} {tuple(rng.shape)}; accepted are int64 [2], a "
                "seed, or (seed, offset)"
            )
        return 0, 0, rng
    try:
        seed, offset = (rng, 0) if hasattr(rng, "__index__") else rng
        seed, offset = _integer("rng", seed), _integer("rng", offset)
    except InvalidArgument:
        raise
    except (TypeError, ValueError):
        seed = offset = -1
    if not (0 <= seed < 2**64 and 0 <= offset < 2**64):
        raise InvalidArgument(
            f"rng is {rng!r} and dropout {dropout!r}; accepted is a seed or (seed, offset), each "
            "in [0, 2^64), or an int64 array [2] of them"
        )
    return seed, offset, None


def _heads_first(layout: str, cu_seqlens_q: Array | None) -> bool:
    if layout not in _LAYOUTS:
        raise InvalidArgument(
            f"layout is {layout!r}; accepted are {', '.join(map(repr, _LAYOUTS))}"
        )
    if (layout == "thd") != (cu_seqlens_q is not None):
        raise InvalidArgument(
            f"layout is {layout!r} {'without' if cu_seqlens_q is None else 'with'} cu_seqlens_q; "
            "accepted is 'thd' with it, the others without"
        )
    return layout == "bhsd"


def _checked(text: str) -> str:
    """A formula that cannot end its token in the descriptor and begin another."""
    if ")_" in text:
        raise InvalidArgument(
            f"formula {text!r} has a name right after a parenthesis; accepted is an operator there"
        )
    return text


def _described(buffer: Array | float) -> str:
    if isinstance(buffer, (int, float)):
        return repr(buffer)
    return f"an array of {buffer.dtype} {tuple(buffer.shape)}"


def keep(arrays: dict[str, Any], name: str, array: Any) -> None:
    """Adds the array. Two under one name are refused: the later one would stand for both."""
    known = arrays.setdefault(name, array)
    numbers = isinstance(known, (int, float)) and isinstance(array, (int, float))
    if known is array or (numbers and repr(known) == repr(array)):
        return
    raise InvalidArgument(
        f"buffer {name!r} is {_described(known)} and {_described(array)}; accepted is one array a "
        "name, and 'slopes' and 'bias' are those of alibi and bias where these are given"
    )


@cache
def _resolve() -> Callable[[Any, Any], tuple[str, str, dict[str, Any]]]:
    """attn.trace.resolve, imported once where a program writes functions."""
    from .trace.tracer import resolve

    return resolve


class _Problem:
    """Collects the tokens of a descriptor and the buffers that they read."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.buffers: dict[str, Array] = {}
        self.declared: set[str] = set()  # those that have a token of their own

    def declare(self, name: str, array: Array | float, argument: str = "") -> None:
        """argument: what the caller knows the array by, its name where that is left out."""
        if name == MASK_ARRAY:
            argument = "mask"
        value = array if isinstance(array, (int, float)) else _scalar(name, array)
        keep(self.buffers, name, array if value is None else value)
        if name in self.declared:
            return
        self.declared.add(name)
        if value is not None:
            self.tokens.append(f"scalar({name}:{'i32' if isinstance(value, int) else 'f32'})")
        else:
            self.tokens.append(f"buffer({name}:{_attn.signature(argument or name, array)})")

    def formulas(self, mask: Any, score: Any) -> tuple[str, str]:
        """Texts of both, "" where there is none; what they read is declared."""
        mask_text, score_text = self.plain("mask", mask), self.plain("score", score)
        if mask_text is not None and score_text is not None:
            return mask_text, score_text
        new_mask, new_score, buffers = _resolve()(  # an expression or a function
            mask if mask_text is None else None, score if score_text is None else None
        )
        for name, array in buffers.items():
            self.declare(name, array)
        return mask_text or new_mask, score_text or new_score

    def plain(self, name: str, formula: Any) -> str | None:
        """The text of what needs no tracing, else None."""
        if formula is None or isinstance(formula, str):
            return _checked(formula) if formula else ""
        if isinstance(formula, Formula):
            for name, array in formula.buffers.items():
                self.declare(name, array)
            return _checked(formula.text)
        if hasattr(formula, "__dlpack__"):
            return self.allowed(name, formula)
        return None

    def allowed(self, name: str, mask: Array) -> str:
        indices = {2: "query, key", 4: "batch, head, query, key"}.get(_rank(name, mask))
        is_flags = _attn.signature(name, mask).startswith("u8")  # refuses what is no memory
        if name != "mask" or indices is None or not is_flags:
            raise InvalidArgument(
                f"{name} is an array of {mask.dtype} {tuple(mask.shape)}; accepted as a mask is "
                "bool or uint8 [query, key] or [batch, head, query, key]; numbers to add are a bias"
            )
        self.declare(MASK_ARRAY, mask)
        return f"{MASK_ARRAY}[{indices}] != 0"

    def alibi(self, slopes: Array) -> None:
        rank = _rank("alibi", slopes)
        if rank not in (1, 2) or slopes.shape[-1] == 0:
            raise InvalidArgument(
                f"alibi has shape {tuple(slopes.shape)}; accepted is [heads_q] or [batch, heads_q]"
            )
        if rank == 2:
            self.declare(HEAD_SLOPES, slopes, "alibi")
            self.tokens.append(
                f"score(score - {HEAD_SLOPES}[batch, head] * abs(to_float(position - key)))"
            )
            return
        keep(self.buffers, "slopes", slopes)
        self.tokens += [f"hq{slopes.shape[0]}", "alibi"]

    def bias(self, bias: Array) -> None:
        keep(self.buffers, "bias", bias)
        dtype, _, shape = _attn.signature("bias", bias).partition(":")
        if dtype == "u8":
            raise InvalidArgument(
                f"bias is of {bias.dtype}; accepted are float32, bfloat16 and float16 to add, and "
                "bool as a mask"
            )
        if shape.count("x") not in (1, 3):
            raise InvalidArgument(
                f"bias has shape {tuple(bias.shape)}; accepted is [query, key] or [batch, head, "
                "query, key]"
            )
        self.tokens.append(f"bias{shape}{'' if dtype == 'f32' else dtype}")


# Options without tensors, by their keywords and the types of these. A program uses few.
_KNOWN: dict[tuple[Any, ...], _attn.Options] = {}
_MOST_KNOWN = 4096
_PLAIN = (bool, int, float, str, type(None))


def _is_plain(value: Any) -> bool:
    """Whether the value is known by its hash: a tensor, also one of a window, may change."""
    if isinstance(value, tuple):
        return all(isinstance(one, _PLAIN) for one in value)
    return isinstance(value, _PLAIN)


def _has_integers(window: Any) -> bool:
    """Whether the window has no other types: (1.0, 0.0), which is refused, is equal to (1, 0)."""
    return window is None or (type(window) is tuple and {*map(type, window)} <= {int, type(None)})


def make_options(**keywords: Unpack[Options]) -> _attn.Options:
    """The options of one call; attn.attention documents them."""
    # What is equal but of another type may be refused: 2.0 as threads, where 2 was taken.
    key = (*keywords.items(), *map(type, keywords.values()))
    may_be_known = _has_integers(keywords.get("window"))
    try:
        known = _KNOWN.get(key) if may_be_known else None
    except (TypeError, ValueError):  # an array of NumPy has no hash, nor a writable memoryview
        known = None
    if known is not None:
        return known
    made = _make_options(**keywords)
    if made.has_arrays or "rng" in keywords:
        return made
    if may_be_known and all(map(_is_plain, keywords.values())):
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = made
    return made


def _make_options(
    *,
    mask: Mask | None = None,
    score: Score | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi: Array | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
    dropout: float = 0.0,
    rng: int | tuple[int, int] | Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    page_table: Array | None = None,
    key_list: Array | None = None,
    prefix_k: Array | None = None,
    prefix_v: Array | None = None,
    prefix_page_table: Array | None = None,
    seqlen_prefix: int | None = None,
    type_q: str | None = None,
    type_k: str | None = None,
    type_v: str | None = None,
    type_o: str | None = None,
    scale_q: Array | None = None,
    scale_k: Array | None = None,
    scale_v: Array | None = None,
    layout: str | None = None,
    backend: str = "auto",
    algorithm: str = "auto",
    threads: int = 0,
    deterministic: bool = False,
    batch_invariant: bool = False,
) -> _attn.Options:
    heads_first = layout is not None and _heads_first(layout, cu_seqlens_q)
    problem = _Problem()
    tokens = problem.tokens
    if causal is not False and is_set("causal", causal):
        tokens.append("causal")
    if window is not None:
        left, right = window_sides(window)
        tokens.append(f"window{left}x{right}")
    if softcap is not None:
        text = number_text("softcap", softcap)
        if float(text):
            tokens.append("softcap" + text)
    if alibi is not None:
        problem.alibi(alibi)
    if bias is not None:
        problem.bias(bias)
    if mask is not None or score is not None:
        mask_text, score_text = problem.formulas(mask, score)
        if mask_text:
            tokens.append(f"mask({mask_text})")
        if score_text:
            tokens.append(f"score({score_text})")
    if scale is not None:
        tokens.append("scale" + number_text("scale", scale))
    if seqlen_prefix is not None:
        if prefix_page_table is None:
            raise InvalidArgument(
                f"seqlen_prefix is {seqlen_prefix!r} and prefix_page_table is not given; accepted "
                "is the number of keys in its pages, and none with prefix_k"
            )
        tokens.append(f"sp{size_of('seqlen_prefix', seqlen_prefix)}_pagedprefix")
    elif prefix_page_table is not None:
        raise InvalidArgument(
            "prefix_page_table is given without seqlen_prefix; accepted is the number of keys in "
            "its pages, of which the last may not be full"
        )
    if prefix_page_table is not None:
        if page_table is None:
            raise InvalidArgument(
                "prefix_page_table is given without page_table; accepted are both, as the prefix "
                "lies in pages of k and v, or prefix_k and prefix_v"
            )
        if prefix_k is not None or prefix_v is not None:
            raise InvalidArgument(
                f"{'prefix_v' if prefix_k is None else 'prefix_k'} is given beside "
                "prefix_page_table; accepted is a prefix in pages or in arrays of its own"
            )
    tokens += type_tokens(type_q, type_k, type_v, type_o)
    tensors: dict[str, Array] = {}
    seed = offset = 0
    if type(dropout) is not float or dropout:  # an array is no condition
        text = number_text("dropout", 0.0 if dropout is None else dropout)
        if not 0 <= float(text) < 1:
            raise InvalidArgument(f"dropout is {dropout!r}; accepted is a number in [0, 1)")
        seed, offset, state = rng_state(float(text), rng)
        if float(text):
            tokens.append("dropout" + text)
        if state is not None:
            tokens.append("rngstate")
            tensors["rng_state"] = state
    if sink is not None:
        tokens.append("sink")
        tensors["sink"] = sink
    for name, array in (
        ("cu_seqlens_q", cu_seqlens_q),
        ("cu_seqlens_k", cu_seqlens_k),
        ("seqused_q", seqused_q),
        ("seqused_k", seqused_k),
        ("page_table", page_table),
        ("key_list", key_list),
        ("prefix_k", prefix_k),
        ("prefix_v", prefix_v),
        ("prefix_page_table", prefix_page_table),
        ("scale_q", scale_q),
        ("scale_k", scale_k),
        ("scale_v", scale_v),
    ):
        if array is not None:
            tensors[name] = array
    for name in ("q", "k", "v", *tensors):
        if name in problem.buffers:  # their gradients would have one name
            raise InvalidArgument(
                f"buffer {name!r} of a formula has the name of an argument that is given; accepted "
                "is another name"
            )
    return _attn.Options(
        "_".join(tokens),
        tensors,
        problem.buffers,
        heads_first,
        size_of("max_seqlen_q", 0 if max_seqlen_q is None else max_seqlen_q),
        size_of("max_seqlen_k", 0 if max_seqlen_k is None else max_seqlen_k),
        seed,
        offset,
        backend_of(backend),
        _choice("algorithm", algorithm),
        size_of("threads", threads),
        is_set("deterministic", deterministic),
        is_set("batch_invariant", batch_invariant),
    )


# Python's error for a keyword that does not exist names the function that users call.
_make_options.__qualname__ = "attention"
