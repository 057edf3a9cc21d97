#include "io/safetensors.hpp"

#include <fmt/format.h>

#include "io_test_util.hpp"

namespace attn::io {
namespace {

class Safetensors : public IoTest {
 protected:
  // A file of this header and so many zero bytes of data.
  std::filesystem::path file(const std::string& header, std::size_t data_bytes) const {
    std::uint64_t length = header.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    return store("f.safetensors", bytes + header + std::string(data_bytes, '\0'));
  }
  void expect_refused(const std::string& header, std::size_t data_bytes,
                      std::initializer_list<std::string_view> parts) const {
    SCOPED_TRACE(header.substr(0, 200));
    const std::filesystem::path path = file(header, data_bytes);
    expect_error(ErrorCode::io, parts, [&] { const SafetensorsFile opened(path); });
    expect_error(ErrorCode::io, {path.native()}, [&] { const SafetensorsFile opened(path); });
  }
};

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

TEST_F(Safetensors, WhatIsWrittenReadsBack) {
  std::mt19937_64 random(1);
  const DType dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                          DType::i64, DType::i32, DType::u8};
  std::vector<Array> arrays;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const DType dtype : dtypes) {
    arrays.push_back(random_array(dtype, {2, 3, 1, 5}, random));
    arrays.push_back(random_array(dtype, {7}, random));
    arrays.push_back(random_array(dtype, {3, 0, 2}, random));
  }
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    tensors.emplace_back(fmt::format("tensor {}", i), arrays[i].tensor());
  }
  write_safetensors(path("all.safetensors"), tensors);
  const SafetensorsFile opened(path("all.safetensors"));
  EXPECT_EQ(opened.entries().size(), arrays.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    EXPECT_TRUE(same_bits(opened.read(fmt::format("tensor {}", i)), arrays[i])) << i;
  }
  EXPECT_FALSE(opened.contains("tensor"));
}

TEST_F(Safetensors, StridedTensorsAreGathered) {
  const float values[] = {0, 1, 2, 3, 4, 5};
  Tensor transposed = tensor(values, {2, 3});
  transposed.shape = {3, 2};
  transposed.strides = {1, 3};
  write_safetensors(path("t.safetensors"), {{"t", transposed}});
  const Array read = SafetensorsFile(path("t.safetensors")).read("t");
  const float expected[] = {0, 3, 1, 4, 2, 5};
  EXPECT_EQ(std::memcmp(read.data(), expected, sizeof expected), 0);
}

TEST_F(Safetensors, MetadataIsAccepted) {
  const auto path =
      file(R"({"__metadata__":{"format":"pt"},)" + entry("a", "U8", "[2]", "[0,2]") + "}   ", 2);
  EXPECT_EQ(SafetensorsFile(path).read("a").bytes(), 2U);
}

TEST_F(Safetensors, TruncatedFiles) {
  const std::string header = "{" + entry("a", "F32", "[2]", "[0,8]") + "}";
  const std::string whole = load(file(header, 8));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto path = store("cut.safetensors", whole.substr(0, size));
    expect_error(ErrorCode::io, {"cut.safetensors"}, [&] { const SafetensorsFile opened(path); });
  }
}

TEST_F(Safetensors, HeaderLengthBeyondTheFile) {
  for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    const std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    const auto path = store("length.safetensors", bytes + "{}");
    expect_error(ErrorCode::io, {"header claims", std::to_string(length), "at most 2"},
                 [&] { const SafetensorsFile opened(path); });
  }
}

