"""Random problems, forward and backward, against attention in fp64 NumPy."""

import os

import numpy as np
import oracle
import problems
import pytest

SEED = 20261200
COUNT = int(os.environ.get("ATTN_TEST_PROBLEMS", "60"))


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_numpy(seed):
    dtypes = {"f32": np.float32, "f16": np.float16}
    if problems.make(seed).dtype == "bf16":
        dtypes["bf16"] = pytest.importorskip("ml_dtypes").bfloat16
    assert oracle.failures(seed, dtypes) == []
