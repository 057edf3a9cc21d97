"""Python functions and objects as masks and scores: an `Expr` is text that attn's parser reads.

expression.py has `Expr`, its operators and its text; functions.py, activations.py and rounding.py
what functions of PyTorch and NumPy make of it; buffers.py arrays that it reads; captured.py numbers
that a function captures, and bytecode.py what its code asks of them. tracer.py calls it with
symbols (symbol.py) and knows when it must be called again.
"""
