// attn::Error as the exceptions of attn/errors.py.
#pragma once

namespace attn::python {

// From now on a call that throws attn::Error raises the class of its code, std::bad_alloc raises
// attn.OutOfMemory.
void translate_errors();

}  // namespace attn::python
