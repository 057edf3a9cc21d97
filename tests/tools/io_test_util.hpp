// Files and random tensors for the tests of tools/io.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "attn/error.hpp"
#include "io/array.hpp"

namespace attn::io {

// A folder of its own for each test, removed afterwards.
class IoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("attn_") + test->test_suite_name() + "_" + test->name() + "_" +
               std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  std::filesystem::path store(const std::string& name, std::string_view bytes) const {
    std::ofstream file(path(name), std::ios::binary | std::ios::trunc);
    file << bytes;
    return path(name);
  }
  static std::string load(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path folder_;
};

// Random bits in every element.
inline Array random_array(DType dtype, std::initializer_list<std::int64_t> shape,
                          std::mt19937_64& random) {
  Array array(dtype, {shape.begin(), shape.size()});
  for (std::size_t i = 0; i < array.bytes(); ++i) array.data()[i] = std::byte(random() & 0xff);
  return array;
}

inline ::testing::AssertionResult same_bits(const Array& a, const Array& b) {
  const Tensor& s = a.tensor();
  const Tensor& t = b.tensor();
  if (s.dtype != t.dtype || s.rank != t.rank || s.shape != t.shape || s.strides != t.strides) {
    return ::testing::AssertionFailure() << to_string(s) << " against " << to_string(t);
  }
  if (a.bytes() != 0 && std::memcmp(a.data(), b.data(), a.bytes()) != 0) {
    return ::testing::AssertionFailure() << "contents differ";
  }
  return ::testing::AssertionSuccess();
}

// Runs `body`, which must throw Error(code) whose text contains every one of `parts`.
template <class Body>
void expect_error(ErrorCode code, std::initializer_list<std::string_view> parts, const Body& body) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string_view part : parts) {
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos)
          << "\"" << part << "\" is missing in: " << error.what();
    }
  }
}

}  // namespace attn::io
