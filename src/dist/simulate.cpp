#include "attn/dist/simulate.hpp"

#include <algorithm>
#include <cstddef>

#include "core/first_made.hpp"
#include "core/problem/costs.hpp"
#include "dist/head_groups.hpp"
#include "dist/plan_data.hpp"

namespace attn::dist {
namespace {

// When something is free or has come, of each rank.
using Times = std::vector<double>;

struct Arrival {
  std::size_t chunk;
  double when;
};

class Simulation {
 public:
  Simulation(const PlanData& plan, Phase phase, const Machine& machine)
      : plan_(plan),
        machine_(machine),
        is_backward_(phase == Phase::backward),
        ranks_(static_cast<std::size_t>(plan.ranks)),
        node_(machine.node > 0 ? static_cast<std::size_t>(machine.node) : ranks_) {
    const Problem& p = plan.problem;
    const double seconds_per_element =
        core::flops_per_element(p, phase) / (is_backward_ ? machine.backward : machine.forward);
    chunk_bytes_.reserve(chunks(plan.cuts_k));
    const double row_bytes = static_cast<double>(p.heads_k * (p.head_dim + p.head_dim_v)) *
                             static_cast<double>(size_of(p.dtype)) *
                             (plan.k.packed ? 1 : static_cast<double>(p.batch));
    for (std::size_t k = 0; k < chunks(plan.cuts_k); ++k) {
      chunk_bytes_.push_back(row_bytes * static_cast<double>(plan.cuts_k[k + 1] - plan.cuts_k[k]));
    }
    run_bytes_ = chunk_bytes_;
    for (std::size_t k = 1; k < run_bytes_.size(); ++k) {
      if (owner(k) == owner(k - 1)) run_bytes_[k] += run_bytes_[k - 1];
    }
    for (std::size_t k = run_bytes_.size(); k-- > 1;) {
      if (owner(k) == owner(k - 1)) run_bytes_[k - 1] = run_bytes_[k];
    }
    work_.assign(ranks_, Times(chunks(plan.cuts_k), 0));
    for (std::size_t q = 0; q < chunks(plan.cuts_q); ++q) {
      Times& of_rank = work_[static_cast<std::size_t>(plan.owner_q[q])];
      for (const Areas::Run& run : plan.areas.rows[q]) {
        for (std::size_t k = run.begin; k < run.end; ++k) {
          of_rank[k] += run.area * seconds_per_element;
        }
      }
    }
    for (Times* free : {&out_, &in_, &far_out_, &far_in_}) free->assign(ranks_, 0);
  }

  Prediction run() {
    for (const Times& of_rank : work_) {
      double work = 0;
      for (const double seconds : of_rank) work += seconds;
      result_.ideal += work / static_cast<double>(ranks_);
      result_.busiest = std::max(result_.busiest, work);
      total_.push_back(work);
    }
    const Times ended = is_backward_ ? backward() : forward();
    result_.slowest = *std::max_element(ended.begin(), ended.end());
    return result_;
  }

 private:
  std::size_t owner(std::size_t chunk) const {
    return static_cast<std::size_t>(plan_.owner_k[chunk]);
  }
  std::size_t node(std::size_t rank) const { return rank / node_; }
  bool sees(std::size_t rank, std::size_t chunk) const { return work_[rank][chunk] > 0; }

  // When a share of a chunk has come, whose copy begins once both ends are free. Chunks that follow
  // each other at their owner go in one copy.
  double send(std::size_t from, std::size_t to, std::size_t chunk, double share,
              double not_before) {
    const bool is_far = node(from) != node(to);
    double& leaves = is_far ? far_out_[from] : out_[from];
    double& comes = is_far ? far_in_[to] : in_[to];
    const std::vector<Copy>& copies = is_far ? machine_.far : machine_.copies;
    const double seconds =
        copy_seconds(copies, share * run_bytes_[chunk]) * chunk_bytes_[chunk] / run_bytes_[chunk];
    const double end = std::max({not_before, leaves, comes}) + machine_.both_ways * seconds;
    leaves = comes = end;
    if (is_far) result_.far_bytes += share * chunk_bytes_[chunk];
    return end + machine_.flag;
  }

  // Who of a node that does not own a chunk gets it for all that see it; ranks_: nobody sees it.
  std::size_t receiver(std::size_t of_node, std::size_t chunk) const {
    std::size_t best = ranks_;
    for (std::size_t r = of_node * node_; r < std::min(ranks_, (of_node + 1) * node_); ++r) {
      if (sees(r, chunk) && (best == ranks_ || far_in_[r] < far_in_[best])) best = r;
    }
    return best;
  }

