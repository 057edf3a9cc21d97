// What the text of expressions (src/cuda/codegen/expression_text.hpp) calls.
#pragma once

#include "expr/buffer.cuh"
#include "expr/exact.cuh"
#include "expr/fast.cuh"
#include "expr/integer.cuh"
#include "expr/range_load.cuh"
#include "expr/vector.cuh"
