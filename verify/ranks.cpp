#include "verify/ranks.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

namespace attn::verify {
namespace {

std::vector<std::int32_t> numbers_of(const Tensor& t) {
  if (!t.given()) return {};
  const auto* const values = static_cast<const std::int32_t*>(t.data);
  return {values, values + t.size()};
}

Inputs rank_inputs(const CaseData& data, const Shard& q, const Shard& k, const Shard& v) {
  Inputs inputs{.q = q.tensor, .k = k.tensor, .v = v.tensor};
  inputs.sink = data.inputs.sink;
  inputs.rng_state = data.inputs.rng_state;
  inputs.buffers = data.inputs.buffers;
  return inputs;
}

std::int64_t rows_of(const std::vector<dist::Rows>& list) {
  std::int64_t rows = 0;
  for (const dist::Rows& range : list) rows += range.end - range.begin;
  return rows;
}

}  // namespace

void on_ranks(const std::vector<dist::Group>& groups,
              const std::function<void(const dist::Group& group)>& work) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (const dist::Group& group : groups) {
    threads.emplace_back([&, group] {
      try {
        work(group);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

dist::Options dist_options(const CaseData& data, const RankOptions& ranks,
                           const PlanOptions& local) {
  dist::Options options{.deal = ranks.deal, .chunk = ranks.chunk};
  options.lengths = {.cu_seqlens_q = numbers_of(data.inputs.cu_seqlens_q),
                     .cu_seqlens_k = numbers_of(data.inputs.cu_seqlens_k),
                     .seqused_q = numbers_of(data.inputs.seqused_q),
                     .seqused_k = numbers_of(data.inputs.seqused_k)};
  options.buffers = data.inputs.buffers;
  options.local = local;
  return options;
}

Shard::Shard(const Tensor& whole, const std::vector<dist::Rows>& rows, bool heads_first, bool copy)
    : whole_(whole), rows_(rows), heads_first_(heads_first) {
  if (!whole.given()) return;
  tensor = whole;
  const auto axis = static_cast<std::size_t>(heads_first ? whole.rank - 1 : whole.rank - 3);
  tensor.shape[axis] = rows_of(rows);
  std::int64_t stride = 1;
  for (std::int32_t d = whole.rank; d-- > 0;) {
    tensor.strides[static_cast<std::size_t>(d)] = stride;
    stride *= tensor.shape[static_cast<std::size_t>(d)];
  }
  memory_.assign(std::max<std::size_t>(1, static_cast<std::size_t>(stride) * size_of(whole.dtype)),
                 std::byte{0xff});
  tensor.data = memory_.data();
  const std::size_t size = size_of(whole.dtype);
  if (copy) {
    for_each([&](std::byte* own, std::byte* of_whole) { std::memcpy(own, of_whole, size); });
  }
}

void Shard::put_back() const {
  if (!whole_.given()) return;
  const std::size_t size = size_of(whole_.dtype);
  for_each([&](std::byte* own, std::byte* of_whole) { std::memcpy(of_whole, own, size); });
}

template <class Visit>
void Shard::for_each(const Visit& visit) const {
  const auto axis = static_cast<std::size_t>(heads_first_ ? whole_.rank - 1 : whole_.rank - 3);
  const auto size = static_cast<std::int64_t>(size_of(whole_.dtype));
  Tensor one = tensor;  // of one row
  one.shape[axis] = 1;
  std::int64_t local = 0;
  for (const dist::Rows& range : rows_) {
    for (std::int64_t row = range.begin; row < range.end; ++row, ++local) {
      for (std::int64_t i = 0; i < one.size(); ++i) {
        std::int64_t left = i, own = local * tensor.strides[axis];
        std::int64_t of_whole = row * whole_.strides[axis];
        for (std::int32_t d = one.rank; d-- > 0;) {
          const auto at = static_cast<std::size_t>(d);
          own += left % one.shape[at] * tensor.strides[at];
          of_whole += left % one.shape[at] * whole_.strides[at];
          left /= one.shape[at];
        }
        visit(static_cast<std::byte*>(tensor.data) + own * size,
              static_cast<std::byte*>(whole_.data) + of_whole * size);
      }
    }
  }
}

dist::Plan forward_on_rank(CaseData& data, const dist::Group& group, const RankOptions& ranks,
                           const PlanOptions& local, const attn::Context& context, bool lse) {
  const dist::Context where{.local = context};
  const dist::Plan plan =
      dist::make_plan(data.problem, group, dist_options(data, ranks, local), where);
  const auto& rows = plan.rows(group.rank());
  const auto& keys = plan.keys(group.rank());
  const Shard q(data.inputs.q, rows, false, true);
  const Shard k(data.inputs.k, keys, false, true);
  const Shard v(data.inputs.v, keys, false, true);
  const Shard o(data.outputs.o, rows, false, false);
  const Shard logs(lse ? data.outputs.lse : Tensor{}, rows, true, false);
  dist::forward(plan, rank_inputs(data, q, k, v), {.o = o.tensor, .lse = logs.tensor}, where);
  o.put_back();
  logs.put_back();
  return plan;
}

void backward_on_rank(CaseData& data, const dist::Group& group, const RankOptions& ranks,
                      const PlanOptions& local, const attn::Context& context) {
  const dist::Context where{.local = context};
  const dist::Plan plan =
      dist::make_plan(data.problem, group, dist_options(data, ranks, local), where);
  const auto& rows = plan.rows(group.rank());
  const auto& keys = plan.keys(group.rank());
  const Shard q(data.inputs.q, rows, false, true);
  const Shard k(data.inputs.k, keys, false, true);
  const Shard v(data.inputs.v, keys, false, true);
  const Shard o(data.outputs.o, rows, false, true);
  const Shard lse(data.outputs.lse, rows, true, true);
  const Shard d_o(data.d_o, rows, false, true);
  const Shard d_lse(data.d_lse, rows, true, true);
  const Shard dq(data.gradients.dq, rows, false, false);
  const Shard dk(data.gradients.dk, keys, false, false);
  const Shard dv(data.gradients.dv, keys, false, false);
  // Sums over all ranks: each rank has its own, of which the last rank's is looked at.
  std::vector<std::vector<float>> sums;
  const auto sum_like = [&](const Tensor& t) {
    if (!t.given() || group.rank() == group.size() - 1) return t;
    Tensor own = t;
    sums.emplace_back(static_cast<std::size_t>(t.size()));
    own.data = sums.back().data();
    std::int64_t stride = 1;
    for (std::int32_t d = t.rank; d-- > 0;) {
      own.strides[static_cast<std::size_t>(d)] = stride;
      stride *= t.shape[static_cast<std::size_t>(d)];
    }
    return own;
  };
  Gradients gradients{.dq = dq.tensor, .dk = dk.tensor, .dv = dv.tensor};
  gradients.dsink = sum_like(data.gradients.dsink);
  for (const auto& [name, tensor] : data.gradients.buffers) {
    gradients.buffers.emplace_back(name, sum_like(tensor));
  }
  dist::backward(plan, rank_inputs(data, q, k, v), {.o = o.tensor, .lse = lse.tensor},
                 {d_o.tensor, d_lse.tensor}, gradients, where);
  dq.put_back();
  dk.put_back();
  dv.put_back();
}

void forward_on_ranks(CaseData& data, const RankOptions& ranks, const PlanOptions& local,
                      const attn::Context& context, bool lse) {
  on_ranks(dist::in_process(ranks.ranks), [&](const dist::Group& group) {
    forward_on_rank(data, group, ranks, local, context, lse);
  });
}

void backward_on_ranks(CaseData& data, const RankOptions& ranks, const PlanOptions& local,
                       const attn::Context& context) {
  on_ranks(dist::in_process(ranks.ranks),
           [&](const dist::Group& group) { backward_on_rank(data, group, ranks, local, context); });
}

}  // namespace attn::verify
