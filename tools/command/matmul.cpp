// attn matmul: the ladder of matrix products, checked and timed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "attn/error.hpp"
#include "command/command.hpp"
#include "command/gpu_json.hpp"
#include "command/matmul_gpu.hpp"
#include "command/matmul_row.hpp"
#include "command/message.hpp"
#include "command/number.hpp"
#include "io/file.hpp"
#include "io/output_file.hpp"

namespace attn::command {
namespace {

struct MatmulCommandOptions {
  std::vector<std::string> shapes;
  std::string rung, dtype = "f32", output, orders = "rrr", activation = "none", device, isa, json,
                    plot;
  int threads = 0;
  bool bias = false;
  std::string mask, format_b;
  double density = 0.5;
  TimingRule rule{.min_calls = 3, .seconds = 0.3};
};

// "M,N,K" or "BATCH,M,N,K".
std::array<std::int64_t, 4> parse_shape(const std::string& text) {
  std::vector<std::int64_t> sizes;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::int64_t size = -1;
    if (!reads_as(std::string_view(text).substr(at, comma - at), size) || size < 0) break;
    sizes.push_back(size);
    at = comma + 1;
    if (comma == text.size()) {
      if (sizes.size() == 3) return {1, sizes[0], sizes[1], sizes[2]};
      if (sizes.size() == 4) return {sizes[0], sizes[1], sizes[2], sizes[3]};
    }
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("the shape is {}; accepted are M,N,K and BATCH,M,N,K", io::printable(text)));
}

// "b256": a mask of B with blocks of 256.
void set_mask(const std::string& text, MatmulProblem& p) {
  const bool known = text[0] == 'b' || text[0] == 'c';
  if (!known || !reads_as(std::string_view(text).substr(1), p.block) || p.block < 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--mask is {}; accepted are b or c and the side of blocks, as in b256",
                            io::printable(text)));
  }
  p.masked = text[0] == 'b' ? MaskedMatrix::b : MaskedMatrix::c;
}

// Weights in blocks, whose order is that of a linear layer.
void set_format(const std::string& text, MatmulProblem& p) {
  for (const BlockFormat format : {BlockFormat::q8_0, BlockFormat::q4_0, BlockFormat::q4_1}) {
    if (name(format) == text) p.format_b = format;
  }
  if (p.format_b == BlockFormat::none) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--format-b is {}; accepted are q8_0, q4_0 and q4_1", io::printable(text)));
  }
  p.dtype_b = DType::u8;
  p.order_b = MatrixOrder::column_major;
}

MatmulProblem problem_of(const MatmulCommandOptions& options, const std::string& shape) {
  const auto [batch, m, n, k] = parse_shape(shape);
  MatmulProblem p{
      .batch = batch,
      .m = m,
      .n = n,
      .k = k,
  };
  p.float8 = options.dtype == "e4m3"   ? Float8::e4m3
             : options.dtype == "e5m2" ? Float8::e5m2
                                       : Float8::none;
  const bool float8 = p.float8 != Float8::none;
  p.dtype = float8 ? DType::u8 : parse_dtype(options.dtype);
  p.scaled = float8;
  p.output = float8 ? DType::bf16 : p.dtype;
  if (!options.output.empty()) p.output = parse_dtype(options.output);
  const auto order = [&](std::size_t i) {
    const char letter = i < options.orders.size() ? options.orders[i] : ' ';
    if (options.orders.size() != 3 || (letter != 'r' && letter != 'c')) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--orders is {}; accepted are three letters r or c, of A, B and C",
                              io::printable(options.orders)));
    }
    return letter == 'r' ? MatrixOrder::row_major : MatrixOrder::column_major;
  };
  p.order_a = order(0);
  p.order_b = order(1);
  p.order_c = order(2);
  p.bias = options.bias;
  p.activation = parse_activation(options.activation);
  if (!options.mask.empty()) set_mask(options.mask, p);
  if (!options.format_b.empty()) set_format(options.format_b, p);
  return p;
}

