// attn run: attention of tensors in files.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "command/command.hpp"
#include "command/run_device.hpp"
#include "command/run_problem.hpp"
#include "command/timing.hpp"
#include "command/verify.hpp"
#include "io/file.hpp"
#include "io/npy.hpp"
#include "io/output_file.hpp"

namespace attn::command {
namespace {

struct Options {
  ProblemOptions problem;
  RunOptions run;
  std::string output;
  bool lse = false, verify = false;
  double seconds = 0.2;
};

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Filled with NaN, which stays where nothing is written.
io::Array poisoned(DType dtype, const std::vector<std::int64_t>& shape) {
  io::Array array(dtype, shape);
  std::memset(array.data(), 0xff, array.bytes());
  return array;
}

std::vector<std::int64_t> shape(const Tensor& t) {
  return {t.shape.begin(), t.shape.begin() + t.rank};
}

// What a run writes, in memory of its own; gradients where they are asked for.
class Results {
 public:
  Results(const RunProblem& read, bool backward) {
    const Problem& problem = read.problem;
    const Inputs& inputs = read.inputs;
    std::vector<std::int64_t> shape_o = shape(inputs.q);
    shape_o.back() = problem.head_dim_v;
    outputs.o = keep(problem.dtype, shape_o);
    const DType lse = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
    outputs.lse = problem.layout_q == Layout::packed
                      ? keep(lse, {problem.heads_q, inputs.q.shape[0]})
                      : keep(lse, {problem.batch, problem.heads_q, problem.seqlen_q});
    if (!backward) return;
    gradients.dq = keep(problem.dtype, shape(inputs.q));
    gradients.dk = keep(problem.dtype, shape(inputs.k));
    gradients.dv = keep(problem.dtype, shape(inputs.v));
    if (problem.sink) gradients.dsink = keep(DType::f32, shape(inputs.sink));
    if (problem.score.empty()) return;
    for (const auto& buffer : expr::buffers(problem.score)) {
      if (!is_floating(buffer->tensor().dtype)) continue;
      for (const auto& [name, tensor] : inputs.buffers) {
        if (name != buffer->name()) continue;
        gradients.buffers.emplace_back(name, keep(DType::f32, shape(tensor)));
      }
    }
  }

  Outputs outputs;
  Gradients gradients;

  // By the names that they have in a file, in the shapes in which Q, K and V were given.
  NamedTensors named(const RunProblem& read, bool with_lse) const {
    NamedTensors tensors{{"o", given_shape(outputs.o, read.batchless_q)}};
    if (with_lse) tensors.emplace_back("lse", given_shape(outputs.lse, read.batchless_q));
    if (!gradients.dq.given()) return tensors;
    tensors.emplace_back("dq", given_shape(gradients.dq, read.batchless_q));
    tensors.emplace_back("dk", given_shape(gradients.dk, read.batchless_k));
    tensors.emplace_back("dv", given_shape(gradients.dv, read.batchless_v));
    if (gradients.dsink.given()) tensors.emplace_back("dsink", gradients.dsink);
    for (const auto& [name, tensor] : gradients.buffers) tensors.emplace_back("d" + name, tensor);
    return tensors;
  }

 private:
  Tensor keep(DType dtype, const std::vector<std::int64_t>& shape) {
    return arrays_.emplace_back(poisoned(dtype, shape)).tensor();
  }

  static Tensor given_shape(const Tensor& tensor, bool batchless) {
    if (!batchless) return tensor;
    Tensor result = tensor;
    --result.rank;
    std::copy(tensor.shape.begin() + 1, tensor.shape.end(), result.shape.begin());
    std::copy(tensor.strides.begin() + 1, tensor.strides.end(), result.strides.begin());
    return result;
  }

  std::list<io::Array> arrays_;
};

// What cannot be written is refused before it is computed.
void check_output(const Options& options, const NamedTensors& tensors) {
  const std::string& path = options.output;
  if (path.empty()) return;
  io::OutputFile::check(path);
  if (path.ends_with(".npy")) {
    if (tensors.size() > 1) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{} with --output {}: an .npy file holds one tensor, a safetensors "
                      "file is accepted",
                      options.problem.backward ? "--backward" : "--lse", io::printable(path)));
    }
    io::check_npy(path, tensors.front().second.dtype);
    return;
  }
  for (auto named = tensors.begin(); named != tensors.end(); ++named) {
    if (std::any_of(tensors.begin(), named,
                    [&](const auto& other) { return other.first == named->first; })) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--backward writes two tensors named {}; accepted are names of "
                              "buffers whose gradients have names of their own",
                              named->first));
    }
  }
}