  // Sends a share of each chunk to those who see it; visit(rank, chunk, when it has come there).
  // Ranks of a node fetch from each other, the next one first; then chunks come from other nodes,
  // the next one first, each to one rank, from which those fetch that see it too.
  template <class Visit>
  void gather(double share, const Visit& visit) {
    std::vector<std::vector<Arrival>> held(ranks_);
    for (std::size_t chunk = chunk_bytes_.size(); chunk-- > 0;) {
      held[owner(chunk)].push_back({chunk, machine_.start});
    }
    const std::vector<std::vector<Arrival>> own = held;
    spread(share, held, visit);
    const std::size_t nodes = (ranks_ + node_ - 1) / node_;
    for (std::size_t distance = 1; distance < nodes; ++distance) {
      for (std::vector<Arrival>& of_rank : held) of_rank.clear();
      for (std::size_t from = 0; from < ranks_; ++from) {
        const std::size_t to_node = (node(from) + distance) % nodes;
        for (const Arrival& a : own[from]) {
          const std::size_t to = receiver(to_node, a.chunk);
          if (to == ranks_) continue;
          const double when = send(from, to, a.chunk, share, a.when);
          receivers_[to_node * chunk_bytes_.size() + a.chunk] = to;
          held[to].push_back({a.chunk, when});
          visit(to, a.chunk, when);
        }
      }
      spread(share, held, visit);
    }
  }

  // From the ranks that hold chunks to all of their node that see them.
  template <class Visit>
  void spread(double share, const std::vector<std::vector<Arrival>>& held, const Visit& visit) {
    for (std::size_t distance = 1; distance < node_; ++distance) {
      for (std::size_t to = 0; to < ranks_; ++to) {
        const std::size_t first = node(to) * node_, count = std::min(node_, ranks_ - first);
        if (distance >= count) continue;
        const std::size_t from = first + (to - first + distance) % count;
        for (const Arrival& a : held[from]) {
          if (!sees(to, a.chunk)) continue;
          visit(to, a.chunk, send(from, to, a.chunk, share, a.when));
        }
      }
    }
  }

  // Kernels take longer while copies come or go.
  double factor(std::size_t rank) const {
    const double busy = std::max({in_[rank], out_[rank], far_in_[rank], far_out_[rank]});
    if (total_[rank] == 0) return 1;
    return 1 + (machine_.beside_copies - 1) * std::min(1.0, busy / total_[rank]);
  }

  // Seconds until a rank's first kernel: ranks meet, and its own rows of all heads are copied to
  // where kernels read them.
  double begins(std::size_t rank) const {
    double bytes = 0;
    for (std::size_t chunk = 0; chunk < chunk_bytes_.size(); ++chunk) {
      if (owner(chunk) == rank && sees(rank, chunk)) bytes += chunk_bytes_[chunk];
    }
    return machine_.start + (machine_.own_rows > 0 ? bytes / machine_.own_rows : 0);
  }

  // Groups of heads one after another, each when its keys have come.
  Times forward() {
    receivers_.assign(((ranks_ + node_ - 1) / node_) * chunks(plan_.cuts_k), ranks_);
    const auto heads = static_cast<double>(plan_.problem.heads_k);
    std::vector<Times> arrived;
    std::vector<double> shares;
    for (const HeadGroup& group : head_groups(plan_, Phase::forward)) {
      shares.push_back(static_cast<double>(group.count) / heads);
      Times& of_group = arrived.emplace_back(ranks_, 0);
      gather(shares.back(), [&](std::size_t rank, std::size_t, double when) {
        of_group[rank] = std::max(of_group[rank], when);
      });
    }
    Times now(ranks_, 0);
    for (std::size_t r = 0; r < ranks_; ++r) now[r] = begins(r);
    for (std::size_t g = 0; g < shares.size(); ++g) {
      for (std::size_t r = 0; r < ranks_; ++r) {
        now[r] = std::max(now[r], arrived[g][r]) + shares[g] * total_[r] * factor(r);
      }
    }
    return now;
  }

