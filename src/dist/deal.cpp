// Least slowest rank: exact is NP-hard (multiway number partitioning with traffic), so the plain
// ways and the longest-processing-time rule (Graham 1969, "Bounds on multiprocessing timing
// anomalies") are each improved by swapping two chunks of different ranks while that helps.
#include "dist/deal.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace attn::dist {
namespace {

// A transfer runs beside the work and takes 5 % of its own time from it (docs/scale-out.md).
constexpr double kDisturbance = 0.05;
// Pairs of chunks, and of a rank and a chunk, that are looked at before swapping ends: some 0.1 s.
constexpr std::int64_t kMostLookedAt = 50'000'000;

using Words = std::vector<std::uint64_t>;

class Judge {
 public:
  explicit Judge(const DealInput& input) : in_(input) {
    const Areas& areas = in_.areas;
    words_ = (areas.chunks_k + 63) / 64;
    needs_.assign(areas.chunks_q * words_, 0);
    work_.assign(areas.chunks_q, 0);
    for (std::size_t q = 0; q < areas.chunks_q; ++q) {
      for (std::size_t k = 0; k < areas.chunks_k; ++k) {
        if (areas.of(q, k) <= 0) continue;
        work_[q] += areas.of(q, k) * in_.seconds_per_element;
        needs_[q * words_ + k / 64] |= std::uint64_t{1} << (k % 64);
      }
    }
  }

  double work(std::size_t q) const { return work_[q]; }

  // Seconds of the slowest rank, and a little for the traffic of all: of two deals that are as
  // fast, that with less traffic is better.
  double seconds(const std::vector<int>& owner) {
    looked_at_ += in_.ranks * static_cast<std::int64_t>(in_.areas.chunks_k + words_) +
                  static_cast<std::int64_t>(owner.size() * words_);
    const auto ranks = static_cast<std::size_t>(in_.ranks);
    work_of_.assign(ranks, 0);
    sent_.assign(ranks, 0);
    received_.assign(ranks, 0);
    need_.assign(ranks * words_, 0);
    for (std::size_t q = 0; q < owner.size(); ++q) {
      const auto r = static_cast<std::size_t>(owner[q]);
      work_of_[r] += work_[q];
      for (std::size_t w = 0; w < words_; ++w) need_[r * words_ + w] |= needs_[q * words_ + w];
    }
    const std::vector<int>& owner_k = in_.owner_k.empty() ? owner : in_.owner_k;
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t k = 0; k < in_.areas.chunks_k; ++k) {
        const auto from = static_cast<std::size_t>(owner_k[k]);
        if ((need_[r * words_ + k / 64] >> (k % 64) & 1) == 0 || from == r) continue;
        received_[r] += in_.seconds_of_chunk[k];
        sent_[from] += in_.seconds_of_chunk[k];
      }
    }
    double slowest = 0, all = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      const double moved = std::max(sent_[r], received_[r]);
      slowest = std::max(slowest, std::max(work_of_[r], moved) + kDisturbance * moved);
      all += received_[r];
    }
    return slowest + kDisturbance * all / static_cast<double>(ranks);
  }

  bool may_judge() const { return looked_at_ < kMostLookedAt; }
  void start_again() { looked_at_ = 0; }

 private:
  const DealInput& in_;
  std::size_t words_ = 0;
  Words needs_, need_;  // chunks of keys, as bits: of each chunk of queries; of each rank
  std::vector<double> work_, work_of_, sent_, received_;
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
  std::vector<double> work(ranks, 0);
  std::vector<std::size_t> held(ranks, 0);
  std::vector<int> owner(chunks);
  for (const std::size_t chunk : order) {
    std::size_t best = ranks;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (held[r] < room && (best == ranks || work[r] < work[best])) best = r;
    }
    owner[chunk] = static_cast<int>(best);
    work[best] += judge.work(chunk);
    ++held[best];
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
  const std::size_t chunks = input.areas.chunks_q;
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
