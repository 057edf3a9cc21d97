// Least slowest rank: exact is NP-hard (multiway number partitioning with traffic), so the plain
// ways and the longest-processing-time rule (Graham 1969, "Bounds on multiprocessing timing
// anomalies") are each improved by swapping two chunks of different ranks while that helps.
#include "dist/deal.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "dist/chunk_set.hpp"

namespace attn::dist {
namespace {

// A transfer runs beside the work and takes 5 % of its own time from it (docs/scale-out.md).
constexpr double kDisturbance = 0.05;
// Pairs of chunks, and of a rank and a chunk, that deals are judged by before swapping ends: some
// 0.1 s at most.
constexpr std::int64_t kMostLookedAt = 50'000'000;

class Judge {
 public:
  explicit Judge(const DealInput& input) : in_(input), chunks_k_(chunks(in_.cuts_k)) {
    for (const std::vector<Areas::Run>& row : in_.areas.rows) {
      ChunkSet& sees = sees_.emplace_back(chunks_k_);
      double area = 0;
      for (const Areas::Run& run : row) {
        area += run.area * static_cast<double>(run.size());
        sees.insert(run.begin, run.end);
      }
      work_.push_back(area * in_.seconds_per_element);
    }
    need_.assign(static_cast<std::size_t>(in_.ranks), ChunkSet(chunks_k_));
  }

  double work(std::size_t q) const { return work_[q]; }

  // Seconds of the slowest rank, and a little for the traffic of all: of two deals that are as
  // fast, that with less traffic is better.
  double seconds(const std::vector<int>& owner) {
    looked_at_ += in_.ranks * static_cast<std::int64_t>(chunks_k_ + words()) +
                  static_cast<std::int64_t>(owner.size() * words());
    const auto ranks = static_cast<std::size_t>(in_.ranks);
    work_of_.assign(ranks, 0);
    for (ChunkSet& need : need_) need.clear();
    for (std::size_t q = 0; q < owner.size(); ++q) {
      const auto r = static_cast<std::size_t>(owner[q]);
      work_of_[r] += work_[q];
      need_[r].insert(sees_[q]);
    }
    count_rows(in_.owner_k.empty() ? owner : in_.owner_k);
    double slowest = 0;
    std::int64_t all = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      const double moved =
          in_.seconds_per_row * static_cast<double>(std::max(sent_[r], received_[r]));
      slowest = std::max(slowest, std::max(work_of_[r], moved) + kDisturbance * moved);
      all += received_[r];
    }
    return slowest + kDisturbance * in_.seconds_per_row * static_cast<double>(all) /
                         static_cast<double>(ranks);
  }

  bool may_judge() const { return looked_at_ < kMostLookedAt; }
  void start_again() { looked_at_ = 0; }

 private:
  std::size_t words() const { return (chunks_k_ + 63) / 64; }

  // Rows that each rank sends and receives.
  void count_rows(const std::vector<int>& owner_k) {
    sent_.assign(need_.size(), 0);
    received_.assign(need_.size(), 0);
    readers_.assign(chunks_k_ + 1, 0);
    for (std::size_t r = 0; r < need_.size(); ++r) {
      need_[r].visit_ranges([&](std::size_t begin, std::size_t end) {
        received_[r] += in_.cuts_k[end] - in_.cuts_k[begin];
        ++readers_[begin];
        --readers_[end];
      });
    }
    std::int64_t readers = 0;
    for (std::size_t k = 0; k < chunks_k_; ++k) {
      readers += readers_[k];
      const auto from = static_cast<std::size_t>(owner_k[k]);
      const std::int64_t rows = in_.cuts_k[k + 1] - in_.cuts_k[k];
      const bool reads_own = need_[from].contains(k);
      sent_[from] += rows * (readers - (reads_own ? 1 : 0));
      if (reads_own) received_[from] -= rows;
    }
  }

