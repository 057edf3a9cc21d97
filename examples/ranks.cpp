// One causal sequence of 1,000 rows over four ranks, forward and backward, compared with one call.
#include <algorithm>
#include <attn/attn.hpp>
#include <attn/dist.hpp>
#include <cmath>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

using Values = std::vector<float>;
constexpr std::int64_t kRows = 1000, kHeads = 4, kDim = 32, kRow = kHeads * kDim;

// The whole sequence: q, k, v, dO, and room for O and dK.
struct Whole {
  Values q, k, v, d_o, o, dk, lse;
  Whole() : q(kRows * kRow), k(q), v(q), d_o(q), o(q), dk(q), lse(kRows * kHeads) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = std::sin(float(i));
      k[i] = std::cos(3 * float(i));
      v[i] = d_o[i] = q[i] * k[i];
    }
  }
};

// The listed rows of x, and back.
Values shard(const Values& x, const std::vector<attn::dist::Rows>& rows) {
  Values mine;
  for (const attn::dist::Rows& r : rows) {
    mine.insert(mine.end(), x.begin() + r.begin * kRow, x.begin() + r.end * kRow);
  }
  return mine;
}
void unshard(const Values& mine, const std::vector<attn::dist::Rows>& rows, Values& x) {
  auto from = mine.begin();
  for (const attn::dist::Rows& r : rows) {
    std::copy(from, from + (r.end - r.begin) * kRow, x.begin() + r.begin * kRow);
    from += (r.end - r.begin) * kRow;
  }
}
attn::Tensor view(Values& x) {
  return attn::tensor(x.data(), {1, std::int64_t(x.size()) / kRow, kHeads, kDim});
}

attn::Problem causal_problem() {
  attn::Problem p{.batch = 1,
                  .seqlen_q = kRows,
                  .seqlen_k = kRows,
                  .heads_q = kHeads,
                  .heads_k = kHeads,
                  .head_dim = kDim,
                  .head_dim_v = kDim};
  p.mask = attn::causal();
  return p;
}

void work(const attn::dist::Group& group, const attn::Problem& problem, const Whole& in,
          Whole& out) {
  attn::dist::Plan plan = attn::dist::make_plan(problem, group);  // the problem of all ranks
  const std::vector<attn::dist::Rows>& rows = plan.rows(group.rank());
  Values q = shard(in.q, rows), k = shard(in.k, rows), v = shard(in.v, rows);
  Values d_o = shard(in.d_o, rows), o(q), dk(q), lse(q.size() / kDim);
  attn::Inputs inputs{.q = view(q), .k = view(k), .v = view(v)};
  attn::Outputs outputs{.o = view(o)};
  outputs.lse = attn::tensor(lse.data(), {1, kHeads, std::int64_t(q.size()) / kRow});
  attn::dist::forward(plan, inputs, outputs);
  attn::dist::backward(plan, inputs, outputs, view(d_o), {.dk = view(dk)});
  unshard(o, rows, out.o);
  unshard(dk, rows, out.dk);
}

float difference(const Values& a, const Values& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

int main() {
  const attn::Problem problem = causal_problem();
  Whole one, several;
  const attn::Inputs inputs{.q = view(one.q), .k = view(one.k), .v = view(one.v)};
  attn::Outputs outputs{.o = view(one.o)};
  outputs.lse = attn::tensor(one.lse.data(), {1, kHeads, kRows});
  attn::forward(problem, inputs, outputs);
  attn::backward(problem, inputs, outputs, view(one.d_o), {.dk = view(one.dk)});

  std::vector<std::thread> threads;
  for (const attn::dist::Group& group : attn::dist::in_process(4)) {
    threads.emplace_back([&, group] { work(group, problem, one, several); });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%s", to_string(attn::dist::make_plan(problem, 4)).c_str());
  const float o = difference(one.o, several.o), dk = difference(one.dk, several.dk);
  std::printf("largest difference from one call: O %g, dK %g\n", o, dk);
  return o < 1e-5F && dk < 1e-4F ? 0 : 1;
}
