"""Exact attention with any mask and any change of the scores, on the arrays you have.

>>> import attn, numpy as np
>>> q = k = v = np.ones((1, 4, 2, 8), np.float32)  # [batch, seqlen, heads, head_dim]
>>> attn.attention(q, k, v, mask="key <= position").shape
(1, 4, 2, 8)
"""

from ._attn import __version__
from .caches import append_kv, quantize
from .errors import (
    DeviceError,
    Error,
    FileError,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    Unavailable,
    Unsupported,
)
from .formula import Formula, block_mask, tree_mask
from .information import alibi_slopes, get_num_threads, info, set_num_threads, tree_words
from .operations import (
    Plan,
    attention,
    attention_backward,
    compile,
    dropout_mask,
    merge,
    plan,
    tiles,
)

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from . import dist as dist
    from . import flash_attn as flash_attn
    from . import flex as flex
    from . import hf as hf
    from . import jax as jax
    from . import torch as torch
    from .trace.buffers import buffer
    from .trace.expression import literal, where
    from .trace.functions import clamp, maximum, minimum
    from .trace.refusal import TraceError
    from .trace.symbol import symbols

# Imported when they are first asked for: most programs write no expressions, few use every library.
_EXPRESSIONS = {
    "TraceError": "refusal",
    "buffer": "buffers",
    "clamp": "functions",
    "literal": "expression",
    "maximum": "functions",
    "minimum": "functions",
    "symbols": "symbol",
    "where": "expression",
}
_MODULES = ("dist", "flash_attn", "flex", "hf", "jax", "torch")

__all__ = [
    "DeviceError",
    "Error",
    "FileError",
    "Formula",
    "InternalError",
    "InvalidArgument",
    "OutOfMemory",
    "Plan",
    "TraceError",
    "Unavailable",
    "Unsupported",
    "__version__",
    "alibi_slopes",
    "append_kv",
    "attention",
    "attention_backward",
    "block_mask",
    "buffer",
    "clamp",
    "compile",
    "dropout_mask",
    "get_num_threads",
    "info",
    "literal",
    "maximum",
    "merge",
    "minimum",
    "plan",
    "quantize",
    "set_num_threads",
    "symbols",
    "tiles",
    "tree_mask",
    "tree_words",
    "where",
]


if not TYPE_CHECKING:  # a type checker would take any name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _EXPRESSIONS:
            import_module(".trace.activations", __name__)  # fills the table of functions
            return getattr(import_module(f".trace.{_EXPRESSIONS[name]}", __name__), name)
        if name in _MODULES:
            return import_module(f".{name}", __name__)
        raise AttributeError(f"module 'attn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
