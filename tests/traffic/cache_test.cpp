// The simulated cache against one written with the obvious containers, element by element.
#include "traffic/cache.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <random>
#include <set>

#include "attn/error.hpp"
#include "traffic/model.hpp"

namespace attn::traffic {
namespace {

// Each element of an access is looked up in a list from the newest to the oldest line.
class SlowCache : public Visitor {
 public:
  SlowCache(const Problem& problem, const Blocks& blocks, const CacheShape& shape)
      : problem_(problem), blocks_(blocks), shape_(shape) {}

  void access(const Access& a) override {
    const std::int64_t size = element_bytes(problem_, a.operand);
    const std::int64_t columns = extent(problem_, a.operand, blocks_).columns;
    std::set<std::int64_t> written;  // bytes of this access
    for (std::int64_t r = a.row; r < a.row + a.rows; ++r) {
      for (std::int64_t c = a.column; c < a.column + a.columns; ++c) {
        for (std::int64_t b = 0; b < size; ++b) written.insert((r * columns + c) * size + b);
      }
    }
    for (std::int64_t r = a.row; r < a.row + a.rows; ++r) {
      for (std::int64_t c = a.column; c < a.column + a.columns; ++c) {
        const Key key{a.operand, (r * columns + c) * size / shape_.line_bytes};
        bool whole = a.use == Use::store;
        for (std::int64_t b = 0; b < shape_.line_bytes; ++b) {
          whole = whole && written.count(key.second * shape_.line_bytes + b) != 0;
        }
        touch(key, a.use == Use::store, whole);
      }
    }
  }
  Traffic finish() {
    while (!order_.empty()) evict(true);
    return traffic_;
  }

 private:
  using Key = std::pair<Operand, std::int64_t>;

  void touch(const Key& key, bool write, bool whole) {
    const auto at = std::find(order_.begin(), order_.end(), key);
    if (at == order_.end()) {
      if (!whole) traffic_[key.first].read += static_cast<double>(shape_.line_bytes);
      if (static_cast<std::int64_t>(order_.size()) == shape_.bytes / shape_.line_bytes) {
        evict(false);
      }
    } else {
      order_.erase(at);
    }
    order_.push_front(key);
    if (write) dirty_.insert(key);
  }
  void evict(bool last) {
    const Key key = order_.back();
    order_.pop_back();
    const bool dirty = dirty_.erase(key) != 0;
    if (dirty && !(last && key.first == Operand::scratch)) {
      traffic_[key.first].written += static_cast<double>(shape_.line_bytes);
    }
  }

  const Problem& problem_;
  Blocks blocks_;
  CacheShape shape_;
  std::list<Key> order_;
  std::set<Key> dirty_;
  Traffic traffic_;
};

TEST(Cache, EqualsTheObviousOne) {
  std::mt19937 random(11);
  const auto below = [&](std::uint32_t limit) {
    return static_cast<std::int64_t>(random() % limit);
  };
  constexpr Algorithm kModelled[] = {Algorithm::standard, Algorithm::flash_attention,
                                     Algorithm::flash_attention_2, Algorithm::block_sparse};
  for (int i = 0; i < 120; ++i) {
    const char* masks[] = {"", "_causal", "_window3x1"};
    const char* dtypes[] = {"f32", "bf16"};
    const Problem p =
        parse_problem(fmt::format("b1_sq{}_sk{}_h1_d{}_dv{}{}_{}", 1 + below(24), 1 + below(24),
                                  1 + below(20), 1 + below(20), masks[below(3)], dtypes[below(2)]));
    const Blocks blocks{1 + below(9), 1 + below(9)};
    const CacheShape shape{(1 + below(60)) * 64, below(2) == 0 ? 64 : 32};
    for (const Algorithm algorithm : kModelled) {
      const Phase phase = below(2) == 0 ? Phase::forward : Phase::backward;
      SCOPED_TRACE(fmt::format("{} {} {} blocks {} x {} cache {} lines {}", to_string(p),
                               name(phase), name(algorithm), blocks.q, blocks.k, shape.bytes,
                               shape.line_bytes));
      Cache fast(p, blocks, shape);
      SlowCache slow(p, blocks, shape);
      walk(p, phase, algorithm, blocks, 0, 0, fast);
      walk(p, phase, algorithm, blocks, 0, 0, slow);
      ASSERT_EQ(fast.finish(), slow.finish());
    }
  }
}

// A cache that holds a head moves every line once; one that holds little moves what the model says.
TEST(Cache, BetweenCompulsoryAndModel) {
  const Problem p = parse_problem("b1_n512_h2_d64_f32");
  const Blocks blocks{64, 64};
  const auto simulated = [&](std::int64_t bytes) {
    return simulate(p, Phase::forward, Algorithm::flash_attention, blocks, {bytes, 64}).bytes();
  };
  const double compulsory = traffic::compulsory(p, Phase::forward).bytes();
  const double modelled = model(p, Phase::forward, Algorithm::flash_attention, blocks).bytes();
  const double all = simulated(64 << 20);
  // l and m are two numbers a row where LSE is one.
  EXPECT_EQ(all, compulsory + 4.0 * 1024);
  // K, V, the tile of S, and Q and O of two Q blocks while they change: 7 times 16 KB.
  EXPECT_NEAR(simulated(120 << 10), modelled, 0.03 * modelled);
  EXPECT_GT(simulated(120 << 10), simulated(192 << 10));
  EXPECT_GE(simulated(192 << 10), all);
}

// A K, V block that is larger than the cache is lost between the Q blocks that use it.
TEST(Cache, LosesABlockThatDoesNotFit) {
  const Problem p = parse_problem("b1_n1024_h1_d64_f32");
  const auto read = [&](std::int64_t block_k) {
    const Traffic t =
        simulate(p, Phase::forward, Algorithm::flash_attention, {32, block_k}, {128 << 10, 64});
    return t[Operand::k].read;
  };
  const double once = 1024 * 64 * 4;
  EXPECT_EQ(read(64), once);        // K and V of 32 KB
  EXPECT_EQ(read(512), 33 * once);  // of 256 KB: loaded, and by each of 32 Q blocks again
}

TEST(Cache, RefusesWhatHasTooManyLines) {
  const Problem p = parse_problem("b1_n1000000_h1_d64_f32");
  EXPECT_THROW(Cache(p, {64, 64}, {1 << 20, 64}), Error);
}

}  // namespace
}  // namespace attn::traffic
