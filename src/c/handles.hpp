// What the handles of attn/attn.h hold.
#pragma once

#include <memory>

#include "attn/attn.h"
#include "attn/context.hpp"
#include "attn/expr.hpp"
#include "attn/matmul.hpp"
#include "attn/plan.hpp"

struct attn_expr {
  attn::expr::Expr expr;
};
struct attn_executor {
  std::shared_ptr<attn::Executor> executor;
};
struct attn_plan {
  attn::Plan plan;
};
struct attn_matmul_plan {
  attn::MatmulPlan plan;
};
