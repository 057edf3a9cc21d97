"""FlashAttention 2 and 3 by their names, on attn: same arguments, defaults, results, conventions.

from attn.flash_attn import flash_attn_func              # flash_attn
from attn.flash_attn.flash_attn_3 import flash_attn_func  # flash_attn_interface

Programs that import `flash_attn` themselves find this one after `attn.flash_attn.install()`, or
everywhere after `python -m attn.flash_attn install`. docs/coming-from/flash_attn.md.
"""

from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from .shim import install, uninstall

__version__ = "2.8.4"  # whose functions these are

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
    "uninstall",
]
