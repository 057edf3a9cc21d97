#include "verify/ranks.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "core/tensor/integers.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/memory.hpp"
#include "verify/device_data.hpp"

namespace attn::verify {
namespace {

std::vector<std::int32_t> numbers_of(const Tensor& t) {
  if (!t.given()) return {};
  std::vector<std::int32_t> numbers;
  for (std::int64_t i = 0; i < t.size(); ++i) {
    numbers.push_back(static_cast<std::int32_t>(core::Integers(t)[i]));
  }
  return numbers;
}

// Tensors of a rank where it works: the host's own, or copies on a GPU.
class OnDevice {
 public:
  explicit OnDevice(Device device) : device_(device) {}

  bool is_gpu() const { return device_.type == DeviceType::cuda; }

  Tensor input(const Tensor& host) {
    if (!host.given() || device_.type == DeviceType::cpu) return host;
    return upload(host, device_, memory_);
  }
  // What download() copies back; as the host's before.
  Tensor result(const Tensor& host) {
    const Tensor there = input(host);
    if (there.given() && device_.type != DeviceType::cpu && host.size() > 0) {
      results_.emplace_back(host, &memory_.back());
    }
    return there;
  }
  void download() const {
    for (const auto& [host, memory] : results_) {
      memory->download(host.data, static_cast<std::size_t>(host.size()) * size_of(host.dtype));
    }
  }

 private:
  Device device_;
  std::list<cuda::DeviceBuffer> memory_;
  std::vector<std::pair<Tensor, const cuda::DeviceBuffer*>> results_;
};

// A rank's rows of scales, and all of those that are one, or one a head.
class ScaleShard {
 public:
  ScaleShard(const Tensor& whole, const std::vector<dist::Rows>& rows)
      : shard_(with_columns(whole), rows, false, true), tensor(whole) {
    if (whole.rank <= 1) return;
    tensor = shard_.tensor;
    --tensor.rank;
  }

 private:
  static Tensor with_columns(Tensor t) {
    if (t.rank <= 1) return {};
    const auto last = static_cast<std::size_t>(t.rank++);
    t.shape[last] = t.strides[last] = 1;
    return t;
  }
  Shard shard_;

 public:
  Tensor tensor;
};

Inputs rank_inputs(const CaseData& data, const Shard& q, const Shard& k, const Shard& v,
                   OnDevice& on) {
  Inputs inputs{.q = on.input(q.tensor), .k = on.input(k.tensor), .v = on.input(v.tensor)};
  inputs.sink = on.input(data.inputs.sink);
  inputs.rng_state = on.input(data.inputs.rng_state);
  for (const auto& [name, tensor] : data.inputs.buffers) {
    inputs.buffers.emplace_back(name, on.input(tensor));
  }
  if (!on.is_gpu()) return inputs;
  // Tensors that expressions own are the host's.
  for (const expr::Expr* e : {&data.problem.mask, &data.problem.score}) {
    if (e->empty()) continue;
    for (const auto& buffer : expr::buffers(*e)) {
      const auto is_it = [&](const auto& bound) { return bound.first == buffer->name(); };
      if (!buffer->tensor().given() || std::ranges::any_of(inputs.buffers, is_it)) continue;
      inputs.buffers.emplace_back(buffer->name(), on.input(buffer->tensor()));
    }
  }
  return inputs;
}

// to <- from, of one shape and of floats.
void copy_elements(const Tensor& from, const Tensor& to) {
  for (std::int64_t i = 0; i < from.size(); ++i) {
    std::int64_t left = i, a = 0, b = 0;
    for (std::int32_t d = from.rank; d-- > 0;) {
      const auto axis = static_cast<std::size_t>(d);
      a += left % from.shape[axis] * from.strides[axis];
      b += left % from.shape[axis] * to.strides[axis];
      left /= from.shape[axis];
    }
    static_cast<float*>(to.data)[b] = static_cast<const float*>(from.data)[a];
  }
}

// The largest scores of a rank: each has all of them, of which the last rank's are looked at.
class OwnMaxLogit {
 public:
  explicit OwnMaxLogit(const Tensor& whole) : tensor(whole), whole_(whole) {
    if (!whole.given()) return;
    memory_.assign(static_cast<std::size_t>(whole.size()) * size_of(whole.dtype), kPoison);
    tensor.data = memory_.data();
    tensor.strides[0] = 1;
  }
  OwnMaxLogit(const OwnMaxLogit&) = delete;
  OwnMaxLogit& operator=(const OwnMaxLogit&) = delete;
  void put_back(const dist::Group& group) const {
    if (!whole_.given() || group.rank() + 1 < group.size()) return;
    for (std::int64_t head = 0; head < whole_.size(); ++head) {
      store_element(whole_, head * whole_.strides[0], load_element(tensor, head));
    }
  }

