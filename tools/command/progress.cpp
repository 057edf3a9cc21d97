#include "command/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "command/message.hpp"

namespace attn::command {

Progress::Progress(std::int64_t total)
    : total_(std::max<std::int64_t>(total, 1)),
      terminal_(::isatty(STDERR_FILENO) == 1),
      on_interrupt_([this] {
        const std::scoped_lock lock(mutex_);
        ended_ = true;
        clear_locked();
      }) {}

Progress::~Progress() { clear(); }

void Progress::show(std::int64_t done, std::string_view text) {
  const std::scoped_lock lock(mutex_);
  if (!terminal_ || ended_) return;
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const std::size_t columns = known ? size.ws_col : 80;
  constexpr std::int64_t kWidth = 24;
  const std::int64_t filled = std::clamp<std::int64_t>(kWidth * done / total_, 0, kWidth);
  std::string line =
      fmt::format("[{:#<{}}{:.<{}}] {}/{} {}", "", filled, "", kWidth - filled, done, total_, text);
  line.resize(std::min(line.size(), columns - 1));  // a longer line would wrap and stay
  tell(fmt::format("\r{}\x1b[K", line));
  drawn_ = true;
}

void Progress::clear() {
  const std::scoped_lock lock(mutex_);
  clear_locked();
}

void Progress::clear_locked() {
  if (!drawn_) return;
  tell("\r\x1b[K");
  drawn_ = false;
}

}  // namespace attn::command
