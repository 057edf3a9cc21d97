// Running a case over several ranks of this process (attn/dist.hpp).
#pragma once

#include <functional>
#include <vector>

#include "attn/dist.hpp"
#include "verify/data.hpp"

namespace attn::verify {

struct RankOptions {
  int ranks = 0;  // 0: attn::forward and backward, without ranks
  std::int64_t chunk = 0;
  dist::Deal deal = dist::Deal::by_area;
};

// Calls `work` once for each group, on a thread each, and waits for all. Rethrows what the first
// that failed threw.
void on_ranks(const std::vector<dist::Group>& groups,
              const std::function<void(const dist::Group& group)>& work);

// What dist::make_plan is told of a case: its lengths and buffers.
dist::Options dist_options(const CaseData& data, const RankOptions& ranks,
                           const PlanOptions& local);

// Rows of a tensor laid out as Q or K, or as LSE, in memory of their own.
class Shard {
 public:
  // heads_first: [.., heads, rows], as LSE is.
  Shard(const Tensor& whole, const std::vector<dist::Rows>& rows, bool heads_first, bool copy);
  Tensor tensor;
  void put_back() const;  // into the whole tensor

 private:
  template <class Visit>
  void for_each(const Visit& visit) const;

  Tensor whole_;
  std::vector<dist::Rows> rows_;
  bool heads_first_;
  std::vector<std::byte> memory_;
};

// A rank's share of the results of `data` <- dist::forward, LSE where `lse`. All ranks call it.
dist::Plan forward_on_rank(CaseData& data, const dist::Group& group, const RankOptions& ranks,
                           const PlanOptions& local, const attn::Context& context, bool lse);
// Of its gradients <- dist::backward, given the outputs; sums over all ranks are the last rank's.
void backward_on_rank(CaseData& data, const dist::Group& group, const RankOptions& ranks,
                      const PlanOptions& local, const attn::Context& context);

// Outputs of `data`, whose K and V are paged, <- dist::forward_cached.
void cached_on_rank(CaseData& data, const dist::Group& group, const PlanOptions& local,
                    const attn::Context& context, const Outputs& outputs);

// Outputs of `data` <- dist::forward over the ranks, each with rows of its own, or, where K
// and V are paged, with pages of its own; LSE where `lse`.
void forward_on_ranks(CaseData& data, const RankOptions& ranks, const PlanOptions& local,
                      const attn::Context& context, bool lse);
// Gradients of `data` <- dist::backward, given its outputs.
void backward_on_ranks(CaseData& data, const RankOptions& ranks, const PlanOptions& local,
                       const attn::Context& context);

}  // namespace attn::verify