  Tensor tensor;

 private:
  Tensor whole_;
  std::vector<std::byte> memory_;
};

// Ranks take the machine's GPUs in turn, from the one that is named on.
PlanOptions options_of_rank(const PlanOptions& local, int rank) {
  PlanOptions own = local;
  if (own.device.type == DeviceType::cuda) {
    own.device.index = (own.device.index + rank) % std::max(1, cuda::device_count());
  }
  return own;
}

// An engine of GPUs that carries their messages and shares no memory, as NCCL's does.
class CarriesAlone : public dist::Engine {
 public:
  explicit CarriesAlone(dist::Group group) : group_(std::move(group)) {}
  std::string_view name() const noexcept override { return "carries"; }
  int rank() const noexcept override { return group_.rank(); }
  int size() const noexcept override { return group_.size(); }
  void exchange(std::span<const dist::Send> sends, std::span<const dist::Receive> receives,
                std::chrono::milliseconds timeout) override {
    group_.engine().exchange(sends, receives, timeout);
  }
  bool carries(Device device) const noexcept override { return group_.engine().carries(device); }
  void fail(const std::string& cause) noexcept override { group_.engine().fail(cause); }

 private:
  dist::Group group_;
};

// Of GPUs an odd number of ranks copies through the host; of even ones every other one reads each
// other's memory, and the rest send messages from GPU to GPU.
std::vector<dist::Group> groups_of(const RankOptions& ranks, const PlanOptions& local) {
  if (local.device.type == DeviceType::cpu || ranks.ranks % 2 != 0) {
    return dist::in_process(ranks.ranks);
  }
  std::vector<Device> devices;
  for (int r = 0; r < ranks.ranks; ++r) devices.push_back(options_of_rank(local, r).device);
  std::vector<dist::Group> groups = dist::local(devices);
  if (ranks.ranks % 4 != 0) return groups;
  for (dist::Group& group : groups) {
    group = dist::Group(std::make_shared<CarriesAlone>(std::move(group)));
  }
  return groups;
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
  const PlanOptions own = options_of_rank(local, group.rank());
  const dist::Plan plan =
      dist::make_plan(data.problem, group, dist_options(data, ranks, own), where);
  const auto& rows = plan.rows(group.rank());
  const auto& keys = plan.keys(group.rank());
  const Shard q(data.inputs.q, rows, false, true);
  const Shard k(data.inputs.k, keys, false, true);
  const Shard v(data.inputs.v, keys, false, true);
  const Shard o(data.outputs.o, rows, false, false);
  const Shard logs(lse ? data.outputs.lse : Tensor{}, rows, true, false);
  OnDevice on(own.device);
  OwnMaxLogit largest(data.outputs.max_logit);
  const Outputs outputs{.o = on.result(o.tensor),
                        .lse = on.result(logs.tensor),
                        .max_logit = on.result(largest.tensor)};
  const ScaleShard scale_q(data.inputs.scale_q, rows), scale_k(data.inputs.scale_k, keys),
      scale_v(data.inputs.scale_v, keys);
  Inputs inputs = rank_inputs(data, q, k, v, on);
  inputs.scale_q = scale_q.tensor;
  inputs.scale_k = scale_k.tensor;
  inputs.scale_v = scale_v.tensor;
  dist::forward(plan, inputs, outputs, where);
  on.download();
  largest.put_back(group);
  o.put_back();
  logs.put_back();
  return plan;
}

void backward_on_rank(CaseData& data, const dist::Group& group, const RankOptions& ranks,
                      const PlanOptions& local, const attn::Context& context) {
  const dist::Context where{.local = context};
  const PlanOptions own = options_of_rank(local, group.rank());
  const dist::Plan plan =
      dist::make_plan(data.problem, group, dist_options(data, ranks, own), where);
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
  OnDevice on(own.device);
  // Sums over all ranks: each rank has its own, of which the last rank's is looked at.
  std::list<std::vector<float>> sums;
  std::vector<std::pair<Tensor, Tensor>> copies;
  const auto sum_like = [&](const Tensor& t) {
    if (!t.given()) return t;
    Tensor own = t;
    sums.emplace_back(static_cast<std::size_t>(t.size()), std::numeric_limits<float>::quiet_NaN());
    own.data = sums.back().data();
    std::int64_t stride = 1;
    for (std::int32_t d = t.rank; d-- > 0;) {
      own.strides[static_cast<std::size_t>(d)] = stride;
      stride *= t.shape[static_cast<std::size_t>(d)];
    }
    copies.emplace_back(own, t);
    return on.result(own);
  };
  Gradients gradients{
      .dq = on.result(dq.tensor), .dk = on.result(dk.tensor), .dv = on.result(dv.tensor)};
  gradients.dsink = sum_like(data.gradients.dsink);
  for (const auto& [name, tensor] : data.gradients.buffers) {
    gradients.buffers.emplace_back(name, sum_like(tensor));
  }
  dist::backward(plan, rank_inputs(data, q, k, v, on),
                 {.o = on.input(o.tensor), .lse = on.input(lse.tensor)},
                 {on.input(d_o.tensor), on.input(d_lse.tensor)}, gradients, where);
  on.download();
  dq.put_back();
  dk.put_back();
  dv.put_back();
  if (group.rank() + 1 < group.size()) return;
  for (const auto& [own, whole] : copies) copy_elements(own, whole);
}

void cached_on_rank(CaseData& data, const dist::Group& group, const PlanOptions& local,
                    const attn::Context& context, const Outputs& outputs) {
  Inputs inputs = data.inputs;
  const Tensor& table = data.inputs.page_table;
  const std::int64_t batch = table.shape[0], pages = table.shape[1];
  const std::int64_t own = (pages + group.size() - 1 - group.rank()) / group.size();
  const core::Integers whole(table);
  std::vector<std::int64_t> entries(static_cast<std::size_t>(batch * own));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < own; ++i) {
      entries[static_cast<std::size_t>(b * own + i)] =
          whole[table.offset({b, i * group.size() + group.rank()})];
    }
  }
  inputs.page_table = tensor(entries.data(), {batch, own});
  dist::forward_cached(data.problem, group, inputs, outputs, local, {.local = context});
}

