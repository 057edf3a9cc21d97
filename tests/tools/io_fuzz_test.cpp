// Valid files with bytes changed, inserted, removed or cut off: reading either succeeds or throws
// Error(io), and memory stays in proportion to the file.
#include <sys/resource.h>

#include "io/npy.hpp"
#include "io/safetensors.hpp"
#include "io_test_util.hpp"

namespace attn::io {
namespace {

constexpr int kRounds = 4000;

class IoFuzz : public IoTest {
 protected:
  // Every file here is under 1 KiB, so 1 GiB of address space (the program itself takes far less)
  // leaves no room for a reader that trusts a size before checking it. The sanitizers need more
  // address space than that for themselves.
  void SetUp() override {
    IoTest::SetUp();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    getrlimit(RLIMIT_AS, &limit_);
    const rlimit lower{.rlim_cur = rlim_t{1} << 30, .rlim_max = limit_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &lower), 0);
#endif
  }
  void TearDown() override {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    setrlimit(RLIMIT_AS, &limit_);
#endif
    IoTest::TearDown();
  }

  // Up to four edits, half of them in the first `header_bytes`, where they matter most.
  static std::string mutate(std::string bytes, std::size_t header_bytes, std::mt19937_64& random) {
    static constexpr std::string_view kTokens[] = {
        "0", "-1", "9",   "18446744073709551615", "[", "{", "}", "\"", ",", "(", ")", "NaN", "1e9",
        "'", ":",  "null"};
    for (std::uint64_t edits = 1 + random() % 4; edits > 0 && !bytes.empty(); --edits) {
      const std::size_t range = random() % 2 ? bytes.size() : std::min(header_bytes, bytes.size());
      const std::size_t at = random() % range;
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 2:
          bytes.insert(at, kTokens[random() % std::size(kTokens)]);
          break;
        case 3:
          bytes.erase(at, 1 + random() % 8);
          break;
        default:
          bytes.resize(at);
      }
    }
    return bytes;
  }

  template <class Read>
  void fuzz(const std::string& valid, std::size_t header_bytes, const Read& read) {
    int refused = 0;
    for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
      std::mt19937_64 random(seed);
      const auto path = store("mutated", mutate(valid, header_bytes, random));
      try {
        read(path);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::io) << "seed " << seed << ": " << error.what();
        ++refused;
      }
    }
    EXPECT_GT(refused, kRounds / 2);
  }

 private:
  rlimit limit_{};
};

TEST_F(IoFuzz, Safetensors) {
  std::mt19937_64 random(3);
  const Array q = random_array(DType::f32, {1, 4, 2, 8}, random);
  const Array k = random_array(DType::bf16, {3, 2}, random);
  const Array empty = random_array(DType::u8, {0}, random);
  write_safetensors(path("valid"), {{"q", q.tensor()}, {"k", k.tensor()}, {"e", empty.tensor()}});
  const std::string valid = load(path("valid"));
  fuzz(valid, valid.size() - q.bytes() - k.bytes(), [](const std::filesystem::path& path) {
    const SafetensorsFile file(path);
    for (const SafetensorsEntry& entry : file.entries()) {
      EXPECT_LE(file.read(entry.name).bytes(), std::filesystem::file_size(path));
    }
  });
}

TEST_F(IoFuzz, Npy) {
  std::mt19937_64 random(4);
  const Array array = random_array(DType::f32, {2, 3, 4}, random);
  write_npy(path("valid"), array.tensor());
  const std::string valid = load(path("valid"));
  // The spaces that pad the header are of little interest: 10 bytes and the dict.
  fuzz(valid, 75, [](const std::filesystem::path& path) {
    EXPECT_LE(read_npy(path).bytes(), std::filesystem::file_size(path));
  });
}

}  // namespace
}  // namespace attn::io
