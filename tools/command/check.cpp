// attn check: every algorithm, backend and instruction set against the fp64 reference.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "attn/error.hpp"
#include "command/command.hpp"
#include "command/json_report.hpp"
#include "command/progress.hpp"
#include "core/ceil_div.hpp"
#include "core/validate/validate.hpp"
#include "io/file.hpp"
#include "verify/cases.hpp"
#include "verify/conformance.hpp"

namespace attn::command {
namespace {

using verify::Case;
using verify::Comparison;
using verify::Report;
using verify::Subject;

struct CheckOptions {
  std::vector<std::string> descriptors, algorithms;
  std::string backend, isa, device, kernel, phase = "both", json;
  int threads = 0;
  std::uint64_t seed = 1;
  std::int64_t random = 0;
  bool verbose = false, deterministic = false, batch_invariant = false;
  int ranks = 0;
  std::int64_t chunk = 0;
  std::string deal = "by_area";
};

std::vector<InstructionSet> chosen_instruction_sets(const std::string& text) {
  std::vector<InstructionSet> result;
  const std::optional<InstructionSet> wanted =
      text.empty() ? std::nullopt : std::optional(parse_instruction_set(text));
  if (wanted == InstructionSet::automatic) return {InstructionSet::automatic};
  for (const InstructionSetInfo& info : instruction_sets()) {
    if (wanted && info.isa != *wanted) continue;
    if (info.available) {
      result.push_back(info.isa);
    } else if (wanted) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("--isa {} is not available here: {}", text, info.reason));
    }
  }
  return result;
}

std::vector<Phase> chosen_phases(const CheckOptions& options) {
  if (options.phase == "backward") return {Phase::backward};
  // The backward pass has no --batch-invariant.
  if (options.phase == "forward" || options.batch_invariant) return {Phase::forward};
  return {Phase::forward, Phase::backward};
}

// The GPU, in the phases asked for; of a kernel in the one that it is of.
std::vector<Subject> chosen_on_gpu(const CheckOptions& options, Device device) {
  const Backend backend =
      options.backend.empty() ? Backend::automatic : parse_backend(options.backend);
  std::vector<Algorithm> algorithms;
  for (const std::string& text : options.algorithms) algorithms.push_back(parse_algorithm(text));
  if (algorithms.empty()) algorithms.push_back(Algorithm::automatic);
  std::vector<Subject> subjects;
  for (const Phase phase : chosen_phases(options)) {
    const Phase other = phase == Phase::forward ? Phase::backward : Phase::forward;
    if (options.phase == "both" && options.kernel.starts_with(name(other))) continue;
    for (const Algorithm algorithm : algorithms) {
      subjects.push_back({.phase = phase,
                          .backend = backend,
                          .algorithm = algorithm,
                          .device = device,
                          .kernel = options.kernel,
                          .deterministic = options.deterministic,
                          .batch_invariant = options.batch_invariant});
    }
  }
  return subjects;
}

// Everything that computes a phase, as far as the options leave it in.
std::vector<Subject> chosen_subjects(const CheckOptions& options,
                                     const std::vector<InstructionSet>& sets) {
  const Device device = parse_device(options.device);
  const auto executor = make_thread_pool(options.threads);
  if (options.ranks > 0) {
    std::vector<Subject> subjects;
    for (const Phase phase : chosen_phases(options)) {
      const Phase other = phase == Phase::forward ? Phase::backward : Phase::forward;
      if (options.phase == "both" && options.kernel.starts_with(name(other))) continue;
      subjects.push_back({.phase = phase,
                          .executor = executor,
                          .device = device,
                          .kernel = options.kernel,
                          .deterministic = options.deterministic,
                          .ranks = {.ranks = options.ranks,
                                    .chunk = options.chunk,
                                    .deal = dist::parse_deal(options.deal)}});
    }
    return subjects;
  }
  if (device.type == DeviceType::cuda) return chosen_on_gpu(options, device);
  const Backend backend =
      options.backend.empty() ? Backend::automatic : parse_backend(options.backend);
  std::vector<Subject> subjects;
  for (const Phase phase : chosen_phases(options)) {
    std::vector<Algorithm> algorithms{Algorithm::automatic};
    if (options.algorithms.empty()) {
      for (const Algorithm algorithm : attn::algorithms(phase)) algorithms.push_back(algorithm);
    } else {
      algorithms.clear();
      for (const std::string& text : options.algorithms) {
        algorithms.push_back(parse_algorithm(text));
      }
    }
    if (backend != Backend::cpu && options.algorithms.empty() && options.isa.empty()) {
      subjects.push_back({.phase = phase,
                          .backend = Backend::reference,
                          .executor = executor,
                          .batch_invariant = options.batch_invariant});
    }
    if (backend == Backend::reference) continue;
    for (const InstructionSet isa : sets) {
      for (const Algorithm algorithm : algorithms) {
        subjects.push_back({.phase = phase,
                            .backend = Backend::cpu,
                            .algorithm = algorithm,
                            .isa = isa,
                            .executor = executor,
                            .batch_invariant = options.batch_invariant});
      }
    }
  }
  return subjects;
}

