// attn run: attention of tensors in files.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command/command.hpp"
#include "command/json_report.hpp"
#include "command/message.hpp"
#include "command/run_device.hpp"
#include "command/run_problem.hpp"
#include "command/run_results.hpp"
#include "command/timing.hpp"
#include "command/verify.hpp"
#include "core/problem/costs.hpp"

namespace attn::command {
namespace {

struct RunCommandOptions {
  ProblemOptions problem;
  RunOptions run;
  std::string output, json;
  bool lse = false, max_logit = false, verify = false;
  double seconds = 0.2;
};

class Runner {
 public:
  Runner(const RunCommandOptions& options, const std::string& command_line)
      : options_(options),
        report_(options.json, command_line),
        read_(read_problem(options.problem)),
        results_(read_, options.problem.backward, options.max_logit),
        context_(make_context(options.run)) {}

  int run() {
    const NamedTensors tensors = results_.named(read_, options_.lse);
    check_results(options_.output, tensors);
    check_files_differ({{"--json", options_.json}, {"--output", options_.output}}, read_.files);
    const PlanOptions choices = plan_options(options_.run);
    std::vector<Plan> plans;
    fmt::print(report_.text(), "problem   {}\n", to_string(read_.problem));
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      if (phase == Phase::backward && !options_.problem.backward) continue;
      plans.push_back(make_plan(read_.problem, phase, choices, context_));
      fmt::print(report_.text(), "plan      {}\n", to_string(plans.back()));
    }
    Json row{{"problem", to_string(read_.problem)}, {"phases", Json::array()}};
    bool passed = true;
    for (const Plan& plan : plans) {
      passed = (plan.phase == Phase::forward ? run_forward(plan) : run_backward(plan)) && passed;
      row["phases"].push_back(std::move(phase_));
    }
    row["output"] = nullptr;
    if (passed && !options_.output.empty()) {
      write_results(options_.output, tensors);
      row["output"] = options_.output;
      tell_written(tensors, row);
    }
    report_.add(std::move(row));
    report_.save();
    return passed ? kOk : kWrong;
  }

 private:
  // Whether the phase is right, where that is asked for.
  bool run_forward(const Plan& plan) {
    begin(plan, call(plan, {}, options_.seconds));
    return !options_.verify ||
           tell(verify_forward(read_.problem, read_.inputs, results_.outputs, plan.device.type));
  }
  bool run_backward(const Plan& plan) {
    std::optional<Verification> verification;
    if (options_.verify) {
      const auto once = [&](const OutputGradients& d_outputs) { call(plan, d_outputs, 0); };
      verification = verify_backward(read_.problem, read_.inputs, read_.d_outputs,
                                     results_.gradients, plan.device.type, once);
    }
    begin(plan, call(plan, read_.d_outputs, options_.seconds));
    return !verification || tell(*verification);
  }

  // Calls until so many seconds have passed; the results are on the host then.
  Timing call(const Plan& plan, const OutputGradients& d_outputs, double seconds) {
    const TimingRule rule{.min_calls = 1, .seconds = seconds};
    if (plan.device.type == DeviceType::cuda) {
      Context context = context_;
      const OnDevice on(read_, results_.outputs, d_outputs, results_.gradients, plan, context);
      Timing timing = time_calls([&] { on.run(context); }, rule);
      on.download();
      return timing;
    }
    return time_calls(
        [&] {
          if (plan.phase == Phase::forward) {
            forward(plan, read_.inputs, results_.outputs, context_);
          } else {
            const Outputs given{.o = results_.outputs.o, .lse = results_.outputs.lse};
            backward(plan, read_.inputs, given, d_outputs, results_.gradients, context_);
          }
        },
        rule);
  }

