#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <string_view>

#include "attn/error.hpp"
#include "command/command.hpp"
#include "command/message.hpp"
#include "command/number.hpp"
#include "cuda/driver/device.hpp"
#include "io/file.hpp"
#include "io/output_file.hpp"

namespace attn::command {
namespace {

constexpr std::uint64_t kMaxThreads = 4096;

// The text by which the help shows a value that is one of these.
std::string one_of(const std::vector<std::string_view>& names) {
  return fmt::format("{{{}}}", fmt::join(names, ","));
}

// `value` in the largest unit that leaves at least 1 before the point.
template <std::size_t N>
std::string format_unit(double value, const std::array<std::pair<double, const char*>, N>& units) {
  for (const auto& [size, unit] : units) {
    if (value >= size || size == units.back().first) {
      const double number = value / size;
      const int decimals = number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
      return fmt::format("{:.{}f} {}", number, decimals, unit);
    }
  }
  return {};
}

}  // namespace

std::string algorithm_type() {
  std::vector<std::string_view> names{name(Algorithm::automatic)};
  for (const Algorithm algorithm : algorithms(Phase::forward)) names.push_back(name(algorithm));
  return one_of(names);
}

void add_algorithm_option(CLI::App& app, std::string& algorithm) {
  app.add_option("--algorithm", algorithm, "Default: the fast one")
      ->type_name(algorithm_type())
      ->take_last();
}
void add_backend_option(CLI::App& app, std::string& backend) {
  app.add_option("--backend", backend, "Default: by the device; reference: fp64, one thread, slow")
      ->type_name(one_of({name(Backend::automatic), name(Backend::cpu), name(Backend::cuda),
                          name(Backend::reference)}))
      ->take_last();
}
CLI::Option* add_isa_option(CLI::App& app, std::string& isa) {
  std::vector<std::string_view> names{name(InstructionSet::automatic)};
  for (const InstructionSetInfo& info : instruction_sets()) names.push_back(name(info.isa));
  return app
      .add_option("--isa", isa, "Instruction set; 'attn info' lists them; default: the best here")
      ->type_name(one_of(names))
      ->take_last();
}
void add_threads_option(CLI::App& app, int& threads) {
  app.add_option("--threads", threads, "Default: one for each CPU this process may run on")
      ->check(whole_number(1, kMaxThreads))
      ->take_last();
}

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option("--device", device,
                 "cpu (default), cuda, or cuda:N for another than the first GPU")
      ->type_name("DEVICE")
      ->take_last();
}

void add_kernel_option(CLI::App& app, std::string& kernel) {
  app.add_option(
         "--kernel", kernel,
         "On a GPU: a kernel by name, as forward_sm80 or backward_simt; default: the fast one. "
         "forward_sm90/wg2_n160_s2_q2 names parts of a tile shape (docs/cuda.md)")
      ->take_last();
}

void add_deterministic_flag(CLI::App& app, bool& deterministic) {
  app.add_flag(
      "--deterministic", deterministic,
      "Equal inputs give equal bits of every result; on a GPU that may cost time backward");
}

void add_batch_invariant_flag(CLI::App& app, bool& batch_invariant) {
  app.add_flag("--batch-invariant", batch_invariant,
               "Forward: a sequence has the same bits in every batch and at every padding");
}

void add_json_option(CLI::App& app, std::string& json) {
  app.add_option("--json", json,
                 "Write machine, date, command and results here (docs/command.md); -: to standard "
                 "output")
      ->type_name("FILE")
      ->take_last();
}

Device parse_device(const std::string& text) {
  if (text.empty() || text == "cpu") return {};
  Device device{DeviceType::cuda, 0};
  constexpr std::string_view kNumbered = "cuda:";
  const bool has_number = text.starts_with(kNumbered) &&
                          reads_as(std::string_view(text).substr(kNumbered.size()), device.index) &&
                          device.index >= 0;
  if (text != "cuda" && !has_number) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--device is {}; accepted are cpu, cuda and cuda:N", io::printable(text)));
  }
  cuda::device_info(device.index);
  return device;
}

