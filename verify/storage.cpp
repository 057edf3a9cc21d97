#include "verify/storage.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "attn/error.hpp"

namespace attn::verify {
namespace {

constexpr std::size_t kGuardBytes = 256;  // bytes before the first and after the last element

std::shared_ptr<std::byte> allocate(std::size_t size) {
  std::shared_ptr<std::byte> bytes(new (std::nothrow) std::byte[size],
                                   std::default_delete<std::byte[]>());
  if (bytes == nullptr) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("{} bytes for a tensor of the problem could not be allocated", size));
  }
  std::memset(bytes.get(), 0xff, size);
  return bytes;
}

// Address space without memory behind it until it is touched.
std::shared_ptr<std::byte> reserve(std::size_t size) {
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("{} bytes of address space could not be reserved", size));
  }
  return {static_cast<std::byte*>(at), [size](std::byte* p) { munmap(p, size); }};
}

template <class T>
T load_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

Storage::Storage(DType dtype, const std::vector<std::int64_t>& shape, const Placement& placement,
                 Random& random)
    : far_(placement.far) {
  const std::size_t rank = shape.size();
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  tensor_.dtype = dtype;
  tensor_.rank = static_cast<std::int32_t>(rank);
  std::copy(shape.begin(), shape.end(), tensor_.shape.begin());

  std::vector<std::size_t> order(rank);  // of axes in memory, outermost first
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (placement.strided) std::shuffle(order.begin(), order.end() - 1, random);
  if (placement.loose) std::shuffle(order.begin(), order.end(), random);
  if (placement.headmajor && rank >= 3) std::swap(order[rank - 3], order[rank - 2]);

  // Rows are the third last axis of [batch, seqlen, heads, head_dim] and of [total, heads,
  // head_dim]. In memory they come before heads then; pages come first of all.
  const std::size_t row_axis = rank >= 3 ? rank - 3 : 0;
  const auto gap = [&] {
    return placement.strided || placement.loose ? static_cast<std::int64_t>(1 + random() % 7)
                                                : std::int64_t{0};
  };
  std::int64_t extent = placement.loose ? gap() : 1;
  for (std::size_t position = rank; position-- > 0;) {
    const std::size_t axis = order[position];
    if (placement.broadcast && axis != row_axis && axis != rank - 1) {
      tensor_.strides[axis] = 0;
      continue;
    }
    if (placement.far && axis == row_axis) {
      const std::int64_t steps = std::max<std::int64_t>(1, shape[axis] - 1);
      extent = std::max(extent, (std::int64_t{1} << 31) / steps + 17);
    }
    tensor_.strides[axis] = extent;
    extent = extent * std::max<std::int64_t>(1, shape[axis]) + gap();
  }
  first_ = static_cast<std::int64_t>(kGuardBytes) + (placement.strided ? element : 0);
  size_ = static_cast<std::size_t>(first_ + extent * element) + kGuardBytes;
  for (std::size_t axis = 0; placement.loose && axis < rank; ++axis) {
    if (random() % 2 == 0) continue;
    first_ += std::max<std::int64_t>(0, shape[axis] - 1) * tensor_.strides[axis] * element;
    tensor_.strides[axis] *= -1;
  }
  bytes_ = far_ ? reserve(size_) : allocate(size_);
  tensor_.data = bytes_.get() + first_;
}

template <class F>
void Storage::for_each_element(F&& f) const {
  const auto element = static_cast<std::int64_t>(size_of(tensor_.dtype));
  std::array<std::int64_t, kMaxRank> index{};
  for (std::int64_t count = tensor_.size(); count > 0; --count) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < kMaxRank; ++axis) {
      offset += index[axis] * tensor_.strides[axis];
    }
    f(static_cast<std::size_t>(first_ + offset * element));
    for (auto axis = static_cast<std::size_t>(tensor_.rank); axis-- > 0;) {
      if (++index[axis] < tensor_.shape[axis]) break;
      index[axis] = 0;
    }
  }
}

