// attn.cpp: exact attention. Include this.
#pragma once

#include "attn/context.hpp"
#include "attn/dropout_mask.hpp"
#include "attn/error.hpp"
#include "attn/expr.hpp"
#include "attn/machine.hpp"
#include "attn/mask.hpp"
#include "attn/matmul.hpp"
#include "attn/plan.hpp"
#include "attn/problem.hpp"
#include "attn/run.hpp"
#include "attn/scalar.hpp"
#include "attn/softmax.hpp"
#include "attn/tensor.hpp"
#include "attn/version.hpp"