void write(const std::string& path, const NamedTensors& tensors) {
  if (path.empty()) return;
  if (path.ends_with(".npy")) {
    io::write_npy(path, tensors.front().second);
  } else {
    io::write_safetensors(path, tensors);
  }
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, to_string(tensor));
  }
  fmt::print("written   {} to {}\n", text, path);
}

void print_time(const Timing& timing, const Plan& plan) {
  fmt::print("time      {}, median of {}; {:.1f} GFLOP/s\n", format_seconds(timing.median()),
             timing.seconds.size(), plan.flops / timing.median() * 1e-9);
}

// Whether it passed.
bool print_verification(const Verification& verification) {
  fmt::print("verified  {} against fp64: {}\n", verification.extent,
             verification.passed() ? "ok" : "WRONG");
  for (const harness::Comparison& comparison : verification.comparisons) {
    fmt::print("          {}\n", harness::to_string(comparison));
  }
  return verification.passed();
}

// Computes O and LSE, many times; whether they are right, if that is asked for.
bool run_forward(const Options& options, const RunProblem& read, const Plan& plan, Context context,
                 const Outputs& outputs) {
  const TimingRule rule{.min_calls = 1, .seconds = options.seconds};
  Timing timing;
  if (plan.device.type == DeviceType::cpu) {
    timing = time_calls([&] { forward(plan, read.inputs, outputs, context); }, rule);
  } else {
    const OnDevice on(read, outputs, plan, context);
    timing = time_calls([&] { on.run(context); }, rule);
    on.download();
  }
  print_time(timing, plan);
  return !options.verify || print_verification(verify_forward(read.problem, read.inputs, outputs));
}

// The same for the gradients.
bool run_backward(const Options& options, const RunProblem& read, const Plan& plan,
                  const Context& context, const Results& results) {
  const auto run_with = [&](const Tensor& d_o) {
    backward(plan, read.inputs, results.outputs, d_o, results.gradients, context);
  };
  bool passed = true;
  if (options.verify) {
    passed = print_verification(
        verify_backward(read.problem, read.inputs, read.d_o, results.gradients, run_with));
  }
  print_time(time_calls([&] { run_with(read.d_o); }, {.min_calls = 1, .seconds = options.seconds}),
             plan);
  return passed;
}

int run(const Options& options) {
  check_run_options(options.run);
  const RunProblem read = read_problem(options.problem);
  const bool with_gradients = options.problem.backward;
  Results results(read, with_gradients);
  const NamedTensors tensors = results.named(read, options.lse);
  check_output(options, tensors);
  const Context context = make_context(options.run);
  const PlanOptions choices = plan_options(options.run);
  std::vector<Plan> plans;
  fmt::print("problem   {}\n", to_string(read.problem));
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    if (phase == Phase::backward && !with_gradients) continue;
    plans.push_back(make_plan(read.problem, phase, choices, context));
    fmt::print("plan      {}\n", to_string(plans.back()));
  }
  bool passed = run_forward(options, read, plans.front(), context, results.outputs);
  if (with_gradients)
    passed = run_backward(options, read, plans.back(), context, results) && passed;
  if (!passed) return kWrong;
  write(options.output, tensors);
  return kOk;
}