// A row for each rung that was asked for.
std::vector<MatmulRow> rows_of(const MatmulCommandOptions& options, const MatmulProblem& problem,
                               Device device, const Context& context) {
  std::vector<std::string> rungs;
  for (std::size_t at = 0; at <= options.rung.size();) {
    const std::size_t comma = std::min(options.rung.find(',', at), options.rung.size());
    rungs.push_back(options.rung.substr(at, comma - at));
    at = comma + 1;
  }
  if (options.rung == "all") {
    rungs = matmul_rungs(device.type == DeviceType::cuda ? Backend::cuda : Backend::cpu);
  }
  std::vector<MatmulRow> rows;
  for (const std::string& rung : rungs) {
    MatmulRow row{.problem = problem, .implementation = rung, .refused = {}};
    try {
      MatmulOptions choice;
      choice.device = device;
      choice.rung = rung;
      row.plan = make_plan(problem, choice, context);
      if (rung.empty()) row.implementation = row.plan.rung;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || options.rung != "all") throw;
      row.refused = error.what();
    }
    rows.push_back(row);
  }
  // The peer, where it computes the same.
  if (device.type == DeviceType::cuda && problem.float8 == Float8::none && !problem.bias &&
      problem.activation == Activation::none && problem.masked == MaskedMatrix::none) {
    MatmulRow peer{.problem = problem, .implementation = kCublas, .refused = {}};
    peer.plan.device = device;
    rows.push_back(peer);
  }
  return rows;
}

// GFLOP/s of cuBLAS; 0 where it did not run.
double peer_gflops(const std::vector<MatmulRow>& rows) {
  for (const MatmulRow& row : rows) {
    if (row.implementation == kCublas && row.correct()) return row.gflops();
  }
  return 0;
}

// The geometric mean of the rates of what came before cuBLAS, of problems where both ran.
void print_mean(std::FILE* to, const std::vector<MatmulRow>& all) {
  double logs = 0;
  int count = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].implementation != kCublas || !all[i].correct() || !all[i - 1].correct()) continue;
    logs += std::log(all[i - 1].gflops() / all[i].gflops());
    ++count;
  }
  if (count == 0) return;
  fmt::print(to, "geometric mean of the last rung's rate over cuBLAS': {:.3f} of {} products\n",
             std::exp(logs / count), count);
}

int run_matmul(const MatmulCommandOptions& options, const std::string& command_line) {
  if (!options.plot.empty()) io::OutputFile::check(options.plot);
  check_files_differ({{"--json", options.json}, {"--plot", options.plot}});
  JsonReport report(options.json, command_line);
  const Device device = parse_device(options.device);
  const Context context = make_context({.algorithm = {},
                                        .backend = {},
                                        .isa = options.isa,
                                        .device = {},
                                        .kernel = {},
                                        .threads = options.threads});
  std::vector<MatmulProblem> problems;
  for (const std::string& shape : options.shapes) problems.push_back(problem_of(options, shape));
  std::vector<MatmulRow> all;
  CudaCeilings ceilings;
  if (device.type == DeviceType::cuda) {
    report.set_machine("gpu", gpu_json(cuda::device_info(device.index)));
  }
  fmt::print(report.text(), "{}\n", matmul_header());
  for (const MatmulProblem& problem : problems) {
    std::vector<MatmulRow> rows = rows_of(options, problem, device, context);
    verify::MatmulData data(problem, 1, 0, options.density);
    const bool on_gpu = device.type == DeviceType::cuda;
    if (on_gpu) measure_matmuls_on_gpu(rows, data, device, context, options.rule, ceilings);
    for (MatmulRow& row : rows) {
      if (!on_gpu && row.refused.empty()) measure_matmul(row, data, context, options.rule);
      row.density = data.density;
      report.add(matmul_json(row));
      fmt::print(report.text(), "{}\n", matmul_line(row, peer_gflops(rows)));
      std::fflush(report.text());
      all.push_back(row);
    }
  }
  print_mean(report.text(), all);
  report.save();
  if (!options.plot.empty()) {
    io::OutputFile file(options.plot);
    file.write(matmul_plot(all));
    file.commit();
    fmt::print(report.text(), "plot written to {}\n", shown(options.plot));
  }
  const auto wrong = [](const MatmulRow& row) { return row.refused.empty() && !row.correct(); };
  return std::ranges::any_of(all, wrong) ? kWrong : kOk;
}

}  // namespace

