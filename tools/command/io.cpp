// attn io: how many bytes each algorithm moves for a problem.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "attn/error.hpp"
#include "attn/machine.hpp"
#include "command/command.hpp"
#include "command/gpu_json.hpp"
#include "command/io_row.hpp"
#include "core/validate/validate.hpp"
#include "io/file.hpp"
#include "traffic/model.hpp"

namespace attn::command {
namespace {

struct IoOptions {
  std::vector<std::string> descriptors, algorithms;
  std::string phase = "forward", arch, kernel, device, json;
  std::int64_t fast_bytes = 0, block_q = 0, block_k = 0;
  int multiprocessors = 0;  // 0: those of the GPU here, or kMultiprocessors with --arch
  bool measure = false;
};

constexpr int kMultiprocessors = 132;  // of an H100 and an H200

// What the machine has as L2, or where it does not tell, 1 MiB.
std::int64_t default_fast_bytes() {
  const std::int64_t l2 = describe_machine().l2_bytes;
  return l2 > 0 ? l2 : std::int64_t{1} << 20;
}

std::vector<Algorithm> chosen(const IoOptions& options) {
  std::vector<Algorithm> result;
  for (const std::string& text : options.algorithms) {
    result.push_back(parse_algorithm(text));
    if (result.back() == Algorithm::automatic) {
      throw Error(ErrorCode::invalid_argument,
                  "--algorithm is automatic, whose bytes depend on what it picks; accepted are the "
                  "algorithms by name");
    }
  }
  if (!result.empty()) return result;
  return {Algorithm::standard, Algorithm::flash_attention, Algorithm::flash_attention_2,
          Algorithm::block_sparse};
}

// What the options say about all rows. On a GPU its plan is counted, and M is what a block of
// threads has as shared memory.
IoChoice choice_of(const IoOptions& options, const Device& device) {
  IoChoice choice{
      .phase = options.phase == "forward" ? Phase::forward : Phase::backward,
      .fast_bytes = options.fast_bytes,
      .block_q = options.block_q,
      .block_k = options.block_k,
      .arch = options.arch,
      .kernel = options.kernel,
      .multiprocessors = options.multiprocessors > 0 ? options.multiprocessors : kMultiprocessors,
      .on_gpu = device.type == DeviceType::cuda};
  if (!options.arch.empty()) cuda::parse_arch(options.arch);
  if (options.arch.empty() && !choice.on_gpu &&
      (!options.kernel.empty() || options.multiprocessors > 0)) {
    const bool has_kernel = !options.kernel.empty();
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is {}, and the CPU's plan is counted; accepted is {}",
                            has_kernel ? "--kernel" : "--multiprocessors",
                            has_kernel ? io::printable(options.kernel)
                                       : std::to_string(options.multiprocessors),
                            has_kernel ? "with --arch or --device cuda" : "with --arch"));
  }
  if (choice.on_gpu) {
    if (!options.arch.empty() || options.multiprocessors > 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--device is {}, whose plan is counted; --arch and "
                              "--multiprocessors are of a GPU that is not here, accepted is to "
                              "leave them out",
                              io::printable(options.device)));
    }
    const cuda::DeviceInfo& gpu = cuda::device_info(device.index);
    choice.arch = to_string(cuda::arch_of_capability(gpu.arch));
    choice.multiprocessors = gpu.sm_count;
    if (choice.fast_bytes == 0) choice.fast_bytes = gpu.shared_bytes_per_block;
  }
  if (choice.fast_bytes == 0) choice.fast_bytes = default_fast_bytes();
  return choice;
}

