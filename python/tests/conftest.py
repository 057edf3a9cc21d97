"""Makes tests/numpy importable: attention in fp64 NumPy, written from the documentation."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "numpy"))
# Devices of the CPU, for tests of JAX on several. JAX reads this once, when it makes the first.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
