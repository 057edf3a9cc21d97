// attn's header before DLPack's: both compile, and the layouts are equal.
#include <attn/attn.h>
// After it.
#include <dlpack/dlpack.h>

#define SAME(ours, member) \
  _Static_assert(offsetof(ours, member) == offsetof(DLTensor, member), #member)
SAME(attn_tensor, data);
SAME(attn_tensor, device);
SAME(attn_tensor, ndim);
SAME(attn_tensor, dtype);
SAME(attn_tensor, shape);
SAME(attn_tensor, strides);
SAME(attn_tensor, byte_offset);
_Static_assert(sizeof(attn_tensor) == sizeof(DLTensor), "DLTensor");
_Static_assert(sizeof(attn_device) == sizeof(DLDevice), "DLDevice");
_Static_assert(sizeof(attn_dtype) == sizeof(DLDataType), "DLDataType");
_Static_assert(offsetof(attn_device, device_id) == offsetof(DLDevice, device_id), "device_id");
_Static_assert(offsetof(attn_dtype, bits) == offsetof(DLDataType, bits), "bits");
_Static_assert(offsetof(attn_dtype, lanes) == offsetof(DLDataType, lanes), "lanes");

int main(void) {
  // The numbers that attn.h names.
  return !(kDLCPU == 1 && kDLCUDA == 2 && kDLCUDAHost == 3 && kDLInt == 0 && kDLUInt == 1 &&
           kDLFloat == 2 && kDLBfloat == 4);
}
