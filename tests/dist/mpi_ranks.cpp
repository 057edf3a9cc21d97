// Ranks of MPI, started by mpirun: each compares its share with that of as many ranks in one
// process, bit for bit, and what goes wrong on one rank is told by all others. Ends with 0 where
// all is well.
#include <csignal>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "attn/dist/mpi.hpp"
#include "attn/mask.hpp"
#include "verify/case.hpp"
#include "verify/compare.hpp"
#include "verify/ranks.hpp"

namespace attn::verify {

static Problem some_problem() {
  Problem p{.batch = 1, .seqlen_q = 96, .seqlen_k = 96, .heads_q = 2, .heads_k = 1};
  p.head_dim = p.head_dim_v = 8;
  return p;
}

namespace {

constexpr std::uint64_t kSeed = 23;

constexpr const char* kCases[] = {
    "b2_n200_hq4_hk2_d64_causal_bf16",
    "b3_n90_h2_d64_causal_f32/padded_dlse",
    "b4_sq100_sk100_hq4_hk2_d64_packed_causal_f32/cuq0,9,9,100,150_cuk0,9,9,100,150",
    "b2_n120_hq4_hk2_d64_window20x0_sink_alibi_softcap20_bf16",
    "b1_n130_hq4_hk2_d64_causal_bias_dropout0.5_seed7_f32",
    "b1_n5_h1_d16_causal_f32",
};

void expect(bool is_right, const std::string& what) {
  if (!is_right) throw std::runtime_error(what);
}

void expect_same(const Tensor& a, const Tensor& b, const std::vector<dist::Rows>& rows,
                 bool heads_first, const std::string& what) {
  if (!a.given()) return;
  const Shard here(a, rows, heads_first, true), there(b, rows, heads_first, true);
  expect(first_difference(here.tensor, there.tensor).empty(), what + " differs");
}

void expect_right(const dist::Group& group, const char* descriptor) {
  const Case c = parse_case(descriptor);
  CaseData by_mpi(c, kSeed), in_process(c, kSeed);
  const RankOptions ranks{.ranks = group.size(), .chunk = 16};
  const Context context{.executor = make_thread_pool(1)};
  by_mpi.poison();
  const dist::Plan plan = forward_on_rank(by_mpi, group, ranks, {}, context, true);
  in_process.poison();
  forward_on_ranks(in_process, ranks, {}, context, true);
  const auto& rows = plan.rows(group.rank());
  const auto& keys = plan.keys(group.rank());
  const std::string what = descriptor;
  expect_same(by_mpi.outputs.o, in_process.outputs.o, rows, false, what + ": o");
  expect_same(by_mpi.outputs.lse, in_process.outputs.lse, rows, true, what + ": lse");
  backward_on_rank(by_mpi, group, ranks, {}, context);
  backward_on_ranks(in_process, ranks, {}, context);
  const Gradients &a = by_mpi.gradients, &b = in_process.gradients;
  expect_same(a.dq, b.dq, rows, false, what + ": dq");
  expect_same(a.dk, b.dk, keys, false, what + ": dk");
  expect_same(a.dv, b.dv, keys, false, what + ": dv");
  if (group.rank() + 1 < group.size()) return;
  if (a.dsink.given()) expect(first_difference(a.dsink, b.dsink).empty(), what + ": dsink differs");
  for (std::size_t i = 0; i < a.buffers.size(); ++i) {
    expect(first_difference(a.buffers[i].second, b.buffers[i].second).empty(),
           what + ": gradient of " + a.buffers[i].first + " differs");
  }
}

// A paged cache: all ranks have the same bits as in one process.
void expect_right_cache(const dist::Group& group) {
  const Case c = parse_case("b3_sq2_sk300_hq8_hk2_d64_paged16_causal_sink_bf16");
  CaseData by_mpi(c, kSeed), in_process(c, kSeed);
  const Context context{.executor = make_thread_pool(1)};
  by_mpi.poison();
  cached_on_rank(by_mpi, group, {}, context, by_mpi.outputs);
  in_process.poison();
  forward_on_ranks(in_process, {.ranks = group.size()}, {}, context, true);
  expect(first_difference(by_mpi.outputs.o, in_process.outputs.o).empty(), "cache: o differs");
  expect(first_difference(by_mpi.outputs.lse, in_process.outputs.lse).empty(),
         "cache: lse differs");
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_difference_told(const dist::Group& group) {
  Problem p = some_problem();
  if (group.rank() == 1) p.mask = causal();
  const std::string error = error_of([&] { dist::make_plan(p, group); });
  expect(error.find("mask is 'key <= position' on rank 1") != std::string::npos, error);
  dist::make_plan(some_problem(), group);  // the group goes on
}

// Rank 1 does not come until all others have given it up: rank 0 by its time-out, the others since
// rank 0 tells them.
void expect_silence_told(const dist::Group& group) {
  constexpr int kTag = 5;
  if (group.rank() == 1) {
    for (int r = 0; r < group.size(); ++r) {
      if (r != 1) MPI_Recv(nullptr, 0, MPI_INT, r, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return;
  }
  const int most = group.rank() == 0 ? 20 : 600'000;
  const std::string error = error_of([&] {
    dist::make_plan(some_problem(), group, {}, {.timeout = std::chrono::milliseconds(most)});
  });
  expect(error.find("rank 1 did not come within 20 ms") != std::string::npos, error);
  expect(error_of([&] { dist::make_plan(some_problem(), group); }) == error, "it is tried again");
  MPI_Send(nullptr, 0, MPI_INT, 1, kTag, MPI_COMM_WORLD);
}

void expect_failure_told(const dist::Group& group) {
  if (group.rank() == 1) return group.engine().fail("rank 1: no memory is left");
  const std::string error = error_of([&] { dist::make_plan(some_problem(), group); });
  expect(error == "rank 1: no memory is left", error);
}

int run() {
  try {
    {
      const dist::Group group = dist::mpi(MPI_COMM_WORLD);
      for (const char* descriptor : kCases) expect_right(group, descriptor);
      expect_right_cache(group);
      expect_difference_told(group);
    }
    expect_failure_told(dist::mpi(MPI_COMM_WORLD));
    expect_silence_told(dist::mpi(MPI_COMM_WORLD));
  } catch (const std::exception& error) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return 0;
}

}  // namespace
}  // namespace attn::verify

// mpi_ranks --die: a rank is killed in the middle of a call of all.
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc > 1) {
    const attn::dist::Group group = attn::dist::mpi(MPI_COMM_WORLD);
    if (group.rank() == 1) std::raise(SIGKILL);
    attn::dist::make_plan(attn::verify::some_problem(), group);
  }
  const int status = attn::verify::run();
  MPI_Finalize();
  return status;
}