int io(const IoOptions& options, const std::string& command_line) {
  const Device device = parse_device(options.device);
  JsonReport report(options.json, command_line);
  IoChoice choice = choice_of(options, device);
  if (choice.on_gpu) report.set_machine("gpu", gpu_json(cuda::device_info(device.index)));
  int status = kOk;
  std::vector<verify::Case> cases;
  for (const std::string& text : options.descriptors) {
    const verify::Case c = verify::parse_case(text);
    const verify::Hints& hints = c.hints;
    if (!(hints.cu_q.empty() && hints.cu_k.empty() && hints.used_q.empty() &&
          hints.used_k.empty())) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}' gives lengths; accepted are cases of full lengths, of which "
                              "bytes are counted",
                              io::printable(text)));
    }
    cases.push_back(verify::at_full_length(c));
    core::validate_problem(cases.back().problem);
    for (const Algorithm algorithm : chosen(options)) {
      choice.algorithm = algorithm;
      check_io_size(text, cases.back().problem, choice);
    }
  }
  std::optional<Ncu> ncu;
  if (choice.on_gpu && options.measure) ncu.emplace();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Problem& problem = cases[i].problem;
    fmt::print(report.text(), "{} {}, fast memory {}; inputs and outputs once: {}\n{}\n",
               options.descriptors[i], name(choice.phase),
               format_bytes(static_cast<double>(choice.fast_bytes)),
               format_bytes(traffic::compulsory(problem, choice.phase).bytes()),
               io_table_header(choice.on_gpu));
    std::unique_ptr<verify::CaseData> data;
    std::vector<std::string> notes;
    for (const Algorithm algorithm : chosen(options)) {
      choice.algorithm = algorithm;
      IoRow row = make_io_row(options.descriptors[i], problem, choice);
      if (options.measure) {
        if (data == nullptr) data = std::make_unique<verify::CaseData>(cases[i], 1);
        if (ncu) {
          const GpuPass pass{
              .descriptor = options.descriptors[i],
              .phase = choice.phase,
              .options = {.algorithm = algorithm, .device = device, .kernel = options.kernel}};
          if (!measure_io_on_gpu(row, pass, *data, *ncu)) status = kWrong;
        } else {
          measure_io(row, *data);
        }
      }
      report.add(io_json(row));
      fmt::print(report.text(), "{}\n", io_table_line(row));
      std::fflush(report.text());  // the next one may take a minute
      for (const std::string& note : io_notes(row)) {
        if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
      }
    }
    for (const std::string& note : notes) fmt::print(report.text(), "{}\n", note);
  }
  report.save();
  return status;
}

}  // namespace

void add_io(CLI::App& app, int& status, const std::string& command_line) {
  auto options = std::make_shared<IoOptions>();
  CLI::App* sub = app.add_subcommand("io", "Bytes that each algorithm moves, modelled and counted");
  sub->add_option("descriptors", options->descriptors,
                  "Problems in text form (docs/descriptors.md), or @file with a list of them")
      ->required();
  sub->add_option("--phase", options->phase, "forward or backward")
      ->check(CLI::IsMember({"forward", "backward"}))
      ->capture_default_str()
      ->take_last();
  sub->add_option("--algorithm", options->algorithms,
                  "Separated by commas; default: those that have a model")
      ->type_name(algorithm_type())
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--fast-bytes", options->fast_bytes,
                  "M, the size of the fast memory, which decides the blocks; default: the L2 cache "
                  "of this machine, with --device cuda the shared memory of a block of threads")
      ->check(whole_number(64, std::uint64_t{1} << 40))
      ->take_last();
  sub->add_option("--block-q", options->block_q, "B_r, instead of the paper's rule")
      ->check(whole_number(1, 1 << 30))
      ->take_last();
  sub->add_option("--block-k", options->block_k, "B_c, instead of the paper's rule")
      ->check(whole_number(1, 1 << 30))
      ->take_last();
  sub->add_option("--arch", options->arch,
                  "Count the plan of the cuda backend on this architecture (sm_80, sm_90a, ...) "
                  "and not the CPU's; needs no GPU")
      ->take_last();
  sub->add_option(
         "--kernel", options->kernel,
         "With --arch or --device cuda: the kernel to count, as forward_flash_attention/n128 for "
         "B_c of 128")
      ->take_last();
  sub->add_option("--multiprocessors", options->multiprocessors,
                  "With --arch: of the GPU, which decides splits of the keys; default: 132")
      ->check(whole_number(1, 100'000))
      ->take_last();
  sub->add_flag(
      "--measure", options->measure,
      "Simulate a cache of M bytes; run on one CPU thread under the processor's counters, "
      "where the system allows them. With --device cuda: compare a run with fp64, then count one "
      "by ncu (Nsight Compute)");
  sub->add_option("--device", options->device,
                  "cpu (default), or cuda or cuda:N for the plan and the counters of a GPU here")
      ->type_name("DEVICE")
      ->take_last();
  add_json_option(*sub, options->json);
  sub->footer(
      "Columns: 'model' counts the loads and stores of the published algorithm, 'of inputs' how "
      "often that\nmoves inputs and outputs, 'plan' what the tiles of this library's own kernel "
      "move, 'simulated' what a\nfully associative LRU cache of M bytes moves, 'L2 misses' what "
      "the processor counts; on a GPU 'L2' is what multiprocessors ask of it, 'DRAM' what that "
      "asks of "
      "memory,\n'shared' what threads load and store there (docs/io.md).\n"
      "Examples:\n"
      "  attn io b1_n4096_h8_d64_f32\n"
      "  attn io b1_n4096_h8_d64_causal_bf16 --fast-bytes 100000 --phase backward\n"
      "  attn io b1_n1024_h2_d64_f32 --block-q 64 --block-k 128 --measure --json -\n"
      "  attn io b4_n4096_h16_d128_causal_bf16 --arch sm_90a --algorithm flash_attention_2\n"
      "  attn io b16_n1024_h16_d64_f32 --device cuda --measure");
  sub->callback([options, &status, command_line] { status = io(*options, command_line); });
}

}  // namespace attn::command
