// The number of workers of the default executor (attn/context.hpp).
#include "cpu/num_threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>

#include "attn/context.hpp"
#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cpu/available_cpus.hpp"

namespace attn {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// The number that a text begins with, and what follows it but for blanks.
struct Leading {
  int number;
  std::string_view rest;
};

std::optional<Leading> leading(std::string_view padded) {
  const std::string_view text = trimmed(padded);
  const char* const end = text.data() + text.size();
  int number = 0;
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number < 1 || number > cpu::kMaxThreads) return std::nullopt;
  return Leading{number, trimmed({at, static_cast<std::size_t>(end - at)})};
}

int from_environment() {
  if (const char* const ours = std::getenv("ATTN_NUM_THREADS"); ours != nullptr && *ours != 0) {
    const std::optional<Leading> found = leading(ours);
    if (found && found->rest.empty()) return found->number;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ATTN_NUM_THREADS is {}; accepted are 1 to {}", core::echo(ours),
                            cpu::kMaxThreads));
  }
  // Of OpenMP: a number for each level of nested loops, of which this is the outermost. What OpenMP
  // does not accept is its own to refuse.
  if (const char* const openmp = std::getenv("OMP_NUM_THREADS")) {
    const std::optional<Leading> found = leading(openmp);
    if (found && (found->rest.empty() || found->rest.front() == ',')) return found->number;
  }
  return cpu::available_cpus();
}

std::atomic<int> chosen{0};          // by set_num_threads(); 0: that of the environment
std::atomic<int> of_environment{0};  // 0 until it is asked for

}  // namespace

int get_num_threads() {
  if (const int threads = chosen.load(std::memory_order_relaxed)) return threads;
  if (const int threads = of_environment.load(std::memory_order_relaxed)) return threads;
  const int threads = from_environment();
  of_environment.store(threads, std::memory_order_relaxed);
  return threads;
}

void set_num_threads(int threads) {
  if (threads < 0 || threads > cpu::kMaxThreads) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("threads is {}; accepted are 0 (the default) to {}", threads,
                            cpu::kMaxThreads));
  }
  chosen.store(threads, std::memory_order_relaxed);
}

}  // namespace attn
