#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "attn/error.hpp"
#include "command/command.hpp"
#include "cuda/driver/device.hpp"

namespace attn::command {
namespace {

std::string algorithm_names() {
  std::vector<std::string> names{std::string(name(Algorithm::automatic))};
  for (const Algorithm algorithm : algorithms(Phase::forward)) names.emplace_back(name(algorithm));
  return fmt::format("{}", fmt::join(names, ", "));
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

void add_algorithm_option(CLI::App& app, std::string& algorithm) {
  app.add_option("--algorithm", algorithm, algorithm_names())->take_last();
}
void add_backend_option(CLI::App& app, std::string& backend) {
  app.add_option("--backend", backend,
                 "automatic, cpu, cuda, or reference (fp64, one thread, slow)")
      ->take_last();
}
void add_isa_option(CLI::App& app, std::string& isa) {
  app.add_option("--isa", isa, "Instruction set; 'attn info' lists them; default: the best here")
      ->take_last();
}
void add_threads_option(CLI::App& app, int& threads) {
  app.add_option("--threads", threads, "Default: one for each CPU this process may run on")
      ->check(CLI::Range(1, 4096))
      ->take_last();
}

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option("--device", device,
                 "cpu (default), cuda, or cuda:N for another than the first GPU")
      ->take_last();
}

void add_kernel_option(CLI::App& app, std::string& kernel) {
  app.add_option("--kernel", kernel,
                 "On a GPU: forward_sm90, forward_sm80 or forward_simt; default: the fast one. "
                 "forward_sm90/wg2_n160_s2_q2 names parts of a tile shape (docs/cuda.md)")
      ->take_last();
}

Device parse_device(const std::string& text) {
  if (text.empty() || text == "cpu") return {};
  Device device{DeviceType::cuda, 0};
  const std::string_view rest = std::string_view(text).substr(0, 5) == "cuda:"
                                    ? std::string_view(text).substr(5)
                                    : std::string_view();
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), device.index);
  const bool has_number =
      error == std::errc{} && end == rest.data() + rest.size() && device.index >= 0;
  if (text != "cuda" && !has_number) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--device {}; accepted are cpu, cuda and cuda:N", text));
  }
  cuda::device_info(device.index);
  return device;
}

PlanOptions plan_options(const RunOptions& options) {
  PlanOptions result;
  if (!options.algorithm.empty()) result.algorithm = parse_algorithm(options.algorithm);
  if (!options.backend.empty()) result.backend = parse_backend(options.backend);
  result.device = parse_device(options.device);
  result.kernel = options.kernel;
  return result;
}

Context make_context(const RunOptions& options) {
  Context context;
  context.executor = make_thread_pool(options.threads);
  if (!options.isa.empty()) context.isa = parse_instruction_set(options.isa);
  context.log = [](std::string_view message) { fmt::print(stderr, "attn: {}\n", message); };
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
