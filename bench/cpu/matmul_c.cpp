// attn::matmul behind a C interface, for matmul_torch.py.
#include <attn/attn.hpp>
#include <memory>

namespace {

struct Product {
  attn::MatmulPlan plan;
  attn::Context context;
};
std::shared_ptr<attn::Executor> pool;

}  // namespace

extern "C" {

void attn_threads(int threads) { pool = attn::make_thread_pool(threads); }

// C (m x n) = A (m x k) B (k x n), all of `dtype` (an attn::DType), row-major; column_b: B
// column-major.
void* attn_product(int dtype, int64_t m, int64_t n, int64_t k, int column_b) {
  attn::MatmulProblem problem{.m = m, .n = n, .k = k};
  problem.dtype = problem.output = static_cast<attn::DType>(dtype);
  if (column_b != 0) problem.order_b = attn::MatrixOrder::column_major;
  attn::Context context;
  context.executor = pool;
  return new Product{attn::make_plan(problem, {}, context), context};
}

void attn_run(void* product, void* a, void* b, void* c) {
  const auto& [plan, context] = *static_cast<Product*>(product);
  const attn::MatmulProblem& p = plan.problem;
  const auto matrix = [&](void* data, int64_t rows, int64_t columns, bool column_major) {
    attn::Tensor t = attn::tensor(static_cast<float*>(data), {rows, columns});
    t.dtype = p.dtype;
    if (column_major) t.strides[0] = 1, t.strides[1] = rows;
    return t;
  };
  attn::matmul(plan,
               {.a = matrix(a, p.m, p.k, false),
                .b = matrix(b, p.k, p.n, p.order_b == attn::MatrixOrder::column_major)},
               matrix(c, p.m, p.n, false), context);
}

double attn_peak_gflops(int dtype) {
  attn::Context context;
  context.executor = pool;
  return attn::measure_peak_gflops(static_cast<attn::DType>(dtype), context, 0.05);
}
}
