// Both passes for Python benchmarks: plans by descriptor, runs on device pointers. Tensors are
// contiguous, [batch, seqlen, heads, head_dim], or packed, [rows, heads, head_dim]. Matrix products
// likewise.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "attn/attn.hpp"

namespace {

#ifdef ATTN_C_ON_CPU  // tests/papers/on_cpu.py
constexpr attn::Device kDevice{};
#else
constexpr attn::Device kDevice{attn::DeviceType::cuda, 0};
#endif

struct Handle {
  attn::Problem problem;
  attn::Plan plan;
  // What mask and score read, in the order of their first use, mask first.
  std::vector<std::shared_ptr<const attn::expr::Buffer>> buffers;
  // f32, contiguous, of the shapes of `buffers`; null for those without a gradient.
  std::vector<void*> gradients;
  // Of packed tensors: rows where sequences start, and how many rows there are.
  attn::Tensor cu_seqlens{};
  std::int64_t rows = 0;
  // Of paged K and V.
  attn::Tensor page_table{}, seqused_k{};
  std::int64_t pages = 0;
  attn::Tensor key_list{};
  attn::Tensor scale_k{}, scale_v{};
};

void* make_handle(const char* descriptor, attn::Phase phase, const char* kernel,
                  long long* workspace_bytes, bool deterministic = false,
                  bool batch_invariant = false) {
  try {
    const attn::Problem problem = attn::parse_problem(descriptor);
    attn::PlanOptions options;
    options.device = kDevice;
    options.kernel = kernel;
    options.deterministic = deterministic;
    options.batch_invariant = batch_invariant;
    auto* handle = new Handle{
        problem, attn::make_plan(problem, phase, options), {}, {}, {}, 0, {}, {}, 0, {}, {}, {}};
    for (const attn::expr::Expr& e : {problem.mask, problem.score}) {
      if (e.empty()) continue;
      const auto found = attn::expr::buffers(e);
      handle->buffers.insert(handle->buffers.end(), found.begin(), found.end());
    }
    *workspace_bytes = handle->plan.workspace_bytes;
    return handle;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", descriptor, error.what());
    return nullptr;
  }
}

attn::Tensor rows_of(const Handle& handle, void* data, attn::DType dtype, std::int64_t seqlen,
                     std::int64_t heads, std::int64_t row) {
  if (handle.rows > 0) return attn::tensor(data, dtype, {handle.rows, heads, row}, kDevice);
  return attn::tensor(data, dtype, {handle.problem.batch, seqlen, heads, row}, kDevice);
}
attn::Tensor like_q(const Handle& handle, void* data, std::int64_t head_dim,
                    attn::CacheType type = attn::CacheType::as_q) {
  const attn::Problem& p = handle.problem;
  attn::DType dtype = p.dtype;
  if (type != attn::CacheType::as_q) dtype = attn::storage_dtype(type);
  return rows_of(handle, data, dtype, p.seqlen_q, p.heads_q, head_dim);
}
// type: of K or V, or of its gradient.
attn::Tensor like_k(const Handle& handle, void* data, std::int64_t head_dim,
                    attn::CacheType type = attn::CacheType::as_q) {
  const attn::Problem& p = handle.problem;
  attn::DType dtype = p.dtype;
  if (type != attn::CacheType::as_q) dtype = attn::storage_dtype(type);
  const std::int64_t row = attn::row_size(type, head_dim);
  if (handle.pages > 0) {
    return attn::tensor(data, dtype, {handle.pages, p.page_size, p.heads_k, row}, kDevice);
  }
  return rows_of(handle, data, dtype, p.seqlen_k, p.heads_k, row);
}

attn::Inputs inputs_of(const Handle& handle, void* q, void* k, void* v, void** buffers) {
  const attn::Problem& p = handle.problem;
  attn::Inputs inputs;
  inputs.q = like_q(handle, q, p.head_dim, p.type_q);
  inputs.k = like_k(handle, k, p.head_dim, p.type_k);
  inputs.v = like_k(handle, v, p.head_dim_v, p.type_v);
  inputs.scale_k = handle.scale_k;
  inputs.scale_v = handle.scale_v;
  if (v == k) inputs.v.strides = inputs.k.strides;
  inputs.cu_seqlens_q = inputs.cu_seqlens_k = handle.cu_seqlens;
  if (handle.pages > 0) {
    inputs.cu_seqlens_k = {};
    inputs.page_table = handle.page_table;
    inputs.seqused_k = handle.seqused_k;
  }
  inputs.key_list = handle.key_list;
  for (std::size_t i = 0; i < handle.buffers.size(); ++i) {
    attn::Tensor tensor = handle.buffers[i]->tensor();
    tensor.data = buffers[i];
    tensor.device = kDevice;
    inputs.buffers.emplace_back(handle.buffers[i]->name(), tensor);
  }
  if (p.dropout.rng_state) {
    inputs.rng_state = attn::tensor(buffers[handle.buffers.size()], attn::DType::i64, {2}, kDevice);
  }
  return inputs;
}

attn::Outputs outputs_of(const Handle& handle, void* o, void* lse) {
  const attn::Problem& p = handle.problem;
  const bool packed = handle.rows > 0;
  if (lse == nullptr) return {.o = like_q(handle, o, p.head_dim_v)};
  return {.o = like_q(handle, o, p.head_dim_v),
          .lse = packed ? attn::tensor(lse, attn::DType::f32, {p.heads_q, handle.rows}, kDevice)
                        : attn::tensor(lse, attn::DType::f32, {p.batch, p.heads_q, p.seqlen_q},
                                       kDevice)};
}

attn::Context context_of(void* workspace, long long workspace_bytes, void* stream) {
  attn::Context context;
  context.stream = stream;
  if (workspace_bytes > 0) {
    context.workspace = attn::tensor(workspace, attn::DType::u8, {workspace_bytes}, kDevice);
  }
  return context;
}

struct Product {
  attn::MatmulPlan plan;
  std::string text;
};

// A contiguous matrix, of columns (column-major) or of rows.
attn::Tensor matrix(void* data, attn::DType dtype, std::int64_t rows, std::int64_t columns,
                    attn::MatrixOrder order) {
  attn::Tensor t = attn::tensor(data, dtype, {rows, columns}, kDevice);
  if (order == attn::MatrixOrder::column_major) t.strides[0] = 1, t.strides[1] = rows;
  return t;
}

// 0, or 1 after an error, whose text goes to stderr.
template <class Call>
int without_throwing(Call&& call) {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace

extern "C" {

// Null on an error, whose text goes to stderr. kernel: a kernel's name or "".
void* attn_plan(const char* descriptor, const char* kernel, long long* workspace_bytes) {
  return make_handle(descriptor, attn::Phase::forward, kernel, workspace_bytes);
}
void* attn_plan_backward(const char* descriptor, const char* kernel, long long* workspace_bytes) {
  return make_handle(descriptor, attn::Phase::backward, kernel, workspace_bytes);
}
void* attn_plan_deterministic(const char* descriptor, const char* kernel,
                              long long* workspace_bytes) {
  return make_handle(descriptor, attn::Phase::backward, kernel, workspace_bytes, true);
}

// With PlanOptions::batch_invariant.
void* attn_plan_invariant(const char* descriptor, const char* kernel, long long* workspace_bytes) {
  return make_handle(descriptor, attn::Phase::forward, kernel, workspace_bytes, false, true);
}

// Says where the pages of a plan for paged K and V are, of which there are `pages`: table, i32
// [batch, width], and how long each sequence is: seqused_k, i32 [batch]; both in device memory.
void attn_set_pages(void* plan, void* table, long long pages, long long width, void* seqused_k) {
  Handle& handle = *static_cast<Handle*>(plan);
  const std::int64_t batch = handle.problem.batch;
  handle.pages = pages;
  handle.page_table = attn::tensor(table, attn::DType::i32, {batch, width}, kDevice);
  handle.seqused_k = attn::tensor(seqused_k, attn::DType::i32, {batch}, kDevice);
}

// Says where the lists of keys of a plan for them are: i32 [batch, heads, seqlen_q, entries] in
// device memory, heads being 1 or heads_k.
void attn_set_key_list(void* plan, void* lists, long long heads) {
  Handle& handle = *static_cast<Handle*>(plan);
  const attn::Problem& p = handle.problem;
  handle.key_list =
      attn::tensor(lists, attn::DType::i32, {p.batch, heads, p.seqlen_q, p.key_list}, kDevice);
}

// Says where the scales of K and of V are, of types of their own that have scales: f32 [1] each in
// device memory.
void attn_set_scales(void* plan, void* scale_k, void* scale_v) {
  Handle& handle = *static_cast<Handle*>(plan);
  handle.scale_k = attn::tensor(scale_k, attn::DType::f32, {1}, kDevice);
  handle.scale_v = attn::tensor(scale_v, attn::DType::f32, {1}, kDevice);
}

// Says where the sequences of a plan for packed Q, K and V start, which are the same of all:
// cu_seqlens, i32 [batch + 1] in device memory, and how many rows there are. Of packed Q with paged
// K and V: those of Q.
void attn_set_packed(void* plan, void* cu_seqlens, long long rows) {
  Handle& handle = *static_cast<Handle*>(plan);
  handle.cu_seqlens =
      attn::tensor(cu_seqlens, attn::DType::i32, {handle.problem.batch + 1}, kDevice);
  handle.rows = rows;
}

// Says where the gradients of a plan's buffers go: a device pointer for each of Handle::buffers,
// null for none.
void attn_set_gradients(void* plan, void** gradients) {
  Handle& handle = *static_cast<Handle*>(plan);
  handle.gradients.assign(gradients, gradients + handle.buffers.size());
}

// 0 when the work is in the stream. v: where it is k, V is K's first columns, as in latent
// attention. lse: may be null. buffers: device pointers, in the order of Handle::buffers, each
// contiguous and of the shape that its declaration gives; then that of seed and offset where
// dropout reads them from memory.
int attn_forward(void* plan, void* q, void* k, void* v, void* o, void* lse, void** buffers,
                 void* workspace, long long workspace_bytes, void* stream) {
  return without_throwing([&] {
    const Handle& handle = *static_cast<Handle*>(plan);
    attn::forward(handle.plan, inputs_of(handle, q, k, v, buffers), outputs_of(handle, o, lse),
                  context_of(workspace, workspace_bytes, stream));
  });
}

// Likewise; gradients of buffers where attn_set_gradients asked for them.
int attn_backward(void* plan, void* q, void* k, void* v, void* o, void* lse, void* d_o, void* dq,
                  void* dk, void* dv, void** buffers, void* workspace, long long workspace_bytes,
                  void* stream) {
  return without_throwing([&] {
    const Handle& handle = *static_cast<Handle*>(plan);
    const attn::Problem& p = handle.problem;
    attn::Gradients gradients;
    gradients.dq = like_q(handle, dq, p.head_dim);
    gradients.dk = like_k(handle, dk, p.head_dim);
    gradients.dv = like_k(handle, dv, p.head_dim_v);
    for (std::size_t i = 0; i < handle.gradients.size(); ++i) {
      if (handle.gradients[i] == nullptr) continue;
      attn::Tensor tensor = handle.buffers[i]->tensor();
      tensor.data = handle.gradients[i];
      tensor.dtype = attn::DType::f32;
      tensor.device = kDevice;
      gradients.buffers.emplace_back(handle.buffers[i]->name(), tensor);
    }
    attn::backward(handle.plan, inputs_of(handle, q, k, v, buffers), outputs_of(handle, o, lse),
                   like_q(handle, d_o, p.head_dim_v), gradients,
                   context_of(workspace, workspace_bytes, stream));
  });
}

// 0 when the work is in the stream. kept: u8 [batch, heads_q, seqlen_q, seqlen_k] in device memory,
// 1 where the dropout of the descriptor's problem keeps an element of P, 0 where it drops it.
int attn_dropout_mask(const char* descriptor, void* kept, void* stream) {
  return without_throwing([&] {
    const attn::Problem p = attn::parse_problem(descriptor);
    attn::Context context;
    context.stream = stream;
    attn::dropout_mask(
        p,
        attn::tensor(kept, attn::DType::u8, {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k}, kDevice),
        context);
  });
}

// A plan of C (m x n) = A (m x k) B (k x n), which stays; null on an error, whose text goes to
// stderr. dtype: of A, B and C, or e4m3: 8-bit floats with scales, C in bf16. orders: "rcr", r or c
// for row- or column-major A, B, C. rung: as in MatmulOptions. mask: "", or "b" or "c", the matrix
// that has a mask of blocks of `block`.
void* attn_product(const char* dtype, const char* orders, long long m, long long n, long long k,
                   const char* rung, const char* mask, long long block,
                   long long* workspace_bytes) {
  Product* product = nullptr;
  without_throwing([&] {
    const bool float8 = std::strcmp(dtype, "e4m3") == 0;
    const auto order = [](char letter) {
      return letter == 'c' ? attn::MatrixOrder::column_major : attn::MatrixOrder::row_major;
    };
    attn::MatmulProblem p{.m = m, .n = n, .k = k};
    p.dtype = float8 ? attn::DType::u8 : attn::parse_dtype(dtype);
    p.output = float8 ? attn::DType::bf16 : p.dtype;
    p.float8 = float8 ? attn::Float8::e4m3 : attn::Float8::none;
    p.scaled = float8;
    p.order_a = order(orders[0]);
    p.order_b = order(orders[1]);
    p.order_c = order(orders[2]);
    if (mask[0] != 0) {
      p.masked = mask[0] == 'b' ? attn::MaskedMatrix::b : attn::MaskedMatrix::c;
      p.block = block;
    }
    attn::MatmulOptions options;
    options.device = kDevice;
    options.rung = rung;
    attn::MatmulPlan plan = attn::make_plan(p, options);
    *workspace_bytes = plan.workspace_bytes;
    product = new Product{plan, attn::to_string(plan)};
  });
  return product;
}
const char* attn_product_text(void* product) {
  return static_cast<Product*>(product)->text.c_str();
}

// 0 when the work is in the stream. scales: two floats in device memory, where A and B are 8-bit
// floats. mask: u8 [ceil(rows / block), ceil(columns / block)], strides in elements.
int attn_multiply(void* product, void* a, void* b, void* c, void* scales, void* mask,
                  long long mask_row_stride, long long mask_column_stride, void* workspace,
                  long long workspace_bytes, void* stream) {
  return without_throwing([&] {
    const attn::MatmulPlan& plan = static_cast<Product*>(product)->plan;
    const attn::MatmulProblem& p = plan.problem;
    attn::MatmulInputs inputs;
    inputs.a = matrix(a, p.dtype, p.m, p.k, p.order_a);
    inputs.b = matrix(b, p.dtype, p.k, p.n, p.order_b);
    if (p.scaled) {
      auto* scale = static_cast<float*>(scales);
      inputs.scale_a = attn::tensor(static_cast<void*>(scale), attn::DType::f32, {1}, kDevice);
      inputs.scale_b = attn::tensor(static_cast<void*>(scale + 1), attn::DType::f32, {1}, kDevice);
    }
    if (p.masked != attn::MaskedMatrix::none) {
      const std::int64_t rows = p.masked == attn::MaskedMatrix::b ? p.k : p.m;
      inputs.block_mask =
          attn::tensor(mask, attn::DType::u8,
                       {(rows + p.block - 1) / p.block, (p.n + p.block - 1) / p.block}, kDevice);
      inputs.block_mask.strides[0] = mask_row_stride;
      inputs.block_mask.strides[1] = mask_column_stride;
    }
    attn::matmul(plan, inputs, matrix(c, p.output, p.m, p.n, p.order_c),
                 context_of(workspace, workspace_bytes, stream));
  });
}
}
