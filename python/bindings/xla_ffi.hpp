// The binary interface of XLA's foreign functions (openxla.org, "XLA custom calls"; version 0 of
// the API), as far as attn speaks it: calls out of JAX without jaxlib's headers. XLA keeps old
// versions working and tells by `size` what a structure has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attn::python::xla {

struct Error;  // XLA's own

enum class ErrorCode : std::int32_t {
  invalid_argument = 3,
  resource_exhausted = 8,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
};

enum class DType : std::int32_t {
  pred = 1,
  s32 = 4,
  s64 = 5,
  u8 = 6,
  u32 = 8,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16,
};

enum class ExtensionType : std::int32_t { metadata = 1 };

struct Extension {
  std::size_t size;
  ExtensionType type;
  Extension* next;
};

// What every argument of a function of the API begins with.
struct Header {
  std::size_t size;
  Extension* extensions;
};

struct Version {
  Header header;
  std::int32_t major;
  std::int32_t minor;
};

struct ErrorArguments {
  Header header;
  const char* message;
  ErrorCode code;
};

struct DetailsArguments {
  Header header;
  Error* error;
  const char* message;  // out; lives as long as the error
  ErrorCode code;       // out, of newer versions
};

struct DestroyArguments {
  Header header;
  Error* error;
};

struct StreamArguments {
  Header header;
  void* context;
  void* stream;  // out
};

struct AllocateArguments {
  Header header;
  void* context;
  std::size_t bytes;
  std::size_t alignment;
  void* data;  // out
};

struct FreeArguments {
  Header header;
  void* context;
  std::size_t bytes;
  void* data;
};

struct OrdinalArguments {
  Header header;
  void* context;
  std::int32_t ordinal;  // out
};

// Functions return null, or an error that the caller owns.
struct Api {
  Header header;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
  void (*get_error_details)(DetailsArguments*);
  void (*destroy_error)(DestroyArguments*);
  void* register_handler;
  Error* (*get_stream)(StreamArguments*);
  void* register_type;
  void* get_context;
  void* set_state;
  void* get_state;
  // Alignments of more than 16 are refused. The caller gives memory back before its handler
  // returns; work that it has put into the stream may still use it, since XLA gives it to later
  // work of the same stream.
  Error* (*allocate_device_memory)(AllocateArguments*);
  Error* (*free_device_memory)(FreeArguments*);
  void* schedule;
  void* number_of_threads;
  void* create_future;
  void* set_future_available;
  void* set_future_error;
  void* get_run_id;
  Error* (*get_device_ordinal)(OrdinalArguments*);  // newer than the others: see header.size
};

struct Buffer {
  Header header;
  DType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* shape;  // row-major
};

struct Span {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DType dtype;
  const void* value;
};

// Arguments or results; each is a Buffer.
struct Buffers {
  Header header;
  std::int64_t count;
  const std::int32_t* types;
  Buffer** buffers;
};

enum class AttributeType : std::int32_t { array = 1, dictionary = 2, scalar = 3, string = 4 };

struct Attributes {
  Header header;
  std::int64_t count;
  const AttributeType* types;
  const Span* const* names;  // in increasing order
  void* const* values;       // Scalar or Span, as `types` says
};

// A call of a handler: of its function, or, with an extension of type metadata, of what it is.
struct Frame {
  Header header;
  const Api* api;
  void* context;
  std::int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

using Handler = Error*(Frame*);

}  // namespace attn::python::xla
