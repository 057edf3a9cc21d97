#include "attn/dist/simulate.hpp"

#include <algorithm>
#include <cstddef>

#include "core/problem/costs.hpp"
#include "dist/plan_data.hpp"

namespace attn::dist {
namespace {

// A chunk of K and V on its way, and the work that waits for it.
struct Transfer {
  std::size_t from = 0, to = 0, chunk = 0;
  double arrived = 0;
};

class Simulation {
 public:
  Simulation(const PlanData& plan, Phase phase, const Machine& machine)
      : plan_(plan),
        machine_(machine),
        is_backward_(phase == Phase::backward),
        ranks_(static_cast<std::size_t>(plan.ranks)) {
    const Problem& p = plan.problem;
    seconds_per_element_ =
        core::flops_per_element(p, phase) / (is_backward_ ? machine.backward : machine.forward);
    row_elements_ = static_cast<double>(p.heads_k * (p.head_dim + p.head_dim_v)) *
                    (plan.k.packed ? 1 : static_cast<double>(p.batch));
    work_.assign(ranks_, std::vector<double>(chunks(plan.cuts_k), 0));
    for (std::size_t q = 0; q < chunks(plan.cuts_q); ++q) {
      for (std::size_t k = 0; k < chunks(plan.cuts_k); ++k) {
        work_[static_cast<std::size_t>(plan.owner_q[q])][k] +=
            plan.areas.of(q, k) * seconds_per_element_;
      }
    }
  }

  Prediction run() {
    Prediction result;
    for (const std::vector<double>& of_rank : work_) {
      double work = 0;
      for (const double seconds : of_rank) work += seconds;
      result.ideal += work / static_cast<double>(ranks_);
      result.busiest = std::max(result.busiest, work);
    }
    outgoing_.assign(ranks_, 0);
    incoming_.assign(ranks_, 0);
    const double element = static_cast<double>(size_of(plan_.problem.dtype));
    std::vector<Transfer> transfers = gather(element);
    std::vector<double> ended(ranks_, 0);
    std::vector<Transfer> home;
    for (std::size_t r = 0; r < ranks_; ++r) ended[r] = compute(r, transfers, home);
    // Sums go home in the order in which they are ready.
    std::stable_sort(home.begin(), home.end(),
                     [](const Transfer& a, const Transfer& b) { return a.arrived < b.arrived; });
    for (Transfer& sum : home) {
      send(sum, 4, sum.arrived);
      ended[sum.to] = std::max(ended[sum.to], sum.arrived);
    }
    result.slowest = *std::max_element(ended.begin(), ended.end());
    return result;
  }

 private:
  std::size_t owner(std::size_t chunk) const {
    return static_cast<std::size_t>(plan_.owner_k[chunk]);
  }

  void send(Transfer& t, double element_bytes, double not_before) {
    const auto rows = static_cast<double>(plan_.cuts_k[t.chunk + 1] - plan_.cuts_k[t.chunk]);
    const double begin = std::max({not_before, outgoing_[t.from], incoming_[t.to]});
    const double end =
        begin + machine_.both_ways * copy_seconds(machine_, rows * row_elements_ * element_bytes);
    outgoing_[t.from] = incoming_[t.to] = end;
    t.arrived = end + machine_.flag;
  }

  std::vector<Transfer> gather(double element_bytes) {
    std::vector<Transfer> transfers;
    for (std::size_t distance = 1; distance < ranks_; ++distance) {
      for (std::size_t from = 0; from < ranks_; ++from) {
        const std::size_t to = (from + distance) % ranks_;
        for (std::size_t chunk = chunks(plan_.cuts_k); chunk-- > 0;) {
          if (owner(chunk) != from || work_[to][chunk] <= 0) continue;
          Transfer& t = transfers.emplace_back(Transfer{from, to, chunk, 0});
          send(t, element_bytes, 0);
        }
      }
    }
    return transfers;
  }

  // When the rank's kernel ends; appends what goes home, with the time at which it is ready.
  double compute(std::size_t rank, const std::vector<Transfer>& transfers,
                 std::vector<Transfer>& home) const {
    double own = 0, foreign = 0;
    for (std::size_t chunk = 0; chunk < work_[rank].size(); ++chunk) {
      (owner(chunk) == rank ? own : foreign) += work_[rank][chunk];
    }
    const double busy = std::max(incoming_[rank], outgoing_[rank]);  // copies come or go
    const double factor = own + foreign == 0 ? 1
                                             : 1 + (machine_.beside_copies - 1) *
                                                       std::min(1.0, busy / (own + foreign));
    const double first = is_backward_ && foreign > 0 ? own / 2 : own;
    double now = first * factor;
    for (const Transfer& t : transfers) {
      if (t.to != rank) continue;
      now = std::max(now, t.arrived) + work_[rank][t.chunk] * factor;
      if (is_backward_) home.push_back({rank, t.from, t.chunk, now});
    }
    return now + (own - first) * factor;
  }

  const PlanData& plan_;
  const Machine& machine_;
  bool is_backward_;
  std::size_t ranks_;
  double seconds_per_element_ = 0, row_elements_ = 0;
  std::vector<std::vector<double>> work_;    // seconds, of each rank and chunk of keys
  std::vector<double> outgoing_, incoming_;  // when a rank's link is free
};

}  // namespace

const std::vector<Machine>& machines() {
  static const std::vector<Machine> known{
      {.name = "h100-nvlink",
       .source = "two H100 80GB HBM3 at 18 links of NVLink: copy-engine pushes of 1 to 256 MB; "
                 "causal, 8192 queries and keys, head_dim 128, of bench/results/h100-*.json",
       .copies =
           {{1e6, 4.5e-6}, {4e6, 13.5e-6}, {16e6, 46.1e-6}, {64e6, 173.8e-6}, {256e6, 679.4e-6}},
       .both_ways = 386.2 / 376.9,
       .flag = 8.5e-6,
       .forward = 693e12,
       .backward = 606e12,
       .beside_copies = 1.05}};
  return known;
}

double copy_seconds(const Machine& machine, double bytes) {
  const std::vector<Copy>& c = machine.copies;
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
