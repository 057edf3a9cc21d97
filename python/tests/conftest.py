"""Makes tests/numpy importable: attention in fp64 NumPy, written from the documentation."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "numpy"))
