"""Exact attention with any mask and any change of the scores, on the arrays you have.

>>> import attn, numpy as np
>>> q = k = v = np.ones((1, 4, 2, 8), np.float32)  # [batch, seqlen, heads, head_dim]
>>> attn.attention(q, k, v, mask="key <= position").shape
(1, 4, 2, 8)
"""

from ._attn import __version__
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
from .formula import Formula, block_mask
from .information import alibi_slopes, info
from .operations import Plan, attention, attention_backward, merge, plan

__all__ = [
    "DeviceError",
    "Error",
    "FileError",
    "Formula",
    "InternalError",
    "InvalidArgument",
    "OutOfMemory",
    "Plan",
    "Unavailable",
    "Unsupported",
    "__version__",
    "alibi_slopes",
    "attention",
    "attention_backward",
    "block_mask",
    "info",
    "merge",
    "plan",
]