void forward_on_ranks(CaseData& data, const RankOptions& ranks, const PlanOptions& local,
                      const attn::Context& context, bool lse) {
  if (data.problem.layout_k == Layout::paged) {
    return on_ranks(dist::in_process(ranks.ranks), [&](const dist::Group& group) {
      OwnMaxLogit largest(data.outputs.max_logit);
      Outputs outputs{.o = data.outputs.o,
                      .lse = lse ? data.outputs.lse : Tensor{},
                      .max_logit = largest.tensor};
      // Every rank gets the whole of O: that of the last one is looked at.
      const Shard o(group.rank() + 1 < group.size() ? outputs.o : Tensor{},
                    {{0, outputs.o.shape[static_cast<std::size_t>(outputs.o.rank - 3)]}}, false,
                    false);
      if (o.tensor.given()) outputs = {.o = o.tensor, .lse = {}, .max_logit = outputs.max_logit};
      cached_on_rank(data, group, local, context, outputs);
      largest.put_back(group);
    });
  }
  on_ranks(groups_of(ranks, local), [&](const dist::Group& group) {
    forward_on_rank(data, group, ranks, local, context, lse);
  });
}

void backward_on_ranks(CaseData& data, const RankOptions& ranks, const PlanOptions& local,
                       const attn::Context& context) {
  on_ranks(groups_of(ranks, local),
           [&](const dist::Group& group) { backward_on_rank(data, group, ranks, local, context); });
}

}  // namespace attn::verify