void add_matmul(CLI::App& app, int& status, const std::string& command_line) {
  auto options = std::make_shared<MatmulCommandOptions>();
  options->shapes = {"512,512,512", "1024,1024,1024"};
  CLI::App* sub = app.add_subcommand("matmul", "Check and time matrix products, rung by rung");
  sub->add_option("shapes", options->shapes,
                  "M,N,K or BATCH,M,N,K; default: 512,512,512 1024,1024,1024");
  sub->add_option("--rung", options->rung,
                  "Of the ladder's (docs/matmul.md), one or several with commas, or all; default: "
                  "the fastest that takes the problem")
      ->take_last();
  sub->add_option("--dtype", options->dtype,
                  "Of A and B: f32, bf16, f16, and on a GPU e4m3 and e5m2, with scales")
      ->capture_default_str()
      ->take_last();
  sub->add_option("--output", options->output, "Of C: f32 or that of A and B, which is the default")
      ->type_name("DTYPE")
      ->take_last();
  sub->add_option("--orders", options->orders,
                  "Of A, B and C: r for row-major, c for column-major, as in rcr")
      ->capture_default_str()
      ->take_last();
  sub->add_option("--format-b", options->format_b,
                  "Read B as weights [N,K] in blocks: q8_0, q4_0 or q4_1; on a CPU")
      ->type_name("FORMAT")
      ->take_last();
  sub->add_flag("--bias", options->bias, "Add a bias to every row");
  sub->add_option("--activation", options->activation, "none, relu, gelu, gelu_tanh or silu")
      ->capture_default_str()
      ->take_last();
  CLI::Option* const mask =
      sub->add_option("--mask", options->mask,
                      "Multiply some blocks only: of b or c, and their side, as in b256")
          ->type_name("MASK")
          ->take_last();
  sub->add_option(
         "--density", options->density,
         "Share of the blocks that --mask has, to the nearest number of diagonals of them; "
         "one at least, unless 0")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(mask)
      ->capture_default_str()
      ->take_last();
  add_device_option(*sub, options->device);
  add_isa_option(*sub, options->isa);
  add_threads_option(*sub, options->threads);
  sub->add_option("--seconds", options->rule.seconds,
                  "Time calls for so long, at least 3; the median counts")
      ->check(seconds())
      ->capture_default_str()
      ->take_last();
  add_json_option(*sub, options->json);
  sub->add_option("--plot", options->plot, "Write an SVG of the rate over the size here")
      ->type_name("FILE")
      ->take_last();
  sub->footer(
      "Columns: 'peak' is the share of the rate of independent multiply-adds of this type, "
      "measured "
      "in the same run,\n'cublas' the share of cuBLAS' rate, on a GPU where that is installed; "
      "'error' is the largest error as a\nshare of what docs/matmul.md allows. With a mask, rates "
      "count the products of all blocks.\n"
      "Examples:\n"
      "  attn matmul --rung all 512,512,512\n"
      "  attn matmul --dtype bf16 1024,4096,1024 --bias --activation gelu --threads 2\n"
      "  attn matmul --mask b256 --density 0.25 1024,4096,4096\n"
      "  attn matmul --dtype bf16 --orders rcr 4,1000,1000,64 --json - --plot rungs.svg");
  sub->callback([options, &status, command_line] { status = run_matmul(*options, command_line); });
}

}  // namespace attn::command