  // All heads at once, when all keys have come; then sums go home.
  Times backward() {
    receivers_.assign(((ranks_ + node_ - 1) / node_) * chunks(plan_.cuts_k), ranks_);
    std::vector<std::vector<Arrival>> arrivals(ranks_);
    gather(1, [&](std::size_t rank, std::size_t chunk, double when) {
      arrivals[rank].push_back({chunk, when});
    });
    struct Sum {
      std::size_t from, to, chunk;
      double ready;
    };
    std::vector<Sum> sums;
    Times ended(ranks_, 0);
    for (std::size_t r = 0; r < ranks_; ++r) {
      ended[r] = begins(r);
      for (const Arrival& a : arrivals[r]) ended[r] = std::max(ended[r], a.when);
      ended[r] += total_[r] * factor(r);
      for (const Arrival& a : arrivals[r]) {
        const bool is_near = node(owner(a.chunk)) == node(r);
        const std::size_t to =
            is_near ? owner(a.chunk) : receivers_[node(r) * chunk_bytes_.size() + a.chunk];
        sums.push_back({r, to, a.chunk, ended[r]});
      }
    }
    // Bytes of a chunk's sums, as a share of those of its K and V.
    const double of_keys = static_cast<double>(size_of(sum_dtype(plan_.problem))) /
                           static_cast<double>(size_of(plan_.problem.dtype));
    // Sums of a node come together at the rank that received the keys, which sends them on.
    const auto by_time = [](const Sum& a, const Sum& b) { return a.ready < b.ready; };
    std::stable_sort(sums.begin(), sums.end(), by_time);
    std::vector<double> complete(receivers_.size(), -1);
    for (const Sum& sum : sums) {
      const double there =
          sum.from == sum.to ? sum.ready : send(sum.from, sum.to, sum.chunk, of_keys, sum.ready);
      if (sum.to == owner(sum.chunk)) {
        ended[sum.to] = std::max(ended[sum.to], there);
      } else {
        double& of_node = complete[node(sum.to) * chunk_bytes_.size() + sum.chunk];
        of_node = std::max(of_node, there);
      }
    }
    std::vector<Sum> far;
    for (std::size_t i = 0; i < complete.size(); ++i) {
      const std::size_t chunk = i % chunk_bytes_.size();
      if (complete[i] >= 0) far.push_back({receivers_[i], owner(chunk), chunk, complete[i]});
    }
    std::stable_sort(far.begin(), far.end(), by_time);
    for (const Sum& sum : far) {
      const double there = send(sum.from, sum.to, sum.chunk, of_keys, sum.ready);
      ended[sum.to] = std::max(ended[sum.to], there);
    }
    return ended;
  }

  const PlanData& plan_;
  const Machine& machine_;
  bool is_backward_;
  std::size_t ranks_, node_;  // of all, of a node
  Prediction result_{};
  std::vector<double> chunk_bytes_{};          // of K and V
  std::vector<double> run_bytes_{};            // of a chunk and those beside it that its owner has
  std::vector<Times> work_{};                  // seconds, of each rank and chunk of keys
  Times total_{};                              // of each rank
  Times out_{}, in_{}, far_out_{}, far_in_{};  // when a rank's links are free
  std::vector<std::size_t> receivers_{};       // [node][chunk]
};

}  // namespace

const std::vector<Machine>& machines() {
  static constinit core::FirstMade<const std::vector<Machine>> known;
  return known.get([] {
    return std::vector<Machine>{
        {.name = "h100-nvlink",
         .source = "two H100 80GB HBM3 at 18 links of NVLink: copy-engine pushes of 1 to 256 MB; "
                   "causal, 8192 queries and keys, head_dim 128, of bench/results/h100-*.json; "
                   "between nodes 45 GB/s a GPU and 10 us, assumed",
         .copies =
             {{1e6, 4.5e-6}, {4e6, 13.5e-6}, {16e6, 46.1e-6}, {64e6, 173.8e-6}, {256e6, 679.4e-6}},
         .far = {{1e3, 10e-6}, {1e6, 10e-6 + 1e6 / 45e9}, {256e6, 10e-6 + 256e6 / 45e9}},
         .both_ways = 386.2 / 376.9,
         .flag = 8.5e-6,
         .start = 60e-6,
         .own_rows = 840e9,
         .forward = 693e12,
         .backward = 606e12,
         .beside_copies = 1.05}};
  });
}

double copy_seconds(const std::vector<Copy>& c, double bytes) {
  if (c.empty() || bytes <= 0) return 0;
  if (bytes <= c.front().bytes) return c.front().seconds;
  for (std::size_t i = 1; i < c.size(); ++i) {
    if (bytes > c[i].bytes) continue;
    const double share = (bytes - c[i - 1].bytes) / (c[i].bytes - c[i - 1].bytes);
    return c[i - 1].seconds + share * (c[i].seconds - c[i - 1].seconds);
  }
  return c.back().seconds * bytes / c.back().bytes;
}

Prediction predict(const Plan& plan, Phase phase, const Machine& machine) {
  return Simulation(plan.data(), phase, machine).run();
}

}  // namespace attn::dist
