// attn bench: verify, then time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "attn/error.hpp"
#include "command/bench_report.hpp"
#include "command/command.hpp"
#include "command/message.hpp"
#include "command/progress.hpp"
#include "core/validate/validate.hpp"
#include "io/file.hpp"
#include "io/output_file.hpp"

namespace attn::command {
namespace {

struct BenchOptions {
  std::vector<std::string> descriptors, algorithms;
  std::vector<int> threads;
  std::string backend, device, isa, kernel, phase = "forward", json, plot;
  TimingRule rule;
  int repeat = 0;
  bool plan = false, deterministic = false, batch_invariant = false;
};

int bench(const BenchOptions& options, const std::string& command_line) {
  const bool on_gpu = parse_device(options.device).type == DeviceType::cuda;
  // Refused before the work rather than after it.
  if (!options.plot.empty()) io::OutputFile::check(options.plot);
  check_files_differ({{"--json", options.json}, {"--plot", options.plot}});
  check_run_options({.algorithm = options.algorithms.empty() ? "" : options.algorithms.front(),
                     .backend = options.backend,
                     .isa = options.isa,
                     .device = options.device,
                     .kernel = options.kernel});
  JsonReport report(options.json, command_line);
  TimingRule rule = options.rule;
  if (options.repeat > 0) {
    rule = {.min_calls = options.repeat, .seconds = 0, .max_calls = options.repeat};
  }
  const Phase phase = options.phase == "forward" ? Phase::forward : Phase::backward;
  std::vector<verify::Case> cases;
  std::size_t width = 7;
  for (const std::string& text : options.descriptors) {
    cases.push_back(verify::parse_case(text));
    core::validate_problem(cases.back().problem);
    width = std::max(width, verify::to_string(cases.back()).size());
  }
  std::vector<PlanOptions> choices;
  for (const std::string& algorithm :
       options.algorithms.empty() ? std::vector<std::string>(1) : options.algorithms) {
    choices.push_back(plan_options({.algorithm = algorithm,
                                    .backend = options.backend,
                                    .isa = {},
                                    .device = options.device,
                                    .kernel = options.kernel,
                                    .deterministic = options.deterministic,
                                    .batch_invariant = options.batch_invariant}));
  }
  std::vector<Context> contexts;
  for (const int threads : options.threads.empty() ? std::vector{0} : options.threads) {
    contexts.push_back(make_context({.isa = options.isa, .threads = threads}));
  }

  Peaks peaks;
  std::vector<BenchRow> rows;
  const std::size_t total = cases.size() * choices.size() * contexts.size();
  Progress progress(static_cast<std::int64_t>(total));
  fmt::print(report.text(), "{}\n", table_header(width, on_gpu));
  for (const verify::Case& c : cases) {
    progress.show(static_cast<std::int64_t>(rows.size()), verify::to_string(c) + ": making data");
    verify::CaseData data(verify::at_full_length(c), 1);
    for (const PlanOptions& choice : choices) {
      for (const Context& context : contexts) {
        progress.show(static_cast<std::int64_t>(rows.size()),
                      fmt::format("{} {}", verify::to_string(c), name(choice.algorithm)));
        rows.push_back(measure_row(c, data, phase, choice, context, rule, peaks));
        add_row(report, rows.back());
        progress.clear();
        fmt::print(report.text(), "{}\n", table_line(rows.back(), width));
        if (options.plan && rows.back().refused.empty()) {
          fmt::print(report.text(), "  {}\n", to_string(rows.back().plan));
        }
        std::fflush(report.text());
      }
    }
  }
  report.save();
  if (!options.plot.empty()) {
    io::OutputFile file(options.plot);
    file.write(plot(rows));
    file.commit();
    fmt::print(report.text(), "plot written to {}\n", shown(options.plot));
  }
  const auto refused = [](const BenchRow& row) { return !row.refused.empty(); };
  if (std::all_of(rows.begin(), rows.end(), refused)) return kNotAvailable;
  const auto wrong = [&](const BenchRow& row) { return !refused(row) && !row.correct; };
  return std::any_of(rows.begin(), rows.end(), wrong) ? kWrong : kOk;
}

}  // namespace

void add_bench(CLI::App& app, int& status, const std::string& command_line) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* sub = app.add_subcommand("bench", "Verify, then time");
  sub->add_option("descriptors", options->descriptors,
                  "Problems in text form (docs/descriptors.md), or @file with a list of them")
      ->required();
  sub->add_option("--phase", options->phase, "forward or backward")
      ->check(CLI::IsMember({"forward", "backward"}))
      ->capture_default_str()
      ->take_last();
  sub->add_option("--algorithm", options->algorithms, "Separated by commas; default: automatic")
      ->type_name(algorithm_type())
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--threads", options->threads,
                  "Numbers of threads, separated by commas; default: one for each CPU")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole_number(1, 4096));
  add_backend_option(*sub, options->backend);
  add_device_option(*sub, options->device);
  add_kernel_option(*sub, options->kernel);
  add_deterministic_flag(*sub, options->deterministic);
  add_batch_invariant_flag(*sub, options->batch_invariant);
  add_isa_option(*sub, options->isa);
  sub->add_option("--seconds", options->rule.seconds,
                  "Time calls for so long, at least 3; the median counts")
      ->check(seconds())
      ->capture_default_str()
      ->take_last();
  sub->add_option("--repeat", options->repeat, "Time exactly so many calls instead")
      ->check(whole_number(1, 1'000'000'000))
      ->take_last();
  add_json_option(*sub, options->json);
  sub->add_option("--plot", options->plot, "Write an SVG of time and memory over seqlen here")
      ->type_name("FILE")
      ->take_last();
  sub->add_flag("--plan", options->plan, "Print the plan of each line");
  sub->footer(
      "Columns: 'peak' is the share of the GFLOP/s of independent multiply-adds, 'read' the share "
      "of the\nread bandwidth (where the problem is bound by it); 'workspace' is what the plan "
      "announces, 'memory' by\nhow much the process grew during a call. On a GPU 'matrix' is the "
      "share of the rate of matrix products\nfrom shared memory, 'copy' the share of the bandwidth "
      "of a copy. All ceilings are measured in the same run.\n"
      "Examples:\n"
      "  attn bench b1_n4096_h8_d64_f32 b1_n4096_h8_d64_causal_f32 --threads 1,2\n"
      "  attn bench b4_n4096_h16_d128_causal_bf16 --device cuda --phase backward\n"
      "  attn bench @bench/suites/demo.txt --plot build/demo.svg\n"
      "  attn bench @bench/suites/cpu-backward-f32.txt --json out.json");
  sub->callback([options, &status, command_line] { status = bench(*options, command_line); });
}

}  // namespace attn::command
