// Prefetching: asking for a cache line ahead of its use. No other file calls the compiler's builtin.
#pragma once

namespace penstock {

// Into L1, to be read; into L2, to be read; into L1, to be written. An address that is not mapped does no harm.
static inline __attribute__((always_inline)) void fetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }
static inline __attribute__((always_inline)) void fetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
static inline __attribute__((always_inline)) void fetch_to_write(const void* p) { __builtin_prefetch(p, 1, 3); }

}  // namespace penstock