  void begin(const Plan& plan, const Timing& timing) {
    const double gflops =
        core::flops(plan.problem, plan.phase, read_.inputs) / timing.median() * 1e-9;
    fmt::print(report_.text(), "time      {} {}, median of {}; {:.1f} GFLOP/s\n", name(plan.phase),
               format_seconds(timing.median()), timing.seconds.size(), gflops);
    phase_ = {{"phase", name(plan.phase)},
              {"backend", name(plan.backend)},
              {"device", to_string(plan.device)},
              {"algorithm", name(plan.algorithm)},
              {"isa", name(plan.isa)},
              {"threads", plan.threads},
              {"plan", to_string(plan)},
              {"calls", timing.seconds.size()},
              {"seconds_median", timing.median()},
              {"seconds_minimum", timing.minimum()},
              {"gflops", gflops},
              {"verified", nullptr}};
  }

  bool tell(const Verification& verification) {
    const bool passed = verification.passed();
    fmt::print(report_.text(), "verified  {} against fp64: {}\n", verification.extent,
               passed ? "ok" : "WRONG");
    Json comparisons = Json::array();
    for (const verify::Comparison& comparison : verification.comparisons) {
      fmt::print(report_.text(), "          {}\n", verify::to_string(comparison));
      comparisons.push_back(comparison_json(comparison));
    }
    phase_["verified"] = {{"correct", passed},
                          {"checked", verification.extent},
                          {"comparisons", std::move(comparisons)}};
    return passed;
  }

  void tell_written(const NamedTensors& tensors, Json& row) const {
    std::string text;
    for (const auto& [name, tensor] : tensors) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, to_string(tensor));
      row["tensors"][name] = {
          {"dtype", attn::name(tensor.dtype)},
          {"shape", std::vector(tensor.shape.begin(), tensor.shape.begin() + tensor.rank)}};
    }
    fmt::print(report_.text(), "written   {} to {}\n", text, shown(options_.output));
  }

  const RunCommandOptions& options_;
  JsonReport report_;
  RunProblem read_;
  RunResults results_;
  Context context_;
  Json phase_;  // of the call made last
};

void add_problem_options(CLI::App& app, ProblemOptions& options) {
  app.add_option("--input", options.input, "safetensors file")->type_name("FILE");
  app.add_option("--q", options.q,
                 "Tensor of --input or .npy file; [batch, seqlen, heads, "
                 "head_dim] or without batch")
      ->type_name("SOURCE")
      ->capture_default_str();
  app.add_option("--k", options.k, "Likewise")->capture_default_str()->type_name("SOURCE");
  app.add_option("--v", options.v, "Likewise")->capture_default_str()->type_name("SOURCE");
  app.add_option("--dtype", options.dtype, "Convert Q, K, V first: f32, bf16, f16, f64")
      ->type_name("{f32,bf16,f16,f64}");
  app.add_option("--mask", options.mask,
                 "Boolean expression of position, query, key, batch, head, seqlen_q, seqlen_k and "
                 "buffers, or tokens such as causal_window128x0");
  app.add_option("--score", options.score,
                 "Expression of score and the same, or tokens such as "
                 "softcap30");
  app.add_option("--buffer", options.buffers,
                 "name=tensor or name=file.npy, read by --mask and --score as name[i, j]")
      ->allow_extra_args(false);
  app.add_option("--scalar", options.scalars,
                 "name=number, a scalar that --mask and --score read by its name")
      ->allow_extra_args(false);
  app.add_flag("--causal", options.causal,
               "Each query sees the keys up to its own, the last "
               "query all");
  app.add_option("--window", options.window,
                 "left,right: keys from left before to right after the query's own; -1: no bound");
  app.add_option("--documents", options.documents,
                 "Tensor or .npy file of i32 ids: a query sees the keys of its document")
      ->type_name("SOURCE");
  app.add_option("--softcap", options.softcap, "c: the score becomes c tanh(score / c)");
  app.add_flag("--alibi", options.alibi, "Subtract slope[head] times the distance");
  app.add_option("--bias", options.bias,
                 "Tensor or .npy file [batch, head, query, key] added to the score; sizes of 1 "
                 "broadcast")
      ->type_name("SOURCE");
  app.add_option("--scale", options.scale, "Default: 1 / sqrt(head_dim)");
  app.add_option(
      "--problem", options.tokens,
      "More tokens of the text form (docs/descriptors.md), as in dropout0.1_seed7; sizes must "
      "be those of the tensors");
  struct Input {
    const char* option;
    std::string ProblemOptions::*source;
    const char* what;
  };
  constexpr std::array<Input, 9> kInputs{{
      {"--cu-seqlens-q", &ProblemOptions::cu_seqlens_q,
       "i32 or i64 [batch + 1]: Q is packed, [total, heads, head_dim]"},
      {"--cu-seqlens-k", &ProblemOptions::cu_seqlens_k, "i32 or i64 [batch + 1]: K, V are packed"},
      {"--seqused-q", &ProblemOptions::seqused_q, "i32 or i64 [batch]: rows of Q in use"},
      {"--seqused-k", &ProblemOptions::seqused_k, "i32 or i64 [batch]: keys in use"},
      {"--page-table", &ProblemOptions::page_table,
       "i32 or i64 [batch, pages of a sequence]: K, V are paged, [pages, page_size, heads, "
       "head_dim]"},
      {"--sink", &ProblemOptions::sink, "f32 [heads]: logits in the denominator"},
      {"--rng-state", &ProblemOptions::rng_state, "i64 [2]: seed and offset of dropout"},
      {"--d-o", &ProblemOptions::d_o, "Gradient of O, of its shape; with --backward"},
      {"--d-lse", &ProblemOptions::d_lse,
       "Gradient of LSE, f32 [batch, heads, seqlen_q] or [heads, total]; with --backward"},
  }};
  for (const Input& input : kInputs) {
    std::string name = input.option + 2;
    std::replace(name.begin(), name.end(), '-', '_');
    app.add_option(input.option, options.*input.source,
                   fmt::format("{}. Default: {} of --input where it is there", input.what, name))
        ->type_name("SOURCE");
  }
}

}  // namespace