void Storage::poison() {
  if (far_) {
    for_each_element(
        [&](std::size_t at) { std::memset(bytes_.get() + at, 0xff, size_of(tensor_.dtype)); });
  } else {
    std::memset(bytes_.get(), 0xff, size_);
  }
}

bool Storage::overwritten() const {
  if (far_) return false;
  if (gaps_.empty()) find_gaps();
  return std::any_of(gaps_.begin(), gaps_.end(), [&](const auto& gap) {
    return std::any_of(bytes_.get() + gap.first, bytes_.get() + gap.second,
                       [](std::byte b) { return b != std::byte{0xff}; });
  });
}

void Storage::find_gaps() const {
  std::vector<bool> owned(size_);
  for_each_element([&](std::size_t at) {
    std::fill_n(owned.begin() + static_cast<std::ptrdiff_t>(at), size_of(tensor_.dtype), true);
  });
  for (auto begin = owned.begin(); begin != owned.end();) {
    begin = std::find(begin, owned.end(), false);
    const auto end = std::find(begin, owned.end(), true);
    if (begin != end) gaps_.emplace_back(begin - owned.begin(), end - owned.begin());
    begin = end;
  }
}

std::vector<std::pair<std::size_t, std::size_t>> Storage::contents() const {
  if (!far_) return {{0, size_}};
  std::vector<std::pair<std::size_t, std::size_t>> rows;
  const std::size_t element = size_of(tensor_.dtype);
  for_each_element([&](std::size_t at) {
    if (!rows.empty() && rows.back().second == at) {
      rows.back().second += element;
    } else {
      rows.emplace_back(at, at + element);
    }
  });
  return rows;
}

std::uint64_t Storage::checksum() const {
  std::uint64_t hash = 0;
  const auto add = [&](const std::byte* from, std::size_t count) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, count);
    hash = ((hash ^ word) * 0x9e3779b97f4a7c15u);  // odd, so that no change of a word is lost
    hash ^= hash >> 32;
  };
  if (far_) {
    for_each_element([&](std::size_t at) { add(bytes_.get() + at, size_of(tensor_.dtype)); });
  } else {
    for (std::size_t i = 0; i < size_; i += sizeof(std::uint64_t)) {
      add(bytes_.get() + i, std::min(sizeof(std::uint64_t), size_ - i));
    }
  }
  return hash;
}

void store_element(const Tensor& tensor, std::int64_t offset, double value) {
  std::byte* to = static_cast<std::byte*>(tensor.data) +
                  offset * static_cast<std::int64_t>(size_of(tensor.dtype));
  const auto put = [to](auto stored) { std::memcpy(to, &stored, sizeof(stored)); };
  switch (tensor.dtype) {
    case DType::f64:
      return put(value);
    case DType::f32:
      return put(static_cast<float>(value));
    case DType::bf16:
      return put(bfloat16(static_cast<float>(value)));
    case DType::f16:
      return put(float16(static_cast<float>(value)));
    case DType::i64:
      return put(static_cast<std::int64_t>(value));
    case DType::i32:
      return put(static_cast<std::int32_t>(value));
    case DType::u8:
      return put(static_cast<std::uint8_t>(value));
  }
}

double load_element(const Tensor& tensor, std::int64_t offset) {
  const std::byte* from = static_cast<const std::byte*>(tensor.data) +
                          offset * static_cast<std::int64_t>(size_of(tensor.dtype));
  switch (tensor.dtype) {
    case DType::f64:
      return load_as<double>(from);
    case DType::f32:
      return load_as<float>(from);
    case DType::bf16:
      return static_cast<float>(load_as<bfloat16>(from));
    case DType::f16:
      return static_cast<float>(load_as<float16>(from));
    case DType::i64:
      return static_cast<double>(load_as<std::int64_t>(from));
    case DType::i32:
      return load_as<std::int32_t>(from);
    case DType::u8:
      return load_as<std::uint8_t>(from);
  }
  return 0;
}

}  // namespace attn::verify
