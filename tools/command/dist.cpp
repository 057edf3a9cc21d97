// attn dist: the plan of a problem over several ranks, and what it would take on GPUs.
#include "attn/dist.hpp"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <string>

#include "attn/dist/simulate.hpp"
#include "attn/error.hpp"
#include "command/command.hpp"
#include "verify/data.hpp"
#include "verify/ranks.hpp"

namespace attn::command {
namespace {

struct DistOptions {
  std::string descriptor, deal = "by_area";
  int ranks = 2;
  std::int64_t chunk = 0;
  std::uint64_t seed = 1;
  bool simulate = false;
  int node = 0;
};

void print_prediction(const dist::Plan& plan, Phase phase, const dist::Machine& machine) {
  const dist::Prediction p = dist::predict(plan, phase, machine);
  fmt::print("{:8} {:10.3f} ms, of which {:.3f} exposed; ideal {:.3f} ms, {:.1f} % of it{}\n",
             name(phase), 1e3 * p.slowest, 1e3 * p.exposed(), 1e3 * p.ideal,
             p.slowest == 0 ? 100 : 100 * p.ideal / p.slowest,
             p.far_bytes == 0 ? ""
                              : fmt::format("; {:.1f} MB a rank between nodes",
                                            1e-6 * p.far_bytes / plan.ranks()));
}

int show(const DistOptions& options) {
  const verify::Case c = verify::parse_case(options.descriptor);
  // Lengths, documents and other buffers of the mask are those of `attn check` with the seed.
  verify::Case small = c;
  small.problem.heads_q = small.problem.heads_k = 1;
  small.problem.head_dim = small.problem.head_dim_v = 1;
  small.problem.score = {};
  const bool reads = !c.problem.mask.empty() && !expr::buffers(c.problem.mask).empty();
  dist::Options planned;
  std::unique_ptr<verify::CaseData> data;
  if (reads || c.hints.padded || c.problem.layout_q == Layout::packed ||
      c.problem.layout_k == Layout::packed) {
    data = std::make_unique<verify::CaseData>(small, options.seed);
    planned = verify::dist_options(*data, {}, {});
  }
  planned.deal = dist::parse_deal(options.deal);
  planned.chunk = options.chunk;
  dist::Machine machine = dist::machines().front();
  machine.node = options.node;
  if (options.simulate) {
    // Both passes count, by what the machine does in all.
    planned.rates = {.flops = 3.5 / (1 / machine.forward + 2.5 / machine.backward),
                     .bytes = machine.copies.back().bytes / machine.copies.back().seconds};
  }
  const dist::Plan plan = dist::make_plan(c.problem, options.ranks, planned);
  fmt::print("{}", to_string(plan));
  if (!options.simulate) return kOk;
  fmt::print("predicted for {}, {}:\n", machine.name, machine.source);
  print_prediction(plan, Phase::forward, machine);
  print_prediction(plan, Phase::backward, machine);
  return kOk;
}

}  // namespace

void add_dist(CLI::App& app, int& status) {
  auto options = std::make_shared<DistOptions>();
  CLI::App* sub = app.add_subcommand("dist", "Show how a problem is dealt to several ranks");
  sub->add_option("descriptor", options->descriptor, "A problem in text form (docs/descriptors.md)")
      ->required();
  sub->add_option("--ranks", options->ranks, "So many ranks")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  sub->add_option("--chunk", options->chunk, "Rows of a chunk; 0: a choice")
      ->check(whole_number(0, std::uint64_t{1} << 31))
      ->capture_default_str();
  sub->add_option("--deal", options->deal, "How chunks are dealt")
      ->check(CLI::IsMember({"by_area", "contiguous", "zigzag", "striped"}))
      ->capture_default_str();
  sub->add_option("--seed", options->seed, "Of lengths and buffers; default 1")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  sub->add_flag("--simulate", options->simulate,
                "Predict times on GPUs, from measured times of copies and kernels");
  sub->add_option("--node", options->node,
                  "GPUs of a node, which alone have fast links to each other; 0: all")
      ->check(whole_number(0, 4096))
      ->capture_default_str();
  sub->footer(
      "Examples:\n"
      "  attn dist b1_n32768_hq64_hk8_d128_causal_bf16 --ranks 4\n"
      "  attn dist b1_n65536_hq64_hk8_d128_window4096x0_sink_bf16 --ranks 8 --simulate");
  sub->callback([options, &status] { status = show(*options); });
}

}  // namespace attn::command
