#include "core/refusals.hpp"

#include <cstring>

#include "attn/error.hpp"

namespace attn::testing {
namespace {

void check_refusal(const Refusal& r, void (Call::*run)() const) {
  Call c = r.make();
  r.spoil(c);
  const auto before = c.memory;
  try {
    (c.*run)();
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), r.code) << message;
    for (const std::string& phrase : r.phrases) {
      EXPECT_NE(message.find(phrase), std::string::npos) << "'" << phrase << "' in: " << message;
    }
    EXPECT_NE(message.find("accepted"), std::string::npos) << message;
  }
  auto old = before.begin();
  for (const std::vector<double>& now : c.memory) {
    EXPECT_EQ(std::memcmp(now.data(), old->data(), now.size() * sizeof(double)), 0)
        << "memory was written";
    ++old;
  }
}

TEST_P(Refusals, NameTheArgumentAndWriteNothing) {
  const Refusal& r = GetParam();
  if ((r.phases & kForward) != 0) {
    SCOPED_TRACE("forward");
    check_refusal(r, &Call::forward);
  }
  if ((r.phases & kBackward) != 0) {
    SCOPED_TRACE("backward");
    check_refusal(r, &Call::backward);
  }
}

}  // namespace
}  // namespace attn::testing
