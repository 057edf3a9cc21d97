// What the shared library shows.
#pragma once

// Stands on every namespace of these headers: what is declared in its braces is exported, and what
// the library's sources add to the same namespace elsewhere stays inside. An archive exports
// nothing: a shared library that takes it in does not show attn to its own users.
#ifdef ATTN_STATIC
#define ATTN_API
#else
#define ATTN_API [[gnu::visibility("default")]]
#endif