TEST_F(Safetensors, OffsetsMustCoverTheData) {
  const std::string a = entry("a", "U8", "[4]", "[0,4]");
  expect_refused("{" + a + "," + entry("b", "U8", "[4]", "[3,7]") + "}", 7,
                 {"\"b\"", "begin at 3", "end at 4"});
  expect_refused("{" + a + "," + entry("b", "U8", "[4]", "[5,9]") + "}", 9,
                 {"\"b\"", "begin at 5", "end at 4"});
  expect_refused("{" + a + "," + entry("b", "U8", "[4]", "[0,4]") + "}", 4, {"\"b\"", "overlap"});
  expect_refused("{" + a + "}", 5, {"end at byte 4", "holds 5"});
  expect_refused("{" + a + "}", 3, {"\"a\"", "[0, 4]", "3 bytes"});
  expect_refused("{" + entry("a", "U8", "[4]", "[4,0]") + "}", 4, {"\"a\"", "[4, 0]"});
  expect_refused("{" + entry("a", "U8", "[4]", "[0,18446744073709551615]") + "}", 4, {"\"a\""});
  expect_refused("{" + entry("a", "F32", "[4]", "[0,4]") + "}", 4,
                 {"\"a\"", "[4] of F32 takes 16 bytes", "span 4"});
}

TEST_F(Safetensors, ShapesThatOverflow) {
  for (const char* shape :
       {"[4294967296,4294967296,4294967296]", "[9223372036854775807,2]",
        "[0,9223372036854775807,9223372036854775807]", "[4611686018427387904]"}) {
    expect_refused("{" + entry("a", "F32", shape, "[0,0]") + "}", 0, {"\"a\"", "2^63 - 1"});
  }
  expect_refused("{" + entry("a", "U8", "[9223372036854775808]", "[0,0]") + "}", 0, {"2^63 - 1"});
  expect_refused("{" + entry("a", "U8", "[18446744073709551616]", "[0,0]") + "}", 0,
                 {"\"a\"", "not an integer below 2^64"});
  expect_refused("{" + entry("a", "U8", "[-1]", "[0,0]") + "}", 0, {"a negative number"});
  expect_refused("{" + entry("a", "U8", "[1.5]", "[0,0]") + "}", 0, {"not an integer"});
}

TEST_F(Safetensors, MalformedHeaders) {
  const std::string a = entry("a", "U8", "[1]", "[0,1]");
  expect_refused("{" + a + "," + a + "}", 1, {"\"a\"", "twice"});
  expect_refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
                 {"dtype", "twice"});
  expect_refused("{" + entry("a", "F33", "[1]", "[0,1]") + "}", 1, {"\"a\"", "\"F33\"", "BF16"});
  expect_refused(R"({"a":{"dtype":"U8","shape":[1]}})", 1, {"\"a\"", "data_offsets"});
  expect_refused("{" + entry("a", "U8", "[1]", "[0]") + "}", 1, {"\"a\"", "two data_offsets"});
  expect_refused("{" + entry("a", "U8", "[1]", "[0,1,2]") + "}", 1, {"\"a\"", "more than two"});
  expect_refused(R"({"a":{"type":"U8"}})", 1, {"\"a\"", "\"type\""});
  expect_refused(R"({"a":[1]})", 1, {"\"a\"", "an array", "an object is expected"});
  expect_refused(R"([])", 0, {"begins with the byte 0x5b", "{"});
  expect_refused(R"(null)", 0, {"begins with the byte 0x6e"});
  expect_refused("", 0, {"empty"});
  expect_refused(R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1, {"an array"});
  expect_refused(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, {"an array"});
  expect_refused(R"({"__metadata__":{"x":NaN}})", 0, {"not JSON"});
  expect_refused(R"({"__metadata__":{"x":1}})", 0, {"__metadata__", "a number", "only strings"});
  expect_refused(R"({"__metadata__":{"x":{}}})", 0, {"__metadata__", "an object"});
  expect_refused(R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__", "twice"});
  expect_refused("{\"\xff\":{}}", 0, {"not JSON"});
  expect_refused("{} {}", 0, {"not JSON"});
  expect_refused(std::string(1 << 20, '['), 0, {"begins with the byte 0x5b"});
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += R"({"a":)";
  expect_refused(nested + "}", 0, {"the key \"a\""});
}