CLI::Validator whole_number(std::uint64_t min, std::uint64_t max) {
  const std::string accepted = fmt::format("a whole number from {} to {}", min, max);
  return {[=](const std::string& text) {
            std::uint64_t value = 0;
            const bool fits = reads_as(text, value) && value >= min && value <= max;
            // CLI11 would read 010 as 8.
            const bool octal = text.size() > 1 && text.front() == '0';
            if (fits && !octal) return std::string();
            return fmt::format("{} is given; accepted is {}{}", io::printable(text), accepted,
                               fits ? ", without zeros before it" : "");
          },
          ""};
}

CLI::Validator seconds() {
  return {[](const std::string& text) {
            double value = 0;
            const bool fits = reads_as(text, value) && std::isfinite(value) && value >= 0;
            return fits ? std::string()
                        : fmt::format(
                              "{} is given; accepted is a finite number of seconds, 0 or "
                              "more",
                              io::printable(text));
          },
          ""};
}

void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    option->check(CLI::Validator(
        [](const std::string& text) {
          return text.empty() ? std::string("an empty value is given; accepted is what --help says")
                              : std::string();
        },
        ""));
  }
}

void check_files_differ(const std::vector<NamedFile>& written,
                        const std::vector<std::string>& read) {
  const auto names_a_file = [](const NamedFile& file) {
    return !file.path.empty() && file.path != "-";
  };
  for (auto file = written.begin(); file != written.end(); ++file) {
    if (!names_a_file(*file)) continue;
    for (auto other = written.begin(); other != file; ++other) {
      if (!names_a_file(*other) || !io::OutputFile::same(file->path, other->path)) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} and {} are both {}; accepted are two files", file->option,
                              other->option, io::printable(file->path)));
    }
    for (const std::string& input : read) {
      if (!io::OutputFile::same(file->path, input)) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is {}, which holds tensors that are read; accepted is another "
                              "file",
                              file->option, io::printable(file->path)));
    }
  }
}

void check_run_options(const RunOptions& options) {
  const auto refuse = [](std::string_view option, std::string_view value, std::string_view why) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is {}, which {}; accepted is to leave it out", option,
                            io::printable(value), why));
  };
  const bool on_gpu = parse_device(options.device).type == DeviceType::cuda;
  const bool by_reference =
      !options.backend.empty() && parse_backend(options.backend) == Backend::reference;
  if (!on_gpu && !options.kernel.empty()) {
    refuse("--kernel", options.kernel, "names a kernel of --device cuda");
  }
  if (by_reference && !options.algorithm.empty()) {
    refuse("--algorithm", options.algorithm, "the reference backend does not have");
  }
  const std::string_view why = on_gpu ? "means nothing on a GPU" : "the reference does not use";
  if ((on_gpu || by_reference) && !options.isa.empty()) refuse("--isa", options.isa, why);
}

PlanOptions plan_options(const RunOptions& options) {
  PlanOptions result;
  if (!options.algorithm.empty()) result.algorithm = parse_algorithm(options.algorithm);
  if (!options.backend.empty()) result.backend = parse_backend(options.backend);
  result.device = parse_device(options.device);
  result.kernel = options.kernel;
  result.deterministic = options.deterministic;
  result.batch_invariant = options.batch_invariant;
  return result;
}

Context make_context(const RunOptions& options) {
  Context context;
  context.executor = make_thread_pool(options.threads);
  if (!options.isa.empty()) context.isa = parse_instruction_set(options.isa);
  context.log = [](std::string_view message) { tell(fmt::format("attn: {}\n", message)); };
  return context;
}

std::string format_seconds(double seconds) {
  return format_unit(seconds, std::array<std::pair<double, const char*>, 4>{
                                  {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}}});
}

std::string format_bytes(double bytes) {
  return bytes < 1024
             ? fmt::format("{:.0f} B", bytes)
             : format_unit(
                   bytes,
                   std::array<std::pair<double, const char*>, 4>{
                       {{0x1p40, "TiB"}, {0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}}});
}

}  // namespace attn::command