void add_problem_options(CLI::App& app, ProblemOptions& options) {
  app.add_option("--input", options.input, "safetensors file");
  app.add_option("--q", options.q,
                 "Tensor of --input or .npy file; [batch, seqlen, heads, "
                 "head_dim] or without batch")
      ->capture_default_str();
  app.add_option("--k", options.k, "Likewise")->capture_default_str();
  app.add_option("--v", options.v, "Likewise")->capture_default_str();
  app.add_option("--dtype", options.dtype, "Convert Q, K, V first: f32, bf16, f16, f64");
  app.add_option("--mask", options.mask,
                 "Boolean expression of query, key, batch, head, seqlen_q, seqlen_k and buffers, "
                 "or tokens such as causal_window128x0");
  app.add_option("--score", options.score,
                 "Expression of score and the same, or tokens such as "
                 "softcap30");
  app.add_option("--buffer", options.buffers,
                 "name=tensor or name=file.npy, read by --mask and --score as name[i, j]")
      ->allow_extra_args(false);
  app.add_flag("--causal", options.causal,
               "Each query sees the keys up to its own, the last "
               "query all");
  app.add_option("--window", options.window,
                 "left,right: keys from left before to right after the query's own; -1: no bound");
  app.add_option("--documents", options.documents,
                 "Tensor or .npy file of i32 ids: a query sees the keys of its document");
  app.add_option("--softcap", options.softcap, "c: the score becomes c tanh(score / c)");
  app.add_flag("--alibi", options.alibi, "Subtract slope[head] times the distance");
  app.add_option("--bias", options.bias,
                 "Tensor or .npy file [batch, head, query, key] added to the score; sizes of 1 "
                 "broadcast");
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
  constexpr std::array<Input, 7> kInputs{{
      {"--cu-seqlens-q", &ProblemOptions::cu_seqlens_q,
       "i32 [batch + 1]: Q is packed, [total, heads, head_dim]"},
      {"--cu-seqlens-k", &ProblemOptions::cu_seqlens_k, "i32 [batch + 1]: K, V are packed"},
      {"--seqused-q", &ProblemOptions::seqused_q, "i32 [batch]: rows of Q in use"},
      {"--seqused-k", &ProblemOptions::seqused_k, "i32 [batch]: keys in use"},
      {"--page-table", &ProblemOptions::page_table,
       "i32 [batch, pages of a sequence]: K, V are paged, [pages, page_size, heads, head_dim]"},
      {"--sink", &ProblemOptions::sink, "f32 [heads]: logits in the denominator"},
      {"--d-o", &ProblemOptions::d_o, "Gradient of O, of its shape; with --backward"},
  }};
  for (const Input& input : kInputs) {
    std::string name = input.option + 2;
    std::replace(name.begin(), name.end(), '-', '_');
    app.add_option(input.option, options.*input.source,
                   fmt::format("{}. Default: {} of --input where it is there", input.what, name));
  }
}

}  // namespace

void add_run(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("run", "Compute attention of tensors in files");
  add_problem_options(*sub, options->problem);
  sub->add_option(
      "--output", options->output,
      "safetensors file (tensors o, with --lse lse, with --backward the gradients) or .npy "
      "file (o alone)");
  sub->add_flag("--lse", options->lse, "Write log(sum(exp(score))) of each row as well");
  sub->add_flag("--backward", options->problem.backward,
                "Gradients as well: dq, dk, dv, dsink, and d<name> for each buffer of the score");
  sub->add_option("--seconds", options->seconds, "Time calls for so long; the median counts")
      ->check(seconds())
      ->capture_default_str();
  sub->add_flag("--verify", options->verify,
                "Compare with the fp64 reference; exit code 1 if "
                "wrong");
  add_algorithm_option(*sub, options->run.algorithm);
  add_backend_option(*sub, options->run.backend);
  add_device_option(*sub, options->run.device);
  add_kernel_option(*sub, options->run.kernel);
  add_isa_option(*sub, options->run.isa);
  add_threads_option(*sub, options->run.threads);
  sub->footer(
      "Examples:\n"
      "  attn run --input examples/data/minilm_layer3.safetensors --output o.safetensors --verify\n"
      "  attn run --input qkv.safetensors --output o.npy --causal --softcap 30 --dtype bf16\n"
      "  attn run --q q.npy --k k.npy --v v.npy --mask 'query >= key && query - key < 1024' "
      "--verify\n"
      "  attn run --input qkv.safetensors --score 'score - w[head] * (query - key)' --buffer "
      "w=slopes.npy\n"
      "  attn run --input call.safetensors --problem causal_bias_packed --backward --lse --output "
      "results.safetensors");
  sub->callback([options, &status] { status = run(*options); });
}

}  // namespace attn::command
