// Ranks of NCCL, one GPU each, as threads of a process: each compares its share with that of as
// many ranks that read each other's memory, bit for bit, and a rank that does not come is given up.
//
//   ./dist_nccl_ranks RANKS
//
// Ends with 0 where all is well.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/dist/nccl.hpp"
#include "verify/case.hpp"
#include "verify/compare.hpp"
#include "verify/ranks.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 23;

constexpr const char* kCases[] = {
    "b2_n200_hq4_hk2_d64_causal_bf16",
    "b3_n90_h2_d64_causal_bf16/padded_dlse",
    "b2_n120_hq4_hk2_d64_window20x0_sink_softcap20_bf16",
    "b1_n5_h1_d16_causal_f32",
};

void expect(bool is_right, const std::string& what) {
  if (!is_right) throw std::runtime_error(what);
}

std::vector<dist::Group> groups_of(int ranks) {
  ncclUniqueId id;
  expect(ncclGetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId");
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
  ncclGroupStart();
  for (int r = 0; r < ranks; ++r) {
    cudaSetDevice(r);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclCommInitRankConfig(&comms[static_cast<std::size_t>(r)], ranks, id, r, &config);
  }
  ncclGroupEnd();
  std::vector<dist::Group> groups;
  for (const ncclComm_t comm : comms) groups.push_back(dist::nccl(comm));
  return groups;
}

void run_on(CaseData& data, const std::vector<dist::Group>& groups) {
  const RankOptions ranks{.ranks = static_cast<int>(groups.size()), .chunk = 16};
  PlanOptions local;
  local.device = {DeviceType::cuda, 0};
  local.deterministic = true;
  data.poison();
  on_ranks(groups,
           [&](const dist::Group& group) { forward_on_rank(data, group, ranks, local, {}, true); });
  on_ranks(groups,
           [&](const dist::Group& group) { backward_on_rank(data, group, ranks, local, {}); });
}

void expect_same(const Tensor& a, const Tensor& b, const std::string& what) {
  if (a.given()) expect(first_difference(a, b).empty(), what + " differs");
}

void expect_right(const std::vector<dist::Group>& by_nccl, const std::vector<dist::Group>& by_local,
                  const char* descriptor) {
  const Case c = parse_case(descriptor);
  CaseData a(c, kSeed), b(c, kSeed);
  run_on(a, by_nccl);
  run_on(b, by_local);
  const std::string what = descriptor;
  expect_same(a.outputs.o, b.outputs.o, what + ": o");
  expect_same(a.outputs.lse, b.outputs.lse, what + ": lse");
  expect_same(a.gradients.dq, b.gradients.dq, what + ": dq");
  expect_same(a.gradients.dk, b.gradients.dk, what + ": dk");
  expect_same(a.gradients.dv, b.gradients.dv, what + ": dv");
}

void expect_silence_told(const std::vector<dist::Group>& groups) {
  std::string error = "no error";
  on_ranks(groups, [&](const dist::Group& group) {
    if (group.rank() != 0) return;
    try {
      Problem p{.batch = 1, .seqlen_q = 96, .seqlen_k = 96, .heads_q = 2, .heads_k = 1};
      p.head_dim = p.head_dim_v = 8;
      dist::make_plan(p, group, {}, {.timeout = std::chrono::milliseconds(500)});
    } catch (const Error& told) {
      error = told.what();
    }
  });
  expect(error.find("did not come in time") != std::string::npos, error);
}

int run(int ranks) {
  try {
    const std::vector<dist::Group> groups = groups_of(ranks);
    std::vector<Device> devices;
    for (int r = 0; r < ranks; ++r) devices.push_back({DeviceType::cuda, r});
    for (const char* descriptor : kCases) {
      expect_right(groups, dist::local(devices), descriptor);
    }
    expect_silence_told(groups);
    std::printf("nccl: %d ranks as ranks of one process, a silent rank is told\n", ranks);
    return 0;
  } catch (const std::exception& error) {
    std::printf("nccl: WRONG %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace attn::verify

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < ranks) {
    std::printf("not compared with ranks of NCCL: %d GPUs of %d\n", gpus, ranks);
    return 0;
  }
  // Ranks that failed leave communicators whose others still wait.
  const int code = attn::verify::run(ranks);
  std::fflush(stdout);
  std::_Exit(code);
}