void add_run(CLI::App& app, int& status, const std::string& command_line) {
  auto options = std::make_shared<RunCommandOptions>();
  CLI::App* sub = app.add_subcommand("run", "Compute attention of tensors in files");
  add_problem_options(*sub, options->problem);
  sub->add_option("--output", options->output,
                  "safetensors file (tensors o, with --lse lse, with --max-logit max_logit, with "
                  "--backward the gradients) or .npy file (o alone)")
      ->type_name("FILE");
  sub->add_flag("--lse", options->lse, "Write log(sum(exp(score))) of each row as well");
  sub->add_flag("--max-logit", options->max_logit, "Write the largest score of each head as well");
  sub->add_flag("--backward", options->problem.backward,
                "Gradients as well: dq, dk, dv, dsink, and d<name> for each buffer of the score");
  sub->add_option("--seconds", options->seconds, "Time calls for so long; the median counts")
      ->check(seconds())
      ->capture_default_str();
  sub->add_flag("--verify", options->verify,
                "Compare with the fp64 reference; exit code 1 if "
                "wrong");
  add_json_option(*sub, options->json);
  add_algorithm_option(*sub, options->run.algorithm);
  add_backend_option(*sub, options->run.backend);
  add_device_option(*sub, options->run.device);
  add_kernel_option(*sub, options->run.kernel);
  add_deterministic_flag(*sub, options->run.deterministic);
  add_batch_invariant_flag(*sub, options->run.batch_invariant);
  add_isa_option(*sub, options->run.isa);
  add_threads_option(*sub, options->run.threads);
  sub->footer(
      "Examples:\n"
      "  attn run --input examples/data/minilm_layer3.safetensors --output o.safetensors --verify\n"
      "  attn run --input qkv.safetensors --output o.safetensors --causal --softcap 30 --dtype "
      "bf16\n"
      "  attn run --q q.npy --k k.npy --v v.npy --mask 'query >= key && query - key < 1024' "
      "--verify\n"
      "  attn run --input qkv.safetensors --score 'score - w[head] * (query - key)' --buffer "
      "w=slopes.npy\n"
      "  attn run --input call.safetensors --problem causal_bias_packed --backward --lse --output "
      "results.safetensors");
  sub->callback([options, &status, command_line] {
    check_run_options(options->run);
    status = Runner(*options, command_line).run();
  });
}

}  // namespace attn::command
