// How many workers a call takes, and what an executor keeps.
#include "cpu/workers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "cpu/budgets.hpp"
#include "cpu/workspace_store.hpp"

namespace attn::cpu::testing {
namespace {

// Runs everything on the caller, and remembers the largest loop.
class Spy final : public Executor {
 public:
  explicit Spy(int workers) : workers_(workers) {}
  int concurrency() const noexcept override { return workers_; }
  void parallel_for(std::int64_t count,
                    const std::function<void(std::int64_t, int)>& body) override {
    most = std::max(most, count);
    for (std::int64_t i = 0; i < count; ++i) body(i, 0);
  }
  std::int64_t most = 0;

 private:
  int workers_;
};

// The most workers that a forward pass of the problem takes of 64.
std::int64_t workers_of(const char* descriptor, int threads) {
  const Problem p = parse_problem(descriptor);
  std::vector<float> q(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads_q * p.head_dim), 1);
  std::vector<float> k(static_cast<std::size_t>(p.batch * p.seqlen_k * p.heads_k * p.head_dim), 1);
  std::vector<float> o(q.size());
  const Inputs inputs{.q = tensor(q.data(), {p.batch, p.seqlen_q, p.heads_q, p.head_dim}),
                      .k = tensor(k.data(), {p.batch, p.seqlen_k, p.heads_k, p.head_dim}),
                      .v = tensor(k.data(), {p.batch, p.seqlen_k, p.heads_k, p.head_dim})};
  const auto spy = std::make_shared<Spy>(64);
  forward(p, inputs, {.o = tensor(o.data(), {p.batch, p.seqlen_q, p.heads_q, p.head_dim})},
          {.threads = threads}, {.executor = spy});
  return spy->most;
}

TEST(Workers, AsManyAsThereIsWorkFor) {
  EXPECT_EQ(workers_of("b1_n16_h1_d64", 0), 1);
  EXPECT_EQ(workers_of("b1_n16_h16_d64", 0), 1);  // 16 tasks of a microsecond
  EXPECT_EQ(workers_of("b1_n64_h8_d64", 0), 5);   // 8.4 MFLOP and 0.5 MB
  EXPECT_EQ(workers_of("b1_n1024_h4_d64", 0), 64);
}

// Calls so small that a second thread would only cost.
TEST(Workers, OneForTinyCallsOfBothPasses) {
  for (const std::int64_t n : {1, 16, 32}) {
    const Problem p = parse_problem("b1_n" + std::to_string(n) + "_h2_d64");
    std::vector<float> x(static_cast<std::size_t>(n * 2 * 64), 1), o(x.size()), dq(x.size());
    std::vector<float> dk(x.size()), dv(x.size()), lse(static_cast<std::size_t>(n * 2));
    const auto view = [n](std::vector<float>& of) { return tensor(of.data(), {1, n, 2, 64}); };
    const Inputs inputs{.q = view(x), .k = view(x), .v = view(x)};
    const Outputs outputs{.o = view(o), .lse = tensor(lse.data(), {1, 2, n})};
    const auto spy = std::make_shared<Spy>(64);
    const Context context{.executor = spy};
    forward(make_plan(p, Phase::forward, {.backend = Backend::cpu}, context), inputs, outputs,
            context);
    EXPECT_EQ(spy->most, 1) << n;
    backward(make_plan(p, Phase::backward, {.backend = Backend::cpu}, context), inputs, outputs,
             view(x), {.dq = view(dq), .dk = view(dk), .dv = view(dv)}, context);
    EXPECT_EQ(spy->most, 1) << n;
  }
}

TEST(Workers, AsManyAsAskedFor) {
  EXPECT_EQ(workers_of("b1_n16_h16_d64", 5), 5);
  EXPECT_EQ(workers_of("b1_n1024_h4_d64", 3), 3);
  EXPECT_THROW(workers_of("b1_n16_h1_d64", -1), Error);
}

TEST(WorkspaceStore, KeepsWhatCallsUseUpToItsLimit) {
  Spy executor(1);
  WorkspaceStore& store = WorkspaceStore::of(executor);
  EXPECT_EQ(store.take().bytes, 0u);
  store.give_back({}, 1000);
  WorkspaceStore::Block first = store.take();
  EXPECT_EQ(first.bytes, 1000u);
  EXPECT_EQ(store.take().bytes, 0u);  // lent
  store.give_back({}, kKeptBytes);    // with the lent one it would be too much
  EXPECT_EQ(store.take().bytes, 0u);
  store.give_back(std::move(first), kKeptBytes + 1);
  WorkspaceStore::Block again = store.take();
  EXPECT_EQ(again.bytes, 1000u);  // not grown
  store.give_back(std::move(again), kKeptBytes);
  EXPECT_EQ(store.take().bytes, kKeptBytes);
}

TEST(Workspace, PiecesThatDoNotFitComeFromTheSystem) {
  alignas(64) std::byte block[256];
  Workspace workspace(block, sizeof(block));
  EXPECT_EQ(workspace.take(10), block);
  std::byte* outside = nullptr;
  {
    const Workspace::Scope scope(workspace);
    outside = workspace.take(300);
    EXPECT_TRUE(outside < block || outside >= block + sizeof(block));
    EXPECT_EQ(workspace.take(64), block + 64);
  }
  EXPECT_EQ(workspace.take(64), block + 64);
  EXPECT_EQ(workspace.most(), 64u + 320 + 64);
  EXPECT_THROW(workspace.take_array<double>(SIZE_MAX / 2), Error);
  EXPECT_EQ(workspace.most(), 64u + 320 + 64);
}

}  // namespace
}  // namespace attn::cpu::testing