// A JSON object from the first byte on, then spaces: nothing may hide around it.
TEST_F(Safetensors, NothingButSpacesAfterTheObject) {
  const std::string object = "{" + entry("a", "U8", "[1]", "[0,1]") + "}";
  EXPECT_NO_THROW(SafetensorsFile(file(object + std::string(70, ' '), 1)).read("a"));
  EXPECT_NO_THROW(SafetensorsFile(file("{ \t\r\n" + object.substr(1), 1)).read("a"));
  EXPECT_NO_THROW(SafetensorsFile(file("{}", 0)));
  for (const char* before : {" ", "\n", "\xef\xbb\xbf", "\t{}", "x"}) {
    expect_refused(before + object, 1, {"begins with the byte 0x"});
  }
  for (const std::string& after :
       {std::string("\n"), std::string("\t"), std::string("\0", 1), std::string("\0\0\0", 3),
        std::string("  \n  "), std::string("x"), std::string("/**/"), std::string("\xa0")}) {
    expect_refused(object + after, 1, {"ends with the byte 0x", "spaces"});
  }
  // The parser takes a zero byte for the end of its text.
  expect_refused(object + std::string("\0hidden}", 8), 1, {"not JSON at its byte"});
  expect_refused(object + std::string("\0", 1) + object, 1, {"not JSON at its byte"});
  expect_refused(object + "," + object, 1, {"not JSON"});
  expect_refused(R"({"__metadata__":{"x":"1","x":"2"}})", 0, {"__metadata__", "\"x\"", "twice"});
}

TEST_F(Safetensors, NamesInErrorsArePrintable) {
  expect_refused("{" + entry("a\\u001b[2J\\n", "F33", "[1]", "[0,1]") + "}", 1, {"a\\x1b[2J\\x0a"});
  expect_refused("{" + entry(std::string(5000, 'x'), "F33", "[1]", "[0,1]") + "}", 1, {"xxx..."});
}

TEST_F(Safetensors, TensorsThatCannotBeRead) {
  const auto path = file("{" + entry("flags", "BOOL", "[2]", "[0,2]") + "," +
                             entry("deep", "U8", "[1,1,1,1,1]", "[2,3]") + "," +
                             entry("scalar", "U8", "[]", "[3,4]") + "}",
                         4);
  const SafetensorsFile opened(path);
  expect_error(ErrorCode::io, {"flags", "BOOL", "BF16"}, [&] { opened.read("flags"); });
  expect_error(ErrorCode::io, {"deep", "rank is 5"}, [&] { opened.read("deep"); });
  expect_error(ErrorCode::io, {"scalar", "rank is 0"}, [&] { opened.read("scalar"); });
  expect_error(ErrorCode::io, {"\"q\"", "deep, flags, scalar"}, [&] { opened.read("q"); });
}

TEST_F(Safetensors, FilesThatCannotBeOpened) {
  expect_error(ErrorCode::io, {"absent", "No such file"},
               [&] { const SafetensorsFile opened(path("absent")); });
  expect_error(ErrorCode::io, {"not a regular file"},
               [&] { const SafetensorsFile opened(path("")); });
}

TEST_F(Safetensors, RefusedWritesLeaveWhatWasThere) {
  const float value = 1;
  const Tensor t = tensor(&value, {1});
  const auto target = store("kept.safetensors", "before");
  expect_error(ErrorCode::invalid_argument, {"\"t\"", "unique"}, [&] {
    write_safetensors(target, {{"t", t}, {"t", t}});
  });
  expect_error(ErrorCode::invalid_argument, {"__metadata__"}, [&] {
    write_safetensors(target, {{"__metadata__", t}});
  });
  EXPECT_EQ(load(target), "before");
  expect_error(ErrorCode::io, {"cannot be written"}, [&] {
    write_safetensors(path("no/such/folder"), {{"t", t}});
  });
  expect_error(ErrorCode::io, {"a directory"}, [&] { write_safetensors(path(""), {{"t", t}}); });
  write_safetensors(target, {{"t", t}});
  EXPECT_NO_THROW(SafetensorsFile(target).read("t"));
  for (const auto& file : std::filesystem::directory_iterator(path(""))) {
    EXPECT_EQ(file.path().filename(), "kept.safetensors");
  }
}

}  // namespace
}  // namespace attn::io