std::vector<Case> chosen_cases(const CheckOptions& options) {
  std::vector<Case> cases;
  if (options.random > 0 && !options.descriptors.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("descriptors are given ({}) together with --random {}; accepted is one "
                            "of the two",
                            io::printable(options.descriptors.front()), options.random));
  }
  for (const std::string& text : options.descriptors) {
    cases.push_back(verify::parse_case(text));
    core::validate_problem(cases.back().problem);
    core::validate_declarations(cases.back().problem, false);
  }
  if (!cases.empty() || options.random > 0) return cases;
  for (const verify::ListedCase& listed : verify::listed_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      cases.push_back(verify::with_dtype(verify::parse_case(listed.descriptor), dtype));
    }
  }
  return cases;
}

class Checker {
 public:
  Checker(const CheckOptions& options, const std::string& command_line)
      : options_(options),
        report_(options.json, command_line),
        sets_(chosen_instruction_sets(options.isa)),
        subjects_(chosen_subjects(options, sets_)),
        cases_(chosen_cases(options)),
        device_(parse_device(options.device).type) {}

  int run() {
    const std::int64_t total = static_cast<std::int64_t>(cases_.size()) + options_.random;
    Progress progress(total);
    for (std::int64_t i = 0; i < total; ++i) {
      const bool listed = i < static_cast<std::int64_t>(cases_.size());
      const std::uint64_t seed = listed ? options_.seed : options_.seed + random_done_++;
      const Case c = listed ? cases_[static_cast<std::size_t>(i)] : verify::random_case(seed);
      progress.show(i, verify::to_string(c));
      check(c, seed, !listed, listed || options_.verbose, progress);
    }
    progress.clear();
    print_summary(total);
    report_.save();
    if (failed_ > 0) return kWrong;
    return passed_ == 0 ? kNotAvailable : kOk;
  }

 private:
  // Random problems: each algorithm with one of the instruction sets, in turn.
  void check(const Case& c, std::uint64_t seed, bool in_turn, bool print_line, Progress& progress) {
    const bool has_backward = verify::has_backward(c.problem);
    const auto wanted = [&](const Subject& s) {
      if (!has_backward && s.phase == Phase::backward) return false;
      if (!in_turn || s.backend != Backend::cpu) return true;
      const auto turn = seed + static_cast<std::uint64_t>(s.algorithm);
      return s.isa == sets_[turn % sets_.size()];
    };
    const bool backward = std::any_of(subjects_.begin(), subjects_.end(), [&](const Subject& s) {
      return wanted(s) && s.phase == Phase::backward;
    });
    verify::Conformance conformance(c, seed, backward);
    std::int64_t passed = 0, failed = 0, unsupported = 0;
    Json failures = Json::array();
    std::optional<Worst> worst;
    for (Subject subject : subjects_) {
      if (!wanted(subject)) continue;
      if (in_turn && subject.ranks.ranks > 0) vary(subject.ranks, c.problem, seed);
      const Report report = conformance.check(subject);
      passed += report.status == verify::Status::passed;
      unsupported += report.status == verify::Status::unsupported;
      if (report.status == verify::Status::unsupported) reason_ = report.message;
      if (report.status == verify::Status::failed) {
        ++failed;
        progress.clear();
        fmt::print(report_.text(), "{}\n", verify::to_string(report));
        failures.push_back({{"subject", verify::to_string(subject)},
                            {"message", report.message},
                            {"repeat", report.command()}});
      }
      for (const Comparison& comparison : report.comparisons) {
        if (!worst || comparison.share() > worst->comparison.share()) {
          worst = Worst{report.descriptor, verify::to_string(subject), comparison};
        }
      }
    }
    passed_ += passed;
    failed_ += failed;
    unsupported_ += unsupported;
    report_.add({{"problem", verify::to_string(c)},
                 {"seed", seed},
                 {"status", failed > 0   ? "failed"
                            : passed > 0 ? "ok"
                                         : "none"},
                 {"passed", passed},
                 {"failed", failed},
                 {"unsupported", unsupported},
                 {"worst", worst ? comparison_json(worst->comparison) : Json(nullptr)},
                 {"worst_subject", worst ? Json(worst->subject) : Json(nullptr)},
                 {"failures", std::move(failures)}});
    if (worst && (!worst_ || worst->comparison.share() > worst_->comparison.share()))
      worst_ = worst;
    if (!print_line) return;
    progress.clear();
    const char* verdict = failed > 0 ? "FAILED" : passed > 0 ? "ok    " : "none  ";
    fmt::print(report_.text(), "{}  {}  {}/{} agree{}\n", verdict, verify::to_string(c), passed,
               passed + failed, worst ? "; worst " + describe(*worst) : std::string());
  }

