// attn run: attention of tensors in files.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <list>
#include <memory>

#include "attn/error.hpp"
#include "command/command.hpp"
#include "command/run_problem.hpp"
#include "command/timing.hpp"
#include "command/verify.hpp"
#include "cuda/driver/memory.hpp"
#include "harness/device_data.hpp"
#include "io/npy.hpp"
#include "io/output_file.hpp"

namespace attn::command {
namespace {

struct Options {
  ProblemOptions problem;
  RunOptions run;
  std::string output;
  bool lse = false, verify = false;
};

// Filled with NaN, which stays where nothing is written.
io::Array poisoned(DType dtype, std::initializer_list<std::int64_t> shape) {
  io::Array array(dtype, {shape.begin(), shape.size()});
  std::memset(array.data(), 0xff, array.bytes());
  return array;
}

// A batch of one without its first dimension, when Q came so.
Tensor with_rank(const Tensor& tensor, int rank) {
  if (rank == 4) return tensor;
  Tensor result = tensor;
  --result.rank;
  std::copy(tensor.shape.begin() + 1, tensor.shape.end(), result.shape.begin());
  std::copy(tensor.strides.begin() + 1, tensor.strides.end(), result.strides.begin());
  return result;
}

void write(const Options& options, const Tensor& o, const Tensor& lse) {
  if (options.output.empty()) return;
  if (options.output.ends_with(".npy")) {
    io::write_npy(options.output, o);
  } else {
    std::vector<std::pair<std::string, Tensor>> tensors{{"o", o}};
    if (lse.given()) tensors.emplace_back("lse", lse);
    io::write_safetensors(options.output, tensors);
  }
  fmt::print("written   o {}{} to {}\n", to_string(o),
             lse.given() ? ", lse " + to_string(lse) : std::string(), options.output);
}

// The tensors of a call in the memory of a GPU.
class OnDevice {
 public:
  OnDevice(const RunProblem& read, const Outputs& outputs, const Plan& plan, Context& context)
      : host_(outputs),
        plan_(plan),
        stream_(plan.device.index),
        workspace_(plan),
        inputs_(read.inputs) {
    context.stream = stream_.handle();
    context.workspace = workspace_.tensor();
    for (Tensor* tensor : {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.sink}) {
      if (tensor->given()) *tensor = harness::upload(*tensor, plan.device, memory_);
    }
    for (auto& [name, tensor] : inputs_.buffers) {
      tensor = harness::upload(tensor, plan.device, memory_);
    }
    for (const expr::Expr* e : {&read.problem.mask, &read.problem.score}) {
      for (const auto& buffer : expr::buffers(*e)) bind(*buffer);
    }
    outputs_.o = harness::upload(outputs.o, plan.device, memory_);
    outputs_.lse = harness::upload(outputs.lse, plan.device, memory_);
  }

  // Returns when the work is done and its results are on the host.
  void run(const Context& context) const {
    forward(plan_, inputs_, outputs_, context);
    stream_.synchronize();
  }
  void download() const {
    for (const auto& [from, to] :
         {std::pair{outputs_.o, host_.o}, std::pair{outputs_.lse, host_.lse}}) {
      for (const cuda::DeviceBuffer& memory : memory_) {
        if (memory.data() == from.data) memory.download(to.data, memory.bytes());
      }
    }
  }

 private:
  // A tensor that the expression itself holds.
  void bind(const expr::Buffer& buffer) {
    for (const auto& [name, tensor] : inputs_.buffers) {
      if (name == buffer.name()) return;
    }
    inputs_.buffers.emplace_back(buffer.name(),
                                 harness::upload(buffer.tensor(), plan_.device, memory_));
  }

  Outputs host_;
  const Plan& plan_;
  cuda::Stream stream_;
  harness::DeviceWorkspace workspace_;
  std::list<cuda::DeviceBuffer> memory_;
  Inputs inputs_;
  Outputs outputs_;
};

// Median over calls; on a GPU a call is waited for.
Timing run_timed(const RunProblem& read, const Outputs& outputs, const Plan& plan,
                 Context context) {
  const TimingRule rule{.min_calls = 1, .seconds = 0.2};
  if (plan.device.type == DeviceType::cpu) {
    return time_calls([&] { forward(plan, read.inputs, outputs, context); }, rule);
  }
  const OnDevice on(read, outputs, plan, context);
  const Timing timing = time_calls([&] { on.run(context); }, rule);
  on.download();
  return timing;
}

int run(const Options& options) {
  if (options.lse && options.output.ends_with(".npy")) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--lse with --output {}: an .npy file holds one tensor, a safetensors "
                            "file is accepted",
                            io::printable(options.output)));
  }
  if (!options.output.empty()) io::OutputFile::check(options.output);
  const RunProblem read = read_problem(options.problem);
  const Problem& problem = read.problem;
  const Context context = make_context(options.run);
  const Plan plan = make_plan(problem, Phase::forward, plan_options(options.run), context);
  const io::Array o = poisoned(
      problem.dtype, {problem.batch, problem.seqlen_q, problem.heads_q, problem.head_dim_v});
  const io::Array lse = poisoned(problem.dtype == DType::f64 ? DType::f64 : DType::f32,
                                 {problem.batch, problem.heads_q, problem.seqlen_q});
  const Outputs outputs{.o = o.tensor(), .lse = lse.tensor()};

  fmt::print("problem   {}\n", to_string(problem));
  fmt::print("plan      {}\n", to_string(plan));
  const Timing timing = run_timed(read, outputs, plan, context);
  fmt::print("time      {}, median of {}; {:.1f} GFLOP/s\n", format_seconds(timing.median()),
             timing.seconds.size(), plan.flops / timing.median() * 1e-9);
  if (options.verify) {
    const Verification verification = verify_forward(problem, read.inputs, outputs);
    fmt::print("verified  {} against fp64: {}\n", verification.extent,
               verification.passed() ? "ok" : "WRONG");
    for (const harness::Comparison& comparison : verification.comparisons) {
      fmt::print("          {}\n", harness::to_string(comparison));
    }
    if (!verification.passed()) return kWrong;
  }
  write(options, with_rank(o.tensor(), read.rank),
        options.lse ? with_rank(lse.tensor(), read.rank) : Tensor{});
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
  app.add_option("--sink", options.sink,
                 "Tensor or .npy file, f32 [heads]: logits in the "
                 "denominator");
  app.add_option("--scale", options.scale, "Default: 1 / sqrt(head_dim)");
  app.add_option("--problem", options.tokens,
                 "More tokens of the text form (docs/descriptors.md), as in dropout0.1_seed7");
}

}  // namespace

void add_run(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("run", "Compute attention of tensors in files");
  add_problem_options(*sub, options->problem);
  sub->add_option("--output", options->output,
                  "safetensors file (tensors o and, with --lse, lse) or .npy file (o)");
  sub->add_flag("--lse", options->lse, "Write log(sum(exp(score))) of each row as well");
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
      "w=slopes.npy");
  sub->callback([options, &status] { status = run(*options); });
}

}  // namespace attn::command
