#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "attn/cache_type.hpp"
#include "core/cache_type.hpp"
#include "core/ceil_div.hpp"
#include "dist/call.hpp"

namespace attn::dist {

namespace {

// Scales [.., rows, heads] as rows of one element.
RowTensor scale_rows(Tensor scale, const RowList& rows) {
  if (!is_of_rows(scale)) return {};
  const auto last = static_cast<std::size_t>(scale.rank++);
  scale.shape[last] = scale.strides[last] = 1;
  return {scale, rows};
}

}  // namespace

RowMemory Traffic::gather(const Inputs& inputs) const {
  const auto me = static_cast<std::size_t>(rank());
  const Problem& p = plan_.problem;
  const CacheType type_k = core::type_of_k(p), type_v = core::type_of_v(p);
  KeyShapes shapes{{storage_dtype(type_k), row_size(type_k, p.head_dim)},
                   {storage_dtype(type_v), row_size(type_v, p.head_dim_v)}};
  if (is_of_rows(inputs.scale_k)) shapes.scale_k.dim = 1;
  if (is_of_rows(inputs.scale_v)) shapes.scale_v.dim = 1;
  RowMemory own;  // of the caller's memory
  own.k = {inputs.k, plan_.keys[me]};
  own.v = {inputs.v, plan_.keys[me]};
  own.scale_k = scale_rows(inputs.scale_k, plan_.keys[me]);
  own.scale_v = scale_rows(inputs.scale_v, plan_.keys[me]);
  const auto of_rows = [&](const RowList& rows) {
    return RowMemory(sequences(), rows, p.heads_k, shapes);
  };
  std::vector<std::shared_ptr<RowMemory>> arrived;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < plan_.ranks; ++r) {
    if (r == rank()) continue;
    const RowList to_send = moved_rows(plan_, rank(), r);
    const RowList to_get = moved_rows(plan_, r, rank());
    if (!to_send.empty()) {
      const auto message = std::make_shared<RowMemory>(of_rows(to_send));
      copy_keys(own, *message);
      sends.push_back({r, message->data(), message->bytes(), message});
    }
    if (!to_get.empty()) {
      const auto message = std::make_shared<RowMemory>(of_rows(to_get));
      receives.push_back({r, message->data(), message->bytes(), message});
      arrived.push_back(message);
    }
  }
  exchange(sends, receives);
  RowMemory gathered = of_rows(plan_.gathered[me]);
  copy_keys(own, gathered);
  for (const auto& message : arrived) copy_keys(*message, gathered);
  return gathered;
}

RowMemory Traffic::send_home(const RowMemory& partial) const {
  const auto me = static_cast<std::size_t>(rank());
  std::vector<std::shared_ptr<RowMemory>> arrived(static_cast<std::size_t>(plan_.ranks));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < plan_.ranks; ++r) {
    if (r == rank()) continue;
    const RowList to_send = moved_rows(plan_, r, rank());  // what came from there goes back
    const RowList to_get = moved_rows(plan_, rank(), r);
    if (!to_send.empty()) {
      const auto message = std::make_shared<RowMemory>(memory(to_send, sum_dtype()));
      copy_rows(partial.k, message->k);
      copy_rows(partial.v, message->v);
      sends.push_back({r, message->data(), message->bytes(), message});
    }
    if (!to_get.empty()) {
      const auto message = std::make_shared<RowMemory>(memory(to_get, sum_dtype()));
      receives.push_back({r, message->data(), message->bytes(), message});
      arrived[static_cast<std::size_t>(r)] = message;
    }
  }
  exchange(sends, receives);
  RowMemory sums = memory(plan_.keys[me], sum_dtype());
  sums.clear();
  for (std::size_t r = 0; r < arrived.size(); ++r) {
    const RowMemory* const terms = r == me ? &partial : arrived[r].get();
    if (terms == nullptr) continue;
    add_rows(terms->k, sums.k);
    add_rows(terms->v, sums.v);
  }
  return sums;
}

void largest_of_ranks(const Group& group, std::vector<double>& values,
                      std::chrono::milliseconds timeout) {
  const std::size_t bytes = values.size() * sizeof(double);
  const auto sent = std::make_shared<std::vector<double>>(values);
  const auto all =
      std::make_shared<std::vector<double>>(values.size() * static_cast<std::size_t>(group.size()));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < group.size(); ++r) {
    double* const theirs = all->data() + static_cast<std::size_t>(r) * values.size();
    if (r == group.rank()) {
      std::copy(values.begin(), values.end(), theirs);
      continue;
    }
    sends.push_back({r, sent->data(), bytes, sent});
    receives.push_back({r, theirs, bytes, all});
  }
  group.engine().exchange(sends, receives, timeout);
  for (std::size_t i = 0; i < all->size(); ++i) {
    double& largest = values[i % values.size()];
    const double theirs = (*all)[i];
    if (theirs > largest || std::isnan(theirs)) largest = theirs;  // NaN is below no number
  }
}

void Traffic::sum(std::vector<double>& values) const {
  const auto ranks = static_cast<std::int64_t>(plan_.ranks);
  const auto n = static_cast<std::int64_t>(values.size());
  const std::int64_t part = core::ceil_div(std::max<std::int64_t>(n, 1), ranks);
  const auto begin = [&](std::int64_t r) { return std::min(n, r * part); };
  const auto bytes = [&](std::int64_t r) {
    return static_cast<std::size_t>(begin(r + 1) - begin(r)) * sizeof(double);
  };
  // Rank r adds the r-th part of the values of all ranks,
  const std::int64_t me = rank();
  const std::int64_t own = begin(me + 1) - begin(me);
  const auto sent = std::make_shared<std::vector<double>>(values);
  const auto terms = std::make_shared<std::vector<double>>(static_cast<std::size_t>(own * ranks));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (std::int64_t r = 0; r < ranks; ++r) {
    if (r == me) continue;
    sends.push_back({static_cast<int>(r), sent->data() + begin(r), bytes(r), sent});
    receives.push_back({static_cast<int>(r), terms->data() + r * own, bytes(me), terms});
  }
  exchange(sends, receives);
  std::copy_n(values.data() + begin(me), own, terms->data() + me * own);
  const auto sums = std::make_shared<std::vector<double>>(static_cast<std::size_t>(own));
  for (std::int64_t i = 0; i < own; ++i) {
    double total = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      total += (*terms)[static_cast<std::size_t>(r * own + i)];
    }
    (*sums)[static_cast<std::size_t>(i)] = total;
  }
  // and tells it to all.
  const auto all = std::make_shared<std::vector<double>>(values.size());
  std::copy(sums->begin(), sums->end(), all->begin() + begin(me));
  sends.clear();
  receives.clear();
  for (std::int64_t r = 0; r < ranks; ++r) {
    if (r == me) continue;
    sends.push_back({static_cast<int>(r), sums->data(), bytes(me), sums});
    receives.push_back({static_cast<int>(r), all->data() + begin(r), bytes(r), all});
  }
  exchange(sends, receives);
  values = *all;
}

}  // namespace attn::dist
