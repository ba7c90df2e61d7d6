#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "mend/kernel/host/scalar.hpp"
#include "mend/kernel/host/simd.hpp"

//! Before a loop of a constant, small count whose arrays must stay in registers.
#if defined(__CUDACC__)
#define MEND_UNROLL
#else
#define MEND_UNROLL _Pragma("GCC unroll 8")
#endif

namespace mend::kernel {

#define MEND_SET BaselineSet
#define MEND_SET_BYTES 16
#define MEND_SET_TARGET inline
#if defined(__x86_64__)
#define MEND_SET_ROUND_HERE(x) asm("" : "+x"(x))
#elif defined(__aarch64__)
#define MEND_SET_ROUND_HERE(x) asm("" : "+w"(x))
#else
#define MEND_SET_ROUND_HERE(x) asm("" : "+m"(x))
#endif
#include "mend/kernel/host/instruction_set.inl"

#if defined(__x86_64__)
#define MEND_SET Avx2Set
#define MEND_SET_BYTES 32
#define MEND_SET_TARGET __attribute__((target("avx2,fma"))) inline
#define MEND_SET_ROUND_HERE(x) asm("" : "+x"(x))
#include "mend/kernel/host/instruction_set.inl"

#define MEND_SET Avx512Set
#define MEND_SET_BYTES 64
#define MEND_SET_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))) inline
#define MEND_SET_ROUND_HERE(x) asm("" : "+v"(x))
#include "mend/kernel/host/instruction_set.inl"
#endif

//! Asks for what a pass over memory will need: into the first-level cache what is near, into the
//! second what is far. Once per 64 bytes. Worth 20 % of an Adam step, whose arithmetic keeps the
//! processor from running ahead by itself.
inline void prefetch_ahead(const void* at) {
  __builtin_prefetch(static_cast<const char*>(at) + 1024, 0, 3);
  __builtin_prefetch(static_cast<const char*>(at) + 4096, 0, 2);
}

//! Runs body(Set{}) in the instruction set of that level, which this processor must support.
template <class Body>
inline void run_on(Simd simd, const Body& body) {
  switch (simd) {
#if defined(__x86_64__)
    case Simd::avx512: return Avx512Set::run(body);
    case Simd::avx2: return Avx2Set::run(body);
#endif
    case Simd::scalar: return ScalarSet::run(body);
    default: return BaselineSet::run(body);
  }
}

//! The same for work that waits for memory: two instruction sets suffice, which compiles in half
//! the time.
template <class Body>
inline void run_memory_bound([[maybe_unused]] Simd simd, const Body& body) {
#if defined(__x86_64__)
  if (simd >= Simd::avx2) return Avx2Set::run(body);
#endif
  BaselineSet::run(body);
}

}  // namespace mend::kernel