  // Random problems: 1 to the given number of ranks, with chunks of all kinds, dealt in each way.
  void vary(verify::RankOptions& ranks, const Problem& p, std::uint64_t seed) const {
    constexpr std::int64_t kChunks[] = {0, 1, 3, 16, 64};
    ranks.ranks = static_cast<int>(1 + seed % static_cast<std::uint64_t>(options_.ranks));
    if (options_.chunk == 0) ranks.chunk = kChunks[seed / 8 % std::size(kChunks)];
    // A plan has up to 4096 chunks, of the rows of all sequences where they are packed.
    const std::int64_t rows = p.batch * std::max(p.seqlen_q, p.seqlen_k);
    if (ranks.chunk > 0) ranks.chunk = std::max(ranks.chunk, core::ceil_div(rows, 4096));
    ranks.deal = static_cast<dist::Deal>(seed / 3 % 4);
  }

  struct Worst {
    std::string descriptor, subject;
    Comparison comparison;
  };

  static std::string describe(const Worst& worst) {
    return fmt::format("{} by {}", verify::to_string(worst.comparison), worst.subject);
  }

  void print_summary(std::int64_t total) const {
    std::FILE* text = report_.text();
    fmt::print(text, "{} cases, {} checks: {} passed, {} failed", total,
               passed_ + failed_ + unsupported_, passed_, failed_);
    if (unsupported_ > 0) fmt::print(text, ", {} not supported ({})", unsupported_, reason_);
    fmt::print(text, "\n");
    if (!worst_) return;
    fmt::print(text, "worst {:.0f} % of the allowed error: {} in {}\n",
               100 * worst_->comparison.share(), describe(*worst_), worst_->descriptor);
  }

  const CheckOptions& options_;
  JsonReport report_;
  std::vector<InstructionSet> sets_;  // those chosen
  std::vector<Subject> subjects_;
  std::vector<Case> cases_;
  DeviceType device_;
  std::uint64_t random_done_ = 0;
  std::int64_t passed_ = 0, failed_ = 0, unsupported_ = 0;
  std::string reason_;  // of the last one not supported
  std::optional<Worst> worst_;
};

}  // namespace

void add_check(CLI::App& app, int& status, const std::string& command_line) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* sub = app.add_subcommand(
      "check", "Compare every algorithm, backend and instruction set with the fp64 reference");
  sub->add_option("descriptors", options->descriptors,
                  "Problems in text form (docs/descriptors.md); none: the built-in list, in f32, "
                  "bf16 and f16");
  sub->add_option(
         "--random", options->random,
         "So many random problems (instead of the list), each algorithm with the instruction sets "
         "in turn")
      ->check(whole_number(1, 1'000'000'000));
  sub->add_option("--seed", options->seed,
                  "Of the data; random problems take seed, seed + 1, ...; default 1")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  sub->add_option("--phase", options->phase, "forward, backward or both")
      ->check(CLI::IsMember({"forward", "backward", "both"}))
      ->capture_default_str();
  sub->add_option("--algorithm", options->algorithms, "Only these, separated by commas")
      ->type_name(algorithm_type())
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--ranks", options->ranks,
                  "One sequence over so many ranks of this process (docs/scale-out.md); random "
                  "problems over 1 to so many")
      ->check(whole_number(1, 64));
  sub->add_option("--chunk", options->chunk, "Rows that ranks are dealt at once; 0: a choice")
      ->check(whole_number(0, std::uint64_t{1} << 31));
  sub->add_option("--deal", options->deal, "How ranks are dealt rows")
      ->check(CLI::IsMember({"by_area", "contiguous", "zigzag", "striped"}));
  add_backend_option(*sub, options->backend);
  add_device_option(*sub, options->device);
  add_kernel_option(*sub, options->kernel);
  add_deterministic_flag(*sub, options->deterministic);
  add_batch_invariant_flag(*sub, options->batch_invariant);
  add_isa_option(*sub, options->isa);
  add_threads_option(*sub, options->threads);
  add_json_option(*sub, options->json);
  sub->add_flag("--verbose", options->verbose, "A line for each random problem too");
  sub->footer(
      "Examples:\n"
      "  attn check\n"
      "  attn check b2_n256_hq8_hk2_d64_causal_bf16 --isa avx2 --algorithm flash_attention_2\n"
      "  attn check --random 10000 --seed 1\n"
      "  attn check --random 2000 --device cuda");
  sub->callback([options, &status, command_line] {
    check_run_options({.algorithm = options->algorithms.empty() ? "" : options->algorithms.front(),
                       .backend = options->backend,
                       .isa = options->isa,
                       .device = options->device,
                       .kernel = options->kernel});
    status = Checker(*options, command_line).run();
  });
}

}  // namespace attn::command