  const DealInput& in_;
  std::size_t chunks_k_;
  std::vector<ChunkSet> sees_, need_;  // of each chunk of queries; of each rank
  std::vector<double> work_, work_of_;
  std::vector<std::int64_t> sent_, received_;  // of each rank
  std::vector<std::int64_t> readers_;          // ranks that begin to read at a chunk, less that end
  std::int64_t looked_at_ = 0;
};

std::vector<int> contiguous(std::size_t chunks, std::size_t ranks) {
  std::vector<int> owner(chunks);
  const std::size_t room = (chunks + ranks - 1) / ranks;
  for (std::size_t i = 0; i < chunks; ++i) owner[i] = static_cast<int>(i / room);
  return owner;
}

std::vector<int> zigzag(std::size_t chunks, std::size_t ranks) {
  std::vector<int> owner(chunks);
  for (std::size_t i = 0; i < chunks; ++i) {
    const std::size_t part = i * 2 * ranks / chunks;
    owner[i] = static_cast<int>(part < ranks ? part : 2 * ranks - 1 - part);
  }
  return owner;
}

std::vector<int> striped(std::size_t chunks, std::size_t ranks) {
  std::vector<int> owner(chunks);
  for (std::size_t i = 0; i < chunks; ++i) owner[i] = static_cast<int>(i % ranks);
  return owner;
}

std::vector<int> longest_first(const Judge& judge, std::size_t chunks, std::size_t ranks) {
  std::vector<std::size_t> order(chunks);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return judge.work(a) > judge.work(b); });
  const std::size_t room = (chunks + ranks - 1) / ranks;
  // Ranks that may hold more, by their work; the first one of equals comes first.
  using Rank = std::pair<double, std::size_t>;
  std::priority_queue<Rank, std::vector<Rank>, std::greater<>> least;
  for (std::size_t r = 0; r < ranks; ++r) least.emplace(0, r);
  std::vector<std::size_t> held(ranks, 0);
  std::vector<int> owner(chunks);
  for (const std::size_t chunk : order) {
    const auto [work, rank] = least.top();
    least.pop();
    owner[chunk] = static_cast<int>(rank);
    if (++held[rank] < room) least.emplace(work + judge.work(chunk), rank);
  }
  return owner;
}

// Swaps while a swap helps.
double improve(Judge& judge, std::vector<int>& owner) {
  double best = judge.seconds(owner);
  judge.start_again();
  for (bool improved = true; improved && judge.may_judge();) {
    improved = false;
    for (std::size_t a = 0; a < owner.size() && judge.may_judge(); ++a) {
      for (std::size_t b = a + 1; b < owner.size() && judge.may_judge(); ++b) {
        if (owner[a] == owner[b]) continue;
        std::swap(owner[a], owner[b]);
        const double seconds = judge.seconds(owner);
        if (seconds < best * (1 - 1e-9)) {
          best = seconds;
          improved = true;
        } else {
          std::swap(owner[a], owner[b]);
        }
      }
    }
  }
  return best;
}

}  // namespace

Dealt deal(const DealInput& input, Deal way) {
  const std::size_t chunks = input.areas.rows.size();
  const auto ranks = static_cast<std::size_t>(input.ranks);
  if (chunks == 0) return {.owner = {}, .by = "no rows"};
  Judge judge(input);
  const auto plain = [&](std::vector<int> owner) {
    const double seconds = judge.seconds(owner);
    return Dealt{std::move(owner), seconds, {}};
  };
  switch (way) {
    case Deal::contiguous:
      return plain(contiguous(chunks, ranks));
    case Deal::zigzag:
      return plain(zigzag(chunks, ranks));
    case Deal::striped:
      return plain(striped(chunks, ranks));
    case Deal::by_area:
      break;
  }
  struct Candidate {
    std::vector<int> owner;
    const char* name;
  };
  Dealt best;
  for (Candidate& candidate :
       std::vector<Candidate>{{contiguous(chunks, ranks), "contiguous"},
                              {zigzag(chunks, ranks), "zigzag"},
                              {striped(chunks, ranks), "striped"},
                              {longest_first(judge, chunks, ranks), "most work first"}}) {
    const std::vector<int> before = candidate.owner;
    const double seconds = improve(judge, candidate.owner);
    if (!best.owner.empty() && seconds >= best.seconds) continue;
    const char* swapped = candidate.owner == before ? "" : ", improved by swaps";
    best = {std::move(candidate.owner), seconds, std::string(candidate.name) + swapped};
  }
  return best;
}

}  // namespace attn::dist
